//! What happens to mappings that the program makes, changes and removes. Each function gets the
//! next function as an argument. All addresses are numbers. The principal function is [`map`].

use libc::c_int;
use rustix::io::Errno;

use crate::choice::{PAGE, file_length};
use crate::front::{self, may_hold, memory, release, span};
use crate::pages::{self, GUARD_INSTALL};
use crate::table::{Advice, Full, Piece, Span};
use interpose::refused;

/// The answer of mmap(2) and mremap(2) if they fail.
const FAILED: isize = -1;

const DONTNEED_LOCKED: c_int = 24;
const GUARD_REMOVE: c_int = 103;

/// `mmap`. `next` takes the flags.
pub(crate) fn map(length: usize, asked: (usize, c_int, c_int), next: impl Fn(c_int) -> isize) -> isize {
    let (address, protection, flags) = asked;
    let next = |flags| {
        let found = next(flags);
        // Freed blocks may have the addresses that the program's limit allows.
        let is_short = found == FAILED && interpose::errno() == libc::ENOMEM;
        if is_short && front::give_up() { next(flags) } else { found }
    };
    if front::wants_mapping(length, protection, flags) {
        let present = flags & (libc::MAP_POPULATE | libc::MAP_LOCKED);
        let found = next(flags & !present);
        if let Some(span) = span(found.cast_unsigned(), length).filter(|_| found != FAILED) {
            if flags & libc::MAP_LOCKED != 0
                && let Err(error) = pages::may_lock(&span)
            {
                pages::unmap(&span);
                return refused(error.raw_os_error());
            }
            front::make(&span, file_length(span.len()), 0);
            if present != 0 {
                pages::populate(&span, flags & libc::MAP_LOCKED != 0);
            }
        }
        return found;
    }
    let replaces = flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0;
    if replaces && let Some(span) = span(address, length).filter(front::holds) {
        if !is_accepted(&span, flags, next) {
            return FAILED;
        }
        if release(&span).is_err() {
            return refused(libc::ENOMEM);
        }
    }
    let found = next(flags);
    if found != FAILED
        && let Some(span) = span(found.cast_unsigned(), length)
    {
        front::forget(&span);
    }
    found
}

/// Whether the kernel accepts a mapping over shared memory. If it refuses, the memory must stay as
/// it is. So the mapping is made elsewhere first. If there is no room elsewhere, that does not
/// decide.
fn is_accepted(span: &Span, flags: c_int, next: impl Fn(c_int) -> isize) -> bool {
    if flags & libc::MAP_HUGETLB != 0 {
        return true;
    }
    let tried = next(flags & !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED));
    if tried == FAILED {
        return interpose::errno() == libc::ENOMEM;
    }
    pages::unmap(&(tried.cast_unsigned()..tried.cast_unsigned() + span.len()));
    true
}

/// `munmap`.
pub(crate) fn unmap(address: usize, length: usize, next: impl FnOnce() -> c_int) -> c_int {
    match span(address, length).map_or(Ok(()), |span| release(&span)) {
        Ok(()) => next(),
        Err(Full) => refused(libc::ENOMEM),
    }
}

/// `mprotect`: the table needs the protection for a forked child's copy. Code becomes private,
/// because a debugger cannot write into shared pages that the program may not write.
pub(crate) fn protect(address: usize, length: usize, protection: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let Some(span) = span(address, length).filter(may_hold) else { return next() };
    if protection & libc::PROT_EXEC != 0 {
        crate::forks::make_private(&span, pages::is_reusable);
    }
    let mut memory = memory();
    if !memory.table.is_splittable() && memory.table.first(&span).is_some() {
        return refused(libc::ENOMEM);
    }
    let answer = next();
    let change = |piece: &mut Piece| piece.protection = protection.cast_unsigned();
    // The kernel may have changed a part before it failed.
    if answer != 0 || memory.table.change(&span, change).is_err() {
        memory.table.mark(&span);
    }
    answer
}

/// The program gives pages a property that only unmapping takes away.
pub(crate) fn mark(address: usize, length: usize) {
    let first = address / PAGE * PAGE;
    let Some(end) = address.checked_add(length) else { return };
    if let Some(span) = span(first, end - first).filter(may_hold) {
        memory().table.mark(&span);
    }
}

