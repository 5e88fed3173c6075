//! The datagrams of a tunnel. Not when one is sent, which is [`super::Tunnel`]. Principal type:
//! [`Message`].
//!
//! ```text
//!  byte 0      4         5      6      7        8                 16
//!  ┌───────────┬─────────┬──────┬──────┬────────┬─────────────────┬──────────────┐
//!  │ "IBtu"    │ version │ kind │ hops │ 0      │ receiver cookie │ body         │
//!  └───────────┴─────────┴──────┴──────┴────────┴─────────────────┴──────────────┘
//!
//!  hello:   sender cookie (8), restarts (4), widths, speeds, MTU, 1 if the port is on,
//!           the sender's port and the receiver's port: each a length (1) and a text
//!  reach:   a part of what packets reach that come by the tunnel ([`super::reach`])
//!  passed:  packets that programs have sent past the tunnel ([`super::passed`])
//!  packet:  a packet of a link, from its LRH to its VCRC
//!  bye:     nothing
//! ```
//!
//! Numbers are big-endian. Widths and speeds are sets ([`crate::rate::Codes`]), the MTU is a code.

use crate::rate::{Codes, Mtu};

/// The bytes before the body.
pub const HEADER: usize = 16;
const MAGIC: [u8; 4] = *b"IBtu";
/// The version of the datagrams, and of the packets that programs send past the tunnel.
pub(super) const VERSION: u8 = 4;
/// The fields of a hello before its names.
const HELLO: usize = 16;
/// The longest name of a port in a hello.
const LONGEST_NAME: usize = 255;

const KIND_HELLO: u8 = 1;
const KIND_PACKET: u8 = 2;
const KIND_BYE: u8 = 3;
const KIND_REACH: u8 = 4;
const KIND_PASSED: u8 = 5;

/// What a port can be on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Widths that the port may have.
    pub widths: Codes,
    /// Speeds that it may have.
    pub speeds: Codes,
    /// The longest MTU whose packets the sender can send in one datagram.
    pub mtu: Mtu,
}

/// Who the sender is, and what it wants of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The number that the sender expects in each datagram for it.
    pub cookie: u64,
    /// How often the sender's port has left the link by itself.
    pub restarts: u32,
    /// What the port can be.
    pub offer: Offer,
    /// The port looks for its neighbour: its cable is not cut, and it is not disabled.
    pub on: bool,
    /// The sender's port, such as `S1[3]`.
    pub from: &'a str,
    /// The receiver's port.
    pub to: &'a str,
}

