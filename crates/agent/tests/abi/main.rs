//! The ABI, byte by byte: one test per row of docs/abi.md.
//!
//! Each test starts its own agent, connects to the agent's node like any program, sends literal
//! bytes and compares the answer. The tests do not use the records of the `abi` crate, so a field
//! that moved there would have to move here as well. [`harness::check`] checks what all rows have
//! in common (short body, little room, unknown tail, stale and foreign handles, no context).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ah;
mod cq;
mod device;
mod dm;
mod extended;
mod handshake;
mod harness;
mod hostile;
mod mcast;
mod mr;
mod mw;
mod pd;
mod post;
mod private;
mod qp;
mod refused;
mod rows;
mod srq;
mod stream;
mod target;
mod wire;
mod xrc;
