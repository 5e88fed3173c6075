//! Addresses and routes: RESOLVE_IP, RESOLVE_ADDR, RESOLVE_ROUTE.
//!
//! An address of this agent is resolved at once, and so is an address that needs no neighbour. For
//! another host, the agent searches the neighbour entry. The search ends when the kernel knows the
//! neighbour, when the kernel says that the neighbour is silent, or when the caller's time has
//! expired. On RoCE the agent computes the route, because there is no subnet administrator (IBA
//! A17.8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use abi::layout::Record;
use abi::ucma::address::{ResolveAddr, ResolveIp, ResolveRoute};
use abi::ucma::connection::{UdParam, event};
use abi::ucma::sockaddr::{Sockaddr, SockaddrIb, family};
use abi::{Errno, Refusal};
use protocol::Time;
use protocol::cm::Path;

use super::Manager;
use super::binding::{parse, scope, sized};
use super::dispatch::CmCall;
use super::id::Stage;
use super::locals::Attachment;
use super::routes::{Neighbour, Route, probe};
use super::search::{Found, Search};
use crate::device::Device;
use crate::gids::{gid_of, ip_of};
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// The hop limit of paths. Linux and most routers start with it.
const HOP_LIMIT: u8 = 64;
/// How long a packet may be on its way: code 16 is 268 ms, as in Linux on RoCE.
pub(super) const PACKET_LIFE: u8 = 16;
/// The interval after the first look at a neighbour entry. It doubles after each look, up to the
/// last value.
const FIRST_LOOK: u64 = 2_000_000;
const LAST_LOOK: u64 = 100_000_000;
/// Maximum number of searches at a time; each search costs system calls.
const SEARCHES_MAX: usize = 1024;

/// The result for an address, or the neighbour to search for.
pub(super) enum Finding {
    Done(Found),
    Ask { found: Found, hop: IpAddr, ifindex: u32 },
}

impl Manager {
    pub(super) fn resolve_ip(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let ResolveIp { src_addr, dst_addr, id, timeout_ms } = call.command.body();
        self.resolve(world, call, id, (parse(src_addr.bytes())?, parse(dst_addr.bytes())?), timeout_ms)
    }

    pub(super) fn resolve_addr(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let ResolveAddr { id, timeout_ms, src_size, dst_size, src_addr, dst_addr, .. } = call.command.body();
        let ends = (parse(sized(&src_addr, src_size)?)?, parse(sized(&dst_addr, dst_size)?)?);
        self.resolve(world, call, id, ends, timeout_ms)
    }

    fn resolve(
        &mut self,
        world: &World,
        call: &CmCall<'_>,
        name: u32,
        (source, destination): (Option<Sockaddr>, Option<Sockaddr>),
        timeout_ms: u32,
    ) -> Outcome<Vec<u8>> {
        let Some(destination) = destination else { return refuse(Errno::EINVAL, "there is no address to resolve") };
        self.check_room(call)?;
        let id = self.id_in(call, name, &[Stage::Idle, Stage::Bound])?;
        if id.stage == Stage::Idle {
            self.give_address(call, name, source.unwrap_or_else(|| any_like(&destination)), false)?;
        }
        let id = self.id(call, name)?;
        let local = id.local;
        if local.is_some_and(|local| family_of(&local) != family_of(&destination)) {
            return refuse(Errno::EINVAL, format!("id {name:#x} is bound to another family than {destination} is of"));
        }
        id.remote = Some(destination);
        id.stage = Stage::Resolving;
        let finding = match destination {
            Sockaddr::Ip(addr) if self.locals.has_nodes() => self.find_node(self.node_of(call.channel), local, &addr),
            Sockaddr::Ip(addr) => self.find_ip(world, local, &addr),
            Sockaddr::Ib(record) => self.find_gid(self.node_of(call.channel), local, &record),
        };
        match finding {
            Ok(Finding::Done(found)) => self.address_found(name, &found),
            Ok(Finding::Ask { found, hop, ifindex }) => {
                self.search(
                    world,
                    name,
                    Search {
                        found,
                        hop,
                        ifindex,
                        deadline: self.now().after(u64::from(timeout_ms) * 1_000_000),
                        wait: FIRST_LOOK,
                        probed: false,
                    },
                );
            }
            Err(refusal) => self.address_not_found(name, refusal),
        }
        Ok(Vec::new())
    }

