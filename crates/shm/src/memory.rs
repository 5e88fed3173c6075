//! Access to memory that another party may write at any time: words as atomics, bytes as copies
//! that load or store each byte exactly once. It is not a layout and not a protocol. Principal
//! types: the trait [`Memory`], which the rings use, and [`Window`], a part of a [`Region`]; the
//! second implementor is the loom model in the tests. The barriers between posters and sleepers are
//! here, too: who executes which, and when, is in [`crate::wake_word`].

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

use crate::region::{Region, Sink, Source};

/// Data bytes of a cell: the rest of its line is the commit word.
pub const CELL_DATA: usize = 60;

/// Shared memory as the rings see it. Offsets are in bytes; one outside the memory is a programming
/// error and panics.
pub trait Memory {
    /// Loads the word at `at` (a multiple of 4).
    fn load(&self, at: usize, order: Ordering) -> u32;
    /// Stores the word at `at` (a multiple of 4).
    fn store(&self, at: usize, value: u32, order: Ordering);
    /// Replaces the word at `at` with the result of `change`, atomically and relaxed; returns the
    /// new value.
    fn update(&self, at: usize, change: impl Fn(u32) -> u32) -> u32;
    /// Copies the data of the cell at `at` (a multiple of 64) out.
    fn read_cell(&self, at: usize, into: &mut [u8; CELL_DATA]);
    /// Fills the data of the cell at `at` (a multiple of 64).
    fn write_cell(&self, at: usize, from: &[u8; CELL_DATA]);
    /// Like [`Memory::read_cell`], for a cell that has no headers.
    fn read_payload(&self, at: usize, into: &mut [u8; CELL_DATA]) {
        self.read_cell(at, into);
    }
    /// Like [`Memory::write_cell`], for a cell that has no headers.
    fn write_payload(&self, at: usize, from: &[u8; CELL_DATA]) {
        self.write_cell(at, from);
    }
    /// A full fence.
    fn fence(&self);
    /// The fence of the poster ([`crate::poster_fence`]).
    fn poster_fence(&self);
    /// The fence of a sleeper before it sleeps ([`crate::sleeper_barrier`]).
    fn sleeper_barrier(&self);
}

/// A part of a region, which it keeps mapped.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    /// Its address; kept here because every access needs it.
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a pointer into a region is as valid in any thread as the region itself, which is Send and
// Sync.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// The `len` bytes of `region` that begin at `start`, a multiple of 64. Panics when they are
    /// not all in it.
    pub fn new(region: Arc<Region>, start: usize, len: usize) -> Self {
        assert!(start.is_multiple_of(64), "a window that begins at {start}");
        let Some(base) = region.pointer(start, len) else {
            panic!("a window of {len} bytes at {start} in a region of {} bytes", region.len());
        };
        Self { region, base, len }
    }

    /// The region that this is a part of.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Offset of this window in the region.
    pub fn start(&self) -> usize {
        self.base.as_ptr() as usize - self.region.base() as usize
    }

    /// A pointer to `len` bytes at `at`, or None when they are not all inside.
    #[inline]
    fn pointer(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `at` is at most `len`, so the result is in the window or one past its end.
        Some(unsafe { self.base.add(at) })
    }

    /// `len` bytes at `at`, for reading.
    #[inline]
    pub fn source(&self, at: usize, len: usize) -> Option<Source<'_>> {
        // SAFETY: the bytes are inside the mapping, which the window keeps alive.
        self.pointer(at, len).map(|start| unsafe { Source::new(start.as_ptr(), len) })
    }

    /// `len` bytes at `at`, for writing.
    #[inline]
    pub fn sink(&self, at: usize, len: usize) -> Option<Sink<'_>> {
        // SAFETY: the bytes are inside the mapping, which the window keeps alive, and nobody has
        // Rust references to them.
        self.pointer(at, len).map(|start| unsafe { Sink::new(start.as_ptr(), len) })
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        let word = self.pointer(at, 4).filter(|_| at.is_multiple_of(4));
        let word = word.expect("the layout keeps every word inside its window");
        // SAFETY: inside the mapping, which the window keeps alive; aligned; atomics may race with
        // any other access.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    /// The words of the cell at `at`.
    #[inline]
    fn cell_words(&self, at: usize) -> &[AtomicU32; CELL_DATA / 4] {
        let cell = self.pointer(at, CELL_DATA).filter(|_| at.is_multiple_of(64));
        let cell = cell.expect("the layout keeps every cell inside its window");
        // SAFETY: inside the mapping, which the window keeps alive; aligned; atomics may race with
        // any other access.
        unsafe { cell.cast().as_ref() }
    }

    /// The first words of the cell at `at` in pairs; its last word has no partner.
    #[inline]
    fn cell_pairs(&self, at: usize) -> &[AtomicU64; CELL_DATA / 8] {
        let cell = self.pointer(at, CELL_DATA).filter(|_| at.is_multiple_of(64));
        let cell = cell.expect("the layout keeps every cell inside its window");
        // SAFETY: as in `cell_words`; aligned to 64.
        unsafe { cell.cast().as_ref() }
    }
}

