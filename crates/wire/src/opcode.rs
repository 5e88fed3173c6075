//! The opcode of a transport packet: its transport and its operation, which also say which headers
//! follow. Not how a queue pair handles it. Principal type: [`Opcode`]. IBA 9.2.1.
//!
//! ```text
//!   7 6 5   4 3 2 1 0
//!  transport  operation      RC 0x00, UC 0x20, UD 0x60, XRC 0xa0
//! ```
//! RD (0x40), the congestion notification packet (0x81) and the manufacturers' range are not
//! opcodes here. FLUSH and ATOMIC WRITE exist on RC only.

use crate::{aeth, atomic_ack, atomic_eth, bth, deth, feth, ieth, immdt, reth, xrceth};
use std::fmt;

/// The transport service, in the opcode's upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0x00,
    /// Unreliable connection.
    Uc = 0x20,
    /// Unreliable datagram.
    Ud = 0x60,
    /// Extended reliable connection.
    Xrc = 0xa0,
}

/// The operation, in the opcode's lower five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the IBA's own names")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the IBA's own names")]
pub enum Place {
    First,
    Middle,
    Last,
    Only,
}

impl Place {
    /// The place of a packet that begins its message or not, and ends it or not.
    #[must_use]
    pub const fn of(first: bool, last: bool) -> Place {
        match (first, last) {
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
            (true, true) => Place::Only,
        }
    }

    /// First or only.
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self, Place::First | Place::Only)
    }

    /// Last or only.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Place::Last | Place::Only)
    }
}

/// A transport and one of its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// The transport service.
    pub transport: Transport,
    /// The operation.
    pub operation: Operation,
}

/// The all-zero opcode: RC, first packet of a SEND.
impl Default for Opcode {
    fn default() -> Opcode {
        Opcode::new(Transport::Rc, Operation::SendFirst)
    }
}

impl Opcode {
    /// Combines a transport and an operation. Not every pair exists on the wire: see
    /// [`Opcode::from_u8`].
    #[must_use]
    pub const fn new(transport: Transport, operation: Operation) -> Opcode {
        Opcode { transport, operation }
    }

