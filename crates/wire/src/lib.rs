//! Every byte that crosses a network: the headers of InfiniBand transport packets, taken apart and put together.
//!
//! One module is one header and has one shape: a struct named `Header` with the header's fields, `LEN`, `parse` from exactly
//! `LEN` bytes, `emit` into exactly `LEN` bytes, `Display`, and tests against literal bytes. Read [`bth`] and you know them all.
//! [`Headers`] is the whole stack of one packet behind its network header, flat, as the transport thinks of it. Between hosts a
//! packet ends with its [`icrc`], and [`probe`] is a packet of our own. A management datagram ([`mad`]) is the payload of a UD packet;
//! the communication manager's are in [`cm`].
//!
//! Nothing here decides anything: whether a packet is welcome is the business of the `protocol` crate.
//! Sources: IBA volume 1, chapters 9 (transport), 12 (communication management), 13 (management), annexes A11 and A17 (RoCEv2), A19 (FLUSH and ATOMIC WRITE).
#![deny(unsafe_code)]

pub mod aeth;
pub mod atomic_ack;
pub mod atomic_eth;
pub mod bth;
mod bytes;
pub mod cm;
pub mod cnp;
pub mod deth;
mod error;
pub mod feth;
pub mod grh;
mod headers;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod mad;
mod number;
mod opcode;
pub mod probe;
pub mod reth;
pub mod rnr;
pub mod xrceth;

pub use aeth::{NakCode, Syndrome};
pub use error::Error;
pub use grh::Grh;
pub use headers::{Headers, MAX_LEN};
pub use number::{Psn, Qpn};
pub use opcode::{Opcode, Operation, Place, Transport};

/// The atomic request header as [`Headers`] holds it.
pub type AtomicEth = atomic_eth::Header;
/// The acknowledgement header as [`Headers`] holds it.
pub type Aeth = aeth::Header;
/// The datagram header as [`Headers`] holds it.
pub type Deth = deth::Header;
/// The flush header as [`Headers`] holds it.
pub type Feth = feth::Header;
/// The RDMA header as [`Headers`] holds it.
pub type Reth = reth::Header;