impl Memory for Window {
    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u32 {
        self.word(at).load(order)
    }

    #[inline]
    fn store(&self, at: usize, value: u32, order: Ordering) {
        self.word(at).store(value, order);
    }

    fn update(&self, at: usize, change: impl Fn(u32) -> u32) -> u32 {
        let old = self.word(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(change(old)));
        change(old.expect("the closure always gives a value"))
    }

    #[inline]
    fn read_cell(&self, at: usize, into: &mut [u8; CELL_DATA]) {
        let words = self.cell_words(at);
        let (first, pairs) = into.split_at_mut(4);
        first.copy_from_slice(&words[0].load(Ordering::Relaxed).to_ne_bytes());
        // The caller soon reads headers and payload in units of 8 bytes, at the offsets 12, 20, 28,
        // … So they are stored in the same units: a load that needs two recent stores waits until
        // both have left the store buffer (store forwarding fails).
        for (pair, words) in pairs.as_chunks_mut().0.iter_mut().zip(words[1..].as_chunks::<2>().0) {
            let [low, high] = words;
            let low = u64::from(low.load(Ordering::Relaxed).to_le());
            let high = u64::from(high.load(Ordering::Relaxed).to_le());
            *pair = (high << 32 | low).to_le_bytes();
        }
    }

    #[inline]
    fn write_cell(&self, at: usize, from: &[u8; CELL_DATA]) {
        // In units of 4 bytes, because the caller has just written the record in units of 4 bytes
        // and more. A longer load might need two of these stores, as in `read_cell`.
        for (word, bytes) in self.cell_words(at).iter().zip(from.as_chunks::<4>().0) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    #[inline]
    fn read_payload(&self, at: usize, into: &mut [u8; CELL_DATA]) {
        let (pairs, last) = into.as_chunks_mut();
        for (bytes, pair) in pairs.iter_mut().zip(self.cell_pairs(at)) {
            *bytes = pair.load(Ordering::Relaxed).to_ne_bytes();
        }
        last.copy_from_slice(&self.word(at + CELL_DATA - 4).load(Ordering::Relaxed).to_ne_bytes());
    }

    #[inline]
    fn write_payload(&self, at: usize, from: &[u8; CELL_DATA]) {
        for (pair, bytes) in self.cell_pairs(at).iter().zip(from.as_chunks().0) {
            pair.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        let last = from.last_chunk().expect("a cell is longer than a word");
        self.word(at + CELL_DATA - 4).store(u32::from_ne_bytes(*last), Ordering::Relaxed);
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn poster_fence(&self) {
        poster_fence();
    }

    fn sleeper_barrier(&self) {
        // If the barrier is not available, the result of `sleeper_barrier` has told the sleeper,
        // which then sleeps with a timeout.
        let _ = sleeper_barrier();
    }
}

/// Whether this process has asked the kernel to execute its posters' barriers. It is a property of
/// the process, hence a static.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process, so that its [`poster_fence`] costs nothing. Call it before the first
/// post, and again after a fork. Returns whether it worked; if not, everything still works, only
/// slower.
pub fn register_barrier() -> bool {
    let registered = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
    REGISTERED.store(registered, Ordering::SeqCst);
    registered
}

/// The poster's side of the barrier, between pushing and loading the wake word.
#[inline]
pub fn poster_fence() {
    if REGISTERED.load(Ordering::Relaxed) {
        // Pairs with `sleeper_barrier`, whose system call executes a barrier here for this thread.
        // Only the compiler must be kept from moving the load of the wake word before the push.
        compiler_fence(Ordering::SeqCst);
    } else {
        // Pairs with `sleeper_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// The sleeper's side of the barrier, between arming and the last check. False means that posters
/// that rely on it may miss the wake word: sleep only with a timeout then.
#[must_use]
pub fn sleeper_barrier() -> bool {
    // Pairs with `poster_fence`. The poster pushes, then loads the wake word; the sleeper arms,
    // then checks the rings. At least one of them sees what the other stored.
    fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// The sleeper's side of the barrier if its wake word has the fenced bit and every poster sees
/// that bit.
pub fn sleeper_fence() {
    // Pairs with the fence in `WakeWordView::armed`, which every poster executes that sees the
    // fenced bit.
    fence(Ordering::SeqCst);
}

/// Copies shared bytes out, loading each once: the compiler may neither repeat a load nor read the
/// source again later, as it may with an ordinary copy.
///
/// # Safety
/// `from` is readable for `into.len()` bytes; others may write them meanwhile.
#[inline]
pub(crate) unsafe fn load_bytes(from: *mut u8, into: &mut [u8]) {
    if from.addr().is_multiple_of(8) && into.len().is_multiple_of(8) {
        // SAFETY: the caller's promise, and aligned.
        return unsafe { load_words(from, into) };
    }
    // SAFETY: the caller's promise.
    unsafe { load_odd(from, into) }
}

/// As [`load_bytes`] for unaligned bytes or lengths: a separate function, so that the aligned case
/// stays short.
///
/// # Safety
/// As [`load_bytes`].
#[inline(never)]
unsafe fn load_odd(from: *mut u8, into: &mut [u8]) {
    let lead = from.align_offset(8).min(into.len());
    let (first, rest) = into.split_at_mut(lead);
    // SAFETY: within the bytes that the caller vouches for.
    unsafe { load_singly(from, first) };
    let words = rest.len() / 8;
    let (middle, last) = rest.split_at_mut(words * 8);
    // SAFETY: the words lie within the bytes that the caller vouches for; `lead` made them aligned.
    unsafe { load_words(from.add(lead), middle) };
    // SAFETY: what is left of the bytes that the caller vouches for.
    unsafe { load_singly(from.add(lead + words * 8), last) };
}

/// Copies bytes into shared memory, storing each once.
///
/// # Safety
/// `to` is writable for `from.len()` bytes; others may read or write them meanwhile.
#[inline]
pub(crate) unsafe fn store_bytes(to: *mut u8, from: &[u8]) {
    if to.addr().is_multiple_of(8) && from.len().is_multiple_of(8) {
        // SAFETY: the caller's promise, and aligned.
        return unsafe { store_words(to, from) };
    }
    // SAFETY: the caller's promise.
    unsafe { store_odd(to, from) }
}

/// As [`store_bytes`] for unaligned bytes or lengths; separate as [`load_odd`] is.
///
/// # Safety
/// As [`store_bytes`].
#[inline(never)]
unsafe fn store_odd(to: *mut u8, from: &[u8]) {
    let lead = to.align_offset(8).min(from.len());
    let (first, rest) = from.split_at(lead);
    // SAFETY: within the bytes that the caller vouches for.
    unsafe { store_singly(to, first) };
    let (middle, last) = rest.split_at(rest.len() / 8 * 8);
    // SAFETY: the words lie within the bytes that the caller vouches for; `lead` made them aligned.
    unsafe { store_words(to.add(lead), middle) };
    // SAFETY: what is left of the bytes that the caller vouches for.
    unsafe { store_singly(to.add(lead + middle.len()), last) };
}

/// The whole words of `into`.
///
/// # Safety
/// As [`load_bytes`], and `from` is aligned to 8.
#[inline]
unsafe fn load_words(from: *mut u8, into: &mut [u8]) {
    for (i, bytes) in into.chunks_exact_mut(8).enumerate() {
        // SAFETY: word i lies within the bytes that the caller vouches for, and is aligned as the
        // first is.
        let word = unsafe { AtomicU64::from_ptr(from.add(i * 8).cast()) };
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}

/// The whole words of `from`.
///
/// # Safety
/// As [`store_bytes`], and `to` is aligned to 8.
#[inline]
unsafe fn store_words(to: *mut u8, from: &[u8]) {
    let (words, _) = from.as_chunks::<8>();
    for (i, bytes) in words.iter().enumerate() {
        // SAFETY: word i lies within the bytes that the caller vouches for, and is aligned as the
        // first is.
        let word = unsafe { AtomicU64::from_ptr(to.add(i * 8).cast()) };
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
}

/// # Safety
/// As [`load_bytes`].
#[inline]
unsafe fn load_singly(from: *mut u8, into: &mut [u8]) {
    for (i, byte) in into.iter_mut().enumerate() {
        // SAFETY: byte i of those that the caller vouches for; a byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(from.add(i)) }.load(Ordering::Relaxed);
    }
}

/// # Safety
/// As [`store_bytes`].
#[inline]
unsafe fn store_singly(to: *mut u8, from: &[u8]) {
    for (i, byte) in from.iter().enumerate() {
        // SAFETY: byte i of those that the caller vouches for; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(i)) }.store(*byte, Ordering::Relaxed);
    }
}
