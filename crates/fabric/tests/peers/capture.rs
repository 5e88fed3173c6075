//! Tests captures: on each path, a capture has every packet once, as it was sent, with the ICRC
//! that the packet has or would have. A dropped packet has the reason.

use std::collections::HashSet;

use crate::common::{Fabric, Plan, QKEY, Side};
use ::fabric::Faults;
use abi::post::opcode;
use abi::reason::Cause;
use capture::{Error, Packet, Path, Session, Wanted};
use engine::{SendWr, Service};
use shm::Socket;
use wire::icrc::Envelope;
use wire::{Operation as O, Qpn};

/// One capture for each host.
struct Seen(Vec<Session>);

impl Seen {
    fn begin(fabric: &Fabric) -> Self {
        Self::wanting(fabric, Wanted::default())
    }

    fn wanting(fabric: &Fabric, wanted: Wanted) -> Self {
        let sessions: Vec<Session> = match fabric.host(0) {
            Some(_) => {
                (0..2).filter_map(|index| Some(fabric.host(index)?.capture(wanted).expect("a capture"))).collect()
            }
            None => vec![node(fabric, wanted).expect("a capture")],
        };
        assert!(sessions.iter().all(Session::sees_everything));
        Self(sessions)
    }

    /// All packets that were captured since the last call.
    fn all(&mut self) -> Vec<Packet> {
        let mut packets: Vec<Packet> = self.0.iter_mut().flat_map(Session::finish).collect();
        packets.sort_by_key(|packet| packet.time);
        let complaints: Vec<String> = self.0.iter().flat_map(Session::complaints).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
        packets
    }

    fn lost(&self) -> u64 {
        self.0.iter().map(Session::lost).sum()
    }
}

/// A capture from the agent that has a run directory.
fn node(fabric: &Fabric, wanted: Wanted) -> Result<Session, Error> {
    let socket = Socket::connect(&fabric.node(0).with_file_name("admin")).expect("an admin node");
    Session::begin(socket, wanted)
}

fn address(gid: [u8; 16]) -> std::net::IpAddr {
    std::net::Ipv6Addr::from(gid).to_canonical()
}

fn is_out(packet: &Packet) -> bool {
    matches!(packet.path, Path::Lane { .. } | Path::Out(_))
}

/// Checks what must hold for each packet between two sides. Returns the packets that left `from`,
/// without softhca's own packets.
fn sent(packets: &[Packet], from: &Side, to: &Side) -> Vec<Packet> {
    let mut left = Vec::new();
    let mut came = Vec::new();
    for packet in packets {
        let gids = [packet.from, packet.to].map(|ip| match ip {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(ip) => ip.octets(),
        });
        let envelope = Envelope::new(&gids[0], &gids[1], packet.from_port);
        assert!(packet.is_whole() && packet.len.is_multiple_of(4));
        assert_eq!(envelope.check(&packet.bytes, packet.id), Some(packet.id), "the ICRC of {packet:?}");
        let Some(headers) = packet.headers() else { continue };
        // Two hosts may use the same QPN.
        if headers.dest_qp.value() != to.qp.qpn() || packet.to != address(to.gid()) {
            continue;
        }
        assert_eq!(packet.from, address(from.gid()), "{headers}");
        assert_eq!(packet.device.as_deref(), Some("softhca0"));
        if is_out(packet) {
            assert_eq!(packet.src_qp, from.qp.qpn(), "{headers}");
            left.push(packet.clone());
        } else {
            came.push(packet.bytes.clone());
        }
    }
    if left.first().is_some_and(|packet| matches!(packet.path, Path::Out(_))) {
        let bytes: Vec<_> = left.iter().map(|packet| packet.bytes.clone()).collect();
        assert!(bytes == came, "what left has come, in its order");
    } else {
        assert!(came.is_empty(), "a lane's packets are shown once");
    }
    left
}

fn operations(packets: &[Packet]) -> Vec<O> {
    packets.iter().filter_map(|packet| Some(packet.headers()?.opcode.operation)).collect()
}

/// The packets without those that were sent once more: between hosts, a busy machine answers late.
fn without_repetitions(packets: Vec<Packet>) -> Vec<Packet> {
    let mut seen = HashSet::new();
    let psn = |packet: &Packet| packet.headers().map(|headers| headers.psn);
    packets.into_iter().filter(|packet| seen.insert(psn(packet))).collect()
}