    /// Finds how an IP address is reached.
    fn find_ip(&mut self, world: &World, local: Option<Sockaddr>, to: &SocketAddr) -> Outcome<Finding> {
        let mut ip = to.ip().to_canonical();
        let scope = scope(to);
        let bound = local.as_ref().and_then(super::id::ip).filter(|ip| !ip.is_unspecified());
        if ip.is_unspecified() {
            // As with sockets, the unspecified address means this host.
            ip = bound.or_else(|| self.locals.usual(ip.is_ipv4()).map(|(ip, _)| ip)).unwrap_or(ip);
        }
        if let Some(target) = self.locals.find(ip, scope) {
            let source = bound.unwrap_or(ip);
            return Ok(Finding::Done(Found { source, attachment: self.local(source, scope)?, target: target.gid }));
        }
        let route = self.route(world, ip, bound, scope);
        if ip.is_multicast() {
            let by_route = route.ok().and_then(|route| route.source).filter(|ip| self.locals.is_own(*ip, 0));
            let source = bound.or(by_route).or_else(|| self.locals.usual(ip.is_ipv4()).map(|(ip, _)| ip));
            let Some(source) = source else {
                return refuse(Errno::ENETUNREACH, "this agent has no address to send from");
            };
            return Ok(Finding::Done(Found { source, attachment: self.local(source, scope)?, target: gid_of(ip) }));
        }
        let route = route?;
        let own = |ip: &IpAddr| self.locals.is_own(*ip, 0);
        let (source, attachment) = match bound.or(route.source.filter(own)) {
            Some(source) => (source, self.local(source, scope)?),
            None => match self.locals.outward(ip) {
                Some(found) => found,
                None => return refuse(Errno::ENETUNREACH, format!("none of this agent's addresses reaches {ip}")),
            },
        };
        if let Some(why) = no_wire(world, &attachment) {
            return refuse(Errno::ENETUNREACH, format!("{ip} is on another host, and {source} has no wire: {why}"));
        }
        let found = Found { source, attachment, target: gid_of(ip) };
        if route.local || world.wire.is_external() {
            return Ok(Finding::Done(found));
        }
        Ok(Finding::Ask { found, hop: route.gateway.unwrap_or(ip), ifindex: route.ifindex })
    }

    /// Finds how a GID is reached.
    fn find_gid(&mut self, node: Option<usize>, local: Option<Sockaddr>, to: &SockaddrIb) -> Outcome<Finding> {
        let bound = match local {
            Some(Sockaddr::Ib(record)) if record.addr != [0; 16] => self.locals.with_gid(&record.addr),
            _ => None,
        };
        let own = node.and_then(|node| self.locals.usual_on(Some(node), true)).map(|(_, at)| at);
        let target = own.or_else(|| self.locals.with_gid(&to.addr));
        let outward = || self.locals.outward(ip_of(&to.addr)).map(|(_, at)| at);
        let Some(attachment) = bound.or(target).or_else(outward) else {
            let gid = Ipv6Addr::from(to.addr);
            return refuse(Errno::ENETUNREACH, format!("none of this agent's addresses reaches {gid}"));
        };
        let attachment = self.partition(attachment, to)?;
        Ok(Finding::Done(Found { source: ip_of(&attachment.gid), attachment, target: to.addr }))
    }

    fn local(&self, ip: IpAddr, scope: u32) -> Outcome<Attachment> {
        match self.locals.find(ip, scope) {
            Some(at) => Ok(at),
            None => refuse(Errno::EADDRNOTAVAIL, format!("{ip} is no address of this agent")),
        }
    }

