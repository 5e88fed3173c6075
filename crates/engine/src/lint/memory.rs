//! The checks of registered memory: that it is there as long as it is registered, and registered as long as it is used.

use abi::mr::access as right;
use abi::post::Sge;

use super::Lint;
use super::finding::{Check, Finding};
use super::ledger::Ledger;
use crate::engine::Engine;
use crate::mr::{Extent, Matter};
use crate::usermem::mappings::{self, MappingError};

/// Keys of a list that were deregistered before.
pub(super) fn stale_keys(ledger: &Ledger, engine: &Engine, call: &str, queue: u32, sges: &[Sge]) -> Vec<Finding> {
    let is_stale = |sge: &&Sge| {
        sge.length > 0
            && ledger.dead_keys.contains(&sge.lkey)
            && engine.extents.find(sge.lkey >> 8).is_none_or(|extent| extent.key != sge.lkey)
    };
    let told = |sge: &Sge| {
        let what = format!("{call} on queue {queue:#x}: lkey {:#x} was deregistered", sge.lkey);
        Finding::here(Check::StaleKey, sge.lkey, what)
    };
    sges.iter().filter(is_stale).map(told).collect()
}

impl Lint {
    /// A region is about to end, or to get another key.
    #[cold]
    pub(crate) fn deregisters(&self, engine: &Engine, call: &str, extent: &Extent) {
        let key = extent.key;
        let mut findings = Vec::new();
        let own = extent.matter == Matter::Memory && extent.backing.is_none() && extent.access & right::ON_DEMAND == 0;
        if own && let Err(MappingError::Unmapped { at }) = mappings::check(extent.host, extent.length, false) {
            let what =
                format!("{call} of lkey {key:#x}: its memory of {} bytes is not mapped any more at {at:#x}", extent.length);
            findings.push(Finding::here(Check::UnmappedMemory, key, what));
        }
        let shared: Vec<u32> = {
            let qps = engine.qps.all();
            qps.iter().filter_map(|qp| qp.srq.as_ref().map(|srq| srq.handle())).collect()
        };
        {
            let ledger = &mut *self.ledger.lock();
            ledger.dead_keys.insert(key);
            let sends = ledger.queues.iter().flat_map(|(qpn, queue)| {
                let uses = queue.sends.iter().filter(|posted| posted.sges.iter().any(|sge| sge.length > 0 && sge.lkey == key));
                uses.map(move |posted| (format!("send of QP {qpn:#x}"), posted.wr_id))
            });
            let receives = ledger.queues.iter().flat_map(|(qpn, queue)| {
                let uses = queue.receives.iter().filter(|awaiting| awaiting.keys.contains(&key));
                uses.map(move |awaiting| (format!("receive of QP {qpn:#x}"), awaiting.wr_id))
            });
            // What is left in an SRQ that no QP has any more is never taken.
            let left = ledger.shared.iter().filter(|(srq, _)| shared.contains(srq)).flat_map(|(srq, queue)| {
                let uses = queue.iter().filter(|awaiting| awaiting.keys.contains(&key));
                uses.map(move |awaiting| (format!("receive of SRQ {srq}"), awaiting.wr_id))
            });
            let mut users = sends.chain(receives).chain(left);
            if let Some((whose, wr_id)) = users.next() {
                let more = users.count();
                let what = format!("{call} of lkey {key:#x}: a {whose}, wr_id {wr_id:#x}, and {more} more requests use it still");
                findings.push(Finding::here(Check::DeregisteredInUse, key, what));
            }
        }
        self.tell(findings);
    }

    /// A copy found that the memory behind a key is gone.
    #[cold]
    pub(crate) fn vanished(&self, key: u32, addr: u64) {
        let what = format!("the memory at {addr:#x} of lkey {key:#x} was unmapped, protected or truncated while registered");
        self.tell([Finding::nowhere(Check::UnmappedMemory, key, what)]);
    }
}
