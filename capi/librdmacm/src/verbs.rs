//! The functions that this library calls in `libibverbs.so.1`: its C functions, by name and
//! version, and the few functions that are inline in `verbs.h` and call a context's operations. All
//! access to the engine goes through them.
//!
//! They are unsafe as all C functions are: pointers must point to live objects of that library.

use crate::entry::{Outcome, Refusal, refuse};
use crate::layout::{
    AhAttr, CompChannel, Context, Cq, Device, DeviceAttr, Ece, Gid, Op, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, Srq,
    SrqInitAttr, SrqInitAttrEx, VerbsContext, Xrcd, XrcdInitAttr,
};
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

#[link(name = "ibverbs", kind = "dylib")]
unsafe extern "C" {
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut Device);
    pub(crate) fn ibv_get_device_index(device: *mut Device) -> c_int;
    pub(crate) fn ibv_get_device_guid(device: *mut Device) -> u64;
    pub(crate) fn ibv_get_sysfs_path() -> *const c_char;
    pub(crate) fn ibv_open_device(device: *mut Device) -> *mut Context;
    pub(crate) fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub(crate) fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut Context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Cq;
    pub(crate) fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    pub(crate) fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq;
    pub(crate) fn ibv_destroy_srq(srq: *mut Srq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    pub(crate) fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    pub(crate) fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int;
    pub(crate) fn ibv_query_ece(qp: *mut Qp, ece: *mut Ece) -> c_int;
    pub(crate) fn ibv_set_ece(qp: *mut Qp, ece: *mut Ece) -> c_int;
    pub(crate) fn ibv_copy_ah_attr_from_kern(to: *mut AhAttr, from: *const c_void);
    pub(crate) fn ibv_copy_qp_attr_from_kern(to: *mut QpAttr, from: *const c_void);
}

/// The QP of this process with this number, and its state. `None` also for a verbs library other
/// than softhca's, which does not have the function.
///
/// # Safety
/// The program does not destroy this QP at the same time.
pub(crate) unsafe fn find_qp(qpn: u32) -> Option<(*mut Qp, u32)> {
    type Find = unsafe extern "C" fn(u32, *mut u32) -> *mut Qp;
    // SAFETY: a string; the look-up uses the scope of the library that this code is in.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"softhca_find_qp".as_ptr()) };
    if function.is_null() {
        return None;
    }
    // SAFETY: nothing else has this name, and libibverbs is never unloaded.
    let find = unsafe { std::mem::transmute::<*mut c_void, Find>(function) };
    let mut state = 0;
    // SAFETY: it takes any number, and `state` is a local variable.
    let found = unsafe { find(qpn, &raw mut state) };
    (!found.is_null()).then_some((found, state))
}

/// `IBV_QP_INIT_ATTR_PD`.
pub(crate) const QP_INIT_PD: u32 = 1;
/// `IBV_QP_INIT_ATTR_XRCD`.
pub(crate) const QP_INIT_XRCD: u32 = 2;

/// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`, `_XRCD`, `_CQ`.
pub(crate) const SRQ_INIT_TYPE: u32 = 1;
pub(crate) const SRQ_INIT_PD: u32 = 2;
pub(crate) const SRQ_INIT_XRCD: u32 = 4;
pub(crate) const SRQ_INIT_CQ: u32 = 8;
/// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`.
pub(crate) const SRQT_BASIC: u32 = 0;
pub(crate) const SRQT_XRC: u32 = 1;

/// `ibv_create_qp_ex`, which is inline in `verbs.h`.
///
/// # Safety
/// `context` is open, `attr` valid, and the objects in it live.
pub(crate) unsafe fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> Outcome<*mut Qp> {
    type Create = unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp;
    // SAFETY: valid by the caller's promise.
    let (mask, pd) = unsafe { ((*attr).comp_mask, (*attr).pd) };
    let qp = if mask == QP_INIT_PD {
        // SAFETY: the caller's promise; the extended attributes begin with the plain ones.
        unsafe { ibv_create_qp(pd, attr.cast()) }
    } else {
        // SAFETY: the caller's promise.
        let operation = unsafe { extended(context, offset_of!(VerbsContext, create_qp_ex)) }?;
        // SAFETY: libibverbs keeps a function of this signature there.
        let create = unsafe { std::mem::transmute::<Op, Create>(operation) };
        // SAFETY: the caller's promise.
        unsafe { create(context, attr) }
    };
    made(qp)
}

