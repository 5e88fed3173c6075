//! The route of a connection's packets: from a GID and a QPN to a lane, or over the wire.
//!
//! A GID of this agent and a QPN that one of its engines owns select a lane. Every other GID
//! belongs to another host. Without a route, packets are lost, as on a network where no host
//! answers. If a lane is not open, the helper thread opens it, and posts queue meanwhile.
//! Datagrams, which have a route each, are in `datagram.rs`. Adds to [`Engine`] and [`Qp`].

use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::command::number as command;
use abi::errno::Errno;
use abi::private::{LaneOpen, LaneOut};
use abi::queue::{ON_WIRE, qp as word};
use protocol::Service;

use crate::engine::Engine;
use crate::error::{Error, Result, by_system, refusal};
use crate::mcast::{GroupPath, is_group};
use crate::memory::DatagramEntry;
use crate::net::flow::{NoFlow, Vector};
use crate::paths::passing::Passes;
use crate::qp::{Inner, Lane, Qp, Route};
use crate::request;

impl Engine {
    /// Opens a lane to another engine (or to this one), waiting for the agent.
    pub(crate) fn open_lane(self: &Arc<Self>, peer: u32, lane_index: u32) -> Result<Arc<Lane>> {
        let request =
            request::private(command::LANE_OPEN, &LaneOpen { engine: peer, lane_index }, size_of::<LaneOut>());
        // The agent keeps the lane, so the next attempt gets the same one.
        let unopened = |error: Error| {
            refusal(error.errno, format!("the lane to engine {peer} cannot be opened: {}", error.reason))
        };
        let answer = self.call(&request).map_err(unopened)?;
        let out: LaneOut = answer.get(0)?;
        let mut far = None;
        if peer == self.number() {
            // Both sides belong to this engine; the other one has the notifiers in the reverse
            // order.
            let [memory, mine, other, wake_word] = answer.fds.as_slice() else { return Err(Errno::EIO.into()) };
            let copies = [memory, other, mine, wake_word].map(OwnedFd::try_clone);
            let copies = copies.into_iter().collect::<std::io::Result<Vec<_>>>().map_err(by_system)?;
            far = Some(Lane::new(&LaneOut { side: 1 - out.side.min(1), ..out }, copies)?);
        }
        let near = Lane::new(&out, answer.fds)?;
        let adopted = self.lanes.add(Arc::clone(&near), true);
        if let Some(far) = far.filter(|_| Arc::ptr_eq(&adopted, &near)) {
            self.lanes.add(far, false);
        }
        // The agent has announced the lane to the peer, and the peer may already have sent packets.
        // If the helper thread was woken for them before the lane was in the list, it has missed
        // them.
        self.waker.attend();
        Ok(adopted)
    }

    /// Opens the routes for which QPs wait. Waits for the agent and for other callers, so only the
    /// helper thread and verbs that may wait call it.
    pub(crate) fn open_routes(self: &Arc<Self>) {
        let _turn = self.helper_work.opening.lock();
        let waiting = std::mem::take(&mut *self.helper_work.need_lane.lock());
        for qp in waiting {
            qp.open_route();
        }
    }

    /// A port went down or came up, or its partitions changed: connections look for their routes
    /// again, over lanes too, because no packet passes a port that is down.
    pub(crate) fn ports_changed(self: &Arc<Self>) {
        for qp in self.qps.all() {
            qp.look_for_route_again();
        }
        self.timers_changed();
    }

    /// The other end of a lane is gone. Packets that it had sent are received first.
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

/// The most lanes that are opened for the datagrams of a QP that is being destroyed.
const MOST_LANES_OPENED: usize = 16;

impl Qp {
    /// Looks for the route, unless it is known. If its lane is not open, the helper thread opens
    /// it.
    pub(crate) fn find_route(&self, inner: &mut Inner) {
        if self.look_for_route(inner) {
            self.wait_for_route(inner, 0);
        }
    }