/// The content of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The sender is there.
    Hello(Hello<'a>),
    /// A packet of the link.
    Packet {
        /// Links that it has crossed, so that a circle of agents cannot keep it for ever.
        hops: u8,
        /// From its LRH to its VCRC.
        bytes: &'a [u8],
    },
    /// The sender ends.
    Bye,
    /// A part of what packets reach that come by the tunnel.
    Reach(&'a [u8]),
    /// Packets that programs have sent past the tunnel.
    Passed(&'a [u8]),
}

/// The version of a datagram, if that is another one.
#[must_use]
pub fn other_version(bytes: &[u8]) -> Option<u8> {
    let [a, b, c, d, version, ..] = *bytes.first_chunk::<HEADER>()?;
    ([a, b, c, d] == MAGIC && version != VERSION).then_some(version)
}

impl<'a> Message<'a> {
    /// Parses a datagram. Returns the cookie of the receiver with it.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<(u64, Message<'a>)> {
        let (header, body) = bytes.split_first_chunk::<HEADER>()?;
        let [a, b, c, d, version, kind, hops, reserved, cookie @ ..] = *header;
        if [a, b, c, d] != MAGIC || version != VERSION || reserved != 0 {
            return None;
        }
        let message = match kind {
            KIND_HELLO if hops == 0 => Message::Hello(Hello::parse(body)?),
            KIND_PACKET => Message::Packet { hops, bytes: body },
            KIND_REACH if hops == 0 => Message::Reach(body),
            KIND_PASSED if hops == 0 => Message::Passed(body),
            KIND_BYE if hops == 0 && body.is_empty() => Message::Bye,
            _ => return None,
        };
        Some((u64::from_be_bytes(cookie), message))
    }

    /// The datagram for the receiver with this cookie.
    #[must_use]
    pub fn to_bytes(&self, receiver: u64) -> Vec<u8> {
        let (kind, hops) = match self {
            Message::Hello(_) => (KIND_HELLO, 0),
            Message::Packet { hops, .. } => (KIND_PACKET, *hops),
            Message::Bye => (KIND_BYE, 0),
            Message::Reach(_) => (KIND_REACH, 0),
            Message::Passed(_) => (KIND_PASSED, 0),
        };
        let mut out = MAGIC.to_vec();
        out.extend([VERSION, kind, hops, 0]);
        out.extend(receiver.to_be_bytes());
        match self {
            Message::Hello(hello) => hello.emit(&mut out),
            Message::Packet { bytes, .. } | Message::Reach(bytes) | Message::Passed(bytes) => out.extend(*bytes),
            Message::Bye => {}
        }
        out
    }
}

impl<'a> Hello<'a> {
    fn parse(body: &'a [u8]) -> Option<Hello<'a>> {
        let (fields, names) = body.split_first_chunk::<HELLO>()?;
        let (cookie, rest) = fields.split_first_chunk::<8>()?;
        let (restarts, rest) = rest.split_first_chunk::<4>()?;
        let [widths, speeds, mtu, on] = *rest else { return None };
        let (from, names) = name(names)?;
        let (to, rest) = name(names)?;
        (on <= 1 && rest.is_empty()).then_some(())?;
        Some(Hello {
            cookie: u64::from_be_bytes(*cookie),
            restarts: u32::from_be_bytes(*restarts),
            offer: Offer { widths, speeds, mtu: Mtu::from_code(mtu)? },
            on: on == 1,
            from,
            to,
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let Offer { widths, speeds, mtu } = self.offer;
        out.extend(self.cookie.to_be_bytes());
        out.extend(self.restarts.to_be_bytes());
        out.extend([widths, speeds, mtu as u8, u8::from(self.on)]);
        for name in [self.from, self.to] {
            let name = name.get(..LONGEST_NAME).unwrap_or(name).as_bytes();
            out.push(name.len() as u8);
            out.extend(name);
        }
    }
}

fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO_BYTES: &[u8] = b"IBtu\x04\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07\
        \x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x02\x03\x1f\x05\x01\x05S1[3]\x05S2[4]";

    #[test]
    fn a_hello_as_bytes() {
        let offer = Offer { widths: 3, speeds: 0x1f, mtu: Mtu::B4096 };
        let hello = Message::Hello(Hello { cookie: 9, restarts: 2, offer, on: true, from: "S1[3]", to: "S2[4]" });
        assert_eq!(hello.to_bytes(7), HELLO_BYTES);
        assert_eq!(Message::parse(HELLO_BYTES), Some((7, hello)));
    }

    #[test]
    fn a_datagram_that_is_cut_short_or_of_another_version_is_refused() {
        (0..HELLO_BYTES.len()).for_each(|end| assert_eq!(Message::parse(&HELLO_BYTES[..end]), None));
        for at in [0, 4, 5, 6, 7, 30, 31] {
            let mut bytes = HELLO_BYTES.to_vec();
            bytes[at] ^= 0xf0;
            assert_eq!(Message::parse(&bytes), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..64),
            kind in 0..6_u8,
            fits: bool,
        ) {
            if fits && bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&MAGIC);
                (bytes[4], bytes[5], bytes[7]) = (VERSION, kind, 0);
            }
            if let Some((receiver, message)) = Message::parse(&bytes) {
                prop_assert_eq!(message.to_bytes(receiver), bytes);
            }
        }
    }
}
