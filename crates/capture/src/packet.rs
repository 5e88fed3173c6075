//! One packet, or the record of a dropped packet, as read from a capture ring. The principal type
//! is [`Packet`].

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::link::Link;
use abi::capture::{CaptureRecord, PACKET_MAX, WORDS_MAX, kind, path, record_flag};
use abi::layout::Record;
use abi::reason::{DropRecord, clean};
use wire::Headers;
use wire::icrc::{Envelope, LEN as ICRC};

/// Bytes of the shortest transport packet: a BTH and an ICRC.
const SHORTEST: usize = 12 + ICRC;

/// A program, as the agent describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The process id, or 0 if it is not visible.
    pub pid: u32,
    /// The name, or empty if it is unknown.
    pub comm: Arc<str>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.comm {
            "" => write!(f, "{}", self.pid),
            comm => write!(f, "{} ({comm})", self.pid),
        }
    }
}

/// The path of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Shared memory between two programs of one agent.
    Lane {
        /// The lane's number.
        lane: u32,
        /// The sender.
        from: Process,
        /// The program at the other end.
        to: Process,
    },
    /// The packet left for another host.
    Out(Process),
    /// The packet came from another host.
    In(Process),
    /// From the agent to itself: a message of the connection manager between two ids of this agent.
    Inside(Process),
    /// A management datagram that an InfiniBand port has sent.
    LinkOut(Process),
    /// A management datagram that has come to an InfiniBand port.
    LinkIn(Process),
    /// No path: the packet was dropped before it left, or it is unknown which packet it was.
    Nowhere(Process),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lane { lane, from, to } => write!(f, "lane {lane}, process {from} → {to}"),
            Self::Out(process) => write!(f, "wire, out, process {process}"),
            Self::In(process) => write!(f, "wire, in, process {process}"),
            Self::Inside(process) => write!(f, "inside the agent, process {process}"),
            Self::LinkOut(process) => write!(f, "link, out, process {process}"),
            Self::LinkIn(process) => write!(f, "link, in, process {process}"),
            Self::Nowhere(process) => write!(f, "process {process}"),
        }
    }
}

/// How the direction of a TCP connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The sender sends no more.
    Finish,
    /// The connection is reset.
    Reset,
}

/// What a packet of iWARP has besides its bytes, which are a part of the byte stream of a TCP
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Destination port.
    pub to_port: u16,
    /// The direction ends behind the bytes.
    pub end: Option<End>,
    /// The bytes begin inside of a frame.
    pub inside: bool,
    /// The QP that the bytes are for, or 0 if it is unknown.
    pub dest_qp: u32,
}

impl Tcp {
    /// The TCP segment of a record, or `None` if the packet is not one of iWARP.
    fn of(record: &CaptureRecord) -> Option<Self> {
        let has = |flag: u16| record.flags & flag != 0;
        let end = match () {
            () if has(record_flag::RESET) => Some(End::Reset),
            () if has(record_flag::FIN) => Some(End::Finish),
            () => None,
        };
        let (to_port, inside, dest_qp) = (record.id, has(record_flag::INSIDE), record.dest_qp);
        has(record_flag::TCP).then_some(Self { to_port, end, inside, dest_qp })
    }
}

/// A captured packet, or the record of a dropped packet that was not captured.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The device. `None` for packets of the agent itself that belong to no device.
    pub device: Option<Arc<str>>,
    /// The port of the device; 0 if it is unknown.
    pub port: u8,
    /// The InfiniBand link. `None`: the packet is one of RoCEv2, or of iWARP.
    pub link: Option<Link>,
    /// The TCP segment, or `None` if the packet is not one of iWARP.
    pub tcp: Option<Tcp>,
    /// Its path.
    pub path: Path,
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// UDP or TCP source port.
    pub from_port: u16,
    /// IPv4 identification.
    pub id: u16,
    /// Traffic class (IPv4: TOS).
    pub traffic_class: u8,
    /// Hop limit (IPv4: TTL).
    pub hop_limit: u8,
    /// The sending QP, or 0 if it is unknown. A packet does not contain it.
    pub src_qp: u32,
    /// The bytes from the BTH to the ICRC, or the bytes of a TCP segment, as far as they were kept.
    pub bytes: Vec<u8>,
    /// The length of the whole packet.
    pub len: usize,
    /// The drop, if the packet was dropped.
    pub dropped: Option<DropRecord>,
    /// More information, for example about a fault rule.
    pub note: String,
}

