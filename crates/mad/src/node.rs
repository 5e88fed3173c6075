//! The state of a node that management sees: its identifiers, its ports and tables. Not its packets
//! and not the rules of changes ([`crate::sma`]). Principal types: [`Node`], [`Port`].

use crate::counters::Counters;
use crate::samples::Samples;
use std::collections::BTreeMap;
use std::time::Duration;
use wire::notice::{ChangeNotice, Notice, SwitchNotice};
use wire::smp::{
    LinkState, NodeDescription, NodeInfo, NodeType, PhysState, PortInfo, SlToVl, SwitchInfo, VlArbitration,
};

/// A channel adapter, a switch or a router.
#[derive(Clone, Debug)]
pub struct Node {
    /// NodeInfo; the fields of a port are those of the port that is asked.
    pub info: NodeInfo,
    /// Its description.
    pub description: NodeDescription,
    /// What only a switch has.
    pub switch: Option<Switch>,
    /// The ports by their numbers. An adapter has no port 0, so its first entry is not used.
    pub ports: Vec<Port>,
    /// The sampling of counters.
    pub samples: Samples,
}

/// What only a switch has.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    /// SwitchInfo.
    pub info: SwitchInfo,
    /// The egress port of each LID. It is as long as the last block that was set; later LIDs have
    /// no egress port.
    pub linear: Vec<u8>,
    /// The ports of each multicast LID, from 0xc000 on; 16 ports in each number.
    pub multicast: Vec<[u16; 16]>,
}

/// One port.
#[derive(Clone, Debug)]
pub struct Port {
    /// The port's GUID; of a switch, all external ports have that of port 0 here.
    pub guid: u64,
    /// PortInfo. `local_port` is filled in when it is asked.
    pub info: PortInfo,
    /// Entries of the P_Key table.
    pub pkey_cap: u16,
    /// The P_Key table, as long as the last block that was set; later entries are 0.
    pub pkeys: Vec<u16>,
    /// The GUID table, as long as the last block that was set. Entry 0 is the port's own.
    pub guids: Vec<u64>,
    /// The virtual lanes of each service level; of a switch, by ingress port. A table that is not
    /// here has lane 0 for all.
    pub sl_to_vl: BTreeMap<u8, SlToVl>,
    /// The arbitration tables after a Set: 1 and 2 low, 3 and 4 high.
    pub arbitration: Option<Box<[VlArbitration; 4]>>,
    /// The counters.
    pub counters: Counters,
    /// When the lease of the management key ends, after a violation.
    pub lease_ends: Option<Duration>,
}

impl Node {
    /// A node whose ports are down: an adapter or router without port 0, or a switch with one.
    #[must_use]
    pub fn new(kind: NodeType, info: NodeInfo, description: &str, port: &PortInfo, switch: SwitchInfo) -> Node {
        let is_switch = kind == NodeType::Switch;
        let info = NodeInfo { base_version: 1, class_version: 1, node_type: kind as u8, ..info };
        let pkeys = |port: usize| {
            let external = is_switch && port != 0;
            if external { switch.enforcement_cap } else { info.partition_cap }
        };
        let ports = (0..=usize::from(info.ports))
            .map(|number| {
                let offset = if is_switch { 0 } else { number as u64 };
                let guid = info.node_guid.wrapping_add(offset);
                Port::new(guid, *port, pkeys(number))
            })
            .collect();
        let switch = is_switch.then(|| Switch { info: switch, ..Switch::default() });
        Node { info, description: NodeDescription::new(description), switch, ports, samples: Samples::default() }
    }

