//! Opening and closing a device, and the two tables of operations that the inline functions of
//! `verbs.h` call. The principal functions are [`open_device`] and [`close_device`].

use crate::context::{MAINLINE, OpenContext};
use crate::devices::KnownDevice;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Context, ContextOps, Device, VerbsContext};
use crate::{buffer, cq, cq_ex, dm, dmah, memory, parent, post, qp, query, srq, window, xrc};
use bytemuck::Zeroable;
use engine::{Engine, Error, SocketControl};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

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

/// `ibv_close_device`.
///
/// # Safety
/// `context` is open, and is not used afterwards.
pub(crate) unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    entry::code("ibv_close_device", || {
        // SAFETY: the caller's promise.
        unsafe { OpenContext::close(context) }
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
    OpenContext::publish(verbs, engine)
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
