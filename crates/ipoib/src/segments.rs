//! Packets of the host with what is left to do for them: a checksum is finished, and a long packet
//! of TCP or UDP is cut into segments. Principal type: [`HostPacket`].

use crate::checksum;
use crate::header::EtherType;
use crate::ip::Packet;
use crate::offload::{Checksum, Kind, Offload};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where TCP and UDP have their checksums.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Flags of TCP: the first of them is only in the first segment, the others only in the last.
const CWR: u8 = 0x80;
const PSH_FIN: u8 = 0x09;

/// An IP packet of the host. Its segments are what others receive: one, or many of a long packet.
#[derive(Clone, Copy, Debug)]
pub struct HostPacket<'a> {
    packet: &'a [u8],
    kind: EtherType,
    checksum: Option<Checksum>,
    cut: Option<Cut>,
}

/// How a packet is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    protocol: u8,
    /// Where the header of TCP or UDP begins, and where it ends.
    transport: usize,
    payload: usize,
    /// The payload of each segment but the last.
    size: usize,
}

impl<'a> HostPacket<'a> {
    /// A packet for which nothing is left to do. `None` if it is no IP packet.
    #[must_use]
    pub fn whole(packet: &'a [u8]) -> Option<Self> {
        Some(Self { packet, kind: EtherType::of_ip(packet)?, checksum: None, cut: None })
    }

    /// A packet with its header. `None` if they do not fit together.
    #[must_use]
    pub fn parse(offload: &[u8; Offload::LEN], packet: &'a [u8]) -> Option<Self> {
        let whole = Self::whole(packet)?;
        let offload = Offload::parse(offload)?;
        if let Some(Checksum { start, offset }) = offload.checksum
            && usize::from(start) + usize::from(offset) + 2 > packet.len()
        {
            return None;
        }
        let cut = match offload.segments {
            None => None,
            Some((kind, size)) => Some(whole.cut(kind, size.into(), offload.checksum?)?),
        };
        Some(Self { checksum: offload.checksum, cut, ..whole })
    }

    fn cut(&self, kind: Kind, size: usize, checksum: Checksum) -> Option<Cut> {
        let (transport, offset) = (usize::from(checksum.start), usize::from(checksum.offset));
        let least = match self.kind {
            EtherType::Ipv4 => 4 * usize::from(self.packet[0] & 0x0f),
            _ => 40,
        };
        let fits = match kind {
            Kind::Tcp4 => self.kind == EtherType::Ipv4 && offset == TCP_CHECKSUM,
            Kind::Tcp6 => self.kind == EtherType::Ipv6 && offset == TCP_CHECKSUM,
            Kind::Udp => offset == UDP_CHECKSUM,
        };
        let (protocol, payload) = match kind {
            Kind::Udp => (UDP, transport + 8),
            _ => (TCP, transport + 4 * usize::from(self.packet.get(transport + 12)? >> 4)),
        };
        let whole = payload > transport + offset && payload < self.packet.len() && size > 0;
        (fits && whole && least >= 20 && transport >= least).then_some(Cut { protocol, transport, payload, size })
    }

    /// Its EtherType.
    #[must_use]
    pub fn kind(&self) -> EtherType {
        self.kind
    }

    /// The bytes, before anything was done. Also the beginning of its first segment.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.packet
    }

    /// The length of its longest segment.
    #[must_use]
    pub fn longest(&self) -> usize {
        let whole = self.packet.len();
        self.cut.map_or(whole, |cut| whole.min(cut.payload + cut.size))
    }

    /// Writes a segment to the beginning of `to`, and returns its length. `None` if there are fewer
    /// segments, or if it does not fit.
    #[must_use]
    pub fn segment(&self, number: usize, to: &mut [u8]) -> Option<usize> {
        let Some(cut) = self.cut else {
            let to = to.get_mut(..self.packet.len()).filter(|_| number == 0)?;
            to.copy_from_slice(self.packet);
            if let Some(Checksum { start, offset }) = self.checksum {
                let to = to.get_mut(usize::from(start)..)?;
                let sum = checksum::of(to);
                write_checksum(to, offset.into(), sum);
            }
            return Some(to.len());
        };
        let at = number * cut.size;
        let rest = self.packet.get(cut.payload + at..).filter(|rest| !rest.is_empty())?;
        let is_last = rest.len() <= cut.size;
        let payload = &rest[..rest.len().min(cut.size)];
        let to = to.get_mut(..cut.payload + payload.len())?;
        let (header, content) = to.split_at_mut(cut.payload);
        header.copy_from_slice(&self.packet[..cut.payload]);
        content.copy_from_slice(payload);
        self.finish(cut, number, is_last, to)
    }

    /// Gives a segment its lengths, numbers, flags and checksums.
    fn finish(&self, cut: Cut, number: usize, is_last: bool, to: &mut [u8]) -> Option<usize> {
        let length = to.len();
        let (ip, transport) = to.split_at_mut(cut.transport);
        if self.kind == EtherType::Ipv4 {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(number as u16);
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let header = 4 * usize::from(ip[0] & 0x0f);
            let sum = checksum::of(&ip[..header]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
        let place = if cut.protocol == UDP {
            let length = transport.len() as u16;
            transport[4..6].copy_from_slice(&length.to_be_bytes());
            UDP_CHECKSUM
        } else {
            let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let sequence = sequence.wrapping_add((number * cut.size) as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            transport[13] &= !(if is_last { 0 } else { PSH_FIN } | if number == 0 { 0 } else { CWR });
            TCP_CHECKSUM
        };
        transport[place..place + 2].fill(0);
        let Packet { source, destination } = Packet::parse(ip)?;
        let sum = checksum::of_transport(source, destination, cut.protocol, transport);
        write_checksum(transport, place, sum);
        Some(length)
    }

    /// Its segments, each behind its encapsulation header.
    pub(crate) fn payloads(self) -> impl Iterator<Item = Vec<u8>> + 'a {
        use crate::header::LEN;
        (0..).map_while(move |number| {
            let mut payload = vec![0; LEN + self.longest()];
            payload[..LEN].copy_from_slice(&self.kind.header());
            let length = self.segment(number, &mut payload[LEN..])?;
            payload.truncate(LEN + length);
            Some(payload)
        })
    }
}

/// Writes a checksum of TCP or UDP. In UDP, 0 stands for no checksum, so that a checksum of 0 is
/// written as the other form of 0, which TCP takes, too.
fn write_checksum(message: &mut [u8], at: usize, sum: u16) {
    let sum = if sum == 0 { 0xffff } else { sum };
    message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
