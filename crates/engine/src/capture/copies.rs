//! Where the engine copies packets for captures: those it puts on lanes or gets from lanes and
//! hosts, and those that a fault rule drops. Batches for other hosts are copied in net/batch.rs.
//! Adds to [`Engine`] and [`Qp`].

use std::os::fd::OwnedFd;

use abi::capture::{CaptureRecord, path, record_flag};
use abi::private::LaneOut;
use abi::reason::{Cause, DropRecord};
use shm::{Sink, Source};
use wire::Headers;
use wire::grh::Network;

use super::{Ends, LinkHeaders};
use crate::access::{self, HeldRegion};
use crate::board::DevicePort;
use crate::cell::{Envelope, Origin, OutgoingRun, Packet, Path, RunHeaders};
use crate::clock;
use crate::engine::Engine;
use crate::lane::Sender;
use crate::memory::DatagramEntry;
use crate::net::datagrams::Datagrams;
use crate::put::Sent;
use crate::qp::{Inner, Lane, Qp};
use crate::special::Special;

impl Engine {
    /// A capture begins, as the agent's push says.
    pub(crate) fn begin_capture(&self, wanted: &LaneOut, fds: &[OwnedFd]) {
        let Some(ring) = fds.first() else { return };
        if let Err(error) = self.capture.begin(wanted, ring) {
            tracing::warn!("packets cannot be captured: {error}");
        }
        self.special.set(Special::CAPTURED, self.capture.is_on());
        // The reader counts packets from here on, so the program's other threads must see
        // `is_capturing` first.
        self.capture.attach(wanted.lane);
    }

    pub(crate) fn end_capture(&self, number: u32) {
        self.capture.end(number);
        self.special.set(Special::CAPTURED, self.capture.is_on());
    }

    /// A packet was dropped.
    #[cold]
    pub(crate) fn capture_drop(&self, cause: Cause, dropped: &DropRecord) {
        self.capture.dropped(cause, dropped);
    }

    /// A packet of another host has come in. `id` is its IPv4 identification, as far as known.
    #[cold]
    pub(crate) fn capture_from_host(&self, datagrams: &Datagrams, bytes: &[u8], id: u16) {
        let Datagrams { from, to, from_port, traffic_class, hop_limit, .. } = *datagrams;
        let path = path::WIRE_IN;
        let about =
            CaptureRecord { path, from, to, from_port, id, traffic_class, hop_limit, ..CaptureRecord::default() };
        self.capture.wire_packet(about, bytes);
    }

    /// A packet has come over a lane.
    #[cold]
    pub(crate) fn capture_from_lane(&self, lane: &Lane, packet: &Packet, payload: Source<'_>) {
        if !self.capture.wants_lanes_in() {
            return;
        }
        let Ok(bytes) = access::copied(payload) else { return };
        let network = packet.grh.and_then(|grh| Network::parse(&grh).ok());
        let mut ends = match network {
            Some(network) => of_network(&network),
            None => self.qps.find(packet.headers.dest_qp.value()).map_or_else(Ends::default, |qp| {
                let ours = qp.ends(&qp.lock());
                let back = |link: LinkHeaders| LinkHeaders { slid: link.dlid, dlid: link.slid, ..link };
                Ends { from: ours.to, to: ours.from, link: ours.link.map(back), ..ours }
            }),
        };
        if packet.headers.opcode.has_deth() {
            ends = self.ends_of_received(packet, ends);
        }
        let ends = Ends { qpn: packet.src_qp.value(), ..ends };
        self.capture.packet(&of_lane(lane, path::LANE_IN, &ends), &assembled(&packet.headers, &bytes), "");
    }
}

impl Engine {
    /// What the headers of an InfiniBand link say of a packet that leaves a port. `None` on
    /// Ethernet. Without a LID, the packet goes to the first LID of the port with the GID.
    fn link_of(&self, from: DevicePort, to: [u8; 16], link: LinkHeaders, path_bits: u8) -> Option<LinkHeaders> {
        if !self.board.is_infiniband(from) {
            return None;
        }
        let of_gid = || self.board.find(&to).map_or(0, |place| self.board.lid(place));
        let slid = self.board.lid(from) | u16::from(path_bits & self.board.path_bits(from));
        let dlid = if link.dlid == 0 { of_gid() } else { link.dlid };
        Some(LinkHeaders { slid, dlid, vl: self.board.virtual_lane(from, link.sl), ..link })
    }

    /// The addresses of a datagram that has come over a lane: those of its record.
    fn ends_of_received(&self, packet: &Packet, ends: Ends) -> Ends {
        let port = packet.path.port;
        let at = DevicePort { device: self.device(), port: port.into() };
        let Path { slid, dlid, sl, .. } = packet.path;
        let dlid = if dlid == 0 { self.board.lid(at) } else { dlid };
        let vl = self.board.virtual_lane(at, sl);
        let link = LinkHeaders { slid, dlid, sl, vl, is_global: packet.grh.is_some(), ..LinkHeaders::default() };
        Ends { port, link: self.board.is_infiniband(at).then_some(link), ..ends }
    }
}

