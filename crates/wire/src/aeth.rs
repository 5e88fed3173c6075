//! The acknowledge extended transport header: whether a request was received. Not the retry logic.
//! IBA 9.7.5.1. Principal type: [`Header`], with its [`Syndrome`].
//!
//! ```text
//!   0 | syndrome: 0 kind(2) value(5) |  message sequence number (24)  |
//!     kind 00 ACK, value = credit code    01 RNR NAK, value = timer code    11 NAK, value = reason
//! ```

use crate::number::{be24, put24};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 4;

/// The answer to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The result.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// ACK, with a credit code: how many more messages would find a receive request. See
    /// [`credits`].
    Ack(u8),
    /// RNR NAK: there was no receive request. Retry after the time of this code, see
    /// [`crate::rnr`].
    RnrNak(u8),
    /// NAK.
    Nak(NakCode),
    /// A reserved value, kept unchanged.
    Reserved(u8),
}

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// An earlier packet is missing.
    PsnSequence = 0,
    /// The queue pair does not serve this request.
    InvalidRequest = 1,
    /// The key, the range or the access right is wrong.
    RemoteAccess = 2,
    /// The responder failed; the request was correct.
    RemoteOperational = 3,
    /// XRC here, and RD elsewhere: the named object is in another domain, or does not exist.
    InvalidRd = 4,
}

impl Syndrome {
    /// An ACK without credits: the requester may send freely, and learns from an RNR NAK if the
    /// receiver is not ready.
    pub const ACK: Syndrome = Syndrome::Ack(31);

    /// The syndrome of a byte.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Syndrome {
        match (byte >> 5, byte & 0x1f) {
            (0b000, code) => Syndrome::Ack(code),
            (0b001, code) => Syndrome::RnrNak(code),
            (0b011, 0) => Syndrome::Nak(NakCode::PsnSequence),
            (0b011, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (0b011, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (0b011, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            (0b011, 4) => Syndrome::Nak(NakCode::InvalidRd),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        match self {
            Syndrome::Ack(code) => code & 0x1f,
            Syndrome::RnrNak(code) => 0x20 | code & 0x1f,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// The syndrome without credits: [`Syndrome::ACK`].
impl Default for Syndrome {
    fn default() -> Syndrome {
        Syndrome::ACK
    }
}

/// The number of receive requests that a credit code stands for. `None` for code 31: no end-to-end
/// flow control.
#[must_use]
pub const fn credits(code: u8) -> Option<u32> {
    match code & 0x1f {
        31 => None,
        code @ 0..=2 => Some(code as u32),
        // From here on the codes alternate between 2^n and 1.5 * 2^n.
        code if code % 2 == 1 => Some(3 << ((code - 3) / 2)),
        code => Some(1 << (code / 2)),
    }
}

impl Header {
    /// Parses the header.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header { syndrome: Syndrome::from_u8(bytes[0]), msn: be24(bytes, 1) }
    }

    /// Encodes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[0] = self.syndrome.as_u8();
        put24(bytes, 1, self.msn);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn {}", self.syndrome, self.msn)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack(31) => f.write_str("ACK"),
            Syndrome::Ack(code) => write!(f, "ACK credit code {code}"),
            Syndrome::RnrNak(code) => write!(f, "RNR NAK timer code {code}"),
            Syndrome::Nak(code) => write!(f, "NAK {code}"),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NakCode::PsnSequence => "PSN sequence error",
            NakCode::InvalidRequest => "invalid request",
            NakCode::RemoteAccess => "remote access error",
            NakCode::RemoteOperational => "remote operational error",
            NakCode::InvalidRd => "invalid RD request",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        for (bytes, syndrome, line) in [
            ([0x1f, 0, 0, 5], Syndrome::ACK, "ACK msn 5"),
            ([0x03, 0, 0, 5], Syndrome::Ack(3), "ACK credit code 3 msn 5"),
            ([0x2c, 0, 0, 5], Syndrome::RnrNak(12), "RNR NAK timer code 12 msn 5"),
            ([0x60, 0, 0, 5], Syndrome::Nak(NakCode::PsnSequence), "NAK PSN sequence error msn 5"),
            ([0x61, 0, 0, 5], Syndrome::Nak(NakCode::InvalidRequest), "NAK invalid request msn 5"),
            ([0x62, 0, 0, 5], Syndrome::Nak(NakCode::RemoteAccess), "NAK remote access error msn 5"),
            ([0x63, 0, 0, 5], Syndrome::Nak(NakCode::RemoteOperational), "NAK remote operational error msn 5"),
            ([0x64, 0, 0, 5], Syndrome::Nak(NakCode::InvalidRd), "NAK invalid RD request msn 5"),
            ([0x65, 0, 0, 5], Syndrome::Reserved(0x65), "reserved syndrome 0x65 msn 5"),
        ] {
            let header = Header { syndrome, msn: 5 };
            assert_eq!(Header::parse(&bytes), header);
            let mut out = [0xaa; LEN];
            header.emit(&mut out);
            assert_eq!(out, bytes);
            assert_eq!(header.to_string(), line);
        }
    }

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_u8(byte).as_u8(), byte);
        }
    }

    #[test]
    fn credit_codes_stand_for_the_counts_of_the_specification() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, count) in table.into_iter().enumerate() {
            assert_eq!(credits(code as u8), Some(count), "code {code}");
        }
        assert_eq!(credits(31), None);
    }
}
