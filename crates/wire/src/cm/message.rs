//! Any message of the communication manager, and the attribute that identifies it. The messages
//! themselves are in their own modules. IBA 12.6. Principal type: [`Message`].

use super::apr::Apr;
use super::ece::Ece;
use super::lap::Lap;
use super::mra::Mra;
use super::rej::Rej;
use super::rep::Rep;
use super::req::Req;
use super::short::{Drep, Dreq, Rtu};
use super::sidr::{SidrRep, SidrReq};
use crate::error::Error;
use crate::mad::{BASE_VERSION, CLASS_CM, Header, MAD_LEN, METHOD_SEND, Mad};
use std::fmt;

/// The version of this class.
pub const CLASS_VERSION: u8 = 2;

/// The type of a message: the attribute of its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// REQ: requests a connection.
    Req = 0x10,
    /// MRA: the answer takes longer.
    Mra = 0x11,
    /// REJ: rejects.
    Rej = 0x12,
    /// REP: agrees to a connection.
    Rep = 0x13,
    /// RTU: ready to use.
    Rtu = 0x14,
    /// DREQ: ends the connection.
    Dreq = 0x15,
    /// DREP: the connection has ended.
    Drep = 0x16,
    /// SIDR_REQ: asks which queue pair serves a service.
    SidrReq = 0x17,
    /// SIDR_REP: answers a SIDR_REQ.
    SidrRep = 0x18,
    /// LAP: suggests another alternate path.
    Lap = 0x19,
    /// APR: answers a LAP.
    Apr = 0x1a,
}

impl Attribute {
    /// The message with this attribute.
    #[must_use]
    pub const fn from_u16(attribute: u16) -> Option<Attribute> {
        Some(match attribute {
            0x10 => Attribute::Req,
            0x11 => Attribute::Mra,
            0x12 => Attribute::Rej,
            0x13 => Attribute::Rep,
            0x14 => Attribute::Rtu,
            0x15 => Attribute::Dreq,
            0x16 => Attribute::Drep,
            0x17 => Attribute::SidrReq,
            0x18 => Attribute::SidrRep,
            0x19 => Attribute::Lap,
            0x1a => Attribute::Apr,
            _ => return None,
        })
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attribute::Req => "REQ",
            Attribute::Mra => "MRA",
            Attribute::Rej => "REJ",
            Attribute::Rep => "REP",
            Attribute::Rtu => "RTU",
            Attribute::Dreq => "DREQ",
            Attribute::Drep => "DREP",
            Attribute::SidrReq => "SIDR_REQ",
            Attribute::SidrRep => "SIDR_REP",
            Attribute::Lap => "LAP",
            Attribute::Apr => "APR",
        })
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "every one of them is a datagram of one size on the wire")]
#[allow(missing_docs, reason = "each variant is the message that it is named after")]
pub enum Message {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

impl Message {
    /// Parses a datagram. The caller handles the header's `transaction` and `modifier`.
    ///
    /// # Errors
    /// The datagram is not a message of the communication manager, or has another version.
    pub fn parse(mad: &Mad) -> Result<(Header, Message), Error> {
        let header = Header::of(mad);
        if header.base_version != BASE_VERSION || header.class != CLASS_CM || header.method != METHOD_SEND {
            return Err(Error::NotCm { class: header.class, method: header.method });
        }
        if header.class_version != CLASS_VERSION {
            return Err(Error::CmVersion(header.class_version));
        }
        let attribute = Attribute::from_u16(header.attribute).ok_or(Error::CmAttribute(header.attribute))?;
        let message = match attribute {
            Attribute::Req => Message::Req(Req::parse(mad)),
            Attribute::Mra => Message::Mra(Mra::parse(mad)),
            Attribute::Rej => Message::Rej(Rej::parse(mad)),
            Attribute::Rep => Message::Rep(Rep::parse(mad)),
            Attribute::Rtu => Message::Rtu(Rtu::parse(mad)),
            Attribute::Dreq => Message::Dreq(Dreq::parse(mad)),
            Attribute::Drep => Message::Drep(Drep::parse(mad)),
            Attribute::SidrReq => Message::SidrReq(SidrReq::parse(mad)),
            Attribute::SidrRep => Message::SidrRep(SidrRep::parse(mad)),
            Attribute::Lap => Message::Lap(Lap::parse(mad)),
            Attribute::Apr => Message::Apr(Apr::parse(mad)),
        };
        Ok((header, message))
    }

