//! What a Set has changed at a node, as settings of the model. One attribute is applied at a time.
//! Not which values are allowed, which `mad::sma` decides.

use super::build::lanes;
use super::timers::Timer;
use super::{Managed, Output};
use crate::arbitration::{Entry, Tables};
use crate::fabric::{End, NodeId};
use crate::pkey;
use crate::port::{Enforcement, Identity};
use crate::rate::Mtu;
use crate::service;
use crate::state::{self, Logical};
use crate::switch::{NO_PORT, Ports};
use mad::sma::{NO_EXTENDED, NodeEvent};
use std::sync::Arc;
use wire::lrh::LID_MULTICAST;
use wire::smp::{LinearTable, MulticastTable, PKeyTable, PhysState, PortInfo, SlToVl, Smp, SwitchInfo, VlArbitration};

/// LIDs in a block of the linear table, and in one of the multicast table.
const LINEAR_BLOCK: usize = 64;
const MULTICAST_BLOCK: usize = 32;

impl Managed {
    /// Applies the attribute that a Set at port `at` has changed.
    pub(super) fn apply(&mut self, at: End, smp: &Smp, events: &[(u8, NodeEvent)]) {
        let (is_switch, _) = self.shape(at.node);
        // Tables of adapters are those of the port at which the Set came in.
        let target = |number: u32| if is_switch { End { port: number as u8, ..at } } else { at };
        match smp.attribute {
            PortInfo::ATTRIBUTE => {
                let number = smp.modifier as u8;
                self.apply_port(if number == 0 { target(0) } else { End { port: number, ..at } });
            }
            PKeyTable::ATTRIBUTE => self.apply_pkeys(target(smp.modifier >> 16)),
            SlToVl::ATTRIBUTE => self.apply_lanes(target(smp.modifier & 0xff), (smp.modifier >> 8) as u8),
            VlArbitration::ATTRIBUTE => self.apply_arbitration(target(smp.modifier & 0xffff)),
            SwitchInfo::ATTRIBUTE => self.apply_switch(at.node),
            LinearTable::ATTRIBUTE => self.apply_linear(at.node, smp.modifier as usize),
            MulticastTable::ATTRIBUTE => self.apply_multicast(at.node, smp.modifier as usize & 0x1ff),
            _ => {}
        }
        for (number, event) in events {
            let end = End { port: *number, ..at };
            match event {
                NodeEvent::Link(_) if end.port == 0 => {}
                NodeEvent::Link(PhysState::Disabled) => self.after_answer(Timer::Disable(end)),
                NodeEvent::Link(_) => self.after_answer(Timer::Restart(end)),
                // The model tells of the state when it has changed.
                NodeEvent::Active | NodeEvent::Inactive | NodeEvent::LinkSettings | NodeEvent::Forwarding => {}
                event => self.output(end, || Output::Changed { end, event: *event }),
            }
        }
    }

    pub(super) fn apply_port(&mut self, end: End) {
        let (_, is_end) = (self.shape(end.node), self.is_end(end));
        let Some(info) = self.port(end).map(|port| port.info) else { return };
        let Some(settings) = self.fabric.settings_mut(end) else { return };
        if is_end {
            let identity = Identity {
                guid: settings.identity.guid,
                prefix: info.gid_prefix,
                lid: info.lid,
                lmc: info.lmc,
                sm_lid: info.master_sm_lid,
                sm_sl: info.master_sm_sl,
            };
            let before = std::mem::replace(&mut settings.identity, identity);
            if (before.prefix, before.lid) != (info.gid_prefix, info.lid) {
                self.teach_routers();
            }
        }
        let Some(settings) = self.fabric.settings_mut(end).filter(|_| end.port != 0) else { return };
        let (link, vls) = (info.link, info.vls);
        settings.mtu = Mtu::from_code(link.neighbor_mtu).unwrap_or(settings.mtu);
        settings.widths_enabled = link.width_enabled;
        let extended = if link.extended_enabled == NO_EXTENDED { 0 } else { link.extended_enabled };
        settings.speeds_enabled = link.speed_enabled & 7 | extended << 3;
        settings.hoq_life = vls.head_of_queue_life;
        if !is_end {
            settings.enforcement = Enforcement {
                pkey_in: vls.enforce_inbound,
                pkey_out: vls.enforce_outbound,
                raw_in: vls.filter_raw_inbound,
                raw_out: vls.filter_raw_outbound,
            };
        }
        if settings.arbitration.limit != vls.high_limit {
            settings.arbitration = Arc::new(Tables { limit: vls.high_limit, ..(*settings.arbitration).clone() });
        }
        if settings.vls != lanes(vls.operational) {
            self.fabric.set_lanes(end, lanes(vls.operational));
        }
        let now = self.fabric.port(end).map(|port| port.logical());
        let event = match (now, link.state) {
            (Some(Logical::Init), 3) => state::Event::SetArmed,
            (Some(Logical::Armed), 4) => state::Event::SetActive,
            _ => return,
        };
        // The agent has allowed the step for the state that the model has.
        let _ = self.fabric.set_state(end, event);
    }

