//! The tables of a switch, and where they send a packet. The subnet manager alone sets them: a
//! switch learns nothing, and looks no further than the LRH and the P_Key. Not the checks of the
//! egress port ([`crate::port`]) and not the moving of packets ([`crate::fabric`]). Principal type:
//! [`Switch`].

use crate::counters::Cause;
use crate::service::SlToVl;
use std::collections::BTreeMap;
use wire::lrh;

/// The entry of a table that leads nowhere.
pub const NO_PORT: u8 = 255;

/// A set of port numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports([u64; 4]);

impl Ports {
    /// The set of these ports.
    pub fn of(ports: impl IntoIterator<Item = u8>) -> Ports {
        let mut set = Ports::default();
        ports.into_iter().for_each(|port| set.0[usize::from(port / 64)] |= 1 << (port % 64));
        set
    }

    /// Whether a port is in the set.
    #[must_use]
    pub const fn has(self, port: u8) -> bool {
        self.0[(port / 64) as usize] >> (port % 64) & 1 == 1
    }

    /// The set without this port.
    #[must_use]
    pub const fn without(mut self, port: u8) -> Ports {
        self.0[(port / 64) as usize] &= !(1 << (port % 64));
        self
    }

    /// The ports, smallest first.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..4).flat_map(move |word| {
            let mut left = self.0[word as usize];
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as u8;
                    left &= left - 1;
                    word * 64 + bit
                })
            })
        })
    }

    /// How many ports are in the set.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// The tables of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The egress port of each unicast LID, up to the highest that was set. [`NO_PORT`]: no route.
    pub linear: Vec<u8>,
    /// LinearFDBTop: higher unicast LIDs have no route.
    pub top: u16,
    /// The ports of each multicast LID.
    pub multicast: BTreeMap<u16, Ports>,
    /// Where a multicast packet without an entry goes, unless it came from there.
    pub default_primary: u8,
    /// Where it goes if it came from the primary port.
    pub default_not_primary: u8,
    /// The lane of each service level for pairs of ingress and egress port.
    pub sl_to_vl: BTreeMap<(u8, u8), SlToVl>,
    /// The same for all other pairs.
    pub sl_to_vl_default: SlToVl,
    /// LifeTimeValue: 4.096 µs × 2^code in the switch; 20 and more is for ever.
    pub life: u8,
}

impl Default for Switch {
    fn default() -> Switch {
        Switch {
            linear: Vec::new(),
            top: lrh::LID_MULTICAST - 1,
            multicast: BTreeMap::new(),
            default_primary: NO_PORT,
            default_not_primary: NO_PORT,
            sl_to_vl: BTreeMap::new(),
            sl_to_vl_default: SlToVl::default(),
            life: 20,
        }
    }
}

impl Switch {
    /// Sets the egress port of a unicast LID.
    pub fn set_route(&mut self, lid: u16, port: u8) {
        let at = usize::from(lid);
        if at >= self.linear.len() {
            self.linear.resize(at + 1, NO_PORT);
        }
        self.linear[at] = port;
    }

    /// The egress port of a unicast LID, if there is one.
    #[must_use]
    pub fn route(&self, lid: u16) -> Option<u8> {
        self.linear.get(usize::from(lid)).copied().filter(|port| *port != NO_PORT && lid <= self.top)
    }

    /// The lane of a service level from one port to another. `None` drops the packet.
    #[must_use]
    pub fn vl(&self, ingress: u8, egress: u8, sl: u8) -> Option<u8> {
        self.sl_to_vl.get(&(ingress, egress)).unwrap_or(&self.sl_to_vl_default).vl(sl)
    }

    /// The ports that a packet leaves by. Port 0 is the switch itself. `last` is the highest port
    /// number, and `own` says whether the LID is the switch's own.
    ///
    /// # Errors
    /// Why the switch drops the packet.
    pub fn forward(&self, header: &lrh::Header, ingress: u8, last: u8, own: bool) -> Result<Ports, Cause> {
        let management = header.vl == lrh::VL_MANAGEMENT;
        match header.dlid {
            0 => return Err(Cause::BadLid),
            lrh::LID_PERMISSIVE if management => return Ok(Ports::of([0])),
            lrh::LID_PERMISSIVE => return Err(Cause::BadLid),
            _ if header.is_multicast() => return self.copies(header.dlid, ingress, last),
            _ if own => return Ok(Ports::of([0])),
            _ => {}
        }
        match self.route(header.dlid) {
            Some(port) if port > last => Err(Cause::NoRoute),
            Some(port) if port == ingress && port != 0 => Err(Cause::BackToSource),
            Some(port) => Ok(Ports::of([port])),
            None => Err(Cause::NoRoute),
        }
    }

