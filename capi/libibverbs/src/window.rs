//! Memory windows: allocating, deallocating, and binding windows of type 1. Windows of type 2 are
//! bound by posting (`post`, `qp_ex`). The principal type is [`MwObject`].

use crate::entry::{self, Outcome, refuse};
use crate::layout::{Mr, Mw, MwBind, MwBindInfo, Pd, Qp};
use crate::object::{Object, get, set};
use crate::pd::PdObject;
use crate::qp::QpObject;
use abi::mr::{access, mw_type};
use abi::post::opcode;
use engine::{Bind, Mw as EngineMw, SendWr};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// `struct ibv_mw` and the engine's window.
type MwObject = Object<Mw, Arc<EngineMw>>;

/// `alloc_mw` of the context's operations.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn alloc(pd: *mut Pd, kind: c_uint) -> *mut Mw {
    entry::pointer("ibv_alloc_mw", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::live(pd) }?;
        let kind8 = u8::try_from(kind).map_err(|_| refuse!(EINVAL, "ibv_alloc_mw: there is no type {kind}"))?;
        let mw = domain.inner.alloc_mw(kind8)?;
        let context = get!(domain.c(), context);
        let c = Mw { context, pd, rkey: mw.rkey(), handle: mw.handle(), kind };
        Ok(MwObject::create(c, mw).cast())
    })
}

/// `dealloc_mw` of the context's operations.
///
/// # Safety
/// `mw` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dealloc(mw: *mut Mw) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_dealloc_mw", || unsafe { MwObject::end(mw, |object| Ok(object.inner.dealloc()?)) })
}

/// `bind_mw` of the context's operations: posts the bind of a window of type 1. The window has its
/// next key at once.
///
/// # Safety
/// `qp` and `mw` are live, `bind` valid, and the MR in it NULL or live.
pub(crate) unsafe extern "C" fn bind(qp: *mut Qp, mw: *mut Mw, bind: *mut MwBind) -> c_int {
    entry::code("ibv_bind_mw", || {
        entry::not_null(bind)?;
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) }?;
        // SAFETY: the caller's promise.
        let window = unsafe { MwObject::of(mw) }?;
        if window.inner.kind() != mw_type::TYPE_1 {
            return Err(refuse!(EINVAL, "ibv_bind_mw: the window is of type 2, which is bound by IBV_WR_BIND_MW"));
        }
        let info = get!(bind, bind_info);
        if info.mw_access_flags & access::ZERO_BASED != 0 {
            return Err(refuse!(EINVAL, "ibv_bind_mw: windows of type 1 are not zero-based"));
        }
        let rkey = abi::mr::next_key(get!(mw, rkey));
        let request = SendWr {
            wr_id: get!(bind, wr_id),
            opcode: opcode::BIND_MW,
            send_flags: get!(bind, send_flags),
            bind: Some(&described(&window.inner, rkey, &info)?),
            ..SendWr::default()
        };
        let mut batch = object.inner.queue()?.send_batch()?;
        let pushed = batch.push(&request);
        batch.finish();
        pushed?;
        set!(mw, rkey, rkey);
        Ok(())
    })
}

/// Translates a posted BIND_MW.
///
/// # Safety
/// `mw` is NULL or live, and so is the MR.
pub(crate) unsafe fn posted(mw: *mut Mw, rkey: u32, info: &MwBindInfo) -> Outcome<Bind> {
    // SAFETY: the caller's promise.
    let window = unsafe { MwObject::of(mw) }?;
    if window.inner.kind() != mw_type::TYPE_2 {
        return Err(refuse!(EINVAL, "IBV_WR_BIND_MW: the window is of type 1, which is bound by ibv_bind_mw"));
    }
    described(&window.inner, rkey, info)
}

/// Puts the key of a bind that was posted into the program's struct. Its lower 8 bits are the
/// program's, the others the window's. Adapters differ here; some programs read the key from there.
pub(crate) fn rename(mw: *mut Mw, rkey: u32) {
    set!(mw, rkey, get!(mw, rkey) & !0xff | rkey & 0xff);
}

fn described(window: &EngineMw, rkey: u32, info: &MwBindInfo) -> Outcome<Bind> {
    if info.mr.is_null() && info.length != 0 {
        return Err(refuse!(EINVAL, "a memory window is to be bound to {} bytes of no MR", info.length));
    }
    let mr = if info.mr.is_null() { 0 } else { get!(info.mr.cast::<Mr>(), lkey) };
    Ok(Bind { window: window.number(), rkey, mr, addr: info.addr, length: info.length, access: info.mw_access_flags })
}
