//! How an object of `verbs.h` and its engine object live together: the C struct first, so that the program's pointer is the
//! address of the whole, then what this library keeps. The principal type is [`Object`].

use crate::entry::{self, Outcome};
use std::cell::UnsafeCell;

/// A C struct `C` and, behind it, `I`.
///
/// The C part is shared with the program, which may read it (and write some of its fields) at any time: no reference to it is
/// made here, only pointers.
#[repr(C)]
pub(crate) struct Object<C, I> {
    c: UnsafeCell<C>,
    /// What this library keeps.
    pub(crate) inner: I,
}

impl<C, I> Object<C, I> {
    /// Makes an object; it lives until [`Object::free`].
    pub(crate) fn create(c: C, inner: I) -> *mut Self {
        Box::into_raw(Box::new(Self { c: UnsafeCell::new(c), inner }))
    }

    /// The object behind a program's pointer; EINVAL for NULL. `T` is `C` or the struct that `C` begins with.
    ///
    /// # Safety
    /// `pointer` is NULL or came from [`Object::create`] of this very type, and the object is not freed while the result is used.
    pub(crate) unsafe fn of<'a, T>(pointer: *const T) -> Outcome<&'a Self> {
        entry::not_null(pointer)?;
        // SAFETY: the caller's promise; `c` is the first field, and it is in an UnsafeCell.
        Ok(unsafe { &*pointer.cast::<Self>() })
    }

    /// The C struct, for reading and writing single fields.
    pub(crate) fn c(&self) -> *mut C {
        self.c.get()
    }

    /// Ends an object.
    ///
    /// # Safety
    /// As [`Object::of`], and nobody uses the object any more.
    pub(crate) unsafe fn free<T>(pointer: *mut T) {
        // SAFETY: made by `Box::into_raw` in `create`, and the caller says that it is not used any more.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
    }
}

/// A program's pointer as the number that comes back with events.
pub(crate) fn cookie<T>(pointer: *mut T) -> u64 {
    pointer.expose_provenance() as u64
}

/// The pointer that [`cookie`] was made of.
pub(crate) fn from_cookie<T>(cookie: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(cookie).unwrap_or(0))
}

/// Reads one field of a C struct through a pointer to it.
macro_rules! get {
    ($pointer:expr, $($field:tt)+) => {{
        let pointer = $pointer;
        // SAFETY: `pointer` is to a live C struct; fields are plain numbers and pointers, read by value.
        #[allow(unused_unsafe, reason = "arguments of unsafe functions are read in their blocks")]
        let value = unsafe { (&raw const (*pointer).$($field)+).read() };
        value
    }};
}
pub(crate) use get;

/// Writes one field of a C struct through a pointer to it.
macro_rules! set {
    ($pointer:expr, $($field:ident).+, $value:expr) => {{
        let (pointer, value) = ($pointer, $value);
        // SAFETY: `pointer` is to a live C struct of this library's; fields are plain numbers and pointers.
        unsafe { (&raw mut (*pointer).$($field).+).write(value) }
    }};
}
pub(crate) use set;
