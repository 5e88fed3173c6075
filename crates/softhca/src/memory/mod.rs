//! Registered memory: [`Buffer`], which has one owner at a time, and [`Exposed`], which peers may
//! access.
//!
//! This is the only module with `unsafe`. References to a buffer's bytes exist only while nobody
//! else can access them: posting moves the buffer away, and no peer has a right on it. Exposed
//! memory is never referenced, only copied to and from. Memory is freed, or given back to the
//! program, after its registration has ended, which waits for every copy in progress. If the
//! registration cannot be ended, the memory is kept for ever.

mod own;
mod region;

use std::fmt;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use abi::post::Sge;
use engine::usermem;

use self::own::Block;
use self::region::Region;
use crate::error::Result;
use crate::pd::{Pd, PdInner};
use crate::range::inside;
use crate::remote::{Access, RemoteRegion};

pub use self::own::{Kept, Mapping, Memory};

/// Registered memory of one owner, to send from and to receive into. It dereferences to a slice of
/// bytes.
///
/// Posting moves the buffer into the request, and the completion gives it back. So the program
/// cannot touch memory that the adapter uses. [`Pd::buffer`](crate::Pd::buffer) allocates a buffer;
/// [`Pd::register`](crate::Pd::register) makes one from existing memory of the program. No peer can
/// access a buffer by a key.
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, mut buffer: softhca::Buffer)
/// #     -> softhca::Result<()> {
/// qp.send(1, buffer)?;
/// buffer[0] = 1; // The adapter sends it.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, buffer: softhca::Buffer)
/// #     -> softhca::Result<()> {
/// qp.receive(1, buffer)?;
/// println!("{:?}", &buffer[..4]); // Nothing has arrived yet.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, buffer: softhca::Buffer)
/// #     -> softhca::Result<()> {
/// qp.send(1, buffer)?;
/// drop(buffer); // The adapter reads its memory.
/// # Ok(()) }
/// ```
pub struct Buffer {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(pd: &Arc<PdInner>, len: usize) -> Result<Self> {
        Ok(Self { region: Region::new(pd, Block::new(len), 0)?, at: 0, len })
    }

    pub(crate) fn over<M: Memory>(pd: &Arc<PdInner>, memory: M) -> Result<Self, Kept<M>> {
        let region = Region::new(pd, memory, 0)?;
        let len = region.len();
        Ok(Self { region, at: 0, len })
    }

    /// Ends the registration and gives back the memory that [`Pd::register`](crate::Pd::register)
    /// took, with its current bytes.
    ///
    /// # Errors
    /// EINVAL when the memory is of another type, EBUSY while another piece of it exists
    /// ([`Buffer::split_at`], [`Buffer::pieces`]), EIO in a process that inherited it over a fork.
    /// The error contains the buffer.
    pub fn into_inner<M: Memory>(self) -> Result<M, Kept<Self>> {
        let Self { region, at, len } = self;
        Region::release(region).map_err(|(error, region)| Kept { error, memory: Self { region, at, len } })
    }