    /// The opcode of a byte, or `None` if the byte is reserved or unsupported.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<Opcode> {
        use Operation as O;
        let transport = match byte & 0xe0 {
            0x00 => Transport::Rc,
            0x20 => Transport::Uc,
            0x60 => Transport::Ud,
            0xa0 => Transport::Xrc,
            _ => return None,
        };
        let operation = match byte & 0x1f {
            0x00 => O::SendFirst,
            0x01 => O::SendMiddle,
            0x02 => O::SendLast,
            0x03 => O::SendLastImm,
            0x04 => O::SendOnly,
            0x05 => O::SendOnlyImm,
            0x06 => O::WriteFirst,
            0x07 => O::WriteMiddle,
            0x08 => O::WriteLast,
            0x09 => O::WriteLastImm,
            0x0a => O::WriteOnly,
            0x0b => O::WriteOnlyImm,
            0x0c => O::ReadRequest,
            0x0d => O::ReadResponseFirst,
            0x0e => O::ReadResponseMiddle,
            0x0f => O::ReadResponseLast,
            0x10 => O::ReadResponseOnly,
            0x11 => O::Acknowledge,
            0x12 => O::AtomicAcknowledge,
            0x13 => O::CompareSwap,
            0x14 => O::FetchAdd,
            0x16 => O::SendLastInvalidate,
            0x17 => O::SendOnlyInvalidate,
            0x1c => O::Flush,
            0x1d => O::AtomicWrite,
            _ => return None,
        };
        let exists = match transport {
            Transport::Rc => true,
            Transport::Xrc => (operation as u8) <= O::SendOnlyInvalidate as u8,
            Transport::Uc => (operation as u8) <= O::WriteOnlyImm as u8,
            Transport::Ud => matches!(operation, O::SendOnly | O::SendOnlyImm),
        };
        if exists { Some(Opcode { transport, operation }) } else { None }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.transport as u8 | self.operation as u8
    }

    /// Bytes of the headers of such a packet, from the BTH to the last one.
    #[inline]
    #[must_use]
    pub const fn headers_len(self) -> usize {
        HEADERS_LEN[self.as_u8() as usize] as usize
    }

    /// Whether the packet is a response. Responses go to the requester of the destination queue
    /// pair, all other packets to its responder.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self.operation as u8, 0x0d..=0x12)
    }

    /// The packet's place in its message. A request or response of one packet is the only packet.
    #[must_use]
    pub const fn place(self) -> Place {
        use Operation as O;
        match self.operation {
            O::SendFirst | O::WriteFirst | O::ReadResponseFirst => Place::First,
            O::SendMiddle | O::WriteMiddle | O::ReadResponseMiddle => Place::Middle,
            O::SendLast | O::SendLastImm | O::SendLastInvalidate => Place::Last,
            O::WriteLast | O::WriteLastImm | O::ReadResponseLast => Place::Last,
            O::SendOnly | O::SendOnlyImm | O::SendOnlyInvalidate => Place::Only,
            O::WriteOnly | O::WriteOnlyImm | O::ReadResponseOnly => Place::Only,
            O::ReadRequest | O::CompareSwap | O::FetchAdd | O::Flush | O::AtomicWrite => Place::Only,
            O::Acknowledge | O::AtomicAcknowledge => Place::Only,
        }
    }

    /// Whether the packet is part of a SEND of any kind.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(self.operation as u8, 0x00..=0x05 | 0x16..=0x17)
    }

    /// Whether the packet is part of an RDMA WRITE of any kind.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self.operation as u8, 0x06..=0x0b)
    }

    /// Whether the packet is a compare-and-swap or fetch-and-add request.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// Whether the packet is an ATOMIC WRITE.
    #[must_use]
    pub const fn is_atomic_write(self) -> bool {
        matches!(self.operation, Operation::AtomicWrite)
    }

    /// Whether the packet is a FLUSH, whose own header comes before the RDMA header.
    #[must_use]
    pub const fn is_flush(self) -> bool {
        matches!(self.operation, Operation::Flush)
    }

    /// Whether the packet is an RDMA READ request.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(self.operation, Operation::ReadRequest)
    }

    /// Whether the packet is part of an RDMA READ response.
    #[must_use]
    pub const fn is_read_response(self) -> bool {
        matches!(self.operation as u8, 0x0d..=0x10)
    }

    /// Whether bytes of a message follow the headers.
    #[must_use]
    pub const fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_read_response() || self.is_atomic_write()
    }

    /// Whether immediate data follows.
    #[must_use]
    pub const fn has_immdt(self) -> bool {
        use Operation as O;
        matches!(self.operation, O::SendLastImm | O::SendOnlyImm | O::WriteLastImm | O::WriteOnlyImm)
    }

    /// Whether a key to invalidate follows.
    #[must_use]
    pub const fn has_ieth(self) -> bool {
        matches!(self.operation, Operation::SendLastInvalidate | Operation::SendOnlyInvalidate)
    }

    /// Whether an RDMA header follows.
    #[must_use]
    pub const fn has_reth(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::WriteFirst | O::WriteOnly | O::WriteOnlyImm | O::ReadRequest | O::Flush | O::AtomicWrite
        )
    }

    /// Whether an acknowledgement header follows. The middle packets of a READ response have none.
    #[must_use]
    pub const fn has_aeth(self) -> bool {
        self.is_response() && !matches!(self.operation, Operation::ReadResponseMiddle)
    }

    /// Whether a datagram header follows.
    #[must_use]
    pub const fn has_deth(self) -> bool {
        matches!(self.transport, Transport::Ud)
    }

    /// Whether an XRC header follows: every XRC request has one, no response has.
    #[must_use]
    pub const fn has_xrceth(self) -> bool {
        matches!(self.transport, Transport::Xrc) && !self.is_response()
    }
}

