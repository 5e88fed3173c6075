//! The fast path of the most common messages on a lane: a SEND or WRITE of one packet, and the ACK
//! for it, while no capture runs, no error occurs and nothing waits. This file has the record
//! format; the sending side is in `fast_path/sending.rs`, the receiving side in
//! `fast_path/receiving.rs`.
//!
//! The fast path has the same result as the general path of `transmit.rs` and `receive.rs`, which
//! handles everything else. It checks first, and changes nothing before it knows that it can
//! finish. So it explains no error, and needs no data for explanations. Principal type:
//! [`FastRecord`].

pub(crate) mod receiving;
mod sending;

use shm::RECORD_MAX;
use wire::{Aeth, Opcode, Operation, Psn, Qpn, Reth, Syndrome, Transport, bth, pkey};

use crate::cell::{self, Head, Path, Payload, flag};

/// A record of a lane, copied to private memory.
pub(crate) type Record = [u8; RECORD_MAX];

/// The offset of the headers.
const BTH: usize = 16;
/// The offset of the headers in a record with a place in the bulk area.
const BTH_OF_BULK: usize = BTH + 4;

const SEND_ONLY: Opcode = Opcode::new(Transport::Rc, Operation::SendOnly);
const WRITE_ONLY: Opcode = Opcode::new(Transport::Rc, Operation::WriteOnly);
const ACKNOWLEDGE: Opcode = Opcode::new(Transport::Rc, Operation::Acknowledge);

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Send,
    Write { va: u64, rkey: u32, total: u32 },
    Ack { msn: u32 },
}

/// The P_Key of fast-path records for a QP. The general path also accepts packets of limited
/// members.
#[derive(Clone, Copy)]
pub(crate) struct Partition(u32);

impl Partition {
    /// The partition of a QP with the P_Key `own`. If that names no partition, no record matches.
    #[inline]
    pub(crate) fn of(own: u16) -> Self {
        Self(if pkey::is_valid(own) { u32::from(own | pkey::FULL) } else { u32::MAX })
    }
}

/// A parsed fast-path record. It is untrusted, like the result of [`cell::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FastRecord {
    pub(crate) path: Path,
    pub(crate) src_qp: u32,
    pub(crate) dest_qp: u32,
    pub(crate) psn: Psn,
    pub(crate) solicited: bool,
    pub(crate) migrated: bool,
    pub(crate) ack_req: bool,
    /// The length of the payload.
    pub(crate) len: u16,
    pub(crate) payload: Payload,
    pub(crate) what: What,
}

/// The header at `at`.
#[inline(always)]
fn header<const N: usize>(record: &Record, at: usize) -> &[u8; N] {
    record[at..].first_chunk().expect("a record has room for every header")
}

/// Room for the header at `at`.
#[inline(always)]
fn header_mut<const N: usize, const R: usize>(record: &mut [u8; R], at: usize) -> &mut [u8; N] {
    record[at..].first_chunk_mut().expect("a record has room for every header")
}

/// The destination QP of a record that may be for the fast path.
#[inline]
pub(crate) fn destination(record: &Record) -> Option<u32> {
    let bth = match Head(header(record, 0)).flags() {
        0 => BTH,
        flag::BULK => BTH_OF_BULK,
        _ => return None,
    };
    Some(bth::View(header(record, bth)).dest_qp().value())
}

impl FastRecord {
    /// Parses a record of `bytes` bytes. Returns `None` if it is not for the fast path, is invalid,
    /// or is not of this partition.
    #[inline(always)]
    pub(crate) fn decode(record: &Record, bytes: usize, partition: Partition) -> Option<Self> {
        match Head(header(record, 0)).flags() {
            0 => Self::decode_at(record, bytes, BTH, None, partition),
            flag::BULK => Self::decode_bulk(record, bytes, partition),
            _ => None,
        }
    }

    /// Parses a record with its payload in the bulk area. A separate function, so that the common
    /// case stays short.
    #[inline(never)]
    fn decode_bulk(record: &Record, bytes: usize, partition: Partition) -> Option<Self> {
        Self::decode_at(record, bytes, BTH_OF_BULK, Some(u32::from_le_bytes(*header(record, BTH))), partition)
    }

