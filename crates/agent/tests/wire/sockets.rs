//! The receiving sockets, their readers, and addresses whose port another program uses.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::board;
use abi::layout::Record;
use abi::wire::{Arrival, GRANTED, arrival_flags, arrival_kind, lease, socket_flags};
use shm::RECORD_MAX;

use crate::common::TestAgent;
use crate::ear::{Ear, LONG, datagram, eventually};

/// A loopback address that no other test uses.
fn address() -> Ipv4Addr {
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    Ipv4Addr::new(127, random[0], random[1], random[2] | 1)
}

fn gid(ip: Ipv4Addr) -> [u8; 16] {
    ip.to_ipv6_mapped().octets()
}

fn agent_at(ip: Ipv4Addr) -> TestAgent {
    TestAgent::start_with(&format!("addresses = ['{ip}']"))
}

/// Another host.
struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Sender {
    fn new(to: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((address(), 0)).expect("127/8 is ours");
        Self { socket, to: (to, abi::wire::PORT).into() }
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(self.socket.send_to(bytes, self.to).expect("sent"), bytes.len());
    }
}

/// The board's word for GID index 1.
fn wire_word(ear: &Ear) -> u32 {
    ear.board.word(board::gid_wire(0, 1, 1).expect("a place")).load(Ordering::Acquire)
}

fn lease_of(ear: &Ear) -> u32 {
    ear.lease.as_ref().expect("shared").word(lease::LEASE).load(Ordering::Acquire)
}

/// Takes the receive lease. A holder that does not run for some milliseconds may lose the lease at
/// once, so this asks again.
fn take_lease(ear: &Ear) {
    eventually("the grant", || {
        let word = ear.lease.as_ref().expect("shared").word(lease::LEASE);
        if word.compare_exchange(0, ear.engine, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            ear.agent.notify();
        }
        beat(ear);
        (lease_of(ear) == ear.engine | GRANTED).then_some(())
    });
}

fn beat(ear: &Ear) {
    ear.lease.as_ref().expect("shared").word(lease::BEATS).fetch_add(1, Ordering::Relaxed);
}

fn release(ear: &Ear) {
    ear.lease.as_ref().expect("shared").word(lease::LEASE).store(0, Ordering::Release);
    ear.agent.notify();
}

#[test]
fn a_datagram_comes_in() {
    let here = address();
    let agent = agent_at(here);
    let mut ear = Ear::new(&agent);
    assert_eq!(wire_word(&ear), 5, "the loopback interface carries 4096 bytes");
    let qpn = ear.qpn();
    let sender = Sender::new(here);
    let sent = datagram(qpn, 1000, 7);
    sender.send(&sent);
    assert_eq!(ear.await_record().arrival.hop_limit, 0, "not told while there is no datagram QP");
    ear.member(gid(std::net::Ipv4Addr::new(239, 1, 2, 3)));
    sender.send(&sent);
    let heard = ear.await_record();
    assert!(heard.bytes == sent);
    let SocketAddr::V4(from) = sender.socket.local_addr().expect("bound") else { panic!("an IPv4 socket") };
    assert_eq!((heard.arrival.from, heard.arrival.from_port), (gid(*from.ip()), from.port()));
    assert_eq!((heard.arrival.to, heard.arrival.hop_limit, heard.arrival.traffic_class), (gid(here), 64, 0));
    // Invalid datagrams do no harm.
    for len in [1, 2, 11, 15] {
        sender.send(&vec![0xff; len]);
    }
    sender.send(&datagram(qpn, 16, 8));
    assert_eq!(ear.await_record().bytes.len(), 16);
    assert_eq!(agent.handle.forwarder().drops().malformed, 4);
    let shown = agent.ask("devices");
    let gids = &shown["devices"][0]["ports"][0]["gids"];
    assert_eq!((gids[1]["wire"].as_bool(), gids[1]["why"].as_str()), (Some(true), None));
    assert_eq!(gids[0]["wire"].as_bool(), Some(false));
    assert!(gids[0]["why"].as_str().is_some_and(|why| why.contains("this agent only")), "{gids}");
    assert_eq!(shown["wire"]["mode"], "udp");
}

#[test]
fn a_sleeping_engine_is_woken() {
    let here = address();
    let agent = agent_at(here);
    let mut ear = Ear::new(&agent);
    let qpn = ear.qpn();
    ear.wake_word.arm();
    assert!(shm::sleeper_barrier());
    Sender::new(here).send(&datagram(qpn, 64, 1));
    eventually("the kick", || ear.kick.drain().then_some(()));
    assert!(ear.hear().is_some());
}

#[test]
fn an_engine_that_is_slow_hears_everything_all_the_same() {
    let here = address();
    let agent = agent_at(here);
    let mut ear = Ear::new(&agent);
    let qpn = ear.qpn();
    let sender = Sender::new(here);
    // More than the lane has room for.
    for mark in 0..=255 {
        sender.send(&datagram(qpn, 150, mark));
    }
    for mark in 0..=255 {
        let heard = eventually("a datagram", || {
            let heard = ear.hear();
            if ear.rx.ring.peer_waiting() {
                ear.rx.ring.clear_waiting();
                ear.agent.notify();
            }
            heard
        });
        assert!(heard.bytes == datagram(qpn, 150, mark), "number {mark}");
    }
    assert_eq!(agent.handle.forwarder().drops().ring_full, 0);
}

