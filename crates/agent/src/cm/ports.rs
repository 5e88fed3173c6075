//! The ports of every port space: binds, listens and conflicts. This file makes no system calls for
//! them.
//!
//! A port is the lower 16 bits of a service id (IBA A11; `port space << 16 | port`). The rules are
//! Linux's (`cma_check_port`, `cma_port_is_unique`). Two ids conflict on a port if one of them has
//! no address, or if both have the same address. They do not conflict if both allow reuse, or if
//! both take only their own family and the families differ. An id that listens no longer allows
//! reuse. The principal type is [`Ports`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::gids::gid_of;

/// Maximum number of ids that may share a port.
const SHARERS: usize = 1024;

/// Where an id is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    /// What kind of address.
    pub(crate) family: Family,
    /// The address as a GID, or `None` for any address.
    pub(crate) gid: Option<[u8; 16]>,
    /// The node of a topology whose address it is, by the index of its device. `None`: every node,
    /// or there is no topology.
    pub(crate) node: Option<usize>,
}

/// The families of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
    Ib,
}

impl Spot {
    /// Of an IP address.
    pub(crate) fn ip(ip: IpAddr) -> Self {
        let family = if ip.is_ipv4() { Family::V4 } else { Family::V6 };
        Self { family, gid: (!ip.is_unspecified()).then(|| gid_of(ip)), node: None }
    }

    /// Of a GID.
    pub(crate) fn gid(gid: [u8; 16]) -> Self {
        Self { family: Family::Ib, gid: (gid != [0; 16]).then_some(gid), node: None }
    }

    /// The same address on one node.
    pub(crate) fn on(self, node: Option<usize>) -> Self {
        Self { node, ..self }
    }

    /// Whether no packet can be for both, because they are on different nodes.
    fn is_apart_from(&self, other: &Spot) -> bool {
        self.node.zip(other.node).is_some_and(|(one, two)| one != two)
    }
}

/// How an id holds its port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortHolder {
    /// The id.
    pub(crate) id: u32,
    /// Its address.
    pub(crate) spot: Spot,
    /// It may share the port.
    pub(crate) reuse: bool,
    /// It takes its own family only.
    pub(crate) af_only: bool,
    /// It listens.
    pub(crate) listens: bool,
}

/// Why an id cannot have a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BindError {
    /// This id has the port at the same address.
    SameAddress(u32),
    /// This id has the port, and one of the two has every address.
    EveryAddress(u32),
    /// The limit of ids that share the port is reached.
    TooMany,
    /// There is no memory for one more id.
    NoMemory,
}

/// The ports in use, by service id.
#[derive(Debug)]
pub(crate) struct Ports {
    held: BTreeMap<u64, Vec<PortHolder>>,
    any: RangeInclusive<u16>,
    /// Where the search for a free port continues.
    rover: u16,
}

impl Ports {
    /// Creates the table with no port in use. `any` is the range of ports that the agent chooses
    /// itself. `rover` is where the first search begins.
    pub(crate) fn new(any: RangeInclusive<u16>, rover: u16) -> Self {
        Self { held: BTreeMap::new(), any, rover }
    }

    /// Gives an id its port, or returns the conflict.
    pub(crate) fn bind(&mut self, service: u64, holder: PortHolder) -> Result<(), BindError> {
        let holders = self.held.get(&service).map_or(&[][..], Vec::as_slice);
        if holders.len() >= SHARERS {
            return Err(BindError::TooMany);
        }
        check(&holder, holders, holder.reuse)?;
        if holders.is_empty() {
            self.held.insert(service, vec![holder]);
            return Ok(());
        }
        let Some(holders) = self.held.get_mut(&service) else { return Ok(()) };
        if holders.try_reserve(1).is_err() {
            return Err(BindError::NoMemory);
        }
        holders.push(holder);
        Ok(())
    }

    /// Finds a port of the space (in the upper bits of `space`) that is free at `spot`; ids at
    /// other addresses may have it. Returns `None` if all are in use.
    pub(crate) fn free(&mut self, space: u64, spot: Spot) -> Option<u16> {
        let (first, last) = (*self.any.start(), *self.any.end());
        let next = if (first..last).contains(&self.rover) { self.rover + 1 } else { first };
        let behind = || (first < next).then(|| self.free_in(space, spot, first..=next - 1)).flatten();
        let found = self.free_in(space, spot, next..=last).or_else(behind)?;
        self.rover = found;
        Some(found)
    }

    /// The first port of a range that [`Ports::free`] may return. Searches the ports in use only
    /// once, in their order, because there may be as many as the range has.
    fn free_in(&self, space: u64, spot: Spot, range: RangeInclusive<u16>) -> Option<u16> {
        let service = |port: &u16| space | u64::from(*port);
        let mut next = *range.start();
        for (held, holders) in self.held.range(service(range.start())..=service(range.end())) {
            let fits = holders.len() < SHARERS && holders.iter().all(|other| meet(spot, other).is_none());
            if *held != service(&next) || fits {
                return Some(next);
            }
            next = next.checked_add(1)?;
        }
        range.contains(&next).then_some(next)
    }

