//! What queue pairs have sent and received, by the ports at both ends. The engines publish sums in
//! queue memory (`abi::queue::qp`). Here is the part that has not been added to the counters of
//! ports yet; [`crate::traffic`] collects it. Principal type: [`Traffic`].

use std::collections::BTreeMap;

use abi::queue::qp as word;
use protocol::Service;
use subnet::fabric::{NoPath, Path};

use super::Qp;
use super::groups::At;
use super::paths::GlobalRoute;
use crate::ids::ContextId;

/// Maximum number of flows whose path is remembered. The traffic of others is counted at the
/// sender's port only.
pub(crate) const FLOWS: usize = 4096;
/// The most that one look at a queue pair adds. A program can write any value to its queue memory.
pub(crate) const MOST: u64 = 1 << 48;

/// Packets, and words of 4 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) packets: u64,
    pub(crate) words: u64,
}

/// What was sent and received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) sent: Sum,
    pub(crate) received: Sum,
    /// Sent without a path, and so lost on the way.
    pub(crate) lost: Sum,
    /// Datagrams that were sent, if no other port counts them.
    pub(crate) datagrams: Sum,
}

/// Where packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) from: At,
    /// The port at the other end, if it belongs to this agent and the sender counts for it.
    pub(crate) to: Option<At>,
    /// The destination LID; 0 stands for the port's first one.
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) pkey: u16,
    /// Of connections: the path MTU. Of lost datagrams: the MTU that they need.
    pub(crate) mtu: u32,
    pub(crate) route: GlobalRoute,
}

impl Flow {
    /// What leaves a port to destinations that are not known here.
    pub(crate) const fn of_port(from: At) -> Self {
        Self { from, to: None, dlid: 0, sl: 0, pkey: 0, mtu: 0, route: ([0; 16], 0, 0) }
    }

    /// The same flow for packets of any length.
    pub(crate) const fn short(self) -> Self {
        Self { mtu: 0, ..self }
    }

    /// Whether the destination is known.
    pub(crate) const fn is_connected(&self) -> bool {
        self.to.is_some() || self.dlid != 0
    }
}

/// Connections without a path, with the way of their packets until the switches drop them. A link
/// may be mended before somebody asks for the counters of what was lost.
pub(crate) type Blocked = BTreeMap<Flow, (Path, NoPath)>;

/// What has not been added to the counters of ports yet.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    flows: BTreeMap<Flow, Counted>,
    /// The sums of datagram flows when the agent last looked at them, by their place.
    datagrams: BTreeMap<(ContextId, usize), Sum>,
    /// Whether the flows have to be counted soon: something is lost.
    is_urgent: bool,
}

impl Traffic {
    /// Everything that was added since the last call.
    pub(crate) fn take(&mut self) -> BTreeMap<Flow, Counted> {
        self.is_urgent = false;
        std::mem::take(&mut self.flows)
    }

    /// Everything that was added since the last call, if it has to be counted soon.
    pub(crate) fn take_if_urgent(&mut self) -> Option<BTreeMap<Flow, Counted>> {
        self.is_urgent.then(|| self.take())
    }

    /// An engine has told of packets without a path.
    pub(crate) fn hurry(&mut self) {
        self.is_urgent |= !self.flows.is_empty();
    }

    /// Adds what was counted for a flow.
    pub(crate) fn add(&mut self, mut flow: Flow, counted: Counted) {
        self.is_urgent |= counted.lost != Sum::default();
        if self.flows.len() >= FLOWS && !self.flows.contains_key(&flow) {
            flow = Flow::of_port(flow.from);
        }
        let known = self.flows.entry(flow).or_default();
        let sums = [&mut known.sent, &mut known.received, &mut known.lost, &mut known.datagrams];
        let more = [counted.sent, counted.received, counted.lost, counted.datagrams];
        for (sum, more) in sums.into_iter().zip(more) {
            sum.packets = sum.packets.saturating_add(more.packets);
            sum.words = sum.words.saturating_add(more.words);
        }
    }

    /// Adds the datagrams of a flow, of which a context has counted `now`.
    pub(crate) fn add_datagrams(&mut self, at: (ContextId, usize), flow: Flow, now: Sum) {
        let before = self.datagrams.insert(at, now).unwrap_or_default();
        let more = now.since(before);
        if more.packets != 0 {
            let counted = match flow.mtu {
                0 => Counted { datagrams: more, ..Counted::default() },
                _ => Counted { lost: more, ..Counted::default() },
            };
            self.add(flow, counted);
        }
    }

    /// A context has ended.
    pub(crate) fn forget(&mut self, context: ContextId) {
        self.datagrams.retain(|(owner, _), _| *owner != context);
    }
}

impl Sum {
    /// What was added after `before`.
    fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets.wrapping_sub(before.packets).min(MOST),
            words: self.words.wrapping_sub(before.words).min(MOST),
        }
    }
}

impl Qp {
    /// What it has sent and received since the last call; `None` if that is nothing.
    pub(crate) fn take_traffic(&mut self) -> Option<Counted> {
        if self.service == Service::XrcTgt {
            return None;
        }
        let sum = |packets, words| Sum { packets: self.block.read64(packets), words: self.block.read64(words) };
        let now = Counted {
            sent: sum(word::SENT_PACKETS, word::SENT_WORDS),
            received: sum(word::RECEIVED_PACKETS, word::RECEIVED_WORDS),
            lost: sum(word::LOST_PACKETS, word::LOST_WORDS),
            datagrams: Sum::default(),
        };
        let before = std::mem::replace(&mut self.counted, now);
        if now == before {
            return None;
        }
        Some(Counted {
            sent: now.sent.since(before.sent),
            received: now.received.since(before.received),
            lost: now.lost.since(before.lost),
            datagrams: Sum::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_beyond_the_limit_are_counted_at_the_sender_only() {
        let mut traffic = Traffic::default();
        let one = Counted { sent: Sum { packets: 1, words: 7 }, ..Counted::default() };
        for dlid in 0..FLOWS as u16 + 100 {
            let flow = Flow { to: Some((1, 1)), dlid, sl: 3, pkey: 0x8001, ..Flow::of_port((0, 1)) };
            traffic.add(flow, one);
        }
        assert_eq!(traffic.flows.len(), FLOWS + 1);
        let rest = traffic.flows[&Flow::of_port((0, 1))];
        assert_eq!(rest.sent, Sum { packets: 100, words: 700 });
    }
}
