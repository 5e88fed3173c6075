//! Tests of the manager without the wire's sockets. They cover ids after a change of addresses, the
//! visibility of ids, and alternate paths.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;

use abi::Errno;
use abi::capture::{CaptureRecord, kind, path};
use abi::layout::Record;
use abi::private::LaneOut;
use abi::qp::{attr, migration, state};
use abi::reason::Cause;
use abi::ucma::address::{Bind, ResolveAddr, ResolveRoute};
use abi::ucma::connection::{
    Accept, ConnParam, Connect, Disconnect, EventAnswer, GetEvent, InitQpAttr, Listen, QpAttr, event,
};
use abi::ucma::id::{CreateId, CreateIdAnswer};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command, port_space};

use protocol::Time;
use protocol::cm::{Cm, Config as CoreConfig, Kind, Mad, Origin, Output, Path, Request, Suggestion};
use shm::capture_ring::{CAPTURE_RING_MIN, CaptureRingRx, create_capture_ring};
use wire::cm::AprStatus;
use wire::cm::ip::{Header, LEN as HEADER_LEN};
use wire::icrc::Envelope;

use super::id::{Stage, ib_address};
use super::{ChannelId, Manager, Outside};
use crate::asker::Asker;
use crate::config::{Config, WireMode};
use crate::faults::Scope;
use crate::gids::HostAddress;
use crate::ids::Peer;
use crate::management::emit;
use crate::pkeys::PkeyTable;
use crate::world::World;

/// The port on which ids listen.
pub(super) const PORT: u16 = 7471;

pub(super) struct Host {
    pub(super) world: World,
    pub(super) manager: Manager,
    /// The program's QP on an iWARP device.
    pub(super) qpn: u32,
    channel: ChannelId,
}

impl Host {
    /// Creates a host with these addresses and one open channel.
    pub(super) fn with(addresses: &[&str]) -> Self {
        Self::of(&Config { wire: WireMode::Off, ..Config::default() }, addresses)
    }

    /// As [`Host::with`], with a configuration.
    pub(super) fn of(config: &Config, addresses: &[&str]) -> Self {
        let mut world = World::new(config, "test").expect("a world");
        world.follow_addresses(&host(addresses));
        let mut manager = Manager::new(&world, Outside::real().expect("chance")).expect("a manager");
        manager.follow_addresses(&world);
        let (channel, _event_socket) =
            manager.open(Peer { pid: 1, uid: 7, comm: "test".into() }, false).expect("a channel");
        Self { world, manager, qpn: 0, channel }
    }

    pub(super) fn call<T: Record>(&mut self, number: u32, body: &T, room: usize) -> Vec<u8> {
        let request = build(number, body, &[], room);
        let reply = self.manager.serve(&mut self.world, self.channel, &request);
        assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
        reply.bytes
    }

    pub(super) fn event(&mut self) -> EventAnswer {
        let bytes = self.call(command::GET_EVENT, &GetEvent { response: 1 }, size_of::<EventAnswer>());
        EventAnswer::read(&bytes).expect("whole")
    }

    /// A command that is refused.
    pub(super) fn refused<T: Record>(&mut self, number: u32, body: &T) -> Errno {
        let reply = self.manager.serve(&mut self.world, self.channel, &build(number, body, &[], 0));
        Errno(-reply.status)
    }

    /// How many events wait.
    pub(super) fn waiting(&self) -> usize {
        self.manager.channels[&self.channel].channel.waiting()
    }

    /// Creates an id whose peer address is resolved.
    fn resolved(&mut self, to: &str) -> u32 {
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        let id = CreateIdAnswer::read(&self.call(command::CREATE_ID, &body, 4)).expect("whole").id;
        let (dst_addr, dst_size) = Sockaddr::Ip((to.parse::<IpAddr>().expect(to), PORT).into()).emit();
        let body = ResolveAddr { id, timeout_ms: 1, dst_size, dst_addr, ..ResolveAddr::default() };
        self.call(command::RESOLVE_ADDR, &body, 0);
        assert_eq!(self.event().event, event::ADDR_RESOLVED);
        id
    }
}

impl Host {
    /// Creates an id that listens at 10.0.0.1.
    pub(super) fn listener(&mut self, port: u16) -> u32 {
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        let id = CreateIdAnswer::read(&self.call(command::CREATE_ID, &body, 4)).expect("whole").id;
        self.listen_at(id, Sockaddr::Ip((IpAddr::from([10, 0, 0, 1]), port).into()));
        id
    }