    fn route(&mut self, world: &World, to: IpAddr, from: Option<IpAddr>, ifindex: u32) -> Outcome<Route> {
        let elsewhere = Route { source: None, ifindex, gateway: None, local: true };
        if world.wire.is_external() {
            return Ok(elsewhere);
        }
        // If the kernel cannot be asked, only packets can show whether there is a route.
        let Some(routes) = &mut self.lookups.routes else { return Ok(elsewhere) };
        // The address may be another agent's on this host. The kernel has no route from a loopback
        // address to another interface.
        let from = from.filter(|from| from.is_loopback() == to.is_loopback());
        routes.route(to, from, ifindex).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::ENETUNREACH, Errno);
            Refusal::new(errno, format!("the host has no route to {to}: {error}"))
        })
    }

    /// Starts the search for a neighbour: looks now and, if necessary, again later.
    fn search(&mut self, world: &World, name: u32, search: Search) {
        if self.lookups.pending.len() >= SEARCHES_MAX {
            let text = format!("{SEARCHES_MAX} addresses are being looked for already");
            return self.address_not_found(name, Refusal::new(Errno::EAGAIN, text));
        }
        self.lookups.pending.insert(name, search);
        self.look(world, name);
    }

    /// Continues the searches that are due.
    pub(super) fn search_on(&mut self, world: &World, now: Time) {
        while let Some((at, name)) = self.lookups.searches.first().copied()
            && at <= now
        {
            self.lookups.searches.remove(&(at, name));
            if self.lookups.pending.contains_key(&name) {
                self.look(world, name);
            }
        }
    }

    fn look(&mut self, _world: &World, name: u32) {
        let now = self.now();
        let Some(search) = self.lookups.pending.get_mut(&name) else { return };
        let (hop, ifindex, found) = (search.hop, search.ifindex, search.found);
        let state = match &mut self.lookups.routes {
            Some(routes) => routes.neighbour(hop, ifindex).unwrap_or(Neighbour::There),
            None => Neighbour::There,
        };
        match state {
            Neighbour::There => return self.found_at_last(name, &found),
            // Interfaces without neighbours never have an entry, even after packets were sent.
            Neighbour::Unknown if search.probed => return self.found_at_last(name, &found),
            Neighbour::Silent if search.probed => {
                let text = format!("{hop} does not answer on its network (no neighbour)");
                return self.not_found_at_last(name, Errno::EHOSTUNREACH, text);
            }
            Neighbour::Silent | Neighbour::Unknown => {
                search.probed = true;
                let scope = match hop {
                    IpAddr::V6(v6) if v6.is_unicast_link_local() => ifindex,
                    _ => 0,
                };
                if let Err(error) = probe(found.source, hop, scope) {
                    let text = format!("nothing can be sent from {} to {hop}: {error}", found.source);
                    return self.not_found_at_last(name, Errno::EHOSTUNREACH, text);
                }
            }
            Neighbour::Asked => search.probed = true,
        }
        if now >= search.deadline {
            let text = format!("{hop} has not answered on its network within the caller's time");
            return self.not_found_at_last(name, Errno::ETIMEDOUT, text);
        }
        let at = now.after(search.wait).min(search.deadline);
        search.wait = (search.wait * 2).min(LAST_LOOK);
        self.lookups.searches.insert((at, name));
    }

    fn found_at_last(&mut self, name: u32, found: &Found) {
        self.lookups.pending.remove(&name);
        self.address_found(name, found);
    }

    fn not_found_at_last(&mut self, name: u32, errno: Errno, text: String) {
        self.lookups.pending.remove(&name);
        self.address_not_found(name, Refusal::new(errno, text));
    }

    fn address_found(&mut self, name: u32, found: &Found) {
        let Some(id) = self.ids.get_mut(name) else { return };
        id.settle_source(found.source, found.attachment);
        id.target = Some(found.target);
        id.stage = Stage::AddressResolved;
        self.tell(name, event::ADDR_RESOLVED, 0, UdParam::default(), String::new());
    }

    fn address_not_found(&mut self, name: u32, refusal: Refusal) {
        let Some(id) = self.ids.get_mut(name) else { return };
        id.stage = Stage::Bound;
        self.tell(name, event::ADDR_ERROR, refusal.errno.to_status(), UdParam::default(), refusal.reason.into_owned());
    }

    pub(super) fn resolve_route(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let ResolveRoute { id: name, timeout_ms } = call.command.body();
        self.check_room(call)?;
        let id = self.id_in(call, name, &[Stage::AddressResolved])?;
        let (Some(at), Some(target)) = (id.attachment, id.target) else {
            return refuse(Errno::EINVAL, format!("the address that id {name:#x} had is gone"));
        };
        if at.fabric.is_some() {
            return self.ask_for_path(name, (&at, target), timeout_ms);
        }
        let (tos, ack_timeout) = (id.options.tos, id.options.ack_timeout);
        let inside = self.locals.with_gid(&target).is_some();
        let path = path_between(&at, target, inside, tos, ack_timeout);
        let id = self.id(call, name)?;
        id.path = Some(path);
        id.stage = Stage::RouteResolved;
        self.tell(name, event::ROUTE_RESOLVED, 0, UdParam::default(), String::new());
        Ok(Vec::new())
    }
}