    /// Encodes the whole datagram. `options` is the attribute modifier: the options of [`Ece`], or
    /// 0.
    #[must_use]
    pub fn emit(&self, transaction: u64, options: u32) -> Mad {
        let mut mad = [0; MAD_LEN];
        let header = Header {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction,
            attribute: self.attribute() as u16,
            modifier: options,
        };
        header.emit_to(&mut mad);
        match self {
            Message::Req(message) => message.emit(&mut mad),
            Message::Mra(message) => message.emit(&mut mad),
            Message::Rej(message) => message.emit(&mut mad),
            Message::Rep(message) => message.emit(&mut mad),
            Message::Rtu(message) => message.emit(&mut mad),
            Message::Dreq(message) => message.emit(&mut mad),
            Message::Drep(message) => message.emit(&mut mad),
            Message::SidrReq(message) => message.emit(&mut mad),
            Message::SidrRep(message) => message.emit(&mut mad),
            Message::Lap(message) => message.emit(&mut mad),
            Message::Apr(message) => message.emit(&mut mad),
        }
        mad
    }

    /// The type of this message.
    #[must_use]
    pub const fn attribute(&self) -> Attribute {
        match self {
            Message::Req(_) => Attribute::Req,
            Message::Mra(_) => Attribute::Mra,
            Message::Rej(_) => Attribute::Rej,
            Message::Rep(_) => Attribute::Rep,
            Message::Rtu(_) => Attribute::Rtu,
            Message::Dreq(_) => Attribute::Dreq,
            Message::Drep(_) => Attribute::Drep,
            Message::SidrReq(_) => Attribute::SidrReq,
            Message::SidrRep(_) => Attribute::SidrRep,
            Message::Lap(_) => Attribute::Lap,
            Message::Apr(_) => Attribute::Apr,
        }
    }

    /// The vendor options of a message with this header. REQ, REP and SIDR_REP carry them.
    #[must_use]
    pub const fn ece(&self, header: &Header) -> Ece {
        let vendor_id = match self {
            Message::Req(req) => req.vendor_id,
            Message::Rep(rep) => rep.vendor_id,
            Message::SidrRep(rep) => rep.vendor_id,
            _ => return Ece { vendor_id: 0, options: 0 },
        };
        Ece { vendor_id, options: header.modifier }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Req(message) => message.fmt(f),
            Message::Mra(message) => message.fmt(f),
            Message::Rej(message) => message.fmt(f),
            Message::Rep(message) => message.fmt(f),
            Message::Rtu(message) => message.fmt(f),
            Message::Dreq(message) => message.fmt(f),
            Message::Drep(message) => message.fmt(f),
            Message::SidrReq(message) => message.fmt(f),
            Message::SidrRep(message) => message.fmt(f),
            Message::Lap(message) => message.fmt(f),
            Message::Apr(message) => message.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mad(attribute: u16, bytes: &[u8]) -> Mad {
        let mut mad = [0; MAD_LEN];
        mad.copy_from_slice(bytes);
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND]);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad
    }

    proptest! {
        /// Arbitrary input is parsed, and is equal after encoding and parsing again: only reserved
        /// bits are lost.
        #[test]
        fn everything_that_was_read_is_written(attribute in 0x10u16..0x1b, bytes in proptest::collection::vec(any::<u8>(), MAD_LEN)) {
            let (header, message) = Message::parse(&mad(attribute, &bytes)).unwrap();
            prop_assert_eq!(message.attribute() as u16, attribute);
            let again = message.emit(header.transaction, header.modifier);
            let (header_again, message_again) = Message::parse(&again).unwrap();
            prop_assert_eq!(message_again, message);
            prop_assert_eq!((header_again.transaction, header_again.modifier), (header.transaction, header.modifier));
            prop_assert!(message.to_string().starts_with(&message.attribute().to_string()));
        }
    }

    #[test]
    fn mads_that_are_no_cm_message_are_refused() {
        let good = mad(0x14, &[0; MAD_LEN]);
        assert!(matches!(Message::parse(&good), Ok((_, Message::Rtu(_)))));
        for (place, byte, error) in [
            (0, 2, Error::NotCm { class: 7, method: 3 }),
            (1, 3, Error::NotCm { class: 3, method: 3 }),
            (3, 0x81, Error::NotCm { class: 7, method: 0x81 }),
            (2, 1, Error::CmVersion(1)),
            (17, 0x1b, Error::CmAttribute(0x1b)),
            (17, 0x0f, Error::CmAttribute(0x0f)),
        ] {
            let mut bad = good;
            bad[place] = byte;
            assert_eq!(Message::parse(&bad), Err(error));
        }
    }

    #[test]
    fn vendor_options_are_in_three_messages() {
        let header = Header { modifier: 9, ..Header::default() };
        let ece = Ece { vendor_id: 7, options: 9 };
        assert_eq!(Message::Req(Req { vendor_id: 7, ..Req::default() }).ece(&header), ece);
        assert_eq!(Message::Rep(Rep { vendor_id: 7, ..Rep::default() }).ece(&header), ece);
        assert_eq!(Message::SidrRep(SidrRep { vendor_id: 7, ..SidrRep::default() }).ece(&header), ece);
        assert_eq!(Message::Rtu(Rtu::default()).ece(&header), Ece::default());
    }
}
