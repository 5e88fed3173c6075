//! Datagram services (SIDR) and multicast groups.

use abi::Errno;
use abi::qp::{attr, state};
use abi::ucma::connection::{Disconnect, JoinIpMcast, JoinMcast, event, join_flags};
use abi::ucma::id::{CreateIdAnswer, DestroyId, DestroyIdAnswer};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{command, port_space};

use crate::common::TestAgent;
use crate::harness::{Channel, TCP, UDP, here, param, resolve};

#[test]
fn a_service_tells_its_queue_pair() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    for (ps, qkey) in [(UDP, 0x0123_4567), (port_space::IPOIB, 0x0b1b)] {
        let listener = server.listener(1, ps, here(0), 2);
        let active = client.routed(2, ps, here(server.port(listener)));
        assert_eq!(client.qp_attr(active, state::INIT).qkey, qkey);
        client.connect(active, param(0x77, b"question"));
        let (passive, request) = server.request(1);
        assert_eq!((&request.ud().private_data[..9], request.ud().private_data_len), (&b"question\0"[..], 180));
        server.accept(3, passive, param(0x88, b"answer"));
        let told = client.expect(active, event::ESTABLISHED).ud();
        assert_eq!((told.qp_num, told.qkey, told.private_data_len), (0x88, qkey, 136));
        assert_eq!(&told.private_data[..7], b"answer\0");
        assert_eq!((told.ah_attr.is_global, told.ah_attr.port_num), (1, 1));
        assert_eq!(client.qp_attr(active, state::RTS).qp_attr_mask, attr::STATE | attr::SQ_PSN);
        client.refused(command::DISCONNECT, &Disconnect { id: active }, Errno::EINVAL);
        client.destroy(active);
        server.destroy(passive);
        server.destroy(listener);
    }
}

#[test]
fn a_service_declines_or_is_not_there() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(1, UDP, here(0), 2);
    let active = client.routed(2, UDP, here(server.port(listener)));
    client.connect(active, param(0x77, &[]));
    let (passive, _) = server.request(1);
    server.reject(passive, b"why");
    let told = client.expect(active, event::UNREACHABLE);
    assert_eq!((told.status(), &told.ud().private_data[..4]), (2, &b"why\0"[..]));
    let active = client.routed(2, UDP, here(1));
    client.connect(active, param(0x77, &[]));
    let told = client.expect(active, event::UNREACHABLE);
    assert_eq!(told.status(), 1);
    assert!(told.sentence.contains("nobody listens"), "{}", told.sentence);
    // The requesting side goes before the answer.
    let active = client.routed(2, UDP, here(server.port(listener)));
    client.connect(active, param(0x77, &[]));
    let (passive, _) = server.request(1);
    client.destroy(active);
    server.accept(3, passive, param(1, &[]));
    assert!(!client.is_readable());
}

fn join(id: u32, group: &str) -> JoinMcast {
    let (addr, addr_size) = Sockaddr::Ip((group.parse::<std::net::IpAddr>().expect(group), 0).into()).emit();
    JoinMcast { response: 1, uid: 55, id, addr_size, join_flags: join_flags::FULLMEMBER, addr }
}

#[test]
fn groups() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(1, UDP);
    channel.refused(command::JOIN_MCAST, &join(id, "239.1.2.3"), Errno::EINVAL);
    // The address of a group is resolved like any other.
    channel.ok(command::RESOLVE_ADDR, &resolve(id, ([239, 1, 2, 3], 0).into()), &[]);
    channel.expect(id, event::ADDR_RESOLVED);
    let member = channel.call(command::JOIN_MCAST, &join(id, "239.1.2.3"), &[], 4).get::<CreateIdAnswer>(0).id;
    let told = channel.expect(member, event::MULTICAST_JOIN);
    assert_eq!((told.answer.uid, told.ud().qp_num, told.ud().qkey), (55, 0xff_ffff, 0x0123_4567));
    assert_eq!(told.ud().ah_attr.dgid[10..], [0xff, 0xff, 239, 1, 2, 3]);
    channel.refused(command::JOIN_MCAST, &join(id, "239.1.2.3"), Errno::EADDRINUSE);
    channel.refused(command::JOIN_MCAST, &join(id, "10.1.2.3"), Errno::EINVAL);
    let mut bad = join(id, "239.1.2.4");
    bad.join_flags = 7;
    channel.refused(command::JOIN_MCAST, &bad, Errno::EINVAL);
    let addr = Sockaddr::Ip("[ff05::7]:0".parse().expect("an address")).short();
    let body = JoinIpMcast { response: 1, uid: 66, addr, id };
    let second = channel.call(command::JOIN_IP_MCAST, &body, &[], 4).get::<CreateIdAnswer>(0).id;
    let leave = |id| DestroyId { response: 1, id, reserved: 0 };
    let left: DestroyIdAnswer = channel.call(command::LEAVE_MCAST, &leave(second), &[], 8).get(0);
    assert_eq!((left.events_reported, left.event_bytes), (0, 1));
    assert_eq!(channel.take(1), 1);
    let left: DestroyIdAnswer = channel.call(command::LEAVE_MCAST, &leave(member), &[], 8).get(0);
    assert_eq!((left.events_reported, left.event_bytes), (1, 0));
    channel.refused(command::LEAVE_MCAST, &leave(member), Errno::ENOENT);
    // The remaining memberships go with the id, or with the channel.
    for last in 0..64 {
        let joined = channel.call(command::JOIN_MCAST, &join(id, &format!("239.9.9.{last}")), &[], 4);
        assert_eq!(joined.status, 0);
    }
    channel.refused(command::JOIN_MCAST, &join(id, "239.9.9.100"), Errno::ENOMEM);
    channel.destroy(id);
    assert!(!channel.is_readable());
    assert_eq!(agent.ask("status")["manager"]["memberships"], 0);
    let connected = channel.create(1, TCP);
    channel.bind(connected, here(0));
    channel.refused(command::JOIN_MCAST, &join(connected, "239.1.2.3"), Errno::EINVAL);
}
