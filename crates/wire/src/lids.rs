//! A datagram that says its LIDs. Between hosts a packet has the IP addresses of the agents, and
//! no local routing header. If both agents are parts of one subnet, this header takes its place
//! behind the other headers of a UD packet. The IBA does not define such packets: their opcodes are
//! in the manufacturers' range (IBA 9.2.1), and other adapters drop them. Principal type: [`Header`].
//!
//! ```text
//!      0                   1                   2                   3
//!      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   0 |          source LID           |        destination LID        |
//!   4 | reserv|  SL   | reserved    |G|            reserved           |
//! ```
//! G: the sender's address vector has a GRH. The opcode is 0xd4 for SEND only, and 0xd5 for SEND
//! only with immediate data.

use crate::error::Error;
use crate::headers::{Headers, MAX_LEN};
use crate::number::{be16, put16};
use crate::opcode::Opcode;
use crate::{Operation, Transport, bth};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 8;

const SL: u8 = 0xf;
const GLOBAL: u8 = 1;
const SEND_ONLY: u8 = 0xd4;
const SEND_ONLY_IMM: u8 = 0xd5;

/// The LIDs and the service level of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// The LID from which it is sent.
    pub slid: u16,
    /// The LID to which it is sent.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The sender's address vector has a GRH.
    pub is_global: bool,
}

impl Header {
    /// Parses the header. Reserved bits are ignored.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        let (slid, dlid) = (be16(bytes, 0), be16(bytes, 2));
        Header { slid, dlid, sl: bytes[4] & SL, is_global: bytes[5] & GLOBAL != 0 }
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = [0; LEN];
        put16(bytes, 0, self.slid);
        put16(bytes, 2, self.dlid);
        bytes[4] = self.sl & SL;
        bytes[5] = if self.is_global { GLOBAL } else { 0 };
    }

    /// The packet with this header, up to its padding: its ICRC is missing.
    ///
    /// # Errors
    /// The packet is not a UD SEND.
    pub fn packet(&self, headers: &Headers, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let opcode = match headers.opcode {
            Opcode { transport: Transport::Ud, operation: Operation::SendOnly } => SEND_ONLY,
            Opcode { transport: Transport::Ud, operation: Operation::SendOnlyImm } => SEND_ONLY_IMM,
            other => return Err(Error::Opcode(other.as_u8())),
        };
        let pad = payload.len().wrapping_neg() % 4;
        let mut bytes = vec![0; headers.len() + LEN];
        Headers { pad: pad as u8, ..*headers }.emit(&mut bytes)?;
        bytes[0] = opcode;
        if let Some(own) = bytes.last_chunk_mut() {
            self.emit(own);
        }
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + pad, 0);
        Ok(bytes)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} to LID {} SL {}", self.slid, self.dlid, self.sl)
    }
}

/// Whether packets with this opcode are datagrams that say their LIDs.
#[must_use]
pub const fn is_opcode(opcode: u8) -> bool {
    matches!(opcode, SEND_ONLY | SEND_ONLY_IMM)
}

/// Parses the headers of a datagram that says its LIDs. Behind them, after [`Headers::len`] and
/// [`LEN`] bytes, are payload and padding. `None`: it is another packet.
///
/// # Errors
/// The bytes end too early, or the transport version is not 0.
pub fn parse(packet: &[u8]) -> Result<Option<(Headers, Header)>, Error> {
    let opcode = match packet.first() {
        Some(&SEND_ONLY) => Operation::SendOnly,
        Some(&SEND_ONLY_IMM) => Operation::SendOnlyImm,
        _ => return Ok(None),
    };
    let mut plain = [0; MAX_LEN];
    let len = packet.len().min(MAX_LEN);
    plain[..len].copy_from_slice(&packet[..len]);
    plain[0] = Opcode::new(Transport::Ud, opcode).as_u8();
    let headers = Headers::parse(&plain[..len])?;
    let (needed, left) = (LEN, packet.len().saturating_sub(headers.len()));
    let own = packet.get(headers.len()..).and_then(<[u8]>::first_chunk);
    let own = own.ok_or(Error::Truncated { header: "LIDs", needed, left })?;
    Ok(Some((headers, Header::parse(own))))
}

/// The packet of the IBA that a datagram would be which does not say its LIDs, up to its padding.
/// `packet` has no ICRC. `None`: it is another packet, or not valid.
#[must_use]
pub fn without(packet: &[u8]) -> Option<(Headers, Vec<u8>)> {
    let (headers, _) = parse(packet).ok()??;
    let mut plain = packet.to_vec();
    plain.drain(headers.len()..headers.len() + LEN);
    let first: &mut [u8; bth::LEN] = plain.first_chunk_mut()?;
    first[0] = headers.opcode.as_u8();
    Some((headers, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Deth, Psn, Qpn};

    const OWN: Header = Header { slid: 0x1234, dlid: 0x0056, sl: 7, is_global: true };
    const BYTES: [u8; 36] = [
        0xd5, 0x30, 0xff, 0xff, 0, 0, 1, 0x45, 0, 0, 0, 9, 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 8, 0, 0, 0, 3, 0x12, 0x34,
        0, 0x56, 7, 1, 0, 0, b'x', 0, 0, 0,
    ];

    fn headers() -> Headers {
        Headers {
            opcode: Opcode::new(Transport::Ud, Operation::SendOnlyImm),
            pkey: 0xffff,
            dest_qp: Qpn::new(0x145),
            psn: Psn::new(9),
            deth: Deth { qkey: 0x1111_1111, src_qp: Qpn::new(8) },
            imm: 3,
            ..Headers::default()
        }
    }

    #[test]
    fn literal_bytes_both_ways() {
        assert_eq!(OWN.packet(&headers(), b"x").as_deref(), Ok(&BYTES[..]));
        assert_eq!(parse(&BYTES), Ok(Some((Headers { pad: 3, ..headers() }, OWN))));
        assert_eq!(OWN.to_string(), "LID 4660 to LID 86 SL 7");
        let mut wild = [0xff; LEN];
        assert_eq!(Header::parse(&wild).sl, 15, "reserved bits are ignored");
        OWN.emit(&mut wild);
        assert_eq!(wild, BYTES[24..32]);
    }

    #[test]
    fn without_the_lids_it_is_a_packet_of_the_iba() {
        let (headers, plain) = without(&BYTES).expect("a datagram");
        assert_eq!(plain, [&[0x65], &BYTES[1..24], &BYTES[32..]].concat());
        assert_eq!(Headers::parse(&plain), Ok(headers));
        assert_eq!(without(&plain), None);
    }

    #[test]
    fn what_is_cut_short_or_another_packet_is_refused() {
        for end in 1..32 {
            assert!(parse(&BYTES[..end]).is_err() && without(&BYTES[..end]).is_none(), "{end}");
        }
        let mut bytes = BYTES;
        bytes[1] |= 1;
        assert_eq!(parse(&bytes), Err(Error::Version(1)));
        assert_eq!((parse(&[]), parse(&[0x64; 40])), (Ok(None), Ok(None)));
        let rc = Headers { opcode: Opcode::default(), ..headers() };
        assert_eq!(OWN.packet(&rc, b""), Err(Error::Opcode(0)));
        assert!(is_opcode(BYTES[0]) && !is_opcode(0x64));
        assert_eq!([SEND_ONLY, SEND_ONLY_IMM].map(Opcode::from_u8), [None, None], "other adapters drop it");
    }
}
