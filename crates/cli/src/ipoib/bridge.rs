//! Carries packets between the TUN device and the queue pair, and does what the interface asks for.
//! The principal type is [`Bridge`].

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipoib::header::LEN as HEADER;
use ipoib::merge::{Merged, merge};
use ipoib::{Config, Event, HostPacket, Interface, LinkAddress, Membership, Outgoing, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{EventKind, Path};
use tun::Tun;

use super::groups;
use super::link::{DatagramLink, QKEY};
use super::manager::{Answer, Group, Manager, Request};
use super::netlink::Netlink;
use super::options::Network;
use super::port::{IPV6_LEAST, PartitionPort};
use crate::failure::Failure;
use engine::reason::say;

/// Packets of one side that are carried before the other side's.
const BATCH: usize = 64;

/// Why an interface carries no packets any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BridgeEnd {
    /// A signal.
    Stopped,
    /// The partition has another place in the P_Key table, or none: the queue pair is of no use.
    Partition,
}

/// An interface and both of its sides.
pub(crate) struct Bridge<'a> {
    tun: &'a Tun,
    name: &'a str,
    port: &'a PartitionPort,
    link: DatagramLink,
    netlink: Netlink,
    interface: Interface,
    manager: Option<Manager>,
    /// The broadcast group, which was joined before the queue pair was created.
    broadcast: Option<Group>,
    began: Instant,
    last: Last,
}

/// The packet of the host that was read last.
struct Last {
    offload: [u8; tun::HEADER],
    bytes: Vec<u8>,
    length: usize,
    /// Where it goes, and its next segment, until all are sent.
    unsent: Option<(Target, usize)>,
}

impl<'a> Bridge<'a> {
    /// Creates the queue pair.
    pub(crate) fn new(
        tun: &'a Tun,
        name: &'a str,
        port: &'a PartitionPort,
        managed: Option<(Manager, Group)>,
    ) -> Result<Self, Failure> {
        let (manager, broadcast) = managed.unzip();
        let link = DatagramLink::new(port, broadcast.as_ref().map_or(QKEY, |group| group.qkey))?;
        let netlink = Netlink::new(name).map_err(|error| format!("cannot use rtnetlink: {error}"))?;
        let config = Config {
            link: link.address(),
            partition: port.partition(),
            mtu: port.packet_mtu() as usize,
            connected: port.connected.map(Into::into),
        };
        let interface = Interface::new(config, Duration::ZERO);
        let last = Last { offload: [0; tun::HEADER], bytes: vec![0; tun::PACKET_MAX], length: 0, unsent: None };
        Ok(Self { tun, name, port, link, netlink, interface, manager, broadcast, began: Instant::now(), last })
    }

    /// The link-layer address.
    pub(crate) fn address(&self) -> LinkAddress {
        self.link.address()
    }

    /// Switches the interface on, with its addresses.
    pub(crate) fn set_up(&mut self, networks: &[Network]) -> Result<(), Failure> {
        let (name, mtu) = (self.name, self.port.interface_mtu() as u32);
        self.netlink.set_up(mtu).map_err(|error| format!("cannot switch {name} on: {error}"))?;
        for network in networks {
            if network.ip.is_ipv6() && mtu < IPV6_LEAST {
                return Err(format!(
                    "{name} has an MTU of {mtu}, and IPv6 needs {IPV6_LEAST}: the active MTU of {} is {}; a larger \
                     MTU of its network interface makes it larger",
                    self.port.name, self.port.info.mtu
                )
                .into());
            }
            let added = self.netlink.add_address(*network);
            added.map_err(|error| format!("cannot give {name} the address {network}: {error}"))?;
        }
        self.read_host()?;
        self.events()?;
        if self.interface.is_up() { Ok(()) } else { Err(format!("{name} cannot join its broadcast group").into()) }
    }

