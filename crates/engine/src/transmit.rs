//! How packets leave: requests and answers of a QP become records on its lane.
//!
//! [`Qp::pump`] sends whatever there is, whoever found that there is something. A packet that finds its lane full goes back to
//! its state machine, and the QP on the lane's list; nobody waits. Datagrams, whose ways differ one by one, are in `route.rs`.

use std::sync::Arc;

use protocol::{Nak, Response, Service, Source, Status, Time, Transmit};
use wire::Qpn;

use crate::access::{self, Refusal, Use};
use crate::cell::{Packet, Path, Payload};
use crate::engine::Deferred;
use crate::lane::{Lane, Sender};
use crate::qp::{Inner, Qp, Route};
use crate::wqe::{SEND_HEADER, SendEntry};

/// What became of a packet that was to be sent.
enum Sent {
    Yes,
    /// The lane is full.
    Full,
    /// Its payload could not be read.
    Refused(Refusal),
}

/// Where a packet's payload comes from.
enum Origin<'a> {
    Nothing,
    /// Part of a request's gather list (or inline data).
    Request {
        sq: &'a crate::wqe::Ring,
        entry: &'a SendEntry,
        index: u32,
        offset: u32,
    },
    /// Registered memory that a peer reads.
    Memory {
        rkey: u32,
        addr: u64,
    },
}

impl Qp {
    /// Sends what can be sent, gives the completions that follow, and has the timers know the next deadline.
    pub(crate) fn pump(self: &Arc<Self>, inner: &mut Inner) {
        if inner.is_dead() {
            return;
        }
        if !inner.blocked {
            if self.service == Service::Ud {
                self.pump_datagrams(inner);
            } else {
                self.pump_connection(inner);
            }
        }
        self.show_arrived(inner);
        self.complete_sends(inner);
        // A send that failed has flushed the receives.
        self.show_arrived(inner);
        self.watch_deadline(inner);
    }

    fn pump_connection(self: &Arc<Self>, inner: &mut Inner) {
        let mut answer = inner.responder.poll_transmit();
        if answer.is_none() && inner.requester.outstanding() == 0 {
            return;
        }
        self.find_route(inner, false);
        // Borrowed from the QP for the while, and put back below.
        let lane = match std::mem::replace(&mut inner.route, Route::Unknown) {
            Route::Lane(lane) if !lane.is_dead() => lane,
            route => {
                let opening = matches!(route, Route::Opening(_));
                inner.route = route;
                if answer.is_some() && opening {
                    inner.responder.untransmit();
                }
                if !opening {
                    self.lose_output(inner);
                }
                return;
            }
        };
        let mut sent = false;
        let path = Path { device: inner.place.device as u8, port: inner.place.port as u8, ..Path::default() };
        let mut sender = lane.sender.lock();
        let now = self.time(inner);
        while let Some(response) = answer {
            match self.send_response(&lane, &mut sender, path, &response) {
                Sent::Yes => sent = true,
                Sent::Full => {
                    inner.responder.untransmit();
                    inner.blocked = true;
                }
                Sent::Refused(refusal) => {
                    crate::reason!(
                        "QP {:#x} could not read what QP {:#x} asked for: {refusal}",
                        self.qpn(),
                        inner.attributes.dest_qp_num
                    );
                    inner.responder.read_failed(if refusal.by_key() {
                        Nak::RemoteAccess
                    } else {
                        Nak::RemoteOperational
                    });
                    // The refusal itself is still to be sent, from the error state.
                    self.after_refusal(inner, None);
                }
            }
            answer = if inner.blocked { None } else { inner.responder.poll_transmit() };
        }
        while !inner.blocked {
            let Some(transmit) = inner.requester.poll_transmit(now) else { break };
            match self.send_request(inner, &lane, &mut sender, path, &transmit) {
                Sent::Yes => sent = true,
                Sent::Full => {
                    inner.requester.untransmit();
                    inner.blocked = true;
                }
                Sent::Refused(refusal) => {
                    self.explain(inner, transmit.slot, Status::LocProtErr, &refusal);
                    inner.requester.fail_current(Status::LocProtErr);
                }
            }
        }
        if inner.blocked {
            lane.block(self);
        }
        drop(sender);
        if sent {
            lane.notify();
        }
        inner.route = Route::Lane(lane);
    }