/// `madvise`. `next` takes the address and the length, because a range can have parts that are not
/// shared.
pub(crate) fn advise(address: usize, length: usize, advice: c_int, next: impl Fn(usize, usize) -> c_int) -> c_int {
    let Some(mut rest) = span(address, length).filter(may_hold) else { return next(address, length) };
    let mut has_holes = false;
    while !rest.is_empty() {
        let piece = memory().table.first(&rest).filter(|piece| piece.file.is_some() || piece.start != rest.start);
        let part = match piece {
            Some(piece) if piece.start == rest.start => piece.end,
            Some(piece) => piece.start,
            None => memory().table.first(&rest).map_or(rest.end, |private| private.end),
        };
        let answer = match piece.filter(|piece| piece.start == rest.start) {
            Some(piece) => advise_piece(&piece, advice, || next(piece.start, piece.len())),
            None => next(rest.start, part - rest.start),
        };
        if answer != 0 && interpose::errno() != libc::ENOMEM {
            return answer;
        }
        // As the kernel, which goes on behind addresses without memory.
        has_holes |= answer != 0;
        rest.start = part;
    }
    if has_holes { refused(libc::ENOMEM) } else { 0 }
}

/// Gives shared memory what the advice means for private memory.
fn advise_piece(piece: &Piece, advice: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let answer = |done: Result<(), Errno>| done.map_or_else(|error| refused(error.raw_os_error()), |()| 0);
    // If the table is full: what the kernel says if there are too many mappings.
    let record = |change: fn(&mut Advice)| {
        let changed = memory().table.change(&(piece.start..piece.end), |piece| change(&mut piece.advice));
        answer(changed.map_err(|Full| Errno::AGAIN))
    };
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => answer(pages::punch(piece)),
        DONTNEED_LOCKED => answer(pages::punch_file(piece)),
        // Only for shared memory.
        libc::MADV_REMOVE => refused(libc::EINVAL),
        libc::MADV_DONTFORK => record(|advice| advice.is_absent = true),
        libc::MADV_DOFORK => record(|advice| advice.is_absent = false),
        libc::MADV_WIPEONFORK => record(|advice| advice.is_wiped = true),
        libc::MADV_KEEPONFORK => record(|advice| advice.is_wiped = false),
        libc::MADV_DONTDUMP => record(|advice| advice.is_undumped = true) | next(),
        libc::MADV_DODUMP => record(|advice| advice.is_undumped = false) | next(),
        GUARD_REMOVE => record(|advice| advice.is_guarded = false) | next(),
        GUARD_INSTALL => {
            let recorded = record(|advice| advice.is_guarded = true);
            if recorded != 0 || next() != 0 {
                return FAILED as c_int;
            }
            // A guarded page of private memory loses its data. Without its descriptor, which the program
            // has closed, the file keeps it where nobody can read it.
            let _ = pages::punch_file(piece);
            0
        }
        _ => {
            if advice == libc::MADV_MERGEABLE {
                mark(piece.start, piece.len());
            }
            next()
        }
    }
}

/// What mremap(2) is asked for.
pub(crate) struct Move {
    pub(crate) address: usize,
    pub(crate) length: usize,
    pub(crate) new_length: usize,
    pub(crate) flags: c_int,
    pub(crate) new_address: usize,
}

impl Move {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }
}

/// `mremap`. `next` takes the length and the flags.
pub(crate) fn remap(asked: &Move, next: impl Fn(usize, c_int) -> isize) -> isize {
    let as_asked = || next(asked.length, asked.flags);
    let (Some(old), Some(new_length)) =
        (span(asked.address, asked.length), crate::choice::whole_pages(asked.new_length).filter(|length| *length != 0))
    else {
        // Only shared memory can be mapped a second time in this way.
        let is_ours = asked.length == 0 && may_hold(&(asked.address..asked.address.saturating_add(PAGE)));
        let is_ours = is_ours && memory().table.first(&(asked.address..asked.address + PAGE)).is_some();
        return if is_ours { refused(libc::EINVAL) } else { as_asked() };
    };
    if asked.has(libc::MREMAP_FIXED) {
        // What the kernel refuses, it refuses before it changes anything.
        let target = span(asked.new_address, new_length).filter(|_| asked.has(libc::MREMAP_MAYMOVE));
        let Some(target) = target.filter(|target| target.end <= old.start || old.end <= target.start) else {
            return as_asked();
        };
        if release(&target).is_err() {
            return refused(libc::ENOMEM);
        }
    }
    if !may_hold(&old) || memory().table.first(&old).is_none() {
        return as_asked();
    }
    remap_shared(asked, old, new_length, next)
}

