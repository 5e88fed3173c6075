//! Two hosts on one machine, each with its own addresses, run directory and agent, and a link
//! between them.
//!
//! As root, the hosts are network namespaces. A veth pair joins them, or a bridge that can lose
//! packets. Any other user can have two loopback addresses instead. This is not a simulation: the
//! packets go through the kernel. The principal type is [`Hosts`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixListener;

use serde_json::Value;

use crate::namespace::Namespace;
use crate::pair::{Pair, Sides};
use crate::room::{Room, User};
use crate::{HANG, port};

/// The network interface of a host that is a namespace.
pub const INTERFACE: &str = "eth0";

/// Which of a host's addresses a program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// The IPv4 address.
    V4,
    /// The IPv6 address.
    V6,
}

/// One host.
#[derive(Debug)]
pub struct Host {
    room: Room,
    ipv4: Ipv4Addr,
    ipv6: Option<Ipv6Addr>,
    // The namespace is declared after the room, so that the room's agent ends first.
    namespace: Option<Namespace>,
}

/// Two hosts that reach each other.
#[derive(Debug)]
pub struct Hosts {
    /// The host where servers run.
    pub left: Host,
    /// The host where clients run.
    pub right: Host,
    /// The namespace between the hosts, in which no softhca runs. It holds a bridge or a bad link.
    middle: Option<Namespace>,
    _claim: Option<UnixListener>,
}

impl Hosts {
    /// Two namespaces joined by a veth pair. `None` without root.
    pub fn joined(mtu: u32, user: User) -> Result<Option<Self>, String> {
        Self::joined_rooms(mtu, [Room::of(user)?, Room::of(user)?])
    }

    /// As [`Hosts::joined`], with the caller's rooms.
    pub fn joined_rooms(mtu: u32, rooms: [Room; 2]) -> Result<Option<Self>, String> {
        let (Some(left), Some(right)) = (Namespace::new()?, Namespace::new()?) else { return Ok(None) };
        left.join(INTERFACE, &right, INTERFACE)?;
        Self::in_namespaces([left, right], None, mtu, rooms).map(Some)
    }

    /// Two namespaces joined by a bridge in a third one. `None` without root.
    pub fn bridged(mtu: u32, user: User) -> Result<Option<Self>, String> {
        let (Some(left), Some(right), Some(bridge)) = (Namespace::new()?, Namespace::new()?, Namespace::new()?) else {
            return Ok(None);
        };
        left.join(INTERFACE, &bridge, "left")?;
        right.join(INTERFACE, &bridge, "right")?;
        bridge.script(&format!(
            "ip link add br0 mtu {mtu} type bridge; ip link set br0 up; \
             for port in left right; do ip link set $port mtu {mtu} master br0 up; done"
        ))?;
        Self::in_namespaces([left, right], Some(bridge), mtu, [Room::of(user)?, Room::of(user)?]).map(Some)
    }

    /// Two namespaces with a third one between them, whose interfaces `left` and `right` are not
    /// joined yet. `None` without root.
    pub fn apart(mtu: u32, user: User) -> Result<Option<Self>, String> {
        let (Some(left), Some(right), Some(middle)) = (Namespace::new()?, Namespace::new()?, Namespace::new()?) else {
            return Ok(None);
        };
        left.join(INTERFACE, &middle, "left")?;
        right.join(INTERFACE, &middle, "right")?;
        middle.script(&format!(
            "for name in left right; do echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6; ip link set $name mtu {mtu} up; done"
        ))?;
        Self::in_namespaces([left, right], Some(middle), mtu, [Room::of(user)?, Room::of(user)?]).map(Some)
    }

