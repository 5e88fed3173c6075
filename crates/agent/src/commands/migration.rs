//! The agent's part of path migration: which alternate paths and migration states MODIFY_QP
//! accepts, and which path is in use.
//!
//! The engine migrates. A word in queue memory has the migration state, and says whether the paths
//! have been exchanged since the agent last took note of it. IBA 11.2.5.3, 17.2.8. The principal
//! function is [`check`].

use std::sync::atomic::Ordering;

use abi::qp::{ModifyQp, QueryQpAnswer, attr, migration};
use abi::queue::{QP_PATHS_SWAPPED, qp as word};
use abi::{Errno, Refusal};

use super::qp_modify::check_path;
use crate::device::Device;
use crate::objects::Qp;
use crate::refusal::{Outcome, refuse};

impl Qp {
    /// Its attributes, with the current paths and migration state.
    pub fn attributes_now(&self) -> QueryQpAnswer {
        let word = self.block.read(word::MIGRATION);
        let mut now = self.attributes;
        if word & QP_PATHS_SWAPPED != 0 {
            swap_paths(&mut now);
        }
        now.path_mig_state = state_in(word);
        now
    }

    /// Takes note that the engine has exchanged the paths, before anything else is changed.
    pub(super) fn settle_paths(&mut self) {
        let word = self.block.word(word::MIGRATION).fetch_and(!QP_PATHS_SWAPPED, Ordering::AcqRel);
        if word & QP_PATHS_SWAPPED != 0 {
            swap_paths(&mut self.attributes);
        }
    }
}

/// The migration state in a word. The client can write the word: a QP with an invalid value is not
/// armed.
fn state_in(word: u32) -> u8 {
    match (word & !QP_PATHS_SWAPPED) as u8 {
        state @ (migration::REARM | migration::ARMED) => state,
        _ => migration::MIGRATED,
    }
}

fn swap_paths(a: &mut QueryQpAnswer) {
    std::mem::swap(&mut a.dest, &mut a.alt_dest);
    std::mem::swap(&mut a.port_num, &mut a.alt_port_num);
    std::mem::swap(&mut a.pkey_index, &mut a.alt_pkey_index);
    std::mem::swap(&mut a.timeout, &mut a.alt_timeout);
}

/// Checks that the alternate path is usable, and that the migration state can be reached from the
/// current one.
pub(super) fn check(device: &Device, qp: &Qp, wanted: &ModifyQp) -> Outcome<()> {
    let given = |bit: u32| wanted.attr_mask & bit != 0;
    let qpn = qp.qpn;
    let bad = |text: String| refuse(Errno::EINVAL, format!("QP {qpn:#x}: {text}"));
    if given(attr::ALT_PATH) {
        let (port, dest) = (wanted.alt_port_num, &wanted.alt_dest);
        device.port(u32::from(port))?;
        if dest.port_num != port {
            return bad(format!("its alternate path leaves by port {}, but alt_port_num is {port}", dest.port_num));
        }
        check_path(device, dest, &format!("the alternate path of QP {qpn:#x}"))?;
        device.check_pkey_index(port, wanted.alt_pkey_index).map_err(|refusal| {
            Refusal::new(refusal.errno, format!("the alternate path of QP {qpn:#x}: {}", refusal.reason))
        })?;
        if wanted.alt_timeout > 31 {
            return bad(format!("alt_timeout {} is above 31", wanted.alt_timeout));
        }
    }
    if !given(attr::PATH_MIG_STATE) {
        return Ok(());
    }
    let now = state_in(qp.block.read(word::MIGRATION));
    match wanted.path_mig_state {
        migration::MIGRATED if now == migration::REARM => {
            bad("it waits for its peer to rearm, and cannot migrate before that".to_owned())
        }
        migration::MIGRATED => Ok(()),
        migration::REARM if given(attr::ALT_PATH) || qp.attributes.alt_port_num != 0 => Ok(()),
        migration::REARM => bad("no alternate path is loaded, and so there is nothing to rearm".to_owned()),
        migration::ARMED => bad("it becomes armed by itself, when both ends have rearmed".to_owned()),
        other => bad(format!("{other} is not a path migration state")),
    }
}
