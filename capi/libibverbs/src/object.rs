//! How an object of `verbs.h` and its engine object are stored together: first the C struct, so
//! that the program's pointer is the address of the whole object, then this library's data. The
//! principal type is [`Object`].

use crate::entry::{self, Outcome};
use crate::layout::{Ah, CompChannel, CqEx, Dm, Mr, Mw, Pd, QpEx, Srq, Td, Xrcd};
use crate::live::{self, Ending, Kind};
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A C struct at the beginning of an object.
pub(crate) trait Named {
    /// The object's name in refusals.
    const NAME: &'static str;
    /// Whether a descriptor, and not a handle, identifies the object to the device.
    const IS_DESCRIPTOR: bool = false;

    /// The number that identifies the object to the device, read from the program's struct. A
    /// constant for objects without such a number.
    fn name(c: *const Self) -> u32;
}

/// A C struct `C` followed by `I`.
///
/// The program shares the C part. It may read it, and write some of its fields, at any time. So
/// this library makes only pointers to it, no references.
#[repr(C)]
pub(crate) struct Object<C, I> {
    c: UnsafeCell<C>,
    /// This library's data.
    pub(crate) inner: I,
    /// The value of [`Named::name`] when the program got the object.
    name: AtomicU32,
}

impl<C: Named + 'static, I: 'static> Object<C, I> {
    fn kind() -> Kind {
        Kind { id: TypeId::of::<Self>(), name: C::NAME, is_descriptor: C::IS_DESCRIPTOR }
    }

    /// Makes an object; it lives until [`Object::end`] or [`Object::free`].
    pub(crate) fn create(c: C, inner: I) -> *mut Self {
        let name = AtomicU32::new(C::name(&raw const c));
        let made = Box::into_raw(Box::new(Self { c: UnsafeCell::new(c), inner, name }));
        live::enter(made.expose_provenance(), Self::kind());
        made
    }

    /// Notes the handle, for an object whose C struct gets it only after [`Object::create`].
    pub(crate) fn named(&self) {
        self.name.store(C::name(self.c()), Ordering::Relaxed);
    }

    /// The object behind a program's pointer, for posting, polling and acknowledging. NULL gives
    /// EINVAL; nothing else is checked. `T` is `C` or the struct that `C` begins with.
    ///
    /// # Safety
    /// `pointer` is NULL or came from [`Object::create`] of this very type, and the object is not
    /// freed while the result is used.
    pub(crate) unsafe fn of<'a, T>(pointer: *const T) -> Outcome<&'a Self> {
        entry::not_null(pointer)?;
        // SAFETY: the caller's promise; `c` is the first field, and it is in an UnsafeCell.
        Ok(unsafe { &*pointer.cast::<Self>() })
    }

    /// The object behind a program's pointer, for every other call. NULL and an object of another
    /// kind give EINVAL. A destroyed object, or one whose handle the program has changed, gives
    /// ENOENT, or EBADF if a descriptor identifies it.
    ///
    /// # Safety
    /// The object is not freed while the result is used.
    pub(crate) unsafe fn live<'a, T>(pointer: *const T) -> Outcome<&'a Self> {
        entry::not_null(pointer)?;
        live::check(pointer.addr(), Self::kind())?;
        // SAFETY: it is live, and stays so by the caller's promise.
        unsafe { Self::of(pointer) }?.with_its_name()
    }

    /// Whether the program has a live object of this type at the address.
    pub(crate) fn is_live<T>(pointer: *const T) -> bool {
        live::is(pointer.addr(), Self::kind())
    }

    /// The first live object that `wanted` accepts. It may be gone when the caller uses it, unless
    /// the program promises otherwise.
    pub(crate) fn find(wanted: impl Fn(&Self) -> bool) -> Option<*mut Self> {
        let pointer = std::ptr::with_exposed_provenance_mut::<Self>;
        let is_wanted = |address| {
            // SAFETY: `create` has entered it as an object of this type, and none is freed meanwhile.
            wanted(unsafe { &*pointer(address) })
        };
        live::find(Self::kind(), is_wanted).map(pointer)
    }

    fn with_its_name(&self) -> Outcome<&Self> {
        let (is, was) = (C::name(self.c()), self.name.load(Ordering::Relaxed));
        if is == was {
            return Ok(self);
        }
        Err(Self::kind().missing(format_args!("the {} {was:#x} calls itself {is:#x} now", C::NAME)))
    }

    /// The C struct, for reading and writing single fields.
    pub(crate) fn c(&self) -> *mut C {
        self.c.get()
    }

    /// Ends an object for the program if `work` succeeds. Refuses as [`Object::live`] does. Fails
    /// with EBUSY if another thread is ending the object.
    ///
    /// # Safety
    /// The object is not used afterwards when this succeeds.
    pub(crate) unsafe fn end<T>(pointer: *mut T, work: impl FnOnce(&Self) -> Outcome<()>) -> Outcome<()> {
        entry::not_null(pointer)?;
        let ending = Ending::begin(pointer.addr(), Self::kind())?;
        // SAFETY: it is live, and only this thread ends it.
        work(unsafe { Self::of(pointer) }?.with_its_name()?)?;
        ending.done();
        // SAFETY: made by `Box::into_raw` in `create`, and the caller says that it is not used any
        // more.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
        Ok(())
    }

    /// Frees an object that the program never got.
    ///
    /// # Safety
    /// As [`Object::of`], and the object is not used any more.
    pub(crate) unsafe fn free(pointer: *mut Self) {
        // SAFETY: the caller's promise; nothing else refers to an object that was just made.
        let _ = unsafe { Self::end(pointer, |_| Ok(())) };
    }
}

/// A program's pointer as a number that events carry.
pub(crate) fn cookie<T>(pointer: *mut T) -> u64 {
    pointer.expose_provenance() as u64
}

/// The pointer from which [`cookie`] was made.
pub(crate) fn from_cookie<T>(cookie: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(cookie).unwrap_or(0))
}

/// Reads one field of a C struct through a pointer to it.
macro_rules! get {
    ($pointer:expr, $($field:tt)+) => {{
        let pointer = $pointer;
        // SAFETY: `pointer` points to a live C struct; fields are plain numbers and pointers, read
        // by value.
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
        // SAFETY: `pointer` points to a live C struct of this library; fields are plain numbers and
        // pointers.
        unsafe { (&raw mut (*pointer).$($field).+).write(value) }
    }};
}
pub(crate) use set;

/// The name of each kind of object, and the field of its C struct that identifies it to the device.
macro_rules! named {
    ($($c:ty, $name:literal, |$pointer:ident| $value:expr;)+) => {$(
        impl Named for $c {
            const NAME: &'static str = $name;

            fn name($pointer: *const Self) -> u32 {
                $value
            }
        }
    )+};
}

named! {
    Pd, "PD", |c| get!(c, handle);
    Mr, "MR", |c| get!(c, handle);
    Mw, "memory window", |c| get!(c, handle);
    Dm, "device memory", |c| get!(c, handle);
    CqEx, "CQ", |c| get!(c, handle);
    QpEx, "QP", |c| get!(c, qp_base.handle);
    Srq, "SRQ", |c| get!(c, handle);
    Ah, "AH", |c| get!(c, handle);
    Td, "thread domain", |_c| 0;
    Xrcd, "XRC domain", |_c| 0;
}

impl Named for CompChannel {
    const NAME: &'static str = "completion channel";
    const IS_DESCRIPTOR: bool = true;

    fn name(c: *const Self) -> u32 {
        get!(c, fd).cast_unsigned()
    }
}