    pub(super) fn bind_at(&mut self, id: u32, address: Sockaddr) {
        let (addr, addr_size) = address.emit();
        self.call(command::BIND, &Bind { id, addr_size, addr, ..Bind::default() }, 0);
    }

    pub(super) fn listen_at(&mut self, id: u32, address: Sockaddr) {
        self.bind_at(id, address);
        self.call(command::LISTEN, &Listen { id, backlog: 1 }, 0);
    }

    /// Creates an id whose route is resolved.
    pub(super) fn routed(&mut self, to: &str, port: u16) -> u32 {
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        let id = CreateIdAnswer::read(&self.call(command::CREATE_ID, &body, 4)).expect("whole").id;
        let (dst_addr, dst_size) = Sockaddr::Ip((to.parse::<IpAddr>().expect(to), port).into()).emit();
        let body = ResolveAddr { id, timeout_ms: 1, dst_size, dst_addr, ..ResolveAddr::default() };
        self.call(command::RESOLVE_ADDR, &body, 0);
        assert_eq!(self.event().event, event::ADDR_RESOLVED);
        self.call(command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1 }, 0);
        assert_eq!(self.event().event, event::ROUTE_RESOLVED);
        id
    }

    /// Delivers a request of another host.
    pub(super) fn arriving(&mut self) -> Vec<u8> {
        let (Origin { source, destination, .. }, mad) = asked(None);
        let packet = emit(&Envelope::new(&source, &destination, 0xc100), 0xffff, 7, &mad).expect("whole");
        assert_eq!(self.manager.mail.inlet.take(source, 0xc100, destination, packet.len(), &packet), 0);
        packet.to_vec()
    }
}

fn host(addresses: &[&str]) -> Vec<HostAddress> {
    addresses.iter().map(|ip| HostAddress { ip: ip.parse().expect(ip), ifindex: 2, mtu: 1500, prefix: 24 }).collect()
}

#[test]
fn the_loss_of_an_address_causes_one_event() {
    let mut host_a = Host::with(&["10.0.0.1", "10.0.0.2"]);
    let (stays, goes) = (host_a.resolved("10.0.0.1"), host_a.resolved("10.0.0.2"));
    for _ in 0..2 {
        host_a.world.follow_addresses(&host(&["10.0.0.1"]));
        host_a.manager.follow_addresses(&host_a.world);
    }
    let told = host_a.event();
    assert_eq!((told.event, told.id), (event::ADDR_CHANGE, goes));
    let nothing = build(command::GET_EVENT, &GetEvent { response: 1 }, &[], 336);
    let reply = host_a.manager.serve(&mut host_a.world, host_a.channel, &nothing);
    assert_eq!(reply.status, abi::Errno::EAGAIN.to_status());
    assert!(host_a.manager.ids.get(stays).is_some_and(|id| id.attachment.is_some()));
}

#[test]
fn ids_are_shown_to_everybody_and_their_queue_pairs_to_their_user() {
    let mut host = Host::with(&["10.0.0.1"]);
    host.resolved("10.0.0.1");
    for (asker, full) in [(Asker::Root, true), (Asker::User(7), true), (Asker::User(8), false)] {
        let (shown, next) = host.manager.show(asker, 0, usize::MAX);
        assert!(shown.len() == 1 && next.is_none());
        assert_eq!(shown[0]["local"].as_str().map(|text| text.starts_with("10.0.0.1:")), Some(true));
        assert_eq!(shown[0]["qpn"].is_null(), !full, "{asker:?}");
    }
    let channel = host.channel;
    host.manager.close(&host.world, channel);
    assert_eq!(host.manager.status()["ids"], 0);
    assert!(host.manager.users.is_empty() && host.manager.tokens.is_empty() && host.manager.connections.is_empty());
}

fn gid(ip: &str) -> [u8; 16] {
    ip.parse::<std::net::Ipv4Addr>().expect(ip).to_ipv6_mapped().octets()
}

/// The request of a peer, perhaps with an alternate path to the address `second`.
fn asked(second: Option<&str>) -> (Origin, Mad) {
    let mut header = [0; HEADER_LEN];
    let ips = ["10.0.0.9", "10.0.0.1"].map(|ip| ip.parse::<IpAddr>().expect(ip));
    Header { source_port: 999, source: ips[0], destination: ips[1] }.emit(&mut header);
    asked_with(second, &header)
}

