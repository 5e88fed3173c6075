//! The short way of the most ordinary messages on a lane: a SEND or WRITE of one packet in one cell, and the ACK for it, while nobody
//! captures, nothing goes wrong and nothing waits. What they look like is here; the sending side is in `plain/sending.rs`, the receiving
//! side in `plain/taking.rs`.
//!
//! It comes to the same as the general way of `transmit.rs` and `receive.rs`, which whatever is not plain takes: each looks first and changes
//! nothing before it knows. So it explains no error, and needs none of what an error would be explained with. Principal type: [`Plain`].

mod sending;
pub(crate) mod taking;

use shm::memory::CELL_DATA;
use wire::{Opcode, Operation, Psn, Qpn, Transport};

use crate::cell::{self, Path};

/// One cell of a lane, as it is copied.
pub(crate) type Record = [u8; CELL_DATA];

/// Where the headers begin.
const BTH: usize = 16;
/// Where they end: the payload of a SEND begins, or the second header.
const BEHIND: usize = BTH + wire::bth::LEN;
/// The same of a WRITE.
const BEHIND_RETH: usize = BEHIND + wire::reth::LEN;

const SEND_ONLY: u8 = Opcode::new(Transport::Rc, Operation::SendOnly).as_u8();
const WRITE_ONLY: u8 = Opcode::new(Transport::Rc, Operation::WriteOnly).as_u8();
const ACKNOWLEDGE: u8 = Opcode::new(Transport::Rc, Operation::Acknowledge).as_u8();

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const ACK_REQ: u8 = 0x80;
/// The syndrome of an ACK that says nothing about credits.
const ACK: u8 = 31;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Send,
    Write { va: u64, rkey: u32, total: u32 },
    Ack { msn: u32 },
}

/// A plain record, taken apart: a peer's claim, as [`cell::decode`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) path: Path,
    pub(crate) src_qp: u32,
    pub(crate) dest_qp: u32,
    pub(crate) psn: Psn,
    pub(crate) solicited: bool,
    pub(crate) migrated: bool,
    pub(crate) ack_req: bool,
    /// Bytes of payload, and where it begins.
    pub(crate) len: usize,
    pub(crate) at: usize,
    pub(crate) what: What,
}

fn be32(record: &Record, at: usize) -> u32 {
    u32::from_be_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}

fn le32(record: &Record, at: usize) -> u32 {
    be32(record, at).swap_bytes()
}

impl Plain {
    /// Takes a record apart. `None`: it is not plain, or not one that a sound peer writes.
    #[inline]
    pub(crate) fn decode(record: &Record) -> Option<Self> {
        // Neither flags of a lane, nor padding, nor another version of the headers.
        if record[7] != 0 || record[BTH + 1] & 0x3f != 0 {
            return None;
        }
        let (at, what) = match record[BTH] {
            SEND_ONLY => (BEHIND, What::Send),
            WRITE_ONLY => {
                let va = u64::from(be32(record, BEHIND)) << 32 | u64::from(be32(record, BEHIND + 4));
                let (rkey, total) = (be32(record, BEHIND + 8), be32(record, BEHIND + 12));
                (BEHIND_RETH, What::Write { va, rkey, total })
            }
            ACKNOWLEDGE if record[BEHIND] == ACK => {
                (BEHIND + wire::aeth::LEN, What::Ack { msn: be32(record, BEHIND) & 0xff_ffff })
            }
            _ => return None,
        };
        let len = usize::from(u16::from_le_bytes([record[12], record[13]]));
        if at + len > CELL_DATA {
            return None;
        }
        let number = be32(record, BTH + 8);
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
            dest_qp: be32(record, BTH + 4) & 0xff_ffff,
            psn: Psn::new(number & 0xff_ffff),
            solicited: record[BTH + 1] & SOLICITED != 0,
            migrated: record[BTH + 1] & MIGRATED != 0,
            ack_req: number >> 31 != 0,
            len,
            at,
            what,
        })
    }
}

/// What all plain records of one QP begin with.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) path: Path,
    pub(crate) src_qp: Qpn,
    pub(crate) dest_qp: Qpn,
    pub(crate) pkey: u16,
    pub(crate) migrated: bool,
}

impl Envelope {
    /// Writes everything before the payload; answers where that begins.
    #[inline]
    pub(crate) fn encode(&self, psn: Psn, solicited: bool, len: u16, what: What, record: &mut Record) -> usize {
        cell::head(record, self.path, 0, self.src_qp, len);
        let (opcode, ack_req) = match what {
            What::Send => (SEND_ONLY, ACK_REQ),
            What::Write { .. } => (WRITE_ONLY, ACK_REQ),
            What::Ack { .. } => (ACKNOWLEDGE, 0),
        };
        let [high, low] = self.pkey.to_be_bytes();
        let flags = if solicited { SOLICITED } else { 0 } | if self.migrated { MIGRATED } else { 0 };
        record[BTH..BTH + 4].copy_from_slice(&[opcode, flags, high, low]);
        record[BTH + 4..BTH + 8].copy_from_slice(&self.dest_qp.value().to_be_bytes());
        record[BTH + 8..BEHIND].copy_from_slice(&(u32::from(ack_req) << 24 | psn.value()).to_be_bytes());
        match what {
            What::Send => BEHIND,
            What::Write { va, rkey, total } => {
                record[BEHIND..BEHIND + 8].copy_from_slice(&va.to_be_bytes());
                record[BEHIND + 8..BEHIND + 12].copy_from_slice(&rkey.to_be_bytes());
                record[BEHIND + 12..BEHIND_RETH].copy_from_slice(&total.to_be_bytes());
                BEHIND_RETH
            }
            What::Ack { msn } => {
                let word = u32::from(ACK) << 24 | msn & 0xff_ffff;
                record[BEHIND..BEHIND + wire::aeth::LEN].copy_from_slice(&word.to_be_bytes());
                BEHIND + wire::aeth::LEN
            }
        }
    }
}

/// Whether so many bytes fit behind the headers.
#[inline]
pub(crate) fn fits(what: What, len: u32) -> bool {
    let at = if what == What::Send { BEHIND } else { BEHIND_RETH };
    len as usize <= CELL_DATA - at
}

#[cfg(test)]
mod tests;