    /// Splits the buffer into the bytes before `mid` and the bytes from `mid`. Both share the
    /// registration, which ends with the last of them.
    ///
    /// # Panics
    /// When `mid` is beyond the end.
    #[must_use]
    pub fn split_at(mut self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "the middle {mid} is beyond the end {}", self.len);
        let behind = Self { region: Arc::clone(&self.region), at: self.at + mid, len: self.len - mid };
        self.len = mid;
        (self, behind)
    }

    /// Splits the buffer into pieces of `size` bytes; a shorter remainder is left out. So one
    /// registration serves many requests.
    ///
    /// # Panics
    /// When `size` is 0.
    #[must_use]
    pub fn pieces(self, size: usize) -> Vec<Self> {
        assert!(size > 0, "pieces of no bytes");
        let piece = |index| Self { region: Arc::clone(&self.region), at: self.at + index * size, len: size };
        (0..self.len / size).map(piece).collect()
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        debug_assert!(at + len <= self.len, "parts are checked when they are made");
        self.region.sge(self.at + at, len)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the block, which is initialised and lives as long as the
        // region. Only this buffer has these bytes: other buffers of the region have other bytes,
        // the adapter touches them only for a request that has taken the buffer, and peers have no
        // right on the registration.
        unsafe { std::slice::from_raw_parts(self.region.pointer(self.at), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.region.pointer(self.at), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Registered memory that peers may read, write or change atomically, as [`Access`] allows. Peers
/// name it by its [`RemoteRegion`].
///
/// A peer may write at any time, so the memory is never a slice: bytes are copied in and out, and
/// words of 8 bytes are atomic with the peers' atomics. [`Pd::expose`](crate::Pd::expose) allocates
/// it; [`Pd::expose_memory`](crate::Pd::expose_memory) makes it from existing memory of the
/// program. Clones refer to the same memory. The registration ends with the last clone, and peers
/// that use its token afterwards get errors.
///
/// ```compile_fail
/// # fn example(window: softhca::Exposed) {
/// let bytes: &[u8] = &window; // A peer may be writing them.
/// # }
/// ```
#[derive(Clone)]
pub struct Exposed {
    region: Arc<Region>,
    len: usize,
}

impl Exposed {
    pub(crate) fn new(pd: &Arc<PdInner>, len: usize, access: Access) -> Result<Self> {
        Ok(Self { region: Region::new(pd, Block::new(len), access.bits())?, len })
    }

    pub(crate) fn over<M: Memory>(pd: &Arc<PdInner>, memory: M, access: Access) -> Result<Self, Kept<M>> {
        let region = Region::new(pd, memory, access.bits())?;
        let len = region.len();
        Ok(Self { region, len })
    }

    /// Ends the registration and gives back the memory that
    /// [`Pd::expose_memory`](crate::Pd::expose_memory) took, with everything that peers have
    /// written. When the call returns, no peer can access the memory any more; peers that try get
    /// errors.
    ///
    /// # Errors
    /// EINVAL when the memory is of another type, EBUSY while a clone exists or a posted request
    /// uses the memory, EIO in a process that inherited it over a fork. The error contains the
    /// exposed memory.
    pub fn into_inner<M: Memory>(self) -> Result<M, Kept<Self>> {
        let Self { region, len } = self;
        Region::release(region).map_err(|(error, region)| Kept { error, memory: Self { region, len } })
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that a peer needs to access the whole memory.
    #[must_use]
    pub fn token(&self) -> RemoteRegion {
        RemoteRegion { addr: self.region.addr(0), rkey: self.region.rkey(), len: self.len() as u64 }
    }

    /// Copies bytes from the memory, beginning at `at`. The copy may or may not contain what a peer
    /// writes at the same time.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: both sides are mapped and of this length; no reference to the region's bytes
        // exists anywhere.
        unsafe { usermem::copy(into.as_mut_ptr(), self.region.pointer(at), into.len()) }.expect("our own memory");
    }

    /// Copies bytes into the memory, beginning at `at`.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: as for `read`.
        unsafe { usermem::copy(self.region.pointer(at), bytes.as_ptr(), bytes.len()) }.expect("our own memory");
    }

    /// A copy of the bytes of a range.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Vec<u8> {
        let (at, len) = inside(range, self.len());
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes);
        bytes
    }

    /// Loads the word at `at` atomically, in native byte order. What the peer wrote before the word
    /// is visible afterwards.
    ///
    /// # Panics
    /// When the 8 bytes are not inside, or `at` is not a multiple of 8.
    #[must_use]
    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: a word of our own memory, to which no reference exists.
        unsafe { usermem::load(self.word(at)) }.expect("our own memory")
    }

    /// Stores the word at `at` atomically.
    ///
    /// # Panics
    /// As [`Exposed::load`].
    pub fn store(&self, at: usize, value: u64) {
        let _ = self.word(at);
        self.write(at, &value.to_ne_bytes());
    }

    /// Adds to the word at `at`, wrapping around; atomic with the peers' atomics. Returns the
    /// previous value.
    ///
    /// # Panics
    /// As [`Exposed::load`].
    pub fn fetch_add(&self, at: usize, value: u64) -> u64 {
        // SAFETY: as for `load`.
        unsafe { usermem::fetch_add(self.word(at), value) }.expect("our own memory")
    }

    /// Replaces the word at `at` with `new` if it is `expected`; atomic with the peers' atomics.
    /// Returns the previous value.
    ///
    /// # Panics
    /// As [`Exposed::load`].
    pub fn compare_swap(&self, at: usize, expected: u64, new: u64) -> u64 {
        // SAFETY: as for `load`.
        unsafe { usermem::compare_swap(self.word(at), expected, new) }.expect("our own memory")
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        self.region.sge(at, len)
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes at {at} are not inside of {}",
            self.len()
        );
    }

    fn word(&self, at: usize) -> *mut u64 {
        self.check(at, 8);
        assert!(at.is_multiple_of(8), "a word at {at}, which is no multiple of 8");
        self.region.pointer(at).cast()
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposed({})", self.token())
    }
}