impl Packet {
    /// Parses a record of a capture ring. `None`: the record makes no sense.
    pub(crate) fn read(
        bytes: &[u8],
        path: impl FnOnce(&CaptureRecord) -> Path,
        device: impl FnOnce(&CaptureRecord) -> Option<Arc<str>>,
    ) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(size_of::<CaptureRecord>())?;
        let record = CaptureRecord::read(head)?;
        let (kept, words) = rest.split_at_checked(record.kept as usize)?;
        let words = words.get(..record.words as usize)?;
        let len = record.len as usize;
        if kept.len() > len || len > PACKET_MAX + ICRC {
            return None;
        }
        let mut packet = Self {
            time: record.time,
            device: device(&record),
            port: record.port,
            link: Link::of(&record),
            tcp: Tcp::of(&record),
            path: path(&record),
            from: Ipv6Addr::from(record.from).to_canonical(),
            to: Ipv6Addr::from(record.to).to_canonical(),
            from_port: record.from_port,
            id: if Tcp::of(&record).is_some() { 0 } else { record.id },
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit,
            src_qp: record.src_qp,
            bytes: kept.to_vec(),
            len,
            dropped: None,
            note: clean(&String::from_utf8_lossy(words), WORDS_MAX),
        };
        match record.kind {
            kind::PACKET if record.flags & record_flag::UNSEALED != 0 => packet.seal(&record),
            kind::PACKET => {}
            kind::DROP => {
                packet.dropped = Some(DropRecord {
                    cause: record.cause,
                    qpn: record.qpn,
                    count: 1,
                    time: record.time,
                    got: record.got,
                    expected: record.expected,
                    address: record.from,
                    src_qp: record.src_qp,
                    dest_qp: record.dest_qp,
                    psn: record.psn,
                    opcode: record.opcode,
                });
                (packet.bytes, packet.len, packet.tcp) = (Vec::new(), 0, None);
            }
            _ => return None,
        }
        Some(packet)
    }

    /// Gives a packet of a lane the ICRC that it would have on the wire.
    fn seal(&mut self, record: &CaptureRecord) {
        if self.bytes.len() + ICRC == self.len {
            let envelope = || Envelope::new(&record.from, &record.to, record.from_port);
            let icrc = match &self.link {
                Some(link) => link.icrc(self, &self.bytes),
                None => envelope().icrc(self.id, &self.bytes),
            };
            self.bytes.extend_from_slice(&icrc);
        }
    }

    /// Whether there is a packet. Otherwise only its drop is known.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !self.bytes.is_empty() || self.tcp.is_some()
    }

    /// Whether the whole packet was kept.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.len
    }

    /// The headers, if this is a transport packet.
    #[must_use]
    pub fn headers(&self) -> Option<Headers> {
        if self.tcp.is_some() {
            return None;
        }
        Headers::parse(&self.bytes).ok()
    }

    /// The payload as far as it was kept, and the length of the whole payload.
    #[must_use]
    pub fn payload(&self) -> (&[u8], usize) {
        let Some(headers) = self.headers().filter(|_| self.len >= SHORTEST) else { return (&[], 0) };
        let len = self.len.saturating_sub(headers.len() + usize::from(headers.pad) + ICRC);
        let rest = &self.bytes[headers.len()..];
        (&rest[..rest.len().min(len)], len)
    }

    /// Removes the payload.
    pub fn strip(&mut self) {
        let shortest = if self.tcp.is_some() { iwarp::startup::HEADER_LEN } else { SHORTEST };
        let headers = self.headers().map_or(shortest, |headers| headers.len());
        self.bytes.truncate(headers);
    }

    /// The destination QP. `None` if this is not a transport packet.
    #[must_use]
    pub fn dest_qp(&self) -> Option<u32> {
        if let Some(tcp) = &self.tcp {
            return Some(tcp.dest_qp);
        }
        match &self.dropped {
            Some(dropped) if self.bytes.is_empty() => Some(dropped.dest_qp),
            _ => self.bytes.get(5..8).map(|qpn| u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]])),
        }
    }

    /// The programs that are known to be involved.
    #[must_use]
    pub fn processes(&self) -> [&Process; 2] {
        match &self.path {
            Path::Lane { from, to, .. } => [from, to],
            Path::Out(process) | Path::In(process) | Path::LinkOut(process) | Path::LinkIn(process) => {
                [process, process]
            }
            Path::Inside(process) | Path::Nowhere(process) => [process, process],
        }
    }

    /// Path, sender and fate in words: the packet's comment in a file.
    #[must_use]
    pub fn comment(&self) -> String {
        let mut text = self.path.to_string();
        if self.src_qp != 0 {
            text += &format!("; from QP {:#x}", self.src_qp);
        }
        if !self.note.is_empty() {
            text += &format!("; {}", self.note);
        }
        if let Some(dropped) = &self.dropped {
            text += &format!("; {}", dropped.sentence());
        }
        text
    }

    /// Whether a drop record is about this packet.
    pub(crate) fn is_what(&self, dropped: &DropRecord) -> bool {
        let psn = self.bytes.get(9..12).map(|psn| u32::from_be_bytes([0, psn[0], psn[1], psn[2]]));
        self.dropped.is_none()
            && self.tcp.is_none()
            && !self.bytes.is_empty()
            && self.dest_qp().unwrap_or(0) == dropped.dest_qp
            && psn.unwrap_or(0) == dropped.psn
            && u32::from(self.bytes[0]) == dropped.opcode
            && self.time <= dropped.time
    }
}

