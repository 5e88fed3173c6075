//! The operations of RDMAP: the byte that DDP carries for them, and the headers of requests that
//! are payload for DDP. RFC 5040, section 4, and RFC 7306. Not the Terminate message
//! ([`crate::terminate`]). Principal type: [`Opcode`].
//!
//! ```text
//!     byte:  |RV | res. |  opcode    |     RV the version, 1
//! ```
//! | opcode | T | queue | payload |
//! |---|---|---|---|
//! | WRITE, READ response | tagged | – | data |
//! | SEND, with Solicited Event, with Invalidate, with both | untagged | 0 | data |
//! | Immediate Data, with Solicited Event | untagged | 0 | 8 bytes |
//! | READ request | untagged | 1 | [`ReadRequest`] |
//! | atomic request | untagged | 1 | [`AtomicRequest`] |
//! | Terminate | untagged | 2 | [`crate::Terminate`] |
//! | atomic response | untagged | 3 | [`AtomicResponse`] |

use crate::bytes::{be32, be64, put32, put64};
use crate::ddp::Stag;
use crate::terminate::Reason;
use std::fmt;

const VERSION_SHIFT: u8 = 6;
const OPCODE: u8 = 0x0f;

/// The queue of SENDs and immediate data.
pub const QUEUE_SEND: u32 = 0;
/// The queue of READ requests and atomic requests.
pub const QUEUE_REQUEST: u32 = 1;
/// The queue of the Terminate message.
pub const QUEUE_TERMINATE: u32 = 2;
/// The queue of responses of atomics.
pub const QUEUE_ATOMIC: u32 = 3;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the RFC's own names")]
pub enum Opcode {
    Write = 0,
    ReadRequest = 1,
    ReadResponse = 2,
    Send = 3,
    SendInvalidate = 4,
    SendSolicited = 5,
    SendSolicitedInvalidate = 6,
    Terminate = 7,
    Immediate = 8,
    ImmediateSolicited = 9,
    AtomicRequest = 10,
    AtomicResponse = 11,
}

impl Opcode {
    /// All opcodes, in the order of their numbers.
    pub const ALL: [Opcode; 12] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
        Opcode::Immediate,
        Opcode::ImmediateSolicited,
        Opcode::AtomicRequest,
        Opcode::AtomicResponse,
    ];

    /// Parses RDMAP's byte. Reserved bits are ignored.
    ///
    /// # Errors
    /// The version is not 1, or the opcode is unknown.
    pub fn parse(byte: u8) -> Result<Opcode, Reason> {
        if byte >> VERSION_SHIFT != 1 {
            return Err(Reason::RdmapVersion);
        }
        Opcode::ALL.get(usize::from(byte & OPCODE)).copied().ok_or(Reason::RdmapOpcode)
    }

    /// Encodes RDMAP's byte.
    #[must_use]
    pub const fn emit(self) -> u8 {
        1 << VERSION_SHIFT | self as u8
    }

    /// The queue of an untagged message. `None` if the message is tagged.
    #[must_use]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(QUEUE_REQUEST),
            Opcode::Terminate => Some(QUEUE_TERMINATE),
            Opcode::AtomicResponse => Some(QUEUE_ATOMIC),
            _ => Some(QUEUE_SEND),
        }
    }

    /// The opcode of a SEND.
    #[must_use]
    pub const fn send(solicited: bool, invalidates: bool) -> Opcode {
        match (solicited, invalidates) {
            (false, false) => Opcode::Send,
            (false, true) => Opcode::SendInvalidate,
            (true, false) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// The opcode of immediate data.
    #[must_use]
    pub const fn immediate(solicited: bool) -> Opcode {
        if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate }
    }

    /// Whether the message solicits an event at the receiver.
    #[must_use]
    pub const fn is_solicited(self) -> bool {
        matches!(self, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate | Opcode::ImmediateSolicited)
    }

    /// Whether the message invalidates an STag of the receiver.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Opcode::Write => "WRITE",
            Opcode::ReadRequest => "READ request",
            Opcode::ReadResponse => "READ response",
            Opcode::Send => "SEND",
            Opcode::SendInvalidate => "SEND with Invalidate",
            Opcode::SendSolicited => "SEND with Solicited Event",
            Opcode::SendSolicitedInvalidate => "SEND with Solicited Event and Invalidate",
            Opcode::Terminate => "Terminate",
            Opcode::Immediate => "Immediate Data",
            Opcode::ImmediateSolicited => "Immediate Data with Solicited Event",
            Opcode::AtomicRequest => "atomic request",
            Opcode::AtomicResponse => "atomic response",
        })
    }
}

