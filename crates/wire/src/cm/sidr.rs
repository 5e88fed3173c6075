//! SIDR_REQ and SIDR_REP: which queue pair serves a service id with datagrams. Not the lookup. IBA
//! 12.11. Principal types: [`SidrReq`], [`SidrRep`].

use super::data::Data;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{Qpn, be16, be24, be32, be64, put16, put24, put32, put64};
use std::fmt;

/// The request: which queue pair serves this service?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrReq {
    /// The requester's number for this request.
    pub request_id: u32,
    /// The partition.
    pub pkey: u16,
    /// The service id.
    pub service_id: u64,
    /// The user's private data.
    pub private_data: Data<216>,
}

impl SidrReq {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> SidrReq {
        SidrReq {
            request_id: be32(mad, DATA),
            pkey: be16(mad, DATA + 4),
            service_id: be64(mad, DATA + 8),
            private_data: Data::parse(mad, DATA + 16),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        put32(mad, DATA, self.request_id);
        put16(mad, DATA + 4, self.pkey);
        put64(mad, DATA + 8, self.service_id);
        self.private_data.emit(mad, DATA + 16);
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIDR_REQ {:#010x} service {:#018x}", self.request_id, self.service_id)
    }
}

/// The result of a request. Codes without a name here are kept unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The queue pair serves the service.
    pub const OK: SidrStatus = SidrStatus(0);
    /// No queue pair serves this service id.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The request is declined.
    pub const REJECTED: SidrStatus = SidrStatus(2);
    /// There is no queue pair.
    pub const NO_QP: SidrStatus = SidrStatus(3);
    /// The request must be sent elsewhere.
    pub const REDIRECT: SidrStatus = SidrStatus(4);
    /// The class version is not supported.
    pub const UNSUPPORTED_VERSION: SidrStatus = SidrStatus(5);
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidrRep {
    /// The requester's number for the request.
    pub request_id: u32,
    /// The result.
    pub status: SidrStatus,
    /// The number of valid bytes in `info`.
    pub info_len: u8,
    /// The vendor whose options are in the attribute modifier; 24 bits.
    pub vendor_id: u32,
    /// The queue pair that serves.
    pub qpn: Qpn,
    /// The service id.
    pub service_id: u64,
    /// The queue pair's Q_Key.
    pub qkey: u32,
    /// Additional information about the status.
    pub info: Data<72>,
    /// The user's private data.
    pub private_data: Data<136>,
}

impl SidrRep {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> SidrRep {
        SidrRep {
            request_id: be32(mad, DATA),
            status: SidrStatus(mad[DATA + 4]),
            info_len: mad[DATA + 5],
            vendor_id: u32::from(be16(mad, DATA + 6)) << 8 | u32::from(mad[DATA + 11]),
            qpn: Qpn::new(be24(mad, DATA + 8)),
            service_id: be64(mad, DATA + 12),
            qkey: be32(mad, DATA + 20),
            info: Data::parse(mad, DATA + 24),
            private_data: Data::parse(mad, DATA + 96),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put32(mad, DATA, self.request_id);
        mad[DATA + 4] = self.status.0;
        mad[DATA + 5] = self.info_len;
        mad[DATA + 6] = high;
        mad[DATA + 7] = middle;
        put24(mad, DATA + 8, self.qpn.value());
        mad[DATA + 11] = low;
        put64(mad, DATA + 12, self.service_id);
        put32(mad, DATA + 20, self.qkey);
        self.info.emit(mad, DATA + 24);
        self.private_data.emit(mad, DATA + 96);
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIDR_REP {:#010x} status {} QP {}", self.request_id, self.status.0, self.qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    /// The SIDR_REQ of Linux's udaddy.
    #[test]
    fn a_question_is_emitted_and_parsed_as_literal_bytes() {
        let mut mad = [0; MAD_LEN];
        mad[DATA..DATA + 20].copy_from_slice(&[
            0x0d, 0x16, 0x40, 2, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 0x11, 0x1c, 6, 0, 0x40, 0xcc, 0x28,
        ]);
        let question = SidrReq {
            request_id: 0x0d16_4002,
            pkey: 0xffff,
            service_id: 0x0111_1c06,
            private_data: Data::new(&[0, 0x40, 0xcc, 0x28]).unwrap(),
        };
        assert_eq!(SidrReq::parse(&mad), question);
        let mut out = [0; MAD_LEN];
        question.emit(&mut out);
        assert_eq!(out, mad);
        assert_eq!(question.to_string(), "SIDR_REQ 0x0d164002 service 0x0000000001111c06");
    }

    /// The answer to it, with the fields filled that were zero there.
    #[test]
    fn an_answer_is_emitted_and_parsed_as_literal_bytes() {
        let mut mad = [0; MAD_LEN];
        mad[DATA..DATA + 25].copy_from_slice(&[
            0x0d, 0x16, 0x40, 2, 2, 1, 0x11, 0x22, 0, 0, 0x4f, 0x33, 0, 0, 0, 0, 1, 0x11, 0x1c, 6, 1, 0x23, 0x45, 0x67,
            0xcc,
        ]);
        mad[DATA + 96] = 7;
        let answer = SidrRep {
            request_id: 0x0d16_4002,
            status: SidrStatus::REJECTED,
            info_len: 1,
            vendor_id: 0x11_2233,
            qpn: Qpn::new(0x4f),
            service_id: 0x0111_1c06,
            qkey: 0x0123_4567,
            info: Data::new(&[0xcc]).unwrap(),
            private_data: Data::new(&[7]).unwrap(),
        };
        assert_eq!(SidrRep::parse(&mad), answer);
        let mut out = [0; MAD_LEN];
        answer.emit(&mut out);
        assert_eq!(out, mad);
        assert_eq!(answer.to_string(), "SIDR_REP 0x0d164002 status 2 QP 0x4f");
    }
}