    pub(super) fn apply_pkeys(&mut self, end: End) {
        let Some(table) = self.port(end).map(|port| pkey::Table::new(&port.pkeys)) else { return };
        if let Some(settings) = self.fabric.settings_mut(end) {
            settings.pkeys = table;
        }
    }

    fn apply_lanes(&mut self, end: End, ingress: u8) {
        let (is_switch, _) = self.shape(end.node);
        let ingress = if is_switch { ingress } else { 0 };
        let Some(table) = self.port(end).and_then(|port| port.sl_to_vl.get(&ingress)) else { return };
        let table = service::SlToVl::of(|sl| table.vls[usize::from(sl & 0xf)]);
        if !is_switch {
            if let Some(settings) = self.fabric.settings_mut(end) {
                settings.sl_to_vl = table;
            }
        } else if let Some(switch) = self.fabric.switch_mut(end.node) {
            switch.sl_to_vl.insert((ingress, end.port), table);
        }
    }

    fn apply_arbitration(&mut self, end: End) {
        let Some(port) = self.port(end) else { return };
        let Some(blocks) = &port.arbitration else { return };
        let entries = |first: usize, cap: u8| -> Box<[Entry]> {
            let both = blocks[first].entries.iter().chain(&blocks[first + 1].entries);
            both.take(cap.into()).map(|entry| Entry { vl: entry.vl, weight: entry.weight }).collect()
        };
        let vls = port.info.vls;
        let tables = Tables {
            low: entries(0, vls.arbitration_low_cap),
            high: entries(2, vls.arbitration_high_cap),
            limit: vls.high_limit,
        };
        if let Some(settings) = self.fabric.settings_mut(end) {
            settings.arbitration = Arc::new(tables);
        }
    }

    fn apply_switch(&mut self, node: NodeId) {
        let Some(info) = self.nodes[node.0 as usize].switch.as_ref().map(|switch| switch.info) else { return };
        if let Some(switch) = self.fabric.switch_mut(node) {
            switch.top = info.linear_top;
            switch.life = info.life_time;
            switch.default_primary = info.default_multicast_primary;
            switch.default_not_primary = info.default_multicast_other;
        }
    }

    fn apply_linear(&mut self, node: NodeId, block: usize) {
        let own = &self.nodes[node.0 as usize].switch;
        let (Some(own), Some(switch)) = (own, self.fabric.switch_mut(node)) else { return };
        let from = block * LINEAR_BLOCK;
        // A block that no entry was written to has no route, here and there.
        let Some(ports) = own.linear.get(from..(from + LINEAR_BLOCK).min(own.linear.len())) else { return };
        let end = from + ports.len();
        if switch.linear.len() < end {
            switch.linear.resize(end, NO_PORT);
        }
        switch.linear[from..end].copy_from_slice(ports);
    }

    fn apply_multicast(&mut self, node: NodeId, block: usize) {
        let own = &self.nodes[node.0 as usize].switch;
        let (Some(own), Some(switch)) = (own, self.fabric.switch_mut(node)) else { return };
        let from = block * MULTICAST_BLOCK;
        for (row, nth) in own.multicast.iter().skip(from).take(MULTICAST_BLOCK).zip(from..) {
            let masks = row.iter().zip((0..=240).step_by(16));
            let ports = masks
                .flat_map(|(mask, first)| (0..16).filter(move |bit| mask >> bit & 1 != 0).map(move |bit| first + bit));
            let ports = Ports::of(ports);
            let mlid = LID_MULTICAST + nth as u16;
            if ports == Ports::default() {
                switch.multicast.remove(&mlid);
            } else {
                switch.multicast.insert(mlid, ports);
            }
        }
    }
}
