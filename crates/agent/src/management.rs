//! Management datagrams between agents: QP 1 of every address, which belongs to the agent (IBA
//! 13.5.3, A17.9).
//!
//! The receiving thread checks a datagram as far as it can without parsing the message: ICRC,
//! opcode, source QP and length. Then the datagram waits in an [`Inlet`], which is bounded,
//! until the agent's thread takes it. Datagrams leave through one socket per address, or through
//! the network of the program that embeds the agent. The principal types are [`Inlet`] and
//! [`Outlets`].

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::capture::{CaptureRecord, path, record_flag};
use engine::capture::CaptureHook;
use engine::{Network, Outlet};
use parking_lot::Mutex;
use protocol::cm::Origin;
use shm::Notifier;
use udp::Outgoing;
use wire::icrc::{self, Envelope};
use wire::mad::{GSI_QKEY, MAD_LEN, Mad};
use wire::{Deth, Headers, Opcode, Operation, Psn, Qpn, Transport};

use crate::capture::watchers::Watchers;
use crate::gids::ip_of;
use crate::ids::PortId;

/// Maximum number of datagrams that wait for the agent's thread. Further ones are lost, and their
/// senders repeat them.
const WAITING_MAX: usize = 4096;
/// Length of BTH and DETH.
const HEADERS_LEN: usize = 20;
/// Length of a whole packet, from the BTH to the ICRC.
const PACKET_LEN: usize = HEADERS_LEN + MAD_LEN + icrc::LEN;
/// The UDP source port: one of RoCEv2's range.
pub(crate) const SOURCE_PORT: u16 = 0xc100;

/// A management datagram that came from another host.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedMad {
    /// The sender's address, as the sender claims.
    pub(crate) from: [u8; 16],
    /// The own address at which it arrived.
    pub(crate) to: [u8; 16],
    /// Its UDP source port.
    pub(crate) from_port: u16,
    /// The identification in its IPv4 header.
    pub(crate) id: u16,
    /// BTH and DETH, as they arrived.
    pub(crate) head: [u8; HEADERS_LEN],
    /// The LID of the router that it came from, and its service level; zeros if it came by no
    /// router of a topology.
    pub(crate) router: (u16, u8),
    /// The message.
    pub(crate) mad: Mad,
}

impl ReceivedMad {
    /// Its PSN.
    pub(crate) fn psn(&self) -> u32 {
        u32::from_be_bytes([0, self.head[9], self.head[10], self.head[11]])
    }

    /// Its partition.
    pub(crate) fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.head[2], self.head[3]])
    }

    /// Its Q_Key, which may be wrong.
    pub(crate) fn qkey(&self) -> u32 {
        u32::from_be_bytes([self.head[12], self.head[13], self.head[14], self.head[15]])
    }

    /// The packet as it arrived.
    pub(crate) fn packet(&self) -> [u8; PACKET_LEN] {
        let Self { from, to, from_port, id, head, mad, .. } = self;
        sealed(&Envelope::new(from, to, *from_port), *id, head, mad)
    }
}

/// The queue of datagrams for QP 1. Any thread adds to it; one thread takes from it.
#[derive(Debug)]
pub(crate) struct Inlet {
    queue: Mutex<VecDeque<ReceivedMad>>,
    notifier: Notifier,
    lost: AtomicU64,
    capture_hook: Arc<CaptureHook>,
}

