//! Applies what the switches let pass to queue pairs: whether there is a path, and how long packets
//! may be. Adds to [`Qp`].

use std::sync::Arc;

use super::{Class, Passage, PathState, RuledLinks, Way};
use crate::board::DevicePort;
use crate::mcast::is_group;
use crate::memory::DatagramEntry;
use crate::qp::{Inner, Qp, Route};
use crate::special::Special;
use protocol::Service;

/// Whether a connection's packets pass.
pub(crate) enum Passes {
    Yes,
    No,
    /// The agent has to be asked.
    Ask,
}

impl Qp {
    /// Whether a connection's packets pass to its peer's port, and how long they may be.
    pub(crate) fn passes(&self, inner: &mut Inner, to: DevicePort) -> Passes {
        let engine = self.engine();
        let (a, board) = (&inner.attributes, &engine.board);
        let from = DevicePort { device: engine.device(), port: a.port_num.into() };
        let passage = match engine.passage(&Way::of_connection(board, from, to, &a.dest)) {
            PathState::Free => None,
            PathState::Nothing => return Passes::Ask,
            PathState::Passage(passage) => Some(passage),
        };
        let (dlid, class) = (a.dest.dlid, Class { sl: a.dest.sl, pkey_index: a.pkey_index });
        inner.link.pathless = passage.as_ref().is_some_and(|passage| !passage.lets(class));
        if inner.link.pathless {
            self.complain_of_path(inner, dlid, class);
            return Passes::No;
        }
        let links = passage.as_ref().map_or_else(RuledLinks::default, |passage| passage.links);
        if std::mem::replace(&mut inner.link.links, links) != links {
            self.look_for_rules(inner);
        }
        let narrow = passage.filter(|passage| passage.mtu_code < inner.attributes.path_mtu);
        inner.link.special.set(Special::NARROW, narrow.is_some());
        inner.link.room = narrow.as_ref().map_or(u32::MAX, |passage| passage.mtu);
        if let Some(passage) = narrow {
            self.complain_of_mtu(inner, abi::device::mtu_bytes(inner.attributes.path_mtu).unwrap_or(0), &passage);
        }
        Passes::Yes
    }

    /// Whether packets of a connection pass to its peer on another host.
    pub(crate) fn connection_passes_to_host(&self, inner: &mut Inner) -> bool {
        let a = &inner.attributes;
        let (dlid, class) = (a.dest.dlid, Class { sl: a.dest.sl, pkey_index: a.pkey_index });
        let passes = self.passes_to_host(inner, dlid, class);
        inner.link.pathless = !passes;
        passes
    }

    /// Whether packets pass to a LID of another host; if not, this is reported.
    pub(crate) fn passes_to_host(&self, inner: &mut Inner, dlid: u16, class: Class) -> bool {
        let engine = self.engine();
        let from = DevicePort { device: engine.device(), port: inner.attributes.port_num.into() };
        let passes = engine.board.passes_to_host(from, dlid, class.sl, class.pkey_index);
        if !passes {
            self.complain_of_path(inner, dlid, class);
        }
        passes
    }

    /// What passes on the way of a datagram. `None`: the agent has to be asked.
    pub(crate) fn datagram_passage(
        &self,
        inner: &mut Inner,
        to: DevicePort,
        entry: &DatagramEntry,
    ) -> Option<Arc<Passage>> {
        let engine = self.engine();
        let from = DevicePort { device: engine.device(), port: inner.attributes.port_num.into() };
        let way = Way::of_datagram(&engine.board, from, to, entry);
        let version = engine.path_version();
        if let Some((known, at, passage)) = &inner.ud.last_passage
            && (known, *at) == (&way, version)
        {
            return Some(Arc::clone(passage));
        }
        let PathState::Passage(passage) = engine.passage(&way) else { return None };
        inner.ud.last_passage = Some((way, version, Arc::clone(&passage)));
        Some(passage)
    }

    /// The way for which the agent has to be asked before the route can be opened.
    fn unasked_way(&self, inner: &Inner) -> Option<Way> {
        let engine = self.engine();
        let Route::Opening(slot) = inner.link.route else { return None };
        let board = &engine.board;
        if !board.has_paths() || inner.is_dead() {
            return None;
        }
        let a = &inner.attributes;
        let from = DevicePort { device: engine.device(), port: a.port_num.into() };
        let way = if self.service == Service::Ud {
            let entry: DatagramEntry = inner.queues.sq.read(slot);
            let to = (!is_group(&entry.dgid)).then(|| board.find(&entry.dgid)).flatten()?;
            Way::of_datagram(board, from, to, &entry)
        } else {
            Way::of_connection(board, from, board.find(&a.dest.dgid)?, &a.dest)
        };
        matches!(engine.passage(&way), PathState::Nothing).then_some(way)
    }

    /// Asks the agent for the way of a route that is being opened, if it must. Returns whether a
    /// lane is still to be opened.
    pub(crate) fn open_way(self: &Arc<Self>) -> bool {
        let way = self.unasked_way(&self.lock());
        let Some(way) = way else { return true };
        // Without the QP's lock, because this waits for the agent.
        let asked = self.engine().resolve_path(&way);
        let mut inner = self.lock();
        let Route::Opening(slot) = inner.link.route else { return false };
        inner.link.route = Route::Unknown;
        match asked {
            Err(_) if self.service != Service::Ud => {
                self.give_up_route(&mut inner);
                return false;
            }
            Err(_) => inner.ud.unreachable = Some(slot),
            Ok(()) if self.look_for_route(&mut inner) => return true,
            Ok(()) => {}
        }
        self.pump(&mut inner);
        false
    }

    /// Reports that the switches let no packet pass, once.
    pub(crate) fn complain_of_path(&self, inner: &mut Inner, dlid: u16, Class { sl, .. }: Class) {
        if !std::mem::replace(&mut inner.complained, true) {
            self.note(format_args!(
                "does not reach LID {dlid}: the switches let no packet with service level {sl} and this P_Key pass; `softhca subnet path` shows where they end"
            ));
        }
    }

    /// Reports that a link is too narrow for long packets, once.
    pub(crate) fn complain_of_mtu(&self, inner: &mut Inner, len: u32, passage: &Passage) {
        if !std::mem::replace(&mut inner.complained, true) {
            let Passage { mtu, narrowest, .. } = passage;
            self.note(format_args!(
                "loses packets of {len} bytes: the MTU of the link at {narrowest} is {mtu}, and a switch drops what is longer"
            ));
        }
    }
}
