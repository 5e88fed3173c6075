//! What queue pairs have sent and received, by the ports at both ends. The engines publish sums in
//! queue memory (`abi::queue::qp`). Here is the part that has not been added to the counters of
//! ports yet; [`crate::traffic`] collects it. Principal type: [`Traffic`].

use std::collections::BTreeMap;

use abi::queue::qp as word;
use protocol::Service;

use super::Qp;
use super::groups::At;

/// Maximum number of flows whose path is remembered. The traffic of others is counted at the
/// sender's port only.
const FLOWS: usize = 4096;
/// The most that one look at a queue pair adds. A program can write any value to its queue memory.
const MOST: u64 = 1 << 48;

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
}

/// What has not been added to the counters of ports yet.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    flows: BTreeMap<Flow, Counted>,
}

impl Traffic {
    /// Everything that was added since the last call.
    pub(crate) fn take(&mut self) -> BTreeMap<Flow, Counted> {
        std::mem::take(&mut self.flows)
    }

    /// Adds what was counted for a flow.
    pub(crate) fn add(&mut self, mut flow: Flow, counted: Counted) {
        if self.flows.len() >= FLOWS && !self.flows.contains_key(&flow) {
            flow = Flow { to: None, dlid: 0, sl: 0, ..flow };
        }
        let known = self.flows.entry(flow).or_default();
        for (sum, more) in [(&mut known.sent, counted.sent), (&mut known.received, counted.received)] {
            sum.packets = sum.packets.saturating_add(more.packets);
            sum.words = sum.words.saturating_add(more.words);
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
        };
        let before = std::mem::replace(&mut self.counted, now);
        if now == before {
            return None;
        }
        let since = |now: Sum, before: Sum| Sum {
            packets: now.packets.wrapping_sub(before.packets).min(MOST),
            words: now.words.wrapping_sub(before.words).min(MOST),
        };
        Some(Counted { sent: since(now.sent, before.sent), received: since(now.received, before.received) })
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
            traffic.add(Flow { from: (0, 1), to: Some((1, 1)), dlid, sl: 3 }, one);
        }
        assert_eq!(traffic.flows.len(), FLOWS + 1);
        let rest = traffic.flows[&Flow { from: (0, 1), to: None, dlid: 0, sl: 0 }];
        assert_eq!(rest.sent, Sum { packets: 100, words: 700 });
    }
}
