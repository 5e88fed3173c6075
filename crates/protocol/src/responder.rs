//! The receiving half of a queue pair: checks what comes and says what is to be done about it. Principal type: [`Responder`].
//!
//! It moves no bytes and knows no keys: a packet that is welcome becomes a [`Step`], the caller's executor carries it out, and
//! [`Responder::finish`] hears how it went. Here is what the connected services share, the course of a message; what RC adds is in
//! [`crate::rc`], UC and UD are in [`crate::unreliable`]. IBA 9.7.4 (what is checked, and in which order), 9.8.2, 9.8.3.

use crate::rc::answers::Answers;
use crate::{AtomicOp, Fault, MAX_MESSAGE, Open, Outcome, RecvEnd, Refusal, Service, Step};
use wire::{Headers, Operation, Psn, Qpn};

/// Which operations a queue pair serves: bits of the verbs' access flags. Other bits mean nothing here.
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
    /// FLUSH, so that everybody on the host sees what was written.
    pub const FLUSH_GLOBAL: Access = Access(1 << 8);
    /// FLUSH, so that what was written survives a loss of power.
    pub const FLUSH_PERSISTENT: Access = Access(1 << 9);

    /// Whether all of `others` are allowed.
    #[must_use]
    pub const fn allows(self, others: Access) -> bool {
        self.0 & others.0 == others.0
    }
}

/// What a responder has to know before it may serve: the attributes of the transition to RTR, and of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Bytes of payload in one packet; a power of two.
    pub mtu: u32,
    /// The peer's number, for the answers; unused on UD.
    pub dest_qp: Qpn,
    /// The partition, for the answers.
    pub pkey: u16,
    /// The number of the first packet that is awaited.
    pub rq_psn: Psn,
    /// READs and atomics that are remembered, and served at once.
    pub max_dest_rd_atomic: u8,
    /// Code of the time after which a requester may try again when no receive request was there.
    pub min_rnr_timer: u8,
    /// What is served.
    pub access: Access,
    /// UD: the key that datagrams must show.
    pub qkey: u32,
    /// The service, whose answers they are; [`Responder::configure`] knows it.
    pub service: Service,
    /// Answers say that the path is the one to stay on: path migration is not armed.
    pub migrated: bool,
}

/// What `finish` makes of the packet that is being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) step: Step,
    pub(crate) ack_req: bool,
    /// XRC: the shared receive queue that it names.
    pub(crate) xrc_srq: u32,
    /// The message after this packet.
    pub(crate) next: Open,
}