#[test]
fn an_agent_that_ends_leaves_its_port() {
    let here = address();
    let agent = agent_at(here);
    assert!(UdpSocket::bind((here, 4791)).is_err(), "the agent has it");
    drop(agent);
    UdpSocket::bind((here, 4791)).expect("free again");
}

#[test]
fn a_port_that_another_program_has_is_taken_when_it_is_free() {
    let here = address();
    let other = UdpSocket::bind((here, 4791)).expect("free");
    let agent = agent_at(here);
    let mut ear = Ear::new(&agent);
    assert_eq!((wire_word(&ear), ear.sockets().0.total), (0, 0));
    let epoch = |ear: &Ear| ear.board.word(board::word::WIRE_EPOCH).load(Ordering::Acquire);
    let before = epoch(&ear);
    let shown = agent.ask("devices");
    let entry = &shown["devices"][0]["ports"][0]["gids"][1];
    let why = format!("UDP port 4791 on {here} belongs to another program");
    assert_eq!((entry["wire"].as_bool(), entry["why"].as_str()), (Some(false), Some(why.as_str())));
    drop(other);
    eventually("the port", || (wire_word(&ear) == 5).then_some(()));
    eventually("the epoch", || (epoch(&ear) > before).then_some(()));
    let qpn = ear.qpn();
    Sender::new(here).send(&datagram(qpn, 64, 1));
    ear.await_record();
    assert_eq!(ear.sockets().0.epoch, epoch(&ear));
    assert_eq!(agent.ask("devices")["devices"][0]["ports"][0]["gids"][1]["wire"], true);
}

#[test]
fn a_holder_reads_the_sockets_itself_and_gives_back_what_is_others() {
    let here = address();
    let agent = agent_at(here);
    let (mut one, mut two) = (Ear::new(&agent), Ear::new(&agent));
    let (a, b) = (one.qpn(), two.qpn());
    let (answer, mut fds) = one.sockets();
    assert_eq!((answer.count, answer.total), (2, 2));
    let shown = [0, 1].map(|number| (answer.entries[number].gid, answer.entries[number].flags));
    assert_eq!(shown, [(gid(here), socket_flags::CONNECTED), (gid(here), 0)]);
    let socket = udp::Socket::from_fd(fds.remove(1));
    let sender = Sender::new(here);
    let mut buffer = vec![0; 65536];
    // If the lease is lost before the datagram arrives, the datagram comes by the lane.
    eventually("a datagram out of the socket", || {
        take_lease(&one);
        sender.send(&datagram(a, 64, 1));
        let len = eventually("a datagram", || {
            beat(&one);
            let read = socket.receive(&mut buffer).expect("readable").map(|received| received.len);
            read.or_else(|| one.hear().map(|_| 0))
        });
        (len == 64).then_some(())
    });
    // Misdelivered packets, short and long, belong to the other engine.
    for len in [100, 4000] {
        let misdelivered = datagram(b, len, 3);
        let mut arrival = Arrival {
            kind: arrival_kind::DATAGRAMS,
            segment: len as u16,
            len: len as u32,
            from: gid(address()),
            to: gid(here),
            ..Arrival::default()
        };
        if len + size_of::<Arrival>() <= RECORD_MAX {
            one.tx.ring.push(&[arrival.bytes(), &misdelivered].concat()).expect("room");
        } else {
            let slot = one.tx.bulk.put(&misdelivered).expect("sound").expect("room");
            (arrival.flags, arrival.bulk) = (arrival_flags::BULK, slot.offset);
            one.tx.ring.push(arrival.bytes()).expect("room");
        }
        one.agent.notify();
        beat(&one);
        assert!(two.await_record().bytes == misdelivered);
    }
    release(&one);
    sender.send(&datagram(a, 64, 5));
    assert_eq!(one.await_record().bytes[63], 5, "the agent reads on");
}

