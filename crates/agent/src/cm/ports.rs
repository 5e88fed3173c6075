//! Who has which port: binds, listens and conflicts, for every port space. Pure bookkeeping.
//!
//! A port is the lower 16 bits of a service id (IBA A11; `port space << 16 | port`). The rules are those of rdma_bind_addr(3)
//! and rdma_set_option(3): ids conflict on a port if their addresses overlap, unless all of them allow reuse and none
//! listens. The principal type is [`Ports`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::gids::gid_of;

/// Ids that may share a port.
const SHARERS: usize = 1024;

/// Where an id is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    /// What kind of address.
    pub(crate) family: Family,
    /// The address as a GID; nothing is any.
    pub(crate) gid: Option<[u8; 16]>,
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
        Self { family, gid: (!ip.is_unspecified()).then(|| gid_of(ip)) }
    }

    /// Of a GID.
    pub(crate) fn gid(gid: [u8; 16]) -> Self {
        Self { family: Family::Ib, gid: (gid != [0; 16]).then_some(gid) }
    }
}

/// How an id holds its port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    /// The id.
    pub(crate) id: u32,
    /// The address.
    pub(crate) spot: Spot,
    /// It may share the port.
    pub(crate) reuse: bool,
    /// It takes its own family only.
    pub(crate) alone: bool,
    /// It listens.
    pub(crate) listens: bool,
}

/// Why a port cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// This id has it.
    With(u32),
    /// More ids have it than may.
    TooMany,
}

/// The ports in use, by service id.
#[derive(Debug)]
pub(crate) struct Ports {
    held: HashMap<u64, Vec<Holder>>,
    any: RangeInclusive<u16>,
    /// Where the search for a free port goes on.
    rover: u16,
}

impl Ports {
    /// None in use. `any`: from where ports come that nobody chose. `rover`: where to begin.
    pub(crate) fn new(any: RangeInclusive<u16>, rover: u16) -> Self {
        Self { held: HashMap::new(), any, rover }
    }

    /// Gives an id its port, or says who is in the way.
    pub(crate) fn bind(&mut self, service: u64, holder: Holder) -> Result<(), Conflict> {
        let holders = self.held.entry(service).or_default();
        if holders.len() >= SHARERS {
            return Err(Conflict::TooMany);
        }
        let shares = |other: &&Holder| !(holder.reuse && other.reuse && !other.listens);
        if let Some(other) = holders.iter().filter(shares).find(|other| overlap(&holder, other)) {
            return Err(Conflict::With(other.id));
        }
        holders.push(holder);
        Ok(())
    }

    /// A port of a space (in the upper bits of `space`) that nobody has. None: all are in use.
    pub(crate) fn free(&mut self, space: u64) -> Option<u16> {
        let count = self.any.end() - self.any.start();
        for _ in 0..=count {
            self.rover = if self.any.contains(&self.rover) && self.rover != *self.any.end() {
                self.rover + 1
            } else {
                *self.any.start()
            };
            if !self.held.contains_key(&(space | u64::from(self.rover))) {
                return Some(self.rover);
            }
        }
        None
    }

    /// Makes an id the one that listens at its address.
    pub(crate) fn listen(&mut self, service: u64, id: u32) -> Result<(), Conflict> {
        let Some(holders) = self.held.get_mut(&service) else { return Ok(()) };
        let Some(own) = holders.iter().position(|holder| holder.id == id) else { return Ok(()) };
        let others = holders.iter().filter(|other| other.id != id);
        if let Some(other) = others.into_iter().find(|other| overlap(&holders[own], other)) {
            return Err(Conflict::With(other.id));
        }
        holders[own].listens = true;
        Ok(())
    }

    /// Changes how an id takes other families and shares its port.
    pub(crate) fn update(&mut self, service: u64, id: u32, change: impl FnOnce(&mut Holder)) {
        if let Some(holder) = self.held.get_mut(&service).into_iter().flatten().find(|holder| holder.id == id) {
            change(holder);
        }
    }

    /// Takes an id's port.
    pub(crate) fn release(&mut self, service: u64, id: u32) {
        if let Some(holders) = self.held.get_mut(&service) {
            holders.retain(|holder| holder.id != id);
            if holders.is_empty() {
                self.held.remove(&service);
            }
        }
    }

    /// Who listens there: at exactly this address, else at any.
    pub(crate) fn listener(&self, service: u64, to: Spot) -> Option<u32> {
        let holders = self.held.get(&service)?;
        let listens = |holder: &&Holder| holder.listens;
        let exact = |holder: &&Holder| holder.spot.gid.is_some() && holder.spot.gid == to.gid;
        let any = |holder: &&Holder| {
            let family = holder.spot.family == to.family || (holder.spot.family == Family::V6 && !holder.alone);
            holder.spot.gid.is_none() && (family || holder.spot.family == Family::Ib)
        };
        let mut all = holders.iter().filter(listens);
        all.clone().find(exact).or_else(|| all.find(any)).map(|holder| holder.id)
    }
}

