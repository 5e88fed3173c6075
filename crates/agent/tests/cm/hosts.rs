//! Connections between two agents, each with its own address, through datagrams on their QP 1.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr};

use abi::qp::state;
use abi::ucma::connection::event;

use crate::common::TestAgent;
use crate::harness::{Channel, TCP, UDP, param};

/// An agent at a loopback address that no other test uses.
fn host(last: u8) -> (TestAgent, Ipv4Addr) {
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let ip = Ipv4Addr::new(127, random[0].max(1), random[1], last);
    (TestAgent::start_with(&format!("addresses = ['{ip}']")), ip)
}

#[test]
fn two_agents_connect_and_part() {
    let ((here, _), (there, ip)) = (host(11), host(12));
    let (mut server, mut client) = (Channel::open(&there.dir), Channel::open(&here.dir));
    let listener = server.listener(1, TCP, SocketAddr::from((ip, 0)), 5);
    let to = SocketAddr::from((ip, server.port(listener)));
    let active = client.routed(2, TCP, to);
    client.connect(active, param(0x11, b"over the wire"));
    let (passive, request) = server.request(1);
    assert_eq!(&request.conn().private_data[..14], b"over the wire\0");
    server.accept(3, passive, param(0x22, b"and back"));
    let response = client.expect(active, event::CONNECT_RESPONSE);
    assert_eq!(&response.conn().private_data[..9], b"and back\0");
    let (ours, theirs) = (client.qp_attr(active, state::RTR), server.qp_attr(passive, state::RTR));
    assert_eq!((ours.dest_qp_num, theirs.dest_qp_num), (0x22, 0x11));
    assert_eq!(ours.ah_attr.dgid, ip.to_ipv6_mapped().octets());
    client.use_it(active);
    server.expect(passive, event::ESTABLISHED);
    assert!(here.ask("status")["manager"]["sent"].as_u64() >= Some(2));
    client.disconnect(active);
    server.expect(passive, event::DISCONNECTED);
    server.disconnect(passive);
    client.expect(active, event::DISCONNECTED);
    client.expect(active, event::TIMEWAIT_EXIT);
    server.expect(passive, event::TIMEWAIT_EXIT);
}

#[test]
fn connecting_to_another_host_without_a_listener_fails() {
    let ((here, _), (_there, ip)) = (host(21), host(22));
    let mut client = Channel::open(&here.dir);
    let active = client.routed(2, TCP, (ip, 9).into());
    client.connect(active, param(0x11, &[]));
    assert_eq!(client.expect(active, event::REJECTED).status(), 8);
    let active = client.routed(2, UDP, (ip, 9).into());
    client.connect(active, param(0x11, &[]));
    assert_eq!(client.expect(active, event::UNREACHABLE).status(), 1);
}

#[test]
fn a_client_that_dies_is_missed_on_the_other_host() {
    let ((here, _), (there, ip)) = (host(31), host(32));
    let (mut server, mut client) = (Channel::open(&there.dir), Channel::open(&here.dir));
    let listener = server.listener(1, TCP, SocketAddr::from((ip, 0)), 5);
    let active = client.routed(2, TCP, (ip, server.port(listener)).into());
    client.connect(active, param(0x11, &[]));
    let (passive, _) = server.request(1);
    server.accept(3, passive, param(0x22, &[]));
    client.expect(active, event::CONNECT_RESPONSE);
    client.use_it(active);
    server.expect(passive, event::ESTABLISHED);
    drop(client);
    server.expect(passive, event::DISCONNECTED);
    server.destroy(passive);
    here.eventually("status", |status| status["manager"]["connections"] == 0);
}

#[test]
fn a_datagram_service_on_the_other_host() {
    let ((here, _), (there, ip)) = (host(41), host(42));
    let (mut server, mut client) = (Channel::open(&there.dir), Channel::open(&here.dir));
    let listener = server.listener(1, UDP, SocketAddr::from((ip, 0)), 5);
    let active = client.routed(2, UDP, (ip, server.port(listener)).into());
    client.connect(active, param(0x11, b"who"));
    let (passive, _) = server.request(1);
    server.accept(3, passive, param(0x22, &[]));
    let told = client.expect(active, event::ESTABLISHED).ud();
    assert_eq!((told.qp_num, told.ah_attr.dgid), (0x22, ip.to_ipv6_mapped().octets()));
}
