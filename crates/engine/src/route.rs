//! Which way packets go: from a GID and a QPN to a lane, and the datagrams that need that for each packet.
//!
//! A GID of this agent and a QPN that one of its engines owns make a lane; everything else has no way yet, and what is sent there is
//! lost as on a network where nobody answers. A lane that is not open is opened by the helper thread; posts queue behind that.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::command::number as command;
use abi::errno::Errno;
use abi::private::{LaneOpen, LaneOut};
use abi::queue::qp as word;
use protocol::{Service, Status, Transmit};
use wire::grh::Network;

use crate::board::Place;
use crate::cell::Path;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lane::{Lane, STRIPES};
use crate::mcast::is_group;
use crate::qp::{Inner, Qp, Route};
use crate::request;
use crate::wqe::SendEntry;

/// Bytes that a datagram's packet has besides its payload: UDP, BTH, DETH, immediate data and ICRC.
const DATAGRAM_HEADERS: u32 = 8 + 12 + 8 + 4;

/// The ways of one datagram.
enum Ways {
    /// Nobody is there.
    None,
    /// A lane has to be opened first.
    Opening,
    Lanes(Vec<Arc<Lane>>, Place),
    Lane(Arc<Lane>, Place),
}

impl Engine {
    /// Opens a lane to another engine (or to this one), waiting for the agent.
    pub(crate) fn open_lane(self: &Arc<Self>, peer: u32, stripe: u32) -> Result<Arc<Lane>> {
        let request = request::private(command::LANE_OPEN, &LaneOpen { engine: peer, stripe }, size_of::<LaneOut>());
        let answer = self.call(&request)?;
        let out: LaneOut = answer.get(0)?;
        let mut far = None;
        if peer == self.number() {
            // Both sides are ours: the other one sees the wake-ups the other way round.
            let [memory, mine, other, bell] = answer.fds.as_slice() else { return Err(Errno::EIO.into()) };
            let copies = [memory, other, mine, bell].map(OwnedFd::try_clone);
            let copies = copies.into_iter().collect::<std::io::Result<Vec<_>>>().map_err(Error::from)?;
            far = Some(Lane::new(&LaneOut { side: 1 - out.side.min(1), ..out }, copies)?);
        }
        let near = Lane::new(&out, answer.fds)?;
        let adopted = self.lanes.add(Arc::clone(&near), true);
        if let Some(far) = far.filter(|_| Arc::ptr_eq(&adopted, &near)) {
            self.lanes.add(far, false);
        }
        Ok(adopted)
    }

    /// Opens what QPs are waiting for, waiting for the agent and for whoever is at it: on the helper thread, and in verbs that may wait.
    pub(crate) fn open_routes(self: &Arc<Self>) {
        let _turn = self.opening.lock();
        let waiting = std::mem::take(&mut *self.unrouted.lock());
        for qp in waiting {
            qp.open_route();
        }
    }

    /// A lane's other end is gone. What it had sent is taken first.
    pub(crate) fn lose_lane(self: &Arc<Self>, id: u32) {
        let lanes: Vec<_> = self.lanes.list().iter().filter(|lane| lane.id == id).cloned().collect();
        for lane in &lanes {
            while self.receive(lane, &mut lane.receiver.lock()) {}
        }
        self.lanes.remove(id);
        for qp in self.qps.all() {
            qp.lose_lane(id);
        }
        self.timers_changed();
    }
}

impl Qp {
    /// Sees to it that the route is known, if it can be. With `open`, waits for the agent to open a lane; else the helper does.
    pub(crate) fn find_route(&self, inner: &mut Inner, open: bool) {
        if !matches!(inner.route, Route::Unknown) || self.service == Service::Ud {
            return;
        }
        let engine = self.engine();
        let peer = inner.attributes.dest_qp_num;
        if !engine.board.is_up(engine.device(), u32::from(inner.attributes.port_num)) {
            return;
        }
        let Some(place) = engine.board.find(&inner.attributes.dest.dgid) else { return };
        inner.place = place;
        let owner = engine.board.owner(peer);
        if owner == 0 || engine.lanes.has_ended(owner) {
            return;
        }
        let stripe = self.qpn() % STRIPES;
        let known = engine.lanes.route(owner, stripe);
        match known.or_else(|| if open { engine.open_lane(owner, stripe).ok() } else { None }) {
            Some(lane) => self.take_route(inner, lane),
            None => self.wait_for_route(inner, 0),
        }
    }

    fn take_route(&self, inner: &mut Inner, lane: Arc<Lane>) {
        inner.store(word::LANE, lane.id);
        inner.store(word::PEER_ENGINE, lane.peer);
        inner.route = Route::Lane(lane);
    }

    fn wait_for_route(&self, inner: &mut Inner, slot: u32) {
        inner.route = Route::Opening(slot);
        if let Some(qp) = self.arc() {
            self.engine().unrouted.lock().push(qp);
            self.engine().waker.kick();
        }
    }