/// The same with this private data.
fn asked_with(second: Option<&str>, private_data: &[u8]) -> (Origin, Mad) {
    let path =
        Path { sgid: gid("10.0.0.9"), dgid: gid("10.0.0.1"), pkey: 0xffff, mtu: 3, hop_limit: 64, ..Path::default() };
    let alternate = second.map(|second| Path { sgid: gid("10.0.0.8"), dgid: gid(second), ..path });
    let service_id = u64::from(port_space::TCP) << 16 | u64::from(PORT);
    let request = Request {
        path,
        alternate,
        service_id,
        private_data,
        ack_timeout: 15,
        qpn: wire::Qpn::new(0x77),
        ..Request::default()
    };
    let mut peer = Cm::new(CoreConfig { secret: 3, ..CoreConfig::default() });
    peer.request(Time(0), &request).expect("room");
    let Some(Output::Send { mad, .. }) = peer.poll_output() else { panic!("no REQ") };
    let origin = Origin { source: path.sgid, destination: path.dgid, pkey: 0xffff, hop_limit: 64, ..Origin::default() };
    (origin, mad)
}

/// A peer requests a connection with an alternate path (none of softhca's clients does).
/// INIT_QP_ATTR tells the accepting program to load the path.
#[test]
fn the_alternate_path_of_a_request_is_for_the_queue_pair() {
    for (second, loads) in [("10.0.0.2", true), ("10.0.0.3", false)] {
        let mut host = Host::with(&["10.0.0.1", "10.0.0.2"]);
        host.listener(PORT);
        let (origin, mad) = asked(Some(second));
        host.manager.deliver(&origin, &mad);
        host.manager.settle(&host.world);

        let asked = host.event();
        assert_eq!(asked.event, event::CONNECT_REQUEST);
        let mut ask = |next: u8| {
            let body = InitQpAttr { id: asked.id, qp_state: u32::from(next), ..InitQpAttr::default() };
            QpAttr::read(&host.call(command::INIT_QP_ATTR, &body, size_of::<QpAttr>())).expect("whole")
        };
        let (rtr, rts) = (ask(state::RTR), ask(state::RTS));
        assert_eq!(
            (rtr.qp_attr_mask & attr::ALT_PATH != 0, rts.qp_attr_mask & attr::PATH_MIG_STATE != 0),
            (loads, loads)
        );
        if loads {
            assert_eq!((rtr.alt_ah_attr.dgid, rtr.ah_attr.dgid), (gid("10.0.0.8"), gid("10.0.0.9")));
            assert_ne!(rtr.alt_ah_attr.sgid_index, rtr.ah_attr.sgid_index);
            assert_eq!((rtr.alt_port_num, rts.path_mig_state), (1, u32::from(migration::REARM)));
        }
    }
}