impl Inlet {
    /// Creates an empty inlet. `capture_hook` sees its packets.
    pub(crate) fn new(capture_hook: Arc<CaptureHook>) -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), notifier: Notifier::new()?, lost: AtomicU64::new(0), capture_hook })
    }

    /// Takes datagrams for QP 0 or 1. Returns how many of them were invalid.
    pub(crate) fn take(&self, from: [u8; 16], from_port: u16, to: [u8; 16], segment: usize, bytes: &[u8]) -> u64 {
        let envelope = Envelope::new(&from, &to, from_port);
        let mut useless = 0;
        for datagram in bytes.chunks(segment.max(1)) {
            let found = parse(&envelope, datagram);
            if self.capture_hook.is_on() {
                let id = found.map_or(0, |(id, ..)| id);
                let about = CaptureRecord { path: path::WIRE_IN, from, to, from_port, id, ..CaptureRecord::default() };
                let words = if found.is_some() { "" } else { "dropped: it is no management datagram, or is damaged" };
                self.capture_hook.packet(&about, datagram, words);
            }
            match found {
                Some((id, head, mad)) => self.push(ReceivedMad { from, to, from_port, id, head, router: (0, 0), mad }),
                None => useless += 1,
            }
        }
        useless
    }

    fn push(&self, arrived: ReceivedMad) {
        let mut queue = self.queue.lock();
        if queue.len() >= WAITING_MAX || queue.try_reserve(1).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(arrived);
        if queue.len() == 1 {
            self.notifier.notify();
        }
    }

    /// The notifier becomes readable when a datagram arrives.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Whether a datagram waits.
    pub(crate) fn has_some(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// Takes the first waiting datagrams, `most` at most. If more wait, the notifier stays
    /// readable.
    pub(crate) fn take_some(&self, most: usize) -> VecDeque<ReceivedMad> {
        self.notifier.drain();
        let mut queue = self.queue.lock();
        if queue.len() <= most {
            return std::mem::take(&mut *queue);
        }
        self.notifier.notify();
        // Takes no more than one piece of work handles.
        queue.drain(..most).collect()
    }

    /// How many datagrams were lost because the queue was full.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The management datagram in a packet, if it is a valid one for QP 1, with its identification and
/// headers.
fn parse(envelope: &Envelope, packet: &[u8]) -> Option<(u16, [u8; HEADERS_LEN], Mad)> {
    if packet.len() != PACKET_LEN {
        return None;
    }
    let headers = Headers::parse(packet).ok()?;
    let expected = headers.opcode == Opcode::new(Transport::Ud, Operation::SendOnly)
        && headers.dest_qp == Qpn::GSI
        && headers.deth.src_qp == Qpn::GSI
        && headers.pad == 0;
    if !expected {
        return None;
    }
    let id = envelope.check(packet, 0)?;
    let (head, rest) = packet.split_first_chunk()?;
    Some((id, *head, *rest.first_chunk()?))
}

/// A packet for QP 1, from the BTH to the ICRC.
pub(crate) fn emit(envelope: &Envelope, pkey: u16, psn: u32, mad: &Mad) -> Option<[u8; PACKET_LEN]> {
    let headers = Headers {
        opcode: Opcode::new(Transport::Ud, Operation::SendOnly),
        dest_qp: Qpn::GSI,
        psn: Psn::new(psn),
        pkey,
        deth: Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI },
        ..Headers::default()
    };
    let mut head = [0; HEADERS_LEN];
    headers.emit(&mut head).ok()?;
    Some(sealed(envelope, 0, &head, mad))
}

/// Appends a datagram and the ICRC to the headers.
fn sealed(envelope: &Envelope, id: u16, head: &[u8; HEADERS_LEN], mad: &Mad) -> [u8; PACKET_LEN] {
    let mut packet = [0; PACKET_LEN];
    packet[..HEADERS_LEN].copy_from_slice(head);
    packet[HEADERS_LEN..HEADERS_LEN + MAD_LEN].copy_from_slice(mad);
    let icrc = envelope.icrc(id, &packet[..HEADERS_LEN + MAD_LEN]);
    packet[HEADERS_LEN + MAD_LEN..].copy_from_slice(&icrc);
    packet
}

/// The addresses and header fields of a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addressing {
    /// The own address.
    pub(crate) from: [u8; 16],
    /// Its interface.
    pub(crate) ifindex: u32,
    /// The other host's address.
    pub(crate) to: [u8; 16],
    pub(crate) traffic_class: u8,
    /// The priority of its service level; `None`: Linux chooses.
    pub(crate) priority: Option<u8>,
    pub(crate) hop_limit: u8,
    /// The partition.
    pub(crate) pkey: u16,
    /// The link, if the datagram stays inside of this agent and its port is one of InfiniBand.
    pub(crate) link: Option<OnLink>,
}