/// The receiving half of a queue pair.
#[derive(Debug)]
pub struct Responder {
    pub(crate) service: Service,
    pub(crate) config: ResponderConfig,
    /// The number of the packet that is awaited.
    pub(crate) expected: Psn,
    pub(crate) message: Open,
    pub(crate) pending: Option<Pending>,
    /// UC: the rest of the message is not wanted.
    pub(crate) abandoned: bool,
    /// RC: a NAK was sent for the awaited packet; what comes before it is dropped in silence.
    pub(crate) nak_sent: bool,
    /// RC: the last packet that came out of order.
    pub(crate) beyond: Psn,
    /// RC: the caller keeps what comes out of order.
    pub(crate) keeps_out_of_order: bool,
    pub(crate) answers: Answers,
    pub(crate) dead: Option<Refusal>,
    /// How something went that was not asked for here.
    pub(crate) unasked: Option<Outcome>,
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
            unasked: None,
        }
    }

    /// Sets what the transition to RTR sets. Takes the memory for `max_dest_rd_atomic` READs and atomics.
    pub fn configure(&mut self, config: ResponderConfig) {
        self.config = ResponderConfig { mtu: config.mtu.max(1), service: self.service, ..config };
        self.expected = config.rq_psn;
        self.set_max_dest_rd_atomic(config.max_dest_rd_atomic);
    }

    /// Changes how much one packet carries. Only between messages.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.config.mtu = mtu.max(1);
    }

    /// Changes what is served.
    pub fn set_access(&mut self, access: Access) {
        self.config.access = access;
    }

    /// Changes the time after which a requester may try again.
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.config.min_rnr_timer = code;
    }

    /// Changes how many READs and atomics are served at once. Those that are remembered are forgotten.
    pub fn set_max_dest_rd_atomic(&mut self, count: u8) {
        self.config.max_dest_rd_atomic = count;
        if self.service.is_reliable() {
            self.answers.remember(count);
        }
    }

    /// Changes what answers say about path migration.
    pub fn set_migrated(&mut self, migrated: bool) {
        self.config.migrated = migrated;
    }

    /// Changes the partition.
    pub fn set_pkey(&mut self, pkey: u16) {
        self.config.pkey = pkey;
    }

    /// Changes the key that datagrams must show.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// The number of the packet that is awaited.
    #[must_use]
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Messages completed, modulo 2^24.
    #[must_use]
    pub fn msn(&self) -> u32 {
        self.answers.msn
    }

    /// Why this responder serves no more.
    #[must_use]
    pub fn dead(&self) -> Option<&Refusal> {
        self.dead.as_ref()
    }

    /// A packet came.
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

    /// How the step of the last [`Responder::handle`] went.
    pub fn finish(&mut self, outcome: Outcome) {
        let Some(pending) = self.pending.take() else {
            self.unasked = Some(outcome);
            return;
        };
        match self.service {
            Service::Rc | Service::XrcIni | Service::XrcTgt => self.finish_rc(&pending, outcome),
            Service::Uc => self.finish_uc(&pending, outcome),
            Service::Ud => {}
        }
    }

    /// Makes a welcome packet of a connection a step, and remembers what [`Responder::finish`] needs.
    pub(crate) fn welcome(&mut self, headers: &Headers, len: u32) -> Result<Step, Fault> {
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
        let offset = match self.message {
            Open::None if place.begins() => 0,
            Open::Send { done } if !place.begins() => done,
            _ => return Err(Fault::Order { opcode: headers.opcode }),
        };
        self.check_payload(headers, len)?;
        let done = offset + len;
        if done > MAX_MESSAGE {
            return Err(self.length(headers, len));
        }
        let last = place.ends().then(|| RecvEnd {
            byte_len: done,
            imm: headers.opcode.has_immdt().then_some(headers.imm),
            invalidate: headers.opcode.has_ieth().then_some(headers.ieth),
            solicited: headers.solicited,
        });
        let next = if place.ends() { Open::None } else { Open::Send { done } };
        Ok((Step::Receive { offset, len, first: place.begins(), last }, next))
    }

    fn write(&self, headers: &Headers, len: u32) -> Result<(Step, Open), Fault> {
        let place = headers.opcode.place();
        let (va, rkey, total, offset) = match self.message {
            Open::None if place.begins() => (headers.reth.va, headers.reth.rkey, headers.reth.len, 0),
            Open::Write { va, rkey, total, done } if !place.begins() => (va, rkey, total, done),
            _ => return Err(Fault::Order { opcode: headers.opcode }),
        };
        self.check_access(headers, Access::REMOTE_WRITE)?;
        self.check_payload(headers, len)?;
        let (done, last) = (offset + len, place.ends());
        let fits = if last { done == total } else { done < total };
        if !fits || total > MAX_MESSAGE {
            return Err(self.length(headers, len));
        }
        let imm = headers.opcode.has_immdt().then_some(RecvEnd {
            byte_len: total,
            imm: Some(headers.imm),
            invalidate: None,
            solicited: headers.solicited,
        });
        let next = if last { Open::None } else { Open::Write { va, rkey, total, done } };
        Ok((Step::Write { va, rkey, total, offset, len, first: place.begins(), last, imm }, next))
    }

    fn read(&self, headers: &Headers, payload: u32) -> Result<(Step, Open), Fault> {
        self.check_alone(headers)?;
        self.check_access(headers, Access::REMOTE_READ)?;
        self.check_room()?;
        let wire::Reth { va, rkey, len } = headers.reth;
        if payload != 0 || len > MAX_MESSAGE {
            return Err(self.length(headers, payload));
        }
        Ok((Step::Read { va, rkey, len }, Open::None))
    }

    fn atomic(&self, headers: &Headers, payload: u32) -> Result<(Step, Open), Fault> {
        self.check_alone(headers)?;
        self.check_access(headers, Access::REMOTE_ATOMIC)?;
        self.check_room()?;
        let wire::AtomicEth { va, rkey, swap_add, compare } = headers.atomic;
        if payload != 0 {
            return Err(self.length(headers, payload));
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

    /// Not inside another message.
    pub(crate) fn check_alone(&self, headers: &Headers) -> Result<(), Fault> {
        if self.message == Open::None { Ok(()) } else { Err(Fault::Order { opcode: headers.opcode }) }
    }

    pub(crate) fn check_access(&self, headers: &Headers, needed: Access) -> Result<(), Fault> {
        let access = self.config.access;
        if access.allows(needed) { Ok(()) } else { Err(Fault::NotAllowed { opcode: headers.opcode, access: access.0 }) }
    }

    pub(crate) fn check_room(&self) -> Result<(), Fault> {
        let limit = self.config.max_dest_rd_atomic;
        if self.answers.has_room() { Ok(()) } else { Err(Fault::TooManyReads { limit }) }
    }

    /// All packets of a message but the last are full, and the last is not empty unless it is the only one.
    fn check_payload(&self, headers: &Headers, len: u32) -> Result<(), Fault> {
        let place = headers.opcode.place();
        let fits = match (place.begins(), place.ends()) {
            (true, true) => len <= self.config.mtu,
            (false, true) => (1..=self.config.mtu).contains(&len),
            (_, false) => len == self.config.mtu,
        };
        if fits { Ok(()) } else { Err(self.length(headers, len)) }
    }

    pub(crate) fn length(&self, headers: &Headers, got: u32) -> Fault {
        Fault::Length { opcode: headers.opcode, got, mtu: self.config.mtu }
    }
}
