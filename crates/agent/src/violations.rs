//! The P_Key and Q_Key violations of ports: packets that were dropped for their key. What PortInfo
//! (IBA 14.2.5.6) and `ibv_query_port` show is one number. [`crate::mads`] sends the traps. Adds to
//! [`World`].
//!
//! Pairs of counts are in the order of [`Key::ALL`], which is that of `abi::private::violation`.

use abi::private::Violation;
use mad::key::Key;

use crate::ids::PortId;
use crate::violation_counts::PortCounts;
use crate::world::World;

impl World {
    /// The Q_Key and P_Key violations of a port since a manager cleared the counters. They stop at
    /// 0xffff. Zeros if there is no such port.
    pub(crate) fn violations(&self, device: usize, number: u32) -> [u16; 2] {
        let port = self.devices.get(device).and_then(|device| device.port(number).ok());
        let cleared = port.map_or([0; 2], |port| port.counted.violations.cleared);
        let all = self.all_violations(device, number);
        std::array::from_fn(|kind| u16::try_from(all[kind].saturating_sub(cleared[kind])).unwrap_or(u16::MAX))
    }

    /// Whether violations of an InfiniBand port are known. Looking for them at every port would be
    /// much work.
    pub(crate) fn has_violations(&self, at: PortId) -> bool {
        let port = self.devices.get(at.device).and_then(|device| device.port(at.port.into()).ok());
        port.is_some_and(|port| port.counted.violations.has_some)
    }

    /// An engine has told of a violation, which it has counted.
    pub(crate) fn note_violation(&mut self, at: PortId, told: Violation) {
        if let Some(port) = self.counts_of(at) {
            port.violations.has_some = true;
            self.tables.violations.push(at, told);
        }
    }

    /// A management datagram was dropped at a port.
    pub(crate) fn count_violation(&mut self, at: PortId, key: Key) {
        if let Some(port) = self.counts_of(at) {
            let kept = &mut port.violations.kept[key as usize];
            *kept = kept.saturating_add(1);
            port.violations.has_some = true;
        }
    }

    /// A manager has cleared a counter of a port.
    pub(crate) fn clear_violations(&mut self, at: PortId, key: Key) {
        let all = self.all_violations(at.device, at.port.into());
        if let Some(port) = self.counts_of(at) {
            port.violations.cleared[key as usize] = all[key as usize];
        }
    }

    fn counts_of(&mut self, at: PortId) -> Option<&mut PortCounts> {
        let ports = &mut self.devices.get_mut(at.device)?.ports;
        ports.get_mut(usize::from(at.port).checked_sub(1)?).map(|port| &mut port.counted)
    }

    /// All violations of a port since the agent began.
    fn all_violations(&self, device: usize, number: u32) -> [u64; 2] {
        let port = self.devices.get(device).and_then(|device| device.port(number).ok());
        let Some(port) = port else { return [0; 2] };
        let contexts = self.contexts.values().filter(|context| context.device == device);
        let counted = contexts.filter_map(|context| context.events.as_ref()).map(|file| file.violations(number));
        counted.fold(port.counted.violations.kept, |sum, more| {
            std::array::from_fn(|kind| sum[kind].saturating_add(more[kind].into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    use abi::queue::{CONTEXT_LEN, context_page};

    use crate::closer::Closer;
    use crate::config::Config;
    use crate::context::AsyncFile;
    use crate::host::System;
    use crate::ids::Peer;

    #[test]
    fn the_counts_are_those_of_all_contexts_and_stop_until_they_are_cleared() {
        let mut world = World::new(&Config::default(), "a test").expect("a world");
        let at = PortId { device: 0, port: 1 };
        let pages = [3, 0x1_0000].map(|count| {
            let peer = Peer { pid: 1, uid: 1, comm: "test".into() };
            let id = world.open(0, 0, peer).expect("a context");
            let context = world.context(id).expect("it is open");
            let page = context.memory.allocate_apart(CONTEXT_LEN).expect("a page").block;
            page.word(context_page::PKEY_VIOLATIONS).store(count, Ordering::Relaxed);
            let file = AsyncFile::new(&System::default(), page.clone(), Closer::default()).expect("a file");
            context.events = Some(file);
            (id, page)
        });
        let shown = |world: &World| world.violations(0, 1);
        assert_eq!(shown(&world), [0, 0xffff]);
        world.clear_violations(at, Key::PKey);
        assert_eq!(shown(&world), [0, 0]);
        pages[1].1.word(context_page::PKEY_VIOLATIONS).fetch_add(5, Ordering::Relaxed);
        world.count_violation(at, Key::QKey);
        world.count_violation(at, Key::PKey);
        assert_eq!(shown(&world), [1, 6]);
        world.close(pages[1].0);
        assert_eq!(shown(&world), [1, 6], "what an ended context has counted stays");
        world.close(pages[0].0);
        assert_eq!((shown(&world), world.violations(0, 2), world.violations(7, 1)), ([1, 6], [0, 0], [0, 0]));
        world.clear_violations(PortId { port: 0, ..at }, Key::PKey);
        assert_eq!(shown(&world), [1, 6], "there is no port 0");
    }
}
