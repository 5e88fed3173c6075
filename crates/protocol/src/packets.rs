//! The packets of a request: how many there are, and what each of them contains. Adds to
//! [`Requester`]. When a packet is sent is decided in [`crate::requester`]. IBA 9.4 (operations),
//! 9.7.2 (numbering), 9.7.5.1.2 (asking for acknowledgement).

use crate::operation::{MAX_MESSAGE, Operation, QueuedOperation, Run, SendOp};
use crate::qp::Service;
use crate::reason::Reason;
use crate::requester::{Requester, RequesterConfig};
use crate::status::Status;
use wire::{AtomicEth, Deth, Headers, Opcode, Place, Psn, Reth};

impl Requester {
    /// The next packet of a READ, an atomic, an ATOMIC WRITE or a FLUSH, if it may be sent. Each
    /// piece of a READ is one packet. If a piece was answered in part, the packet asks for the
    /// rest.
    #[inline(never)]
    pub(crate) fn next_request(&self, entry: &QueuedOperation) -> Option<Run> {
        let (op, packet) = (&entry.op, self.cursor.packet);
        if !self.fits_window(entry) || !self.may_ask() {
            return None;
        }
        let end = self.piece_end(op, packet);
        let operation = match op.operation {
            Operation::CmpSwap => wire::Operation::CompareSwap,
            Operation::FetchAdd => wire::Operation::FetchAdd,
            Operation::AtomicWrite => wire::Operation::AtomicWrite,
            Operation::Flush => wire::Operation::Flush,
            _ => wire::Operation::ReadRequest,
        };
        Some(Run {
            first: entry.first + packet,
            count: 1,
            opcode: Opcode::new(self.service.transport(), operation),
            asks: false,
            slot: op.slot,
            offset: packet << self.mtu_shift,
            len: if op.operation == Operation::AtomicWrite { op.length } else { 0 },
            end,
            ends: end == self.packets(op),
        })
    }

    /// The next packets of a SEND or WRITE.
    #[inline(always)]
    pub(crate) fn next_packets(&self, entry: &QueuedOperation) -> Option<Run> {
        if self.cursor.packet == 0 && entry.op.length <= self.config.mtu && self.rc.limit.is_none() {
            return self.only_packet(entry);
        }
        self.next_packets_of_many(entry)
    }

    /// The next packets of a SEND or WRITE: its middle packets, as many as may be sent, or one
    /// packet of another kind.
    #[inline(never)]
    fn next_packets_of_many(&self, entry: &QueuedOperation) -> Option<Run> {
        let (op, packet) = (&entry.op, self.cursor.packet);
        let (first, offset) = (entry.first + packet, packet << self.mtu_shift);
        let left = op.length - offset;
        let place = Place::of(packet == 0, left <= self.config.mtu);
        let mut count = if place == Place::Middle { (left - 1) >> self.mtu_shift } else { 1 };
        let mut asks = false;
        if self.service.is_reliable() {
            let has_credit = self.has_credit(entry);
            if !has_credit {
                if first != self.rc.unacked {
                    return None;
                }
                count = 1;
            }
            let (room, fills) = self.room(first);
            let until_asked = self.ask_every.saturating_sub(self.cursor.since_ack_req).max(1);
            count = count.min(room).min(until_asked);
            asks = place.ends() || !has_credit || count == until_asked || (count == room && fills);
        }
        (count > 0).then_some(Run {
            first,
            count,
            opcode: Opcode::new(self.service.transport(), opcode(op.operation, place)),
            asks,
            slot: op.slot,
            offset,
            len: left.min(self.config.mtu),
            end: packet + count,
            ends: place.ends(),
        })
    }

