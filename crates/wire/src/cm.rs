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
mod ece;
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
pub use ece::Ece;
pub use lap::Lap;
pub use message::{Attribute, CLASS_VERSION, Message};
pub use mra::{Mra, Mraed};
pub use path::{Gid, PathInfo};
pub use reason::Reason;
pub use rej::{Rej, Rejected};
pub use rep::Rep;
pub use req::{Req, TransportType};
pub use short::{Drep, Dreq, Rtu};
pub use sidr::{SidrRep, SidrReq, SidrStatus};
