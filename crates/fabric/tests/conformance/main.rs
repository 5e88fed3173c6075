//! The conformance suite. Each behaviour in `docs/behaviours.toml` has a test whose name begins
//! with the behaviour's name. The test is here, or beside the code if only a test there can reach
//! the behaviour. `cargo xtask conformance` writes the table of behaviours and tests.
//!
//! The tests use engines as programs do: between engines of one host, over lanes, and between
//! hosts, over the wire.

#[path = "../common/mod.rs"]
mod common;

mod addressing;
mod completion;
mod confirmed;
mod events;
mod extended;
mod forged;
mod matrix;
mod memory;
mod migration;
mod multicast;
mod objects;
mod pacing;
mod partitions;
mod ports;
mod requests;
mod responder;
mod retries;
mod shared_receive;
mod silence;
mod states;
mod statuses;
mod transitions;
mod unreliable;
