//! ARP and neighbour discovery on behalf of the host: asks for its neighbours, and answers for its
//! own addresses and for no others. RFC 826, RFC 4861 7.2. Adds to [`Interface`].

use std::net::{IpAddr, Ipv6Addr};

use crate::address::LinkAddress;
use crate::arp::Arp;
use crate::event::{Event, Target};
use crate::header::EtherType;
use crate::interface::Interface;
use crate::ndisc::{self, Message};
use crate::neighbours::{NeighbourStep, Told};
use crate::time::Time;

/// All nodes of the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl Interface {
    pub(crate) fn follow(&mut self, steps: Vec<NeighbourStep>, now: Time) {
        for step in steps {
            match step {
                NeighbourStep::Ask(ip) => self.ask(ip, None, now),
                NeighbourStep::Probe(ip, link) => self.ask(ip, Some(link), now),
                NeighbourStep::Resolve(link) => self.push(Event::Resolve(link)),
                NeighbourStep::Send(link, payload) => self.send_held(link, payload, now),
                NeighbourStep::Unreachable(payload) => self.refuse(&payload),
                NeighbourStep::Forget(link) => self.forget(link, now),
            }
        }
    }

    /// Asks for a neighbour: everybody, or itself.
    fn ask(&mut self, ip: IpAddr, link: Option<LinkAddress>, now: Time) {
        let source = self.routes.source_for(ip);
        match (ip, source) {
            (IpAddr::V4(target_ip), source) => {
                let sender_ip = match source {
                    Some(IpAddr::V4(ip)) => ip,
                    _ => std::net::Ipv4Addr::UNSPECIFIED,
                };
                let arp =
                    Arp { reply: false, sender: self.config.link, sender_ip, target: [0; LinkAddress::LEN], target_ip };
                let broadcast = Target::Group(self.config.partition.broadcast());
                self.send(link.map_or(broadcast, Target::Neighbour), EtherType::Arp, &arp.bytes());
            }
            (IpAddr::V6(target), Some(IpAddr::V6(from))) => {
                let to = if link.is_some() { target } else { ndisc::solicited_node(target) };
                let own = Some(self.config.link);
                let message = Message { from, to, target, advertisement: false, solicited: false, link: own };
                match link {
                    Some(link) => self.send(Target::Neighbour(link), EtherType::Ipv6, &message.bytes()),
                    None => self.send_to_group(to, &message.bytes(), now),
                }
            }
            // Without an address of its own, the host has nobody to ask as.
            (IpAddr::V6(_), _) => {}
        }
    }

    /// Tells everybody where an own address is now, because a queue pair has a new number each
    /// time.
    pub(crate) fn announce(&mut self, ip: IpAddr, now: Time) {
        let link = self.config.link;
        match ip {
            IpAddr::V4(ip) => {
                let arp =
                    Arp { reply: false, sender: link, sender_ip: ip, target: [0; LinkAddress::LEN], target_ip: ip };
                self.send(Target::Group(self.config.partition.broadcast()), EtherType::Arp, &arp.bytes());
            }
            IpAddr::V6(ip) => {
                let (to, link) = (ALL_NODES, Some(link));
                let message = Message { from: ip, to, target: ip, advertisement: true, solicited: false, link };
                self.send_to_group(to, &message.bytes(), now);
            }
        }
    }

    pub(crate) fn arp(&mut self, packet: &[u8], now: Time) {
        let Some(arp) = Arp::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        let sender = IpAddr::V4(arp.sender_ip);
        let asks_us = !arp.reply && self.routes.is_own(arp.target_ip.into());
        if arp.sender == self.config.link || self.routes.is_own(sender) || !arp.sender.is_usable() {
            return;
        }
        let named = !sender.is_unspecified() && !sender.is_multicast();
        if named {
            let announces = sender == arp.target_ip;
            self.learn(Told { ip: sender, link: arp.sender, asks: asks_us, announces }, now);
        }
        if !asks_us {
            return;
        }
        self.counters.answered += 1;
        let answer = Arp {
            reply: true,
            sender: self.config.link,
            sender_ip: arp.target_ip,
            target: arp.sender.bytes(),
            target_ip: arp.sender_ip,
        };
        if named {
            self.send_or_hold(sender, EtherType::Arp, &answer.bytes(), now);
        } else {
            self.send(Target::Group(self.config.partition.broadcast()), EtherType::Arp, &answer.bytes());
        }
    }

    pub(crate) fn neighbour_discovery(&mut self, packet: &[u8], now: Time) {
        let Some(message) = Message::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        let (from, target) = (IpAddr::V6(message.from), IpAddr::V6(message.target));
        if message.link == Some(self.config.link) || self.routes.is_own(from) {
            return;
        }
        let link = message.link.filter(LinkAddress::is_usable);
        if message.advertisement {
            match link {
                Some(link) if !self.routes.is_own(target) => {
                    let announces = !message.solicited;
                    self.learn(Told { ip: target, link, asks: false, announces }, now);
                }
                None if message.solicited => self.neighbours.confirm(target, now),
                _ => {}
            }
            return;
        }
        let asks_us = self.routes.is_own(target);
        let named = !message.from.is_unspecified() && !message.from.is_multicast();
        if let Some(link) = link.filter(|_| named) {
            self.learn(Told { ip: from, link, asks: asks_us, announces: false }, now);
        }
        if !asks_us {
            return;
        }
        self.counters.answered += 1;
        let own = Some(self.config.link);
        let to = if named { message.from } else { ALL_NODES };
        let answer = Message {
            from: message.target,
            to,
            target: message.target,
            advertisement: true,
            solicited: named,
            link: own,
        };
        if named {
            self.send_or_hold(from, EtherType::Ipv6, &answer.bytes(), now);
        } else {
            self.send_to_group(to, &answer.bytes(), now);
        }
    }

    fn learn(&mut self, told: Told, now: Time) {
        let mut steps = Vec::new();
        self.neighbours.learn(told, now, &mut steps);
        self.follow(steps, now);
    }

    fn send_or_hold(&mut self, ip: IpAddr, kind: EtherType, packet: &[u8], now: Time) {
        match self.neighbours.find(ip, now) {
            Some(link) => self.send(Target::Neighbour(link), kind, packet),
            None => {
                self.hold(ip, &[&kind.header()[..], packet].concat(), now);
            }
        }
    }

    fn send(&mut self, target: Target, kind: EtherType, packet: &[u8]) {
        self.push(Event::Send(target, [&kind.header()[..], packet].concat()));
    }
}
