//! Multicast groups whose packets pass routers: each agent's own subnet managers know the groups of
//! their subnets. The ports of routers that lie between members join the groups, and the routers
//! get their tables. A subnet with another manager has no part in it. Adds to [`Mads`].

use std::collections::BTreeMap;

use sm::groups::Routed;
use subnet::Managed;
use subnet::managed::routed_groups::{Duty, InSubnet};
use wire::cm::Gid;
use wire::sa::McMemberRecord;

use super::Mads;
use super::own_manager::OwnManager;

/// A group in each of its subnets, by their prefixes.
type Subnets = BTreeMap<u64, Routed>;

impl Mads {
    /// Brings the members that are routers, and the tables of the routers, up to date with the
    /// groups.
    pub(super) fn route_groups(&mut self) {
        let now = self.now();
        let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.managed.has_routers()) else { return };
        if fabric.routed == changes(&fabric.managed, &self.managers) {
            return;
        }
        let mut tables = BTreeMap::new();
        for (mgid, subnets) in groups(&self.managers) {
            let duties = duties(&fabric.managed, &subnets);
            let record = subnets.values().next().map(|routed| routed.record);
            let record = record.unwrap_or(McMemberRecord { mgid, ..McMemberRecord::default() });
            let mut joined: BTreeMap<u64, InSubnet> = BTreeMap::new();
            for manager in &mut self.managers {
                let prefix = manager.prefix();
                let states: BTreeMap<u64, u8> = states(&fabric.managed, &duties, prefix).collect();
                let known = manager.service_mut().join_routers(&record, &states, now);
                joined.extend(known.map(|known| (prefix, (known.mlid, known.sl))));
            }
            if !duties.is_empty() {
                tables.insert(u128::from_be_bytes(mgid), (duties, joined));
            }
        }
        fabric.managed.route_groups(&tables);
        fabric.routed = changes(&fabric.managed, &self.managers);
    }
}

fn changes(net: &Managed, managers: &[OwnManager]) -> Vec<u64> {
    let groups = managers.iter().map(|manager| manager.service().group_changes());
    std::iter::once(net.router_changes()).chain(groups).collect()
}

/// The groups that have members which are no routers, in their subnets; and those that only have
/// routers, in none.
fn groups(managers: &[OwnManager]) -> BTreeMap<Gid, Subnets> {
    let mut groups: BTreeMap<Gid, Subnets> = BTreeMap::new();
    for manager in managers {
        let (prefix, inventory) = (manager.prefix(), manager.service().manager().inventory());
        let Some(sa) = manager.service().sa() else { continue };
        for record in sa.groups_of_routers(inventory) {
            groups.entry(record.mgid).or_default();
        }
        for routed in sa.routed(inventory) {
            groups.entry(routed.record.mgid).or_default().insert(prefix, routed);
        }
    }
    groups
}

/// What routers do for a group. It is one group in the subnets where it has the same partition and
/// Q_Key as in the first.
fn duties(net: &Managed, subnets: &Subnets) -> Vec<Duty> {
    let first = subnets.values().next().map(|routed| routed.record);
    let is_same = |other: &McMemberRecord| {
        first.is_some_and(|first| (first.pkey ^ other.pkey) & 0x7fff == 0 && first.qkey == other.qkey)
    };
    let same = || subnets.iter().filter(|(_, routed)| is_same(&routed.record));
    if !same().any(|(_, routed)| routed.lives) {
        return Vec::new();
    }
    net.plan_group(&same().map(|(prefix, routed)| (*prefix, routed.receives)).collect())
}

/// The join states of routers in a subnet, by the GUIDs of their ports.
fn states(net: &Managed, duties: &[Duty], prefix: u64) -> impl Iterator<Item = (u64, u8)> {
    duties.iter().filter(move |duty| duty.prefix == prefix).filter_map(|duty| {
        let guid = net.fabric().port(duty.end)?.settings().identity.guid;
        Some((guid, if duty.takes { McMemberRecord::FULL } else { McMemberRecord::SEND_ONLY_FULL }))
    })
}