/// The link of a datagram between two InfiniBand ports of this agent, as captures show it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnLink {
    /// The port that the datagram leaves.
    pub(crate) at: PortId,
    pub(crate) slid: u16,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
}

impl Addressing {
    /// The addressing of a datagram that this agent sent to itself.
    pub(crate) fn of(origin: &Origin, link: Option<OnLink>) -> Self {
        let Origin { source, destination, traffic_class, hop_limit, pkey, .. } = *origin;
        Self { from: source, ifindex: 0, to: destination, traffic_class, priority: None, hop_limit, pkey, link }
    }
}

/// What captures show with a datagram.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CaptureNote<'a> {
    /// The user who owns it, or 0 for none.
    pub(crate) owner: u32,
    /// What a fault rule did to it.
    pub(crate) words: &'a str,
}

/// The sockets for sending, by address and interface.
pub(crate) struct Outlets {
    open: HashMap<([u8; 16], u32), Arc<dyn Outlet>>,
    /// Replaces UDP.
    network: Option<Arc<dyn Network>>,
    /// There are no other hosts.
    off: bool,
    psn: u32,
    /// The captures.
    watchers: Watchers,
}

impl Outlets {
    /// Creates the outlets. If `off`, nothing leaves. `watchers` show the datagrams to captures.
    pub(crate) fn new(off: bool, watchers: Watchers) -> Self {
        Self { open: HashMap::new(), network: None, off, psn: 0, watchers }
    }

    /// The captures.
    pub(crate) fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Sends through `network` from now on.
    pub(crate) fn set_network(&mut self, network: Arc<dyn Network>) {
        self.open.clear();
        (self.network, self.off) = (Some(network), false);
    }

    /// Closes the sockets, because addresses have changed.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
    }

    /// Sends one datagram. If sending fails, the protocol's timer repeats the datagram.
    pub(crate) fn send(&mut self, addressing: &Addressing, mad: &Mad, told: &CaptureNote<'_>) -> io::Result<()> {
        if self.off {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        let key = (addressing.from, addressing.ifindex);
        let outlet = match self.open.get(&key) {
            Some(outlet) => Arc::clone(outlet),
            None => {
                let outlet = self.open_outlet(addressing)?;
                self.open.insert(key, Arc::clone(&outlet));
                outlet
            }
        };
        self.psn = self.psn.wrapping_add(1);
        let envelope = Envelope::new(&addressing.from, &addressing.to, outlet.port());
        let packet = emit(&envelope, addressing.pkey, self.psn, mad).ok_or(io::ErrorKind::InvalidData)?;
        let mut to = SocketAddr::new(ip_of(&addressing.to), udp::PORT);
        if let SocketAddr::V6(v6) = &mut to {
            v6.set_scope_id(scope((*v6.ip()).into(), addressing.ifindex));
        }
        if self.watchers.are_there() {
            self.show(path::WIRE_OUT, addressing, outlet.port(), &packet, told);
        }
        let sent = outlet.send(&Outgoing {
            to,
            traffic_class: addressing.traffic_class,
            service_level: 0,
            priority: addressing.priority,
            hop_limit: addressing.hop_limit,
            segment: 0,
            interface: 0,
            connected: false,
            bytes: &packet,
        });
        if sent.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            self.open.remove(&key);
        }
        sent
    }

    /// Shows captures a datagram that is not sent; `path` is the path that it would have taken.
    /// Returns the PSN with which the datagram is shown.
    pub(crate) fn show_only(&mut self, path: u32, addressing: &Addressing, mad: &Mad, told: &CaptureNote<'_>) -> u32 {
        if self.watchers.are_there() {
            self.psn = self.psn.wrapping_add(1);
            if let Some(packet) =
                emit(&Envelope::new(&addressing.from, &addressing.to, SOURCE_PORT), addressing.pkey, self.psn, mad)
            {
                self.show(path, addressing, SOURCE_PORT, &packet, told);
            }
        }
        self.psn
    }

    fn show(&self, path: u32, addressing: &Addressing, from_port: u16, packet: &[u8], told: &CaptureNote<'_>) {
        let about = CaptureRecord { path, ..record(addressing, from_port) };
        let packet = shown(&about, packet);
        self.watchers.show_root(&about, packet, told.words);
        self.watchers.show_user(told.owner, &about, packet, told.words);
    }

    fn open_outlet(&self, addressing: &Addressing) -> io::Result<Arc<dyn Outlet>> {
        if let Some(network) = &self.network {
            return network.open(addressing.from, addressing.ifindex, SOURCE_PORT);
        }
        let ip = ip_of(&addressing.from);
        Ok(Arc::new(udp::Socket::sender(ip, scope(ip, addressing.ifindex), SOURCE_PORT)?))
    }
}

