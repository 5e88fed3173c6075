//! Captures: every packet of an agent's programs, on every path, in a form that people and
//! Wireshark understand.
//!
//! A [`Session`] asks an agent for a capture, and reads the capture rings to which engines write
//! copies of packets. The result is a [`Packet`]: the bytes from its BTH to its ICRC, with its
//! addresses, its time and its path, which may be shared memory. A [`Filter`] selects packets.
//! [`frame()`] adds Ethernet, IP and UDP headers to a packet, and a [`Link`] those of an
//! InfiniBand link. The bytes of iWARP get those of TCP. [`PcapNg`] writes a file that Wireshark
//! reads. [`words`] describes a packet in a line.
//!
//! The content of a capture ring is the claim of a program. This crate trusts no length, and cleans
//! text before it shows it.
#![forbid(unsafe_code)]

mod filter;
mod frame;
mod link;
mod packet;
mod pcapng;
mod segment;
mod session;
pub mod words;

pub use filter::{Filter, FilterError};
pub use frame::frame;
pub use link::Link;
pub use packet::{End, Packet, Path, Process, Tcp};
pub use pcapng::PcapNg;
pub use session::{Error, Port, Session, Wanted};
