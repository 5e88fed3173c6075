//! Packets with a wrong P_Key or Q_Key, as subnet management sees them: the counts of PortInfo, and
//! the traps 257 and 258 of the ports (IBA 14.2.5.1, 14.2.5.6). Engines count the packets of queue
//! pairs ([`crate::violations`]), and tell of some. Adds to [`Mads`].
//!
//! A port sends at most one trap per subnet timeout, and queues few. This bounds the work that bad
//! packets can cause for the manager.

use abi::private::violation;
use mad::key::Key;
use subnet::fabric::End;
use wire::notice::{KeyNotice, Notice};
use wire::smp::NodeType;

use super::Mads;
use super::managed::has_subnet_management;
use super::travel::port_of;
use super::way::PortId;
use crate::world::World;

/// Engines and the agent number the keys in the same way.
const _: () = assert!(Key::QKey as u8 == violation::QKEY && Key::PKey as u8 == violation::PKEY);

impl Mads {
    /// Tells the managers what engines have told, and what was lost. Returns false if that is
    /// nothing.
    pub(crate) fn take_violations(&mut self, world: &mut World) -> bool {
        let (told, traffic) = (world.tables.violations.take(), world.tables.traffic.take_if_urgent());
        if told.is_empty() && traffic.is_none() {
            return false;
        }
        if let Some(traffic) = traffic {
            // Switches that drop packets for their partition tell it when they count them.
            self.count_flows(world, traffic);
        }
        for (at, told) in told {
            let details = KeyNotice {
                lid1: told.slid,
                lid2: told.dlid,
                key: told.key,
                sl: told.sl & 0xf,
                qp1: told.src_qp,
                qp2: told.dest_qp,
                gid1: told.sgid,
                gid2: told.dgid,
            };
            if let Some(kind) = Key::ALL.get(usize::from(told.kind)) {
                self.tell_violation(world, at, *kind, details);
            }
        }
        self.settle(world);
        true
    }

    /// Counts a management datagram that a port drops for its key, and tells the manager.
    pub(super) fn drop_for_key(&mut self, world: &mut World, at: PortId, kind: Key, details: KeyNotice) {
        world.count_violation(at, kind);
        self.tell_violation(world, at, kind, details);
    }

    /// A port tells its manager of a packet that it has dropped.
    fn tell_violation(&mut self, world: &World, at: PortId, kind: Key, details: KeyNotice) {
        let Some(port) = port_of(world, at).filter(|_| has_subnet_management(world, at.device, at.port)) else {
            return;
        };
        let lid = port.lid.map_or(0, |lid| lid.number);
        let details = KeyNotice { lid2: if details.lid2 == 0 { lid } else { details.lid2 }, ..details };
        if let Some(fabric) = &mut self.fabric {
            if let Some(end) = fabric.ends.get(&at) {
                fabric.managed.tell_violation(*end, kind, details);
            }
            return;
        }
        if let Some(services) = self.ports.get_mut(&at).filter(|_| port.sm_lid() != 0) {
            services.traps.push(Notice::with(Notice::SECURITY, NodeType::Ca as u32, kind.trap(), lid, details));
        }
    }

    /// The fabric is asked for PortInfo of a port, and gets the counts.
    pub(super) fn show_violations(&mut self, world: &World, end: End) {
        let Some(fabric) = &mut self.fabric else { return };
        let Some(at) = fabric.port_at(end).filter(|at| world.has_violations(*at)) else { return };
        let counts = world.violations(at.device, at.port.into());
        for key in Key::ALL {
            fabric.managed.set_violations(end, key, counts[key as usize]);
        }
    }

    /// The agents of the fabric have dropped a management datagram at a port.
    pub(super) fn count_in_fabric(&mut self, world: &mut World, at: Option<PortId>, key: Key) {
        if let Some(at) = at {
            world.count_violation(at, key);
        }
    }
}
