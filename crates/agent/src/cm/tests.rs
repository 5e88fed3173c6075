//! The manager without sockets of the wire: what becomes of ids when the host's addresses change, and who sees which ids.

use std::net::IpAddr;

use abi::layout::Record;
use abi::ucma::address::ResolveAddr;
use abi::ucma::connection::{EventAnswer, GetEvent, event};
use abi::ucma::id::{CreateId, CreateIdAnswer};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command, port_space};

use super::{ChannelId, Manager};
use crate::admin::Asker;
use crate::config::{Config, Wire};
use crate::context::Peer;
use crate::gids::HostAddress;
use crate::world::World;

struct Host {
    world: World,
    manager: Manager,
    channel: ChannelId,
}

impl Host {
    /// A host with these addresses, and one open channel.
    fn with(addresses: &[&str]) -> Self {
        let config = Config { wire: Wire::Off, ..Config::default() };
        let mut world = World::new(&config, "test").expect("a world");
        world.follow_addresses(&host(addresses));
        let mut manager = Manager::new(&world).expect("a manager");
        manager.follow_addresses(&world);
        let (channel, _bell) = manager.open(Peer { pid: 1, uid: 7, comm: "test".into() }, false).expect("a channel");
        Self { world, manager, channel }
    }

    fn call<T: Record>(&mut self, number: u32, body: &T, room: usize) -> Vec<u8> {
        let request = build(number, body, &[], room);
        let reply = self.manager.dispatch(&mut self.world, self.channel, &request, Vec::new());
        assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
        reply.bytes
    }

    fn event(&mut self) -> EventAnswer {
        let bytes = self.call(command::GET_EVENT, &GetEvent { response: 1 }, size_of::<EventAnswer>());
        EventAnswer::read(&bytes).expect("whole")
    }

    /// An id that is resolved to an address.
    fn resolved(&mut self, to: &str) -> u32 {
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        let id = CreateIdAnswer::read(&self.call(command::CREATE_ID, &body, 4)).expect("whole").id;
        let (dst_addr, dst_size) = Sockaddr::Ip((to.parse::<IpAddr>().expect(to), 1).into()).emit();
        let body = ResolveAddr { id, timeout_ms: 1, dst_size, dst_addr, ..ResolveAddr::default() };
        self.call(command::RESOLVE_ADDR, &body, 0);
        assert_eq!(self.event().event, event::ADDR_RESOLVED);
        id
    }
}

fn host(addresses: &[&str]) -> Vec<HostAddress> {
    addresses.iter().map(|ip| HostAddress { ip: ip.parse().expect(ip), ifindex: 2, mtu: 1500, prefix: 24 }).collect()
}

#[test]
fn who_loses_its_address_is_told_once() {
    let mut host_a = Host::with(&["10.0.0.1", "10.0.0.2"]);
    let (stays, goes) = (host_a.resolved("10.0.0.1"), host_a.resolved("10.0.0.2"));
    for _ in 0..2 {
        host_a.world.follow_addresses(&host(&["10.0.0.1"]));
        host_a.manager.follow_addresses(&host_a.world);
    }
    let told = host_a.event();
    assert_eq!((told.event, told.id), (event::ADDR_CHANGE, goes));
    let nothing = build(command::GET_EVENT, &GetEvent { response: 1 }, &[], 336);
    let reply = host_a.manager.dispatch(&mut host_a.world, host_a.channel, &nothing, Vec::new());
    assert_eq!(reply.status, abi::Errno::EAGAIN.to_status());
    assert!(host_a.manager.ids.get(stays).is_some_and(|id| id.attachment.is_some()));
}

#[test]
fn ids_are_shown_to_everybody_and_their_queue_pairs_to_their_user() {
    let mut host = Host::with(&["10.0.0.1"]);
    host.resolved("10.0.0.1");
    for (asker, full) in [(Asker::Root, true), (Asker::User(7), true), (Asker::User(8), false)] {
        let shown = host.manager.show(asker);
        assert_eq!(shown["ids"][0]["local"].as_str().map(|text| text.starts_with("10.0.0.1:")), Some(true));
        assert_eq!(shown["ids"][0]["qpn"].is_null(), !full, "{asker:?}");
    }
    let channel = host.channel;
    host.manager.close(&host.world, channel);
    assert_eq!(host.manager.status()["ids"], 0);
    assert!(host.manager.users.is_empty() && host.manager.tokens.is_empty() && host.manager.connections.is_empty());
}