#[test]
fn datagrams_of_a_connected_socket_reach_the_engine_of_their_qp() {
    let here = address();
    let agent = agent_at(here);
    let (mut one, mut two) = (Ear::new(&agent), Ear::new(&agent));
    let (a, b) = (one.qpn(), two.qpn());
    let connected = udp::Socket::from_fd(one.sockets().1.remove(0));
    let (near, far) = (Sender::new(here), Sender::new(here));
    // While the lease is held, the agent does not read the connected socket either.
    let mut buffer = vec![0; 65536];
    eventually("a datagram out of the connected socket", || {
        take_lease(&one);
        connected.connect_receiver(Some(&near.socket.local_addr().expect("bound"))).expect("connected");
        near.send(&datagram(a, 64, 1));
        let len = eventually("a datagram", || {
            beat(&one);
            let read = connected.receive(&mut buffer).expect("readable").map(|received| received.len);
            read.or_else(|| one.hear().map(|_| 0))
        });
        (len == 64).then_some(())
    });
    // Without a holder, the agent forwards the datagrams of both sockets to their engines.
    release(&one);
    for (sender, mark) in [(&near, 2), (&far, 3), (&near, 4)] {
        sender.send(&datagram(a, 64, mark));
        assert_eq!(one.await_record().bytes[63], mark);
        sender.send(&datagram(b, 64, mark));
        assert_eq!(two.await_record().bytes[63], mark);
    }
    // The engine that connected the socket has ended, and still holds it open, as a stopped process
    // does.
    drop(one.client);
    for (sender, mark) in [(&near, 5), (&far, 6)] {
        sender.send(&datagram(b, 64, mark));
        assert_eq!(two.await_record().bytes[63], mark);
    }
}

#[test]
fn a_silent_holder_loses_the_claim() {
    let here = address();
    let agent = agent_at(here);
    let mut ear = Ear::new(&agent);
    let qpn = ear.qpn();
    take_lease(&ear);
    Sender::new(here).send(&datagram(qpn, 64, 1));
    ear.await_record();
    assert_eq!(lease_of(&ear), 0);
}

#[test]
fn the_lease_of_an_engine_that_ends_is_void() {
    let here = address();
    let agent = agent_at(here);
    let (one, mut two) = (Ear::new(&agent), Ear::new(&agent));
    let qpn = two.qpn();
    take_lease(&one);
    let page = one.lease.expect("shared");
    drop(one.client);
    Sender::new(here).send(&datagram(qpn, 64, 1));
    two.await_record();
    eventually("the end of the lease", || (page.word(lease::LEASE).load(Ordering::Acquire) == 0).then_some(()));
}

#[test]
fn an_engine_that_writes_nonsense_to_the_agent_is_cut_off() {
    let here = address();
    let agent = agent_at(here);
    let (mut bad, mut good) = (Ear::new(&agent), Ear::new(&agent));
    let qpn = good.qpn();
    bad.tx.ring.push(&[0xff; 200]).expect("room");
    bad.agent.notify();
    let refused = || {
        let page = bad.lease.as_ref().expect("shared");
        page.word(lease::LEASE).store(bad.engine, Ordering::Release);
        bad.agent.notify();
        std::thread::sleep(Duration::from_millis(1));
        (page.word(lease::LEASE).load(Ordering::Acquire) == 0).then_some(())
    };
    eventually("the end of its rights", refused);
    Sender::new(here).send(&datagram(qpn, 64, 1));
    good.await_record();
}

#[test]
fn groups_are_joined_while_they_have_members() {
    let here = address();
    let agent = agent_at(here);
    let mut ear = Ear::new(&agent);
    let random = address().octets();
    let group = Ipv4Addr::new(239, random[1], random[2], random[3]);
    let sender = udp::Socket::sender(address().into(), 0, 0).expect("a sender");
    let loopback = ear.sockets().0.entries[0].ifindex;
    let out = udp::Outgoing {
        to: (group, udp::PORT).into(),
        traffic_class: 0,
        service_level: 0,
        priority: None,
        hop_limit: 0,
        segment: 0,
        interface: loopback,
        connected: false,
        bytes: &datagram(0x00ff_ffff, 100, 9),
    };
    let member = ear.member(gid(group));
    // Its socket is open when ATTACH_MCAST is answered. It is never given away, because its
    // datagrams are for several engines.
    assert_eq!(ear.sockets().0.total, 2);
    sender.send(&out).expect("sent");
    let heard = ear.await_record();
    assert_eq!((heard.arrival.to, heard.bytes[99]), (gid(group), 9));
    assert!(ear.hear().is_none(), "one copy");
    ear.leave(gid(group), member);
    sender.send(&out).expect("sent");
    assert!(ear.hear().is_none(), "it has left");
}

#[test]
fn where_users_are_kept_apart_nobody_gets_the_sockets() {
    let here = address();
    let config = agent::Config { system: true, addresses: vec![IpAddr::V4(here)], ..agent::Config::default() };
    let agent = TestAgent::start_as(&config);
    let mut ear = Ear::new(&agent);
    assert!(ear.lease.is_none());
    let qpn = ear.qpn();
    ear.wake_word.arm();
    assert!(shm::sleeper_barrier());
    Sender::new(here).send(&datagram(qpn, 64, 1));
    rustix::net::sockopt::set_socket_timeout(&ear.push, rustix::net::sockopt::Timeout::Recv, Some(LONG)).expect("set");
    let mut bytes = [0; 64];
    let len = ear.push.recv(&mut bytes).expect("a push").len;
    assert_eq!(abi::private::Push::read(&bytes[..len]).map(|push| push.kind), Some(abi::private::push::WAKE));
    assert!(!ear.kick.drain(), "its eventfd could make the agent wait");
    ear.await_record();
}