    /// Encodes the headers of the packet with this index of `run`, which [`Requester::poll_run`]
    /// has just returned, as [`Requester::headers`] returns them. `bytes` has room for
    /// [`wire::MAX_LEN`]. Returns their length.
    #[inline(always)]
    pub fn emit(&self, run: &Run, index: u32, bytes: &mut [u8]) -> usize {
        let op = &self.ops.at(self.cursor.op).op;
        let has_reth = run.opcode.has_reth();
        let plain = matches!(op.operation, Operation::Send | Operation::Write)
            && matches!(self.service, Service::Rc | Service::Uc);
        if let Some((bth, behind)) = bytes.split_first_chunk_mut()
            && plain
        {
            wire::bth::Header {
                opcode: run.opcode,
                solicited: is_solicited(op, run),
                migrated: self.config.migrated,
                pkey: self.config.pkey,
                dest_qp: self.config.dest_qp,
                ack_req: run.ack_req(index),
                psn: run.psn(index),
                ..wire::bth::Header::default()
            }
            .emit(bth);
            if !has_reth {
                return wire::bth::LEN;
            }
            if let Some(reth) = behind.first_chunk_mut() {
                Reth { va: op.remote_addr, rkey: op.rkey, len: op.length }.emit(reth);
                return wire::bth::LEN + wire::reth::LEN;
            }
        }
        self.emit_all(*run, index, bytes)
    }

    #[inline(never)]
    fn emit_all(&self, run: Run, index: u32, bytes: &mut [u8]) -> usize {
        let headers = Headers { psn: run.psn(index), ack_req: run.ack_req(index), ..self.headers(&run) };
        headers.emit(bytes).expect("there is room for all headers")
    }

    /// The packet of a SEND or WRITE that has only one, without credits.
    #[inline(always)]
    fn only_packet(&self, entry: &QueuedOperation) -> Option<Run> {
        let (op, is_reliable) = (&entry.op, self.service.is_reliable());
        let opcode = Opcode::new(self.service.transport(), opcode(op.operation, Place::Only));
        (!is_reliable || self.room(entry.first).0 > 0).then_some(Run {
            first: entry.first,
            count: 1,
            opcode,
            asks: is_reliable,
            slot: op.slot,
            offset: 0,
            len: op.length,
            end: 1,
            ends: true,
        })
    }

    /// The headers of the first packet of `run`, which [`Requester::poll_run`] has just returned.
    /// The others differ from it in [`Run::psn`] and [`Run::ack_req`].
    #[inline]
    #[must_use]
    pub fn headers(&self, run: &Run) -> Headers {
        let op = &self.ops.at(self.cursor.op).op;
        let mut headers = Headers {
            opcode: run.opcode,
            psn: run.first,
            dest_qp: self.config.dest_qp,
            pkey: self.config.pkey,
            xrc_srq: op.xrc_srq,
            migrated: self.config.migrated,
            ack_req: run.ack_req(0),
            ..Headers::default()
        };
        headers.reth = Reth { va: op.remote_addr, rkey: op.rkey, len: op.length };
        if op.operation.is_read_or_atomic() {
            if op.operation == Operation::Read {
                let end = self.piece_end(op, self.cursor.packet);
                headers.reth.va = op.remote_addr.wrapping_add(run.offset.into());
                headers.reth.len = op.length.min(end << self.mtu_shift) - run.offset;
            }
            headers.feth = op.feth;
            headers.atomic =
                AtomicEth { va: op.remote_addr, rkey: op.rkey, swap_add: op.swap_add, compare: op.compare };
            return headers;
        }
        headers.imm = op.imm;
        headers.ieth = op.imm;
        headers.solicited = is_solicited(op, run);
        if self.service == Service::Ud {
            headers.dest_qp = op.dest.dest_qp;
            headers.deth = Deth { qkey: op.dest.qkey, src_qp: self.config.src_qp };
        }
        headers
    }

    /// Records that the packets before `end` are sent, of the operation that begins with number
    /// `first`. `whole`: these are all packets of the operation.
    #[inline]
    pub(crate) fn advance(&mut self, first: Psn, end: u32, whole: bool) {
        if self.cursor.high.is_before(first + end) {
            self.cursor.high = first + end;
        }
        if whole {
            self.cursor.op = self.cursor.op.wrapping_add(1);
            self.cursor.packet = 0;
        } else {
            self.cursor.packet = end;
        }
    }