/// No library can suggest a path, and no event tells of a suggestion, as with Linux. The peer gets
/// a refusal at once, and the connection remains.
#[test]
fn the_suggestion_of_a_path_is_declined_and_nobody_is_told() {
    let mut host = Host::with(&["10.0.0.1", "10.0.0.2"]);
    let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
    let listener = CreateIdAnswer::read(&host.call(command::CREATE_ID, &body, 4)).expect("whole").id;
    let (addr, addr_size) = Sockaddr::Ip((IpAddr::from([10, 0, 0, 1]), PORT).into()).emit();
    host.call(command::BIND, &Bind { id: listener, addr_size, addr, ..Bind::default() }, 0);
    host.call(command::LISTEN, &Listen { id: listener, backlog: 1 }, 0);
    let active = host.resolved("10.0.0.1");
    host.call(command::RESOLVE_ROUTE, &ResolveRoute { id: active, timeout_ms: 1000 }, 0);
    assert_eq!(host.event().event, event::ROUTE_RESOLVED);
    let param = |qp_num| ConnParam { qp_num, valid: 1, retry_count: 7, ..ConnParam::default() };
    host.call(command::CONNECT, &Connect { conn_param: param(0x11), id: active, ..Connect::default() }, 0);
    host.manager.settle(&host.world);
    let asked = host.event();
    assert_eq!(asked.event, event::CONNECT_REQUEST);
    host.call(command::ACCEPT, &Accept { uid: 6, conn_param: param(0x22), id: asked.id, ..Accept::default() }, 0);
    host.manager.settle(&host.world);
    assert_eq!(host.event().event, event::CONNECT_RESPONSE);
    host.call(command::ACCEPT, &Accept { id: active, ..Accept::default() }, 0);
    host.manager.settle(&host.world);
    assert_eq!(host.event().event, event::ESTABLISHED);

    let (asks, _) = host.manager.connections.iter().find(|(_, id)| **id == active).expect("a connection");
    let (asks, path) = (*asks, Path { sgid: gid("10.0.0.2"), dgid: gid("10.0.0.1"), pkey: 0xffff, ..Path::default() });
    let suggestion = Suggestion { path, ack_timeout: 15, remote_response_timeout: 18, private_data: &[] };
    host.manager.core.load_path(Time(0), asks, &suggestion).expect("it stands");
    let mut answers = Vec::new();
    while let Some(output) = host.manager.core.poll_output() {
        match output {
            Output::Send { path, mad, .. } => {
                let (source, destination) = (path.sgid, path.dgid);
                let origin = Origin { source, destination, pkey: 0xffff, hop_limit: 64, ..Origin::default() };
                host.manager.deliver(&origin, &mad);
            }
            Output::Event(news) => {
                if let Kind::PathAnswered(apr) = &news.kind {
                    answers.push(apr.status);
                }
                host.manager.on_news(&host.world, news);
            }
        }
    }
    assert_eq!(answers, [AprStatus::UNSUPPORTED]);
    let nothing = build(command::GET_EVENT, &GetEvent { response: 1 }, &[], size_of::<EventAnswer>());
    let reply = host.manager.serve(&mut host.world, host.channel, &nothing);
    assert_eq!(reply.status, Errno::EAGAIN.to_status(), "no event tells of it");
    host.call(command::DISCONNECT, &Disconnect { id: active }, 0);
    host.manager.settle(&host.world);
    assert_eq!(host.event().event, event::DISCONNECTED);
}

/// A capturing user sees only the datagrams of their own ids, including those that a rule dropped.
/// Root sees all datagrams.
#[test]
fn a_user_sees_the_datagrams_of_own_ids() {
    let mut host = Host::with(&["10.0.0.1"]);
    let (channel, _event_socket) =
        host.manager.open(Peer { pid: 2, uid: 8, comm: "other".into() }, false).expect("a channel of another user");
    let mut seen: Vec<(Asker, CaptureRingRx)> = Vec::new();
    for (number, asker) in (1..).zip([Asker::Root, Asker::User(7), Asker::User(8), Asker::User(9)]) {
        let wanted = LaneOut { lane: number, lane_index: 4096, len: CAPTURE_RING_MIN as u32, ..LaneOut::default() };
        let ring = create_capture_ring(CAPTURE_RING_MIN).expect("a capture ring");
        host.world.captures.watchers().begin(asker, &wanted, &ring).expect("room");
        seen.push((asker, CaptureRingRx::map(ring.as_fd(), CAPTURE_RING_MIN).expect("mapped")));
    }
    // User 7 listens, user 8 sends the request.
    let listener = host.listener(PORT);
    let mine = std::mem::replace(&mut host.channel, channel);
    let asking = host.routed("10.0.0.1", PORT);
    let connect = |host: &mut Host| {
        let conn_param = ConnParam { valid: 1, qp_num: 0x500, ..ConnParam::default() };
        host.call(command::CONNECT, &Connect { id: asking, conn_param, ..Connect::default() }, 0);
    };
    connect(&mut host);
    host.channel = mine;
    assert_eq!((host.event().event, listener), (event::CONNECT_REQUEST, listener));
    let mut told = |host: &mut Host| -> Vec<Vec<String>> {
        host.manager.settle(&host.world);
        seen.iter_mut().map(|(_, ring)| shown(ring)).collect()
    };
    let req = vec!["Req".to_owned()];
    assert_eq!(told(&mut host), [req.clone(), req.clone(), req, vec![]]);
    // When the program ends, the remains of its id send a REJ, and its owner sees the REJ too.
    host.manager.close(&host.world, channel);
    let rej = vec!["Rej".to_owned()];
    assert_eq!(told(&mut host), [rej.clone(), rej.clone(), rej, vec![]]);

    // The owner of a datagram sees it even if a rule drops it.
    let (channel, _event_socket) =
        host.manager.open(Peer { pid: 2, uid: 8, comm: "other".into() }, false).expect("a channel");
    host.world.add_faults(Scope::All, "loss opcode cm nth 1").expect("a rule");
    host.channel = channel;
    let asking = host.routed("10.0.0.1", PORT);
    let conn_param = ConnParam { valid: 1, qp_num: 0x500, ..ConnParam::default() };
    host.call(command::CONNECT, &Connect { id: asking, conn_param, ..Connect::default() }, 0);
    let lost = vec!["Req, fault: lost by rule 1 (loss opcode cm nth 1)".to_owned()];
    assert_eq!(told(&mut host), [lost.clone(), vec![], lost, vec![]]);
    for (number, (asker, _)) in (1..).zip(&seen) {
        host.world.captures.watchers().end(*asker, number);
    }
    assert!(!host.world.captures.watchers().are_there());
}

