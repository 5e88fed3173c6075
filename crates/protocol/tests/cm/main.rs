//! Communication managers that talk to each other over a network that loses, repeats and reorders as it is told: everything in
//! simulated time, which jumps to whatever happens next.
#![allow(clippy::unwrap_used, reason = "a test ends where it meets what it does not expect")]

mod again;
mod captures;
mod crowd;
mod deaths;
mod hostile;
mod losses;
mod once;
mod paths;
mod plain;
#[path = "../common/random.rs"]
mod random;
mod sidr;
mod stale;
mod table;
mod world;