    /// Opens what this QP is waiting for, and goes on with it.
    fn open_route(self: &Arc<Self>) {
        let engine = self.engine();
        let (dest, next) = {
            let inner = self.lock();
            match inner.route {
                Route::Opening(slot) if !inner.is_dead() && self.service == Service::Ud => {
                    (None, Some(inner.sq.read::<SendEntry>(slot)))
                }
                Route::Opening(_) if !inner.is_dead() => (Some(inner.attributes.dest_qp_num), None),
                _ => return,
            }
        };
        // Without the QP's lock: the agent is asked meanwhile.
        let stripe = self.qpn() % STRIPES;
        let opened = match (dest, &next) {
            (Some(qpn), _) => engine.open_lane(engine.board.owner(qpn), stripe).map(Some),
            (None, Some(entry)) if is_group(&entry.dgid) => engine.resolve_group(&entry.dgid).and_then(|engines| {
                // All of them are tried: those that can be reached get their copy.
                let opened = engines.iter().map(|&peer| engine.open_lane(peer, stripe).map(drop));
                opened.fold(Ok(()), Result::and).map(|()| None)
            }),
            (None, Some(entry)) => engine.open_lane(engine.board.owner(entry.remote_qpn), stripe).map(|_| None),
            (None, None) => return,
        };
        let mut inner = self.lock();
        let Route::Opening(slot) = inner.route else { return };
        inner.route = Route::Unknown;
        match opened {
            Ok(Some(lane)) if dest == Some(inner.attributes.dest_qp_num) => self.take_route(&mut inner, lane),
            Err(_) if dest == Some(inner.attributes.dest_qp_num) => return self.give_up_route(&mut inner),
            Err(_) if dest.is_none() => inner.no_way = Some(slot),
            // Of another connection than there is now.
            _ => {}
        }
        self.pump(&mut inner);
    }

    /// Sends datagrams: each finds its own way.
    pub(crate) fn pump_datagrams(self: &Arc<Self>, inner: &mut Inner) {
        if matches!(inner.route, Route::Opening(_)) {
            return;
        }
        let now = self.time(inner);
        while let Some(transmit) = inner.requester.poll_transmit(now) {
            let entry: SendEntry = inner.sq.read(transmit.slot);
            if entry.foreign != 0 {
                self.explain(
                    inner,
                    transmit.slot,
                    Status::LocProtErr,
                    &"the address handle is on another PD than the QP",
                );
                inner.requester.fail_current(Status::LocProtErr);
                continue;
            }
            let refused = match self.ways(inner, transmit.slot, &entry) {
                Ways::None => Ok(true),
                Ways::Opening => {
                    inner.requester.untransmit();
                    return self.wait_for_route(inner, transmit.slot);
                }
                Ways::Lane(lane, place) => {
                    let sent = self.send_datagram(inner, &lane, &transmit, &entry, place);
                    if matches!(sent, Ok(false)) && !lane.is_dead() {
                        inner.requester.untransmit();
                        inner.blocked = true;
                        return lane.block(self);
                    }
                    sent
                }
                // A member whose lane is full misses this one, as on a network.
                Ways::Lanes(lanes, place) => {
                    lanes.iter().try_fold(true, |_, lane| self.send_datagram(inner, lane, &transmit, &entry, place))
                }
            };
            inner.no_way = None;
            if let Err(refusal) = refused {
                self.explain(inner, transmit.slot, Status::LocProtErr, &refusal);
                inner.requester.fail_current(Status::LocProtErr);
            }
        }
    }

    fn ways(&self, inner: &mut Inner, slot: u32, entry: &SendEntry) -> Ways {
        let engine = self.engine();
        let hopeless = inner.no_way == Some(slot);
        if !engine.board.is_up(engine.device(), u32::from(inner.attributes.port_num)) {
            return Ways::None;
        }
        let stripe = self.qpn() % STRIPES;
        if is_group(&entry.dgid) {
            let place = Place { device: engine.device(), port: 1 };
            let Some(engines) = engine.group_engines(&entry.dgid) else {
                return if hopeless { Ways::None } else { Ways::Opening };
            };
            let lanes: Vec<_> = engines.iter().filter_map(|&peer| engine.lanes.route(peer, stripe)).collect();
            return if hopeless || lanes.len() == engines.len() { Ways::Lanes(lanes, place) } else { Ways::Opening };
        }
        let epoch = engine.board.gid_epoch();
        let place = match inner.last_place {
            Some((gid, at, place)) if gid == entry.dgid && at == epoch => place,
            _ => match engine.board.find(&entry.dgid) {
                Some(place) => {
                    inner.last_place = Some((entry.dgid, epoch, place));
                    place
                }
                None => return Ways::None,
            },
        };
        match engine.board.owner(entry.remote_qpn) {
            0 => Ways::None,
            owner => match engine.lanes.route(owner, stripe) {
                Some(lane) => Ways::Lane(lane, place),
                None if hopeless || engine.lanes.has_ended(owner) => Ways::None,
                None => Ways::Opening,
            },
        }
    }

    fn send_datagram(
        &self,
        inner: &Inner,
        lane: &Arc<Lane>,
        transmit: &Transmit,
        entry: &SendEntry,
        place: Place,
    ) -> Result<bool, crate::access::Refusal> {
        let port = u32::from(inner.attributes.port_num);
        let sgid =
            self.engine().board.gid(self.engine().device(), port, u32::from(entry.sgid_index)).unwrap_or_default();
        let len = transmit.len + DATAGRAM_HEADERS;
        let network =
            Network::between(sgid, entry.dgid, entry.traffic_class, entry.flow_label, entry.hop_limit, len as u16);
        let mut grh = [0; 40];
        network.emit(&mut grh);
        let path = Path { device: place.device as u8, port: place.port as u8, sl: entry.sl, ..Path::default() };
        let sent = self.put_datagram(inner, lane, transmit, entry, path, grh)?;
        if sent {
            lane.notify();
        }
        Ok(sent)
    }

    /// The lane `id` has lost its other end.
    fn lose_lane(self: &Arc<Self>, id: u32) {
        let mut inner = self.lock();
        if inner.is_dead() {
            return;
        }
        if let Route::Lane(lane) = &inner.route {
            if lane.id == id {
                crate::reason!("QP {:#x}: its peer, process {}, is gone", self.qpn(), lane.pid);
                inner.blocked = false;
                self.pump(&mut inner);
            }
        } else if self.service == Service::Ud && inner.blocked {
            inner.blocked = false;
            self.pump(&mut inner);
        }
    }
}
