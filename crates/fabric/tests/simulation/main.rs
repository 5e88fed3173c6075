//! Hosts in simulated time, where a seed decides everything that happens.
//!
//! One program for all of them, so that they are linked once. No test shares an agent with another one.

#[path = "../common/mod.rs"]
mod common;
#[path = "../simulated/mod.rs"]
mod simulated;

mod channels;
mod connections;
mod paths;
mod reordering;
mod seeds;
mod time;