/// The path in a record. `own` is the program that wrote the record. `others` finds programs by
/// their engines.
pub(crate) fn path_of(record: &CaptureRecord, own: &Process, others: impl FnOnce(u32) -> Option<Process>) -> Path {
    let lane = record.lane;
    let peer = || others(record.peer).unwrap_or(Process { pid: record.peer_pid, comm: "".into() });
    match record.path {
        path::LANE_OUT => Path::Lane { lane, from: own.clone(), to: peer() },
        path::LANE_IN => Path::Lane { lane, from: peer(), to: own.clone() },
        path::WIRE_OUT => Path::Out(own.clone()),
        path::WIRE_IN => Path::In(own.clone()),
        path::INSIDE => Path::Inside(own.clone()),
        path::LINK_OUT => Path::LinkOut(own.clone()),
        path::LINK_IN => Path::LinkIn(own.clone()),
        _ => Path::Nowhere(own.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segments;
    use crate::{Filter, frame, words};

    /// Whatever bytes a program writes, they are shown or ignored, and they send no control codes
    /// to a terminal.
    #[test]
    fn nonsense_is_survived() {
        let whole = |record: CaptureRecord, rest: &[u8]| [record.bytes(), rest].concat();
        let lens = [0, 1, 3, 16, 40, 100, 65_507, 65_511, 65_512, u32::MAX];
        let (mut read, filter) = (0, Filter::parse(&["qp 1 or ack or nak or opcode send".to_owned()]).expect("words"));
        for kind in 0..4 {
            for (len, kept) in lens.into_iter().flat_map(|len| lens.map(|kept| (len, kept))) {
                for byte in [0, 0x04, 0x11, 0x64, 0xc0, 0xff] {
                    let record = CaptureRecord {
                        kind,
                        len,
                        kept,
                        words: 2,
                        flags: (len % 128) as u16,
                        mtu: (kept % 7) as u8,
                        cause: kept,
                        path: len,
                        ..CaptureRecord::default()
                    };
                    let rest = [&vec![byte; (kept as usize).min(70_000)][..], b"\x1b["].concat();
                    let own = Process { pid: 1, comm: "one".into() };
                    let path = |record: &CaptureRecord| path_of(record, &own, |_| None);
                    let Some(mut packet) = Packet::read(&whole(record, &rest), path, |_| None) else { continue };
                    read += 1;
                    for _ in 0..2 {
                        let said = [words::line(&packet), words::lines(&packet, false), packet.comment()].concat();
                        assert!(!said.contains('\u{1b}'), "{said}");
                        assert!(words::json(&packet).is_object());
                        let frames = Segments::default().frames(&packet, 1, None);
                        for (bytes, len) in frames.into_iter().chain([frame(&packet)]) {
                            assert!(bytes.len() <= len);
                        }
                        for (bytes, len) in packet.link.iter().flat_map(|link| link.frames(&packet)) {
                            assert!(bytes.len() <= len);
                        }
                        let _ = filter.wants(&packet);
                        packet.strip();
                    }
                }
            }
        }
        assert!(read > 100, "{read} of them make sense");
        for len in 0..size_of::<CaptureRecord>() {
            assert!(Packet::read(&vec![0; len], |_| Path::Nowhere(Process::default()), |_| None).is_none());
        }
    }
}