    /// Looks for the route, unless it is known. Returns true if it needs a lane that is not open:
    /// until [`Qp::open_route`] has opened it, posts queue.
    pub(crate) fn look_for_route(&self, inner: &mut Inner) -> bool {
        let engine = self.engine();
        if matches!(&inner.link.route, Route::Wire(flow) if !engine.holds(flow)) {
            self.uncount(inner);
            inner.link.route = Route::Unknown;
        }
        let peer = inner.attributes.dest_qp_num;
        if matches!(&inner.link.route, Route::Lane(lane) if lane.is_dead()) && self.has_moved(inner) {
            inner.link.route = Route::Unknown;
        }
        if !matches!(inner.link.route, Route::Unknown) || self.service == Service::Ud {
            return false;
        }
        inner.link.pathless = false;
        if !engine.board.is_up(engine.device(), u32::from(inner.attributes.port_num)) {
            return false;
        }
        if inner.link.on_wire() {
            if self.connection_passes_to_host(inner) {
                self.find_flow(inner);
            }
            return false;
        }
        let Some(place) = engine.board.find(&inner.attributes.dest.dgid) else { return false };
        match self.passes(inner, place) {
            Passes::Yes => {}
            Passes::No => return false,
            Passes::Ask => {
                inner.link.route = Route::Opening(0);
                return true;
            }
        }
        inner.link.place = place;
        let owner = engine.board.owner(peer);
        if owner == 0 || engine.keys.has_ended(owner) {
            return false;
        }
        let lane_index = inner.lane_index_to(&engine.lanes, owner);
        let Some(lane) = engine.lanes.route(owner, lane_index) else {
            inner.link.route = Route::Opening(0);
            return true;
        };
        self.take_route(inner, lane);
        false
    }

    /// Whether another engine owns the peer's number now: an XRC target can move to another engine.
    pub(crate) fn has_moved(&self, inner: &Inner) -> bool {
        let owner = self.engine().board.owner(inner.attributes.dest_qp_num);
        matches!(&inner.link.route, Route::Lane(lane) if lane.peer != owner)
            && owner != 0
            && self.service == Service::XrcIni
    }

    /// Whether this QP's packets use a lane.
    pub(crate) fn goes_by(&self, lane: &Lane) -> bool {
        matches!(&self.lock().link.route, Route::Lane(ours) if ours.id == lane.id)
    }

    /// Finds the flow to another host.
    fn find_flow(&self, inner: &mut Inner) {
        let vector = Vector::of_connection(&inner.attributes.dest, inner.attributes.port_num, self.qpn());
        match self.engine().flow(&vector) {
            Ok(flow) => {
                inner.store(word::LANE, ON_WIRE);
                inner.link.route = Route::Wire(flow);
            }
            Err(no_flow) => self.complain(inner, &vector.dgid, &no_flow),
        }
    }

    /// Reports why there is no route, once.
    pub(crate) fn complain(&self, inner: &mut Inner, dgid: &[u8; 16], no_flow: &NoFlow) {
        if !std::mem::replace(&mut inner.complained, true) {
            self.note(format_args!("does not reach {}: {no_flow}", crate::network::address(*dgid)));
        }
    }

    /// Reports that no port has the LID, once.
    pub(crate) fn complain_of_lid(&self, inner: &mut Inner, lid: u16) {
        if !std::mem::replace(&mut inner.complained, true) {
            self.note(format_args!(
                "does not reach LID {lid}: it is neither a port of this agent nor an address of the port's subnet; use a GID for another host"
            ));
        }
    }

    fn take_route(&self, inner: &mut Inner, lane: Arc<Lane>) {
        let (dgid, found) = (&inner.attributes.dest.dgid, inner.link.place);
        inner.link.place = self.engine().board.place_on(lane.device, dgid, found);
        inner.store(word::LANE, lane.id);
        inner.store(word::PEER_ENGINE, lane.peer);
        inner.link.route = Route::Lane(lane);
        // The new owner of the peer's number may have fault rules that the old one had not.
        self.look_for_losses(inner);
    }

    pub(crate) fn wait_for_route(&self, inner: &mut Inner, slot: u32) {
        inner.link.route = Route::Opening(slot);
        if let Some(qp) = self.arc() {
            self.engine().helper_work.need_lane.lock().push(qp);
            self.engine().waker.kick();
        }
    }

    /// The peer moved to another engine, which may not have received the requests under way.
    pub(crate) fn look_for_peer(&self, inner: &mut Inner) {
        inner.link.route = Route::Unknown;
        if inner.requester.outstanding() > 0 {
            if inner.attributes.timeout == 0 {
                // "Wait for ever" is for requests that cannot be lost.
                inner.requester.set_timeout(14);
            }
            let now = self.engine().now();
            inner.requester.note_loss(now);
        }
    }

