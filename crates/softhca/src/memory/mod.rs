//! Registered memory: [`Buffer`], which one party at a time has, and [`Exposed`], which peers may touch.
//!
//! The only module with `unsafe`. A buffer's bytes are references only while nobody else can touch them: posting moves the buffer away, and
//! no peer has a right on it. Exposed memory is never a reference, only copied to and from. Memory is freed, or given back to the program
//! that brought it, after the registration has ended, which waits for every copy under way; where it cannot be ended, the memory is kept
//! for ever.

mod own;
mod region;

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use abi::post::Sge;
use engine::usermem;

use self::own::Block;
use self::region::Region;
use crate::error::Result;
use crate::message::Part;
use crate::pd::PdInner;
use crate::remote::{Access, RemoteRegion};

pub use self::own::{Kept, Mapping, Memory};

/// Registered memory of one's own, to send from and to receive into; a slice of bytes.
///
/// Posting moves it into the request, and the completion gives it back: what the adapter uses cannot be touched meanwhile.
/// [`Pd::buffer`](crate::Pd::buffer) makes one; [`Pd::register`](crate::Pd::register) makes one of memory that the program has
/// already. No peer can reach it by a key.
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, mut buffer: softhca::Buffer) -> softhca::Result<()> {
/// qp.send(1, buffer)?;
/// buffer[0] = 1; // It is being sent.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, buffer: softhca::Buffer) -> softhca::Result<()> {
/// qp.receive(1, buffer)?;
/// println!("{:?}", &buffer[..4]); // Nothing has arrived yet.
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, buffer: softhca::Buffer) -> softhca::Result<()> {
/// qp.send(1, buffer)?;
/// drop(buffer); // Its memory is being read.
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

    /// Ends the registration and gives back the memory that [`Pd::register`](crate::Pd::register) took, with the bytes as they are now.
    ///
    /// # Errors
    /// EINVAL when the memory is of another type, EBUSY while another piece of it exists ([`Buffer::split_at`], [`Buffer::pieces`]), EIO
    /// in a process that inherited it over a fork. The buffer is in the error.
    pub fn into_inner<M: Memory>(self) -> Result<M, Kept<Self>> {
        let Self { region, at, len } = self;
        Region::release(region).map_err(|(error, region)| Kept { error, memory: Self { region, at, len } })
    }

    /// Two buffers, before and from `mid`. They share the registration, which ends with the last of them.
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

    /// Cuts it into buffers of `size` bytes; a shorter rest is left out. One registration serves many requests that way.
    ///
    /// # Panics
    /// When `size` is 0.
    #[must_use]
    pub fn pieces(self, size: usize) -> Vec<Self> {
        assert!(size > 0, "pieces of no bytes");
        let piece = |index| Self { region: Arc::clone(&self.region), at: self.at + index * size, len: size };
        (0..self.len / size).map(piece).collect()
    }

    /// A part of it, to post; the completion gives back the whole.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn part(self, range: impl RangeBounds<usize>) -> Part {
        let (at, len) = inside(range, self.len);
        Part::of(self, at, len)
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        debug_assert!(at + len <= self.len, "parts are checked when they are made");
        self.region.sge(self.at + at, len)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the block, which is initialised and lives as long as the region. This buffer alone has these bytes: other
        // buffers of the region have others, the adapter touches them only for a request that has taken the buffer, and
        // peers have no right on the registration.
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

/// Registered memory that peers may read, write or change atomically, as [`Access`] says; they name it by its [`RemoteRegion`].
///
/// A peer may write while we look, so it is never a slice: bytes are copied in and out, and words of 8 bytes are atomic with the
/// peers' atomics. [`Pd::expose`](crate::Pd::expose) makes it; [`Pd::expose_memory`](crate::Pd::expose_memory) makes it of memory that
/// the program has already. Clones are the same memory; the registration ends with the last of them, and peers that still use its token
/// then get errors.
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

    /// Ends the registration and gives back the memory that [`Pd::expose_memory`](crate::Pd::expose_memory) took, with all that peers
    /// have written. When it returns, no peer can read or write the memory any more; peers that try get errors.
    ///
    /// # Errors
    /// EINVAL when the memory is of another type, EBUSY while a clone exists or a posted request uses the memory, EIO in a process that
    /// inherited it over a fork. The exposed memory is in the error.
    pub fn into_inner<M: Memory>(self) -> Result<M, Kept<Self>> {
        let Self { region, len } = self;
        Region::release(region).map_err(|(error, region)| Kept { error, memory: Self { region, len } })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a peer needs to know to address all of it.
    #[must_use]
    pub fn token(&self) -> RemoteRegion {
        RemoteRegion { addr: self.region.addr(0), rkey: self.region.rkey(), len: self.len() as u64 }
    }

    /// Copies bytes out, from `at` on. What a peer writes meanwhile may be in the copy or not.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: both sides are mapped and of this length; no reference to the region's bytes exists anywhere.
        unsafe { usermem::copy(into.as_mut_ptr(), self.region.pointer(at), into.len()) }.expect("our own memory");
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: as for reading.
        unsafe { usermem::copy(self.region.pointer(at), bytes.as_ptr(), bytes.len()) }.expect("our own memory");
    }

    /// The bytes of a range, copied.
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

    /// The word at `at`, in native byte order, at one moment; what the peer wrote before it is seen after.
    ///
    /// # Panics
    /// When the 8 bytes are not inside, or `at` is no multiple of 8.
    #[must_use]
    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: a word of our own memory, to which no reference exists.
        unsafe { usermem::load(self.word(at)) }.expect("our own memory")
    }

    /// Sets the word at `at`, in one store.
    ///
    /// # Panics
    /// As [`Exposed::load`].
    pub fn store(&self, at: usize, value: u64) {
        let _ = self.word(at);
        self.write(at, &value.to_ne_bytes());
    }

    /// Adds to the word at `at`, wrapping around; atomic with the peers' atomics. Answers what stood there before.
    ///
    /// # Panics
    /// As [`Exposed::load`].
    pub fn fetch_add(&self, at: usize, value: u64) -> u64 {
        // SAFETY: as for `load`.
        unsafe { usermem::fetch_add(self.word(at), value) }.expect("our own memory")
    }

    /// Puts `new` in the place of `expected`, if that stands at `at`; atomic with the peers' atomics. Answers what stood there before.
    ///
    /// # Panics
    /// As [`Exposed::load`].
    pub fn compare_swap(&self, at: usize, expected: u64, new: u64) -> u64 {
        // SAFETY: as for `load`.
        unsafe { usermem::compare_swap(self.word(at), expected, new) }.expect("our own memory")
    }

    /// A part of it, to send from or to receive or read into.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn part(&self, range: impl RangeBounds<usize>) -> Part {
        let (at, len) = inside(range, self.len());
        Part::shared(self.clone(), at, len)
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

/// Start and length of a range inside of `len` bytes.
///
/// # Panics
/// When the range is not inside.
pub(crate) fn inside(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let shown = (range.start_bound().cloned(), range.end_bound().cloned());
    checked(range, len).unwrap_or_else(|| panic!("the range {shown:?} is not inside of {len} bytes"))
}

/// Start and length of a range, if it is inside of `len` bytes.
pub(crate) fn checked(range: impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then(|| (start, end - start))
}
