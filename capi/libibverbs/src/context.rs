//! Contexts: opening and closing a device, and the two tables of operations that the inline
//! functions of `verbs.h` call.
//!
//! A program holds a pointer to the `context` inside [`VerbsContext`]. Newer fields of that struct
//! stand before `context`, so their distance from it is the same for programs of every age. The
//! principal type is [`OpenContext`].

use crate::devices::KnownDevice;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Context, ContextOps, Device, VerbsContext};
use crate::live::{self, Ending, Kind};
use crate::object::get;
use crate::{buffer, cq, cq_ex, dm, dmah, memory, parent, post, qp, query, srq, window, xrc};
use bytemuck::Zeroable;
use engine::{Engine, Error, SocketControl};
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// The ABI profile of the commands: mainline Linux.
const MAINLINE: u16 = 0;

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

    fn start(context: *mut Context) -> *mut Self {
        context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast()
    }
}

/// `ibv_open_device`.
///
/// # Safety
/// `device` came from `ibv_get_device_list`.
pub(crate) unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    entry::pointer("ibv_open_device", || {
        crate::log::start();
        // SAFETY: the caller's promise.
        let known = unsafe { KnownDevice::of(device) }?;
        let control = SocketControl::open(&known.node(), MAINLINE).map_err(told)?;
        let engine = Engine::open(Box::new(control)).map_err(told)?;
        Ok(publish(known, engine))
    })
}

/// Opens the device to which `cmd_fd` belongs, a copy of a context's descriptor.
pub(crate) fn import(known: Vec<&'static KnownDevice>, cmd_fd: c_int) -> Outcome<*mut Context> {
    crate::log::start();
    // SAFETY: the program says that the descriptor is open; it is borrowed only for the calls
    // below.
    let fd = unsafe { BorrowedFd::borrow_raw(cmd_fd) };
    for device in known {
        let Ok(control) = SocketControl::open(&device.node(), MAINLINE) else { continue };
        let engine = Engine::open(Box::new(control))?;
        if engine.import(fd).is_ok() {
            return Ok(publish(device, engine));
        }
        engine.close();
    }
    Err(refuse!(EINVAL, "ibv_import_device: descriptor {cmd_fd} is that of no open device"))
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

/// `ibv_close_device`.
///
/// # Safety
/// `context` is open, and is not used afterwards.
pub(crate) unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    entry::code("ibv_close_device", || {
        entry::not_null(context)?;
        let ending = Ending::begin(context.addr(), OpenContext::kind())?;
        // SAFETY: it is open, and only this thread closes it.
        let open = unsafe { OpenContext::of_live(context) }?;
        // In a child process the device still belongs to the parent, so nothing is torn down here.
        open.engine.check_process()?;
        open.engine.close();
        ending.done();
        // SAFETY: made by `Box::into_raw` in `publish`; the caller does not use it any more.
        drop(unsafe { Box::from_raw(OpenContext::start(context)) });
        Ok(())
    })
}

/// Explains in a sentence why a device cannot be opened, because programs print only an errno.
fn told(error: Error) -> entry::Refusal {
    engine::reason::say(format_args!("{}", error.reason));
    error.into()
}

fn publish(known: &'static KnownDevice, engine: Arc<Engine>) -> *mut Context {
    let async_fd = engine.async_fd().as_raw_fd();
    let context = Context {
        device: known.as_c(),
        ops: operations(),
        // No kernel file exists. As with a kernel, a copy of this descriptor imports the device.
        cmd_fd: engine.share().as_raw_fd(),
        async_fd,
        num_comp_vectors: engine.comp_vectors().cast_signed(),
        // All ones: "this context is the last part of a struct verbs_context".
        abi_compat: std::ptr::without_provenance_mut(usize::MAX),
        ..Context::zeroed()
    };
    let verbs = VerbsContext { context, sz: size_of::<VerbsContext>(), ..extended_operations() };
    let whole = Box::into_raw(Box::new(OpenContext { verbs: UnsafeCell::new(verbs), engine }));
    let context: *mut Context = whole.wrapping_byte_add(offset_of!(VerbsContext, context)).cast();
    live::enter(context.addr(), OpenContext::kind());
    context
}

/// The operations that the inline functions call without a check. The other slots date from before
/// symbol versions, and nothing calls them.
fn operations() -> ContextOps {
    ContextOps {
        alloc_mw: window::alloc as *const _,
        bind_mw: window::bind as *const _,
        dealloc_mw: window::dealloc as *const _,
        poll_cq: cq::poll as *const _,
        req_notify_cq: cq::req_notify as *const _,
        post_srq_recv: srq::post as *const _,
        post_send: post::send as *const _,
        post_recv: post::recv as *const _,
        ..ContextOps::zeroed()
    }
}

/// The operations that the inline functions call if they are set. For an operation that is not set,
/// the inline functions return EOPNOTSUPP.
fn extended_operations() -> VerbsContext {
    VerbsContext {
        free_buf: buffer::free as *const _,
        alloc_buf: buffer::alloc as *const _,
        dm_export_dmabuf_fd: dm::export as *const _,
        reg_mr_ex: memory::reg_ex as *const _,
        dealloc_dmah: dmah::dealloc as *const _,
        alloc_dmah: dmah::alloc as *const _,
        query_port: query::query_port as *const _,
        alloc_dm: dm::alloc as *const _,
        free_dm: dm::free as *const _,
        reg_dm_mr: dm::register as *const _,
        alloc_null_mr: memory::alloc_null as *const _,
        advise_mr: memory::advise as *const _,
        query_device_ex: query::query_device_ex as *const _,
        create_cq_ex: cq_ex::create as *const _,
        modify_cq: cq::modify as *const _,
        modify_qp_rate_limit: qp::modify_rate_limit as *const _,
        create_qp_ex: qp::create_ex as *const _,
        alloc_td: parent::alloc_td as *const _,
        dealloc_td: parent::dealloc_td as *const _,
        alloc_parent_domain: parent::alloc as *const _,
        query_rt_values: query::query_rt_values as *const _,
        open_xrcd: xrc::open as *const _,
        close_xrcd: xrc::close as *const _,
        create_srq_ex: xrc::create_srq as *const _,
        get_srq_num: xrc::srq_number as *const _,
        open_qp: xrc::open_qp as *const _,
        ..VerbsContext::zeroed()
    }
}
