//! The receiving half of a queue pair: checks each packet and says what must be done about it.
//! Principal type: [`Responder`].
//!
//! The responder moves no bytes and knows no keys. An accepted packet becomes a [`Step`]. The
//! caller's executor carries out the step, and [`Responder::finish`] takes the result. This file
//! holds what the connected services share: the course of a message. [`crate::rc`] adds the rules
//! of RC, and [`crate::unreliable`] those of UC and UD. IBA 9.7.4 (what is checked, and in which
//! order), 9.8.2, 9.8.3.

use crate::operation::MAX_MESSAGE;
use crate::qp::Service;
use crate::rc::answers::Answers;
use crate::reason::Fault;
use crate::step::{AtomicOp, Outcome, RecvEnd, Refusal, Step};
use crate::tally::{Occurrence, Tally};
use wire::{Headers, Opcode, Operation, Psn, Qpn, Reth};

/// The operations that a queue pair serves: bits of the verbs' access flags. Other bits are ignored
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Access(pub u32);

impl Access {
    /// RDMA WRITE.
    pub const REMOTE_WRITE: Access = Access(1 << 1);
    /// RDMA READ.
    pub const REMOTE_READ: Access = Access(1 << 2);
    /// Atomics.
    pub const REMOTE_ATOMIC: Access = Access(1 << 3);
    /// FLUSH that makes written data visible to the whole host.
    pub const FLUSH_GLOBAL: Access = Access(1 << 8);
    /// FLUSH that makes written data survive a loss of power.
    pub const FLUSH_PERSISTENT: Access = Access(1 << 9);

    /// Whether all of `others` are allowed.
    #[must_use]
    pub const fn allows(self, others: Access) -> bool {
        self.0 & others.0 == others.0
    }
}

/// The configuration that a responder needs before it may serve: attributes of the transition to
/// RTR, and of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Bytes of payload in one packet; a power of two.
    pub mtu: u32,
    /// The peer's QP number, for the answers; unused on UD.
    pub dest_qp: Qpn,
    /// The partition, for the answers.
    pub pkey: u16,
    /// The number of the first expected packet.
    pub rq_psn: Psn,
    /// READs and atomics that are remembered and served at once.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code: when a requester may retry after an RNR NAK.
    pub min_rnr_timer: u8,
    /// The operations that are served.
    pub access: Access,
    /// UD: the key that datagrams must show.
    pub qkey: u32,
    /// The service of the answers; [`Responder::configure`] sets it.
    pub service: Service,
    /// The migration bit of answers: path migration is not armed.
    pub migrated: bool,
}

/// The message of which some packets have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Open {
    /// No message.
    #[default]
    None,
    /// A SEND, of which `done` bytes have arrived.
    Send {
        /// Bytes so far.
        done: u32,
    },
    /// A WRITE, of which `done` bytes have arrived.
    Write {
        /// The address.
        va: u64,
        /// The rkey.
        rkey: u32,
        /// Bytes of the whole message.
        total: u32,
        /// Bytes so far.
        done: u32,
    },
}

/// The accepted packet that is being executed, and what [`Responder::finish`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) step: Step,
    pub(crate) ack_req: bool,
    /// XRC: the shared receive queue that the packet names.
    pub(crate) xrc_srq: u32,
    /// The message after this packet.
    pub(crate) next: Open,
}

/// The receiving half of a queue pair.
#[derive(Debug)]
pub struct Responder {
    pub(crate) service: Service,
    pub(crate) config: ResponderConfig,
    /// The number of the expected packet.
    pub(crate) expected: Psn,
    pub(crate) message: Open,
    pub(crate) pending: Option<Pending>,
    /// UC: the rest of the message is dropped.
    pub(crate) abandoned: bool,
    /// RC: a NAK was sent for the expected packet. Later packets are dropped silently until it
    /// arrives.
    pub(crate) nak_sent: bool,
    /// RC: the last out-of-order packet.
    pub(crate) beyond: Psn,
    /// RC: the caller keeps out-of-order packets.
    pub(crate) keeps_out_of_order: bool,
    pub(crate) answers: Answers,
    pub(crate) dead: Option<Refusal>,
    /// The outcome of a step that this responder has not returned.
    pub(crate) foreign_outcome: Option<Outcome>,
    /// What was noticed; the caller takes it.
    pub tally: Tally,
}

impl Responder {
    /// A responder. Configure it before it handles packets.
    #[must_use]
    pub fn new(service: Service) -> Responder {
        Responder {
            service,
            config: ResponderConfig { mtu: 1, ..ResponderConfig::default() },
            expected: Psn::default(),
            message: Open::None,
            pending: None,
            abandoned: false,
            nak_sent: false,
            beyond: Psn::default(),
            keeps_out_of_order: false,
            answers: Answers::default(),
            dead: None,
            foreign_outcome: None,
            tally: Tally::default(),
        }
    }

