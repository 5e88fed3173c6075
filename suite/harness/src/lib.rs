//! The harness of the integration suite: private rooms, pairs of programs, and waits for conditions
//! with a limit.
//!
//! It is not a test framework. The tests are ordinary `#[test]` functions in `tests/`. `cargo xtask
//! demo` and `cargo xtask bench` use this harness too. The principal type is [`Room`]: one run
//! directory, one agent, one user.
//!
//! Rules of the suite:
//!
//! * Every test has its own run directory and its own TCP ports.
//! * Nothing sleeps to synchronise. Tests wait for conditions.
//! * Every wait has a limit. The error at the limit says what the test waited for.
#![forbid(unsafe_code)]

pub mod cprogram;
pub mod dist;
pub mod figures;
pub mod hosts;
pub mod ibsim;
pub mod lists;
pub mod lossy_link;
pub mod manager;
pub mod namespace;
pub mod package;
pub mod pair;
pub mod port;
pub mod process;
pub mod program;
pub mod pyverbs;
pub mod room;
pub mod slicer;
pub mod topology;
pub mod wait;

pub use dist::Dist;
pub use hosts::{Family, Host, Hosts};
pub use ibsim::Ibsim;
pub use lossy_link::{Harm, LossyLink};
pub use manager::Place;
pub use namespace::Namespace;
pub use pair::{Pair, Sides};
pub use program::{Outcome, Program};
pub use room::{Room, User};

use std::time::Duration;

/// How long a program may take before the suite considers it hung. The limit is generous, because a
/// slow machine is not a failure.
pub const HANG: Duration = Duration::from_secs(120);
