//! Management datagrams between agents: QP 1 of every address, which is the agent's own (IBA 13.5.3, A17.9).
//!
//! What comes in is checked where it is received, as far as it can be without knowing what it says: ICRC, opcode, Q_Key,
//! source QP, length; it waits in an [`Inlet`], which is bounded, until the agent's thread takes it. What goes out leaves
//! from a socket per address, or through the network of whoever embeds the agent. The principal types are [`Inlet`] and
//! [`Outlets`].

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::capture::{CaptureRecord, path};
use engine::capture::Tap;
use engine::{Network, Outlet};
use parking_lot::Mutex;
use shm::Doorbell;
use udp::Outgoing;
use wire::icrc::{self, Envelope};
use wire::mad::{GSI_QKEY, MAD_LEN, Mad};
use wire::{Deth, Headers, Opcode, Operation, Psn, Qpn, Transport};

use super::locals::ip_of;

/// Datagrams that wait for the agent's thread, at most; what comes beyond is lost, and its sender tries again.
const WAITING_MAX: usize = 4096;
/// BTH and DETH.
const HEADERS_LEN: usize = 20;
/// A whole packet, from the BTH to the ICRC.
const PACKET_LEN: usize = HEADERS_LEN + MAD_LEN + icrc::LEN;
/// The source port: any of RoCEv2's.
const SOURCE_PORT: u16 = 0xc100;
/// The default P_Key without its bit of membership.
const PKEY_BASE: u16 = 0x7fff;

/// A management datagram that came from another host.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// Who says to have sent it.
    pub(crate) from: [u8; 16],
    /// The address of ours that it came to.
    pub(crate) to: [u8; 16],
    /// What it says.
    pub(crate) mad: Mad,
}

/// Where datagrams for QP 1 wait. Any thread puts them in, one takes them out.
#[derive(Debug)]
pub(crate) struct Inlet {
    queue: Mutex<VecDeque<Arrived>>,
    bell: Doorbell,
    lost: AtomicU64,
    tap: Arc<Tap>,
}

