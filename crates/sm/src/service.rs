//! The manager and subnet administration together: what one port of a subnet offers. Not a socket.
//! Principal type: [`Service`].

use crate::address::Address;
use crate::event::Event;
use crate::manager::Manager;
use crate::partitions::Partition;
use crate::sa::{self, Peer, Sa};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::mad::Mad;
use wire::sa::McMemberRecord;

/// A datagram to send: of QP 0 by the manager, or of QP 1 by subnet administration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// From QP 0.
    Management(Address, Mad),
    /// From QP 1.
    Administration(Peer, Mad),
}

/// A subnet manager with subnet administration.
#[derive(Debug)]
pub struct Service {
    manager: Manager,
    /// While the manager is the master and its subnet is up.
    sa: Option<Box<Sa>>,
    events: VecDeque<Event>,
    epoch: u64,
    /// How often the groups have changed.
    group_changes: u64,
}

impl Service {
    /// The service of a manager, which has not begun yet.
    #[must_use]
    pub const fn new(manager: Manager) -> Service {
        Service { manager, sa: None, events: VecDeque::new(), epoch: 0, group_changes: 0 }
    }

    /// The manager.
    #[must_use]
    pub const fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Subnet administration, while the manager is the master and its subnet is up.
    #[must_use]
    pub fn sa(&self) -> Option<&Sa> {
        self.sa.as_deref()
    }

    /// A number that changes with the groups, their members and the ports of the subnet, and when
    /// subnet administration begins or ends.
    #[must_use]
    pub const fn group_changes(&self) -> u64 {
        self.group_changes
    }

    /// Makes ports of routers, by their GUIDs, the members of a group with these join states, and
    /// no other router. If the group is not there, it is made like `record`. Returns its record;
    /// `None`: it is not there, or does not fit.
    pub fn join_routers(
        &mut self,
        record: &McMemberRecord,
        states: &BTreeMap<u64, u8>,
        now: Duration,
    ) -> Option<McMemberRecord> {
        let joined = self.sa.as_mut()?.join_routers(self.manager.inventory(), record, states, now);
        self.follow(now);
        joined
    }

    /// Begins a heavy sweep as soon as possible.
    pub fn sweep_now(&mut self) {
        self.manager.sweep_now();
    }

    /// Handles a datagram for QP 0 that no agent serves.
    pub fn receive_management(&mut self, from: Address, mad: &Mad, now: Duration) {
        self.manager.receive(from, mad, now);
        self.follow(now);
    }

    /// Handles a datagram for QP 1. Without a subnet that is up, nothing answers.
    pub fn receive_administration(&mut self, from: Peer, mad: &Mad, now: Duration) {
        if let Some(sa) = &mut self.sa {
            sa.receive(self.manager.inventory(), from, mad, now);
        }
        self.follow(now);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.manager.next_timeout().is_some_and(|next| next <= now) {
            self.manager.handle_timeout(now);
        }
        if let Some(sa) = &mut self.sa {
            sa.handle_timeout(self.manager.inventory(), now);
        }
        self.follow(now);
    }

    /// When [`Service::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let sa = self.sa.as_ref().and_then(|sa| sa.next_timeout());
        self.manager.next_timeout().into_iter().chain(sa).min()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        if let Some(transmit) = self.manager.poll_transmit() {
            return Some(Outgoing::Management(transmit.to, transmit.mad));
        }
        let (to, mad) = self.sa.as_mut()?.poll_transmit()?;
        Some(Outgoing::Administration(to, mad))
    }

    /// The next event. Notices have gone to their subscribers already.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Passes between both what concerns the other.
    fn follow(&mut self, now: Duration) {
        if !self.manager.is_up() {
            self.group_changes += u64::from(self.sa.take().is_some());
        } else if self.sa.is_none() {
            self.begin(now);
        } else if self.epoch != self.manager.epoch()
            && let Some(sa) = &mut self.sa
        {
            self.group_changes += 1;
            sa.inventory_changed(self.manager.inventory(), now);
        }
        self.epoch = self.manager.epoch();
        while let Some(event) = self.manager.poll_event() {
            if let (Event::Notice(notice), Some(sa)) = (&event, &mut self.sa) {
                sa.notice(self.manager.inventory(), notice, now);
            }
            self.events.push_back(event);
        }
        let Some(sa) = &mut self.sa else { return };
        while let Some(event) = sa.poll_event() {
            match event {
                sa::SaEvent::GroupsChanged => {
                    self.group_changes += 1;
                    self.manager.set_groups(sa.groups());
                }
                sa::SaEvent::AliasesChanged => self.manager.set_aliases(sa.aliases().clone()),
            }
        }
        sa.answer_joins(self.manager.trees_are_set(), now);
    }

    /// The subnet is up: subnet administration begins, with the groups of the partitions.
    fn begin(&mut self, now: Duration) {
        let (inventory, config) = (self.manager.inventory(), self.manager.config());
        let own = self.manager.own_port().and_then(|own| inventory.port(own));
        let lid = own.map_or(0, |port| port.info.lid);
        let prefix = config.subnet_prefix;
        let partitions = &config.partitions.list;
        let sl = |partition: &Partition| Some((partition.pkey, partition.shared.sl?));
        let levels = partitions.iter().filter_map(sl).collect();
        let (sm_key, packet_life) = (config.sm_key, config.packet_life);
        let dropped = config.qos.as_ref().map_or(0, crate::config::Qos::dropped);
        let mut sa =
            Sa::new(sa::SaConfig { sm_key, prefix, lid, packet_life, levels, dropped, ..sa::SaConfig::default() });
        sa.inventory_changed(inventory, now);
        for record in partitions.iter().flat_map(Partition::records) {
            // Without a LID for it, the partition lacks this group.
            let _ = sa.create_group(inventory, record);
        }
        self.sa = Some(Box::new(sa));
        self.group_changes += 1;
    }
}