/// `ibv_create_srq_ex`, which is inline in `verbs.h`.
///
/// # Safety
/// `context` is open, `attr` valid, and the objects in it live.
pub(crate) unsafe fn create_srq_ex(context: *mut Context, attr: *mut SrqInitAttrEx) -> Outcome<*mut Srq> {
    type Create = unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq;
    // SAFETY: valid by the caller's promise.
    let (mask, kind, pd) = unsafe { ((*attr).comp_mask, (*attr).srq_type, (*attr).pd) };
    let basic = mask & SRQ_INIT_TYPE == 0 || kind == SRQT_BASIC;
    let srq = if mask & !(SRQ_INIT_TYPE | SRQ_INIT_PD) == 0 && mask & SRQ_INIT_PD != 0 && basic {
        // SAFETY: the caller's promise; the extended attributes begin with the plain ones.
        unsafe { ibv_create_srq(pd, attr.cast()) }
    } else {
        // SAFETY: the caller's promise.
        let operation = unsafe { extended(context, offset_of!(VerbsContext, create_srq_ex)) }?;
        // SAFETY: libibverbs keeps a function of this signature there.
        let create = unsafe { std::mem::transmute::<Op, Create>(operation) };
        // SAFETY: the caller's promise.
        unsafe { create(context, attr) }
    };
    made(srq)
}

/// `IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS`.
const XRCD_WHOLE: u32 = 3;

/// `ibv_open_xrcd`, which is inline in `verbs.h`, for a domain that belongs to no file.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn open_private_xrcd(context: *mut Context) -> Outcome<*mut Xrcd> {
    type Open = unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd;
    let mut attr = XrcdInitAttr { comp_mask: XRCD_WHOLE, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: the caller's promise.
    let operation = unsafe { extended(context, offset_of!(VerbsContext, open_xrcd)) }?;
    // SAFETY: libibverbs keeps a function of this signature there.
    let open = unsafe { std::mem::transmute::<Op, Open>(operation) };
    // SAFETY: the caller's promise; `attr` is a local variable.
    made(unsafe { open(context, &raw mut attr) })
}

/// An operation of the extended context. Fails with EOPNOTSUPP if the context does not have it.
///
/// # Safety
/// `context` is open; `offset` is that of an operation in [`VerbsContext`].
unsafe fn extended(context: *mut Context, offset: usize) -> Outcome<Op> {
    let missing = || refuse!(EOPNOTSUPP, "the verbs library has no operation for what an id of rdma_cm is asked for");
    // SAFETY: the caller's promise.
    if unsafe { (*context).abi_compat }.addr() != usize::MAX {
        return Err(missing());
    }
    let whole = context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast::<VerbsContext>();
    // SAFETY: a context with this value is the last part of a `struct verbs_context`, which has
    // `sz` bytes.
    let size = unsafe { (&raw const (*whole).sz).read() };
    if size < size_of::<VerbsContext>() - offset {
        return Err(missing());
    }
    // SAFETY: inside the struct, as just checked.
    let operation = unsafe { whole.wrapping_byte_add(offset).cast::<Op>().read() };
    if operation.is_null() { Err(missing()) } else { Ok(operation) }
}

/// The result of a call that returns a pointer. For NULL the reason is in `errno`, and has been
/// reported.
pub(crate) fn made<T>(pointer: *mut T) -> Outcome<*mut T> {
    if pointer.is_null() { Err(last_error()) } else { Ok(pointer) }
}

/// The result of a call that returns 0 or an errno value.
pub(crate) fn done(code: c_int) -> Outcome<()> {
    if code == 0 { Ok(()) } else { Err(Refusal(code)) }
}

/// The calling thread's `errno`.
pub(crate) fn last_error() -> Refusal {
    Refusal(std::io::Error::last_os_error().raw_os_error().filter(|errno| *errno != 0).unwrap_or(libc::EINVAL))
}
