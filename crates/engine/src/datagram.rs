//! Datagrams: each one has its own route, over a lane, to another host, or to all members of a
//! group.
//!
//! Packets of connections are sent in `transmit.rs`. Adds to [`Qp`].

mod group;

use std::sync::Arc;

use abi::reason::{Cause, DropRecord};
use protocol::{Status, Time};
use wire::Qpn;
use wire::grh::{self, Grh, Network};
use wire::icrc;

use crate::access::{HeldRegion, Refusal};
use crate::board::DevicePort;
use crate::cell::{Origin, Path, RunHeaders};
use crate::faults::packets::Towards;
use crate::flows::Key;
use crate::mcast::{GroupPath, Reached, is_group};
use crate::memory::DatagramEntry;
use crate::net::flow::{NoFlow, Vector};
use crate::paths::{Class, Passage, Way};
use crate::put::{Far, Sent};
use crate::qp::{Flow, Inner, Lane, Qp, Route};

/// What has become of a datagram.
#[derive(PartialEq, Eq)]
enum Datagram {
    Sent,
    /// There was no room for it.
    Lost,
    /// It is sent later.
    Waits,
}

/// The route of one datagram.
enum DatagramRoute {
    /// The destination does not exist, or the datagram cannot be sent there.
    None(Cause, DevicePort),
    /// It is longer than this, which is the MTU of a link on its path.
    Long(u32, DevicePort),
    /// A lane has to be opened first.
    Opening,
    /// The lanes to the members of this agent. The members elsewhere get copies over the wire, or
    /// through the agent if the datagram leaves its part of the subnet.
    Group {
        lanes: Vec<Arc<Lane>>,
        place: DevicePort,
        leaves: bool,
        /// Switches drop copies for their P_Key.
        dropped: bool,
    },
    Lane(Arc<Lane>, DevicePort),
    Host(Arc<Flow>),
}

impl Qp {
    /// Puts one copy of a datagram on a lane.
    pub(crate) fn put_datagram(
        &self,
        inner: &Inner,
        lane: &Arc<Lane>,
        run: &protocol::Run,
        entry: &DatagramEntry,
        path: Path,
        grh: Option<[u8; 40]>,
    ) -> Sent {
        let (headers, from) = (inner.requester.headers(run), Origin::of_request(&inner.queues.sq, run));
        if inner.link.is_ruled() {
            let links = self.known_passage(inner, entry).map_or(0, |passage| passage.links.there);
            let far = Far { gid: entry.dgid, port: inner.attributes.port_num.into(), room: u32::MAX, links };
            let to = Towards::Lane(lane, path, grh);
            if let Some(done) = self.datagram_with_faults(&far, &headers, run.len, &from, to) {
                return done;
            }
        }
        let mut sender = lane.sender.lock();
        if self.engine().is_capturing() {
            sender.ends = Some(self.ends_of_datagram(inner, entry));
        }
        let region = &mut HeldRegion::new(self.engine());
        let run = self.run(RunHeaders::Full(&headers), 1, run.len, from);
        self.put_on_lane(lane, &mut sender, path, &run, grh.as_ref(), region).1
    }

