//! Tests of sockets over the loopback interface. Each test has its own ports, or addresses and
//! groups: tests run in parallel with an agent and with each other.

use crate::{BATCH_MAX, Outgoing, PORT, Received, SEGMENTS_MAX, Socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const LOOPBACK: u32 = 1;

/// A receiver on a free port, a sender, and a datagram from one to the other.
fn pair(local: IpAddr) -> (Socket, Socket, Outgoing<'static>) {
    let receiver = Socket::receiver_at(local, 0, 0).expect("a receiver");
    receiver.tell_hops().expect("told");
    let sender = Socket::sender(local, 0, hint()).expect("a sender");
    let to = SocketAddr::new(local, receiver.port());
    (
        sender,
        receiver,
        Outgoing {
            to,
            traffic_class: 0,
            service_level: 0,
            priority: None,
            hop_limit: 0,
            segment: 0,
            interface: 0,
            connected: false,
            bytes: b"datagram",
        },
    )
}

/// A first port that differs between processes, so that they do not all try the same ports.
fn hint() -> u16 {
    (std::process::id() * 37) as u16
}

/// Three bytes of this process, and a number of the test.
fn own(number: u8) -> [u8; 3] {
    let id = std::process::id();
    [(id >> 8) as u8, id as u8, number]
}

/// Waits for the next datagram.
fn next(socket: &Socket, buffer: &mut [u8]) -> Received {
    loop {
        wait(socket);
        if let Some(received) = socket.receive(buffer).expect("receive") {
            return received;
        }
    }
}

fn wait(fd: &impl AsFd) {
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    let count = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&minute)).expect("poll");
    assert_ne!(count, 0, "nothing arrived");
}

fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

#[test]
fn a_datagram_arrives_with_what_is_known_of_it() {
    for local in [V4, V6] {
        let (sender, receiver, out) = pair(local);
        let from = SocketAddr::new(local, sender.port());
        for (traffic_class, hop_limit, seen) in [(0, 0, 64), (106, 64, 64), (2, 1, 1), (255, 255, 255)] {
            sender.send(&Outgoing { traffic_class, hop_limit, ..out }).expect("send");
            let mut buffer = [0; 100];
            let received = next(&receiver, &mut buffer);
            assert_eq!(received, Received { len: 8, segment: 8, from, traffic_class, hop_limit: seen });
            assert_eq!(buffer[..8], *b"datagram");
        }
        assert_eq!(receiver.receive(&mut [0; 100]).expect("nothing is no error"), None);
    }
}

#[test]
fn a_burst_is_cut_and_merged() {
    for local in [V4, V6] {
        let (sender, receiver, out) = pair(local);
        for (len, segment, class) in
            [(4500, 1000, 0), (2000, 1000, 7), (BATCH_MAX, BATCH_MAX.div_ceil(SEGMENTS_MAX), 0)]
        {
            let bytes = numbered(len);
            sender.send(&Outgoing { bytes: &bytes, segment, traffic_class: class, hop_limit: 9, ..out }).expect("send");
            let (mut all, mut calls) = (Vec::new(), 0);
            while all.len() < len {
                let mut buffer = vec![0; 70_000];
                let received = next(&receiver, &mut buffer);
                assert_eq!((received.segment, received.traffic_class, received.hop_limit), (segment, class, 9));
                all.extend_from_slice(&buffer[..received.len]);
                calls += 1;
            }
            assert_eq!(all, bytes);
            assert!(calls < len.div_ceil(segment), "merged: {calls} calls");
        }
    }
}

#[test]
fn a_segment_as_long_as_everything_is_one_datagram() {
    let (sender, receiver, out) = pair(V4);
    for segment in [8, 9, 70_000] {
        sender.send(&Outgoing { segment, ..out }).expect("send");
        let received = next(&receiver, &mut [0; 100]);
        assert_eq!((received.len, received.segment), (8, 8));
    }
}

#[test]
fn empty_datagrams_and_cut_ones_arrive() {
    let (sender, receiver, out) = pair(V6);
    sender.send(&Outgoing { bytes: &[], ..out }).expect("send");
    assert_eq!(next(&receiver, &mut [0; 100]).len, 0);
    sender.send(&out).expect("send");
    let received = next(&receiver, &mut [0; 5]);
    assert_eq!((received.len, received.segment), (5, 5));
}

