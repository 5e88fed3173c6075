//! The messages of the communication manager: management datagrams of class 7 by which queue pairs are connected. IBA 12.6, 12.11.
//!
//! One module is one message, or two that belong together, and has one shape: a struct with the message's fields, `parse` from a
//! whole datagram, `emit` behind the header of one, and tests against literal bytes. [`Message`] is any of them. What a message is
//! rejected for is a [`Reason`]. The header that the RDMA IP CM service puts before the private data, and its service numbers,
//! are in [`ip`]. Not in here: which message is welcome when; that is the business of `protocol::cm`.
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

/// A global identifier; of a RoCE port an IPv6 address or an IPv4 address in one.
pub type Gid = [u8; 16];

/// Where the data of a message begins in its datagram: offsets in the message's tables count from here.
const DATA: usize = mad::LEN;

/// What the two sides of a connection agree on beyond the specification: a vendor, and options that it knows. Enhanced
/// connection establishment, IBA A19 (vendor ID in REQ, REP and SIDR_REP, the options in the datagram's attribute modifier).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Whose options, 24 bits.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}
