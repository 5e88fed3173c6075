//! Attaches QPs to multicast groups, and asks the agent which engines have members. Adds to
//! [`Engine`] and [`Qp`].

use abi::command::number as command;
use abi::mcast::AttachMcast;
use abi::private::{MCAST_ENGINES_MAX, McastResolve, McastResolveAnswer, mcast_flags};

use super::{Gid, GroupPath, Reached};
use crate::engine::Engine;
use crate::error::Result;
use crate::qp::Qp;
use crate::request;

impl Engine {
    /// Where packets to a group go on a path, if it is known for the current epoch.
    pub(crate) fn group_reached(&self, path: &GroupPath) -> Option<Reached> {
        let known = self.groups.engines.read();
        known.get(path).filter(|(epoch, _)| *epoch == self.board.mcast_epoch()).map(|(_, reached)| reached.clone())
    }

    /// Asks the agent which engines have members of a group that packets on a path reach. Repeats
    /// the request if one answer has no room for all of them, and starts again if the members have
    /// changed meanwhile.
    pub(crate) fn resolve_group(&self, path: GroupPath) -> Result<Reached> {
        let (mut engines, mut epoch) = (Vec::new(), None);
        loop {
            let body = McastResolve {
                gid: path.group,
                max: MCAST_ENGINES_MAX as u32,
                first: engines.len() as u32,
                port: path.port,
                lid: path.lid,
                sl: path.sl,
                hop_limit: path.hop_limit,
                pkey_index: path.pkey_index,
                ..McastResolve::default()
            };
            let request = request::private(command::MCAST_RESOLVE, &body, size_of::<McastResolveAnswer>());
            let answer: McastResolveAnswer = self.call_patiently(&request)?.get(0)?;
            if epoch.is_some_and(|epoch| epoch != answer.epoch) {
                (engines, epoch) = (Vec::new(), None);
                continue;
            }
            epoch = Some(answer.epoch);
            let left = (answer.count as usize).saturating_sub(engines.len());
            engines.extend(answer.engines.iter().take(left));
            if left <= MCAST_ENGINES_MAX {
                let says = |flag: u32| answer.flags & flag != 0;
                let (leaves, dropped) = (says(mcast_flags::LEAVES), says(mcast_flags::DROPPED));
                let reached = Reached { engines: engines.into(), leaves, dropped };
                self.groups.engines.write().insert(path, (answer.epoch, reached.clone()));
                return Ok(reached);
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
        self.engine().check_process()?;
        // A program that leaves a group detaches first, and then the subnet manager removes the
        // group's routes.
        self.send_off();
        let body = AttachMcast { gid: *group, qp_handle: self.handle(), mlid, reserved: 0 };
        self.engine().call(&request::legacy(command::DETACH_MCAST, &body, 0))?;
        if let Some(members) = self.engine().groups.members.write().get_mut(group) {
            members.retain(|&member| member != self.qpn());
        }
        Ok(())
    }
}
