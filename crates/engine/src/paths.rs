//! Which packets the switches of a subnet let pass from this device's ports to other ports. The
//! agent knows this, and announces changes. A post never waits for the agent: the helper thread
//! asks it.
//!
//! The engine looks for a path when it looks for a route, and not for each message on a lane. It
//! asks in `asking`, and `passing` applies the answers to queue pairs. Principal types: [`Way`],
//! [`Paths`].

mod asking;
pub(crate) mod passing;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use abi::ah::SL_MAX;
use abi::board::PKEY_MAX;
use abi::private::PathResolveAnswer;
use abi::qp::Dest;
use parking_lot::RwLock;

use crate::board::{Board, DevicePort};
use crate::memory::DatagramEntry;

/// Maximum number of paths that are kept; the agent keeps as many for an engine.
const PATHS: usize = 1024;

/// What of a packet's headers, and of its ends, decides its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Way {
    /// The sender's port.
    from: u8,
    to: DevicePort,
    pub(crate) dlid: u16,
    pub(crate) route: GlobalRoute,
}

/// What routers see: the destination GID, the hop limit, the traffic class. Zeros within the subnet.
pub(crate) type GlobalRoute = ([u8; 16], u8, u8);

/// The headers that do not lead to another path, but decide whether the packet passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub(crate) sl: u8,
    pub(crate) pkey_index: u16,
}

/// What passes on a way.
#[derive(Debug)]
pub(crate) struct Passage {
    levels: u32,
    pkeys: [u32; 4],
    /// The MTU of the link with the smallest one, its code, and the port that sends on that link.
    pub(crate) mtu: u32,
    pub(crate) mtu_code: u8,
    pub(crate) narrowest: Box<str>,
    /// The LID of the last router, and the service level from there; zeros without one.
    pub(crate) router: (u16, u8),
    pub(crate) links: RuledLinks,
}

/// Fault rules about links, as bits (`abi::fault::link_bit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuledLinks {
    /// Those about links on the path.
    pub(crate) there: u64,
    /// Those about links on the path or on the path back.
    pub(crate) both_ways: u64,
}

/// What an engine knows of a way.
pub(crate) enum PathState {
    /// There are no switches.
    Free,
    Passage(Arc<Passage>),
    /// The agent has to be asked (`Engine::resolve_path`).
    Nothing,
}

/// The answers of the agent.
#[derive(Default)]
pub(crate) struct Paths {
    known: RwLock<HashMap<Way, Arc<Passage>>>,
    /// Increased when answers may have changed.
    version: AtomicU32,
}

impl Way {
    /// The way of a connection's packets.
    pub(crate) fn of_connection(board: &Board, from: DevicePort, to: DevicePort, dest: &Dest) -> Self {
        let is_global = dest.is_global != 0;
        Self::new(board, (from, to), dest.dlid, is_global.then_some((dest.dgid, dest.hop_limit, dest.traffic_class)))
    }

    /// The way of a datagram.
    pub(crate) fn of_datagram(board: &Board, from: DevicePort, to: DevicePort, entry: &DatagramEntry) -> Self {
        // An address by LID alone is marked so.
        let is_global = entry.dlid == 0;
        let route = (entry.dgid, entry.hop_limit, entry.traffic_class);
        Self::new(board, (from, to), entry.lid, is_global.then_some(route))
    }

    fn new(board: &Board, (from, to): (DevicePort, DevicePort), dlid: u16, route: Option<GlobalRoute>) -> Self {
        let own = board.gid(from.device, from.port, 0).unwrap_or_default();
        let route = route.filter(|(dgid, ..)| dgid[..8] != own[..8]).unwrap_or_default();
        Self { from: from.port as u8, to, dlid, route }
    }
}

impl Passage {
    /// Whether packets of a class pass.
    pub(crate) fn lets(&self, class: Class) -> bool {
        let Class { sl, pkey_index } = class;
        let pkeys = self.pkeys.get(usize::from(pkey_index / 32)).copied().unwrap_or(0);
        self.levels >> (sl & SL_MAX) & 1 == 1 && u32::from(pkey_index) < PKEY_MAX && pkeys >> (pkey_index % 32) & 1 == 1
    }
}

impl From<&PathResolveAnswer> for Passage {
    fn from(answer: &PathResolveAnswer) -> Self {
        let mtu_code = u8::try_from(answer.mtu).unwrap_or(0);
        let name = answer.narrowest.split(|byte| *byte == 0).next().unwrap_or_default();
        Self {
            levels: answer.levels,
            pkeys: answer.pkeys,
            mtu: abi::device::mtu_bytes(mtu_code).unwrap_or(u32::MAX),
            mtu_code,
            narrowest: String::from_utf8_lossy(name).into(),
            router: (answer.router, answer.router_sl),
            links: RuledLinks { there: answer.links, both_ways: answer.links_both_ways },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_which_packets_pass() {
        let mut narrowest = [0; 64];
        narrowest[..5].copy_from_slice(b"S1[3]");
        let answer = PathResolveAnswer {
            levels: 1 << 3,
            mtu: 4,
            pkeys: [0, 1 << 2, 0, 0],
            narrowest,
            ..PathResolveAnswer::default()
        };
        let passage = Passage::from(&answer);
        assert_eq!((passage.mtu, &*passage.narrowest), (2048, "S1[3]"));
        let lets = |sl, pkey_index| passage.lets(Class { sl, pkey_index });
        assert!(lets(3, 34) && !lets(2, 34) && !lets(3, 33) && !lets(3, 130) && !lets(3, u16::MAX));
        assert!(!Passage::from(&PathResolveAnswer::default()).lets(Class { sl: 0, pkey_index: 0 }));
    }
}