/// The payloads of requests, concatenated.
fn carried(packets: &[Packet]) -> Vec<u8> {
    packets.iter().flat_map(|packet| packet.payload().0.to_vec()).collect()
}

/// The operations of the packets of a message of `len` bytes.
fn pieces(len: usize, mtu: usize, [first, middle, last, only]: [O; 4]) -> Vec<O> {
    match len.div_ceil(mtu).max(1) {
        1 => vec![only],
        count => [&[first][..], &vec![middle; count - 2], &[last]].concat(),
    }
}

const SEND: [O; 4] = [O::SendFirst, O::SendMiddle, O::SendLast, O::SendOnly];
const WRITE: [O; 4] = [O::WriteFirst, O::WriteMiddle, O::WriteLast, O::WriteOnly];
const READ: [O; 4] = [O::ReadResponseFirst, O::ReadResponseMiddle, O::ReadResponseLast, O::ReadResponseOnly];

/// A packet on a lane may have 32 KiB.
fn mtu(side: &Side) -> usize {
    if side.gid_index() == 0 { 32 * 1024 } else { side.mtu() }
}

fn messages_of_every_size(fabric: &Fabric) {
    for service in [Service::Rc, Service::Uc] {
        let plan = Plan { memory: 256 * 1024, ..Plan::new(service) };
        let (a, b) = fabric.pair(&plan);
        let mut seen = Seen::begin(fabric);
        for len in [0, 1, 3, 44, 100, 1024, 5001, 100_000] {
            a.memory.pattern(0, len, len + 1);
            b.recv(1, 0, len);
            b.recv(2, 0, 0);
            a.post(&SendWr { sges: &a.sge(0, len), ..SendWr::default() });
            assert_eq!((a.sent().status, b.received().status), (0, 0));
            a.post(&SendWr {
                opcode: opcode::RDMA_WRITE_WITH_IMM,
                imm: 7,
                sges: &a.sge(0, len),
                remote_addr: b.memory.addr(0),
                rkey: b.mr.rkey(),
                ..SendWr::default()
            });
            assert_eq!((a.sent().status, b.received().status), (0, 0));
            let packets = seen.all();
            let requests = without_repetitions(sent(&packets, &a, &b));
            let (sends, writes) = requests.split_at(len.div_ceil(mtu(&a)).max(1));
            assert_eq!(operations(sends), pieces(len, mtu(&a), SEND));
            let with_imm = [WRITE[0], WRITE[1], O::WriteLastImm, O::WriteOnlyImm];
            assert_eq!(operations(writes), pieces(len, mtu(&a), with_imm));
            let message = a.memory.get(0, len);
            assert!(carried(sends) == message && carried(writes) == message, "{len} bytes");
            let first = writes[0].headers().expect("headers");
            assert_eq!((first.reth.va, first.reth.len as usize), (b.memory.addr(0), len));
            let answers = operations(&sent(&packets, &b, &a));
            assert!(answers.iter().all(|answer| *answer == O::Acknowledge), "{answers:?}");
            assert_eq!(answers.is_empty(), service == Service::Uc);
        }
        assert_eq!(seen.lost(), 0);
    }
}

fn read_responses_carry_the_data_in_the_capture(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 256 * 1024, ..Plan::rc() });
    let mut seen = Seen::begin(fabric);
    b.memory.pattern(0, 100_000, 5);
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    let read = SendWr { opcode: opcode::RDMA_READ, remote_addr, rkey, ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 100_000), ..read });
    assert_eq!(a.sent().status, 0);
    let packets = seen.all();
    // Between hosts, one long READ is several READ requests.
    let asked: Vec<_> = sent(&packets, &a, &b).iter().filter_map(Packet::headers).collect();
    assert!(asked.iter().all(|headers| headers.opcode.operation == O::ReadRequest));
    assert_eq!(asked.iter().map(|headers| headers.reth.len).sum::<u32>(), 100_000);
    let answers = sent(&packets, &b, &a);
    let answered = asked.iter().flat_map(|headers| pieces(headers.reth.len as usize, mtu(&a), READ));
    assert_eq!(operations(&answers), answered.collect::<Vec<_>>());
    assert!(carried(&answers) == b.memory.get(0, 100_000));

    b.memory.put(0, &5u64.to_ne_bytes());
    let add = SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, remote_addr, rkey, ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 8), compare_add: 3, ..add });
    assert_eq!(a.sent().status, 0);
    let packets = seen.all();
    let asked = sent(&packets, &a, &b)[0].headers().expect("headers");
    assert_eq!((asked.opcode.operation, asked.atomic.swap_add), (O::FetchAdd, 3));
    let told = sent(&packets, &b, &a)[0].headers().expect("headers");
    assert_eq!((told.opcode.operation, told.atomic_ack), (O::AtomicAcknowledge, 5));
}

