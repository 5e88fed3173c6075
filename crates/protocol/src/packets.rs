//! The packets of a request: how many there are, and what each of them contains. Adds to
//! [`Requester`]. When a packet is sent is decided in [`crate::requester`]. IBA 9.4 (operations),
//! 9.7.2 (numbering), 9.7.5.1.2 (asking for acknowledgement).

use crate::operation::{MAX_MESSAGE, Operation, SendOp, Transmit};
use crate::qp::Service;
use crate::reason::Reason;
use crate::requester::{Requester, RequesterConfig};
use crate::ring::Entry;
use crate::status::Status;
use wire::{AtomicEth, Deth, Headers, Opcode, Place, Psn, Reth};

impl Requester {
    /// The request packet of an atomic, an ATOMIC WRITE, a FLUSH, or of the next piece of a READ.
    /// For a piece that was answered in part, the packet asks for the rest.
    pub(crate) fn ask(&mut self, entry: &Entry) -> Transmit {
        let (op, skip) = (&entry.op, self.cursor.packet);
        let (packets, end) = (self.packets(op), self.piece_end(op, skip));
        let offset = skip << self.mtu_shift;
        let operation = match op.operation {
            Operation::CmpSwap => wire::Operation::CompareSwap,
            Operation::FetchAdd => wire::Operation::FetchAdd,
            Operation::AtomicWrite => wire::Operation::AtomicWrite,
            Operation::Flush => wire::Operation::Flush,
            _ => wire::Operation::ReadRequest,
        };
        let mut headers = self.headers(op, operation, entry.first + skip);
        let whole = op.operation.is_confirmed();
        let len = if whole { op.length } else { op.length.min(end << self.mtu_shift) - offset };
        headers.feth = op.feth;
        headers.reth = Reth { va: op.remote_addr.wrapping_add(offset.into()), rkey: op.rkey, len };
        headers.atomic = AtomicEth { va: op.remote_addr, rkey: op.rkey, swap_add: op.swap_add, compare: op.compare };
        // Each packet of the answer takes a number. The request reserves all of them.
        self.advance(entry.first, end, end == packets);
        self.cursor.reads += 1;
        // Its answer also acknowledges what was sent before.
        self.cursor.unasked = 0;
        let payload = if op.operation == Operation::AtomicWrite { len } else { 0 };
        Transmit { headers, slot: op.slot, offset, len: payload }
    }

    /// The next packet of a SEND or WRITE.
    pub(crate) fn carry(&mut self, entry: &Entry) -> Transmit {
        let (op, packet) = (&entry.op, self.cursor.packet);
        let offset = packet << self.mtu_shift;
        let len = (op.length - offset).min(self.config.mtu);
        let (first, last) = (packet == 0, offset + len == op.length);
        let psn = entry.first + packet;
        let mut headers = self.headers(op, opcode(op.operation, Place::of(first, last)), psn);
        headers.imm = op.imm;
        headers.ieth = op.imm;
        headers.reth = Reth { va: op.remote_addr, rkey: op.rkey, len: op.length };
        headers.solicited = op.solicited && last && op.operation != Operation::Write;
        if self.service == Service::Ud {
            headers.dest_qp = op.dest.dest_qp;
            headers.deth = Deth { qkey: op.dest.qkey, src_qp: self.config.src_qp };
        }
        self.cursor.unasked += 1;
        headers.ack_req = self.service.is_reliable() && (last || self.must_ask(psn) || !self.has_credit(entry));
        if headers.ack_req {
            self.cursor.unasked = 0;
        }
        self.advance(entry.first, packet + 1, last);
        Transmit { headers, slot: op.slot, offset, len }
    }

    fn headers(&self, op: &SendOp, operation: wire::Operation, psn: Psn) -> Headers {
        Headers {
            opcode: Opcode::new(self.service.transport(), operation),
            psn,
            dest_qp: self.config.dest_qp,
            pkey: self.config.pkey,
            xrc_srq: op.xrc_srq,
            migrated: self.config.migrated,
            ..Headers::default()
        }
    }

    /// Records that the packets before `end` are sent, of the operation that begins with number
    /// `first`. `whole`: these are all packets of the operation.
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
    pub(crate) fn admit(&self, service: Service, op: &SendOp) -> Result<(), (Status, Reason)> {
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
