//! The checks of registered memory: that it stays mapped while it is registered, and stays
//! registered while it is used.
//!
//! Programs that end release their objects in any order. So a region under a receive request is
//! reported only if its queue is used afterwards or a message comes to it. A region under a send
//! request is reported at once. Adds to [`Lint`].

use abi::mr::access as right;
use abi::post::Sge;

use super::Lint;
use super::finding::{Check, Finding};
use super::shadow::{Shadow, ShadowReceives};
use super::site::Site;
use crate::core::Core;
use crate::extent::{Extent, MemoryKind};
use crate::usermem::mappings::{self, MappingError};

/// The keys in a list that were deregistered before.
pub(super) fn stale_keys(shadow: &Shadow, core: &Core, call: &str, number: u32, sges: &[Sge]) -> Vec<Finding> {
    let is_stale = |sge: &&Sge| {
        sge.length > 0
            && shadow.dead_keys.contains(&sge.lkey)
            && core.keys.extents.find(sge.lkey >> 8).is_none_or(|extent| extent.key != sge.lkey)
    };
    let told = |sge: &Sge| {
        let queue = if call == "ibv_post_srq_recv" { format!("SRQ {number}") } else { format!("QP {number:#x}") };
        let what = format!("{call} on {queue}: lkey {:#x} was deregistered before", sge.lkey);
        Finding::here(Check::StaleKey, sge.lkey, what)
    };
    sges.iter().filter(is_stale).map(told).collect()
}

impl Lint {
    /// A region is about to be deregistered, or to get another key.
    #[cold]
    pub(crate) fn deregisters(&self, core: &Core, call: &str, extent: &Extent) {
        let key = extent.key;
        let mut findings = Vec::new();
        let own = extent.memory_kind == MemoryKind::Program
            && extent.backing.is_none()
            && extent.access & right::ON_DEMAND == 0;
        if own && let Err(MappingError::Unmapped { at }) = mappings::check(extent.host, extent.length, false) {
            let what = format!(
                "{call} of lkey {key:#x}: its memory of {} bytes is not mapped any more at {at:#x}",
                extent.length
            );
            findings.push(Finding::here(Check::UnmappedMemory, key, what));
        }
        let shared: Vec<u32> = {
            let queue_uses = core.queue_uses.all();
            queue_uses.iter().filter_map(|queue_use| queue_use.srq).collect()
        };
        {
            let shadow = &mut *self.shadow.lock();
            shadow.dead_keys.insert(key);
            let uses = |sge: &Sge| sge.length > 0 && sge.lkey == key;
            let in_use = |whose: String, wr_id: u64, more: usize| {
                let more = if more > 0 { format!(", and {more} more requests") } else { String::new() };
                format!("{call} of lkey {key:#x}, which is in use by a {whose}, wr_id {wr_id:#x}{more}")
            };
            let later = |receives: &mut ShadowReceives, whose: String| {
                let mut users = receives.waiting.iter().filter(|awaiting| awaiting.keys.contains(&key));
                if let Some(first) = users.next() {
                    let what = in_use(whose, first.wr_id, users.count());
                    let finding = Finding::at(Site::capture(), Check::DeregisteredInUse, key, what);
                    receives.orphaned.push((key, finding));
                }
            };
            for (qpn, queue) in &mut shadow.queues {
                let mut sends = queue.sends.iter().filter(|posted| posted.sges.iter().any(uses));
                if let Some(first) = sends.next() {
                    let what = in_use(format!("send of QP {qpn:#x}"), first.wr_id, sends.count());
                    findings.push(Finding::here(Check::DeregisteredInUse, key, what));
                }
                later(&mut queue.receives, format!("receive of QP {qpn:#x}"));
            }
            // The requests of an SRQ without QPs are never taken.
            for (srq, receives) in shadow.shared.iter_mut().filter(|(srq, _)| shared.contains(srq)) {
                later(receives, format!("receive of SRQ {srq}"));
            }
        }
        self.tell(findings);
    }

    /// A copy found that the memory behind a key is gone.
    #[cold]
    pub(crate) fn vanished(&self, key: u32, addr: u64) {
        let what =
            format!("the memory at {addr:#x} of lkey {key:#x} was unmapped, protected or truncated while registered");
        self.tell([Finding::nowhere(Check::UnmappedMemory, key, what)]);
    }
}
