//! Packets: those that other implementations sent, and those that this crate encodes.

mod captured;
mod captured_files;
mod captured_icrc;
mod confirmed;
mod headers;
mod icrc;
#[path = "../pcap/mod.rs"]
mod pcap;
