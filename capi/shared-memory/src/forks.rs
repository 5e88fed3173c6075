//! Forks. A child gets copies of the shared memory, at the same addresses, as private memory.
//!
//! The copies are made in the parent, as late as possible: in the handler that `fork` runs last
//! before it asks the kernel. The shared memory itself is not inherited (`MADV_DONTFORK`), so no
//! child can ever write into its parent's memory. In the child, the handler that runs first moves
//! the copies to their places. vfork(2), `posix_spawn` and `system` run no handlers: their child
//! uses the parent's memory until it calls exec. The principal function is [`prepare`].

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::thread::gettid;

use crate::front::{Memory, memory};
use crate::lock::Held;
use crate::next::Function;
use crate::pages;
use crate::table::{Full, Piece, Span};

/// The lock of the table, from before a fork until after it.
struct Fork(UnsafeCell<Option<Held<'static, Memory>>>);

// SAFETY: only the thread that has the lock uses the value.
unsafe impl Sync for Fork {}

static FORK: Fork = Fork(UnsafeCell::new(None));

/// The thread that forks, or 0.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// What registers the handlers of a fork. `pthread_atfork` is a part of each library, and calls it.
type Register = unsafe extern "C" fn(
    Option<extern "C" fn()>,
    Option<extern "C" fn()>,
    Option<extern "C" fn()>,
    *const std::ffi::c_void,
) -> c_int;

static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Has `fork` of the C library run the handlers. The first one that registers runs last before the
/// fork, and first after it. So this runs before any other registration, and before the first
/// allocation.
pub(crate) fn register() {
    // SAFETY: the type is the one that the C library has.
    let next = unsafe { Function::__register_atfork.next::<Register>() };
    // The look-up may allocate, and another allocator may register its handlers then.
    if let Some(next) = next.filter(|_| !IS_REGISTERED.swap(true, Ordering::Relaxed)) {
        // SAFETY: the functions live as long as the process: a preloaded library is never unloaded.
        // No library is named, so the handlers stay registered until the process has ended.
        let _ = unsafe { next(Some(prepare), Some(in_parent), Some(in_child), std::ptr::null()) };
    }
}

/// Whether this thread is between [`prepare`] and [`in_parent`].
pub(crate) fn is_under_way() -> bool {
    FORKER.load(Ordering::Relaxed) == gettid().as_raw_nonzero().get()
}

/// Whether the copies will have room. `false`: the fork fails with ENOMEM, as the kernel's would.
pub(crate) fn is_possible() -> bool {
    let memory = memory();
    let pieces = memory.table.pieces().filter(|piece| piece.file.is_some());
    let total: usize = pieces.filter(|piece| !piece.advice.is_absent).map(Piece::len).sum();
    drop(memory);
    let has_room = || pages::map_unreserved(total).map(|start| pages::unmap(&(start..start + total))).is_ok();
    total == 0 || has_room() || (crate::front::give_up() && has_room())
}

/// Before a fork: makes the copies.
pub(crate) extern "C" fn prepare() {
    if is_under_way() {
        return;
    }
    let mut memory = memory();
    for piece in memory.table.pieces_mut().filter(|piece| piece.file.is_some()) {
        // Without room, the child does not have the memory.
        let room = |length| pages::map_unreserved(length).unwrap_or(0);
        piece.copy = if piece.advice.is_absent { 0 } else { room(piece.len()) };
        let is_wanted = piece.copy != 0 && !piece.advice.is_wiped && !piece.advice.is_guarded;
        if is_wanted && pages::copy(piece, piece.copy).is_err() {
            // A child without the memory notices; one with a part of the data would not.
            pages::unmap(&(piece.copy..piece.copy + piece.len()));
            piece.copy = 0;
        }
    }
    FORKER.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    // SAFETY: this thread has the lock.
    unsafe { *FORK.0.get() = Some(memory) };
}

/// After a fork, in the parent: removes the copies.
pub(crate) extern "C" fn in_parent() {
    // SAFETY: this thread has the lock since `prepare`.
    let Some(mut memory) = (unsafe { (*FORK.0.get()).take() }) else { return };
    for piece in memory.table.pieces_mut() {
        pages::unmap(&(piece.copy..piece.copy + if piece.copy == 0 { 0 } else { piece.len() }));
        piece.copy = 0;
    }
    FORKER.store(0, Ordering::Relaxed);
}

/// After a fork, in the child: moves the copies to their places.
pub(crate) extern "C" fn in_child() {
    in_child_with(false);
}

/// The same. `shares_files`: the descriptors are also the parent's.
pub(crate) fn in_child_with(shares_files: bool) {
    // SAFETY: the child's only thread is the one that has the lock since `prepare`.
    let Some(mut memory) = (unsafe { (*FORK.0.get()).take() }) else { return };
    for piece in memory.table.pieces().filter(|piece| piece.file.is_some()) {
        piece.file.iter().filter(|_| !shares_files).for_each(pages::close);
        let span = piece.copy..piece.copy + piece.len();
        let is_placed = piece.copy != 0 && pages::move_to(&span, piece.start).is_ok();
        if is_placed && piece.protection != pages::DATA.bits() {
            pages::protect(piece.start, piece.len(), piece.protection);
        }
        if is_placed {
            // Its own children also get what the advice says.
            pages::advise(&(piece.start..piece.end), piece.advice);
        }
        if !is_placed && piece.block != 0 {
            // The child may free the block. Until then, nothing else may have its addresses.
            let _ = pages::map_at(&(piece.start..piece.end));
            pages::protect(piece.start, piece.len(), 0);
        }
    }
    if !shares_files {
        memory.cache.kept().iter().filter_map(|kept| kept.piece.file.as_ref()).for_each(pages::close);
    }
    memory.become_private();
    crate::owner::own();
    FORKER.store(0, Ordering::Relaxed);
}

/// Makes the wanted pieces of a range private: the program will use them in a way that needs
/// private memory. A forked child, for example, needs its stack from the first moment on. The
/// program must not write into the memory meanwhile.
pub(crate) fn make_private(span: &Span, is_wanted: impl Fn(&Piece) -> bool) {
    if crate::front::may_hold(span) {
        // If there is no room for the copy, a fork from that stack fails.
        let _ = try_make_private(span, is_wanted);
    }
}

fn try_make_private(span: &Span, is_wanted: impl Fn(&Piece) -> bool) -> Result<(), Full> {
    let mut memory = memory();
    let mut rest = span.clone();
    while let Some(piece) = memory.table.first(&rest) {
        rest.start = piece.end;
        if piece.file.is_none() || !is_wanted(&piece) {
            continue;
        }
        let Ok(copy) = pages::map_unreserved(piece.len()) else { continue };
        if pages::copy(&piece, copy).is_err() {
            pages::unmap(&(copy..copy + piece.len()));
            continue;
        }
        let is_locked = pages::is_locked(&piece);
        let taken =
            memory.take(&(piece.start..piece.end)).inspect_err(|Full| pages::unmap(&(copy..copy + piece.len())))?;
        let Some((piece, last)) = taken else { continue };
        let moved = pages::move_to(&(copy..copy + piece.len()), piece.start);
        debug_assert!(moved.is_ok(), "{moved:?}");
        pages::protect(piece.start, piece.len(), piece.protection);
        pages::advise(&(piece.start..piece.end), piece.advice);
        if is_locked {
            let _ = pages::lock(&(piece.start..piece.end));
        }
        // A part of the file may still be mapped.
        let _ = pages::punch_file(&piece);
        last.iter().for_each(pages::close);
        if piece.block != 0 {
            memory.put(Piece { file: None, ..piece })?;
        }
    }
    Ok(())
}
