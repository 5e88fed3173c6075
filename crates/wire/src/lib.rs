//! Every byte that crosses a network: parses and encodes the headers of InfiniBand transport
//! packets.
//!
//! Each module is one header. All have the same shape: a struct `Header` with the header's fields,
//! `LEN`, `parse` from exactly `LEN` bytes, `emit` into exactly `LEN` bytes, `Display`, and tests
//! with literal bytes. If you read [`bth`], you know them all. [`Headers`] is the flat stack of one
//! packet behind its network header, as the transport uses it. Between hosts a packet ends with its
//! [`icrc`]. On an InfiniBand link a packet begins with its [`lrh`] and ends with its [`vcrc`], and
//! [`flow_control`] packets go between the packets. [`probe`] is a packet of softhca's own, and
//! [`lids`] a header of its own. A management datagram ([`mad`]) is the payload of a UD packet. Each
//! class has a module: [`smp`], [`sa`], [`perf`], [`vendor`], and [`cm`] for the communication
//! manager. Their attributes are tables ([`layout`]).
//!
//! Nothing here decides anything: the `protocol` crate decides whether a packet is accepted.
//! Sources: IBA volume 1, chapters 7 (link), 9 (transport), 12 (communication management), 13
//! (management), annexes A11 and A17 (RoCEv2), A19 (FLUSH and ATOMIC WRITE).
#![deny(unsafe_code)]

pub mod aeth;
pub mod atomic_ack;
pub mod atomic_eth;
pub mod bth;
pub mod class_port_info;
pub mod cm;
pub mod cnp;
pub mod crc32c;
pub mod deth;
mod error;
pub mod feth;
pub mod flow_control;
pub mod grh;
mod headers;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod layout;
pub mod lids;
pub mod lrh;
pub mod mad;
pub mod notice;
mod number;
mod opcode;
pub mod perf;
pub mod pkey;
pub mod probe;
mod rate;
pub mod reth;
pub mod rmpp;
pub mod rnr;
pub mod sa;
pub mod smp;
pub mod vcrc;
pub mod vendor;
pub mod xrceth;

pub use aeth::{NakCode, Syndrome};
pub use error::Error;
pub use grh::Grh;
pub use headers::{Headers, MAX_LEN};
pub use number::{Psn, Qpn};
pub use opcode::{Opcode, Operation, Place, Transport};
pub use rate::{rate_code, rate_mbps};

/// The atomic request header, as in [`Headers`].
pub type AtomicEth = atomic_eth::Header;
/// The acknowledgement header, as in [`Headers`].
pub type Aeth = aeth::Header;
/// The datagram header, as in [`Headers`].
pub type Deth = deth::Header;
/// The flush header, as in [`Headers`].
pub type Feth = feth::Header;
/// The RDMA header, as in [`Headers`].
pub type Reth = reth::Header;