    /// Makes an id a listener: it no longer allows reuse, and needs its port for itself.
    pub(crate) fn listen(&mut self, service: u64, id: u32) -> Result<(), BindError> {
        let Some(holders) = self.held.get_mut(&service) else { return Ok(()) };
        let Some(own) = holders.iter().position(|holder| holder.id == id) else { return Ok(()) };
        if holders[own].reuse {
            check(&holders[own], holders, false)?;
        }
        (holders[own].reuse, holders[own].listens) = (false, true);
        Ok(())
    }

    /// Changes whether an id shares its port and takes other families.
    pub(crate) fn update(&mut self, service: u64, id: u32, change: impl FnOnce(&mut PortHolder)) {
        if let Some(holder) = self.held.get_mut(&service).into_iter().flatten().find(|holder| holder.id == id) {
            change(holder);
        }
    }

    /// Releases an id's port.
    pub(crate) fn release(&mut self, service: u64, id: u32) {
        if let Some(holders) = self.held.get_mut(&service) {
            holders.retain(|holder| holder.id != id);
            if holders.is_empty() {
                self.held.remove(&service);
            }
        }
    }

    /// The listener at exactly this address, or else at any address.
    pub(crate) fn listener(&self, service: u64, to: Spot) -> Option<u32> {
        let holders = self.held.get(&service)?;
        let listens = |holder: &&PortHolder| holder.listens && !holder.spot.is_apart_from(&to);
        let exact = |holder: &&PortHolder| holder.spot.gid.is_some() && holder.spot.gid == to.gid;
        let any = |holder: &&PortHolder| {
            let family = holder.spot.family == to.family || (holder.spot.family == Family::V6 && !holder.af_only);
            holder.spot.gid.is_none() && (family || holder.spot.family == Family::Ib)
        };
        let mut all = holders.iter().filter(listens);
        all.clone().find(exact).or_else(|| all.find(any)).map(|holder| holder.id)
    }
}

/// Checks that an id may have a port besides the ids that have it. `reuse`: it may share with ids
/// that also allow reuse.
fn check(holder: &PortHolder, holders: &[PortHolder], reuse: bool) -> Result<(), BindError> {
    let counts = |other: &&PortHolder| {
        let shares = reuse && other.reuse;
        let families_apart = holder.af_only && other.af_only && holder.spot.family != other.spot.family;
        other.id != holder.id && !shares && !families_apart
    };
    holders.iter().filter(counts).find_map(|other| meet(holder.spot, other)).map_or(Ok(()), Err)
}

/// The conflict of an address with an id's address, if there is one. A wildcard means every
/// address, of other families too.
fn meet(spot: Spot, other: &PortHolder) -> Option<BindError> {
    if spot.is_apart_from(&other.spot) {
        return None;
    }
    if spot.gid.is_none() || other.spot.gid.is_none() {
        return Some(BindError::EveryAddress(other.id));
    }
    let is_same = (spot.family, spot.gid) == (other.spot.family, other.spot.gid);
    is_same.then_some(BindError::SameAddress(other.id))
}

/// Linux's defaults: the range of chosen ports, and the first port for all users.
pub(super) const EPHEMERAL: (u16, u16) = (32_768, 60_999);

pub(super) const FIRST_FREE_PORT: u16 = 1024;

/// The range of ports that the agent chooses itself.
pub(super) fn ephemeral_range() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range(&text).unwrap_or(EPHEMERAL)
}

fn range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let (first, last) = (numbers.next()??, numbers.next()??);
    (0 < first && first <= last).then_some((first, last))
}

