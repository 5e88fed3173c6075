//! One direction of a TCP connection in simulated time. It splits, merges and delays bytes, and
//! does one kind of harm. Principal type: [`Pipe`].

use std::collections::VecDeque;
use std::time::Duration;

/// Random numbers of a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What happens to a direction when so many bytes have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    Nothing,
    /// Bits of one byte change.
    Corrupt(u64),
    /// The connection is reset.
    Reset(u64),
    /// Nothing arrives any more, not even the end.
    Silence(u64),
}

/// One direction of a connection.
pub(crate) struct Pipe {
    pub(crate) harm: Harm,
    /// Bytes, and when they arrive.
    pieces: VecDeque<(Duration, Vec<u8>)>,
    sent: u64,
    /// The sender has closed this direction.
    pub(crate) ended: bool,
}

impl Pipe {
    pub(crate) fn new(harm: Harm) -> Pipe {
        Pipe { harm, pieces: VecDeque::new(), sent: 0, ended: false }
    }

    /// Takes bytes of the sender. Returns whether the connection is reset.
    pub(crate) fn send(&mut self, now: Duration, mut bytes: Vec<u8>, random: &mut Random) -> bool {
        let begin = self.sent;
        self.sent += bytes.len() as u64;
        match self.harm {
            Harm::Corrupt(at) if (begin..self.sent).contains(&at) => {
                bytes[(at - begin) as usize] ^= 1 + random.below(255) as u8;
            }
            Harm::Reset(at) if at < self.sent => return true,
            Harm::Silence(at) => bytes.truncate(at.saturating_sub(begin) as usize),
            _ => {}
        }
        if bytes.is_empty() {
            return false;
        }
        let arrives = now + Duration::from_micros(random.below(30_000));
        let last = self.pieces.back().map_or(arrives, |(last, _)| arrives.max(*last));
        self.pieces.push_back((last, bytes));
        false
    }

    /// The next bytes for the receiver: pieces together, or a part of one.
    pub(crate) fn take(&mut self, now: Duration, random: &mut Random) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some((_, piece)) = self.pieces.pop_front_if(|(arrives, _)| *arrives <= now) {
            bytes.extend(piece);
            if random.is_one_in(3) {
                break;
            }
        }
        if random.is_one_in(2) && bytes.len() > 1 {
            let rest = bytes.split_off(1 + random.below(bytes.len() as u64 - 1) as usize);
            self.pieces.push_front((now, rest));
        }
        bytes
    }

    /// Whether the receiver sees the end now.
    pub(crate) fn is_at_end(&self) -> bool {
        let silent = matches!(self.harm, Harm::Silence(at) if at <= self.sent);
        self.ended && !silent && self.pieces.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
    }
}