#[test]
fn sending_to_a_closed_port_returns_no_error() {
    for local in [V4, V6] {
        let (sender, _, out) = pair(local);
        let to = SocketAddr::new(local, 1);
        for _ in 0..3 {
            sender
                .send(&Outgoing { to, ..out })
                .expect("an ICMP message that an earlier one did not arrive is nobody's business");
        }
        assert_eq!(sender.receive(&mut [0; 100]).expect("not here either"), None);
    }
}

#[test]
fn a_datagram_above_65507_bytes_returns_emsgsize() {
    let (sender, receiver, out) = pair(V4);
    let error = sender.send(&Outgoing { bytes: &[0; 65_508], ..out }).expect_err("longer than a datagram may be");
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    sender.send(&Outgoing { bytes: &[0; 65_507], ..out }).expect("the longest");
    assert_eq!(next(&receiver, &mut [0; 70_000]).len, 65_507);
}

#[test]
fn senders_take_the_next_free_port() {
    let local = IpAddr::from([127, own(1)[0], own(1)[1], 1]);
    let first = Socket::sender(local, 0, 0xffff).expect("the last port of the range");
    let second = Socket::sender(local, 0, 0xffff).expect("the first");
    let third = Socket::sender(local, 0, 0).expect("a hint outside of the range");
    assert_eq!([first.port(), second.port(), third.port()], [0xffff, 0xc000, 0xc001]);
}

#[test]
fn a_receiver_is_alone() {
    let local = IpAddr::from([127, own(2)[0], own(2)[1], 2]);
    let receiver = Socket::receiver(local, 0).expect("a receiver");
    assert_eq!(receiver.port(), PORT);
    assert_eq!(Socket::receiver(local, 0).expect_err("taken").kind(), ErrorKind::AddrInUse);
    let foreign = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(Socket::receiver(foreign, 0).expect_err("for documentation").kind(), ErrorKind::AddrNotAvailable);
    assert_eq!(Socket::sender(foreign, 0, 0).expect_err("for documentation").kind(), ErrorKind::AddrNotAvailable);
    drop(receiver);
    Socket::receiver(local, 0).expect("free again");
}

#[test]
fn a_duplicate_receives_too() {
    let (sender, receiver, out) = pair(V4);
    let duplicate = Socket::from_fd(receiver.as_fd().try_clone_to_owned().expect("a duplicate"));
    assert_eq!(duplicate.port(), receiver.port());
    drop(receiver);
    sender.send(&Outgoing { traffic_class: 3, ..out }).expect("send");
    assert_eq!(next(&duplicate, &mut [0; 100]).traffic_class, 3);
}

#[test]
fn descriptors_are_closed_on_exec_and_do_not_wait() {
    let (sender, receiver, _) = pair(V6);
    for socket in [&sender, &receiver] {
        assert!(rustix::io::fcntl_getfd(socket).expect("flags").contains(rustix::io::FdFlags::CLOEXEC));
        assert!(rustix::fs::fcntl_getfl(socket).expect("flags").contains(rustix::fs::OFlags::NONBLOCK));
    }
}

#[test]
fn every_member_of_a_group_gets_a_copy() {
    let [a, b, c] = own(3);
    let (local, group) = (IpAddr::from([127, a, b, c]), IpAddr::from([239, a, b, c]));
    let members = [(); 2].map(|()| Socket::group_receiver(group, LOOPBACK).expect("a member"));
    members.iter().for_each(|member| member.tell_hops().expect("told"));
    let sender = Socket::sender(local, 0, hint()).expect("a sender");
    let to = SocketAddr::new(group, PORT);
    let out = Outgoing {
        to,
        traffic_class: 1,
        service_level: 0,
        priority: None,
        hop_limit: 0,
        segment: 0,
        interface: LOOPBACK,
        connected: false,
        bytes: b"to all",
    };
    sender.send(&out).expect("send");
    for member in &members {
        let mut buffer = [0; 100];
        let received = next(member, &mut buffer);
        assert_eq!((received.from, received.traffic_class), (SocketAddr::new(local, sender.port()), 1));
        assert_eq!((&buffer[..received.len], received.hop_limit), (&b"to all"[..], 64));
    }
}