fn datagrams_say_who_sends_them(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let to_b = a.ah(&b);
    let mut seen = Seen::begin(fabric);
    a.memory.pattern(0, 777, 2);
    for len in [0, 1, 777] {
        b.recv(1, 0, 2000);
        a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY)), sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().status), (0, 0));
        let packets = seen.all();
        let datagrams = sent(&packets, &a, &b);
        assert_eq!(operations(&datagrams), [O::SendOnly]);
        let headers = datagrams[0].headers().expect("headers");
        assert_eq!((headers.deth.src_qp, headers.deth.qkey), (Qpn::new(a.qp.qpn()), QKEY));
        assert_eq!(carried(&datagrams), a.memory.get(0, len));
    }
    // A datagram with a wrong Q_Key is dropped, and the copy from the place that drops it has the
    // reason.
    a.post(&SendWr { ud: Some((&to_b, b.qp.qpn(), QKEY + 1)), sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(a.sent().status, 0);
    let mut packets = Vec::new();
    crate::common::wait::until("the drop", || {
        packets.extend(seen.all());
        packets.iter().any(|packet: &Packet| packet.dropped.is_some()).then_some(())
    });
    let dropped = packets.iter().find_map(|packet| packet.dropped).expect("a drop");
    assert_eq!((dropped.cause(), dropped.got, dropped.expected), (Some(Cause::QKey), QKEY + 1, QKEY));
}

crate::common::everywhere! {
    messages_of_every_size
    read_responses_carry_the_data_in_the_capture
    datagrams_say_who_sends_them
    packets_changed_by_fault_rules_are_captured_with_a_note
}

/// The capture has the whole bad packet, with the reason.
#[test]
fn a_damaged_packet_is_captured_with_its_reason() {
    let fabric = Fabric::hosts(["10.0.0.1", "10.0.0.2"], 1024, Faults::default());
    let (a, b) = fabric.pair(&Plan::rc());
    let mut seen = Seen::begin(&fabric);
    b.recv(1, 0, 100);
    a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(b.received().status, 0);
    let mut bytes = sent(&seen.all(), &a, &b)[0].bytes.clone();
    for (at, cause) in [(15, Cause::Icrc), (7, Cause::Icrc)] {
        bytes[at] ^= 1;
        // Any engine that owns a QPN in the same block of numbers gets this packet.
        assert!(fabric.switch().inject(address(a.gid()).into(), 0xc001, address(b.gid()).into(), &bytes));
        let mut packets = Vec::new();
        crate::common::wait::until("the drop", || {
            packets.extend(seen.all());
            packets.iter().any(|packet: &Packet| packet.dropped.is_some()).then_some(())
        });
        let packet = packets.iter().find(|packet| packet.dropped.is_some()).expect("the packet");
        assert_eq!((packet.bytes == bytes, packet.dropped.and_then(|dropped| dropped.cause())), (true, Some(cause)));
        assert!(packet.comment().starts_with("wire, in, process ") && packet.comment().contains("ICRC"));
        bytes[at] ^= 1;
    }
}

/// The capture also has a packet that a rule has lost. Each packet that a rule has changed carries
/// a note.
fn packets_changed_by_fault_rules_are_captured_with_a_note(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { timeout: 18, ..Plan::rc() });
    let mut seen = Seen::begin(fabric);
    fabric.add_faults("loss opcode write nth 2; duplicate opcode write nth 2; loss opcode ack direction in nth 3");
    let to =
        SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
    for _ in 0..6 {
        a.post(&SendWr { sges: &a.sge(0, 8), ..to });
        assert_eq!(a.sent().status, 0);
    }
    let notes = |packets: &[Packet]| -> Vec<(String, O)> {
        let touched = packets.iter().filter(|packet| packet.note.starts_with("fault: "));
        touched.filter_map(|packet| Some((packet.note.clone(), packet.headers()?.opcode.operation))).collect()
    };
    let packets = seen.all();
    let found = notes(&packets);
    let expected = [
        ("fault: lost by rule 1 (loss opcode write nth 2)".to_owned(), O::WriteOnly),
        ("fault: repeated by rule 2 (duplicate opcode write nth 2)".to_owned(), O::WriteOnly),
    ];
    assert_eq!(found, expected);
    let dropped: Vec<_> = packets.iter().filter_map(|packet| packet.dropped.as_ref()).collect();
    assert!(dropped.iter().any(|drop| drop.cause() == Some(Cause::Fault) && drop.got == 3), "{dropped:?}");
}

