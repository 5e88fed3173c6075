//! Hosts in simulated time. A seed decides everything that happens.
//!
//! All these tests are one program, so that they are linked once. No two tests share an agent.

#[path = "../common/mod.rs"]
mod common;
#[path = "../simulated/mod.rs"]
mod simulated;

mod attention;
mod channels;
mod connections;
mod on_subnet;
mod paths;
mod reordering;
mod seeds;
mod stream_ends;
mod streams;
mod time;