    /// The state machines' time: read only when a timer runs, for a clock costs as much as a message.
    pub(crate) fn time(&self, inner: &Inner) -> Time {
        if inner.deadline.is_some() || inner.requester.poll_timeout().is_some() { self.engine().now() } else { Time(0) }
    }

    /// No lane could be opened: what there is to send is lost. The next try comes with the next timer or request.
    pub(crate) fn give_up_route(&self, inner: &mut Inner) {
        self.lose_output(inner);
        self.show_arrived(inner);
        self.complete_sends(inner);
        // A send that failed has flushed the receives.
        self.show_arrived(inner);
        self.watch_deadline(inner);
    }

    /// There is no way to the peer: whatever is sent is lost, and the usual timers find out.
    fn lose_output(&self, inner: &mut Inner) {
        let now = self.engine().now();
        while inner.responder.poll_transmit().is_some() {}
        let mut lost = false;
        while inner.requester.poll_transmit(now).is_some() {
            lost = true;
        }
        if lost || inner.requester.outstanding() > 0 {
            if inner.attributes.timeout == 0 {
                // "Wait for ever" is for peers that may come back. This one is known to be gone.
                inner.requester.set_timeout(14);
            }
            inner.requester.note_loss(now);
        }
    }

    fn send_request(&self, inner: &Inner, lane: &Lane, sender: &mut Sender, path: Path, transmit: &Transmit) -> Sent {
        if transmit.len == 0 {
            return self.put(lane, sender, path, &transmit.headers, None, 0, &Origin::Nothing);
        }
        let entry: SendEntry = inner.sq.read(transmit.slot);
        let origin = Origin::Request { sq: &inner.sq, entry: &entry, index: transmit.slot, offset: transmit.offset };
        self.put(lane, sender, path, &transmit.headers, None, transmit.len, &origin)
    }

    fn send_response(&self, lane: &Lane, sender: &mut Sender, path: Path, response: &Response) -> Sent {
        let (from, len) = match response.source {
            // An answer without bytes: neither key nor address means anything (V-75).
            Source::None | Source::Read { len: 0, .. } => (Origin::Nothing, 0),
            Source::Read { va, rkey, offset, len } => {
                (Origin::Memory { rkey, addr: va.wrapping_add(u64::from(offset)) }, len)
            }
        };
        self.put(lane, sender, path, &response.headers, None, len, &from)
    }

    /// Puts one packet on a lane: small ones into the cells, others with their payload in the bulk area.
    #[allow(clippy::too_many_arguments, reason = "a packet is made of that many parts, and this is where they meet")]
    fn put(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        path: Path,
        headers: &wire::Headers,
        grh: Option<[u8; 40]>,
        len: u32,
        from: &Origin<'_>,
    ) -> Sent {
        let mut packet = Packet {
            path,
            src_qp: Qpn::new(self.qpn()),
            headers: *headers,
            grh,
            len: len as u16,
            payload: Payload::Inline(0),
        };
        let Sender { tx, record, bulky, wanted } = sender;
        let head = 16 + if grh.is_some() { wire::grh::LEN } else { 0 } + headers.len();
        if head + len as usize <= shm::RECORD_MAX {
            let head = packet.encode(record);
            if let Err(refusal) = self.fill(from, len, record[head..].as_mut_ptr()) {
                return Sent::Refused(refusal);
            }
            return match tx.ring.push(&record[..head + len as usize]) {
                Ok(()) => Sent::Yes,
                Err(shm::PushError::Full) => Sent::Full,
                Err(shm::PushError::Broken(_)) => self.broken(lane),
            };
        }
        let slot = match tx.bulk.reserve(len as usize) {
            Ok(Some(slot)) => slot,
            Ok(None) => {
                *wanted = len;
                return Sent::Full;
            }
            Err(shm::Broken) => return self.broken(lane),
        };
        *bulky = true;
        if let Err(refusal) = self.fill(from, len, slot.ptr.as_ptr()) {
            tx.bulk.cancel(slot);
            return Sent::Refused(refusal);
        }
        packet.payload = Payload::Bulk(slot.offset);
        let head = packet.encode(record);
        match tx.ring.push(&record[..head]) {
            Ok(()) => Sent::Yes,
            Err(shm::PushError::Full) => {
                tx.bulk.cancel(slot);
                Sent::Full
            }
            Err(shm::PushError::Broken(_)) => self.broken(lane),
        }
    }