/// Whether two ids would get the same requests.
fn overlap(one: &Holder, other: &Holder) -> bool {
    let families_apart = one.spot.family != other.spot.family && one.alone && other.alone;
    match (one.spot.gid, other.spot.gid) {
        _ if families_apart => false,
        (Some(a), Some(b)) => a == b,
        // An IPv4 wildcard does not reach into IPv6.
        (None, Some(_)) if one.spot.family == Family::V4 && other.spot.family == Family::V6 => false,
        (Some(_), None) if one.spot.family == Family::V6 && other.spot.family == Family::V4 => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u64 = 0x0106_1d2f;

    fn holder(id: u32, ip: &str) -> Holder {
        Holder { id, spot: Spot::ip(ip.parse().expect(ip)), reuse: false, alone: false, listens: false }
    }

    fn ports() -> Ports {
        Ports::new(40_000..=40_003, 40_001)
    }

    #[test]
    fn one_address_and_port_has_one_holder() {
        let mut ports = ports();
        assert_eq!(ports.bind(PORT, holder(1, "127.0.0.1")), Ok(()));
        assert_eq!(ports.bind(PORT, holder(2, "127.0.0.1")), Err(Conflict::With(1)));
        assert_eq!(ports.bind(PORT, holder(2, "0.0.0.0")), Err(Conflict::With(1)));
        assert_eq!(ports.bind(PORT, holder(3, "::")), Err(Conflict::With(1)), "IPv6 takes IPv4 as well");
        assert_eq!(ports.bind(PORT, Holder { alone: true, ..holder(3, "::") }), Err(Conflict::With(1)));
        assert_eq!(ports.bind(PORT, holder(4, "127.0.0.2")), Ok(()));
        assert_eq!(ports.bind(PORT + 1, holder(5, "127.0.0.1")), Ok(()));
        assert_eq!(ports.bind(PORT + 0x000b_0000, holder(6, "127.0.0.1")), Ok(()), "another port space");
        ports.release(PORT, 1);
        ports.release(PORT, 4);
        assert_eq!(ports.bind(PORT, Holder { alone: true, ..holder(7, "0.0.0.0") }), Ok(()));
        assert_eq!(ports.bind(PORT, Holder { alone: true, ..holder(8, "::") }), Ok(()), "each its own family");
    }

    #[test]
    fn who_allows_reuse_shares_until_somebody_listens() {
        let mut ports = ports();
        let shared = |id| Holder { reuse: true, ..holder(id, "127.0.0.1") };
        assert_eq!(ports.bind(PORT, shared(1)), Ok(()));
        assert_eq!(ports.bind(PORT, shared(2)), Ok(()));
        assert_eq!(ports.bind(PORT, holder(3, "127.0.0.1")), Err(Conflict::With(1)));
        assert_eq!(ports.listen(PORT, 1), Err(Conflict::With(2)));
        ports.release(PORT, 2);
        assert_eq!(ports.listen(PORT, 1), Ok(()));
        assert_eq!(ports.bind(PORT, shared(4)), Err(Conflict::With(1)));
        ports.release(PORT, 1);
        for id in 0..1024 {
            assert_eq!(ports.bind(PORT, shared(id)), Ok(()));
        }
        assert_eq!(ports.bind(PORT, shared(1024)), Err(Conflict::TooMany));
    }

    #[test]
    fn the_nearest_listener_gets_the_request() {
        let mut ports = ports();
        let at = |ip: &str| Spot::ip(ip.parse().expect(ip));
        ports.bind(PORT, holder(1, "::")).expect("free");
        assert_eq!(ports.listener(PORT, at("127.0.0.1")), None, "nobody listens yet");
        ports.listen(PORT, 1).expect("alone");
        assert_eq!(ports.listener(PORT, at("127.0.0.1")), Some(1));
        assert_eq!(ports.listener(PORT, at("::1")), Some(1));
        assert_eq!(ports.listener(PORT + 1, at("::1")), None);
        ports.update(PORT, 1, |holder| holder.alone = true);
        assert_eq!(ports.listener(PORT, at("127.0.0.1")), None);
        ports.bind(PORT, Holder { alone: true, ..holder(2, "0.0.0.0") }).expect("the other family");
        ports.listen(PORT, 2).expect("alone there");
        assert_eq!(ports.listener(PORT, at("127.0.0.1")), Some(2));
    }

    #[test]
    fn ports_that_nobody_chose_are_used_up_and_come_back() {
        let mut ports = ports();
        let space = 0x0106_0000;
        let mut given = Vec::new();
        while let Some(port) = ports.free(space) {
            ports.bind(space | u64::from(port), holder(u32::from(port), "127.0.0.1")).expect("free");
            given.push(port);
        }
        assert_eq!(given, [40_002, 40_003, 40_000, 40_001]);
        assert_eq!(ports.free(0x0111_0000), Some(40_002));
        ports.release(space | 40_003, 40_003);
        assert_eq!(ports.free(space), Some(40_003));
    }
}
