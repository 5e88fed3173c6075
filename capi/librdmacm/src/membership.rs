//! One membership of an id in a multicast group, and what its events need of it. Joining and
//! leaving are in `group.rs`. The principal type is [`Membership`].

use crate::cma::CmId;
use crate::entry::Outcome;
use crate::id::IdObject;
use crate::layout::Gid;
use crate::object::get;
use crate::registry;
use crate::verbs::{self, done};
use cm::{Address, Event, Multicast};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// One membership.
pub(crate) struct Membership {
    /// The id through which it was joined.
    pub(crate) id: *mut CmId,
    /// The program's own pointer, which the group's events carry.
    pub(crate) context: *const c_void,
    cookie: u64,
    pub(crate) address: Address,
    send_only: bool,
    completed: AtomicU32,
    pub(crate) inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    /// The agent's handle of the membership.
    pub(crate) handle: Option<Multicast>,
    /// The group and its LID, once it is joined.
    pub(crate) joined: Option<(Gid, u16)>,
}

impl Membership {
    /// Makes a membership that the agent does not know yet, and names it.
    pub(crate) fn create(id: *mut CmId, context: *const c_void, address: Address, send_only: bool) -> (*mut Self, u64) {
        let cookie = registry::fresh();
        let inner = Mutex::new(Inner { handle: None, joined: None });
        let new = Self { id, context, cookie, address, send_only, completed: AtomicU32::new(0), inner };
        let new = Box::into_raw(Box::new(new));
        registry::name_group(cookie, new);
        (new, cookie)
    }

    /// Whether as many events are acknowledged as were handed out.
    pub(crate) fn has_completed(&self, reported: u32) -> bool {
        self.completed.load(Ordering::Relaxed) >= reported
    }

    /// Counts one acknowledged event.
    pub(crate) fn complete_event(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Completes the join: the QP receives the group's datagrams from now on, unless it only sends.
    pub(crate) fn joined(&self, event: &Event, object: &IdObject) -> Outcome<()> {
        let ah = event.ud().ah;
        let qp = get!(object.c(), qp);
        if qp.is_null() || event.status != 0 {
            return Ok(());
        }
        let group = (Gid(ah.dgid), ah.dlid);
        if !self.send_only {
            // SAFETY: the id's own QP.
            done(unsafe { verbs::ibv_attach_mcast(qp, &raw const group.0, group.1) })?;
        }
        self.inner.lock().joined = Some(group);
        Ok(())
    }

    /// Frees a membership that nothing refers to any more.
    ///
    /// # Safety
    /// `group` came from [`Membership::create`], and no event of it is unacknowledged.
    pub(crate) unsafe fn free(group: *mut Self) {
        // SAFETY: made by `Box::into_raw`, and the caller's promise.
        let group = unsafe { Box::from_raw(group) };
        registry::forget_group(group.cookie);
    }
}
