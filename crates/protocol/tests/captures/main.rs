//! What two Linux hosts with the Soft-RoCE driver said to each other (`crates/wire/tests/fixtures`), one of them replaced by our state
//! machines: a requester that hears the driver's answers sends the driver's requests, and a responder that hears the requests gives the
//! driver's answers. Equal is every field of every header and every byte of payload; what may differ is in [`table::Difference`], with
//! the reason, and each conversation of [`table::CONVERSATIONS`] says how often it does.
#![allow(clippy::unwrap_used, reason = "a test ends where it meets what it does not expect")]

// The captures belong to the package of the headers.
extern crate wire as softhca_wire;

mod asking;
mod memory;
#[path = "../../../wire/tests/pcap/mod.rs"]
mod pcap;
mod script;
mod serving;
mod table;