    /// The peer has broken the lane's rules: its connections with this process end, nobody else's.
    fn broken(&self, lane: &Lane) -> Sent {
        crate::reason!("lane {} to process {} is broken: the peer wrote what no sound peer writes", lane.id, lane.pid);
        lane.kill();
        self.engine().defer(Deferred::Broken(lane.id));
        Sent::Full
    }

    /// Copies a packet's payload to where it leaves from.
    fn fill(&self, from: &Origin<'_>, len: u32, to: *mut u8) -> Result<(), Refusal> {
        match *from {
            Origin::Nothing => Ok(()),
            Origin::Memory { rkey, addr } => {
                let wanted = Use { pd: self.pd, right: abi::mr::access::REMOTE_READ };
                access::read(self.engine(), wanted, (rkey, addr), to, len as usize)
            }
            Origin::Request { sq, entry, index, offset } if entry.inline != 0 => {
                let data = sq.inline(index, entry.length as usize);
                access::plain(to, data.wrapping_add(offset as usize), len as usize);
                Ok(())
            }
            Origin::Request { sq, entry, index, offset } => {
                let elements = (0..usize::from(entry.num_sge)).map(|number| sq.element(index, SEND_HEADER, number));
                access::gather(self.engine(), self.pd, elements, (offset, len), to)
            }
        }
    }

    /// Puts one datagram's copy on a lane.
    pub(crate) fn put_datagram(
        &self,
        inner: &Inner,
        lane: &Lane,
        transmit: &Transmit,
        entry: &SendEntry,
        path: Path,
        grh: [u8; 40],
    ) -> Result<bool, Refusal> {
        let from = Origin::Request { sq: &inner.sq, entry, index: transmit.slot, offset: transmit.offset };
        let from = if transmit.len == 0 { Origin::Nothing } else { from };
        let mut sender = lane.sender.lock();
        match self.put(lane, &mut sender, path, &transmit.headers, Some(grh), transmit.len, &from) {
            Sent::Yes => Ok(true),
            Sent::Refused(refusal) => Err(refusal),
            Sent::Full => Ok(false),
        }
    }

    fn watch_deadline(&self, inner: &mut Inner) {
        let deadline = inner.requester.poll_timeout();
        if let Some(at) = deadline {
            // An earlier entry finds that it is too early and sets this one again.
            if inner.deadline.is_none_or(|known| at < known) && self.engine().timers.set(at, self.qpn()) {
                self.engine().waker.kick();
            }
        }
        inner.deadline = deadline;
    }

    /// A timer of this QP may have come due.
    pub(crate) fn on_timer(self: &Arc<Self>, now: Time) {
        let mut inner = self.lock();
        inner.deadline = None;
        if inner.is_dead() {
            return;
        }
        if inner.requester.poll_timeout().is_some_and(|at| at <= now) {
            inner.requester.handle_timeout(now);
        }
        self.pump(&mut inner);
    }

    /// The lane has room again.
    pub(crate) fn unblock(self: &Arc<Self>) {
        let mut inner = self.lock();
        inner.blocked = false;
        self.pump(&mut inner);
    }
}
