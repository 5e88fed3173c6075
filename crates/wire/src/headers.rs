//! All headers of one transport packet in a flat struct, which the transport state machines read
//! and write. The opcode decides which headers are present, and their order. Not the payload, the
//! padding bytes or the ICRC. Principal type: [`Headers`].

use crate::error::Error;
use crate::number::{Psn, Qpn};
use crate::opcode::{Opcode, Operation};
use crate::{aeth, atomic_ack, atomic_eth, bth, deth, feth, ieth, immdt, reth, xrceth};
use std::fmt;

/// The longest stack: XRC compare-and-swap. Every packet's headers fit into this many bytes.
pub const MAX_LEN: usize = bth::LEN + xrceth::LEN + atomic_eth::LEN;

/// The headers of one transport packet. `emit` ignores fields whose header the opcode does not
/// have; `parse` sets them to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The packet's type.
    pub opcode: Opcode,
    /// The completion at the receiver is solicited.
    pub solicited: bool,
    /// The packet requests an acknowledgement.
    pub ack_req: bool,
    /// Path migration: set in the migrated state.
    pub migrated: bool,
    /// Bytes of padding behind the payload.
    pub pad: u8,
    /// The packet sequence number.
    pub psn: Psn,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// The partition.
    pub pkey: u16,
    /// ImmDt: immediate data.
    pub imm: u32,
    /// IETH: the key to invalidate.
    pub ieth: u32,
    /// XRCETH: the shared receive queue.
    pub xrc_srq: u32,
    /// FETH: what a FLUSH waits for.
    pub feth: feth::Header,
    /// RETH: the target of an RDMA operation.
    pub reth: reth::Header,
    /// AtomicETH: the parameters of an atomic operation.
    pub atomic: atomic_eth::Header,
    /// AETH: the acknowledgement.
    pub aeth: aeth::Header,
    /// AtomicAckETH: the word's old value.
    pub atomic_ack: u64,
    /// DETH: the sender of a datagram.
    pub deth: deth::Header,
}

impl Headers {
    /// Bytes of these headers.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.opcode.headers_len()
    }

    /// Always false: every packet has a BTH.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Parses the headers. Behind them, after [`Headers::len`] bytes, are payload, padding and
    /// ICRC.
    ///
    /// # Errors
    /// The bytes end too early, or softhca does not support the BTH.
    pub fn parse(bytes: &[u8]) -> Result<Headers, Error> {
        let mut rest = bytes;
        let bth = bth::Header::parse(take(&mut rest, "BTH")?)?;
        let opcode = bth.opcode;
        let mut headers = Headers {
            opcode,
            solicited: bth.solicited,
            ack_req: bth.ack_req,
            migrated: bth.migrated,
            pad: bth.pad,
            psn: bth.psn,
            dest_qp: bth.dest_qp,
            pkey: bth.pkey,
            ..Headers::default()
        };
        if opcode.has_deth() {
            headers.deth = deth::Header::parse(take(&mut rest, "DETH")?);
        }
        if opcode.has_xrceth() {
            headers.xrc_srq = xrceth::Header::parse(take(&mut rest, "XRCETH")?).0;
        }
        if opcode.has_reth() {
            if opcode.is_flush() {
                headers.feth = feth::Header::parse(take(&mut rest, "FETH")?);
            }
            headers.reth = reth::Header::parse(take(&mut rest, "RETH")?);
        }
        if opcode.is_atomic() {
            headers.atomic = atomic_eth::Header::parse(take(&mut rest, "AtomicETH")?);
        }
        if opcode.has_aeth() {
            headers.aeth = aeth::Header::parse(take(&mut rest, "AETH")?);
        }
        if opcode.operation == Operation::AtomicAcknowledge {
            headers.atomic_ack = atomic_ack::Header::parse(take(&mut rest, "AtomicAckETH")?).0;
        }
        if opcode.has_immdt() {
            headers.imm = immdt::Header::parse(take(&mut rest, "ImmDt")?).0;
        }
        if opcode.has_ieth() {
            headers.ieth = ieth::Header::parse(take(&mut rest, "IETH")?).0;
        }
        Ok(headers)
    }

    /// Encodes the headers at the beginning of `bytes` and returns their length.
    ///
    /// # Errors
    /// `bytes` is shorter than [`Headers::len`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        let len = self.len();
        let room = bytes.len();
        let mut rest = bytes.get_mut(..len).ok_or(Error::NoRoom { needed: len, room })?;
        let opcode = self.opcode;
        let bth = bth::Header {
            opcode,
            solicited: self.solicited,
            migrated: self.migrated,
            pad: self.pad,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            dest_qp: self.dest_qp,
            ack_req: self.ack_req,
            psn: self.psn,
        };
        bth.emit(give(&mut rest)?);
        if len == bth::LEN {
            return Ok(len);
        }
        if opcode.has_deth() {
            self.deth.emit(give(&mut rest)?);
        }
        if opcode.has_xrceth() {
            xrceth::Header(self.xrc_srq).emit(give(&mut rest)?);
        }
        if opcode.has_reth() {
            if opcode.is_flush() {
                self.feth.emit(give(&mut rest)?);
            }
            self.reth.emit(give(&mut rest)?);
        }
        if opcode.is_atomic() {
            self.atomic.emit(give(&mut rest)?);
        }
        if opcode.has_aeth() {
            self.aeth.emit(give(&mut rest)?);
        }
        if opcode.operation == Operation::AtomicAcknowledge {
            atomic_ack::Header(self.atomic_ack).emit(give(&mut rest)?);
        }
        if opcode.has_immdt() {
            immdt::Header(self.imm).emit(give(&mut rest)?);
        }
        if opcode.has_ieth() {
            ieth::Header(self.ieth).emit(give(&mut rest)?);
        }
        Ok(len)
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8], header: &'static str) -> Result<&'a [u8; N], Error> {
    let left = rest.len();
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(Error::Truncated { header, needed: N, left })?;
    *rest = tail;
    Ok(head)
}

fn give<'a, const N: usize>(rest: &mut &'a mut [u8]) -> Result<&'a mut [u8; N], Error> {
    let room = rest.len();
    let (head, tail) = std::mem::take(rest).split_first_chunk_mut::<N>().ok_or(Error::NoRoom { needed: N, room })?;
    *rest = tail;
    Ok(head)
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opcode = self.opcode;
        write!(f, "{opcode} to QP {} psn {}", self.dest_qp, self.psn)?;
        if self.ack_req {
            f.write_str(" ack-req")?;
        }
        if self.solicited {
            f.write_str(" solicited")?;
        }
        if opcode.has_deth() {
            write!(f, ", {}", self.deth)?;
        }
        if opcode.has_xrceth() {
            write!(f, ", {}", xrceth::Header(self.xrc_srq))?;
        }
        if opcode.is_flush() {
            write!(f, ", {}", self.feth)?;
        }
        if opcode.has_reth() {
            write!(f, ", {}", self.reth)?;
        }
        if opcode.is_atomic() {
            write!(f, ", {}", self.atomic)?;
        }
        if opcode.has_aeth() {
            write!(f, ", {}", self.aeth)?;
        }
        if opcode.operation == Operation::AtomicAcknowledge {
            write!(f, ", {}", atomic_ack::Header(self.atomic_ack))?;
        }
        if opcode.has_immdt() {
            write!(f, ", {}", immdt::Header(self.imm))?;
        }
        if opcode.has_ieth() {
            write!(f, ", {}", ieth::Header(self.ieth))?;
        }
        Ok(())
    }
}
