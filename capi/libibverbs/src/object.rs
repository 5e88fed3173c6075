//! How an object of `verbs.h` and its engine object live together: the C struct first, so that the program's pointer is the
//! address of the whole, then what this library keeps. The principal type is [`Object`].

use crate::entry::{self, Outcome};
use crate::layout::{Ah, CompChannel, CqEx, Dm, Mr, Mw, Pd, QpEx, Srq, Td, Xrcd};
use crate::live::{self, Ending, Kind};
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A C struct that objects begin with.
pub(crate) trait Named {
    /// What refusals call it.
    const NAME: &'static str;
    /// A descriptor names it to the device, and not a handle.
    const IS_DESCRIPTOR: bool = false;

    /// What names it to the device, as the program's struct says; always the same where nothing does.
    fn name(c: *const Self) -> u32;
}

/// A C struct `C` and, behind it, `I`.
///
/// The C part is shared with the program, which may read it (and write some of its fields) at any time: no reference to it is
/// made here, only pointers.
#[repr(C)]
pub(crate) struct Object<C, I> {
    c: UnsafeCell<C>,
    /// What this library keeps.
    pub(crate) inner: I,
    /// [`Named::name`] when the program got it.
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
        live::enter(made.addr(), Self::kind());
        made
    }

    /// The C struct has got its handle only now.
    pub(crate) fn named(&self) {
        self.name.store(C::name(self.c()), Ordering::Relaxed);
    }

    /// The object behind a program's pointer, for posting, polling and acknowledging: EINVAL for NULL, and nothing else is
    /// checked. `T` is `C` or the struct that `C` begins with.
    ///
    /// # Safety
    /// `pointer` is NULL or came from [`Object::create`] of this very type, and the object is not freed while the result is used.
    pub(crate) unsafe fn of<'a, T>(pointer: *const T) -> Outcome<&'a Self> {
        entry::not_null(pointer)?;
        // SAFETY: the caller's promise; `c` is the first field, and it is in an UnsafeCell.
        Ok(unsafe { &*pointer.cast::<Self>() })
    }

    /// The object behind a program's pointer, for every other call: EINVAL for NULL and for an object of another kind; ENOENT, or
    /// EBADF where a descriptor names it, for one that was destroyed, or whose handle the program has changed.
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

    /// Ends an object for the program, if `work` succeeds. Refuses as [`Object::live`] does; EBUSY when another thread is at it.
    ///
    /// # Safety
    /// Nobody uses the object when this succeeds.
    pub(crate) unsafe fn end<T>(pointer: *mut T, work: impl FnOnce(&Self) -> Outcome<()>) -> Outcome<()> {
        entry::not_null(pointer)?;
        let ending = Ending::begin(pointer.addr(), Self::kind())?;
        // SAFETY: it is live, and only this thread ends it.
        work(unsafe { Self::of(pointer) }?.with_its_name()?)?;
        ending.done();
        // SAFETY: made by `Box::into_raw` in `create`, and the caller says that it is not used any more.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
        Ok(())
    }

    /// Takes back an object that the program has never got.
    ///
    /// # Safety
    /// As [`Object::of`], and nobody uses the object any more.
    pub(crate) unsafe fn free(pointer: *mut Self) {
        // SAFETY: the caller's promise; what was just made is in nobody else's hands.
        let _ = unsafe { Self::end(pointer, |_| Ok(())) };
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

/// What objects are called, and the field of the C struct that names them to the device.
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