    fn in_namespaces(
        namespaces: [Namespace; 2],
        middle: Option<Namespace>,
        mtu: u32,
        rooms: [Room; 2],
    ) -> Result<Self, String> {
        let ([left, right], [here, there]) = (namespaces, rooms);
        // Both interfaces are up before an agent reads them: a link has a carrier only when both
        // ends are up.
        left.set_up(1, mtu)?;
        right.set_up(2, mtu)?;
        let (left, right) = (Host::in_namespace(left, 1, here)?, Host::in_namespace(right, 2, there)?);
        Ok(Self { left, right, middle, _claim: None })
    }

    /// Two agents on one machine, each with its own loopback address. This needs no root.
    pub fn loopback(user: User) -> Result<Self, String> {
        let start = std::process::id();
        for step in 0..u32::from(u16::MAX) {
            let [_, _, b, c] = (start.wrapping_add(step)).to_be_bytes();
            if b == 0 {
                continue; // Other programs use 127.0.…
            }
            let Some(claim) = port::claim(&format!("softhca-suite-loopback-{b}-{c}")) else { continue };
            let left = Host::on_loopback(Ipv4Addr::new(127, b, c, 2), user)?;
            let right = Host::on_loopback(Ipv4Addr::new(127, b, c, 3), user)?;
            return Ok(Self { left, right, middle: None, _claim: Some(claim) });
        }
        Err("no free loopback network".to_owned())
    }

    /// Restarts both agents with options.
    pub fn with_agents(self, options: &[&str]) -> Result<Self, String> {
        for host in [&self.left, &self.right] {
            for words in [&["agent", "--stop"][..], &[&["agent"], options].concat()] {
                let outcome = host.room.finish(host.room.softhca(words))?;
                if !outcome.succeeded() {
                    return Err(outcome.told());
                }
            }
        }
        Ok(self)
    }

    /// Starts `words -p PORT` on the left. When that program listens, starts `words -p PORT
    /// ADDRESS` on the right. Both run under `softhca run`, each with the GID index of its host's
    /// address of this family.
    pub fn start(&self, family: Family, words: &[&str]) -> Result<Pair, String> {
        let server = self.left.addressed(family, words)?;
        let client = self.right.addressed(family, words)?;
        Pair::connect(
            &self.left.room,
            &borrowed(&server),
            &self.right.room,
            &borrowed(&client),
            &self.left.rendezvous(),
        )
    }

    /// Runs a pair that must succeed on both sides.
    #[track_caller]
    pub fn must_succeed(&self, family: Family, words: &[&str]) -> Sides {
        Sides::must_succeed(words, Sides::measured(|| self.start(family, words)?.wait(HANG)))
    }

    /// From now on the bridge loses this percentage of the RoCE packets, each packet independently
    /// at random.
    ///
    /// # Panics
    /// When there is no bridge.
    pub fn lose(&self, percent: u32) -> Result<(), String> {
        self.cut_packets()?;
        self.middle().script(&format!(
            "nft 'table bridge loss {{ chain forward {{ type filter hook forward priority 0; \
             udp dport 4791 numgen random mod 100 < {percent} counter drop; }}; }}'"
        ))?;
        Ok(())
    }

    /// Makes the hosts send each packet separately. Otherwise up to 64 KiB of packets travel as
    /// one, and are lost as one.
    pub fn cut_packets(&self) -> Result<(), String> {
        for host in [&self.left, &self.right] {
            host.namespace().script(&format!("ethtool -K {INTERFACE} tx-udp-segmentation off tso off gso off"))?;
        }
        Ok(())
    }

    /// How many packets the bridge has lost.
    ///
    /// # Panics
    /// When there is no bridge.
    pub fn lost(&self) -> Result<u64, String> {
        let rules = self.middle().script("nft list table bridge loss")?;
        let count =
            rules.split_once("counter packets ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        count.ok_or(rules)
    }

    /// The namespace between the two hosts.
    ///
    /// # Panics
    /// When there is no such namespace.
    pub fn middle(&self) -> &Namespace {
        self.middle.as_ref().expect("nothing is between these hosts")
    }
}

impl Host {
    fn in_namespace(namespace: Namespace, number: u8, room: Room) -> Result<Self, String> {
        let room = room.entered_by(&namespace.entrance());
        let host = Self { room, ipv4: ipv4(number), ipv6: Some(ipv6(number)), namespace: Some(namespace) };
        host.start_agent()?;
        Ok(host)
    }