    /// Parses a record with its headers at `start`, and its payload at `bulk` of the bulk area, if
    /// given.
    #[inline(always)]
    fn decode_at(record: &Record, bytes: usize, start: usize, bulk: Option<u32>, partition: Partition) -> Option<Self> {
        let (head, view) = (Head(header(record, 0)), bth::View(header(record, start)));
        if view.pkey_pad_version() != partition.0 {
            return None;
        }
        let behind = start + bth::LEN;
        let (at, what) = if view.opcode() == SEND_ONLY.as_u8() {
            (behind, What::Send)
        } else if view.opcode() == WRITE_ONLY.as_u8() {
            let Reth { va, rkey, len: total } = Reth::parse(header(record, behind));
            (behind + wire::reth::LEN, What::Write { va, rkey, total })
        } else if view.opcode() == ACKNOWLEDGE.as_u8() && record[behind] == Syndrome::ACK.as_u8() {
            (behind + wire::aeth::LEN, What::Ack { msn: Aeth::parse(header(record, behind)).msn })
        } else {
            return None;
        };
        let payload = match bulk {
            Some(offset) => Payload::Bulk(offset),
            None if at + usize::from(head.len()) <= bytes => Payload::Inline(at),
            None => return None,
        };
        Some(Self {
            path: head.path(),
            src_qp: head.src_qp().value(),
            dest_qp: view.dest_qp().value(),
            psn: view.psn(),
            solicited: view.solicited(),
            migrated: view.migrated(),
            ack_req: view.ack_req(),
            len: head.len(),
            payload,
            what,
        })
    }
}

/// How many messages of a QP have taken the fast path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Messages sent.
    pub sent: u64,
    /// Messages and ACKs received.
    pub taken: u64,
}

/// The fields that all fast-path records of one QP share.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) path: Path,
    pub(crate) src_qp: Qpn,
    pub(crate) dest_qp: Qpn,
    pub(crate) pkey: u16,
    pub(crate) migrated: bool,
}

impl Envelope {
    /// Writes everything before the payload; returns the offset of the payload.
    #[inline]
    pub(crate) fn encode<const N: usize>(
        &self,
        numbers: (Psn, bool),
        len: u16,
        what: What,
        record: &mut [u8; N],
    ) -> usize {
        cell::head(record, self.path, 0, self.src_qp, len);
        self.headers(BTH, numbers, what, record)
    }

    /// Writes everything before the payload of a record whose payload is in the bulk area.
    pub(crate) fn encode_bulk<const N: usize>(
        &self,
        numbers: (Psn, bool),
        len: u16,
        what: What,
        offset: u32,
        record: &mut [u8; N],
    ) -> usize {
        cell::head(record, self.path, flag::BULK, self.src_qp, len);
        record[BTH..BTH_OF_BULK].copy_from_slice(&offset.to_le_bytes());
        self.headers(BTH_OF_BULK, numbers, what, record)
    }

    /// Writes the headers at `start`, with the packet's PSN and solicited flag.
    #[inline(always)]
    fn headers<const N: usize>(
        &self,
        start: usize,
        (psn, solicited): (Psn, bool),
        what: What,
        record: &mut [u8; N],
    ) -> usize {
        let (opcode, ack_req) = match what {
            What::Send => (SEND_ONLY, true),
            What::Write { .. } => (WRITE_ONLY, true),
            What::Ack { .. } => (ACKNOWLEDGE, false),
        };
        let Self { dest_qp, pkey, migrated, .. } = *self;
        let header = bth::Header { opcode, solicited, migrated, pkey, dest_qp, ack_req, psn, ..bth::Header::default() };
        header.emit(header_mut(record, start));
        let behind = start + bth::LEN;
        match what {
            What::Send => {}
            What::Write { va, rkey, total } => Reth { va, rkey, len: total }.emit(header_mut(record, behind)),
            What::Ack { msn } => Aeth { syndrome: Syndrome::ACK, msn }.emit(header_mut(record, behind)),
        }
        behind + what.second_header()
    }
}

impl What {
    /// The length of the headers after the BTH.
    #[inline]
    fn second_header(self) -> usize {
        match self {
            What::Send => 0,
            What::Write { .. } => wire::reth::LEN,
            What::Ack { .. } => wire::aeth::LEN,
        }
    }

    /// The length of a record with `len` bytes of inline payload.
    #[inline]
    pub(crate) fn record_with(self, len: u32) -> usize {
        BTH + bth::LEN + self.second_header() + len as usize
    }
}

#[cfg(test)]
mod tests;
