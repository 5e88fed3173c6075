//! The connection manager's node: every command of `abi::ucma`, between clients of one agent and
//! between agents.

#[path = "../common/mod.rs"]
mod common;
mod connecting;
mod datagrams;
mod harness;
mod hosts;
mod ids;
mod next;
mod socket_lock;
mod told;
