//! Packets of other hosts: forwarding to the owner, the receiving sockets, and leases.

#[path = "../common/mod.rs"]
mod common;
mod ear;
mod forwarding;
mod sockets;