    /// Sets the attributes of the transition to RTR. Allocates memory for `max_dest_rd_atomic`
    /// READs and atomics.
    pub fn configure(&mut self, config: ResponderConfig) {
        self.config = ResponderConfig { mtu: config.mtu.max(1), service: self.service, ..config };
        self.expected = config.rq_psn;
        self.set_max_dest_rd_atomic(config.max_dest_rd_atomic);
    }

    /// Changes the payload size of a packet. Only between messages.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.config.mtu = mtu.max(1);
    }

    /// Changes which operations are served.
    pub fn set_access(&mut self, access: Access) {
        self.config.access = access;
    }

    /// Changes the RNR timer code.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.config.min_rnr_timer = code;
    }

    /// Changes how many READs and atomics are served at once. All remembered requests are
    /// forgotten.
    pub fn set_max_dest_rd_atomic(&mut self, count: u8) {
        self.config.max_dest_rd_atomic = count;
        if self.service.is_reliable() {
            self.answers.remember(count);
        }
    }

    /// Changes the migration bit of answers.
    pub fn set_migrated(&mut self, migrated: bool) {
        self.config.migrated = migrated;
    }

    /// The partition.
    #[must_use]
    #[inline]
    pub fn pkey(&self) -> u16 {
        self.config.pkey
    }

    /// Changes the partition.
    pub fn set_pkey(&mut self, pkey: u16) {
        self.config.pkey = pkey;
    }

    /// Changes the key that datagrams must show.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// The number of the expected packet.
    #[must_use]
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Messages completed, modulo 2^24.
    #[must_use]
    pub fn msn(&self) -> u32 {
        self.answers.msn
    }

    /// Why this responder serves no more, if it has refused a request.
    #[must_use]
    pub fn dead(&self) -> Option<&Refusal> {
        self.dead.as_ref()
    }

    /// Handles a request packet.
    pub fn handle(&mut self, headers: &Headers, payload_len: u32) -> Step {
        let served = self.service.receives() && headers.opcode.transport == self.service.transport();
        if !served || headers.opcode.is_response() {
            return Step::Ignore(Fault::Service { opcode: headers.opcode, service: self.service });
        }
        match self.service {
            Service::Rc | Service::XrcIni | Service::XrcTgt => self.handle_rc(headers, payload_len),
            Service::Uc => self.handle_uc(headers, payload_len),
            Service::Ud => self.handle_ud(headers, payload_len),
        }
    }

    /// Takes the outcome of the step that [`Responder::handle`] returned last.
    pub fn finish(&mut self, outcome: Outcome) {
        let Some(pending) = self.pending.take() else {
            self.foreign_outcome = Some(outcome);
            return;
        };
        if outcome == Outcome::Rnr {
            self.tally.note(Occurrence::OutOfBuffer);
        }
        match self.service {
            Service::Rc | Service::XrcIni | Service::XrcTgt => self.finish_rc(&pending, outcome),
            Service::Uc => self.finish_uc(&pending, outcome),
            Service::Ud => {}
        }
    }

    /// Turns an accepted packet of a connection into a step, and remembers what
    /// [`Responder::finish`] needs.
    pub(crate) fn begin_step(&mut self, headers: &Headers, len: u32) -> Result<Step, Fault> {
        let (step, next) = match headers.opcode {
            opcode if opcode.is_send() => self.send(headers, len)?,
            opcode if opcode.is_write() => self.write(headers, len)?,
            opcode if opcode.is_atomic() => self.atomic(headers, len)?,
            opcode if opcode.is_atomic_write() => self.atomic_write(headers, len)?,
            opcode if opcode.is_flush() => self.flush(headers, len)?,
            _ => self.read(headers, len)?,
        };
        self.pending = Some(Pending { step, ack_req: headers.ack_req, xrc_srq: headers.xrc_srq, next });
        Ok(step)
    }

    fn send(&self, headers: &Headers, len: u32) -> Result<(Step, Open), Fault> {
        let place = headers.opcode.place();
        let (offset, next) = self.send_packet(headers.opcode, len)?;
        let last = place.ends().then(|| RecvEnd {
            byte_len: offset + len,
            imm: headers.opcode.has_immdt().then_some(headers.imm),
            invalidate: headers.opcode.has_ieth().then_some(headers.ieth),
            solicited: headers.solicited,
        });
        Ok((Step::Receive { offset, len, first: place.begins(), last }, next))
    }

    /// The place of a SEND packet in its message, and the message after it.
    #[inline]
    pub(crate) fn send_packet(&self, opcode: Opcode, len: u32) -> Result<(u32, Open), Fault> {
        let place = opcode.place();
        let offset = match self.message {
            Open::None if place.begins() => 0,
            Open::Send { done } if !place.begins() => done,
            _ => return Err(Fault::Order { opcode }),
        };
        self.check_payload(opcode, len)?;
        let done = offset + len;
        if done > MAX_MESSAGE {
            return Err(self.length(opcode, len));
        }
        Ok((offset, if place.ends() { Open::None } else { Open::Send { done } }))
    }

    fn write(&self, headers: &Headers, len: u32) -> Result<(Step, Open), Fault> {
        let place = headers.opcode.place();
        let ((Reth { va, rkey, len: total }, offset), next) = self.write_packet(headers.opcode, headers.reth, len)?;
        let imm = headers.opcode.has_immdt().then_some(RecvEnd {
            byte_len: total,
            imm: Some(headers.imm),
            invalidate: None,
            solicited: headers.solicited,
        });
        Ok((Step::Write { va, rkey, total, offset, len, first: place.begins(), last: place.ends(), imm }, next))
    }

    /// The target of a WRITE packet's message, the place of the packet in it, and the message after
    /// the packet. `reth` is the packet's own, if it has one.
    #[inline]
    pub(crate) fn write_packet(&self, opcode: Opcode, reth: Reth, len: u32) -> Result<((Reth, u32), Open), Fault> {
        let place = opcode.place();
        let (reth, offset) = match self.message {
            Open::None if place.begins() => (reth, 0),
            Open::Write { va, rkey, total, done } if !place.begins() => (Reth { va, rkey, len: total }, done),
            _ => return Err(Fault::Order { opcode }),
        };
        self.check_access(opcode, Access::REMOTE_WRITE)?;
        self.check_payload(opcode, len)?;
        let (Reth { va, rkey, len: total }, done) = (reth, offset + len);
        let fits = if place.ends() { done == total } else { done < total };
        if !fits || total > MAX_MESSAGE {
            return Err(self.length(opcode, len));
        }
        Ok(((reth, offset), if place.ends() { Open::None } else { Open::Write { va, rkey, total, done } }))
    }

    fn read(&self, headers: &Headers, payload: u32) -> Result<(Step, Open), Fault> {
        self.check_alone(headers)?;
        self.check_access(headers.opcode, Access::REMOTE_READ)?;
        self.check_room()?;
        let Reth { va, rkey, len } = headers.reth;
        if payload != 0 || len > MAX_MESSAGE {
            return Err(self.length(headers.opcode, payload));
        }
        Ok((Step::Read { va, rkey, len }, Open::None))
    }

    fn atomic(&self, headers: &Headers, payload: u32) -> Result<(Step, Open), Fault> {
        self.check_alone(headers)?;
        self.check_access(headers.opcode, Access::REMOTE_ATOMIC)?;
        self.check_room()?;
        let wire::AtomicEth { va, rkey, swap_add, compare } = headers.atomic;
        if payload != 0 {
            return Err(self.length(headers.opcode, payload));
        }
        if !va.is_multiple_of(8) {
            return Err(Fault::Misaligned { va });
        }
        let op = match headers.opcode.operation {
            Operation::CompareSwap => AtomicOp::CmpSwap,
            _ => AtomicOp::FetchAdd,
        };
        Ok((Step::Atomic { op, va, rkey, swap_add, compare }, Open::None))
    }

    /// Checks that no other message is open.
    pub(crate) fn check_alone(&self, headers: &Headers) -> Result<(), Fault> {
        if self.message == Open::None { Ok(()) } else { Err(Fault::Order { opcode: headers.opcode }) }
    }

    pub(crate) fn check_access(&self, opcode: Opcode, needed: Access) -> Result<(), Fault> {
        let access = self.config.access;
        if access.allows(needed) { Ok(()) } else { Err(Fault::NotAllowed { opcode, access: access.0 }) }
    }

    pub(crate) fn check_room(&self) -> Result<(), Fault> {
        let limit = self.config.max_dest_rd_atomic;
        if self.answers.has_room() { Ok(()) } else { Err(Fault::TooManyReads { limit }) }
    }

    /// Every packet of a message except the last must be full. The last must not be empty, unless
    /// it is the only one.
    fn check_payload(&self, opcode: Opcode, len: u32) -> Result<(), Fault> {
        let place = opcode.place();
        let fits = match (place.begins(), place.ends()) {
            (true, true) => len <= self.config.mtu,
            (false, true) => (1..=self.config.mtu).contains(&len),
            (_, false) => len == self.config.mtu,
        };
        if fits { Ok(()) } else { Err(self.length(opcode, len)) }
    }

    pub(crate) fn length(&self, opcode: Opcode, got: u32) -> Fault {
        Fault::Length { opcode, got, mtu: self.config.mtu }
    }
}