    /// How many packet numbers an operation takes: at least one, or 0 if it is local.
    pub(crate) fn packets(&self, op: &SendOp) -> u32 {
        if op.operation.is_atomic() || op.operation.is_confirmed() {
            return 1;
        }
        if op.operation.is_local() {
            return 0;
        }
        (op.length >> self.mtu_shift) + u32::from(op.length & (self.config.mtu - 1) != 0) + u32::from(op.length == 0)
    }

    /// The end of the READ piece that contains packet `packet`, counted from the first. An atomic
    /// is one piece.
    pub(crate) fn piece_end(&self, op: &SendOp, packet: u32) -> u32 {
        let packets = self.packets(op);
        match packet.checked_div(self.config.read_piece) {
            Some(before) => packets.min((before + 1) * self.config.read_piece),
            None => packets,
        }
    }

    /// The offset and length of packet `packet` in a READ's answer, counted from the first.
    pub(crate) fn part(&self, op: &SendOp, packet: u32) -> (u32, u32) {
        let offset = packet << self.mtu_shift;
        (offset, (op.length - offset).min(self.config.mtu))
    }
}

impl RequesterConfig {
    /// Checks whether the operation can be sent at all.
    #[inline]
    pub(crate) fn admit(&self, service: Service, op: &SendOp) -> Result<(), (Status, Reason)> {
        // The common case.
        if matches!(op.operation, Operation::Send | Operation::Write) && service == Service::Rc && op.length <= self.mtu
        {
            return Ok(());
        }
        self.admit_any(service, op)
    }

    fn admit_any(&self, service: Service, op: &SendOp) -> Result<(), (Status, Reason)> {
        let operation = op.operation;
        let offered = match service {
            Service::Rc => true,
            Service::XrcIni => !operation.is_confirmed(),
            Service::Uc => !operation.is_read_or_atomic() && operation != Operation::SendInv,
            Service::Ud => matches!(operation, Operation::Send | Operation::SendImm),
            Service::XrcTgt => false,
        };
        if !offered {
            return Err((Status::LocQpOpErr, Reason::NotOffered { operation, service }));
        }
        let length = op.length;
        if service == Service::Ud && length > self.mtu {
            return Err((Status::LocLenErr, Reason::LongDatagram { length, mtu: self.mtu }));
        }
        if length > MAX_MESSAGE {
            return Err((Status::LocLenErr, Reason::TooLong { length, limit: MAX_MESSAGE }));
        }
        if operation.is_read_or_atomic() && self.max_rd_atomic == 0 {
            return Err((Status::LocQpOpErr, Reason::NoInitiatorDepth(operation)));
        }
        Ok(())
    }
}

/// Whether the packets of a SEND or WRITE have the solicited bit.
#[inline]
fn is_solicited(op: &SendOp, run: &Run) -> bool {
    op.solicited && run.opcode.place().ends() && op.operation != Operation::Write
}

/// The wire operation of a SEND or WRITE packet.
fn opcode(operation: Operation, place: Place) -> wire::Operation {
    use wire::Operation as W;
    let write = matches!(operation, Operation::Write | Operation::WriteImm);
    match (place, operation) {
        (Place::First, _) if write => W::WriteFirst,
        (Place::Middle, _) if write => W::WriteMiddle,
        (Place::First, _) => W::SendFirst,
        (Place::Middle, _) => W::SendMiddle,
        (Place::Last, Operation::Write) => W::WriteLast,
        (Place::Last, Operation::WriteImm) => W::WriteLastImm,
        (Place::Last, Operation::SendImm) => W::SendLastImm,
        (Place::Last, Operation::SendInv) => W::SendLastInvalidate,
        (Place::Last, _) => W::SendLast,
        (Place::Only, Operation::Write) => W::WriteOnly,
        (Place::Only, Operation::WriteImm) => W::WriteOnlyImm,
        (Place::Only, Operation::SendImm) => W::SendOnlyImm,
        (Place::Only, Operation::SendInv) => W::SendOnlyInvalidate,
        (Place::Only, _) => W::SendOnly,
    }
}
