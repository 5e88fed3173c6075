//! The shadow state: the outstanding requests of each queue, the messages whose completions the
//! program has not polled, and how many completions a CQ may get.
//!
//! The checks are not here. QPs are identified by QPN, SRQs and CQs by handle. Principal type:
//! [`Shadow`].

use std::collections::{HashMap, HashSet, VecDeque};

use abi::post::Sge;

use super::finding::Finding;
use super::site::Site;
use crate::extent::{Extent, MemoryKind};
use crate::table::Table;

/// Bytes of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Span {
    pub(super) fn overlaps(self, other: Self) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start.saturating_add(other.len)
            && other.start < self.start.saturating_add(self.len)
    }
}

/// Whether two lists have a byte in common; returns the first such span of `one`.
pub(super) fn common(one: &[Span], other: &[Span]) -> Option<Span> {
    one.iter().copied().find(|span| other.iter().any(|other| span.overlaps(*other)))
}

/// The memory of a list's bytes. Leaves out bytes without a live region, and regions without
/// memory.
pub(super) fn spans(extents: &Table<Extent>, sges: &[Sge]) -> Vec<Span> {
    let place = |sge: &Sge| {
        let extent = extents.find(sge.lkey >> 8).filter(|extent| extent.key == sge.lkey)?;
        let offset = sge.addr.checked_sub(extent.iova)?;
        (extent.memory_kind != MemoryKind::Null)
            .then(|| Span { start: extent.host.wrapping_add(offset), len: u64::from(sge.length) })
    };
    sges.iter().filter(|sge| sge.length > 0).filter_map(place).collect()
}

/// The first `len` bytes of a list.
pub(super) fn first(spans: &[Span], len: u64) -> Vec<Span> {
    let mut left = len;
    let mut part = |span: &Span| {
        let taken = span.len.min(left);
        left -= taken;
        Span { len: taken, ..*span }
    };
    spans.iter().map(&mut part).filter(|span| span.len > 0).collect()
}

/// What a send request does with its local bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Sends them: SEND or WRITE.
    Sends,
    /// Fills them: READ.
    Reads,
    /// Fills eight of them, and changes eight bytes at the peer.
    Atomic,
    /// Neither: inline data, a bind, an invalidation.
    Nothing,
}

/// An outstanding send request.
pub(super) struct Posted {
    pub(super) slot: u32,
    pub(super) wr_id: u64,
    pub(super) work: Work,
    pub(super) sges: Vec<Sge>,
    pub(super) spans: Vec<Span>,
    /// Key and bytes at the peer.
    pub(super) remote: Option<(u32, Span)>,
    /// The completion is counted among those that the CQ still expects.
    pub(super) expected: bool,
    /// The checksum of the bytes that it sends, at the time of the post.
    pub(super) sum: Option<u64>,
    pub(super) site: Site,
}

/// An outstanding receive request.
pub(super) struct Awaiting {
    pub(super) wr_id: u64,
    pub(super) keys: Vec<u32>,
}

/// Receive requests, in the order in which they are taken.
#[derive(Default)]
pub(super) struct ShadowReceives {
    pub(super) waiting: VecDeque<Awaiting>,
    /// Deregistered regions of the requests, each with the finding to report if the queue is used
    /// afterwards.
    pub(super) orphaned: Vec<(u32, Finding)>,
}

impl ShadowReceives {
    /// Takes the oldest request, because a message came or the request is flushed; returns the
    /// finding to report.
    pub(super) fn take(&mut self, flushed: bool) -> Option<Finding> {
        let keys = self.waiting.pop_front()?.keys;
        let at = self.orphaned.iter().position(|(key, _)| !flushed && keys.contains(key))?;
        Some(self.orphaned.swap_remove(at).1)
    }

    /// The queue is used further; returns the findings to report.
    pub(super) fn go_on(&mut self) -> impl Iterator<Item = Finding> {
        std::mem::take(&mut self.orphaned).into_iter().map(|(_, finding)| finding)
    }
}

/// A message whose completion the program has not polled.
pub(super) struct Landed {
    pub(super) number: u64,
    pub(super) qpn: u32,
    pub(super) wr_id: u64,
    pub(super) spans: Vec<Span>,
}

/// The state of one QP.
#[derive(Default)]
pub(super) struct ShadowQp {
    pub(super) sends: VecDeque<Posted>,
    pub(super) receives: ShadowReceives,
    /// Consecutive requests, up to the last one, without a completion.
    pub(super) unsignaled: u32,
    /// Receives whose completions are not in the CQ yet, each with its message.
    pub(super) arrived: VecDeque<Option<u64>>,
    /// The program has polled a completion with an error of this QP.
    pub(super) failed: bool,
    /// Sends posted since then.
    pub(super) since: u32,
}

/// The state of one CQ.
#[derive(Default)]
pub(super) struct CqShadow {
    /// Completions that are still to come or to be polled.
    pub(super) expected: i64,
    /// The completions in the CQ: the QP and the message of each.
    pub(super) shown: VecDeque<(u32, Option<u64>)>,
}

#[derive(Default)]
pub(super) struct Shadow {
    pub(super) queues: HashMap<u32, ShadowQp>,
    pub(super) shared: HashMap<u32, ShadowReceives>,
    pub(super) cqs: HashMap<u32, CqShadow>,
    pub(super) landed: VecDeque<Landed>,
    pub(super) messages: u64,
    /// Keys that were deregistered and name nothing now.
    pub(super) dead_keys: HashSet<u32>,
}

impl Shadow {
    pub(super) fn queue(&mut self, qpn: u32) -> &mut ShadowQp {
        self.queues.entry(qpn).or_default()
    }

    pub(super) fn cq(&mut self, handle: u32) -> &mut CqShadow {
        self.cqs.entry(handle).or_default()
    }

    /// The program has seen a message, or never will.
    pub(super) fn seen(&mut self, message: Option<u64>) {
        if let Some(number) = message
            && let Some(at) = self.landed.iter().position(|landed| landed.number == number)
        {
            self.landed.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn span(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    #[test]
    fn spans_that_touch_do_not_overlap() {
        assert!(!span(0, 4).overlaps(span(4, 4)) && !span(4, 4).overlaps(span(0, 4)));
        assert!(span(0, 5).overlaps(span(4, 4)) && span(4, 4).overlaps(span(0, 5)));
        assert!(!span(4, 0).overlaps(span(0, 8)) && span(u64::MAX - 1, 8).overlaps(span(u64::MAX - 1, 1)));
    }

    #[test]
    fn the_first_bytes_of_a_list_end_within_a_span() {
        let list = [span(10, 4), span(30, 4)];
        assert_eq!(first(&list, 6), [span(10, 4), span(30, 2)]);
        assert_eq!(first(&list, 4), [span(10, 4)]);
        assert_eq!(first(&list, 0), []);
    }
}