/// The path from an attachment to a GID. `inside`: the GID belongs to this agent.
pub(super) fn path_between(at: &Attachment, target: [u8; 16], inside: bool, tos: u8, ack_timeout: Option<u8>) -> Path {
    let mtu = if inside || at.outward_mtu == 0 { at.port_mtu } else { at.port_mtu.min(at.outward_mtu) };
    Path {
        sgid: at.gid,
        dgid: target,
        flow_label: 0,
        traffic_class: tos,
        hop_limit: HOP_LIMIT,
        sl: tos >> 5,
        pkey: at.pkey,
        mtu,
        rate: 0,
        slid: 0,
        dlid: 0,
        packet_life: ack_timeout.map_or(PACKET_LIFE, |code| code.saturating_sub(1)),
    }
}

/// Why an attachment has no wire to other hosts.
fn no_wire(world: &World, at: &Attachment) -> Option<String> {
    if at.iwarp.is_some() {
        return None;
    }
    let port = world.devices.get(at.device).and_then(|device: &Device| device.port(u32::from(at.port)).ok())?;
    let entry = port.gids.entry(u32::from(at.index))?;
    world.wire.why_not(entry)
}

/// The unspecified address of the same family.
fn any_like(address: &Sockaddr) -> Sockaddr {
    match address {
        Sockaddr::Ip(SocketAddr::V4(_)) => Sockaddr::Ip((Ipv4Addr::UNSPECIFIED, 0).into()),
        Sockaddr::Ip(SocketAddr::V6(addr)) => {
            Sockaddr::Ip(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, addr.scope_id()).into())
        }
        Sockaddr::Ib(record) => {
            Sockaddr::Ib(SockaddrIb { family: family::IB, pkey: record.pkey, ..SockaddrIb::default() })
        }
    }
}

fn family_of(address: &Sockaddr) -> u16 {
    match address {
        Sockaddr::Ip(SocketAddr::V4(_)) => family::INET,
        Sockaddr::Ip(SocketAddr::V6(_)) => family::INET6,
        Sockaddr::Ib(_) => family::IB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dscp::DscpTable;
    use crate::priority::PriorityTable;

    fn place(outward_mtu: u8) -> Attachment {
        Attachment {
            device: 0,
            port: 1,
            index: 1,
            is_address: true,
            gid: [1; 16],
            ifindex: 2,
            outward_mtu,
            port_mtu: 4,
            dscp: DscpTable::default(),
            priority: PriorityTable::default(),
            rate: 16,
            lid: 0,
            subnet: None,
            pkey: 0xffff,
            fabric: None,
            iwarp: None,
        }
    }

    #[test]
    fn paths_carry_what_their_interfaces_do() {
        assert_eq!(path_between(&place(3), [2; 16], false, 0, None).mtu, 3);
        assert_eq!(path_between(&place(3), [2; 16], true, 0, None).mtu, 4);
        let path = path_between(&place(5), [2; 16], false, 0x68, Some(14));
        assert_eq!((path.mtu, path.traffic_class, path.sl, path.packet_life), (4, 0x68, 3, 13));
        assert_eq!((path.sgid, path.dgid, path.pkey, path.hop_limit), ([1; 16], [2; 16], 0xffff, 64));
    }
}
