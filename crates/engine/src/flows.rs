//! Counts datagrams by destination LID, for the counters of the ports on their path. Each datagram
//! has its own path, so the sums of a queue pair do not say which switches it passes. Used only in
//! subnets with switches. Principal type: [`Flows`].

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use abi::layout::Record;
use abi::queue::{
    CONTEXT_LEN, DATAGRAM_FLOW_LEN, DATAGRAM_FLOWS, DATAGRAM_ROUTE_LEN, DatagramFlow, DatagramRoute, context_page,
};
use parking_lot::Mutex;

use crate::memory::View;
use crate::paths::GlobalRoute;
use crate::traffic::Sum;

/// What decides which way datagrams take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The destination LID.
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    /// The sender's port.
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    /// Of lost datagrams: the code of the MTU that they need, which is not 0.
    pub(crate) lost: u8,
    /// Of unicast datagrams that pass routers.
    pub(crate) route: GlobalRoute,
}

/// The datagrams that one engine has sent.
pub(crate) struct Flows {
    /// The memory after the context page; `None` if the agent does not read flows.
    view: Option<View>,
    /// The place and the sum of each flow, which no other process writes.
    known: Mutex<HashMap<Key, (usize, Sum)>>,
}

impl Flows {
    pub(crate) fn new(view: View) -> Self {
        Self { view: (view.len() >= CONTEXT_LEN).then_some(view), known: Mutex::default() }
    }

    /// Counts a datagram. Returns false if there is no place for its flow.
    pub(crate) fn count(&self, key: Key, len: u32, headers: usize) -> bool {
        let Some(view) = &self.view else { return false };
        let mut known = self.known.lock();
        let next = known.len();
        if next >= DATAGRAM_FLOWS && !known.contains_key(&key) {
            return false;
        }
        let (place, sum) = known.entry(key).or_insert((next, Sum::default()));
        let at = context_page::DATAGRAM_FLOWS + *place * DATAGRAM_FLOW_LEN;
        if sum.packets == 0 {
            let Key { dlid, sl, port, pkey_index, lost, route: (dgid, hop_limit, traffic_class) } = key;
            let route = DatagramRoute { dgid, hop_limit, traffic_class, ..DatagramRoute::default() };
            view.write_bytes(context_page::DATAGRAM_ROUTES + *place * DATAGRAM_ROUTE_LEN, route.bytes());
            view.write_bytes(at, DatagramFlow { dlid, pkey_index, sl, port, lost, ..DatagramFlow::default() }.bytes());
        }
        sum.add(1, len, headers, 31);
        // The agent reads the packets first, and then the rest.
        view.word64(at + DatagramFlow::WORDS).store(sum.words, Ordering::Relaxed);
        view.word64(at + DatagramFlow::PACKETS).store(sum.packets, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::region::Region;
    use std::os::fd::AsFd;

    #[test]
    fn each_flow_has_a_place_until_there_is_none() {
        let (ours, fd) = Region::create("softhca-test", CONTEXT_LEN).expect("memory");
        let flows = Flows::new(View::whole(Region::map(fd.as_fd(), CONTEXT_LEN).expect("mapped")));
        for dlid in 0..DATAGRAM_FLOWS as u16 {
            assert!(flows.count(Key { dlid, ..Key::default() }, 100, 20));
        }
        assert!(!flows.count(Key { sl: 1, ..Key::default() }, 100, 20), "no place is left");
        assert!(flows.count(Key { dlid: 7, ..Key::default() }, 100, 20));
        let flow: DatagramFlow = ours.read(context_page::DATAGRAM_FLOWS + 7 * DATAGRAM_FLOW_LEN);
        assert_eq!((flow.dlid, flow.packets, flow.words), (7, 2, 2 * (8 + 20 + 100 + 4) / 4));
    }

    #[test]
    fn datagrams_that_routers_treat_differently_are_different_flows() {
        let (ours, fd) = Region::create("softhca-test", CONTEXT_LEN).expect("memory");
        let flows = Flows::new(View::whole(Region::map(fd.as_fd(), CONTEXT_LEN).expect("mapped")));
        let route = ([9; 16], 3, 0x20);
        for route in [GlobalRoute::default(), route, ([9; 16], 2, 0x20), route] {
            assert!(flows.count(Key { dlid: 7, route, ..Key::default() }, 100, 20));
        }
        let second: DatagramFlow = ours.read(context_page::DATAGRAM_FLOWS + DATAGRAM_FLOW_LEN);
        let shown: DatagramRoute = ours.read(context_page::DATAGRAM_ROUTES + DATAGRAM_ROUTE_LEN);
        assert_eq!(second.packets, 2);
        assert_eq!((shown.dgid, shown.hop_limit, shown.traffic_class), route);
    }
}
