//! The send queue: posting, putting packets on lanes, and the completions of what was sent.
//!
//! [`SendBatch`] is how a program posts; [`Qp::pump`] is how anything leaves, requests and answers alike, whoever found that there
//! is something to send. A packet that finds its lane full goes back to its state machine, and the QP on the lane's list.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::cq::{Wc, opcode as wc_opcode};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::{Sge, opcode, send_flags};
use abi::queue::qp as word;
use parking_lot::MutexGuard;
use protocol::{Destination, Nak, Operation, Response, SendOp, Service, Source, State, Status, Time, Transmit};
use wire::Qpn;

use crate::access::{self, Refusal, Use};
use crate::ah::Ah;
use crate::cell::{Packet, Path, Payload};
use crate::cq::{Cqe, FREES_SEND};
use crate::engine::Deferred;
use crate::error::Error;
use crate::lane::{Lane, Sender};
use crate::qp::{Inner, Qp, Route};
use crate::wqe::{SEND_HEADER, SendEntry};

/// A send request.
#[derive(Clone, Copy)]
pub struct SendWr<'a> {
    /// Comes back with its completion.
    pub wr_id: u64,
    /// IBV numbering.
    pub opcode: u32,
    /// See `abi::post::send_flags`.
    pub send_flags: u32,
    /// Immediate data as the program gave it (network order), or the key to invalidate.
    pub imm: u32,
    /// RDMA and atomics: address at the peer.
    pub remote_addr: u64,
    /// RDMA and atomics: key at the peer.
    pub rkey: u32,
    /// Atomics: the value to compare with or to add.
    pub compare_add: u64,
    /// Compare and swap: the value to swap in.
    pub swap: u64,
    /// UD: where it goes, the QP there, and its Q_Key.
    pub ud: Option<(&'a Ah, u32, u32)>,
    /// What is sent, or where a READ's or atomic's answer goes.
    pub sges: &'a [Sge],
}

impl Default for SendWr<'_> {
    fn default() -> Self {
        Self {
            wr_id: 0,
            opcode: opcode::SEND,
            send_flags: 0,
            imm: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            ud: None,
            sges: &[],
        }
    }
}

/// Requests being posted: holds the QP's lock, and sends when it ends.
pub struct SendBatch<'a> {
    qp: &'a Arc<Qp>,
    inner: MutexGuard<'a, Inner>,
}

impl Qp {
    /// Begins to post send requests.
    ///
    /// # Errors
    /// EIO after a fork; EINVAL when the QP is destroyed.
    pub fn send_batch(self: &Arc<Self>) -> Result<SendBatch<'_>, Errno> {
        self.engine().check_process().map_err(|error| error.errno)?;
        crate::usermem::prepare_thread();
        let inner = self.lock();
        if inner.is_dead() {
            return Err(Errno::EINVAL);
        }
        Ok(SendBatch { qp: self, inner })
    }
}

