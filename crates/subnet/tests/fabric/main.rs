//! Whole fabrics in simulated time. Each test is named by the requirement that it shows and by its
//! outcome. [`net`] builds the fabrics.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod credits;
mod deadlock;
mod drops;
mod faults;
mod multicast;
mod net;
mod paths;
mod random;
mod routers;
mod sharing;
mod states;
