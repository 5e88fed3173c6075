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
use wire::{Opcode, Operation, Psn, Qpn, Transport, pkey};

use crate::cell::{self, Path, Payload, flag};

/// A record of a lane, copied to private memory.
pub(crate) type Record = [u8; RECORD_MAX];

/// The offset of the headers.
const BTH: usize = 16;
/// The offset of the headers in a record with a place in the bulk area.
const BTH_OF_BULK: usize = BTH + 4;

const SEND_ONLY: u8 = Opcode::new(Transport::Rc, Operation::SendOnly).as_u8();
const WRITE_ONLY: u8 = Opcode::new(Transport::Rc, Operation::WriteOnly).as_u8();
const ACKNOWLEDGE: u8 = Opcode::new(Transport::Rc, Operation::Acknowledge).as_u8();

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const ACK_REQ: u8 = 0x80;
/// The syndrome of an ACK without credits.
const ACK: u8 = 31;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Send,
    Write { va: u64, rkey: u32, total: u32 },
    Ack { msn: u32 },
}

/// The P_Key of fast-path records for a QP, as the first word of their BTH has it. In the general
/// path, packets of limited members are accepted, too.
#[derive(Clone, Copy)]
pub(crate) struct Partition(u32);

impl Partition {
    /// The P_Key, and the padding and version of the headers, which must be 0.
    const MASK: u32 = 0xffff_3f00;

    /// The partition of a QP with the P_Key `own`.
    #[inline]
    pub(crate) fn of(own: u16) -> Self {
        match pkey::is_valid(own) {
            true => Self(u32::from((own | pkey::FULL).swap_bytes()) << 16),
            // No record matches.
            false => Self(u32::MAX),
        }
    }
}

/// A parsed fast-path record: a peer's claim, like the result of [`cell::decode`].
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

fn be32(record: &Record, at: usize) -> u32 {
    u32::from_be_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}

fn le32(record: &Record, at: usize) -> u32 {
    be32(record, at).swap_bytes()
}

/// The destination QP of a record that may be for the fast path.
#[inline]
pub(crate) fn destination(record: &Record) -> Option<u32> {
    let bth = match record[7] {
        0 => BTH,
        flag::BULK => BTH_OF_BULK,
        _ => return None,
    };
    Some(be32(record, bth + 4) & 0xff_ffff)
}

impl FastRecord {
    /// Parses a record of `bytes` bytes. Returns `None` if it is not for the fast path, is invalid,
    /// or is not of this partition.
    #[inline(always)]
    pub(crate) fn decode(record: &Record, bytes: usize, partition: Partition) -> Option<Self> {
        match record[7] {
            0 => Self::decode_at(record, bytes, BTH, None, partition),
            flag::BULK => Self::decode_bulk(record, bytes, partition),
            _ => None,
        }
    }

    /// Parses a record with its payload in the bulk area. A separate function, so that the common
    /// case stays short.
    #[inline(never)]
    fn decode_bulk(record: &Record, bytes: usize, partition: Partition) -> Option<Self> {
        Self::decode_at(record, bytes, BTH_OF_BULK, Some(le32(record, BTH)), partition)
    }

    /// Parses a record with its headers at `bth`, and its payload at `bulk` of the bulk area, if
    /// given.
    #[inline(always)]
    fn decode_at(record: &Record, bytes: usize, bth: usize, bulk: Option<u32>, partition: Partition) -> Option<Self> {
        if le32(record, bth) & Partition::MASK != partition.0 {
            return None;
        }
        let behind = bth + wire::bth::LEN;
        let (at, what) = match record[bth] {
            SEND_ONLY => (behind, What::Send),
            WRITE_ONLY => {
                let va = u64::from(be32(record, behind)) << 32 | u64::from(be32(record, behind + 4));
                let (rkey, total) = (be32(record, behind + 8), be32(record, behind + 12));
                (behind + wire::reth::LEN, What::Write { va, rkey, total })
            }
            ACKNOWLEDGE if record[behind] == ACK => {
                (behind + wire::aeth::LEN, What::Ack { msn: be32(record, behind) & 0xff_ffff })
            }
            _ => return None,
        };
        let len = u16::from_le_bytes([record[12], record[13]]);
        let payload = match bulk {
            Some(offset) => Payload::Bulk(offset),
            None if at + usize::from(len) <= bytes => Payload::Inline(at),
            None => return None,
        };
        let number = be32(record, bth + 8);
        Some(Self {
            path: Path {
                device: record[0],
                port: record[1],
                slid: u16::from_le_bytes([record[2], record[3]]),
                dlid: u16::from_le_bytes([record[4], record[5]]),
                sl: record[6],
                mtu: record[14],
            },
            src_qp: le32(record, 8) & 0xff_ffff,
            dest_qp: be32(record, bth + 4) & 0xff_ffff,
            psn: Psn::new(number & 0xff_ffff),
            solicited: record[bth + 1] & SOLICITED != 0,
            migrated: record[bth + 1] & MIGRATED != 0,
            ack_req: number >> 31 != 0,
            len,
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

    /// Writes the headers at `bth`, with the packet's PSN and solicited flag.
    #[inline(always)]
    fn headers<const N: usize>(
        &self,
        bth: usize,
        (psn, solicited): (Psn, bool),
        what: What,
        record: &mut [u8; N],
    ) -> usize {
        let behind = bth + wire::bth::LEN;
        let (opcode, ack_req) = match what {
            What::Send => (SEND_ONLY, ACK_REQ),
            What::Write { .. } => (WRITE_ONLY, ACK_REQ),
            What::Ack { .. } => (ACKNOWLEDGE, 0),
        };
        let [high, low] = self.pkey.to_be_bytes();
        let flags = if solicited { SOLICITED } else { 0 } | if self.migrated { MIGRATED } else { 0 };
        record[bth..bth + 4].copy_from_slice(&[opcode, flags, high, low]);
        record[bth + 4..bth + 8].copy_from_slice(&self.dest_qp.value().to_be_bytes());
        record[bth + 8..behind].copy_from_slice(&(u32::from(ack_req) << 24 | psn.value()).to_be_bytes());
        match what {
            What::Send => {}
            What::Write { va, rkey, total } => {
                record[behind..behind + 8].copy_from_slice(&va.to_be_bytes());
                record[behind + 8..behind + 12].copy_from_slice(&rkey.to_be_bytes());
                record[behind + 12..behind + wire::reth::LEN].copy_from_slice(&total.to_be_bytes());
            }
            What::Ack { msn } => {
                let word = u32::from(ACK) << 24 | msn & 0xff_ffff;
                record[behind..behind + wire::aeth::LEN].copy_from_slice(&word.to_be_bytes());
            }
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
        BTH + wire::bth::LEN + self.second_header() + len as usize
    }
}

#[cfg(test)]
mod tests;