impl SendBatch<'_> {
    /// Adds one request.
    ///
    /// # Errors
    /// EINVAL for a state, opcode or list that does not fit; ENOMEM when the queue is full.
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), Errno> {
        let (qp, inner) = (self.qp, &mut *self.inner);
        let refuse =
            |errno, why: String| Err(Error::refuse(errno, format!("post_send on QP {:#x}: {why}", qp.qpn())).errno);
        if !inner.state.takes_sends() {
            return refuse(Errno::EINVAL, format!("the QP is in state {:?}, sends need RTS", inner.state));
        }
        let Some(operation) = operation(wr.opcode, qp.service) else {
            return refuse(Errno::EINVAL, format!("opcode {} does not exist on {}", wr.opcode, qp.service));
        };
        if wr.sges.len() > qp.caps.max_send_sge as usize && wr.send_flags & send_flags::INLINE == 0 {
            return refuse(
                Errno::EINVAL,
                format!("{} gather elements, the QP takes {}", wr.sges.len(), qp.caps.max_send_sge),
            );
        }
        if inner.sq.count() == 0
            || inner.sq.used(qp.freed.send.load(Ordering::Acquire), inner.sq_tail) >= qp.caps.max_send_wr
        {
            return refuse(
                Errno::ENOMEM,
                format!("the send queue is full: {} requests without a polled completion", qp.caps.max_send_wr),
            );
        }
        let total: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let length = u32::try_from(total).unwrap_or(u32::MAX);
        let inline = wr.send_flags & send_flags::INLINE != 0;
        if inline && (operation.is_read_or_atomic() || total > u64::from(qp.caps.max_inline_data)) {
            return refuse(
                Errno::EINVAL,
                format!("{total} bytes inline, the QP takes {} and READs and atomics none", qp.caps.max_inline_data),
            );
        }
        let mut entry = SendEntry {
            wr_id: wr.wr_id,
            remote_addr: wr.remote_addr,
            compare_add: wr.compare_add,
            swap: wr.swap,
            length,
            imm: wr.imm,
            rkey: wr.rkey,
            opcode: wr.opcode as u8,
            signaled: u8::from(qp.sq_sig_all || wr.send_flags & send_flags::SIGNALED != 0),
            inline: u8::from(inline),
            num_sge: wr.sges.len() as u8,
            ..bytemuck::Zeroable::zeroed()
        };
        if qp.service == Service::Ud {
            let Some((ah, qpn, qkey)) = wr.ud else {
                return refuse(Errno::EINVAL, "a datagram needs an address handle".into());
            };
            let vector = ah.vector();
            entry.dgid = vector.dgid;
            entry.flow_label = vector.flow_label;
            entry.sgid_index = vector.sgid_index;
            entry.hop_limit = vector.hop_limit;
            entry.traffic_class = vector.traffic_class;
            entry.sl = vector.sl;
            entry.remote_qpn = qpn;
            entry.remote_qkey = if qkey & 0x8000_0000 != 0 { inner.attributes.qkey } else { qkey };
            entry.foreign = u8::from(ah.pd() != qp.pd);
        }
        let index = inner.sq_tail;
        inner.sq.write(index, &entry);
        if inline {
            if let Err(addr) = access::inline(wr.sges, inner.sq.inline(index, length as usize)) {
                return refuse(Errno::EFAULT, format!("the inline data at {addr:#x} cannot be read"));
            }
        } else {
            for (number, sge) in wr.sges.iter().enumerate() {
                inner.sq.set_element(index, SEND_HEADER, number, sge);
            }
        }
        let op = SendOp {
            slot: index,
            operation,
            length: if operation.is_atomic() { 8 } else { length },
            remote_addr: wr.remote_addr,
            rkey: wr.rkey,
            imm: if operation == Operation::SendInv { wr.imm } else { u32::from_be(wr.imm) },
            compare: wr.compare_add,
            swap_add: if operation == Operation::FetchAdd { wr.compare_add } else { wr.swap },
            solicited: wr.send_flags & send_flags::SOLICITED != 0,
            fence: wr.send_flags & send_flags::FENCE != 0,
            dest: Destination { dest_qp: Qpn::new(entry.remote_qpn), qkey: entry.remote_qkey },
        };
        if inner.requester.post(op).is_err() {
            return refuse(Errno::ENOMEM, "the send queue is full".into());
        }
        inner.sq_tail = inner.sq.advance(index);
        inner.store(word::SQ_TAIL, inner.sq_tail);
        Ok(())
    }

    /// How many more requests the queue takes.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.inner.sq.count() == 0 {
            return 0;
        }
        let used = self.inner.sq.used(self.qp.freed.send.load(Ordering::Acquire), self.inner.sq_tail);
        self.qp.caps.max_send_wr.saturating_sub(used)
    }

    /// Sends what was posted.
    pub fn finish(mut self) {
        self.qp.pump(&mut self.inner);
    }
}