/// [`Opcode::headers_len`] for each opcode's byte.
static HEADERS_LEN: [u8; 256] = {
    let mut lens = [0; 256];
    let mut byte = 0;
    while byte < lens.len() {
        if let Some(opcode) = Opcode::from_u8(byte as u8) {
            let mut len = bth::LEN;
            if opcode.has_deth() {
                len += deth::LEN;
            }
            if opcode.has_xrceth() {
                len += xrceth::LEN;
            }
            if opcode.is_flush() {
                len += feth::LEN;
            }
            if opcode.has_reth() {
                len += reth::LEN;
            }
            if opcode.is_atomic() {
                len += atomic_eth::LEN;
            }
            if opcode.has_aeth() {
                len += aeth::LEN;
            }
            if matches!(opcode.operation, Operation::AtomicAcknowledge) {
                len += atomic_ack::LEN;
            }
            if opcode.has_immdt() {
                len += immdt::LEN;
            }
            if opcode.has_ieth() {
                len += ieth::LEN;
            }
            lens[byte] = len as u8;
        }
        byte += 1;
    }
    lens
};

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Xrc => "XRC",
        };
        write!(f, "{transport} {}", self.operation)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Operation as O;
        f.write_str(match self {
            O::SendFirst => "SEND first",
            O::SendMiddle => "SEND middle",
            O::SendLast => "SEND last",
            O::SendLastImm => "SEND last with immediate",
            O::SendOnly => "SEND only",
            O::SendOnlyImm => "SEND only with immediate",
            O::WriteFirst => "RDMA WRITE first",
            O::WriteMiddle => "RDMA WRITE middle",
            O::WriteLast => "RDMA WRITE last",
            O::WriteLastImm => "RDMA WRITE last with immediate",
            O::WriteOnly => "RDMA WRITE only",
            O::WriteOnlyImm => "RDMA WRITE only with immediate",
            O::ReadRequest => "RDMA READ request",
            O::ReadResponseFirst => "RDMA READ response first",
            O::ReadResponseMiddle => "RDMA READ response middle",
            O::ReadResponseLast => "RDMA READ response last",
            O::ReadResponseOnly => "RDMA READ response only",
            O::Acknowledge => "acknowledge",
            O::AtomicAcknowledge => "atomic acknowledge",
            O::CompareSwap => "compare and swap",
            O::FetchAdd => "fetch and add",
            O::SendLastInvalidate => "SEND last with invalidate",
            O::SendOnlyInvalidate => "SEND only with invalidate",
            O::Flush => "FLUSH",
            O::AtomicWrite => "ATOMIC WRITE",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_parses_comes_back() {
        let mut known = 0;
        for byte in 0..=255u8 {
            if let Some(opcode) = Opcode::from_u8(byte) {
                assert_eq!(opcode.as_u8(), byte);
                known += 1;
            }
        }
        // 25 operations for RC, 23 for XRC, 12 for UC, 2 for UD.
        assert_eq!(known, 25 + 23 + 12 + 2);
    }

    #[test]
    fn undefined_opcodes_are_refused() {
        for byte in [0x15, 0x18, 0x2c, 0x31, 0x3c, 0x60, 0x66, 0x45, 0x81, 0xbc, 0xbd, 0xc0, 0xff] {
            assert_eq!(Opcode::from_u8(byte), None, "{byte:#04x}");
        }
    }

    /// Operation byte, place, and the headers and payload behind the BTH: I ImmDt, K key to
    /// invalidate, R RETH, A AETH, T AtomicETH, F FETH, P payload.
    #[test]
    fn each_opcode_has_the_headers_of_the_specification() {
        use Place::{First, Last, Middle, Only};
        let table = [
            (0x00, First, "P"),
            (0x01, Middle, "P"),
            (0x02, Last, "P"),
            (0x03, Last, "IP"),
            (0x04, Only, "P"),
            (0x05, Only, "IP"),
            (0x06, First, "RP"),
            (0x07, Middle, "P"),
            (0x08, Last, "P"),
            (0x09, Last, "IP"),
            (0x0a, Only, "RP"),
            (0x0b, Only, "RIP"),
            (0x0c, Only, "R"),
            (0x0d, First, "AP"),
            (0x0e, Middle, "P"),
            (0x0f, Last, "AP"),
            (0x10, Only, "AP"),
            (0x11, Only, "A"),
            (0x12, Only, "A"),
            (0x13, Only, "T"),
            (0x14, Only, "T"),
            (0x16, Last, "KP"),
            (0x17, Only, "KP"),
            (0x1c, Only, "FR"),
            (0x1d, Only, "RP"),
        ];
        for (byte, place, headers) in table {
            let opcode = Opcode::from_u8(byte).expect("in the table");
            let mut found = String::new();
            for (present, letter) in [
                (opcode.is_flush(), 'F'),
                (opcode.has_reth(), 'R'),
                (opcode.has_immdt(), 'I'),
                (opcode.has_ieth(), 'K'),
                (opcode.has_aeth(), 'A'),
                (opcode.is_atomic(), 'T'),
                (opcode.has_payload(), 'P'),
            ] {
                if present {
                    found.push(letter);
                }
            }
            assert_eq!((opcode.place(), found.as_str()), (place, headers), "{opcode}");
            assert_eq!(Place::of(place.begins(), place.ends()), place);
            assert_eq!(opcode.is_response(), (0x0d..=0x12).contains(&byte), "{opcode}");
        }
    }
}