/// The loopback interface has no route to an IPv6 group, so this test sends nothing.
#[test]
fn ipv6_groups_have_members_too() {
    let group = IpAddr::from([0xff0e, 0, 0, 0, 0, 0, u16::from_be_bytes([own(5)[0], own(5)[1]]), 5]);
    let members = [(); 2].map(|()| Socket::group_receiver(group, LOOPBACK).expect("a member"));
    assert_eq!(members.map(|member| member.port()), [PORT; 2]);
}

#[test]
fn only_a_group_has_members() {
    assert_eq!(Socket::group_receiver(V4, LOOPBACK).expect_err("no group").kind(), ErrorKind::InvalidInput);
    let group = IpAddr::from([239, 1, 1, 1]);
    assert!(Socket::group_receiver(group, i32::MAX.unsigned_abs()).is_err(), "no such interface");
}

/// The ICRC relies on this. The test needs the right to read whole packets.
#[test]
fn the_identification_is_zero() {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, ipproto, recv, socket_with};
    let Ok(raw) = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::UDP)) else {
        eprintln!("not looked at: no right to open a raw socket");
        return;
    };
    let local = Ipv4Addr::from([127, own(4)[0], own(4)[1], 4]);
    bind(&raw, &std::net::SocketAddrV4::new(local, 0)).expect("bind");
    let sender = Socket::sender(local.into(), 0, hint()).expect("a sender");
    let to = SocketAddr::new(local.into(), PORT);
    for _ in 0..3 {
        sender
            .send(&Outgoing {
                to,
                traffic_class: 0,
                service_level: 0,
                priority: None,
                hop_limit: 0,
                segment: 0,
                interface: 0,
                connected: false,
                bytes: b"",
            })
            .expect("send");
        let mut header = [0_u8; 64];
        // A raw socket also receives what other programs send to its address.
        while header[20..22] != sender.port().to_be_bytes() {
            wait(&raw);
            recv(&raw, &mut header[..], RecvFlags::empty()).expect("the packet");
        }
        assert_eq!(header[4..8], [0, 0, 0x40, 0], "identification 0, no fragments");
    }
}

/// The ICRC of a connected send socket relies on this. The test needs the right to read whole
/// packets.
#[test]
fn a_connected_sender_counts_from_the_number_that_it_told() {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, ipproto, recv, socket_with};
    let Ok(raw) = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::UDP)) else {
        eprintln!("not looked at: no right to open a raw socket");
        return;
    };
    let (here, there) =
        (Ipv4Addr::from([127, own(5)[0], own(5)[1], 5]), Ipv4Addr::from([127, own(6)[0], own(6)[1], 6]));
    bind(&raw, &std::net::SocketAddrV4::new(there, 0)).expect("bind");
    let _receiver = Socket::receiver(there.into(), 0).expect("a receiver");
    let sender = Socket::sender(here.into(), 0, hint()).expect("a sender");
    let to = SocketAddr::new(there.into(), PORT);
    let out = Outgoing {
        to,
        traffic_class: 0,
        service_level: 0,
        priority: None,
        hop_limit: 0,
        segment: 0,
        interface: 0,
        connected: true,
        bytes: &[7; 100],
    };
    let seen = |out: &Outgoing<'_>| {
        sender.send(out).expect("send");
        let mut header = [0_u8; 256];
        wait(&raw);
        recv(&raw, &mut header[..], RecvFlags::empty()).expect("the packet");
        assert_eq!(header[20..22], sender.port().to_be_bytes());
        u16::from_be_bytes([header[4], header[5]])
    };
    for _ in 0..2 {
        let next = sender.connect_sender(&to).expect("connected");
        assert_eq!(seen(&out), next);
        assert_eq!(seen(&Outgoing { connected: false, ..out }), next.wrapping_add(1), "named or not");
        assert_eq!(seen(&Outgoing { traffic_class: 8, hop_limit: 3, ..out }), next.wrapping_add(2));
        assert_eq!(seen(&Outgoing { segment: 40, ..out }), next.wrapping_add(3), "a burst takes one");
        // Loopback does not split bursts, so this is the next packet.
        assert_eq!(seen(&out), next.wrapping_add(4));
        sender.disconnect_sender().expect("disconnected");
        assert_eq!(seen(&Outgoing { connected: false, ..out }), 0);
    }
}