/// The operation of a work request opcode, where the service has it.
fn operation(number: u32, service: Service) -> Option<Operation> {
    let operation = match number {
        opcode::RDMA_WRITE => Operation::Write,
        opcode::RDMA_WRITE_WITH_IMM => Operation::WriteImm,
        opcode::SEND => Operation::Send,
        opcode::SEND_WITH_IMM => Operation::SendImm,
        opcode::RDMA_READ => Operation::Read,
        opcode::ATOMIC_CMP_AND_SWP => Operation::CmpSwap,
        opcode::ATOMIC_FETCH_AND_ADD => Operation::FetchAdd,
        _ => return None,
    };
    let offered = match service {
        Service::Rc => true,
        Service::Uc => !operation.is_read_or_atomic(),
        Service::Ud => matches!(operation, Operation::Send | Operation::SendImm),
    };
    offered.then_some(operation)
}

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
        self.complete_sends(inner);
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
        let mut sender = lane.sender.lock();
        let now = self.time(inner);
        while let Some(response) = answer {
            match self.send_response(&lane, &mut sender, &response) {
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
                }
            }
            answer = if inner.blocked { None } else { inner.responder.poll_transmit() };
        }
        while !inner.blocked {
            let Some(transmit) = inner.requester.poll_transmit(now) else { break };
            match self.send_request(inner, &lane, &mut sender, &transmit) {
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
            lane.block(self, &sender);
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

    fn send_request(&self, inner: &Inner, lane: &Lane, sender: &mut Sender, transmit: &Transmit) -> Sent {
        if transmit.len == 0 {
            return self.put(lane, sender, self.path(), &transmit.headers, None, 0, &Origin::Nothing);
        }
        let entry: SendEntry = inner.sq.read(transmit.slot);
        let origin = Origin::Request { sq: &inner.sq, entry: &entry, index: transmit.slot, offset: transmit.offset };
        self.put(lane, sender, self.path(), &transmit.headers, None, transmit.len, &origin)
    }

    fn send_response(&self, lane: &Lane, sender: &mut Sender, response: &Response) -> Sent {
        let (from, len) = match response.source {
            // An answer without bytes: neither key nor address means anything (V-75).
            Source::None | Source::Read { len: 0, .. } => (Origin::Nothing, 0),
            Source::Read { va, rkey, offset, len } => {
                (Origin::Memory { rkey, addr: va.wrapping_add(u64::from(offset)) }, len)
            }
        };
        self.put(lane, sender, self.path(), &response.headers, None, len, &from)
    }

    fn path(&self) -> Path {
        Path { device: self.engine().device() as u8, port: 1, ..Path::default() }
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

    /// Gives the completions of send requests that are over, and ends the queue where one failed.
    pub(crate) fn complete_sends(&self, inner: &mut Inner) {
        let (mut last, mut failed) = (None, None);
        while let Some(completion) = inner.requester.poll_completion() {
            let index = completion.slot;
            last = Some(index);
            if failed.is_none() && !matches!(completion.status, Status::Success | Status::WrFlushErr) {
                failed = Some(index);
            }
            let entry: SendEntry = inner.sq.read(index);
            if completion.status == Status::Success && entry.signaled == 0 {
                continue;
            }
            let wc = Wc {
                wr_id: entry.wr_id,
                status: completion.status.as_u32(),
                opcode: completed(u32::from(entry.opcode)),
                byte_len: if operation(u32::from(entry.opcode), Service::Rc).is_some_and(Operation::is_atomic) {
                    8
                } else {
                    entry.length
                },
                qp_num: self.qpn(),
                ..Wc::default()
            };
            let cqe = Cqe { wc, timestamp: 0, freed: inner.sq.advance(index), frees: FREES_SEND };
            self.send_cq.push(&cqe, false);
        }
        if let Some(index) = last {
            inner.store(word::SQ_HEAD, inner.sq.advance(index));
            if inner.requester.fatal().is_some() && inner.state.takes_sends() {
                self.end_sending(inner, failed);
            }
        }
        if inner.draining.is_some() && inner.requester.drained() {
            inner.store(word::FLAGS, 0);
            if inner.draining.take() == Some(true) {
                self.raise(kind::SQ_DRAINED);
            }
        }
    }

    /// A send failed: unreliable queues halt, reliable QPs are in error altogether.
    fn end_sending(&self, inner: &mut Inner, failed: Option<u32>) {
        if matches!(inner.state, State::Err | State::Sqe) {
            return;
        }
        if let (Some(failure), Some(slot)) = (inner.requester.failure(), failed) {
            if failure.reason != protocol::Reason::Local {
                let entry: SendEntry = inner.sq.read(slot);
                crate::reason!(
                    "QP {:#x}, wr_id {:#x}: {} ({})",
                    self.qpn(),
                    entry.wr_id,
                    failure.status,
                    failure.reason
                );
            }
        }
        let next = self.service.after_send_error();
        inner.set_state(next);
        if next == State::Err {
            self.flush_receives(inner);
        }
    }

    /// Notes why a request failed here.
    pub(crate) fn explain(&self, inner: &Inner, slot: u32, status: Status, why: &dyn std::fmt::Display) {
        let entry: SendEntry = inner.sq.read(slot);
        crate::reason!("QP {:#x}, wr_id {:#x}: {status}: {why}", self.qpn(), entry.wr_id);
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

/// The completion opcode of a work request opcode.
fn completed(number: u32) -> u32 {
    match number {
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        opcode::RDMA_READ => wc_opcode::RDMA_READ,
        opcode::ATOMIC_CMP_AND_SWP => wc_opcode::COMP_SWAP,
        opcode::ATOMIC_FETCH_AND_ADD => wc_opcode::FETCH_ADD,
        _ => wc_opcode::SEND,
    }
}