    /// Carries packets until `stop` is readable, or the partition changes.
    pub(crate) fn carry(&mut self, stop: &OwnedFd) -> Result<BridgeEnd, Failure> {
        loop {
            let mut busy = self.carry_out()?;
            busy |= self.carry_in()?;
            let now = self.now();
            if self.interface.timeout().is_some_and(|due| due <= now) {
                self.interface.tick(now);
                self.connections();
                self.send_lost()?;
                self.events()?;
            }
            self.link.flush()?;
            if !busy && let Some(end) = self.wait(stop)? {
                self.leave_groups()?;
                return Ok(end);
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes packets of the host. Returns whether there were any.
    fn carry_out(&mut self) -> Result<bool, Failure> {
        let now = self.now();
        for count in 0..BATCH {
            if !self.send_segments()? {
                return Ok(count > 0);
            }
            let last = &mut self.last;
            match self.tun.read(&mut last.offload, &mut last.bytes) {
                Ok(length) => last.length = length,
                Err(error) => {
                    return match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(count > 0),
                        _ => Err(format!("{}: {error}", self.name).into()),
                    };
                }
            }
            let Some(packet) = last.packet() else { continue };
            match self.interface.outgoing(&packet, now) {
                Outgoing::To(target) => last.unsent = Some((target, 0)),
                _ => self.events()?,
            }
        }
        Ok(true)
    }

    /// Sends the segments of the last packet. Returns false if there is no buffer for the next one.
    fn send_segments(&mut self) -> Result<bool, Failure> {
        while let Some((target, number)) = self.last.unsent {
            let Some(mut buffer) = self.link.take() else { return Ok(false) };
            let written = self.last.packet().and_then(|packet| {
                buffer[..HEADER].copy_from_slice(&packet.kind().header());
                packet.segment(number, &mut buffer[HEADER..])
            });
            let Some(length) = written else {
                self.link.give_back(buffer);
                self.last.unsent = None;
                break;
            };
            self.link.send(buffer, HEADER + length, &target, true)?;
            self.last.unsent = Some((target, number + 1));
        }
        Ok(self.link.has_room())
    }

    /// Takes datagrams that have arrived. Returns whether there were any.
    fn carry_in(&mut self) -> Result<bool, Failure> {
        let now = self.now();
        let mut arrived = Vec::with_capacity(BATCH);
        while arrived.len() < BATCH
            && let Some(completion) = self.link.poll()?
        {
            arrived.push(completion);
        }
        let interface = &mut self.interface;
        let packets = arrived.iter().filter_map(|completion| interface.incoming(completion.data(), now));
        merge(packets).iter().for_each(|packet| deliver(self.tun, packet));
        if !arrived.is_empty() {
            self.events()?;
        }
        let any = !arrived.is_empty();
        arrived.into_iter().try_for_each(|completion| self.link.receive(completion))?;
        Ok(any)
    }

    /// Does what the interface asks for, and takes answers that are there.
    fn events(&mut self) -> Result<(), Failure> {
        let now = self.now();
        self.answers()?;
        while let Some(event) = self.interface.poll() {
            match event {
                Event::Send(target, payload) => self.send(&payload, &target)?,
                Event::Deliver(packet) => deliver(self.tun, &Merged::one(&packet)),
                Event::Resolve(link) => match &mut self.manager {
                    None => self.add_neighbour(link, None),
                    Some(manager) => manager.ask(Request::Path(link))?,
                },
                Event::Forget(link) => self.link.forget(link),
                Event::Join(mgid, membership) => match (&mut self.manager, self.broadcast.take()) {
                    (None, _) => self.join(mgid, membership, None)?,
                    (Some(_), Some(group)) => self.join(mgid, membership, Some(&group))?,
                    (Some(manager), None) => manager.ask(Request::Join(mgid, membership))?,
                },
                Event::Leave(mgid) => self.leave(mgid)?,
                Event::Connect(link) => match self.link.connected() {
                    Some(connected) => connected.connect(link),
                    None => drop(self.interface.connected(link, None, now)),
                },
                Event::Disconnect(link) => {
                    if let Some(connected) = self.link.connected() {
                        connected.disconnect(&link);
                    }
                }
                Event::GroupsChanged => self.interface.set_groups(groups::joined(self.name), now),
            }
            self.answers()?;
        }
        Ok(())
    }

    fn add_neighbour(&mut self, link: LinkAddress, path: Option<&Path>) {
        let found = self.link.add_neighbour(link, path);
        if let Err(error) = &found {
            say(format_args!("no path to {link}: {error}"));
        }
        if !self.interface.resolved(link, found.is_ok(), self.now()) {
            self.link.forget(link);
        }
    }

    /// Joins a group of the manager, or one without a manager.
    fn join(&mut self, mgid: [u8; 16], membership: Membership, group: Option<&Group>) -> io::Result<()> {
        let joined = self.link.join(mgid, membership, group);
        if let Err(error) = &joined {
            say(format_args!("cannot join the group {}: {error}", Ipv6Addr::from(mgid)));
        }
        // The group may be unwanted by now.
        if !self.interface.joined(&mgid, joined.is_ok(), self.now()) {
            self.leave(mgid)?;
        }
        Ok(())
    }

    fn leave(&mut self, mgid: [u8; 16]) -> io::Result<()> {
        match (self.link.leave(mgid), &mut self.manager) {
            (Some(membership), Some(manager)) => manager.ask(Request::Leave(mgid, membership)),
            _ => Ok(()),
        }
    }

    fn leave_groups(&mut self) -> Result<(), Failure> {
        self.link.groups().into_iter().try_for_each(|mgid| self.leave(mgid))?;
        Ok(())
    }

    /// Takes connections that were made, or have ended.
    fn connections(&mut self) {
        let now = self.now();
        let Some(connected) = self.link.connected() else { return };
        for link in connected.closed() {
            self.interface.disconnected(&link, now);
        }
        while let Some((link, mtu)) = connected.next() {
            if !self.interface.connected(link, mtu, now) {
                connected.disconnect(&link);
            }
        }
    }

    /// Sends what was lost with broken connections once more: the neighbours may have started
    /// again.
    fn send_lost(&mut self) -> Result<(), Failure> {
        let now = self.now();
        for link in self.link.broken() {
            self.interface.disconnected(&link, now);
        }
        for payload in self.link.lost() {
            let now = self.now();
            let Some(packet) = payload.get(HEADER..).and_then(HostPacket::whole) else { continue };
            if let Outgoing::To(target) = self.interface.outgoing(&packet, now) {
                self.send(&payload, &target)?;
            }
        }
        Ok(())
    }

    /// Takes the answers of the manager.
    fn answers(&mut self) -> Result<(), Failure> {
        while let Some(manager) = &mut self.manager {
            match manager.next()? {
                None => break,
                Some(Answer::Joined(mgid, membership, Some(group))) => self.join(mgid, membership, Some(&group))?,
                Some(Answer::Joined(mgid, _, None)) => {
                    self.interface.joined(&mgid, false, self.now());
                }
                Some(Answer::Path(link, Some(path))) => self.add_neighbour(link, Some(&path)),
                Some(Answer::Path(link, None)) => {
                    self.interface.resolved(link, false, self.now());
                }
            }
        }
        Ok(())
    }

    /// Sends a payload of the interface's own. Without a buffer it is lost.
    fn send(&mut self, payload: &[u8], target: &Target) -> Result<(), Failure> {
        if let Some(mut buffer) = self.link.take() {
            buffer[..payload.len()].copy_from_slice(payload);
            self.link.send(buffer, payload.len(), target, false)?;
        }
        Ok(())
    }

    /// Reads the addresses, routes and groups of the host.
    fn read_host(&mut self) -> Result<(), Failure> {
        let cannot = |error: io::Error| format!("cannot read the addresses of {}: {error}", self.name);
        let addresses = self.netlink.addresses().map_err(cannot)?;
        let routes = self.netlink.routes().map_err(cannot)?;
        let now = self.now();
        self.interface.set_routes(addresses, routes, now);
        self.interface.set_groups(groups::joined(self.name), now);
        Ok(())
    }

    /// Waits for something to do. Returns why there is nothing to do any more.
    fn wait(&mut self, stop: &OwnedFd) -> Result<Option<BridgeEnd>, Failure> {
        self.link.cq().take_event()?;
        self.link.cq().arm()?;
        // Completions that came before the arming give no event.
        if self.carry_in()? {
            self.link.flush()?;
            return Ok(None);
        }
        let limit = self.interface.timeout().map(|due| due.saturating_sub(self.now()));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![
            input(stop.as_fd()),
            input(self.netlink.as_fd()),
            input(self.port.context.as_fd()),
            input(self.link.cq().as_fd()),
        ];
        fds.extend(self.link.waker().map(input));
        fds.extend(self.manager.iter().map(|manager| input(manager.as_fd())));
        if self.link.has_room() {
            fds.push(input(self.tun.as_fd()));
        }
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("cannot wait: {error}").into()),
        }
        let ready = |at: usize| !fds[at].revents().is_empty();
        let (stopped, host, port) = (ready(0), ready(1), ready(2));
        let made = self.link.waker().is_some() && ready(4);
        if host && self.netlink.drain() {
            self.read_host()?;
        }
        let changed = port && self.port_events()?;
        if made {
            self.connections();
        }
        self.send_lost()?;
        self.events()?;
        Ok(if stopped { Some(BridgeEnd::Stopped) } else { changed.then_some(BridgeEnd::Partition) })
    }

    /// Takes the events of the port. Returns whether its partition has another place.
    fn port_events(&mut self) -> Result<bool, Failure> {
        let now = self.now();
        while let Some(event) = self.port.context.poll_event()? {
            match event.kind {
                EventKind::DeviceFatal => return Err(format!("the device of {} is gone", self.port.name).into()),
                EventKind::ClientReregister | EventKind::SmChange | EventKind::LidChange => {
                    if let Some(manager) = &mut self.manager {
                        let info = self.port.context.port(self.port.number)?;
                        manager.changed(info.sm_lid, info.sm_sl);
                        self.interface.rejoin(now);
                    }
                }
                EventKind::PkeyChange if !self.port.has_partition()? => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }
}

/// Gives a packet to the host. The host loses it while the interface is switched off.
fn deliver(tun: &Tun, packet: &Merged<'_>) {
    let _ = packet.write(|offload, parts| tun.write(offload, parts));
}

impl Last {
    /// The packet. `None` if the header does not fit to it.
    fn packet(&self) -> Option<HostPacket<'_>> {
        HostPacket::parse(&self.offload, &self.bytes[..self.length])
    }
}