#[test]
fn habits_of_hop_limit_and_traffic_class_come_and_go() {
    for local in [V4, V6] {
        let (sender, receiver, out) = pair(local);
        let mut buffer = [0; 64];
        for (traffic_class, hop_limit) in [(8, 255), (0, 0), (8, 3), (9, 3)] {
            for (step, connected) in (0..50).zip([false, true].into_iter().cycle()) {
                if step == 25 {
                    sender.connect_sender(&out.to).expect("connected");
                }
                let connected = connected && step > 25;
                sender.send(&Outgoing { traffic_class, hop_limit, connected, ..out }).expect("send");
                let received = next(&receiver, &mut buffer);
                let seen = if hop_limit == 0 { 64 } else { hop_limit };
                assert_eq!((received.traffic_class, received.hop_limit), (traffic_class, seen), "step {step}");
            }
            // A single other value does not change the default.
            sender.send(&Outgoing { traffic_class: 1, hop_limit: 77, ..out }).expect("send");
            let received = next(&receiver, &mut buffer);
            assert_eq!((received.traffic_class, received.hop_limit), (1, 77));
        }
    }
}

#[test]
fn connected_or_not_everything_arrives() {
    for local in [V4, V6] {
        let (sender, receiver, out) = pair(local);
        let other = Socket::receiver_at(local, 0, 0).expect("a receiver");
        let elsewhere = SocketAddr::new(local, other.port());
        sender.connect_sender(&out.to).expect("connected");
        let mut buffer = [0; 64];
        for _ in 0..3 {
            sender.send(&Outgoing { connected: true, ..out }).expect("send");
            assert_eq!(next(&receiver, &mut buffer).from.port(), sender.port());
            sender.send(&Outgoing { to: elsewhere, ..out }).expect("send");
            assert_eq!(next(&other, &mut buffer).from.port(), sender.port());
        }
        sender.connect_sender(&elsewhere).expect("connected to another");
        sender.send(&Outgoing { to: elsewhere, connected: true, ..out }).expect("send");
        assert_eq!(next(&other, &mut buffer).from.port(), sender.port());
        sender.disconnect_sender().expect("disconnected");
        sender.send(&out).expect("send");
        assert_eq!(
            next(&receiver, &mut buffer).from,
            SocketAddr::new(local, sender.port()),
            "its address and port stay"
        );
    }
}

#[test]
fn news_of_a_lost_datagram_does_not_cost_the_next_one() {
    for local in [V4, V6] {
        let (sender, receiver, out) = pair(local);
        sender.connect_sender(&out.to).expect("connected");
        let port = receiver.port();
        drop(receiver);
        // No socket has the port: the host reports it to the next send.
        for _ in 0..3 {
            sender.send(&Outgoing { connected: true, ..out }).expect("send");
        }
        let receiver = Socket::receiver_at(local, port, 0).expect("a receiver");
        sender.send(&Outgoing { connected: true, ..out }).expect("send");
        assert_eq!(next(&receiver, &mut [0; 64]).len, out.bytes.len());
    }
}

#[test]
fn where_there_is_no_route_nothing_is_connected() {
    let (sender, receiver, out) = pair(V4);
    let v6 = SocketAddr::new(V6, 1);
    sender.connect_sender(&v6).expect_err("another family");
    sender.send(&out).expect("send");
    assert_eq!(next(&receiver, &mut [0; 64]).len, out.bytes.len());
}

/// Whether there is no datagram to receive.
fn is_empty(socket: &Socket) -> bool {
    socket.receive(&mut [0; 64]).expect("receive").is_none()
}

/// The next datagram from `receive_bytes`.
fn bytes_of(socket: &Socket) -> Vec<u8> {
    wait(socket);
    let mut buffer = [0; 64];
    let len = socket.receive_bytes(&mut buffer).expect("receive").expect("it has come");
    assert_eq!(socket.receive_bytes(&mut []).expect("receive"), None, "nothing else has");
    buffer[..len].to_vec()
}

