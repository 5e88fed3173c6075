//! Credits of one virtual lane in one direction of a link: the sender's count of what it has sent
//! and may send, and the receiver's count of what has arrived and is free. All counts are blocks of
//! 64 bytes modulo 4096. VL 15 has no credits. Not when the counts are told
//! ([`crate::fabric`]). Principal types: [`Sender`], [`Receiver`]. IBA 7.9.

/// Counts are modulo this.
const MODULUS: u16 = 4096;
/// A receiver grants at most so many blocks.
pub const MOST: u16 = 2047;

const fn modulo(count: u16) -> u16 {
    count % MODULUS
}

/// The sending end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// FCTBS: blocks sent since the link came up.
    sent: u16,
    /// FCCL: the count up to which blocks may be sent. Nothing may leave before it is told.
    limit: Option<u16>,
}

impl Sender {
    /// FCTBS, for a flow-control packet.
    #[must_use]
    pub const fn sent(&self) -> u16 {
        self.sent
    }

    /// Whether a packet of `blocks` may leave.
    #[must_use]
    pub const fn may_send(&self, blocks: u16) -> bool {
        match self.limit {
            Some(limit) => modulo(limit + 2 * MODULUS - modulo(self.sent + blocks)) <= MOST,
            None => false,
        }
    }

    /// A packet leaves.
    pub const fn send(&mut self, blocks: u16) {
        self.sent = modulo(self.sent + blocks);
    }

    /// The neighbour has told its limit.
    pub const fn told(&mut self, limit: u16) {
        self.limit = Some(limit);
    }

    /// Blocks that may still leave.
    #[must_use]
    pub const fn left(&self) -> u16 {
        match self.limit {
            Some(limit) => {
                let left = modulo(limit + MODULUS - self.sent);
                if left <= MOST { left } else { 0 }
            }
            None => 0,
        }
    }
}

/// The receiving end, with its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// ABR: blocks received since the link came up, and those that the sender says it has sent.
    received: u16,
    /// Blocks of the buffer.
    size: u16,
    /// Blocks that packets occupy.
    occupied: u16,
}

impl Receiver {
    /// A buffer of `size` blocks.
    #[must_use]
    pub const fn new(size: u16) -> Receiver {
        Receiver { received: 0, size: if size > MOST { MOST } else { size }, occupied: 0 }
    }

    /// FCCL, for a flow-control packet.
    #[must_use]
    pub const fn limit(&self) -> u16 {
        modulo(self.received + self.free())
    }

    /// Blocks that are free.
    #[must_use]
    pub const fn free(&self) -> u16 {
        self.size.saturating_sub(self.occupied)
    }

    /// A packet arrives. Returns whether there is room for it; otherwise it must be dropped.
    #[must_use]
    pub const fn arrive(&mut self, blocks: u16) -> bool {
        self.received = modulo(self.received + blocks);
        let fits = blocks <= self.free();
        if fits {
            self.occupied += blocks;
        }
        fits
    }

    /// A packet has left the buffer.
    pub const fn release(&mut self, blocks: u16) {
        self.occupied = self.occupied.saturating_sub(blocks);
    }

    /// The neighbour has told how much it has sent. What was lost on the way thus counts as
    /// received.
    pub const fn told(&mut self, sent: u16) {
        self.received = sent;
    }

    /// The link comes up again: counts begin at zero, and the buffer keeps what is in it.
    pub const fn restart(&mut self) {
        self.received = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn l30_nothing_leaves_before_a_limit_is_told() {
        assert!(!Sender::default().may_send(1));
        assert_eq!(Sender::default().left(), 0);
    }

    #[test]
    fn l30_the_rule_holds_across_the_wrap() {
        let mut sender = Sender { sent: 4090, limit: Some(4) };
        assert_eq!(sender.left(), 10);
        assert!(sender.may_send(10) && !sender.may_send(11));
        sender.send(10);
        assert_eq!((sender.sent(), sender.left()), (4, 0));
        assert!(!sender.may_send(1));
    }

    #[test]
    fn l30_a_lost_packet_costs_credit_only_until_the_next_flow_control_packet() {
        let (mut sender, mut receiver) = (Sender::default(), Receiver::new(20));
        sender.told(receiver.limit());
        sender.send(8);
        sender.told(receiver.limit());
        assert_eq!(sender.left(), 12, "the lost packet holds 8 blocks");
        receiver.told(sender.sent());
        sender.told(receiver.limit());
        assert_eq!(sender.left(), 20);
    }

    proptest! {
        /// Random packets, losses, releases and flow-control packets in order. The receiver never
        /// overruns, and in the end all credits are back.
        #[test]
        fn l30_no_packet_finds_a_full_buffer(
            size in 1..3000_u16,
            steps in proptest::collection::vec((0..6_u8, 1..70_u16), 1..400),
        ) {
            let (mut sender, mut receiver) = (Sender::default(), Receiver::new(size));
            sender.told(receiver.limit());
            let mut buffer = VecDeque::new();
            let exchange = |sender: &mut Sender, receiver: &mut Receiver| {
                receiver.told(sender.sent());
                sender.told(receiver.limit());
            };
            for (step, blocks) in steps {
                match step {
                    0..=2 if sender.may_send(blocks) => {
                        prop_assert!(blocks <= sender.left());
                        sender.send(blocks);
                        prop_assert!(receiver.arrive(blocks), "{:?} {:?}", sender, receiver);
                        buffer.push_back(blocks);
                    }
                    3 if sender.may_send(blocks) => sender.send(blocks),
                    4 => {
                        if let Some(blocks) = buffer.pop_front() {
                            receiver.release(blocks);
                        }
                    }
                    5 => exchange(&mut sender, &mut receiver),
                    _ => {}
                }
                let held: u16 = buffer.iter().sum();
                prop_assert!(sender.left() + held <= size.min(MOST));
            }
            buffer.drain(..).for_each(|blocks| receiver.release(blocks));
            exchange(&mut sender, &mut receiver);
            prop_assert_eq!(sender.left(), size.min(MOST));
        }
    }
}
