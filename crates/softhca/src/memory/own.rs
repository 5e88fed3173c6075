//! Existing memory of a program that is registered without a copy: what this memory must guarantee
//! ([`Memory`]), a mapping that qualifies ([`Mapping`]), and the error that returns the memory
//! ([`Kept`]).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::error::{Error, Result};

/// The crate's own memory begins at a page boundary, so that two registrations never share a page.
const PAGE: usize = 4096;

/// Memory that [`Pd::register`](crate::Pd::register) and
/// [`Pd::expose_memory`](crate::Pd::expose_memory) take over: `Vec<u8>`, `Box<[u8]>`, [`Mapping`],
/// or a type of your own.
///
/// The registration owns the value until `into_inner` gives it back. Nobody calls a method of the
/// value meanwhile, not even to drop it.
///
/// # Safety
/// From the call of [`Memory::bytes`] until the value is dropped or another of its methods is
/// called:
///
/// * The bytes stay where they are, also when the value moves. They are mapped, initialised,
///   readable and writable.
/// * Only the owner of the value reads or writes them: no other value, thread or process does. So
///   memory that another process can map, such as a shared mapping of a file, does not qualify.
pub unsafe trait Memory: Send + 'static {
    /// The bytes to register.
    fn bytes(&mut self) -> NonNull<[u8]>;
}

// SAFETY: the elements of a vector lie in an allocation of its own, and stay there until it is
// changed.
unsafe impl Memory for Vec<u8> {
    /// The elements, without the spare capacity.
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: the bytes lie in an allocation of their own.
unsafe impl Memory for Box<[u8]> {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

/// A private mapping (`mmap(2)`) that unmaps itself when it is dropped. It is a slice of bytes.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is owned memory, as a box is: an address and a length that any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference to a mapping only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of new memory, which are zero. The kernel provides a page at its first use.
    ///
    /// # Errors
    /// EINVAL for a length of 0, ENOMEM when there is not enough room.
    pub fn anonymous(len: usize) -> Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).expect("the kernel chooses no address 0");
        Ok(Self { base, len })
    }

    /// Takes ownership of a mapping that the program has made itself, for example one with huge
    /// pages. Dropping the value unmaps the memory.
    ///
    /// # Safety
    /// The `len` bytes at `base` are one or more whole mappings, readable and writable, and this
    /// value is their only owner. They are private (`MAP_PRIVATE`): no other process can write
    /// them. If they map a file, nobody changes or truncates the file.
    #[must_use]
    pub unsafe fn from_raw_parts(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is mapped for as long as the value lives, and nobody else has it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the mapping is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the value owns the mapping, and nobody uses the mapping any more. The call fails
        // only when the kernel has no memory to split a mapping; then the mapping stays.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len)
    }
}

// SAFETY: a mapping stays where it is until it is dropped, and only its owner uses it.
unsafe impl Memory for Mapping {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.len)
    }
}

/// Zeroed memory from the allocator: the crate registers it when the program does not bring its own
/// memory.
pub(super) struct Block {
    base: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: a block is an address and a length. `Buffer` and `Exposed` decide who may touch the bytes
// and when.
unsafe impl Send for Block {}

impl Block {
    /// Allocates at least one byte, because an adapter cannot register 0 bytes.
    pub(super) fn new(len: usize) -> Self {
        let len = len.max(1);
        let size = len.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        let layout = Layout::from_size_align(size, PAGE).expect("a length that memory can have");
        // SAFETY: the layout has a size that is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        Self { base: NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout)), layout, len }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; the code that drops the block has checked
        // that nobody uses it any more.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: a block stays where it was allocated, and only its owner uses it.
unsafe impl Memory for Block {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.len)
    }
}

/// A value whose bytes are used by their address. It is in a `MaybeUninit`, because moving a box
/// asserts that no such address is in use.
pub(super) struct Held<M>(MaybeUninit<M>);

impl<M: Memory> Held<M> {
    pub(super) fn new(memory: M) -> (Box<Self>, NonNull<[u8]>) {
        let mut held = Box::new(Self(MaybeUninit::new(memory)));
        // SAFETY: initialised in the line before.
        let bytes = unsafe { held.0.assume_init_mut() }.bytes();
        (held, bytes)
    }

    /// The value, whose bytes nobody else uses any more; `None` for a value of another type.
    pub(super) fn release(held: Box<dyn Any + Send>) -> Option<M> {
        let held = ManuallyDrop::new(*held.downcast::<Self>().ok()?);
        // SAFETY: initialised in `new` and read only here; `ManuallyDrop` keeps the holder from
        // dropping it again.
        Some(unsafe { held.0.assume_init_read() })
    }
}

impl<M> Drop for Held<M> {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`; after `release` no holder is dropped.
        unsafe { self.0.assume_init_drop() };
    }
}

/// Memory was not registered, or not given back: the reason, and the memory in its state before the
/// call.
///
/// `?` turns the value into an [`Error`] and drops the memory. `Debug` and `Display` write the
/// sentence of the error.
pub struct Kept<T> {
    /// Why the call failed.
    pub error: Error,
    /// The memory that was passed to the call.
    pub memory: T,
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> fmt::Display for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// No source: the sentence of `Kept` is the sentence of the error, which would be printed twice.
impl<T> std::error::Error for Kept<T> {}

impl<T> From<Kept<T>> for Error {
    fn from(kept: Kept<T>) -> Self {
        kept.error
    }
}

impl<T> From<Kept<T>> for std::io::Error {
    fn from(kept: Kept<T>) -> Self {
        kept.error.into()
    }
}