impl Pd {
    /// Allocates registered memory, zeroed. Registration needs a command to the agent: allocate
    /// buffers beforehand, or split a large one with [`Buffer::pieces`].
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    ///
    /// # Panics
    /// If this length of memory is impossible.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.inner, len)
    }

    /// Allocates registered memory that peers may access, zeroed.
    ///
    /// # Errors
    /// The errors of [`Pd::buffer`].
    ///
    /// # Panics
    /// As [`Pd::buffer`].
    pub fn expose(&self, len: usize, access: Access) -> Result<Exposed> {
        Exposed::new(&self.inner, len, access)
    }

    /// Registers existing memory of the program, such as a `Vec<u8>`, and takes ownership of it,
    /// without a copy. [`Buffer::into_inner`] gives the memory back.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = fabric::Fabric::start()?;
    /// # let device = fabric.open()?;
    /// # let (pd, cq, received) = (device.pd()?, device.cq(16)?, device.cq(16)?);
    /// # let (left, right) = (pd.reliable(&cq).build()?, pd.reliable(&received).build()?);
    /// # let (to_left, to_right) = (left.endpoint(), right.endpoint());
    /// # let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
    /// # right.receive(2, pd.buffer(64)?)?;
    /// let words: Vec<u8> = b"as it is".to_vec();
    /// left.send(1, pd.register(words)?)?;
    /// let buffer = cq.wait()?.ok()?.into_buffer();
    /// let words: Vec<u8> = buffer.into_inner()?;
    /// assert_eq!(words, b"as it is");
    /// # drop(right); Ok(()) }
    /// ```
    ///
    /// ```compile_fail,E0382
    /// # fn example(pd: softhca::Pd, words: Vec<u8>) -> softhca::Result<()> {
    /// let buffer = pd.register(words)?;
    /// println!("{words:?}"); // The buffer owns `words`.
    /// # drop(buffer); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// EINVAL for memory of 0 bytes, ENOMEM beyond the device's limit. The error contains the
    /// memory.
    pub fn register<M: Memory>(&self, memory: M) -> Result<Buffer, Kept<M>> {
        Buffer::over(&self.inner, memory)
    }

    /// Registers existing memory of the program, such as a [`Mapping`](crate::Mapping), takes
    /// ownership of it, and lets peers access it. [`Exposed::into_inner`] gives the memory back
    /// when no peer can access it any more.
    ///
    /// # Errors
    /// The errors of [`Pd::register`].
    pub fn expose_memory<M: Memory>(&self, memory: M, access: Access) -> Result<Exposed, Kept<M>> {
        Exposed::over(&self.inner, memory, access)
    }
}