    fn on_loopback(ipv4: Ipv4Addr, user: User) -> Result<Self, String> {
        let host = Self { room: Room::of(user)?, ipv4, ipv6: None, namespace: None };
        host.start_agent()?;
        Ok(host)
    }

    /// Starts this host's agent, or starts it again after the previous one has ended.
    pub fn start_agent(&self) -> Result<(), String> {
        let address = self.ipv4.to_string();
        let words = match self.namespace {
            Some(_) => &["agent"][..],
            None => &["agent", "--address", &address],
        };
        let outcome = self.room.finish(self.room.softhca(words))?;
        if outcome.succeeded() { Ok(()) } else { Err(outcome.told()) }
    }

    /// The run directory, agent and user of this host.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// The namespace of this host.
    ///
    /// # Panics
    /// When this host is only a loopback address.
    pub fn namespace(&self) -> &Namespace {
        self.namespace.as_ref().expect("this host is no namespace")
    }

    /// The host's address of this family.
    ///
    /// # Panics
    /// When the host has no address of this family.
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.ipv4.into(),
            Family::V6 => self.ipv6.expect("this host has no IPv6 address").into(),
        }
    }

    /// The address at which programs on the other host find the TCP port for exchanging addresses.
    /// It is always IPv4, because every program understands IPv4.
    pub fn rendezvous(&self) -> String {
        self.ipv4.to_string()
    }

    /// The index of one of this host's addresses in the GID table, as `softhca devices` prints it.
    pub fn gid_index(&self, family: Family) -> Result<u64, String> {
        let address = self.address(family);
        self.room.gid_index(address)?.ok_or_else(|| format!("{address} is in no GID table"))
    }

    /// The words of a program together with the option for the GID index of its address of this
    /// family. The option depends on the program.
    fn addressed(&self, family: Family, words: &[&str]) -> Result<Vec<String>, String> {
        // perftest calls the option -x. The pingpongs and the suite's own programs call it -g.
        let option = if words[0].starts_with("ib_") { "-x" } else { "-g" };
        let mut addressed: Vec<String> = Vec::new();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if *word == option {
                rest.next();
            } else {
                addressed.push((*word).to_owned());
            }
        }
        addressed.extend([option.to_owned(), self.gid_index(family)?.to_string()]);
        Ok(addressed)
    }
}

impl Namespace {
    /// Gives a host's interface its MTU and addresses.
    fn set_up(&self, number: u8, mtu: u32) -> Result<(), String> {
        let (ipv4, ipv6) = (ipv4(number), ipv6(number));
        let up = format!(
            "ip link set {INTERFACE} mtu {mtu} up; ip address add {ipv4}/24 dev {INTERFACE}; \
             ip address add {ipv6}/64 dev {INTERFACE} nodad"
        );
        self.script(&up).map(|_| ())
    }
}

fn ipv4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 47, 91, number)
}

fn ipv6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x47, 0x91, 0, 0, 0, 0, u16::from(number))
}

impl Room {
    /// The index of an address in the GID table of the first device. `None`: the address is not in
    /// the table.
    pub fn gid_index(&self, address: IpAddr) -> Result<Option<u64>, String> {
        let gid = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let devices = self.json(&["devices", "--json"])?;
        let gids = devices["devices"][0]["ports"][0]["gids"].as_array().ok_or("no GID table")?;
        let same = |row: &&Value| row["gid"].as_str().and_then(|text| text.parse::<Ipv6Addr>().ok()) == Some(gid);
        Ok(gids.iter().find(same).and_then(|row| row["index"].as_u64()))
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
