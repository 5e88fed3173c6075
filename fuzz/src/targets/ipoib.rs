//! Packets to an interface of IP over InfiniBand, from its host and from neighbours. What it keeps
//! stays bounded, and afterwards it still answers for the host's address.

use crate::Feed;
use ipoib::arp::Arp;
use ipoib::offload::Offload;
use ipoib::{
    Config, Connect, EtherType, Event, HostPacket, Interface, LinkAddress, OwnAddress, Partition, Target, Time,
};
use std::net::{IpAddr, Ipv4Addr};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// More neighbours, groups or connections than this are not bounded.
const MOST: usize = 1 << 16;

pub(crate) fn run(bytes: &[u8]) {
    let mut feed = Feed(bytes);
    let what = feed.byte();
    let link = LinkAddress { flags: LinkAddress::RC, qpn: 0x48, gid: [0xfe; 16] };
    let connected = (what & 1 != 0).then_some(Connect::Reliable);
    let config = Config { link, partition: Partition { pkey: 0xffff, scope: 2 }, mtu: 2044, connected };
    let mut now = Time::default();
    let mut interface = Interface::new(config, now);
    let own = OwnAddress { ip: IpAddr::V4(OWN), prefix: 24 };
    interface.set_routes(vec![own], Vec::new(), now);
    interface.joined(&config.partition.broadcast(), true, now);
    while !feed.is_empty() {
        now += std::time::Duration::from_millis(u64::from(feed.byte()) * 20);
        let (what, len) = (feed.byte(), usize::from(feed.byte()));
        let body = feed.take(len);
        match what % 4 {
            0 => send(&mut interface, body, now),
            1 => interface.tick(now),
            2 => drop(interface.incoming(body, now).map(<[u8]>::len)),
            _ => {
                let kind = [EtherType::Arp, EtherType::Ipv6, EtherType::Ipv4][usize::from(what >> 2) % 3];
                let _ = interface.incoming(&[&kind.header()[..], body].concat(), now);
            }
        }
        while let Some(event) = interface.poll() {
            follow(&mut interface, event, what, now);
        }
        let (neighbours, groups, connections) = interface.sizes();
        assert!(neighbours.max(groups).max(connections) < MOST);
    }
    well(&mut interface, now);
}

/// A packet of the host, alone, or behind the header that says what is left to do for it.
fn send(interface: &mut Interface, bytes: &[u8], now: Time) {
    if let Some(packet) = HostPacket::whole(bytes) {
        let _ = interface.outgoing(&packet, now);
    }
    let Some((offload, packet)) = bytes.split_first_chunk::<{ Offload::LEN }>() else { return };
    let Some(packet) = HostPacket::parse(offload, packet) else { return };
    let _ = interface.outgoing(&packet, now);
    let mut segment = [0; 256];
    let mut sum = 0;
    while let Some(len) = packet.segment(sum, &mut segment) {
        assert!(len <= packet.longest());
        sum += 1;
    }
}

fn follow(interface: &mut Interface, event: Event, what: u8, now: Time) {
    match event {
        Event::Resolve(link) => drop(interface.resolved(link, what & 0x40 == 0, now)),
        Event::Join(mgid, _) => drop(interface.joined(&mgid, what & 0x80 == 0, now)),
        Event::Connect(link) => drop(interface.connected(link, (what & 0x20 == 0).then_some(65520), now)),
        _ => {}
    }
}

/// A neighbour asks for the host's address, and gets an answer.
fn well(interface: &mut Interface, now: Time) {
    let sender = LinkAddress { flags: 0, qpn: 0x77, gid: [0xfd; 16] };
    let sender_ip = Ipv4Addr::new(10, 1, 0, 2);
    let request = Arp { reply: false, sender, sender_ip, target: [0; 20], target_ip: OWN };
    let _ = interface.incoming(&[&EtherType::Arp.header()[..], &request.bytes()].concat(), now);
    let mut answered = false;
    while let Some(event) = interface.poll() {
        answered |= matches!(event, Event::Send(Target::Neighbour(to), _) if to == sender);
        follow(interface, event, 0, now);
    }
    assert!(answered, "the neighbour gets an answer");
}
