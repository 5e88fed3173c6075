//! Which way a connection's packets go: from a GID and a QPN to a lane, or over the wire.
//!
//! A GID of this agent and a QPN that one of its engines owns make a lane; every other GID is another host's. Where there is no way,
//! what is sent is lost as on a network where nobody answers. A lane that is not open is opened by the helper thread; posts queue
//! behind that. Datagrams, which find their way one by one, are in `datagram.rs`.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::command::number as command;
use abi::errno::Errno;
use abi::private::{LaneOpen, LaneOut};
use abi::queue::{ON_WIRE, qp as word};
use protocol::Service;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::mcast::is_group;
use crate::net::flow::{NoWay, Vector};
use crate::qp::{Inner, Qp, Route};
use crate::request;
use crate::wqe::DatagramEntry;

impl Engine {
    /// Opens a lane to another engine (or to this one), waiting for the agent.
    pub(crate) fn open_lane(self: &Arc<Self>, peer: u32, stripe: u32) -> Result<Arc<Lane>> {
        let request = request::private(command::LANE_OPEN, &LaneOpen { engine: peer, stripe }, size_of::<LaneOut>());
        let answer = self.call(&request)?;
        let out: LaneOut = answer.get(0)?;
        let mut far = None;
        if peer == self.number() {
            // Both sides are ours: the other one sees the wake-ups the other way round.
            let [memory, mine, other, wake_word] = answer.fds.as_slice() else { return Err(Errno::EIO.into()) };
            let copies = [memory, other, mine, wake_word].map(OwnedFd::try_clone);
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

    /// A port went down or came up: connections look for their ways anew, by lanes too, for nothing passes a port that is down.
    pub(crate) fn ports_changed(self: &Arc<Self>) {
        for qp in self.qps.all() {
            qp.look_for_route_again();
        }
        self.timers_changed();
    }

    /// A lane's other end is gone. What it had sent is taken first.
    pub(crate) fn lose_lane(self: &Arc<Self>, id: u32) {
        let lanes: Vec<_> = self.lanes.list().iter().filter(|lane| lane.id == id).cloned().collect();
        for lane in &lanes {
            while self.receive(lane, &mut lane.receiver.lock()) {}
        }
        self.lanes.remove(id);
        lanes.iter().for_each(|lane| self.lose_targets(lane.peer));
        for qp in self.qps.all() {
            qp.lose_lane(id);
        }
        self.timers_changed();
    }
}

/// Ways that are opened for the datagrams of a QP that goes.
const MOST_WAYS: usize = 16;

impl Qp {
    /// Looks for the route, unless it is known. The helper thread opens a lane that is not open yet.
    pub(crate) fn find_route(&self, inner: &mut Inner) {
        if self.look_for_route(inner) {
            self.wait_for_route(inner, 0);
        }
    }

    /// Looks for the route, unless it is known. Returns true if it needs a lane that is not open:
    /// until [`Qp::open_route`] has opened it, posts queue.
    pub(crate) fn look_for_route(&self, inner: &mut Inner) -> bool {
        let engine = self.engine();
        if matches!(&inner.route, Route::Wire(flow) if !engine.holds(flow)) {
            self.uncount(inner);
            inner.route = Route::Unknown;
        }
        let peer = inner.attributes.dest_qp_num;
        if matches!(&inner.route, Route::Lane(lane) if lane.is_dead()) && self.has_moved(inner) {
            inner.route = Route::Unknown;
        }
        if !matches!(inner.route, Route::Unknown) || self.service == Service::Ud {
            return false;
        }
        if !engine.board.is_up(engine.device(), u32::from(inner.attributes.port_num)) {
            return false;
        }
        if inner.on_wire {
            self.find_flow(inner);
            return false;
        }
        let Some(place) = engine.board.find(&inner.attributes.dest.dgid) else { return false };
        inner.place = place;
        let owner = engine.board.owner(peer);
        if owner == 0 || engine.lanes.has_ended(owner) {
            return false;
        }
        let stripe = inner.stripe_to(engine, owner);
        let Some(lane) = engine.lanes.route(owner, stripe) else {
            inner.route = Route::Opening(0);
            return true;
        };
        self.take_route(inner, lane);
        false
    }

    /// Whether somebody else than before has the peer's number: an XRC target can be passed on.
    pub(crate) fn has_moved(&self, inner: &Inner) -> bool {
        let owner = self.engine().board.owner(inner.attributes.dest_qp_num);
        matches!(&inner.route, Route::Lane(lane) if lane.peer != owner) && owner != 0 && self.service == Service::XrcIni
    }

    /// Whether this QP's packets go by a lane.
    pub(crate) fn goes_by(&self, lane: &Lane) -> bool {
        matches!(&self.lock().route, Route::Lane(ours) if ours.id == lane.id)
    }

    /// The way to another host.
    fn find_flow(&self, inner: &mut Inner) {
        let vector = Vector::of_connection(&inner.attributes.dest, inner.attributes.port_num, self.qpn());
        match self.engine().flow(&vector) {
            Ok(flow) => {
                inner.store(word::LANE, ON_WIRE);
                inner.route = Route::Wire(flow);
            }
            Err(no_way) => self.complain(inner, &vector.dgid, &no_way),
        }
    }

    /// Says why there is no way, once.
    pub(crate) fn complain(&self, inner: &mut Inner, dgid: &[u8; 16], no_way: &NoWay) {
        if !std::mem::replace(&mut inner.complained, true) {
            self.note(format_args!("does not reach {}: {no_way}", crate::network::address(*dgid)));
        }
    }

    /// Says that nobody can be at a LID, once.
    pub(crate) fn complain_of_lid(&self, inner: &mut Inner, lid: u16) {
        if !std::mem::replace(&mut inner.complained, true) {
            self.note(format_args!(
                "does not reach LID {lid}: it is neither a port of this agent nor an address of the port's subnet; use a GID for another host"
            ));
        }
    }

    fn take_route(&self, inner: &mut Inner, lane: Arc<Lane>) {
        inner.store(word::LANE, lane.id);
        inner.store(word::PEER_ENGINE, lane.peer);
        inner.route = Route::Lane(lane);
        // Whoever has the peer's number now may have rules that the one before had not.
        self.look_for_losses(inner);
    }

    pub(crate) fn wait_for_route(&self, inner: &mut Inner, slot: u32) {
        inner.route = Route::Opening(slot);
        if let Some(qp) = self.arc() {
            self.engine().unrouted.lock().push(qp);
            self.engine().waker.kick();
        }
    }

    /// The peer is another engine's now, which may have got nothing of what is under way.
    pub(crate) fn look_for_peer(&self, inner: &mut Inner) {
        inner.route = Route::Unknown;
        if inner.requester.outstanding() > 0 {
            if inner.attributes.timeout == 0 {
                // "Wait for ever" is for what cannot be lost.
                inner.requester.set_timeout(14);
            }
            let now = self.engine().now();
            inner.requester.note_loss(now);
        }
    }

    /// Opens what this QP is waiting for, and goes on with it.
    pub(crate) fn open_route(self: &Arc<Self>) {
        let engine = self.engine();
        let mut way = (0, self.stripe);
        let (dest, next) = {
            let mut inner = self.lock();
            match inner.route {
                Route::Opening(slot) if !inner.is_dead() && self.service == Service::Ud => {
                    (None, Some(inner.sq.read::<DatagramEntry>(slot)))
                }
                Route::Opening(_) if !inner.is_dead() => {
                    let peer = inner.attributes.dest_qp_num;
                    let owner = engine.board.owner(peer);
                    way = (owner, inner.stripe_to(engine, owner));
                    (Some(peer), None)
                }
                _ => return,
            }
        };
        // Without the QP's lock: the agent is asked meanwhile.
        let (owner, stripe) = way;
        let opened = match (dest, &next) {
            (Some(_), _) => engine.open_lane(owner, stripe).map(Some),
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

    /// Before a datagram QP goes: what waits for its way gets it now, as adapters send what was posted. Bounded, for each message may
    /// go to another peer.
    pub(crate) fn send_off(&self) {
        let Some(qp) = self.arc().filter(|_| self.service == Service::Ud) else { return };
        for _ in 0..MOST_WAYS {
            if !matches!(qp.lock().route, Route::Opening(_)) {
                return;
            }
            qp.open_route();
        }
    }

    /// The way that is known may not be one any more.
    fn look_for_route_again(self: &Arc<Self>) {
        let mut inner = self.lock();
        // What waited for a port that was down goes on, answers too, which nobody else asks for on a lane.
        let waited = matches!(inner.route, Route::Unknown) && inner.state.serves();
        if !inner.is_dead() && (waited || matches!(inner.route, Route::Lane(_))) {
            inner.route = Route::Unknown;
            // What is under way may have met a port that was down at either end.
            let now = self.engine().now();
            inner.requester.note_loss(now);
            self.pump(&mut inner);
        }
    }

    /// The lane `id` has lost its other end.
    fn lose_lane(self: &Arc<Self>, id: u32) {
        let mut inner = self.lock();
        if inner.is_dead() {
            return;
        }
        self.lose_srq_requests(&mut inner, id);
        if let Route::Lane(lane) = &inner.route {
            if lane.id == id {
                if self.has_moved(&inner) {
                    self.look_for_peer(&mut inner);
                } else {
                    self.note(format_args!("has lost its peer: process {} is gone", lane.pid));
                }
                inner.blocked = false;
                self.pump(&mut inner);
            }
        } else if self.service == Service::Ud && inner.blocked {
            inner.blocked = false;
            self.pump(&mut inner);
        }
        if self.token() != 0 {
            // A request for a remote SRQ went there, or waited for room there; whoever asked for it hears of it now.
            inner.blocked = false;
            self.pump(&mut inner);
        }
    }
}