    /// Opens the route for which this QP waits, and continues the QP.
    pub(crate) fn open_route(self: &Arc<Self>) {
        if !self.open_way() {
            return;
        }
        let engine = self.engine();
        let mut way = (0, self.lane_index);
        let (attributes, asked);
        let (dest, next) = {
            let mut inner = self.lock();
            attributes = inner.attributes;
            let Route::Opening(slot) = inner.link.route else { return };
            asked = slot;
            match inner.link.route {
                Route::Opening(slot) if !inner.is_dead() && self.service == Service::Ud => {
                    (None, Some(inner.queues.sq.read::<DatagramEntry>(slot)))
                }
                Route::Opening(_) if !inner.is_dead() => {
                    let peer = inner.attributes.dest_qp_num;
                    let owner = engine.board.owner(peer);
                    way = (owner, inner.lane_index_to(&engine.lanes, owner));
                    (Some(peer), None)
                }
                _ => return,
            }
        };
        // Without the QP's lock, because this waits for the agent.
        let (owner, lane_index) = way;
        let opened = match (dest, &next) {
            (Some(_), _) => engine.open_lane(owner, lane_index).map(Some),
            (None, Some(entry)) if is_group(&entry.dgid) => {
                engine.resolve_group(GroupPath::of(entry, &attributes)).and_then(|reached| {
                    // All lanes are tried, so that every reachable engine gets its copy.
                    let opened = reached.engines.iter().map(|&peer| engine.open_lane(peer, lane_index).map(drop));
                    opened.fold(Ok(()), Result::and).map(|()| None)
                })
            }
            (None, Some(entry)) => engine.open_lane(engine.board.owner(entry.remote_qpn), lane_index).map(|_| None),
            (None, None) => return,
        };
        let mut inner = self.lock();
        let Route::Opening(slot) = inner.link.route else { return };
        if dest.is_none() && slot != asked {
            // Another thread has used the result, and the QP waits for its next route.
            return;
        }
        inner.link.route = Route::Unknown;
        match opened {
            Ok(Some(lane)) if dest == Some(inner.attributes.dest_qp_num) => self.take_route(&mut inner, lane),
            Err(_) if dest == Some(inner.attributes.dest_qp_num) => return self.give_up_route(&mut inner),
            Err(_) if dest.is_none() => inner.ud.unreachable = Some(slot),
            // The result belongs to an earlier connection of the QP.
            _ => {}
        }
        self.pump(&mut inner);
    }

    /// Opens the routes for waiting datagrams now, because adapters send all posted requests.
    /// Called before a datagram QP is destroyed or leaves a group. Bounded, because each message
    /// may go to another peer.
    pub(crate) fn send_off(&self) {
        let Some(qp) = self.arc().filter(|_| self.service == Service::Ud) else { return };
        for _ in 0..MOST_LANES_OPENED {
            if !matches!(qp.lock().link.route, Route::Opening(_)) {
                return;
            }
            qp.open_route();
        }
    }

    /// The known route may no longer be valid.
    fn look_for_route_again(self: &Arc<Self>) {
        let mut inner = self.lock();
        self.follow_partition(&mut inner);
        // Continues QPs that waited for a port that was down. Their answers are sent, too: on a
        // lane, no peer would retransmit its request.
        let waited = matches!(inner.link.route, Route::Unknown) && inner.state.serves();
        // The switches of the subnet may not let packets to another host pass any more.
        let by_path = matches!(inner.link.route, Route::Wire(_)) && self.engine().board.has_paths();
        if by_path {
            self.uncount(&mut inner);
        }
        if !inner.is_dead() && (waited || by_path || matches!(inner.link.route, Route::Lane(_))) {
            inner.link.route = Route::Unknown;
            // Requests under way may have met a port that was down at either end.
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
        if let Route::Lane(lane) = &inner.link.route {
            if lane.id == id {
                if self.has_moved(&inner) {
                    self.look_for_peer(&mut inner);
                } else {
                    self.note(format_args!("has lost its peer: process {} is gone", lane.pid));
                }
                inner.link.blocked = false;
                self.pump(&mut inner);
            }
        } else if self.service == Service::Ud && inner.link.blocked {
            inner.link.blocked = false;
            self.pump(&mut inner);
        }
        if self.token() != 0 {
            // A request for a remote SRQ went over this lane, or waited for room on it. The
            // target's initiator gets the answer now.
            inner.link.blocked = false;
            self.pump(&mut inner);
        }
    }
}