impl Inlet {
    /// An empty one, of which `tap` hears.
    pub(crate) fn new(tap: Arc<Tap>) -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), bell: Doorbell::new()?, lost: AtomicU64::new(0), tap })
    }

    /// Takes datagrams for QP 0 or 1. The number of those that are of no use.
    pub(crate) fn take(&self, from: [u8; 16], from_port: u16, to: [u8; 16], segment: usize, bytes: &[u8]) -> u64 {
        let envelope = Envelope::new(&from, &to, from_port);
        let mut useless = 0;
        for datagram in bytes.chunks(segment.max(1)) {
            let found = parse(&envelope, datagram);
            if self.tap.is_on() {
                let id = envelope.check(datagram, 0).unwrap_or(0);
                let about = CaptureRecord { path: path::WIRE_IN, from, to, from_port, id, ..CaptureRecord::default() };
                let words = if found.is_some() { "" } else { "dropped: it is no management datagram, or is damaged" };
                self.tap.packet(&about, datagram, words);
            }
            match found {
                Some(mad) => self.push(Arrived { from, to, mad }),
                None => useless += 1,
            }
        }
        useless
    }

    fn push(&self, arrived: Arrived) {
        let mut queue = self.queue.lock();
        if queue.len() >= WAITING_MAX {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(arrived);
        if queue.len() == 1 {
            self.bell.ring();
        }
    }

    /// What becomes readable when something comes.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// All that waits.
    pub(crate) fn take_all(&self) -> VecDeque<Arrived> {
        self.bell.drain();
        std::mem::take(&mut *self.queue.lock())
    }

    /// How many did not fit.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The management datagram in a packet, if it is one for QP 1.
fn parse(envelope: &Envelope, packet: &[u8]) -> Option<Mad> {
    if packet.len() != PACKET_LEN {
        return None;
    }
    let headers = Headers::parse(packet).ok()?;
    let expected = headers.opcode == Opcode::new(Transport::Ud, Operation::SendOnly)
        && headers.dest_qp == Qpn::GSI
        && headers.deth.src_qp == Qpn::GSI
        && headers.deth.qkey == GSI_QKEY
        && headers.pkey & PKEY_BASE == PKEY_BASE
        && headers.pad == 0;
    if !expected {
        return None;
    }
    envelope.check(packet, 0)?;
    packet.get(HEADERS_LEN..HEADERS_LEN + MAD_LEN)?.try_into().ok()
}

/// A packet for QP 1, from the BTH to the ICRC.
fn emit(envelope: &Envelope, psn: u32, mad: &Mad) -> Option<[u8; PACKET_LEN]> {
    let headers = Headers {
        opcode: Opcode::new(Transport::Ud, Operation::SendOnly),
        dest_qp: Qpn::GSI,
        psn: Psn::new(psn),
        pkey: 0xffff,
        deth: Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI },
        ..Headers::default()
    };
    let mut packet = [0; PACKET_LEN];
    headers.emit(&mut packet).ok()?;
    packet[HEADERS_LEN..HEADERS_LEN + MAD_LEN].copy_from_slice(mad);
    let icrc = envelope.icrc(0, &packet[..HEADERS_LEN + MAD_LEN]);
    packet[HEADERS_LEN + MAD_LEN..].copy_from_slice(&icrc);
    Some(packet)
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// Our address.
    pub(crate) from: [u8; 16],
    /// Its interface.
    pub(crate) ifindex: u32,
    /// The other host's.
    pub(crate) to: [u8; 16],
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// The ways out, by address and interface.
pub(crate) struct Outlets {
    open: HashMap<([u8; 16], u32), Arc<dyn Outlet>>,
    /// In UDP's place.
    network: Option<Arc<dyn Network>>,
    /// There is no other host.
    off: bool,
    psn: u32,
    tap: Arc<Tap>,
}

impl Outlets {
    /// `off`: nothing leaves. What does, `tap` hears of.
    pub(crate) fn new(off: bool, tap: Arc<Tap>) -> Self {
        Self { open: HashMap::new(), network: None, off, psn: 0, tap }
    }

    /// Sends through `network` from now on.
    pub(crate) fn set_network(&mut self, network: Arc<dyn Network>) {
        self.open.clear();
        (self.network, self.off) = (Some(network), false);
    }

    /// Forgets the sockets: addresses have changed.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
    }

    /// Sends one datagram. What is not sent now, a timer sends again.
    pub(crate) fn send(&mut self, way: &Way, mad: &Mad) -> io::Result<()> {
        if self.off {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        let key = (way.from, way.ifindex);
        let outlet = match self.open.get(&key) {
            Some(outlet) => Arc::clone(outlet),
            None => {
                let outlet = self.open_outlet(way)?;
                self.open.insert(key, Arc::clone(&outlet));
                outlet
            }
        };
        self.psn = self.psn.wrapping_add(1);
        let envelope = Envelope::new(&way.from, &way.to, outlet.port());
        let packet = emit(&envelope, self.psn, mad).ok_or(io::ErrorKind::InvalidData)?;
        let mut to = SocketAddr::new(ip_of(&way.to), udp::PORT);
        if let SocketAddr::V6(v6) = &mut to {
            v6.set_scope_id(scope((*v6.ip()).into(), way.ifindex));
        }
        if self.tap.is_on() {
            self.show(path::WIRE_OUT, way, outlet.port(), &packet);
        }
        let sent = outlet.send(&Outgoing {
            to,
            traffic_class: way.traffic_class,
            hop_limit: way.hop_limit,
            segment: 0,
            interface: 0,
            settled: false,
            bytes: &packet,
        });
        if sent.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            self.open.remove(&key);
        }
        sent
    }

    /// Shows a datagram that this agent sends to itself, without a network, where somebody captures.
    pub(crate) fn pass(&mut self, way: &Way, mad: &Mad) {
        if self.tap.is_on() {
            self.psn = self.psn.wrapping_add(1);
            if let Some(packet) = emit(&Envelope::new(&way.from, &way.to, SOURCE_PORT), self.psn, mad) {
                self.show(path::INSIDE, way, SOURCE_PORT, &packet);
            }
        }
    }

    fn show(&self, path: u32, way: &Way, from_port: u16, packet: &[u8]) {
        let Way { from, to, traffic_class, hop_limit, .. } = *way;
        let src_qp = Qpn::GSI.value();
        let about =
            CaptureRecord { path, src_qp, from, to, from_port, traffic_class, hop_limit, ..CaptureRecord::default() };
        self.tap.packet(&about, packet, "");
    }

    fn open_outlet(&self, way: &Way) -> io::Result<Arc<dyn Outlet>> {
        if let Some(network) = &self.network {
            return network.open(way.from, way.ifindex, SOURCE_PORT);
        }
        let ip = ip_of(&way.from);
        Ok(Arc::new(udp::Socket::sender(ip, scope(ip, way.ifindex), SOURCE_PORT)?))
    }
}

/// The scope that an address needs beside it: link-local ones mean something on one link only.
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
        let inlet = Inlet::new(Tap::new()).expect("an inlet");
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        let packet = emit(&Envelope::new(&A, &B, 0xc100), 7, &mad).expect("whole");
        assert_eq!(packet[..20], [0x64, 0x00, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 7, 0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        let two = [packet, packet].concat();
        assert_eq!(inlet.take(A, 0xc100, B, packet.len(), &two), 0);
        let arrived = inlet.take_all();
        assert_eq!(arrived.len(), 2);
        assert_eq!((arrived[0].from, arrived[0].to, arrived[0].mad), (A, B, mad));
        assert_eq!(inlet.take(A, 0xc101, B, packet.len(), &packet), 1, "from another port");
        for at in 0..packet.len() {
            let mut damaged = packet;
            damaged[at] ^= 0x40;
            // The congestion marks are the way's to change.
            let passes = u64::from(at != 4);
            assert_eq!(inlet.take(A, 0xc100, B, damaged.len(), &damaged), passes, "byte {at}");
        }
        for len in 1..packet.len() {
            assert_eq!(inlet.take(A, 0xc100, B, len, &packet[..len]), 1);
        }
    }

    #[test]
    fn what_waits_is_bounded() {
        let inlet = Inlet::new(Tap::new()).expect("an inlet");
        let packet = emit(&Envelope::new(&A, &B, 0xc100), 7, &[0; MAD_LEN]).expect("whole");
        for _ in 0..WAITING_MAX + 3 {
            inlet.take(A, 0xc100, B, packet.len(), &packet);
        }
        assert_eq!((inlet.take_all().len(), inlet.lost()), (WAITING_MAX, 3));
        assert!(inlet.take_all().is_empty());
    }
}
