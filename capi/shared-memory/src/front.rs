//! The state of the library: whether it is ready, what the user has chosen, and the table of shared
//! memory. The principal functions are [`is_ready`], [`make`] and [`release`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use libc::c_int;
use rustix::process::{Resource, getrlimit};

use crate::cache::{Cache, Kept};
use crate::choice::{Choice, Descriptors, PAGE};
use crate::lock::{Held, Lock};
use crate::pages;
use crate::table::{File, Full, Piece, Span, Table};

/// The most pieces of shared memory: what the kernel allows a process by default as mappings
/// (`vm.max_map_count`).
const PIECES: usize = 65_536;

/// The memory of the program, and what it has freed.
pub(crate) struct Memory {
    pub(crate) table: Table<PIECES>,
    pub(crate) cache: Cache,
    /// The number of files of both.
    pub(crate) files: usize,
}

static MEMORY: Lock<Memory> = Lock::new(Memory { table: Table::new(), cache: Cache::new(), files: 0 });

/// The lowest and the highest address that the table has ever had. Most calls of the program are
/// about other addresses, and take no lock.
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGH: AtomicUsize = AtomicUsize::new(0);

static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether mappings of the program are shared, and not only blocks.
static SHARES_MAPPINGS: AtomicBool = AtomicBool::new(false);

static READY: AtomicBool = AtomicBool::new(false);
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// Whether the next functions are known. The first caller looks them up. Until they are known, they
/// must not be called, because the look-up itself may be the caller.
#[inline]
pub(crate) fn is_ready() -> bool {
    READY.load(Ordering::Acquire) || begin()
}

#[cold]
fn begin() -> bool {
    if BEGUN.swap(1, Ordering::Relaxed) != 0 {
        return READY.load(Ordering::Acquire);
    }
    // Before everything else: handlers of others must be behind these.
    crate::forks::register();
    crate::next::NEXT.look_up_all();
    // The first look at the clock calls `dlsym`, which must not happen with the table's lock held.
    let _ = pages::now();
    crate::owner::own();
    SHARES_MAPPINGS.store(!crate::surroundings::has_other_allocator(), Ordering::Relaxed);
    choose();
    READY.store(true, Ordering::Release);
    true
}

/// Reads the user's choice. It is not known before the C library has set up the environment, so
/// this library's constructor calls this again.
pub(crate) fn choose() {
    LEAST.store(crate::surroundings::choice().least, Ordering::Relaxed);
}

/// The user's choice.
#[inline]
pub(crate) fn choice() -> Choice {
    Choice { least: LEAST.load(Ordering::Relaxed) }
}

/// Whether a new mapping is to be shared.
pub(crate) fn wants_mapping(length: usize, protection: c_int, flags: c_int) -> bool {
    is_ready() && choice().wants_mapping(length, protection, flags) && SHARES_MAPPINGS.load(Ordering::Relaxed)
}

/// Waits for the table.
pub(crate) fn memory() -> Held<'static, Memory> {
    MEMORY.take()
}

/// Whether the table can have memory in a range.
#[inline]
pub(crate) fn may_hold(span: &Span) -> bool {
    span.start < HIGH.load(Ordering::Relaxed) && span.end > LOW.load(Ordering::Relaxed)
}

