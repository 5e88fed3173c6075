//! Memberships in multicast groups (`rdma_join_multicast(3)`). An id joins a group, and its QP is
//! attached when the join is done. The membership itself is a [`Membership`].

use crate::cma::{CmId, JoinMcAttrEx};
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::get_event;
use crate::id;
use crate::membership::Membership;
use crate::object::get;
use crate::sockaddr;
use crate::verbs;
use cm::MulticastJoin;
use std::ffi::{c_int, c_void};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `_JOIN_FLAGS`. All higher bits are unknown.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 2;
const ATTR_UNKNOWN: u32 = 4;

/// `RDMA_MC_JOIN_FLAG_FULLMEMBER` and `_SENDONLY_FULLMEMBER`.
const FULL: u32 = 0;
const SEND_ONLY: u32 = 1;

/// `rdma_join_multicast`.
///
/// # Safety
/// `id` is live, `address` a valid `struct sockaddr` as long as its family says.
pub(crate) unsafe extern "C" fn join(id: *mut CmId, address: *const c_void, context: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    entry::or_minus_one("rdma_join_multicast", || unsafe { join_group(id, address, FULL, context) })
}

/// `rdma_join_multicast_ex`.
///
/// # Safety
/// `id` is live, `attr` valid, and the address in it a valid `struct sockaddr` as long as its
/// family says.
pub(crate) unsafe extern "C" fn join_ex(id: *mut CmId, attr: *const JoinMcAttrEx, context: *mut c_void) -> c_int {
    entry::or_minus_one("rdma_join_multicast_ex", || {
        entry::not_null(attr)?;
        let (mask, flags, address) = (get!(attr, comp_mask), get!(attr, join_flags), get!(attr, addr));
        if mask >= ATTR_UNKNOWN {
            return Err(refuse!(ENOTSUP, "rdma_join_multicast_ex: comp_mask {mask:#x} has unknown bits"));
        }
        if mask != ATTR_ADDRESS | ATTR_JOIN_FLAGS || flags > SEND_ONLY {
            return Err(refuse!(
                EINVAL,
                "rdma_join_multicast_ex: comp_mask {mask:#x}, join_flags {flags}: a group and a known way to join"
            ));
        }
        // SAFETY: the caller's promise.
        unsafe { join_group(id, address, flags, context) }
    })
}

/// # Safety
/// As for [`join`].
unsafe fn join_group(id: *mut CmId, address: *const c_void, flags: u32, context: *mut c_void) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let (object, address) = unsafe { (id::live(id)?, sockaddr::read(address)?) };
    let address = address.ok_or(Refusal(libc::EINVAL))?;
    let send_only = flags == SEND_ONLY;
    // Named before the command, because the event may arrive before the command's answer.
    let (group, cookie) = Membership::create(id, context, address, send_only);
    match object.channel()?.join_multicast(object.inner.handle, &MulticastJoin { group: address, send_only, cookie }) {
        Ok(handle) => {
            // SAFETY: just made; only leaving frees it, and no thread can leave it yet.
            unsafe { (*group).inner.lock().handle = Some(handle) };
            object.state().groups.push(group);
            get_event::wait_if_sync(object)?;
            Ok(0)
        }
        Err(error) => {
            // SAFETY: nothing else refers to it.
            unsafe { Membership::free(group) };
            Err(error.into())
        }
    }
}

/// `rdma_leave_multicast`: waits until every event of the membership is acknowledged.
///
/// # Safety
/// `id` is live, `address` a valid `struct sockaddr` as long as its family says.
pub(crate) unsafe extern "C" fn leave(id: *mut CmId, address: *const c_void) -> c_int {
    entry::or_minus_one("rdma_leave_multicast", || {
        // SAFETY: the caller's promise.
        let (object, address) = unsafe { (id::live(id)?, sockaddr::read(address)?) };
        let address = address.ok_or(Refusal(libc::EINVAL))?;
        let found = {
            let mut state = object.state();
            // SAFETY: the id's own memberships.
            let position = state.groups.iter().rposition(|group| unsafe { (**group).address } == address);
            position.map(|position| state.groups.remove(position))
        };
        let group = found.ok_or_else(|| refuse!(EADDRNOTAVAIL, "the rdma_cm_id has not joined {address}"))?;
        // SAFETY: taken from the list, so no other thread leaves it.
        let membership = unsafe { &*group };
        let (handle, joined) = {
            let inner = membership.inner.lock();
            (inner.handle, inner.joined)
        };
        let qp = get!(object.c(), qp);
        if let Some((gid, lid)) = joined.filter(|_| !qp.is_null()) {
            // This also sends off what the QP has posted. It is refused if the QP only sends, or is
            // no longer attached.
            // SAFETY: the id's own QP.
            unsafe { verbs::ibv_detach_mcast(qp, &raw const gid, lid) };
        }
        let left = match handle {
            Some(handle) => object.channel()?.leave_multicast(handle).map_err(Refusal::from),
            None => Ok(0),
        };
        if let Ok(reported) = left {
            object.wait_until(|_| membership.has_completed(reported));
        }
        // SAFETY: nothing refers to it any more.
        unsafe { Membership::free(group) };
        left.map(|_| 0)
    })
}
