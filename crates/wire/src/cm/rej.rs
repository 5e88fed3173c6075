//! REJ: there is no connection, or no longer one. Not the decision. IBA 12.6.7. Principal type:
//! [`Rej`].

use super::data::Data;
use super::reason::Reason;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{be16, be32, put16, put32};
use std::fmt;

/// The message that is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// Another message, or no particular one.
    Other,
}

/// There is no connection, or no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's number for this connection; 0 if the sender never gave one.
    pub local_comm_id: u32,
    /// The receiver's number for this connection; 0 if the sender never learned it.
    pub remote_comm_id: u32,
    /// The message that is rejected.
    pub message: Rejected,
    /// The number of valid bytes in `info`; 7 bits.
    pub info_len: u8,
    /// The reason.
    pub reason: Reason,
    /// Additional information about the reason, in a format that depends on the reason.
    pub info: Data<72>,
    /// The user's private data.
    pub private_data: Data<148>,
}

impl Rej {
    /// A REJ that names no connection and contains only the reason.
    #[must_use]
    pub fn new(reason: Reason) -> Rej {
        Rej {
            local_comm_id: 0,
            remote_comm_id: 0,
            message: Rejected::Req,
            info_len: 0,
            reason,
            info: Data::default(),
            private_data: Data::default(),
        }
    }

    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Rej {
        Rej {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            message: match mad[DATA + 8] >> 6 {
                0 => Rejected::Req,
                1 => Rejected::Rep,
                _ => Rejected::Other,
            },
            info_len: mad[DATA + 9] >> 1,
            reason: Reason(be16(mad, DATA + 10)),
            info: Data::parse(mad, DATA + 12),
            private_data: Data::parse(mad, DATA + 84),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        mad[DATA + 8] = match self.message {
            Rejected::Req => 0,
            Rejected::Rep => 1,
            Rejected::Other => 2,
        } << 6;
        mad[DATA + 9] = self.info_len << 1;
        put16(mad, DATA + 10, self.reason.0);
        self.info.emit(mad, DATA + 12);
        self.private_data.emit(mad, DATA + 84);
    }

    /// The valid bytes of `info`, as far as there are so many.
    #[must_use]
    pub fn told(&self) -> &[u8] {
        &self.info[..usize::from(self.info_len).min(72)]
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REJ {:#010x} to {:#010x} of {:?}: {}",
            self.local_comm_id, self.remote_comm_id, self.message, self.reason
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    #[test]
    fn literal_bytes_both_ways() {
        let rej = Rej {
            local_comm_id: 0x0102_0304,
            remote_comm_id: 0x0506_0708,
            message: Rejected::Rep,
            info_len: 2,
            reason: Reason::CONSUMER_DEFINED,
            info: Data::new(&[0xaa, 0xbb]).unwrap(),
            private_data: Data::new(&[7]).unwrap(),
        };
        let mut mad = [0; MAD_LEN];
        rej.emit(&mut mad);
        assert_eq!(mad[DATA..DATA + 15], [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 4, 0, 28, 0xaa, 0xbb, 0]);
        assert_eq!(mad[DATA + 83..DATA + 86], [0, 7, 0]);
        assert_eq!(Rej::parse(&mad), rej);
        assert_eq!(rej.told(), [0xaa, 0xbb]);
        assert_eq!(rej.to_string(), "REJ 0x01020304 to 0x05060708 of Rep: the program declined (reason 28)");
    }

    #[test]
    fn a_length_beyond_the_field_is_cut() {
        let mut mad = [0; MAD_LEN];
        mad[DATA + 9] = 0xff;
        assert_eq!(Rej::parse(&mad).told().len(), 72);
    }

    /// The REJ of the Linux driver if there is no listener.
    #[test]
    fn the_rej_of_linux_without_a_listener_is_parsed() {
        let mut mad = [0; MAD_LEN];
        mad[DATA..DATA + 12].copy_from_slice(&[0, 0, 0, 0, 0x0c, 0x16, 0x40, 0x02, 0, 0, 0, 8]);
        let rej = Rej::parse(&mad);
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, 0x0c16_4002));
        assert_eq!((rej.message, rej.reason), (Rejected::Req, Reason::INVALID_SERVICE_ID));
        let mut out = [0; MAD_LEN];
        rej.emit(&mut out);
        assert_eq!(out, mad);
    }
}