/// The datagrams on a capture ring, each with its words.
fn shown(ring: &mut CaptureRingRx) -> Vec<String> {
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    while ring.pop(&mut bytes).expect("sound") {
        let record = CaptureRecord::read(&bytes).expect("a record");
        let (packet, words) = bytes[size_of::<CaptureRecord>()..].split_at(record.kept as usize);
        let mad = packet[20..276].try_into().expect("a datagram");
        let (_, message) = wire::cm::Message::parse(mad).expect("a message");
        let words = String::from_utf8_lossy(&words[..record.words as usize]).into_owned();
        let name = format!("{:?}", message.attribute());
        all.push(if words.is_empty() { name } else { format!("{name}, {words}") });
    }
    all
}

/// A rule rejects a request: the request and its answer are captured with the rule's words. A
/// rejected request of another host is shown as dropped.
#[test]
fn requests_that_a_rule_rejects_are_captured() {
    let mut host = Host::with(&["10.0.0.1"]);
    let wanted = LaneOut { lane: 1, lane_index: 4096, len: CAPTURE_RING_MIN as u32, ..LaneOut::default() };
    let fd = create_capture_ring(CAPTURE_RING_MIN).expect("a capture ring");
    host.world.captures.watchers().begin(Asker::Root, &wanted, &fd).expect("room");
    let mut ring = CaptureRingRx::map(fd.as_fd(), CAPTURE_RING_MIN).expect("mapped");
    host.world.add_faults(Scope::All, "cm-timeout").expect("a rule");
    let mut packet = host.arriving();
    let arrivals = host.manager.take_arrivals();
    host.manager.on_datagrams(&host.world, arrivals);
    let mut bytes = Vec::new();
    let mut next = || {
        assert!(ring.pop(&mut bytes).expect("sound"), "one more");
        CaptureRecord::read(&bytes).expect("a record")
    };
    let (came, dropped) = (next(), next());
    assert_eq!((came.kind, came.path, came.len), (kind::PACKET, path::WIRE_IN, packet.len() as u32));
    assert_eq!((dropped.kind, dropped.cause, dropped.got), (kind::DROP, Cause::Fault as u32, 1));
    packet.truncate(12);
    assert_eq!((dropped.dest_qp, dropped.psn, dropped.opcode), (1, 7, packet[0].into()));
}

/// As with a kernel: an id whose device is removed gets an event, and its peer learns of the end.
#[test]
fn ids_of_a_device_that_is_taken_away_are_told() {
    let mut host = Host::with(&["10.0.0.1"]);
    let idle = {
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        CreateIdAnswer::read(&host.call(command::CREATE_ID, &body, 4)).expect("whole").id
    };
    let listener = host.listener(PORT);
    let asking = host.routed("10.0.0.1", PORT);
    let conn_param = ConnParam { valid: 1, qp_num: 0x500, ..ConnParam::default() };
    host.call(command::CONNECT, &Connect { id: asking, conn_param, ..Connect::default() }, 0);
    let request = host.event();
    assert_eq!(request.event, event::CONNECT_REQUEST);
    // Devices of another user and of another process remain.
    for rule in [(Scope::User(8), "remove"), (Scope::All, "remove pid 77")] {
        host.world.add_faults(rule.0, rule.1).expect("a rule");
        host.manager.follow_removals(&host.world);
    }
    assert_eq!(host.manager.channels[&host.channel].channel.waiting(), 0);
    host.world.add_faults(Scope::User(7), "remove").expect("a rule");
    host.manager.follow_removals(&host.world);
    let told: BTreeSet<(u32, u32)> = (0..2).map(|_| host.event()).map(|told| (told.event, told.id)).collect();
    assert_eq!(told, [listener, asking].map(|id| (event::DEVICE_REMOVAL, id)).into());
    host.manager.follow_removals(&host.world);
    assert_eq!(host.manager.channels[&host.channel].channel.waiting(), 0, "once");
    assert!(host.manager.ids.get(idle).is_some_and(|id| id.stage == Stage::Idle));
    let accept = Accept { id: request.id, conn_param, ..Accept::default() };
    let reply = host.manager.serve(&mut host.world, host.channel, &build(command::ACCEPT, &accept, &[], 0));
    assert_eq!(reply.status, abi::Errno::EINVAL.to_status());
}

