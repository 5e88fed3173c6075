//! All objects of all contexts, one table per kind. The principal type is [`Tables`].

use super::domains::Domains;
use super::groups::Groups;
use super::paths::Paths;
use super::traffic::Traffic;
use super::{Ah, CompletionChannel, Cq, Dm, Mr, Mw, OpenedQp, Pd, Qp, Srq, Xrcd};
use crate::ids::ContextId;
use crate::table::{Kind, Table};
use crate::violation_counts::ToldViolations;

/// The objects of an agent.
pub struct Tables {
    /// Protection domains.
    pub pds: Table<Pd>,
    /// Memory regions.
    pub mrs: Table<Mr>,
    /// Memory windows.
    pub mws: Table<Mw>,
    /// Device memory.
    pub dms: Table<Dm>,
    /// Completion channels.
    pub channels: Table<CompletionChannel>,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Address handles.
    pub ahs: Table<Ah>,
    /// Handles of XRC domains.
    pub xrcds: Table<Xrcd>,
    /// Further handles of XRC target queue pairs.
    pub opened: Table<OpenedQp>,
    /// XRC domains.
    pub domains: Domains,
    /// Multicast groups.
    pub groups: Groups,
    /// Traffic of queue pairs that the counters of ports do not contain yet.
    pub(crate) traffic: Traffic,
    /// What passes the switches of a topology.
    pub(crate) paths: Paths,
    /// What engines have told of packets with wrong keys, and ports have not told their managers.
    pub(crate) violations: ToldViolations,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            pds: Table::new(Kind::Pd),
            mrs: Table::new(Kind::Mr),
            mws: Table::new(Kind::Mw),
            dms: Table::new(Kind::Dm),
            channels: Table::new(Kind::Channel),
            cqs: Table::new(Kind::Cq),
            qps: Table::new(Kind::Qp),
            srqs: Table::new(Kind::Srq),
            ahs: Table::new(Kind::Ah),
            xrcds: Table::new(Kind::Xrcd),
            opened: Table::new(Kind::Opened),
            domains: Domains::default(),
            groups: Groups::default(),
            traffic: Traffic::default(),
            paths: Paths::default(),
            violations: ToldViolations::default(),
        }
    }
}

impl Tables {
    /// How many objects of a kind a context has.
    pub fn objects_of(&self, id: ContextId, kind: Kind) -> usize {
        match kind {
            Kind::Pd => self.pds.count_of(id),
            Kind::Mr => self.mrs.count_of(id),
            Kind::Mw => self.mws.count_of(id),
            Kind::Dm => self.dms.count_of(id),
            Kind::Cq => self.cqs.count_of(id),
            Kind::Qp => self.qps.count_of(id),
            Kind::Srq => self.srqs.count_of(id),
            Kind::Ah => self.ahs.count_of(id),
            Kind::Channel => self.channels.count_of(id),
            Kind::Xrcd => self.xrcds.count_of(id),
            Kind::Opened => self.opened.count_of(id),
        }
    }

    /// Owner and handle of the object of a kind at an index, or `Some(None)` for a free index.
    /// `None`: there are no more indices.
    pub fn at(&self, kind: Kind, index: usize) -> Option<Option<(ContextId, u32)>> {
        match kind {
            Kind::Pd => self.pds.at(index),
            Kind::Mr => self.mrs.at(index),
            Kind::Mw => self.mws.at(index),
            Kind::Dm => self.dms.at(index),
            Kind::Cq => self.cqs.at(index),
            Kind::Qp => self.qps.at(index),
            Kind::Srq => self.srqs.at(index),
            Kind::Ah => self.ahs.at(index),
            Kind::Channel => self.channels.at(index),
            Kind::Xrcd => self.xrcds.at(index),
            Kind::Opened => self.opened.at(index),
        }
    }

    /// The object of a kind that a context created next after `before`, or its first object without
    /// `before`.
    pub fn after(&self, id: ContextId, kind: Kind, before: Option<u32>) -> Option<u32> {
        match kind {
            Kind::Pd => self.pds.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Mr => self.mrs.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Mw => self.mws.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Dm => self.dms.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Cq => self.cqs.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Qp => self.qps.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Srq => self.srqs.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Ah => self.ahs.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Channel => self.channels.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Xrcd => self.xrcds.of_after(id, before).next().map(|(handle, _)| handle),
            Kind::Opened => self.opened.of_after(id, before).next().map(|(handle, _)| handle),
        }
    }

    /// The handles of a context's objects of a kind, for `show`.
    pub fn handles_of(&self, id: ContextId, kind: Kind) -> Vec<u32> {
        match kind {
            Kind::Pd => self.pds.handles(id),
            Kind::Mr => self.mrs.handles(id),
            Kind::Mw => self.mws.handles(id),
            Kind::Dm => self.dms.handles(id),
            Kind::Cq => self.cqs.handles(id),
            Kind::Qp => self.qps.handles(id),
            Kind::Srq => self.srqs.handles(id),
            Kind::Ah => self.ahs.handles(id),
            Kind::Channel => self.channels.handles(id),
            Kind::Xrcd => self.xrcds.handles(id),
            Kind::Opened => self.opened.handles(id),
        }
    }
}
