//! Memberships in multicast groups (`rdma_join_multicast(3)`). An id joins a group, and its QP is
//! attached when the join is done. The principal type is [`Group`].

use crate::address;
use crate::cma::{CmId, JoinMcAttrEx};
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::event;
use crate::id::{self, IdObject};
use crate::layout::Gid;
use crate::object::get;
use crate::registry;
use crate::verbs::{self, done};
use cm::{Address, Event, Multicast, MulticastJoin};
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `_JOIN_FLAGS`. All higher bits are unknown.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 2;
const ATTR_UNKNOWN: u32 = 4;

/// `RDMA_MC_JOIN_FLAG_FULLMEMBER` and `_SENDONLY_FULLMEMBER`.
const FULL: u32 = 0;
const SEND_ONLY: u32 = 1;

/// One membership.
pub(crate) struct Group {
    /// The id through which it was joined.
    pub(crate) id: *mut CmId,
    /// The program's own pointer, which the group's events carry.
    pub(crate) context: *const c_void,
    cookie: u64,
    address: Address,
    send_only: bool,
    completed: AtomicU32,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The agent's handle of the membership.
    handle: Option<Multicast>,
    /// The group and LID that the QP is attached to.
    attached: Option<(Gid, u16)>,
}

impl Group {
    /// Counts one acknowledged event.
    pub(crate) fn complete_event(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Completes the join: the QP receives the group's datagrams from now on.
    pub(crate) fn joined(&self, event: &Event, object: &IdObject) -> Outcome<()> {
        let ah = event.ud().ah;
        let qp = get!(object.c(), qp);
        if qp.is_null() || self.send_only || event.status != 0 {
            return Ok(());
        }
        let group = (Gid(ah.dgid), ah.dlid);
        // SAFETY: the id's own QP.
        done(unsafe { verbs::ibv_attach_mcast(qp, &raw const group.0, group.1) })?;
        self.inner.lock().attached = Some(group);
        Ok(())
    }

    /// Frees a membership that nothing refers to any more.
    ///
    /// # Safety
    /// `group` came from `join_group`, and no event of it is unacknowledged.
    pub(crate) unsafe fn free(group: *mut Self) {
        // SAFETY: made by `Box::into_raw`, and the caller's promise.
        let group = unsafe { Box::from_raw(group) };
        registry::forget_group(group.cookie);
    }
}

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
    let (object, address) = unsafe { (id::live(id)?, address::read(address)?) };
    let address = address.ok_or(Refusal(libc::EINVAL))?;
    let (cookie, send_only) = (registry::fresh(), flags == SEND_ONLY);
    let inner = Mutex::new(Inner { handle: None, attached: None });
    let group = Group { id, context, cookie, address, send_only, completed: AtomicU32::new(0), inner };
    let group = Box::into_raw(Box::new(group));
    // Before the command, because the event may arrive before the command's answer.
    registry::name_group(cookie, group);
    match object.channel()?.join_multicast(object.inner.handle, &MulticastJoin { group: address, send_only, cookie }) {
        Ok(handle) => {
            // SAFETY: just made; only leaving frees it, and no thread can leave it yet.
            unsafe { (*group).inner.lock().handle = Some(handle) };
            object.state().groups.push(group);
            event::wait_if_sync(object)?;
            Ok(0)
        }
        Err(error) => {
            // SAFETY: nothing else refers to it.
            unsafe { Group::free(group) };
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
        let (object, address) = unsafe { (id::live(id)?, address::read(address)?) };
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
        let (handle, attached) = {
            let inner = membership.inner.lock();
            (inner.handle, inner.attached)
        };
        let qp = get!(object.c(), qp);
        if let Some((gid, lid)) = attached.filter(|_| !qp.is_null()) {
            // SAFETY: the id's own QP. If the QP is no longer attached, it has left already.
            unsafe { verbs::ibv_detach_mcast(qp, &raw const gid, lid) };
        }
        let left = match handle {
            Some(handle) => object.channel()?.leave_multicast(handle).map_err(Refusal::from),
            None => Ok(0),
        };
        if let Ok(reported) = left {
            object.wait_until(|_| membership.completed.load(Ordering::Relaxed) >= reported);
        }
        // SAFETY: nothing refers to it any more.
        unsafe { Group::free(group) };
        left.map(|_| 0)
    })
}