#[test]
fn a_program_is_seen_from_its_first_packet_on_and_not_after_the_end() {
    let fabric = Fabric::start();
    let mut seen = Seen::begin(&fabric);
    let (a, b) = fabric.pair(&Plan::rc());
    let send = || {
        b.recv(1, 0, 100);
        a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().status), (0, 0));
    };
    send();
    assert_eq!(operations(&sent(&seen.all(), &a, &b)), [O::SendOnly]);
    // A second capture at the same time gets the same packets, but no earlier ones.
    let mut other = Seen::begin(&fabric);
    send();
    for seen in [&mut seen, &mut other] {
        assert_eq!(operations(&sent(&seen.all(), &a, &b)), [O::SendOnly]);
    }
    drop(seen);
    send();
    assert_eq!(operations(&sent(&other.all(), &a, &b)), [O::SendOnly]);
    drop(other);
    let captures: Vec<_> = (0..12).map(|_| node(&fabric, Wanted::default()).expect("a capture")).collect();
    let refused = crate::common::wait::until("a refusal", || node(&fabric, Wanted::default()).err());
    assert!(matches!(&refused, Error::Refused(why) if why.contains("too many")), "{refused}");
    drop(captures);
    // The agent notices the end of a capture a moment later.
    crate::common::wait::until("the end of a capture", || node(&fabric, Wanted::default()).ok());
    send();
}

#[test]
fn copies_are_lost_and_packets_are_not() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan { memory: 256 * 1024, ..Plan::rc() });
    let mut seen = Seen::wanting(&fabric, Wanted { room: 64 * 1024, most: 0 });
    a.memory.pattern(0, 200_000, 3);
    for _ in 0..10 {
        b.recv(1, 0, 200_000);
        a.post(&SendWr { sges: &a.sge(0, 200_000), ..SendWr::default() });
        assert_eq!((a.sent().status, b.received().status), (0, 0));
        assert!(b.memory.get(0, 200_000) == a.memory.get(0, 200_000));
    }
    let kept = seen.all();
    assert!(seen.lost() >= 60 && !kept.is_empty(), "{} lost, {} kept", seen.lost(), kept.len());

    // If the capture keeps only a few bytes of each packet, there is room for all packets.
    drop(seen);
    let mut seen = Seen::wanting(&fabric, Wanted { room: 64 * 1024, most: 60 });
    b.recv(1, 0, 200_000);
    a.post(&SendWr { sges: &a.sge(0, 200_000), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (0, 0));
    let packets: Vec<Packet> = seen.all().into_iter().filter(|packet| packet.dest_qp() == Some(b.qp.qpn())).collect();
    assert_eq!((operations(&packets), seen.lost()), (pieces(200_000, 32 * 1024, SEND), 0));
    assert!(packets[0].bytes.len() == 60 && packets[0].len == 12 + 32 * 1024 + 4 && !packets[0].is_whole());
}

#[test]
fn a_whole_fabric_is_recorded_in_a_file() {
    let fabric = ::fabric::Fabric::two_hosts().expect("two hosts");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("fabric.pcapng");
    let recording = fabric.capture(&file).expect("a file");
    let (here, there) = (fabric.host(0).open().expect("a context"), fabric.host(1).open().expect("a context"));
    let (a, b) = (here.cq(16).expect("a CQ"), there.cq(16).expect("a CQ"));
    let (pd_a, pd_b) = (here.pd().expect("a PD"), there.pd().expect("a PD"));
    let left = pd_a.reliable(&a).build().expect("a QP");
    let right = pd_b.reliable(&b).build().expect("a QP");
    right.receive(1, pd_b.buffer(64).expect("memory")).expect("a receive");
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, _right) = (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"));
    left.send_inline(2, b"across", None).expect("sent");
    b.wait().expect("a completion").ok().expect("success");
    a.wait().expect("a completion").ok().expect("success");
    let seen = recording.finish().expect("written");
    assert!(seen >= 4, "a SEND and an ACK, out and in: {seen}");
    let bytes = std::fs::read(&file).expect("the file");
    assert_eq!(bytes.windows(6).filter(|part| part == b"across").count(), 2);
}