    /// What passes on the way of the datagram whose route was found last.
    fn known_passage<'a>(&self, inner: &'a Inner, entry: &DatagramEntry) -> Option<&'a Passage> {
        let known = inner.ud.last_passage.as_ref();
        let is_asked = self.engine().board.has_paths() && !is_group(&entry.dgid);
        known.filter(|_| is_asked).map(|(.., passage)| &**passage)
    }

    /// Sends datagrams; each has its own route.
    pub(crate) fn pump_datagrams(self: &Arc<Self>, inner: &mut Inner) {
        if matches!(inner.link.route, Route::Opening(_)) {
            return;
        }
        let now = self.engine().about_now();
        // Packets of this flow may still be in its batch.
        let mut leaving: Option<Arc<Flow>> = None;
        while let Some(run) = inner.requester.poll_run(now) {
            let entry: DatagramEntry = inner.queues.sq.read(run.slot);
            if entry.foreign != 0 {
                let advice = Some("create the address handle on the QP's PD");
                let why = "the address handle is on another PD than the QP";
                self.explain(inner, run.slot, Status::LocQpOpErr, &why, advice);
                inner.requester.fail_next(Status::LocQpOpErr);
                continue;
            }
            if self.datagram_must_wait(inner, entry.static_rate, now) {
                break;
            }
            let done = self.route_datagram(inner, &run, &entry, now, &mut leaving);
            if matches!(done, Ok(Datagram::Waits)) {
                break;
            }
            (inner.ud.unreachable, inner.ud.missing) = (None, None);
            match done {
                Err(refusal) => {
                    self.explain(inner, run.slot, Status::LocProtErr, &refusal, refusal.advice());
                    inner.requester.fail_next(Status::LocProtErr);
                }
                Ok(done) => {
                    inner.requester.sent(now, &run);
                    if done == Datagram::Sent {
                        self.charge_datagram(inner, run.len, entry.static_rate, now);
                    }
                }
            }
        }
        if let Some(flow) = leaving {
            depart(&flow);
        }
    }

    /// Sends one datagram on its route. `leaving` is the flow of the last one.
    fn route_datagram(
        self: &Arc<Self>,
        inner: &mut Inner,
        run: &protocol::Run,
        entry: &DatagramEntry,
        now: Time,
        leaving: &mut Option<Arc<Flow>>,
    ) -> Result<Datagram, Refusal> {
        match self.datagram_route(inner, run, entry) {
            DatagramRoute::None(cause, to) => self.send_nowhere(inner, run, entry, (cause, 0, to)),
            DatagramRoute::Long(mtu, to) => self.send_nowhere(inner, run, entry, (Cause::LinkMtu, mtu, to)),
            DatagramRoute::Opening => {
                self.wait_for_route(inner, run.slot);
                Ok(Datagram::Waits)
            }
            DatagramRoute::Lane(lane, place) => {
                let lost = match self.send_datagram(inner, &lane, run, entry, place) {
                    Sent::Yes => 0,
                    Sent::Lost => mtu_code(run.len),
                    Sent::Refused(refusal) => return Err(refusal),
                    Sent::Full if lane.is_dead() => return Ok(Datagram::Lost),
                    Sent::Full => {
                        inner.link.blocked = true;
                        lane.block(self, &self.engine().waker);
                        return Ok(Datagram::Waits);
                    }
                };
                self.count_datagram(inner, run, entry, (place, lost));
                Ok(Datagram::Sent)
            }
            DatagramRoute::Group { lanes, place, leaves, dropped } => {
                if !self.send_to_members(inner, lanes, run, (entry, place), now)? {
                    return Ok(Datagram::Waits);
                }
                // What the agent sends on is counted there, at all links.
                if !leaves {
                    self.count_copies(inner, run, entry, dropped);
                }
                // Without a flow, the group has only members of this agent.
                let mlid = if leaves { entry.lid } else { 0 };
                if let Ok(flow) = self.flow_of(inner, entry, mlid) {
                    let put = self.send_to_host(inner, &flow, run, entry);
                    follow(leaving, flow);
                    put?;
                }
                Ok(Datagram::Sent)
            }
            DatagramRoute::Host(flow) => {
                let to = Qpn::new(entry.remote_qpn);
                let may_go = self.may_go(inner, &flow, &mut flow.port.batch.lock(), run.len, to, now);
                let put = if may_go { self.send_to_host(inner, &flow, run, entry) } else { Ok(()) };
                follow(leaving, flow);
                if may_go && put.is_ok() {
                    self.count_datagram(inner, run, entry, (DevicePort::default(), 0));
                }
                put.map(|()| if may_go { Datagram::Sent } else { Datagram::Waits })
            }
        }
    }

    /// Sends a datagram that nobody gets. `expected`: see [`DropRecord`].
    #[cold]
    fn send_nowhere(
        &self,
        inner: &mut Inner,
        run: &protocol::Run,
        entry: &DatagramEntry,
        (cause, expected, to): (Cause, u32, DevicePort),
    ) -> Result<Datagram, Refusal> {
        self.rehearse(inner, run)?;
        self.lose_datagram(cause, expected, run, entry);
        self.count_datagram(inner, run, entry, (to, mtu_code(run.len)));
        if cause == Cause::NoPath {
            self.tell_no_path(inner);
        }
        Ok(Datagram::Sent)
    }

    /// Counts a datagram to a group for the ports on its ways. `dropped`: see [`Reached`].
    fn count_copies(&self, inner: &mut Inner, run: &protocol::Run, entry: &DatagramEntry, dropped: bool) {
        self.count_datagram(inner, run, entry, (DevicePort::default(), 0));
        if dropped {
            self.tell_no_path(inner);
        }
    }

    /// Counts a datagram for the ports on its way. `lost`: see [`Key`].
    fn count_datagram(
        &self,
        inner: &mut Inner,
        run: &protocol::Run,
        entry: &DatagramEntry,
        (to, lost): (DevicePort, u8),
    ) {
        let engine = self.engine();
        let (port, pkey_index) = (inner.attributes.port_num, inner.attributes.pkey_index);
        let dlid = if entry.lid == 0 { engine.board.lid(to) } else { entry.lid };
        let headers = run.opcode.headers_len();
        let counts = || {
            // Another host's agent does not know what routers see.
            let is_elsewhere = lost == 0 && to == DevicePort::default();
            let from = DevicePort { device: engine.device(), port: port.into() };
            let route = match is_elsewhere || is_group(&entry.dgid) {
                true => Default::default(),
                false => Way::of_datagram(&engine.board, from, to, entry).route,
            };
            engine.flows.count(Key { dlid, sl: entry.sl, port, pkey_index, lost, route }, run.len, headers)
        };
        if dlid == 0 || !engine.board.has_paths() || !counts() {
            inner.traffic.sent(1, run.len, headers, 31);
        }
    }

    /// The route of a datagram.
    fn datagram_route(&self, inner: &mut Inner, run: &protocol::Run, entry: &DatagramEntry) -> DatagramRoute {
        let engine = self.engine();
        let unknown = DevicePort::default();
        let hopeless = inner.ud.unreachable == Some(run.slot);
        if !engine.board.is_up(engine.device(), u32::from(inner.attributes.port_num)) {
            return DatagramRoute::None(Cause::PortDown, unknown);
        }
        if entry.dlid != 0 && entry.dgid == [0; 16] {
            self.complain_of_lid(inner, entry.dlid);
            return DatagramRoute::None(Cause::Nobody, unknown);
        }
        let lane_index = self.lane_index;
        if is_group(&entry.dgid) {
            let place = DevicePort { device: engine.device(), port: 1 };
            let path = GroupPath::of(entry, &inner.attributes);
            let Some(Reached { engines, leaves, dropped }) = engine.group_reached(&path) else {
                return if hopeless { DatagramRoute::None(Cause::Nobody, unknown) } else { DatagramRoute::Opening };
            };
            let lanes: Vec<_> = engines.iter().filter_map(|&peer| engine.lanes.route(peer, lane_index)).collect();
            return if hopeless || lanes.len() == engines.len() {
                DatagramRoute::Group { lanes, place, leaves, dropped }
            } else {
                DatagramRoute::Opening
            };
        }
        let class = Class { sl: entry.sl, pkey_index: inner.attributes.pkey_index };
        let epoch = engine.board.gid_epoch();
        let place = match inner.ud.last_place {
            Some((gid, at, place)) if gid == entry.dgid && at == epoch => place,
            _ => match engine.board.find(&entry.dgid) {
                Some(place) => {
                    inner.ud.last_place = Some((entry.dgid, epoch, place));
                    place
                }
                None if !self.passes_to_host(inner, entry.lid, class) => {
                    return DatagramRoute::None(Cause::NoPath, unknown);
                }
                None => {
                    return match self.flow_of(inner, entry, 0) {
                        Ok(flow) => DatagramRoute::Host(flow),
                        Err(no_flow) => {
                            self.complain(inner, &entry.dgid, &no_flow);
                            DatagramRoute::None(Cause::Nobody, unknown)
                        }
                    };
                }
            },
        };
        if engine.board.has_paths() {
            let Some(passage) = self.datagram_passage(inner, place, entry) else {
                return if hopeless { DatagramRoute::None(Cause::Nobody, place) } else { DatagramRoute::Opening };
            };
            if !passage.lets(class) {
                self.complain_of_path(inner, entry.lid, class);
                return DatagramRoute::None(Cause::NoPath, place);
            }
            if run.len > passage.mtu {
                self.complain_of_mtu(inner, run.len, &passage);
                return DatagramRoute::Long(passage.mtu, place);
            }
        }
        match engine.board.owner(entry.remote_qpn) {
            0 => DatagramRoute::None(Cause::Nobody, place),
            owner => match engine.lanes.route(owner, lane_index) {
                Some(lane) => {
                    let place = engine.board.place_on(lane.device, &entry.dgid, place);
                    DatagramRoute::Lane(lane, place)
                }
                None if hopeless || engine.keys.has_ended(owner) => DatagramRoute::None(Cause::Nobody, place),
                None => DatagramRoute::Opening,
            },
        }
    }

    /// Counts a datagram that is dropped.
    #[cold]
    fn lose_datagram(&self, cause: Cause, expected: u32, run: &protocol::Run, entry: &DatagramEntry) {
        let dropped = DropRecord {
            qpn: self.qpn(),
            got: run.len,
            expected,
            address: entry.dgid,
            src_qp: self.qpn(),
            dest_qp: entry.remote_qpn,
            psn: run.first.value(),
            opcode: run.opcode.as_u8().into(),
            ..DropRecord::default()
        };
        self.engine().drop_packet(cause, dropped);
    }

    /// The flow to another host, or to a group's members on other hosts. `mlid`: see [`Vector`].
    fn flow_of(&self, inner: &mut Inner, entry: &DatagramEntry, mlid: u16) -> Result<Arc<Flow>, NoFlow> {
        let place = DevicePort { device: self.engine().device(), port: inner.attributes.port_num.into() };
        let lids = self.engine().board.lids_of_datagram(place, entry);
        let vector = Vector { mlid, lids, ..Vector::of_datagram(entry, inner.attributes.port_num, self.qpn()) };
        if let Some((known, flow)) = &inner.ud.last_flow
            && *known == vector
            && self.engine().holds(flow)
        {
            return Ok(Arc::clone(flow));
        }
        let flow = self.engine().flow(&vector)?;
        inner.ud.last_flow = Some((vector, Arc::clone(&flow)));
        Ok(flow)
    }

    fn send_to_host(
        &self,
        inner: &Inner,
        flow: &Arc<Flow>,
        run: &protocol::Run,
        entry: &DatagramEntry,
    ) -> Result<(), Refusal> {
        let (headers, from) = (inner.requester.headers(run), Origin::of_request(&inner.queues.sq, run));
        if inner.link.is_ruled() {
            let far = Far { gid: entry.dgid, port: inner.attributes.port_num.into(), room: u32::MAX, links: 0 };
            match self.datagram_with_faults(&far, &headers, run.len, &from, Towards::Host(flow)) {
                None => {}
                Some(Sent::Refused(refusal)) => return Err(refusal),
                Some(_) => return Ok(()),
            }
        }
        let region = &mut HeldRegion::new(self.engine());
        let run = self.run(RunHeaders::Full(&headers), 1, run.len, from);
        match self.put_on_wire(flow, &mut flow.port.batch.lock(), &run, region).1 {
            Sent::Refused(refusal) => Err(refusal),
            _ => Ok(()),
        }
    }

    fn send_datagram(
        &self,
        inner: &Inner,
        lane: &Arc<Lane>,
        run: &protocol::Run,
        entry: &DatagramEntry,
        place: DevicePort,
    ) -> Sent {
        let (board, device) = (&self.engine().board, self.engine().device());
        let port = u32::from(inner.attributes.port_num);
        let from = DevicePort { device, port };
        let grh = (entry.dlid == 0).then(|| {
            let sgid = board.gid(device, port, u32::from(entry.sgid_index)).unwrap_or_default();
            let grh = Grh {
                traffic_class: entry.traffic_class,
                flow_label: entry.flow_label,
                payload_len: (run.opcode.headers_len() + run.len.next_multiple_of(4) as usize + icrc::LEN) as u16,
                hop_limit: entry.hop_limit,
                sgid,
                dgid: entry.dgid,
                ..Grh::default()
            };
            let mut bytes = [0; grh::LEN];
            Network::before_datagram(grh, board.is_infiniband(from)).emit(&mut bytes);
            bytes
        });
        // A datagram from another subnet comes from the last router.
        let (slid, sl) = match self.known_passage(inner, entry).map(|passage| passage.router) {
            Some((lid @ 1.., sl)) => (lid, sl),
            _ => (board.lid(from) | u16::from(entry.src_path_bits & board.path_bits(from)), entry.sl),
        };
        let path = Path { device: place.device as u16, port: place.port as u8, slid, dlid: entry.dlid, sl, mtu: 0 };
        let sent = self.put_datagram(inner, lane, run, entry, path, grh);
        if matches!(sent, Sent::Yes) {
            lane.notify();
        }
        sent
    }
}

/// Switches to the flow `next`; sends the batch of the last flow if that uses another port.
fn follow(leaving: &mut Option<Arc<Flow>>, next: Arc<Flow>) {
    if let Some(flow) = leaving.as_ref().filter(|flow| !Arc::ptr_eq(&flow.port, &next.port)) {
        depart(flow);
    }
    *leaving = Some(next);
}

/// The code of the smallest MTU that holds this payload.
fn mtu_code(len: u32) -> u8 {
    (1..5).find(|code| abi::device::mtu_bytes(*code).is_some_and(|mtu| len <= mtu)).unwrap_or(5)
}

/// Sends the batch of a flow's port.
fn depart(flow: &Flow) {
    if let Err(error) = flow.port.batch.lock().flush(&*flow.port.outlet) {
        flow.complain(&error);
    }
}
