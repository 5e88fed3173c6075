//! MRA: the message arrived, and its answer takes longer. Not the timer. IBA 12.6.6. Principal
//! type: [`Mra`].

use super::data::Data;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{be32, put32};
use std::fmt;

/// The message whose answer takes longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mraed {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// A LAP.
    Lap,
    /// An unknown code.
    Unknown,
}

/// The message arrived, and its answer takes longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mra {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection.
    pub remote_comm_id: u32,
    /// The message that arrived.
    pub message: Mraed,
    /// How long the answer may take, in addition to the path's packet life time: a code of 5 bits.
    pub service_timeout: u8,
    /// The user's private data.
    pub private_data: Data<222>,
}

impl Mra {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Mra {
        Mra {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            message: match mad[DATA + 8] >> 6 {
                0 => Mraed::Req,
                1 => Mraed::Rep,
                2 => Mraed::Lap,
                _ => Mraed::Unknown,
            },
            service_timeout: mad[DATA + 9] >> 3,
            private_data: Data::parse(mad, DATA + 10),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        mad[DATA + 8] = match self.message {
            Mraed::Req => 0,
            Mraed::Rep => 1,
            Mraed::Lap => 2,
            Mraed::Unknown => 3,
        } << 6;
        mad[DATA + 9] = self.service_timeout << 3;
        self.private_data.emit(mad, DATA + 10);
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MRA {:#010x} to {:#010x} of {:?} timeout {}",
            self.local_comm_id, self.remote_comm_id, self.message, self.service_timeout
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    #[test]
    fn literal_bytes_both_ways() {
        let mra = Mra {
            local_comm_id: 0x0102_0304,
            remote_comm_id: 0x0506_0708,
            message: Mraed::Lap,
            service_timeout: 20,
            private_data: Data::new(&[9, 8]).unwrap(),
        };
        let mut mad = [0; MAD_LEN];
        mra.emit(&mut mad);
        assert_eq!(mad[DATA..DATA + 13], [1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0xa0, 9, 8, 0]);
        assert_eq!(Mra::parse(&mad), mra);
        for (message, byte) in [(Mraed::Req, 0), (Mraed::Rep, 0x40), (Mraed::Unknown, 0xc0)] {
            let mra = Mra { message, ..mra };
            mra.emit(&mut mad);
            assert_eq!((mad[DATA + 8], Mra::parse(&mad)), (byte, mra));
        }
        assert_eq!(mra.to_string(), "MRA 0x01020304 to 0x05060708 of Lap timeout 20");
    }
}
