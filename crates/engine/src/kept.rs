//! Packets that are kept for later: out of order, before a receive request, or for a remote SRQ. An
//! engine keeps a limited number of bytes for all of these together. Principal type: [`KeptPacket`].

use std::sync::Arc;

use shm::Source;

use crate::access;
use crate::budget::{Budget, Share};
use crate::cell::Packet;

/// Bytes that all kept packets of an engine take, at most.
const MOST: usize = 8 << 20;

/// The bytes of all kept packets of an engine.
pub(crate) type KeptBytes = Budget<MOST>;

/// A packet and its payload. They count as kept until this value is dropped.
pub(crate) struct KeptPacket {
    pub(crate) packet: Packet,
    pub(crate) payload: Box<[u8]>,
    share: Share<MOST>,
}

impl KeptPacket {
    /// Copies a packet. Returns `None` if there is no room for it, or its payload cannot be read.
    pub(crate) fn new(all: &Arc<KeptBytes>, packet: &Packet, payload: Source<'_>) -> Option<Self> {
        let share = Share::of(all, Self::bytes_of(payload.len()))?;
        access::copied(payload).ok().map(|payload| Self { packet: *packet, payload, share })
    }

    /// The bytes that a packet with this payload takes.
    pub(crate) fn bytes_of(payload: usize) -> usize {
        size_of::<Self>() + payload
    }

    /// The bytes that the packet takes.
    pub(crate) fn bytes(&self) -> usize {
        self.share.bytes()
    }
}

#[cfg(test)]
mod tests {
    use wire::Headers;

    use super::*;
    use crate::srq_request::about;

    #[test]
    fn packets_are_kept_until_the_engine_has_no_more_room_and_leave_room_when_dropped() {
        let all = Arc::default();
        let payload = vec![7; 1 << 20];
        let keep = || KeptPacket::new(&all, &about(1, Headers::default(), 0), Source::from(&payload[..]));
        let kept: Vec<KeptPacket> = std::iter::from_fn(keep).collect();
        assert_eq!(kept.len(), 7, "7 MiB with their headers, but not 8");
        assert!(kept.iter().all(|kept| kept.payload[..] == payload[..]));
        drop(kept);
        assert_eq!(all.used(), 0);
    }
}
