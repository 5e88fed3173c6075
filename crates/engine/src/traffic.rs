//! What a queue pair has sent and received, for the counters of its port and of the switches on its
//! path. The engine publishes the sums in queue memory, and the agent adds them up when somebody
//! asks. Principal type: [`Traffic`].
//!
//! Both ends of a lane belong to one agent, so only the sender counts there. The receiver counts
//! packets from other hosts, and datagrams. In subnets with switches, the sender also counts
//! datagrams for all ports, by their destination ([`crate::flows`]). Who carries out a request
//! directly on the peer's memory counts for both. The units are those of performance management
//! (IBA 16.1.3.5): packets as on a link with the path MTU, and words of 4 bytes from the LRH to the
//! ICRC.
//!
//! What both halves of a queue pair notice is counted for its port, too ([`crate::noticed`]).

use abi::queue::qp as word;
use protocol::{Operation, SendOp};

use crate::memory::View;

// The sums of a direction are published together.
const _: () = assert!(word::SENT_WORDS == word::SENT_PACKETS + 8 && word::RECEIVED_WORDS == word::RECEIVED_PACKETS + 8);

/// Bytes of LRH and ICRC.
const LINK: u64 = 8 + 4;
/// Bytes of a BTH.
const BTH: u64 = 12;

/// Sums of packets and words in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) packets: u64,
    pub(crate) words: u64,
}

impl Sum {
    /// Adds messages or packets with `len` bytes of payload each, and `headers` bytes of BTH and
    /// further headers. They are packets of up to 2^`mtu` bytes on a link.
    #[inline]
    pub(crate) fn add(&mut self, count: u32, len: u32, headers: usize, mtu: u32) {
        let (len, count) = (u64::from(len), u64::from(count));
        let packets = ((len + (1 << mtu) - 1) >> mtu).max(1);
        let bytes = len + headers as u64 + (packets - 1) * BTH + packets * LINK;
        self.packets += count * packets;
        self.words += count * bytes.div_ceil(4);
    }
}

/// What a queue pair has sent and received.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    sent: Sum,
    received: Sum,
    /// What had no path.
    lost: Sum,
    /// The packets of both directions that are published.
    shown: (u64, u64),
}

impl Traffic {
    /// Packets or longer pieces of messages were sent.
    #[inline]
    pub(crate) fn sent(&mut self, count: u32, len: u32, headers: usize, mtu: u32) {
        self.sent.add(count, len, headers, mtu);
    }

    /// Packets were received that their sender does not count here.
    #[inline]
    pub(crate) fn received(&mut self, count: u32, len: u32, headers: usize) {
        // The sender has already kept to the MTU.
        self.received.add(count, len, headers, 31);
    }

    /// A request was carried out directly: what would have been on the link for it and its answer.
    pub(crate) fn carried(&mut self, op: &SendOp, mtu: u32) {
        let (asks, answers) = match op.operation {
            Operation::Read => ((0, 28), (op.length, 16)),
            Operation::Write => ((op.length, 28), (0, 16)),
            _ => ((0, 40), (0, 24)),
        };
        self.sent.add(1, asks.0, asks.1, mtu);
        self.received.add(1, answers.0, answers.1, mtu);
    }

    /// Packets have no path. Publishes their sum at once, so that sending costs nothing.
    #[cold]
    pub(crate) fn lost(&mut self, view: Option<&View>, count: u32, len: u32, headers: usize, mtu: u32) {
        self.lost.add(count, len, headers, mtu);
        let Some(view) = view else { return };
        view.write(word::LOST_PACKETS, &[self.lost.packets, self.lost.words]);
    }

    /// Publishes the sums, if they have changed.
    #[inline]
    pub(crate) fn show(&mut self, view: Option<&View>) {
        let Some(view) = view else { return };
        if self.shown.0 != self.sent.packets {
            self.shown.0 = self.sent.packets;
            view.write(word::SENT_PACKETS, &[self.sent.packets, self.sent.words]);
        }
        if self.shown.1 != self.received.packets {
            self.shown.1 = self.received.packets;
            view.write(word::RECEIVED_PACKETS, &[self.received.packets, self.received.words]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_counted_as_packets_of_the_path_mtu() {
        let mut sum = Sum::default();
        // A SEND of 9000 bytes with an MTU of 4096: three packets.
        sum.add(1, 9000, 12, 12);
        assert_eq!(sum, Sum { packets: 3, words: (9000 + 3 * (12 + 12)) / 4 });
        let mut sum = Sum::default();
        // Two acknowledgements, and a payload that is padded.
        sum.add(2, 0, 16, 12);
        sum.add(1, 5, 12, 12);
        assert_eq!(sum, Sum { packets: 3, words: 2 * 7 + 8 });
        sum.add(1, 4096, 28, 12);
        assert_eq!(sum.packets, 4, "a full packet is one");
    }
}
