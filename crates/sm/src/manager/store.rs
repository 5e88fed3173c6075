//! Answers: an attribute becomes part of the inventory, whether it was read or set. Not what
//! follows in a sweep.

use super::asker::{SmpRequest, What};
use super::{Manager, Phase};
use crate::event::Problem;
use crate::inventory::{Inventory, PortId};
use wire::layout::Layout;
use wire::smp::{
    GuidInfo, LinearTable, MulticastTable, NodeDescription, PKeyTable, PortInfo, SlToVl, SmInfo, Smp, SwitchInfo,
    VlArbitration,
};

impl Manager {
    /// A request was answered.
    pub(super) fn answered(&mut self, request: &SmpRequest, smp: &Smp) {
        match request.what {
            What::Poll => return self.polled(Some(smp)),
            What::Handover(at) => return self.handed_over(at, Some(smp)),
            _ => {}
        }
        if smp.status != 0 {
            return self.refused(request, smp.status);
        }
        if self.sweep.phase == Phase::Discover {
            self.discovered(request.what, smp);
        } else {
            store(&mut self.inventory, request.what, &smp.data);
        }
        if self.sweep.phase == Phase::Inherit {
            self.tree_found(request.what, &smp.data);
        }
        if let What::Check(_) = request.what {
            let info = SwitchInfo::read(&smp.data).unwrap_or_default();
            self.sweep.heavy |= info.port_state_change;
        }
    }

    fn refused(&mut self, request: &SmpRequest, status: u16) {
        // Tables of lanes are only shown.
        if self.sweep.phase == Phase::Lanes {
            return;
        }
        if matches!(request.what, What::Manager(_)) {
            self.role.has_silent = true;
            return;
        }
        self.sweep.errors += 1;
        self.sweep.heavy |= matches!(request.what, What::Check(_));
        self.problem(Problem::Refused { what: request.what.to_string(), status });
    }

    /// A request was sent as often as it may be, without an answer. What a Set has done is unknown.
    pub(super) fn unanswered(&mut self, request: &SmpRequest) {
        match request.what {
            What::Poll => return self.polled(None),
            What::Handover(at) => return self.handed_over(at, None),
            What::Manager(_) => {
                self.role.has_silent = true;
                return;
            }
            _ if self.sweep.phase == Phase::Lanes => return,
            What::Check(_) => self.sweep.heavy = true,
            what if request.is_set => forget(&mut self.inventory, what),
            _ => {}
        }
        self.sweep.errors += 1;
        self.problem(Problem::Unanswered(request.what.to_string()));
    }
}

/// Forgets what a block of a table holds, so that the next sweep sets it.
fn forget(inventory: &mut Inventory, what: What) {
    let (What::Linear(guid, _) | What::Multicast(guid, ..)) = what else { return };
    let Some(switch) = inventory.nodes.get_mut(&guid).and_then(|node| node.switch.as_mut()) else { return };
    match what {
        // The last port that a switch can have. No table names it.
        What::Linear(_, block) => {
            switch.linear.iter_mut().skip(usize::from(block) * 64).take(64).for_each(|port| *port = 254);
        }
        // The row of no group.
        What::Multicast(_, block, _) => {
            switch.multicast.range_mut(block * 32..(block + 1) * 32).for_each(|(_, row)| row.fill(0xff));
        }
        _ => {}
    }
}

/// Puts an attribute into the inventory.
pub(super) fn store(inventory: &mut Inventory, what: What, data: &[u8; 64]) {
    match what {
        What::Node(_) | What::Poll | What::Handover(_) => {}
        What::Description(guid) => {
            if let Some(node) = inventory.nodes.get_mut(&guid) {
                node.description = NodeDescription::read(data).unwrap_or_default();
            }
        }
        What::Switch(guid) | What::Check(guid) => {
            let switch = inventory.nodes.get_mut(&guid).and_then(|node| node.switch.as_mut());
            if let Some(switch) = switch {
                switch.info = SwitchInfo::read(data).unwrap_or_default();
            }
        }
        What::Linear(guid, block) => linear(inventory, guid, block, data),
        What::Multicast(guid, block, position) => multicast(inventory, guid, (block, position), data),
        What::Port(id)
        | What::PKeys(id, _)
        | What::Guids(id, _)
        | What::Manager(id)
        | What::SlToVl(id, _)
        | What::Arbitration(id, _) => port(inventory, id, what, data),
    }
}

fn port(inventory: &mut Inventory, id: PortId, what: What, data: &[u8; 64]) {
    let Some(port) = inventory.port_mut(id) else { return };
    match what {
        What::Port(_) => port.info = PortInfo::read(data).unwrap_or_default(),
        What::PKeys(_, block) => {
            let table = PKeyTable::read(data).unwrap_or_default();
            put(&mut port.pkeys, block.into(), &table.pkeys, 0);
        }
        What::Guids(_, block) => {
            put(&mut port.guids, block.into(), &GuidInfo::read(data).unwrap_or_default().guids, 0);
        }
        What::Manager(_) => port.sm = SmInfo::read(data),
        What::SlToVl(_, ingress) => {
            port.sl_to_vl.insert(ingress, SlToVl::read(data).unwrap_or_default());
        }
        What::Arbitration(_, block) => {
            let entries = VlArbitration::read(data).unwrap_or_default().entries;
            let low = block <= 2;
            let table = if low { &mut port.arbitration_low } else { &mut port.arbitration_high };
            put(table, usize::from((block - 1) % 2), &entries, Default::default());
            let cap = if low { port.info.vls.arbitration_low_cap } else { port.info.vls.arbitration_high_cap };
            table.truncate(cap.into());
        }
        _ => {}
    }
}

/// Puts a block into a table, which grows as needed.
fn put<T: Copy, const N: usize>(table: &mut Vec<T>, block: usize, entries: &[T; N], unset: T) {
    let from = block * N;
    if table.len() < from + N {
        table.resize(from + N, unset);
    }
    table[from..from + N].copy_from_slice(entries);
}

fn linear(inventory: &mut Inventory, guid: u64, block: u16, data: &[u8; 64]) {
    let Some(switch) = inventory.nodes.get_mut(&guid).and_then(|node| node.switch.as_mut()) else { return };
    let table = LinearTable::read(data).unwrap_or_default();
    put(&mut switch.linear, block.into(), &table.ports, crate::routing::NO_ROUTE);
}

fn multicast(inventory: &mut Inventory, guid: u64, (block, position): (u16, u8), data: &[u8; 64]) {
    let Some(switch) = inventory.nodes.get_mut(&guid).and_then(|node| node.switch.as_mut()) else { return };
    let table = MulticastTable::read(data).unwrap_or_default();
    for (row, mask) in (block * 32..).zip(table.masks) {
        let own = switch.multicast.entry(row).or_insert([0; 32]);
        let at = usize::from(position % 16) * 2;
        own[at..at + 2].copy_from_slice(&mask.to_le_bytes());
    }
}