#[test]
fn requests_of_another_partition_are_dropped_and_others_name_the_index() {
    for (pkeys, index) in
        [(&[0xffff][..], Some(0)), (&[0x8001, 0xffff], Some(1)), (&[0x8001, 0x7fff], Some(1)), (&[0x8001], None)]
    {
        let mut host = Host::with(&["10.0.0.1"]);
        host.world.devices[0].ports[0].pkeys = PkeyTable::new(pkeys, 0);
        host.manager.follow_addresses(&host.world);
        host.listener(PORT);
        let dropped = |host: &Host| host.manager.status()["dropped"].as_u64().expect("a number");
        let before = dropped(&host);
        host.arriving();
        let arrivals = host.manager.take_arrivals();
        host.manager.on_datagrams(&host.world, arrivals);
        let Some(index) = index else {
            assert_eq!((host.waiting(), dropped(&host) - before), (0, 1), "{pkeys:x?}");
            continue;
        };
        let asked = host.event();
        assert_eq!(asked.event, event::CONNECT_REQUEST);
        let body = InitQpAttr { id: asked.id, qp_state: u32::from(state::INIT), ..InitQpAttr::default() };
        let init = QpAttr::read(&host.call(command::INIT_QP_ATTR, &body, size_of::<QpAttr>())).expect("whole");
        assert_eq!(init.pkey_index, index, "{pkeys:x?}");
        // The port leaves the partition: the QP must not join another one.
        host.world.devices[0].ports[0].pkeys = PkeyTable::new(&[0x8001], 0);
        host.manager.follow_addresses(&host.world);
        let request = build(command::INIT_QP_ATTR, &body, &[], size_of::<QpAttr>());
        let reply = host.manager.serve(&mut host.world, host.channel, &request);
        assert_eq!(reply.status, abi::Errno::EINVAL.to_status(), "{pkeys:x?}");
    }
}

/// A listener with a GID gets requests without IP addresses, in every port space.
#[test]
fn a_listener_with_a_gid_gets_requests_without_a_header() {
    for (address, listens) in [(gid("10.0.0.1"), true), ([0; 16], true), (gid("10.0.0.2"), false)] {
        let mut host = Host::with(&["10.0.0.1", "10.0.0.2"]);
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        let id = CreateIdAnswer::read(&host.call(command::CREATE_ID, &body, 4)).expect("whole").id;
        host.listen_at(id, ib_address(address, 0xffff, PORT.into()));
        let (origin, mad) = asked_with(None, b"none of the private data is a header of IP addresses");
        host.manager.deliver(&origin, &mad);
        host.manager.settle(&host.world);
        assert_eq!(host.waiting(), usize::from(listens), "{address:x?}");
        if listens {
            assert_eq!(host.event().event, event::CONNECT_REQUEST);
        }
    }
}

/// The datagram comes in a partition of the port, and asks for a connection in another one.
#[test]
fn a_connection_in_a_foreign_partition_is_rejected() {
    let mut host = Host::with(&["10.0.0.1"]);
    host.world.devices[0].ports[0].pkeys = PkeyTable::new(&[0x8001], 0);
    host.manager.follow_addresses(&host.world);
    host.listener(PORT);
    let (origin, mad) = asked(None);
    host.manager.deliver(&Origin { pkey: 0x8001, ..origin }, &mad);
    host.manager.settle(&host.world);
    assert_eq!((host.waiting(), host.manager.status()["dropped"].as_u64()), (0, Some(0)));
    assert_eq!(host.manager.status()["ids"], 1, "the listener");
}
