//! From one phase of a sweep to the next, and the end of a sweep.

use super::lanes::MOST_READ;
use super::{Manager, Phase, TRAP_DELAY};
use crate::event::{Event, Problem, Up};
use crate::inventory::Inventory;
use crate::routing::graph::is_switch;
use std::collections::{BTreeSet, VecDeque};
use wire::notice::{GidNotice, Notice};
use wire::smp::{LinkState, SmState};

impl Manager {
    /// All requests of the phase are answered.
    pub(super) fn phase_over(&mut self) {
        match self.sweep.phase {
            Phase::Idle => {}
            Phase::Light if self.sweep.heavy => self.begin_heavy(),
            Phase::Light => self.rest(),
            Phase::Discover => self.all_found(),
            // The manager at the other port has not answered yet, or the phase is left.
            Phase::Handover => self.configure(),
            Phase::Inherit => {
                self.inherit();
                self.enter(Phase::PKeys);
            }
            Phase::PKeys => self.enter(Phase::Ports),
            Phase::Ports => {
                self.compute_routes();
                self.enter(Phase::Switches);
            }
            Phase::Switches => self.enter(Phase::Qos),
            Phase::Qos => self.enter(Phase::Guids),
            Phase::Guids => self.enter(Phase::Multicast),
            Phase::Multicast if self.plan.partial => {
                self.complete();
                // The next sweep is not put off: groups and aliases may change all the time.
                self.sweep.phase = Phase::Idle;
            }
            Phase::Multicast => self.enter(Phase::Arm),
            Phase::Arm => self.enter(Phase::Activate),
            Phase::Activate => {
                self.complete();
                self.plan.reads_left = MOST_READ;
                self.enter(Phase::Lanes);
            }
            Phase::Lanes => {
                if self.plan.reads_left < MOST_READ {
                    self.changed();
                }
                self.rest();
            }
        }
    }

    /// Begins a phase in which things are set.
    pub(super) fn enter(&mut self, phase: Phase) {
        if phase == Phase::Guids {
            self.plan.partial = self.sweep.phase == Phase::Idle;
            self.wishes.changed = false;
        }
        if phase == Phase::Multicast {
            self.compute_trees();
        }
        self.sweep.phase = phase;
        self.sweep.todo = match phase {
            Phase::Switches | Phase::Multicast => self.switches(),
            Phase::Inherit => self.with_trees(),
            Phase::Guids => self.with_aliases(),
            Phase::Lanes => self.with_lanes(),
            Phase::Qos if self.config.qos.is_none() => VecDeque::new(),
            _ => self.inventory.nodes.keys().copied().collect(),
        };
        if let Some(own) = self.own.filter(|_| phase == Phase::Ports) {
            // Others send their traps to the own port's LID.
            self.sweep.todo.push_front(own.node);
        }
    }

    /// The subnet is discovered.
    fn all_found(&mut self) {
        self.sweep.restarts = 0;
        let found = std::mem::take(&mut self.found);
        let old = std::mem::replace(&mut self.inventory, found);
        // Routes are those of the inventory from here on.
        self.sweep.phase = Phase::Idle;
        let own = self.own.filter(|own| {
            let port = self.inventory.port(*own);
            port.is_some_and(|port| own.port == 0 || port.info.link.state > LinkState::Down as u8)
        });
        if own.is_none() {
            return self.cut_off();
        }
        self.inventory.remove_silent();
        // Another manager may have set tables since this one was the master.
        if self.role.state == SmState::Master && !self.role.takeover {
            self.inventory.keep_tables(old);
        }
        self.inventory.index_lids();
        self.changed();
        self.elect();
    }

    /// The own port has no link: the subnet is out of reach, and may have another master soon.
    fn cut_off(&mut self) {
        self.inventory = Inventory::default();
        self.problem(Problem::OwnPortDown);
        self.is_up = false;
        if self.role.state == SmState::Master {
            self.set_state(SmState::Discovering);
        }
        self.in_service.clear();
        self.changed();
        self.sweep.heavy = true;
        self.rest();
    }

    fn changed(&mut self) {
        self.epoch += 1;
        self.event(Event::Changed);
    }

