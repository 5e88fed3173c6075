//! Multicast: which local QPs are in a group, and which engines of this agent have members.
//!
//! The list of engines comes from the agent and is valid for one epoch of the board. The helper
//! thread asks for it, because a post never waits. Principal type: [`Groups`].

use std::collections::HashMap;
use std::sync::Arc;

use abi::command::number as command;
use abi::mcast::AttachMcast;
use abi::private::{MCAST_ENGINES_MAX, McastResolve, McastResolveAnswer};
use parking_lot::RwLock;

use crate::engine::Engine;
use crate::error::Result;
use crate::qp::Qp;
use crate::request;

type Gid = [u8; 16];
/// An epoch, and the engines that had members in it.
type Answered = (u32, Arc<[u32]>);

/// The groups that this engine knows.
pub(crate) struct Groups {
    /// QPs of this engine, by group.
    members: RwLock<HashMap<Gid, Vec<u32>>>,
    /// Engines with members, by group, and the epoch for which the list is valid.
    engines: RwLock<HashMap<Gid, Answered>>,
}

impl Groups {
    pub(crate) fn new() -> Self {
        Self { members: RwLock::new(HashMap::new()), engines: RwLock::new(HashMap::new()) }
    }

    /// QPs of this engine in `group`.
    pub(crate) fn members(&self, group: &Gid) -> Vec<u32> {
        self.members.read().get(group).cloned().unwrap_or_default()
    }

    /// Whether a QP of this engine is in any group.
    pub(crate) fn has(&self, qpn: u32) -> bool {
        self.members.read().values().any(|members| members.contains(&qpn))
    }

    pub(crate) fn forget(&self, qpn: u32) {
        self.members.write().retain(|_, members| {
            members.retain(|&member| member != qpn);
            !members.is_empty()
        });
    }
}

/// Whether `gid` is a group's.
pub(crate) fn is_group(gid: &Gid) -> bool {
    std::net::Ipv6Addr::from(*gid).to_canonical().is_multicast()
}

impl Engine {
    /// Engines with members of `group`, if they are known for the current epoch.
    pub(crate) fn group_engines(&self, group: &Gid) -> Option<Arc<[u32]>> {
        let known = self.groups.engines.read();
        known.get(group).filter(|(epoch, _)| *epoch == self.board.mcast_epoch()).map(|(_, engines)| Arc::clone(engines))
    }

    /// Asks the agent which engines have members of `group`. Repeats the question if one answer
    /// cannot name all, and starts again if the members have changed meanwhile.
    pub(crate) fn resolve_group(&self, group: &Gid) -> Result<Arc<[u32]>> {
        let (mut engines, mut epoch) = (Vec::new(), None);
        loop {
            let body = McastResolve { gid: *group, max: MCAST_ENGINES_MAX as u32, first: engines.len() as u32 };
            let request = request::private(command::MCAST_RESOLVE, &body, size_of::<McastResolveAnswer>());
            let answer: McastResolveAnswer = self.call(&request)?.get(0)?;
            if epoch.is_some_and(|epoch| epoch != answer.epoch) {
                (engines, epoch) = (Vec::new(), None);
                continue;
            }
            epoch = Some(answer.epoch);
            let left = (answer.count as usize).saturating_sub(engines.len());
            engines.extend(answer.engines.iter().take(left));
            if left <= MCAST_ENGINES_MAX {
                let engines: Arc<[u32]> = engines.into();
                self.groups.engines.write().insert(*group, (answer.epoch, Arc::clone(&engines)));
                return Ok(engines);
            }
        }
    }
}

impl Qp {
    /// Attaches the QP to `group`. A second time is neither an error nor a second copy.
    ///
    /// # Errors
    /// EINVAL if the QP is not UD or the GID is not a group's.
    pub fn attach_mcast(&self, group: &Gid, mlid: u16) -> Result<()> {
        let body = AttachMcast { gid: *group, qp_handle: self.handle(), mlid, reserved: 0 };
        self.engine().call(&request::legacy(command::ATTACH_MCAST, &body, 0))?;
        let mut members = self.engine().groups.members.write();
        let group = members.entry(*group).or_default();
        if !group.contains(&self.qpn()) {
            group.push(self.qpn());
        }
        Ok(())
    }

    /// Detaches the QP from `group`.
    ///
    /// # Errors
    /// EINVAL if it is not attached.
    pub fn detach_mcast(&self, group: &Gid, mlid: u16) -> Result<()> {
        let body = AttachMcast { gid: *group, qp_handle: self.handle(), mlid, reserved: 0 };
        self.engine().call(&request::legacy(command::DETACH_MCAST, &body, 0))?;
        if let Some(members) = self.engine().groups.members.write().get_mut(group) {
            members.retain(|&member| member != self.qpn());
        }
        Ok(())
    }
}
