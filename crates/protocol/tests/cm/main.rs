//! Communication managers that talk to each other over a network that loses, duplicates and
//! reorders datagrams as configured. Time is simulated and jumps to the next event.
#![allow(clippy::unwrap_used, reason = "a test ends where it meets what it does not expect")]

mod again;
mod captures;
mod crowd;
mod deaths;
mod facts;
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
