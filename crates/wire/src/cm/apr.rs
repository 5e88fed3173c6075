//! APR: the answer to a suggested alternate path. Not the decision. IBA 12.8.2. Principal type:
//! [`Apr`].

use super::data::Data;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{be32, put32};
use std::fmt;

/// The result of a suggested path. Codes without a name here are kept unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AprStatus(pub u8);

impl AprStatus {
    /// The path is loaded.
    pub const LOADED: AprStatus = AprStatus(0);
    /// Unknown communication id.
    pub const INVALID_COMM_ID: AprStatus = AprStatus(1);
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: AprStatus = AprStatus(2);
    /// The path is rejected.
    pub const REJECTED: AprStatus = AprStatus(3);
    /// The path must be suggested elsewhere.
    pub const REDIRECT: AprStatus = AprStatus(4);
    /// The path is already in use.
    pub const IS_CURRENT: AprStatus = AprStatus(5);
    /// The queue pair does not belong to the connection.
    pub const INVALID_QPN: AprStatus = AprStatus(6);
    /// The LID is not accepted.
    pub const INVALID_LID: AprStatus = AprStatus(7);
    /// The GID is not accepted.
    pub const INVALID_GID: AprStatus = AprStatus(8);
    /// The flow label is not accepted.
    pub const INVALID_FLOW_LABEL: AprStatus = AprStatus(9);
    /// The traffic class is not accepted.
    pub const INVALID_TRAFFIC_CLASS: AprStatus = AprStatus(10);
    /// The hop limit is not accepted.
    pub const INVALID_HOP_LIMIT: AprStatus = AprStatus(11);
    /// The packet rate is not accepted.
    pub const INVALID_PACKET_RATE: AprStatus = AprStatus(12);
    /// The service level is not accepted.
    pub const INVALID_SL: AprStatus = AprStatus(13);
}

/// The answer to a suggested alternate path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apr {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection.
    pub remote_comm_id: u32,
    /// The number of valid bytes in `info`.
    pub info_len: u8,
    /// The result.
    pub status: AprStatus,
    /// Additional information about the status.
    pub info: Data<72>,
    /// The user's private data.
    pub private_data: Data<148>,
}

impl Apr {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Apr {
        Apr {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            info_len: mad[DATA + 8],
            status: AprStatus(mad[DATA + 9]),
            info: Data::parse(mad, DATA + 12),
            private_data: Data::parse(mad, DATA + 84),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        mad[DATA + 8] = self.info_len;
        mad[DATA + 9] = self.status.0;
        self.info.emit(mad, DATA + 12);
        self.private_data.emit(mad, DATA + 84);
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "APR {:#010x} to {:#010x} status {}", self.local_comm_id, self.remote_comm_id, self.status.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    #[test]
    fn literal_bytes_both_ways() {
        let apr = Apr {
            local_comm_id: 0x0102_0304,
            remote_comm_id: 0x0506_0708,
            info_len: 1,
            status: AprStatus::INVALID_GID,
            info: Data::new(&[0xcc]).unwrap(),
            private_data: Data::new(&[7]).unwrap(),
        };
        let mut mad = [0; MAD_LEN];
        apr.emit(&mut mad);
        assert_eq!(mad[DATA..DATA + 14], [1, 2, 3, 4, 5, 6, 7, 8, 1, 8, 0, 0, 0xcc, 0]);
        assert_eq!(mad[DATA + 83..DATA + 86], [0, 7, 0]);
        assert_eq!(Apr::parse(&mad), apr);
        assert_eq!(apr.to_string(), "APR 0x01020304 to 0x05060708 status 8");
    }
}
