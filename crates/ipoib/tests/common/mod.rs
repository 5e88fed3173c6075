//! Interfaces of one link in simulated time: datagrams arrive at once, joins and paths are granted.
//! Principal type: [`Net`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use softhca_ipoib::{
    Config, Connect, EtherType, Event, HostPacket, Interface, LinkAddress, Membership, Outgoing, OwnAddress, Partition,
    Target,
};

pub(crate) const MTU: usize = 2044;
/// The longest packet of a connection.
pub(crate) const CONNECTED: usize = 65520;
pub(crate) const PARTITION: Partition = Partition { pkey: 0xffff, scope: 2 };

/// One host.
pub(crate) struct Host {
    pub(crate) interface: Interface,
    pub(crate) link: LinkAddress,
    /// The groups that were joined.
    pub(crate) groups: BTreeMap<[u8; 16], Membership>,
    /// What the host's IP stack has received.
    pub(crate) received: Vec<Vec<u8>>,
    /// Whether groups and paths are refused.
    pub(crate) refuses: bool,
    pub(crate) resolves: usize,
    pub(crate) forgotten: Vec<LinkAddress>,
    pub(crate) groups_changed: usize,
    pub(crate) connects: Vec<LinkAddress>,
    pub(crate) disconnects: Vec<LinkAddress>,
}

/// A link.
pub(crate) struct Net {
    pub(crate) hosts: Vec<Host>,
    pub(crate) now: Duration,
    /// Every datagram: the sender, the target, the payload.
    pub(crate) sent: Vec<(usize, Target, Vec<u8>)>,
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

pub(crate) fn link(qpn: u32) -> LinkAddress {
    LinkAddress { flags: 0, qpn, gid: [7; 16] }
}

/// A packet of UDP with this many bytes of content.
pub(crate) fn packet(from: &str, to: &str, content: usize) -> Vec<u8> {
    match (ip(from), ip(to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0; 20 + content];
            (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
            packet[12..16].copy_from_slice(&from.octets());
            packet[16..20].copy_from_slice(&to.octets());
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut packet = vec![0; 40 + content];
            (packet[0], packet[6], packet[7]) = (0x60, 17, 64);
            packet[8..24].copy_from_slice(&from.octets());
            packet[24..40].copy_from_slice(&to.octets());
            packet
        }
        _ => panic!("two families"),
    }
}

impl Net {
    /// Hosts with these addresses; their QPNs are 16, 17, …
    pub(crate) fn new(hosts: &[&[&str]]) -> Self {
        let mut net = Self { hosts: Vec::new(), now: Duration::ZERO, sent: Vec::new() };
        hosts.iter().for_each(|addresses| net.add(addresses));
        net
    }

    /// Adds a host that only sends datagrams.
    pub(crate) fn add(&mut self, addresses: &[&str]) {
        self.add_with(addresses, None);
    }

    /// Adds a host.
    pub(crate) fn add_with(&mut self, addresses: &[&str], connected: Option<Connect>) {
        let flags = connected.map_or(0, Connect::flag);
        let link = LinkAddress { flags, ..link(16 + self.hosts.len() as u32) };
        let interface = Interface::new(Config { link, partition: PARTITION, mtu: MTU, connected }, self.now);
        self.hosts.push(Host {
            interface,
            link,
            groups: BTreeMap::new(),
            received: Vec::new(),
            refuses: false,
            resolves: 0,
            forgotten: Vec::new(),
            groups_changed: 0,
            connects: Vec::new(),
            disconnects: Vec::new(),
        });
        let own = addresses.iter().map(|text| OwnAddress { ip: ip(text), prefix: 24 }).collect();
        let at = self.hosts.len() - 1;
        self.hosts[at].interface.set_routes(own, Vec::new(), self.now);
        self.settle();
    }

    /// A host sends a packet.
    pub(crate) fn send(&mut self, at: usize, packet: &[u8]) -> Outgoing {
        let outgoing = self.hosts[at].interface.outgoing(&HostPacket::whole(packet).expect("an IP packet"), self.now);
        if let Outgoing::To(target) = outgoing {
            let kind = EtherType::of_ip(packet).expect("an IP packet");
            self.arrive(at, target, [&kind.header()[..], packet].concat());
        }
        self.settle();
        outgoing
    }

    /// Time passes, in steps that miss no timer.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(500);
            let now = self.now;
            self.hosts.iter_mut().for_each(|host| host.interface.tick(now));
            self.settle();
        }
    }

    /// Takes events until there are none.
    pub(crate) fn settle(&mut self) {
        while let Some((at, event)) =
            self.hosts.iter_mut().enumerate().find_map(|(at, host)| Some((at, host.interface.poll()?)))
        {
            let (host, now) = (&mut self.hosts[at], self.now);
            match event {
                Event::Send(target, payload) => self.arrive(at, target, payload),
                Event::Deliver(packet) => host.received.push(packet),
                Event::Resolve(link) => {
                    host.resolves += 1;
                    host.interface.resolved(link, !host.refuses, now);
                }
                Event::Forget(link) => host.forgotten.push(link),
                Event::Join(mgid, membership) => {
                    if !host.refuses {
                        host.groups.insert(mgid, membership);
                    }
                    assert!(host.interface.joined(&mgid, !host.refuses, now), "it was asked for");
                }
                Event::Leave(mgid) => {
                    host.groups.remove(&mgid);
                }
                Event::Connect(link) => host.connects.push(link),
                Event::Disconnect(link) => host.disconnects.push(link),
                Event::GroupsChanged => host.groups_changed += 1,
            }
        }
    }

    fn arrive(&mut self, from: usize, target: Target, payload: Vec<u8>) {
        let longest = if let Target::Connection(_) = target { CONNECTED } else { MTU };
        assert!(payload.len() <= longest + 4, "longer than the MTU");
        let now = self.now;
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let hears = match target {
                Target::Neighbour(link) => link == host.link,
                Target::Connection(link) => link == host.link,
                Target::Group(mgid) => at != from && host.groups.get(&mgid) == Some(&Membership::Full),
            };
            if hears && let Some(packet) = host.interface.incoming(&payload, now) {
                host.received.push(packet.to_vec());
            }
        }
        self.sent.push((from, target, payload));
    }
}