#[test]
fn a_connected_receiver_hears_the_sender_that_it_is_connected_to() {
    for local in [V4, V6] {
        let (receiver, connected) = Socket::receiver_pair_at(local, 0, 0).expect("a receiver");
        let connected = connected.expect("a connected socket");
        assert_eq!(receiver.port(), connected.port());
        let [one, two] = [0, 1].map(|step| Socket::sender(local, 0, hint().wrapping_add(step)).expect("a sender"));
        let to = SocketAddr::new(local, receiver.port());
        let say = |sender: &Socket, bytes: &[u8]| {
            let out = Outgoing {
                to,
                traffic_class: 0,
                service_level: 0,
                priority: None,
                hop_limit: 0,
                segment: 4,
                interface: 0,
                connected: false,
                bytes,
            };
            sender.send(&out).expect("sent");
        };
        let heard = |socket: &Socket, len, segment, from: &Socket| {
            let received = next(socket, &mut [0; 64]);
            let from = SocketAddr::new(local, from.port());
            assert_eq!((received.len, received.segment, received.from), (len, segment, from));
        };
        say(&one, b"1");
        heard(&receiver, 1, 1, &one);
        assert!(is_empty(&connected), "it is connected to nobody yet");
        connected.connect_receiver(Some(&SocketAddr::new(local, one.port()))).expect("connected");
        say(&two, b"2 ");
        say(&one, b"eight as");
        heard(&connected, 8, 4, &one);
        assert!(is_empty(&connected), "another one's is for the other socket");
        heard(&receiver, 2, 2, &two);
        assert!(is_empty(&receiver));
        // Datagrams that have arrived stay in the socket.
        say(&one, b"before");
        connected.connect_receiver(Some(&SocketAddr::new(local, two.port()))).expect("connected anew");
        say(&two, b"after");
        say(&one, b"past it");
        heard(&connected, 6, 4, &one);
        assert_eq!(bytes_of(&connected), b"after", "nothing but the bytes");
        heard(&receiver, 7, 4, &one);
        connected.connect_receiver(None).expect("connected to nobody");
        say(&two, b"xy");
        heard(&receiver, 2, 2, &two);
        assert!(is_empty(&connected));
    }
}

#[test]
fn a_connected_receiver_that_cannot_connect_stays_as_it_was() {
    let (receiver, connected) = Socket::receiver_pair_at(V4, 0, 0).expect("a receiver");
    let connected = connected.expect("a connected socket");
    connected.connect_receiver(Some(&SocketAddr::new(V6, 1))).expect_err("another family");
    let sender = Socket::sender(V4, 0, hint()).expect("a sender");
    let to = SocketAddr::new(V4, receiver.port());
    let out = Outgoing {
        to,
        traffic_class: 0,
        service_level: 0,
        priority: None,
        hop_limit: 0,
        segment: 0,
        interface: 0,
        connected: false,
        bytes: b"x",
    };
    sender.send(&out).expect("sent");
    assert_eq!(next(&receiver, &mut [0; 64]).len, 1);
    assert!(is_empty(&connected));
}

/// Binds a socket that would share its port with any other socket.
fn joins(to: SocketAddr) -> std::io::Result<()> {
    let socket = crate::socket::unbound(&to.ip())?;
    crate::socket::set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    crate::socket::set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    Ok(rustix::net::bind(&socket, &to)?)
}

#[test]
fn a_pair_of_receivers_lets_nobody_in() {
    for local in [V4, V6] {
        let (receiver, connected) = Socket::receiver_pair_at(local, 0, 0).expect("a receiver");
        let to = SocketAddr::new(local, receiver.port());
        let refused = || {
            let port = to.port();
            for taken in [
                Socket::receiver_pair_at(local, port, 0).map(drop),
                Socket::receiver_at(local, port, 0).map(drop),
                joins(to),
            ] {
                assert_eq!(taken.expect_err("taken").kind(), ErrorKind::AddrInUse);
            }
        };
        refused();
        // Each socket of the pair holds the port exclusively.
        drop(receiver);
        refused();
        drop(connected);
        joins(to).expect("free");
        let (receiver, connected) = Socket::receiver_pair_at(local, to.port(), 0).expect("free");
        drop(connected);
        refused();
        drop(receiver);
    }
}