/// The capture record of a datagram, as far as its addressing determines it.
pub(crate) fn record(addressing: &Addressing, from_port: u16) -> CaptureRecord {
    let Addressing { from, to, traffic_class, hop_limit, .. } = *addressing;
    let src_qp = Qpn::GSI.value();
    let about = CaptureRecord { src_qp, from, to, from_port, traffic_class, hop_limit, ..CaptureRecord::default() };
    let Some(OnLink { at, slid, dlid, sl }) = addressing.link else { return about };
    let (device, flags) = (at.device as u32 + 1, record_flag::LINK | record_flag::UNSEALED);
    CaptureRecord { device, port: at.port, flags, slid, dlid, sl, ..about }
}

/// What captures show of a packet: its ICRC is not that of a link.
pub(crate) fn shown<'a>(about: &CaptureRecord, packet: &'a [u8]) -> &'a [u8] {
    let sealed = about.flags & record_flag::UNSEALED == 0;
    if sealed { packet } else { &packet[..packet.len().saturating_sub(icrc::LEN)] }
}

/// The scope id of an address: link-local addresses need one.
pub(crate) fn scope(ip: IpAddr, ifindex: u32) -> u32 {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => ifindex,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    const B: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];

    #[test]
    fn a_datagram_goes_through_and_anything_else_does_not() {
        let inlet = Inlet::new(CaptureHook::new()).expect("an inlet");
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        let packet = emit(&Envelope::new(&A, &B, 0xc100), 0xffff, 7, &mad).expect("whole");
        assert_eq!(packet[..20], [0x64, 0x00, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 7, 0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        let two = [packet, packet].concat();
        assert_eq!(inlet.take(A, 0xc100, B, packet.len(), &two), 0);
        let arrived = inlet.take_some(usize::MAX);
        assert_eq!(arrived.len(), 2);
        assert_eq!((arrived[0].from, arrived[0].to, arrived[0].mad), (A, B, mad));
        assert_eq!(inlet.take(A, 0xc101, B, packet.len(), &packet), 1, "from another port");
        for at in 0..packet.len() {
            let mut damaged = packet;
            damaged[at] ^= 0x40;
            // Routers may change the congestion marks.
            let passes = u64::from(at != 4);
            assert_eq!(inlet.take(A, 0xc100, B, damaged.len(), &damaged), passes, "byte {at}");
        }
        for len in 1..packet.len() {
            assert_eq!(inlet.take(A, 0xc100, B, len, &packet[..len]), 1);
        }
    }

    #[test]
    fn waiting_management_datagrams_are_bounded() {
        let inlet = Inlet::new(CaptureHook::new()).expect("an inlet");
        let packet = emit(&Envelope::new(&A, &B, 0xc100), 0xffff, 7, &[0; MAD_LEN]).expect("whole");
        for _ in 0..WAITING_MAX + 3 {
            inlet.take(A, 0xc100, B, packet.len(), &packet);
        }
        assert_eq!((inlet.take_some(usize::MAX).len(), inlet.lost()), (WAITING_MAX, 3));
        assert!(inlet.take_some(usize::MAX).is_empty());
    }
}
