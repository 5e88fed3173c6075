//! Packets that wait: a few for each destination, and not too many bytes in all. Principal type:
//! [`Held`].

use std::collections::VecDeque;

/// The most packets that wait for one destination. A further packet replaces the oldest.
const PACKETS: usize = 8;
/// The most bytes of all waiting packets of one table.
const BYTES: usize = 4 << 20;

/// How many bytes wait.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: usize,
}

impl Held {
    /// Appends a copy of a packet to a queue. Returns false if a packet was lost.
    pub(crate) fn push(&mut self, queue: &mut VecDeque<Vec<u8>>, packet: &[u8]) -> bool {
        let oldest = if queue.len() >= PACKETS { queue.pop_front() } else { None };
        let lost = oldest.is_some();
        self.bytes -= oldest.map_or(0, |packet| packet.len());
        if self.bytes + packet.len() > BYTES {
            return false;
        }
        self.bytes += packet.len();
        queue.push_back(packet.to_vec());
        !lost
    }

    /// Empties a queue.
    pub(crate) fn take(&mut self, queue: &mut VecDeque<Vec<u8>>) -> impl Iterator<Item = Vec<u8>> + use<> {
        self.bytes -= queue.iter().map(Vec::len).sum::<usize>();
        std::mem::take(queue).into_iter()
    }
}
