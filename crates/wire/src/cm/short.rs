//! RTU, DREQ, DREP: the connection is ready, shall end, has ended. Not the time-wait. IBA 12.6.9 to
//! 12.6.11. Principal types: [`Rtu`], [`Dreq`], [`Drep`].

use super::data::Data;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{Qpn, be24, be32, put24, put32};
use std::fmt;

/// The active side is ready to use the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection.
    pub remote_comm_id: u32,
    /// The user's private data.
    pub private_data: Data<224>,
}

impl Rtu {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Rtu {
        Rtu {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            private_data: Data::parse(mad, DATA + 8),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        self.private_data.emit(mad, DATA + 8);
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RTU {:#010x} to {:#010x}", self.local_comm_id, self.remote_comm_id)
    }
}

/// The sender ends the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The user's private data.
    pub private_data: Data<220>,
}

impl Dreq {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Dreq {
        Dreq {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            remote_qpn: Qpn::new(be24(mad, DATA + 8)),
            private_data: Data::parse(mad, DATA + 12),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        put24(mad, DATA + 8, self.remote_qpn.value());
        self.private_data.emit(mad, DATA + 12);
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DREQ {:#010x} to {:#010x} QP {}", self.local_comm_id, self.remote_comm_id, self.remote_qpn)
    }
}

/// The connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drep {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection.
    pub remote_comm_id: u32,
    /// The user's private data.
    pub private_data: Data<224>,
}

impl Drep {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Drep {
        let Rtu { local_comm_id, remote_comm_id, private_data } = Rtu::parse(mad);
        Drep { local_comm_id, remote_comm_id, private_data }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        let Drep { local_comm_id, remote_comm_id, private_data } = *self;
        Rtu { local_comm_id, remote_comm_id, private_data }.emit(mad);
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DREP {:#010x} to {:#010x}", self.local_comm_id, self.remote_comm_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    const LOCAL: u32 = 0x0916_4002;
    const REMOTE: u32 = 0xf528_3db4;

    #[test]
    fn rtu_is_emitted_and_parsed_as_literal_bytes() {
        let rtu = Rtu { local_comm_id: LOCAL, remote_comm_id: REMOTE, private_data: Data::new(&[1]).unwrap() };
        let mut mad = [0; MAD_LEN];
        rtu.emit(&mut mad);
        assert_eq!(mad[DATA..DATA + 10], [9, 0x16, 0x40, 2, 0xf5, 0x28, 0x3d, 0xb4, 1, 0]);
        assert_eq!(Rtu::parse(&mad), rtu);
        assert_eq!(rtu.to_string(), "RTU 0x09164002 to 0xf5283db4");
    }

    #[test]
    fn dreq_is_emitted_and_parsed_as_literal_bytes() {
        let private_data = Data::new(&[2]).unwrap();
        let dreq = Dreq { local_comm_id: LOCAL, remote_comm_id: REMOTE, remote_qpn: Qpn::new(0x4b), private_data };
        let mut mad = [0; MAD_LEN];
        dreq.emit(&mut mad);
        assert_eq!(mad[DATA..DATA + 14], [9, 0x16, 0x40, 2, 0xf5, 0x28, 0x3d, 0xb4, 0, 0, 0x4b, 0, 2, 0]);
        assert_eq!(Dreq::parse(&mad), dreq);
        assert_eq!(dreq.to_string(), "DREQ 0x09164002 to 0xf5283db4 QP 0x4b");
    }

    #[test]
    fn drep_is_emitted_and_parsed_as_literal_bytes() {
        let drep = Drep { local_comm_id: REMOTE, remote_comm_id: LOCAL, private_data: Data::new(&[3]).unwrap() };
        let mut mad = [0; MAD_LEN];
        drep.emit(&mut mad);
        assert_eq!(mad[DATA..DATA + 10], [0xf5, 0x28, 0x3d, 0xb4, 9, 0x16, 0x40, 2, 3, 0]);
        assert_eq!(Drep::parse(&mad), drep);
        assert_eq!(drep.to_string(), "DREP 0xf5283db4 to 0x09164002");
    }
}