    /// The port with this number.
    #[must_use]
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.exists(number).then(|| self.ports.get(usize::from(number)))?
    }

    /// The port with this number, to change it.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        self.exists(number).then(|| self.ports.get_mut(usize::from(number)))?
    }

    /// The number of the port that has the LID, the keys and the P_Keys of an agent at `number`: of
    /// a switch, port 0.
    #[must_use]
    pub const fn end_port(&self, number: u8) -> u8 {
        if self.switch.is_some() { 0 } else { number }
    }

    /// Notes that a link has come up or gone down. Returns the notice of a switch; an adapter has
    /// no one to tell.
    pub fn link_changed(&mut self, number: u8, state: LinkState, physical: PhysState) -> Option<Notice> {
        let port = self.port_mut(number)?;
        let changed = port.info.link.state != state as u8;
        port.info.link.state = state as u8;
        port.info.link.phys_state = physical as u8;
        let lid = self.port(0)?.info.lid;
        let switch = self.switch.as_mut().filter(|_| changed)?;
        switch.info.port_state_change = true;
        let producer = NodeType::Switch as u32;
        Some(Notice::with(Notice::URGENT, producer, Notice::LINK_STATE, lid, SwitchNotice { lid }))
    }

    /// Changes the capability mask of a port: a manager starts or ends there, for example. Returns
    /// the notice of it.
    pub fn change_capability(&mut self, number: u8, mask: u32) -> Option<Notice> {
        let producer = self.info.node_type.into();
        let info = &mut self.port_mut(number)?.info;
        if std::mem::replace(&mut info.capability_mask, mask) == mask {
            return None;
        }
        let (lid, capability_mask2) = (info.lid, info.capability_mask2);
        let details = ChangeNotice { lid, capability_mask: mask, capability_mask2, ..ChangeNotice::default() };
        Some(Notice::with(Notice::INFO, producer, Notice::LOCAL_CHANGE, lid, details))
    }

    /// Does what is due of the sampling. The counters are up to date.
    pub fn sample(&mut self, now: Duration) {
        let port = usize::from(self.samples.port());
        if let Some(port) = self.ports.get(port) {
            self.samples.advance(&port.counters, now);
        }
    }

    fn exists(&self, number: u8) -> bool {
        number <= self.info.ports && (number != 0 || self.switch.is_some())
    }

    /// The egress port of a LID in the switch's table, if it has one.
    #[must_use]
    pub fn egress(&self, lid: u16) -> Option<u8> {
        let port = *self.switch.as_ref()?.linear.get(usize::from(lid))?;
        (port <= self.info.ports).then_some(port)
    }
}

impl Port {
    /// A port whose tables are empty but for the default partition and its own GUID.
    #[must_use]
    pub fn new(guid: u64, info: PortInfo, pkey_cap: u16) -> Port {
        Port {
            guid,
            info,
            pkey_cap: pkey_cap.max(1),
            pkeys: vec![0xffff],
            guids: vec![guid],
            sl_to_vl: BTreeMap::new(),
            arbitration: None,
            counters: Counters::default(),
            lease_ends: None,
        }
    }

    /// Forgets what a manager has set, as a port without power does, and has this prefix again.
    /// Counters stay.
    pub fn forget(&mut self, gid_prefix: u64) {
        let info = PortInfo { gid_prefix, lid: 0, lmc: 0, master_sm_lid: 0, master_sm_sl: 0, mkey: 0, ..self.info };
        let counters = std::mem::take(&mut self.counters);
        *self = Self { counters, ..Self::new(self.guid, info, self.pkey_cap) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: NodeType) -> Node {
        let info = NodeInfo { ports: 2, node_guid: 9, ..NodeInfo::default() };
        let mut node = Node::new(kind, info, "", &PortInfo::default(), SwitchInfo::default());
        let first = usize::from(node.end_port(1));
        node.ports[first].info.lid = 5;
        node
    }

    #[test]
    fn a_link_that_changes_is_told_by_a_switch() {
        let mut switch = node(NodeType::Switch);
        let notice = switch.link_changed(2, LinkState::Init, PhysState::LinkUp).unwrap();
        assert_eq!((notice.number, notice.details::<SwitchNotice>().lid), (Notice::LINK_STATE, 5));
        assert!(switch.switch.as_ref().unwrap().info.port_state_change);
        assert_eq!(switch.link_changed(2, LinkState::Init, PhysState::LinkUp), None, "nothing has changed");
        assert_eq!(switch.link_changed(3, LinkState::Init, PhysState::LinkUp), None, "no such port");
        let mut adapter = node(NodeType::Ca);
        assert_eq!(adapter.link_changed(1, LinkState::Init, PhysState::LinkUp), None);
        assert_eq!(adapter.ports[1].info.link.state, LinkState::Init as u8);
    }

    #[test]
    fn a_capability_that_changes_is_told_once() {
        let mut adapter = node(NodeType::Ca);
        let notice = adapter.change_capability(1, 2).unwrap();
        let details: ChangeNotice = notice.details();
        assert_eq!((notice.number, details.lid, details.capability_mask), (Notice::LOCAL_CHANGE, 5, 2));
        assert_eq!(adapter.change_capability(1, 2), None);
        assert_eq!(adapter.change_capability(0, 2), None, "an adapter has no port 0");
    }
}
