//! Captures of two Linux hosts with the Soft-RoCE driver (`crates/wire/tests/fixtures`). Our state
//! machines replace one of the hosts. A requester that gets the driver's answers must send the
//! driver's requests, and a responder that gets the requests must give the driver's answers. Every
//! field of every header and every byte of payload must be equal. [`table::Difference`] lists the
//! allowed differences with their reasons, and each conversation of [`table::CONVERSATIONS`] says
//! how often each one occurs.
#![allow(clippy::unwrap_used, reason = "a test ends where it meets what it does not expect")]

// The captures belong to the package of the headers.
extern crate wire as softhca_wire;

mod asking;
mod memory;
#[path = "../common/packet.rs"]
mod packet;
#[path = "../../../wire/tests/pcap/mod.rs"]
mod pcap;
mod script;
mod serving;
mod table;