fn remap_shared(asked: &Move, mut old: Span, new_length: usize, next: impl Fn(usize, c_int) -> isize) -> isize {
    let leaves = asked.has(libc::MREMAP_DONTUNMAP);
    if leaves && (new_length != old.len() || !asked.has(libc::MREMAP_MAYMOVE)) {
        return refused(libc::EINVAL);
    }
    if new_length < old.len() {
        let tail = old.start + new_length..old.end;
        if release(&tail).is_err() {
            return refused(libc::ENOMEM);
        }
        pages::unmap(&tail);
        old.end = tail.start;
    }
    let moves = leaves || asked.has(libc::MREMAP_FIXED);
    if new_length == old.len() && !moves {
        return old.start.cast_signed();
    }
    // Held until the piece is back: neither a fork nor the end of another piece of the file may
    // miss it.
    let mut memory = memory();
    let piece = match memory.lift(&old) {
        Ok(Some(piece)) => piece,
        Ok(None) if memory.table.is_one_mapping(&old) => {
            drop(memory);
            return copied(asked, &old, new_length);
        }
        // More than one mapping, as for the kernel.
        Ok(None) => return refused(libc::EFAULT),
        Err(Full) => return refused(libc::ENOMEM),
    };
    let fits = piece.file.is_none_or(|file| {
        piece.offset + new_length <= file.length && (new_length == old.len() || !memory.table.has(&file, old.start))
    });
    if !fits {
        let put = memory.put(piece);
        debug_assert!(put.is_ok(), "a piece was just taken out");
        drop(memory);
        return copied(asked, &old, new_length);
    }
    let found = if leaves && !asked.has(libc::MREMAP_FIXED) {
        moved(&old)
    } else {
        next(old.len(), asked.flags & !libc::MREMAP_DONTUNMAP)
    };
    let start = if found == FAILED { old.start } else { found.cast_unsigned() };
    let end = if found == FAILED { old.end } else { start + new_length };
    let put = memory.put(Piece { start, end, ..piece });
    debug_assert!(put.is_ok(), "a piece was just taken out");
    if found != FAILED && leaves {
        // The old pages are zeros.
        let _ = pages::map_at(&old);
    }
    found
}

/// Moves memory to any other address.
fn moved(old: &Span) -> isize {
    let moved = pages::map(old.len()).and_then(|place| pages::move_to(old, place).map(|()| place));
    moved.map_or_else(|error| refused(error.raw_os_error()), usize::cast_signed)
}

/// Grows memory beyond the end of its file: copies it to a new file.
fn copied(asked: &Move, old: &Span, new_length: usize) -> isize {
    if !asked.has(libc::MREMAP_MAYMOVE) {
        return refused(libc::ENOMEM);
    }
    let new = if asked.has(libc::MREMAP_FIXED) {
        let target = asked.new_address..asked.new_address + new_length;
        pages::unmap(&target);
        pages::map_at(&target).map(|()| target)
    } else {
        pages::map(new_length).map(|start| start..start + new_length)
    };
    let new = match new {
        Ok(new) => new,
        Err(error) => return refused(error.raw_os_error()),
    };
    front::make(&new, file_length(new_length), 0);
    if let Err(error) = copy_all(old, &new) {
        if release(&new).is_ok() {
            pages::unmap(&new);
        }
        return refused(error.raw_os_error());
    }
    if asked.has(libc::MREMAP_DONTUNMAP) {
        // The old pages are zeros.
        each_piece(old, |piece| {
            let _ = pages::punch(piece);
        });
    } else if release(old).is_ok() {
        pages::unmap(old);
    }
    new.start.cast_signed()
}

fn each_piece(span: &Span, mut work: impl FnMut(&Piece)) {
    let mut at = span.start;
    // A function of its own, so that the lock is not held while the work is done.
    let next = |at| memory().table.first(&(at..span.end));
    while let Some(piece) = next(at) {
        work(&piece);
        at = piece.end;
    }
}

/// Copies the data and the properties of shared memory to new memory of at least its size.
fn copy_all(old: &Span, new: &Span) -> Result<(), Errno> {
    let give = |span: &Span, piece: &Piece, advice: Advice| {
        let change = |new: &mut Piece| (new.protection, new.advice) = (piece.protection, advice);
        // New memory is one piece. If the table is full, a child's copy lacks the properties.
        let _ = memory().table.change(span, change);
        pages::advise(span, advice);
    };
    let (mut done, mut is_locked) = (Ok(()), false);
    each_piece(old, |piece| {
        let start = new.start + (piece.start - old.start);
        done = done.and_then(|()| pages::copy(piece, start));
        is_locked |= pages::is_locked(piece);
    });
    done?;
    if is_locked {
        pages::lock(new).map_err(|_| Errno::AGAIN)?;
    }
    let mut is_first = true;
    each_piece(old, |piece| {
        if std::mem::take(&mut is_first) {
            give(new, piece, Advice { is_guarded: false, ..piece.advice });
            if piece.protection != pages::DATA.bits() {
                pages::protect(new.start, new.len(), piece.protection);
            }
        }
        if piece.advice.is_guarded {
            let start = new.start + (piece.start - old.start);
            give(&(start..start + piece.len()), piece, piece.advice);
        }
    });
    Ok(())
}
