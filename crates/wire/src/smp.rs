//! Subnet management datagrams: those of QP 0, from the subnet manager to the agent of a port and
//! back. Not what an agent does with them. IBA 14.2.1. Principal type: [`Smp`].
//!
//! Two classes have this shape. A switch forwards a LID-routed datagram by its tables. A
//! directed-route datagram carries the egress ports of its way, so it works before there are LIDs.
//! It may begin and end with a LID-routed part.
//!
//! The attributes are in the modules of this folder, with the positions of the datagram's 64 bytes
//! of data.

mod node;
mod port;
mod sm;
mod switch;
mod tables;

pub use node::{NodeDescription, NodeInfo, NodeType};
pub use port::{Capability, Capability2, LinkState, PhysState, PortInfo, PortLink, PortVls};
pub use sm::{SmInfo, SmState};
pub use switch::SwitchInfo;
pub use tables::{GuidInfo, LinearTable, MulticastTable, PKeyTable, SlToVl, VlArbitration, VlWeight};

use crate::layout::layout;
use crate::mad::Mad;
use std::fmt;

/// The version of both classes.
pub const CLASS_VERSION: u8 = 1;
/// The LID of datagrams that are not routed by LID, and of a port without a LID.
pub const PERMISSIVE_LID: u16 = 0xffff;
/// The longest directed route, in hops.
pub const MAX_HOPS: u8 = 63;

layout! {
    /// A subnet management datagram. The fields of directed routes are reserved in a LID-routed
    /// one.
    pub struct Smp[256] {
        /// The version of the common header: 1.
        0, 8 => base_version: u8;
        /// One of the two classes.
        8, 8 => class: u8;
        /// [`CLASS_VERSION`].
        16, 8 => class_version: u8;
        /// The method, and the bit of a response.
        24, 8 => method: u8;
        /// The D bit of a directed route: the datagram is on its way back.
        32, 1 => returning: bool;
        /// The status of a response.
        33, 15 => status: u16;
        /// Where on its directed route the datagram is.
        48, 8 => hop_pointer: u8;
        /// The hops of the directed route.
        56, 8 => hop_count: u8;
        /// The transaction.
        64, 64 => transaction: u64;
        /// The attribute.
        128, 16 => attribute: u16;
        /// The attribute's modifier.
        160, 32 => modifier: u32;
        /// The management key, which proves the right to manage the port.
        192, 64 => mkey: u64;
        /// The LID at which the directed part begins; [`PERMISSIVE_LID`] is the sender itself.
        256, 16 => dr_slid: u16;
        /// The LID to which the datagram goes after its directed part, or [`PERMISSIVE_LID`].
        272, 16 => dr_dlid: u16;
        /// The attribute.
        512, 512 => data: [u8; 64];
        /// The egress ports of the directed part; the first byte is not used.
        1024, 512 => initial_path: [u8; 64];
        /// The ingress ports of the directed part; the first byte is not used.
        1536, 512 => return_path: [u8; 64];
    }
}

impl Smp {
    /// Encodes the whole datagram.
    #[must_use]
    pub fn to_mad(&self) -> Mad {
        let mut mad = [0; Smp::LEN];
        self.emit(&mut mad);
        mad
    }
}

impl fmt::Display for Smp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SMP class {:#04x} method {:#04x} attribute {:#06x} modifier {:#010x} transaction {:#x}",
            self.class, self.method, self.attribute, self.modifier, self.transaction
        )?;
        if self.hop_count != 0 {
            write!(f, " hop {} of {}", self.hop_pointer, self.hop_count)?;
        }
        if self.returning {
            f.write_str(" returning")?;
        }
        if self.status != 0 {
            write!(f, " status {:#06x}", self.status)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};
    use crate::mad::{CLASS_SUBN_DIRECTED, Header, METHOD_GET, RESPONSE};

    #[test]
    fn a_directed_route_in_literal_bytes() {
        let mut mad = [0; Smp::LEN];
        mad[..24].copy_from_slice(&[
            1, 0x81, 1, 0x81, 0x80, 0x0c, 2, 3, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0x15, 0, 0, 0, 0, 0, 9,
        ]);
        mad[24..36].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x77, 0xff, 0xff, 0, 5]);
        mad[64] = 0xaa;
        mad[129..132].copy_from_slice(&[1, 2, 3]);
        mad[193..195].copy_from_slice(&[4, 5]);
        let smp = Smp::parse(&mad);
        assert_eq!(smp.to_mad(), mad);
        let header = Header::of(&mad);
        assert_eq!((smp.class, smp.method), (CLASS_SUBN_DIRECTED, METHOD_GET | RESPONSE));
        assert_eq!((smp.transaction, smp.attribute, smp.modifier), (header.transaction, 0x15, 9));
        assert_eq!((smp.returning, smp.status, smp.hop_pointer, smp.hop_count), (true, 0x0c, 2, 3));
        assert_eq!((smp.mkey, smp.dr_slid, smp.dr_dlid), (0x77, PERMISSIVE_LID, 5));
        assert_eq!(
            (smp.data[0], &smp.initial_path[..4], &smp.return_path[..3]),
            (0xaa, &[0, 1, 2, 3][..], &[0, 4, 5][..])
        );
        assert_eq!(
            smp.to_string(),
            "SMP class 0x81 method 0x81 attribute 0x0015 modifier 0x00000009 transaction 0x12345678 hop 2 of 3 returning status 0x000c"
        );
        round_trip::<Smp>();
    }

    /// libibmad counts some fields in words of the host, so they are turned here.
    #[test]
    fn positions_are_those_of_libibmad() {
        agrees::<Smp>(&[
            ("MadClassVersion", 16, 8),
            ("MadMgmtClass", 8, 8),
            ("MadBaseVersion", 0, 8),
            ("DrSmpHopCnt", 56, 8),
            ("DrSmpHopPtr", 48, 8),
            ("DrSmpStatus", 33, 15),
            ("DrSmpDirection", 32, 1),
            ("MadTRID", 64, 64),
            ("MadAttr", 128, 16),
            ("MadModifier", 160, 32),
            ("MadMkey", 192, 64),
            ("DrSmpSLID", 256, 16),
            ("DrSmpDLID", 272, 16),
            ("DrSmpPath", 1024, 512),
            ("DrSmpRetPath", 1536, 512),
        ]);
    }
}
