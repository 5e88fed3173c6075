//! Multicast groups of a UD QP: attaching and detaching.

use crate::entry::{self, Outcome};
use crate::layout::{Gid, Qp};
use crate::qp::QpObject;
use std::ffi::c_int;

/// `ibv_attach_mcast`.
///
/// # Safety
/// `qp` is live, `gid` valid.
pub(crate) unsafe extern "C" fn attach(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int {
    entry::code("ibv_attach_mcast", || {
        // SAFETY: the caller's promise.
        let (object, gid) = unsafe { member(qp, gid) }?;
        Ok(object.inner.queue()?.attach_mcast(&gid, lid)?)
    })
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// `qp` is live, `gid` valid.
pub(crate) unsafe extern "C" fn detach(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int {
    entry::code("ibv_detach_mcast", || {
        // SAFETY: the caller's promise.
        let (object, gid) = unsafe { member(qp, gid) }?;
        Ok(object.inner.queue()?.detach_mcast(&gid, lid)?)
    })
}

/// # Safety
/// `qp` is NULL or live, `gid` NULL or valid.
unsafe fn member<'a>(qp: *mut Qp, gid: *const Gid) -> Outcome<(&'a QpObject, [u8; 16])> {
    entry::not_null(gid)?;
    // SAFETY: the caller's promise.
    let object = unsafe { QpObject::live(qp) }?;
    // SAFETY: not NULL, and valid by the caller's promise; a program's GID may be unaligned.
    Ok((object, unsafe { gid.read_unaligned() }.0))
}
