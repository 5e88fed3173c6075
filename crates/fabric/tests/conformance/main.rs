//! The conformance suite: each behaviour that `docs/behaviours.toml` names has a test here (or beside the code that only a test there
//! can reach) whose name begins with the behaviour's. `cargo xtask conformance` writes the table of which is which.
//!
//! The tests ask engines, as programs would: between engines of one host, over lanes, and between hosts, over the wire.

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
