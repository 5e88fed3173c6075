//! Carries packets between the TUN device and the queue pair, and does what the interface asks for.
//! The principal type is [`Bridge`].

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipoib::header::LEN as HEADER;
use ipoib::{Config, EtherType, Event, Interface, LinkAddress, Membership, Outgoing, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{EventKind, Path};
use tun::Tun;

use super::groups;
use super::link::{Link, QKEY};
use super::manager::{Answer, Group, Manager, Request};
use super::netlink::Netlink;
use super::options::Network;
use super::port::{IPV6_LEAST, Port};
use crate::failure::Failure;
use engine::reason::say;

/// Packets of one side that are carried before the other side's.
const TURN: usize = 64;

/// An interface and both of its sides.
pub(crate) struct Bridge<'a> {
    tun: Tun,
    name: &'a str,
    port: &'a Port,
    link: Link,
    netlink: Netlink,
    interface: Interface,
    manager: Option<Manager>,
    /// The broadcast group, which was joined before the queue pair was created.
    broadcast: Option<Group>,
    began: Instant,
}

impl<'a> Bridge<'a> {
    /// Creates the queue pair.
    pub(crate) fn new(
        tun: Tun,
        name: &'a str,
        port: &'a Port,
        managed: Option<(Manager, Group)>,
    ) -> Result<Self, Failure> {
        let (manager, broadcast) = managed.unzip();
        let link = Link::new(port, broadcast.as_ref().map_or(QKEY, |group| group.qkey))?;
        let netlink = Netlink::new(name).map_err(|error| format!("cannot use rtnetlink: {error}"))?;
        let config = Config {
            link: link.address(),
            partition: port.partition(),
            mtu: port.packet_mtu() as usize,
            connected: port.connected,
        };
        let interface = Interface::new(config, Duration::ZERO);
        Ok(Self { tun, name, port, link, netlink, interface, manager, broadcast, began: Instant::now() })
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

    /// Carries packets until `stop` is readable.
    pub(crate) fn carry(&mut self, stop: &OwnedFd) -> Result<(), Failure> {
        loop {
            let mut busy = self.carry_out()?;
            busy |= self.carry_in()?;
            let now = self.now();
            if self.interface.timeout().is_some_and(|due| due <= now) {
                self.interface.tick(now);
                self.connections();
                self.events()?;
            }
            self.link.flush()?;
            if !busy && self.wait(stop)? {
                return self.leave_groups();
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes packets of the host. Returns whether there were any.
    fn carry_out(&mut self) -> Result<bool, Failure> {
        let now = self.now();
        for count in 0..TURN {
            let Some(mut buffer) = self.link.take() else { return Ok(count > 0) };
            let length = match self.tun.read(&mut buffer[HEADER..]) {
                Ok(length) => length,
                Err(error) => {
                    self.link.give_back(buffer);
                    return match error.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(count > 0),
                        _ => Err(format!("{}: {error}", self.name).into()),
                    };
                }
            };
            let packet = &buffer[HEADER..HEADER + length];
            match (self.interface.outgoing(packet, now), EtherType::of_ip(packet)) {
                (Outgoing::To(target), Some(kind)) => {
                    buffer[..HEADER].copy_from_slice(&kind.header());
                    self.link.send(buffer, HEADER + length, &target)?;
                }
                _ => {
                    self.link.give_back(buffer);
                    self.events()?;
                }
            }
        }
        Ok(true)
    }

    /// Takes datagrams that have arrived. Returns whether there were any.
    fn carry_in(&mut self) -> Result<bool, Failure> {
        let now = self.now();
        for count in 0..TURN {
            let Some(completion) = self.link.poll()? else { return Ok(count > 0) };
            if let Some(packet) = self.interface.incoming(completion.data(), now) {
                deliver(&self.tun, packet);
            } else {
                self.events()?;
            }
            self.link.receive(completion)?;
        }
        Ok(true)
    }

    /// Does what the interface asks for, and takes answers that are there.
    fn events(&mut self) -> Result<(), Failure> {
        let now = self.now();
        self.answers()?;
        while let Some(event) = self.interface.poll() {
            match event {
                Event::Send(target, payload) => self.send(&payload, &target)?,
                Event::Deliver(packet) => deliver(&self.tun, &packet),
                Event::Resolve(link) => match &mut self.manager {
                    None => self.add_neighbour(link, None),
                    Some(manager) => manager.ask(Request::Path(link))?,
                },
                Event::Forget(link) => {
                    self.link.forget(link);
                    if let Some(manager) = &mut self.manager {
                        manager.forget(&link.gid);
                    }
                }
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
        self.interface.resolved(link, found.is_ok(), self.now());
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
        for link in self.link.broken() {
            self.interface.connected(link, None, now);
        }
        let Some(connected) = self.link.connected() else { return };
        for link in connected.closed() {
            self.interface.connected(link, None, now);
        }
        while let Some((link, mtu)) = connected.next() {
            if !self.interface.connected(link, mtu, now) {
                connected.disconnect(&link);
            }
        }
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
                Some(Answer::Path(link, None)) => self.interface.resolved(link, false, self.now()),
            }
        }
        Ok(())
    }

    /// Sends a payload of the interface's own. Without a buffer it is lost.
    fn send(&mut self, payload: &[u8], target: &Target) -> Result<(), Failure> {
        if let Some(mut buffer) = self.link.take() {
            buffer[..payload.len()].copy_from_slice(payload);
            self.link.send(buffer, payload.len(), target)?;
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

    /// Waits for something to do. Returns whether a signal has ended the program.
    fn wait(&mut self, stop: &OwnedFd) -> Result<bool, Failure> {
        self.link.cq().take_event()?;
        self.link.cq().arm()?;
        // Completions that came before the arming give no event.
        if self.carry_in()? {
            self.link.flush()?;
            return Ok(false);
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
        if host && self.netlink.drain() {
            self.read_host()?;
        }
        if port {
            self.port_events()?;
        }
        self.connections();
        self.events()?;
        Ok(stopped)
    }

    fn port_events(&mut self) -> Result<(), Failure> {
        while let Some(event) = self.port.context.poll_event()? {
            match event.kind {
                EventKind::DeviceFatal => return Err(format!("the device of {} is gone", self.port.name).into()),
                EventKind::ClientReregister | EventKind::SmChange | EventKind::LidChange => {
                    if let Some(manager) = &mut self.manager {
                        let info = self.port.context.port(self.port.number)?;
                        manager.changed(info.sm_lid, info.sm_sl);
                        self.interface.rejoin();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Gives a packet to the host. The host loses it while the interface is switched off.
fn deliver(tun: &Tun, packet: &[u8]) {
    let _ = tun.write(packet);
}
