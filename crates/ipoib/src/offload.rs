//! What a host leaves to a network interface with offload, in the header before a packet (`struct
//! virtio_net_hdr` of `linux/virtio_net.h`). It knows nothing of what is done then. Principal type:
//! [`Offload`].

/// The checksum is unfinished.
const NEEDS_CHECKSUM: u8 = 1;
/// The packet is many segments.
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
/// The segments have a flag for congestion, which changes nothing here.
const ECN: u8 = 0x80;

/// The kinds of packets that are cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP, each segment with a header of UDP.
    Udp,
}

/// A checksum that is not finished: its place has the sum of the pseudo header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Where the bytes begin that it is of: the header of TCP or UDP.
    pub start: u16,
    /// Where it is, from there.
    pub offset: u16,
}

/// What is left to do for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum to finish.
    pub checksum: Option<Checksum>,
    /// The kind of segments, and the payload of each but the last.
    pub segments: Option<(Kind, u16)>,
    /// The bytes before the payload of a packet with segments. Only a hint of the host.
    pub header: u16,
}

impl Offload {
    /// The bytes of the header.
    pub const LEN: usize = 10;

    /// Parses the header. `None` for an unknown kind of segments.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [flags, kind, h0, h1, s0, s1, start0, start1, offset0, offset1] = *bytes;
        let kind = match kind & !ECN {
            0 => None,
            TCP4 => Some(Kind::Tcp4),
            TCP6 => Some(Kind::Tcp6),
            UDP => Some(Kind::Udp),
            _ => return None,
        };
        let half = |low, high| u16::from_ne_bytes([low, high]);
        let checksum = Checksum { start: half(start0, start1), offset: half(offset0, offset1) };
        Some(Self {
            checksum: (flags & NEEDS_CHECKSUM != 0).then_some(checksum),
            segments: kind.map(|kind| (kind, half(s0, s1))),
            header: half(h0, h1),
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        if let Some(Checksum { start, offset }) = self.checksum {
            bytes[0] = NEEDS_CHECKSUM;
            bytes[6..8].copy_from_slice(&start.to_ne_bytes());
            bytes[8..].copy_from_slice(&offset.to_ne_bytes());
        }
        if let Some((kind, size)) = self.segments {
            bytes[1] = match kind {
                Kind::Tcp4 => TCP4,
                Kind::Tcp6 => TCP6,
                Kind::Udp => UDP,
            };
            bytes[4..6].copy_from_slice(&size.to_ne_bytes());
        }
        bytes[2..4].copy_from_slice(&self.header.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{Checksum, Kind, Offload};

    #[test]
    fn an_offload_is_parsed_as_it_is_written() {
        for kind in [Kind::Tcp4, Kind::Tcp6, Kind::Udp] {
            let checksum = Some(Checksum { start: 20, offset: 16 });
            let offload = Offload { checksum, segments: Some((kind, 1448)), header: 52 };
            assert_eq!(Offload::parse(&offload.bytes()), Some(offload));
        }
        assert_eq!(Offload::parse(&[0; 10]), Some(Offload::default()));
        assert_eq!(Offload::default().bytes(), [0; 10]);
        assert_eq!(Offload::parse(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None, "fragments of UDP were not asked for");
    }
}