/// The first port for all users.
pub(super) fn first_free_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(FIRST_FREE_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_ports_is_read_as_the_kernel_writes_it() {
        assert_eq!(range("32768\t60999\n"), Some((32_768, 60_999)));
        for nonsense in ["", "1", "5 4", "0 9", "a b", "1 70000"] {
            assert_eq!(range(nonsense), None, "{nonsense:?}");
        }
    }

    const PORT: u64 = 0x0106_1d2f;

    fn spot(ip: &str) -> Spot {
        Spot::ip(ip.parse().expect(ip))
    }

    /// As in `give_address`: an IPv4 id takes its own family only.
    fn holder(id: u32, ip: &str) -> PortHolder {
        let spot = spot(ip);
        PortHolder { id, spot, reuse: false, af_only: spot.family == Family::V4, listens: false }
    }

    fn ports() -> Ports {
        Ports::new(40_000..=40_003, 40_001)
    }

    #[test]
    fn one_address_and_port_has_one_holder() {
        let mut ports = ports();
        assert_eq!(ports.bind(PORT, holder(1, "127.0.0.1")), Ok(()));
        assert_eq!(ports.bind(PORT, holder(2, "127.0.0.1")), Err(BindError::SameAddress(1)));
        assert_eq!(ports.bind(PORT, holder(4, "127.0.0.2")), Ok(()));
        assert_eq!(ports.bind(PORT + 1, holder(5, "127.0.0.1")), Ok(()));
        assert_eq!(ports.bind(PORT + 0x000b_0000, holder(6, "127.0.0.1")), Ok(()), "another port space");
    }

    #[test]
    fn a_wildcard_conflicts_with_every_address_in_either_order() {
        let af_only = |id, ip| PortHolder { af_only: true, ..holder(id, ip) };
        let every = Err(BindError::EveryAddress(1));
        for (first, second, outcome) in [
            (holder(1, "127.0.0.1"), holder(2, "0.0.0.0"), every),
            (holder(1, "0.0.0.0"), holder(2, "127.0.0.1"), every),
            (holder(1, "0.0.0.0"), holder(2, "0.0.0.0"), every),
            (holder(1, "127.0.0.1"), holder(2, "::"), every),
            (holder(1, "::"), holder(2, "127.0.0.1"), every),
            (holder(1, "::1"), holder(2, "0.0.0.0"), every),
            (holder(1, "::"), holder(2, "0.0.0.0"), every),
            (af_only(1, "::"), holder(2, "::1"), every),
            (af_only(1, "::"), holder(2, "0.0.0.0"), Ok(())),
            (af_only(1, "::"), holder(2, "127.0.0.1"), Ok(())),
            (af_only(1, "::1"), holder(2, "0.0.0.0"), Ok(())),
            (PortHolder { af_only: false, ..holder(1, "0.0.0.0") }, af_only(2, "::"), every),
            (holder(1, "127.0.0.1"), holder(2, "::1"), Ok(())),
        ] {
            let mut ports = ports();
            assert_eq!(ports.bind(PORT, first), Ok(()));
            assert_eq!(ports.bind(PORT, second), outcome, "{first:?}, then {second:?}");
        }
    }

    #[test]
    fn a_port_bound_with_reuse_is_shared_until_a_holder_listens() {
        let mut ports = ports();
        let shared = |id| PortHolder { reuse: true, ..holder(id, "127.0.0.1") };
        assert_eq!(ports.bind(PORT, shared(1)), Ok(()));
        assert_eq!(ports.bind(PORT, shared(2)), Ok(()));
        assert_eq!(ports.bind(PORT, PortHolder { reuse: true, ..holder(3, "0.0.0.0") }), Ok(()));
        assert_eq!(ports.listen(PORT, 1), Err(BindError::SameAddress(2)));
        ports.release(PORT, 2);
        assert_eq!(ports.listen(PORT, 1), Err(BindError::EveryAddress(3)));
        ports.release(PORT, 3);
        assert_eq!(ports.bind(PORT, holder(3, "127.0.0.1")), Err(BindError::SameAddress(1)));
        assert_eq!(ports.listen(PORT, 1), Ok(()));
        assert_eq!(ports.bind(PORT, shared(4)), Err(BindError::SameAddress(1)));
        ports.release(PORT, 1);
        for id in 0..1024 {
            assert_eq!(ports.bind(PORT, shared(id)), Ok(()));
        }
        assert_eq!(ports.bind(PORT, shared(1024)), Err(BindError::TooMany));
    }

    #[test]
    fn the_nearest_listener_gets_the_request() {
        let mut ports = ports();
        ports.bind(PORT, holder(1, "::")).expect("free");
        assert_eq!(ports.listener(PORT, spot("127.0.0.1")), None, "nobody listens yet");
        ports.listen(PORT, 1).expect("alone");
        assert_eq!(ports.listener(PORT, spot("127.0.0.1")), Some(1));
        assert_eq!(ports.listener(PORT, spot("::1")), Some(1));
        assert_eq!(ports.listener(PORT + 1, spot("::1")), None);
        ports.update(PORT, 1, |holder| holder.af_only = true);
        assert_eq!(ports.listener(PORT, spot("127.0.0.1")), None);
        ports.bind(PORT, holder(2, "0.0.0.0")).expect("the other family");
        ports.listen(PORT, 2).expect("alone there");
        assert_eq!(ports.listener(PORT, spot("127.0.0.1")), Some(2));
    }

    #[test]
    fn ports_that_nobody_chose_are_used_up_and_come_back() {
        let mut ports = ports();
        let (space, one, other) = (0x0106_0000, spot("127.0.0.1"), spot("127.0.0.2"));
        let mut given = Vec::new();
        while let Some(port) = ports.free(space, one) {
            ports.bind(space | u64::from(port), holder(u32::from(port), "127.0.0.1")).expect("free");
            given.push(port);
        }
        assert_eq!(given, [40_002, 40_003, 40_000, 40_001]);
        assert_eq!(ports.free(space, spot("0.0.0.0")), None, "a wildcard needs a port for itself");
        assert_eq!(ports.free(space, other), Some(40_002), "another address has ports of its own");
        assert_eq!(ports.free(0x0111_0000, one), Some(40_003));
        ports.release(space | 40_001, 40_001);
        assert_eq!(ports.free(space, one), Some(40_001));
    }
}