    fn copies(&self, mlid: u16, ingress: u8, last: u8) -> Result<Ports, Cause> {
        let Some(ports) = self.multicast.get(&mlid) else {
            let port = if ingress == self.default_primary { self.default_not_primary } else { self.default_primary };
            return if port <= last && port != ingress { Ok(Ports::of([port])) } else { Err(Cause::NoRoute) };
        };
        let ports = Ports::of(ports.without(ingress).iter().filter(|port| *port <= last));
        if ports == Ports::default() { Err(Cause::NoRoute) } else { Ok(ports) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn to(dlid: u16, vl: u8) -> lrh::Header {
        lrh::Header { dlid, vl, ..lrh::Header::default() }
    }

    #[test]
    fn l34_lids_that_lead_nowhere_are_dropped() {
        let mut switch = Switch::default();
        switch.set_route(5, 3);
        switch.set_route(6, 9);
        let forward = |dlid, vl, ingress| switch.forward(&to(dlid, vl), ingress, 8, dlid == 7);
        assert_eq!(forward(0, 0, 1), Err(Cause::BadLid));
        assert_eq!(forward(0xffff, 0, 1), Err(Cause::BadLid), "only by directed route");
        assert_eq!(forward(0xffff, 15, 1), Ok(Ports::of([0])));
        assert_eq!(forward(4, 0, 1), Err(Cause::NoRoute));
        assert_eq!(forward(900, 0, 1), Err(Cause::NoRoute));
        assert_eq!(forward(6, 0, 1), Err(Cause::NoRoute), "a port above the last");
        assert_eq!(forward(5, 0, 1), Ok(Ports::of([3])));
        assert_eq!(forward(5, 0, 3), Err(Cause::BackToSource));
        assert_eq!(forward(7, 0, 1), Ok(Ports::of([0])), "own LID goes to port 0");
    }

    #[test]
    fn l35_a_multicast_packet_goes_to_every_port_but_its_own() {
        let mut switch = Switch::default();
        switch.multicast.insert(0xc001, Ports::of([0, 1, 2, 70, 200]));
        let forward = |switch: &Switch, dlid, ingress| switch.forward(&to(dlid, 0), ingress, 100, false);
        assert_eq!(forward(&switch, 0xc001, 2), Ok(Ports::of([0, 1, 70])));
        assert_eq!(forward(&switch, 0xc002, 2), Err(Cause::NoRoute));
        (switch.default_primary, switch.default_not_primary) = (4, 5);
        assert_eq!(forward(&switch, 0xc002, 2), Ok(Ports::of([4])));
        assert_eq!(forward(&switch, 0xc002, 4), Ok(Ports::of([5])));
    }

    #[test]
    fn l32_a_pair_of_ports_may_have_its_own_table() {
        let mut switch = Switch { sl_to_vl_default: SlToVl::spread(2), ..Switch::default() };
        switch.sl_to_vl.insert((1, 2), SlToVl::of(|_| 15));
        assert_eq!((switch.vl(1, 3, 1), switch.vl(1, 2, 1)), (Some(1), None));
    }

    proptest! {
        /// Against the sentence of the requirement, for any tables and any LID.
        #[test]
        fn l34_l35_a_switch_follows_its_tables(
            routes in proptest::collection::vec((0..64_u16, 0..12_u8), 0..40),
            groups in proptest::collection::vec((0xc000..0xc008_u16, proptest::collection::vec(0..12_u8, 0..6)), 0..8),
            dlid in prop_oneof![0..70_u16, 0xc000..0xc00a_u16, Just(0xffff_u16)],
            ingress in 0..9_u8,
        ) {
            let mut switch = Switch::default();
            let mut linear = BTreeMap::new();
            for (lid, port) in routes {
                switch.set_route(lid, port);
                linear.insert(lid, port);
            }
            let groups: BTreeMap<u16, Vec<u8>> = groups.into_iter().collect();
            groups.iter().for_each(|(lid, ports)| { switch.multicast.insert(*lid, Ports::of(ports.iter().copied())); });
            let expected: Vec<u8> = if (0xc000..0xffff).contains(&dlid) {
                let ports = groups.get(&dlid).into_iter().flatten().copied();
                let set: std::collections::BTreeSet<u8> = ports.filter(|port| *port != ingress && *port <= 8).collect();
                set.into_iter().collect()
            } else {
                let allowed = |port: &u8| *port <= 8 && (*port != ingress || *port == 0) && dlid != 0 && dlid != 0xffff;
                linear.get(&dlid).copied().filter(allowed).into_iter().collect()
            };
            let found = switch.forward(&to(dlid, 0), ingress, 8, false).map_or(Vec::new(), |ports| ports.iter().collect());
            prop_assert_eq!(found, expected);
        }
    }
}