impl Memory {
    /// Adds a piece whose file is in the table, or private memory.
    pub(crate) fn put(&mut self, piece: Piece) -> Result<(), Full> {
        self.table.add(piece)?;
        LOW.fetch_min(piece.start, Ordering::Relaxed);
        HIGH.fetch_max(piece.end, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the first piece in a range out of the table. The second value is its file, if no other
    /// piece has it.
    pub(crate) fn take(&mut self, span: &Span) -> Result<Option<(Piece, Option<File>)>, Full> {
        let Some(piece) = self.table.take_first(span)? else { return Ok(None) };
        let last = piece.file.filter(|file| !self.table.has(file, piece.start));
        self.files -= usize::from(last.is_some());
        Ok(Some((piece, last)))
    }

    /// Removes a range that the program has unmapped past the C library. Nothing touches the memory
    /// there, which may be the program's by now.
    fn forget(&mut self, span: &Span) {
        while let Ok(Some((_, last))) = self.take(span) {
            last.iter().for_each(pages::close);
        }
    }

    /// Takes the only piece of a range out of the table, to put it elsewhere.
    pub(crate) fn lift(&mut self, span: &Span) -> Result<Option<Piece>, Full> {
        match self.table.first(span) {
            Some(piece) if piece.start == span.start && piece.end == span.end => self.table.take_first(span),
            _ => Ok(None),
        }
    }

    /// Gives the oldest freed block back. Returns whether there was one.
    fn give_up_oldest(&mut self) -> bool {
        let oldest = self.cache.pop();
        oldest.iter().for_each(|kept| self.give_back(kept));
        oldest.is_some()
    }

    /// Gives a freed block back that the cache no longer has.
    pub(crate) fn give_back(&mut self, kept: &Kept) {
        self.files -= 1;
        if !crate::owner::is_owner() {
            return;
        }
        if kept.is_full {
            pages::punch_for_good(&kept.piece);
        }
        kept.piece.file.iter().for_each(pages::close);
        pages::unmap(&(kept.piece.start..kept.piece.end));
    }

    /// Forgets all files, in a forked child. The pieces become private memory; only those of
    /// `malloc` stay in the table.
    pub(crate) fn become_private(&mut self) {
        self.files = 0;
        self.cache.clear();
        self.table.keep(|piece| piece.block != 0);
        for piece in self.table.pieces_mut() {
            (piece.file, piece.copy) = (None, 0);
        }
    }
}

/// Gives all freed blocks back. Returns whether there were any.
pub(crate) fn give_up() -> bool {
    let mut memory = memory();
    let any = !memory.cache.kept().is_empty();
    while memory.give_up_oldest() {}
    any
}

/// Makes new private memory shared, if there are descriptors for it.
pub(crate) fn make(span: &Span, file_length: usize, block: usize) -> bool {
    let descriptors = Descriptors::of(getrlimit(Resource::Nofile).current);
    let mut memory = memory();
    memory.forget(span);
    memory.cache.limit(descriptors.most, getrlimit(Resource::As).current);
    if memory.files >= descriptors.most {
        memory.give_up_oldest();
    }
    if memory.files >= descriptors.most || !memory.table.is_roomy() {
        return false;
    }
    let Some(piece) = pages::share(span, file_length, block, &descriptors) else { return false };
    memory.files += 1;
    memory.put(piece).is_ok()
}

/// Removes a range from the table and gives its memory back to the machine. The caller unmaps it,
/// or maps something else there. Fails if the table cannot be split so.
pub(crate) fn release(span: &Span) -> Result<(), Full> {
    if may_hold(span) { release_held(memory(), span) } else { Ok(()) }
}

/// The same, for a caller that has the lock.
pub(crate) fn release_held(mut held: Held<'_, Memory>, span: &Span) -> Result<(), Full> {
    loop {
        let taken = held.take(span)?;
        drop(held);
        let Some((piece, last)) = taken else { return Ok(()) };
        // Without the lock: it can take long.
        pages::punch_for_good(&piece);
        last.iter().for_each(pages::close);
        if (piece.start, piece.end) == (span.start, span.end) {
            return Ok(());
        }
        held = memory();
    }
}

/// There is new memory in a range. What the table has there was unmapped past the C library.
pub(crate) fn forget(span: &Span) {
    if may_hold(span) {
        memory().forget(span);
    }
}

/// Whether the table has memory in a range.
pub(crate) fn holds(span: &Span) -> bool {
    may_hold(span) && memory().table.first(span).is_some()
}

/// The pages of a range that the program has given, or `None` if the kernel would refuse it.
pub(crate) fn span(address: usize, length: usize) -> Option<Span> {
    let length = crate::choice::whole_pages(length)?;
    (address.is_multiple_of(PAGE) && length != 0).then_some(address..address.checked_add(length)?)
}