/// The payload of a READ request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// The requester's region, for the response.
    pub sink: Stag,
    /// The offset in that region.
    pub sink_to: u64,
    /// The number of bytes.
    pub size: u32,
    /// The responder's region.
    pub source: Stag,
    /// The offset in that region.
    pub source_to: u64,
}

impl ReadRequest {
    /// Bytes of this header.
    pub const LEN: usize = 28;

    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> ReadRequest {
        ReadRequest {
            sink: Stag(be32(bytes, 0)),
            sink_to: be64(bytes, 4),
            size: be32(bytes, 12),
            source: Stag(be32(bytes, 16)),
            source_to: be64(bytes, 20),
        }
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put32(bytes, 0, self.sink.0);
        put64(bytes, 4, self.sink_to);
        put32(bytes, 12, self.size);
        put32(bytes, 16, self.source.0);
        put64(bytes, 20, self.source_to);
    }
}

/// What an atomic does with the 8 bytes of its target. RFC 7306, section 5.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds. Carries out of the bits of `boundaries` are dropped, so 0 means one field of 64 bits.
    FetchAdd {
        /// What is added.
        add: u64,
        /// The highest bit of each field.
        boundaries: u64,
    },
    /// Replaces bits if other bits have a value.
    CompareSwap {
        /// The new bits.
        swap: u64,
        /// Which bits are replaced.
        swap_mask: u64,
        /// The expected bits.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
    },
}

impl Atomic {
    /// What the target holds afterwards if it holds `value` before. The masks count here, so the
    /// owner of the memory only has to exchange the two values atomically.
    #[must_use]
    pub fn apply(&self, value: u64) -> u64 {
        match *self {
            Atomic::FetchAdd { add, boundaries } => {
                // The sums of the bits below each boundary cannot carry into it; the boundary bits
                // themselves are added without a carry out.
                let low = (value & !boundaries).wrapping_add(add & !boundaries);
                low ^ ((value ^ add) & boundaries)
            }
            Atomic::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                if value & compare_mask == compare & compare_mask {
                    value & !swap_mask | swap & swap_mask
                } else {
                    value
                }
            }
        }
    }
}

/// The payload of an atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The requester's number, which the response repeats.
    pub id: u32,
    /// The responder's region.
    pub target: Stag,
    /// The offset in that region.
    pub target_to: u64,
    /// What is done.
    pub atomic: Atomic,
}

impl AtomicRequest {
    /// Bytes of this header.
    pub const LEN: usize = 52;

    const FETCH_ADD: u32 = 0;
    const COMPARE_SWAP: u32 = 2;

    /// Parses the header. Reserved bits are ignored.
    ///
    /// # Errors
    /// The operation is unknown.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<AtomicRequest, Reason> {
        let (data, mask) = (be64(bytes, 20), be64(bytes, 28));
        let atomic = match be32(bytes, 0) & 0x0f {
            Self::FETCH_ADD => Atomic::FetchAdd { add: data, boundaries: mask },
            Self::COMPARE_SWAP => Atomic::CompareSwap {
                swap: data,
                swap_mask: mask,
                compare: be64(bytes, 36),
                compare_mask: be64(bytes, 44),
            },
            _ => return Err(Reason::RdmapOpcode),
        };
        Ok(AtomicRequest { id: be32(bytes, 4), target: Stag(be32(bytes, 8)), target_to: be64(bytes, 12), atomic })
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let (code, fields) = match self.atomic {
            Atomic::FetchAdd { add, boundaries } => (Self::FETCH_ADD, [add, boundaries, 0, 0]),
            Atomic::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                (Self::COMPARE_SWAP, [swap, swap_mask, compare, compare_mask])
            }
        };
        put32(bytes, 0, code);
        put32(bytes, 4, self.id);
        put32(bytes, 8, self.target.0);
        put64(bytes, 12, self.target_to);
        for (nth, field) in fields.into_iter().enumerate() {
            put64(bytes, 20 + 8 * nth, field);
        }
    }
}

