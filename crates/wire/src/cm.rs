//! The messages of the communication manager: management datagrams of class 7, which connect queue
//! pairs. IBA 12.6, 12.11.
//!
//! Each module is one message, or two related ones. All have the same shape: a struct with the
//! message's fields, `parse` from a whole datagram, `emit` behind a datagram's header, and tests
//! with literal bytes. [`Message`] is any of them. [`Reason`] says why a message is rejected.
//! [`ip`] holds the header that the RDMA IP CM service puts before the private data, and its
//! service ids. Not here: which message is valid in which state, which `protocol::cm` decides.
//! Principal types: [`Message`], [`Req`], [`Rep`].

mod apr;
mod data;
pub mod ip;
mod lap;
mod message;
mod mra;
mod path;
mod reason;
mod rej;
mod rep;
mod req;
mod short;
mod sidr;

pub use apr::{Apr, AprStatus};
pub use data::Data;
pub use lap::Lap;
pub use message::{Attribute, Message};
pub use mra::{Mra, Mraed};
pub use path::PathInfo;
pub use reason::Reason;
pub use rej::{Rej, Rejected};
pub use rep::Rep;
pub use req::{Req, TransportType};
pub use short::{Drep, Dreq, Rtu};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use crate::mad;

/// The version of this class.
pub const CLASS_VERSION: u8 = 2;

/// A global identifier. For a RoCE port, it is an IPv6 address, or an IPv4 address mapped into one.
pub type Gid = [u8; 16];

/// The offset of a message's data in its datagram. Offsets in the messages' tables count from here.
const DATA: usize = mad::LEN;

/// Options beyond the specification that the two sides of a connection agree on: a vendor, and
/// options that this vendor defines. Enhanced connection establishment, IBA A20 (vendor ID in REQ,
/// REP and SIDR_REP, the options in the datagram's attribute modifier).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor, 24 bits.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}