    /// All is set.
    fn complete(&mut self) {
        self.is_up = true;
        let info = self.sm_info();
        if let Some(own) = self.own.and_then(|own| self.inventory.port_mut(own)) {
            own.sm = Some(info);
        }
        self.sweep.heavy |= self.sweep.errors > 0 || self.role.takeover;
        if !self.plan.partial {
            self.role.takeover = false;
            self.role.from_standby = false;
            self.inventory.index_lids();
            self.tell_service();
            let count = |switch| {
                let nodes = self.inventory.nodes.values();
                nodes.filter(|node| is_switch(node.info.node_type) == switch).count()
            };
            let (switches, adapters) = (count(true), count(false));
            let (engine, errors, sent) = (self.plan.engine, self.sweep.errors, self.asker.sent);
            let took = self.now.saturating_sub(self.sweep.began);
            self.told.swept(Up { switches, adapters, engine, errors, sent, sweeps: 1, took }, self.sweep.changes);
            self.tell_what_is_due();
        }
        self.changed();
    }

    /// Until the next sweep.
    pub(super) fn rest(&mut self) {
        self.role.lives();
        self.sweep.phase = Phase::Idle;
        self.sweep.heavy |= self.role.rival;
        let wait = match self.sweep.again {
            true => TRAP_DELAY,
            false if self.role.rival => self.timing().poll_interval.min(self.timing().sweep_interval),
            false => self.timing().sweep_interval,
        };
        self.sweep.next = Some(self.now.saturating_add(wait));
    }

    /// Notices for ports that came and went.
    fn tell_service(&mut self) {
        let active = |id: &crate::inventory::PortId, state| id.port == 0 || state == LinkState::Active as u8;
        let ports = self.inventory.end_ports().filter(|(id, _, port)| active(id, port.info.link.state));
        let now: BTreeSet<u64> = ports.map(|(.., port)| port.guid).collect();
        let before = std::mem::replace(&mut self.in_service, now);
        let gone: Vec<u64> = before.difference(&self.in_service).copied().collect();
        let new: Vec<u64> = self.in_service.difference(&before).copied().collect();
        gone.into_iter().for_each(|guid| self.notice(Notice::GID_OUT_OF_SERVICE, guid));
        new.into_iter().for_each(|guid| self.notice(Notice::GID_IN_SERVICE, guid));
    }

    fn notice(&mut self, number: u16, guid: u64) {
        let prefix = self.config.subnet_prefix;
        let details = GidNotice { gid: super::traps::gid(prefix, guid) };
        let (by, lid) = (Notice::BY_CLASS_MANAGER, self.plan.sm_lid);
        let notice = Notice::with(Notice::SUBNET, by, number, lid, details);
        let issuer_gid = super::traps::gid(prefix, self.guid);
        // As many as the subnet has ports: no peer adds to them.
        self.events.push_back(Event::Notice(Box::new(Notice { issuer_gid, ..notice })));
    }
}

impl Inventory {
    /// Removes the ports of adapters that did not answer.
    fn remove_silent(&mut self) {
        let mut cut = Vec::new();
        for node in self.nodes.values_mut().filter(|node| node.switch.is_none()) {
            node.ports.retain(|_, port| {
                if port.info.link.state == 0 {
                    cut.extend(port.peer);
                }
                port.info.link.state != 0
            });
        }
        self.nodes.retain(|_, node| !node.ports.is_empty());
        for id in cut {
            if let Some(port) = self.port_mut(id) {
                port.peer = None;
            }
        }
    }

    /// Takes over what discovery does not read. A switch or port without its LID has started again,
    /// and has lost it.
    fn keep_tables(&mut self, mut old: Inventory) {
        for (guid, node) in &mut self.nodes {
            let Some(before) = old.nodes.remove(guid) else { continue };
            let lid = |ports: &std::collections::BTreeMap<u8, crate::inventory::Port>, number| {
                ports.get(&number).map_or(0, |port| port.info.lid)
            };
            if let (Some(switch), Some(other)) = (&mut node.switch, before.switch) {
                if lid(&node.ports, 0) == 0 || lid(&node.ports, 0) != lid(&before.ports, 0) {
                    continue;
                }
                switch.linear = other.linear;
                switch.multicast = other.multicast;
            }
            for (number, other) in before.ports {
                let Some(port) = node.ports.get_mut(&number) else { continue };
                if node.switch.is_none() && port.info.lid != other.info.lid {
                    continue;
                }
                // Discovery reads the first block.
                port.guids.extend(other.guids.into_iter().skip(port.guids.len()));
                if port.pkeys.is_empty() {
                    port.pkeys = other.pkeys;
                }
                port.sl_to_vl = other.sl_to_vl;
                port.arbitration_high = other.arbitration_high;
                port.arbitration_low = other.arbitration_low;
            }
        }
    }
}