impl Qp {
    /// The addresses of a connection's packets.
    #[cold]
    pub(crate) fn ends(&self, inner: &Inner) -> Ends {
        let a = &inner.attributes;
        let from = self.gid_of(inner.attributes.port_num, a.dest.sgid_index);
        let (traffic_class, hop_limit) = (a.dest.traffic_class, a.dest.hop_limit);
        let link = LinkHeaders {
            dlid: a.dest.dlid,
            sl: a.dest.sl,
            mtu: a.path_mtu,
            flow_label: a.dest.flow_label,
            is_global: a.dest.is_global != 0,
            ..LinkHeaders::default()
        };
        let link = self.engine().link_of(self.sends_from(inner), a.dest.dgid, link, a.dest.src_path_bits);
        Ends { qpn: self.qpn(), from, to: a.dest.dgid, traffic_class, hop_limit, port: a.port_num, link }
    }

    /// The addresses of a datagram.
    #[cold]
    pub(crate) fn ends_of_datagram(&self, inner: &Inner, entry: &DatagramEntry) -> Ends {
        let from = self.gid_of(inner.attributes.port_num, entry.sgid_index);
        let (traffic_class, hop_limit) = (entry.traffic_class, entry.hop_limit);
        let link = LinkHeaders {
            dlid: entry.lid,
            sl: entry.sl,
            flow_label: entry.flow_label,
            is_global: entry.dlid == 0,
            ..LinkHeaders::default()
        };
        let link = self.engine().link_of(self.sends_from(inner), entry.dgid, link, entry.src_path_bits);
        let port = inner.attributes.port_num;
        Ends { qpn: self.qpn(), from, to: entry.dgid, traffic_class, hop_limit, port, link }
    }

    fn sends_from(&self, inner: &Inner) -> DevicePort {
        DevicePort { device: self.engine().device(), port: inner.attributes.port_num.into() }
    }

    fn gid_of(&self, port: u8, index: u8) -> [u8; 16] {
        let engine = self.engine();
        engine.board.gid(engine.device(), port.into(), index.into()).unwrap_or_default()
    }

    /// Puts the packets of a run on a lane, and shows them.
    #[cold]
    pub(crate) fn put_captured(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        about: &Envelope<'_>,
        run: &OutgoingRun<'_>,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        let mut payload = vec![0; about.len.into()];
        for index in 0..run.count {
            if let Err(refusal) = self.fill(region, run.from, index * run.len, &mut Sink::from(&mut payload[..])) {
                return (index, Sent::Refused(refusal));
            }
            region.release();
            // The time before the packet leaves, and so before the time of its answer.
            let time = clock::since_1970();
            let headers = run.headers.full(index);
            let from = Origin::Bytes(&payload);
            let one = OutgoingRun { headers: RunHeaders::Full(&headers), count: 1, from, ..*run };
            let sent = self.put_record(lane, sender, about, (&one, 0), region);
            if !matches!(sent, Sent::Yes) {
                return (index, sent);
            }
            let known = sender.ends.filter(|ends| ends.qpn == self.qpn());
            let ends = known.unwrap_or(Ends { qpn: self.qpn(), ..Ends::default() });
            let about = CaptureRecord { time, ..of_lane(lane, path::LANE_OUT, &ends) };
            self.engine().capture.packet(&about, &assembled(&headers, &payload), "");
        }
        (run.count, Sent::Yes)
    }
}

impl Qp {
    /// Shows a packet that a fault rule dropped before it was sent.
    #[cold]
    pub(crate) fn show_lost(&self, ends: Ends, lane: Option<&Lane>, headers: &Headers, payload: &[u8]) {
        let engine = self.engine();
        if engine.is_capturing() {
            let about = match lane {
                Some(lane) => of_lane(lane, path::LANE_OUT, &ends),
                None => CaptureRecord { path: path::WIRE_OUT, ..of_ends(&ends) },
            };
            engine.capture.packet(&about, &assembled(headers, payload), "");
        }
    }
}

fn of_network(network: &Network) -> Ends {
    let (from, to) = network.gids();
    Ends { from, to, ..Ends::default() }
}

fn of_lane(lane: &Lane, path: u32, ends: &Ends) -> CaptureRecord {
    CaptureRecord { path, lane: lane.id, peer: lane.peer, peer_pid: lane.pid, ..of_ends(ends) }
}

/// The record of a packet without an ICRC.
fn of_ends(ends: &Ends) -> CaptureRecord {
    let LinkHeaders { slid, dlid, sl, vl, mtu, flow_label, is_global } = ends.link.unwrap_or_default();
    let link = if ends.link.is_some() { record_flag::LINK } else { 0 };
    let global = if is_global { record_flag::GLOBAL } else { 0 };
    CaptureRecord {
        src_qp: ends.qpn,
        from: ends.from,
        to: ends.to,
        from_port: source_port(ends.qpn),
        traffic_class: ends.traffic_class,
        hop_limit: ends.hop_limit,
        flags: record_flag::UNSEALED | link | global,
        slid,
        dlid,
        sl,
        vl,
        port: ends.port,
        mtu,
        flow_label,
        ..CaptureRecord::default()
    }
}

/// The UDP port from which the packets of a QP would be sent.
fn source_port(qpn: u32) -> u16 {
    0xc000 | (qpn & 0x3fff) as u16
}

/// The bytes of a lane's packet as on a wire: with padding, without an ICRC.
fn assembled(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let pad = payload.len().wrapping_neg() % 4;
    let headers = Headers { pad: pad as u8, ..*headers };
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes).expect("there is room for the headers");
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + pad, 0);
    bytes
}