/// The payload of an atomic response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The number of the request.
    pub id: u32,
    /// What the target held before.
    pub value: u64,
}

impl AtomicResponse {
    /// Bytes of this header.
    pub const LEN: usize = 12;

    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> AtomicResponse {
        AtomicResponse { id: be32(bytes, 0), value: be64(bytes, 4) }
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put32(bytes, 0, self.id);
        put64(bytes, 4, self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_opcode_is_its_number_with_version_1() {
        for (number, opcode) in (0_u8..).zip(Opcode::ALL) {
            assert_eq!((opcode.emit(), Opcode::parse(0x40 | number)), (0x40 | number, Ok(opcode)));
            assert_eq!(Opcode::parse(0x70 | number), Ok(opcode), "reserved bits are ignored");
        }
        assert_eq!(Opcode::parse(0x4c), Err(Reason::RdmapOpcode));
        assert_eq!(Opcode::parse(0x03), Err(Reason::RdmapVersion));
        assert_eq!(Opcode::parse(0x83), Err(Reason::RdmapVersion));
    }

    #[test]
    fn a_read_request_of_siw_is_parsed_and_put_together() {
        let bytes = *b"\x3d\xdf\xad\0\0\0\x7f\xdb\x91\x19\0\0\0\0\x13\x88\xbd\x5c\x5b\0\0\0\x7f\x6e\xcb\xd8\x20\0";
        let request = ReadRequest {
            sink: Stag(0x3ddf_ad00),
            sink_to: 0x7fdb_9119_0000,
            size: 5000,
            source: Stag(0xbd5c_5b00),
            source_to: 0x7f6e_cbd8_2000,
        };
        assert_eq!(ReadRequest::parse(&bytes), request);
        let mut emitted = [0xaa; ReadRequest::LEN];
        request.emit(&mut emitted);
        assert_eq!(emitted, bytes);
    }

    #[test]
    fn atomic_headers_are_parsed_and_put_together() {
        let mut bytes = [0; AtomicRequest::LEN];
        for (at, byte) in bytes.iter_mut().enumerate().skip(4) {
            *byte = at as u8;
        }
        bytes[3] = 2;
        let request = AtomicRequest::parse(&bytes).unwrap();
        assert_eq!(
            (request.id, request.target, request.target_to),
            (0x0405_0607, Stag(0x0809_0a0b), 0x0c0d_0e0f_1011_1213)
        );
        let (swap, swap_mask) = (0x1415_1617_1819_1a1b, 0x1c1d_1e1f_2021_2223);
        let (compare, compare_mask) = (0x2425_2627_2829_2a2b, 0x2c2d_2e2f_3031_3233);
        assert_eq!(request.atomic, Atomic::CompareSwap { swap, swap_mask, compare, compare_mask });
        let mut emitted = [0xaa; AtomicRequest::LEN];
        request.emit(&mut emitted);
        assert_eq!(emitted, bytes);
        bytes[3] = 1;
        assert_eq!(AtomicRequest::parse(&bytes), Err(Reason::RdmapOpcode));

        let response = AtomicResponse { id: 7, value: 0x0102_0304_0506_0708 };
        let mut emitted = [0xaa; AtomicResponse::LEN];
        response.emit(&mut emitted);
        assert_eq!(emitted, [0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(AtomicResponse::parse(&emitted), response);
    }

    /// The sum bit by bit, with a carry that a boundary stops.
    fn added(value: u64, add: u64, boundaries: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let digits = (value >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (digits & 1) << bit;
            carry = if boundaries >> bit & 1 == 1 { 0 } else { digits >> 1 };
        }
        sum
    }

    #[test]
    fn iw_atomic_fields_are_added_without_a_carry_between_them() {
        let vectors = [
            // One field of 64 bits, which wraps; marking its highest bit changes nothing.
            (u64::MAX, 2, 0, 1),
            (u64::MAX, 2, 1 << 63, 1),
            (0x7fff_ffff_ffff_ffff, 1, 0, 0x8000_0000_0000_0000),
            // Two fields of 32 bits: each wraps alone.
            (0xffff_ffff_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_8000_0000, 0),
            (0x0000_0000_ffff_ffff, 0x0000_0000_0000_0001, 0x8000_0000_8000_0000, 0),
            (0x0000_0000_8000_0000, 0x0000_0000_8000_0000, 0x8000_0000_8000_0000, 0),
            // From below: fields of 32 and of 16 bits, and 16 bits whose highest is not marked.
            (0x0000_ffff_ffff_ffff, 0x0000_0001_0000_0001, 0x0000_8000_8000_0000, 0),
            (0xffff_7fff_7fff_ffff, 0x0001_0001_0000_0001, 0x0000_8000_8000_0000, 0x0000_8000_8000_0000),
            // Fields of 8 bits.
            (0xff7f_0180_fe00_10ff, 0x0101_0180_0201_f001, 0x8080_8080_8080_8080, 0x0080_0200_0001_0000),
            // Each bit is a field: an exclusive or.
            (0xf0f0_f0f0_f0f0_f0f0, 0xff00_ff00_ff00_ff00, u64::MAX, 0x0ff0_0ff0_0ff0_0ff0),
            // Subtracts from a field.
            (0x0005_0005, 0x0000_fffe, 0x8000_8000, 0x0005_0003),
        ];
        for (value, add, boundaries, sum) in vectors {
            assert_eq!(Atomic::FetchAdd { add, boundaries }.apply(value), sum, "{value:#x} {add:#x} {boundaries:#x}");
            assert_eq!(added(value, add, boundaries), sum);
        }
    }

    #[test]
    fn iw_atomic_swaps_the_masked_bits_if_the_compared_bits_are_equal() {
        let vectors = [
            // All bits are compared and replaced, as in the verbs' operation.
            (5, 9, u64::MAX, 5, u64::MAX, 9),
            (5, 9, u64::MAX, 6, u64::MAX, 5),
            // No bit is compared: a swap. None is replaced: a fetch.
            (0x1234, 0xabcd, u64::MAX, 0x9999, 0, 0xabcd),
            (0x1234, 0xabcd, 0, 0x1234, u64::MAX, 0x1234),
            // The compared and the replaced bits need not be the same.
            (0x1234, 0xabcd, 0xff, 0x1299, 0xff00, 0x12cd),
            (0x1234, 0xabcd, 0xff, 0x1334, 0xff00, 0x1234),
            // The highest bit is a lock, which is taken if it is free.
            (0xff00_0000_0000_0000, 1 << 63, 1 << 63, 0, 1 << 63, 0xff00_0000_0000_0000),
            (0x7f00_0000_0000_0000, 1 << 63, 1 << 63, 0, 1 << 63, 0xff00_0000_0000_0000),
        ];
        for (value, swap, swap_mask, compare, compare_mask, after) in vectors {
            let atomic = Atomic::CompareSwap { swap, swap_mask, compare, compare_mask };
            assert_eq!(atomic.apply(value), after, "{value:#x}: {atomic:x?}");
        }
    }

    proptest! {
        #[test]
        fn sums_are_those_of_each_bit(value: u64, add: u64, boundaries: u64) {
            prop_assert_eq!(Atomic::FetchAdd { add, boundaries }.apply(value), added(value, add, boundaries));
        }
    }
}
