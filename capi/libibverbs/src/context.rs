//! Contexts: an open device and its engine. Devices are opened and closed in `device.rs`.
//!
//! A program holds a pointer to the `context` inside [`VerbsContext`]. Newer fields of that struct
//! stand before `context`, so their distance from it is the same for programs of every age. The
//! principal type is [`OpenContext`].

use crate::devices::KnownDevice;
use crate::entry::{self, Outcome};
use crate::layout::{Context, VerbsContext};
use crate::live::{self, Ending, Kind};
use crate::object::get;
use engine::{Engine, Error, SocketControl};
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::Arc;

/// The ABI profile of the commands: mainline Linux.
pub(crate) const MAINLINE: u16 = 0;

/// An open device: the C struct and the engine behind it.
#[repr(C)]
pub(crate) struct OpenContext {
    verbs: UnsafeCell<VerbsContext>,
    /// The engine: one connection to the agent.
    pub(crate) engine: Arc<Engine>,
}

impl OpenContext {
    fn kind() -> Kind {
        Kind { id: TypeId::of::<Self>(), name: "open device", is_descriptor: true }
    }

    /// The open device behind a program's pointer. Fails with EINVAL for NULL, and with EBADF for a
    /// closed device.
    ///
    /// # Safety
    /// The device is not closed while the result is used.
    pub(crate) unsafe fn of<'a>(context: *mut Context) -> Outcome<&'a Self> {
        entry::not_null(context)?;
        live::check(context.addr(), Self::kind())?;
        // SAFETY: it is open.
        unsafe { Self::of_live(context) }
    }

    /// As [`OpenContext::of`], for calls made with every completion: only NULL is refused.
    ///
    /// # Safety
    /// `context` is NULL or was returned by `ibv_open_device` and is not closed.
    pub(crate) unsafe fn of_live<'a>(context: *mut Context) -> Outcome<&'a Self> {
        entry::not_null(context)?;
        // SAFETY: every context that leaves this library is inside an `OpenContext`; the pointer
        // was made from the whole.
        Ok(unsafe { &*Self::start(context) })
    }

    /// Hands a context to the program.
    pub(crate) fn publish(verbs: VerbsContext, engine: Arc<Engine>) -> *mut Context {
        let whole = Box::into_raw(Box::new(Self { verbs: UnsafeCell::new(verbs), engine }));
        let context: *mut Context = whole.wrapping_byte_add(offset_of!(VerbsContext, context)).cast();
        live::enter(context.addr(), Self::kind());
        context
    }

    /// Takes a context back and closes its engine.
    ///
    /// # Safety
    /// `context` is NULL or open, and is not used afterwards.
    pub(crate) unsafe fn close(context: *mut Context) -> Outcome<()> {
        entry::not_null(context)?;
        let ending = Ending::begin(context.addr(), Self::kind())?;
        // SAFETY: it is open, and only this thread closes it.
        let open = unsafe { Self::of_live(context) }?;
        // In a child process the device still belongs to the parent, so nothing is torn down here.
        open.engine.check_process()?;
        open.engine.close();
        ending.done();
        // SAFETY: made by `Box::into_raw` in `publish`; the caller does not use it any more.
        drop(unsafe { Box::from_raw(Self::start(context)) });
        Ok(())
    }

    fn start(context: *mut Context) -> *mut Self {
        context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast()
    }
}

/// Asks the device of a context something that concerns no other object. A child process may ask
/// this of the device that its parent has open.
///
/// # Safety
/// `context` is NULL or open.
pub(crate) unsafe fn ask<T>(context: *mut Context, question: impl FnOnce(&Engine) -> Result<T, Error>) -> Outcome<T> {
    // SAFETY: the caller's promise.
    let open = unsafe { OpenContext::of(context) }?;
    if open.engine.check_process().is_ok() {
        return Ok(question(&open.engine)?);
    }
    let own = open_again(context)?;
    let answer = question(&own);
    own.close();
    Ok(answer?)
}

/// Opens a second engine on the device of a context, for work that needs no other object of the
/// context.
pub(crate) fn open_again(context: *mut Context) -> Outcome<Arc<Engine>> {
    // SAFETY: the device of a context that was opened is a known one.
    let known = unsafe { KnownDevice::of(get!(context, device)) }?;
    let control = SocketControl::open(&known.node(), MAINLINE)?;
    Ok(Engine::open(Box::new(control))?)
}
