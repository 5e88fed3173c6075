//! The ABI, byte by byte: one test per row of docs/abi.md.
//!
//! Each test starts an agent of its own, connects to its node like any program, sends literal bytes and compares what
//! comes back. Nothing here uses the records of the `abi` crate: a field that moved there would have to move here as
//! well. What every row has in common (short, little room, unknown tail, stale and foreign handles, no context) is
//! [`harness::check`].
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
mod target;
mod wire;
mod xrc;
