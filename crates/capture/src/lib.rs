//! Captures: every packet of an agent's programs, whichever path it takes, as people and Wireshark know it.
//!
//! A [`Session`] asks an agent for a capture and reads the capture rings that engines write their copies to. What comes out is a [`Packet`]:
//! from its BTH to its ICRC, with its addresses, its time, and the path that it took, which may be shared memory. A [`Filter`] chooses
//! among them; [`frame()`] puts Ethernet, IP and UDP around one; [`PcapNg`] writes a file that Wireshark reads; [`words`] says it in a line.
//!
//! What lies on a capture ring is the claim of a program: nothing here believes a length, and text is cleaned before it is shown.
#![forbid(unsafe_code)]

mod filter;
mod frame;
mod packet;
mod pcapng;
mod session;
pub mod words;

pub use filter::{Filter, FilterError};
pub use frame::frame;
pub use packet::{Packet, Path, Process};
pub use pcapng::PcapNg;
pub use session::{Error, Session, Wanted};
