//! Two queue pairs, each with memory and receive requests, and a network between them that loses,
//! duplicates and reorders packets as configured. Time is simulated and jumps to the next event.
//! Every packet is encoded to bytes and parsed again.
//!
//! A `Scenario`, including its seed, identifies a run. A run that fails prints it.

mod changes;
mod confirmed;
mod corners;
mod credits;
mod direct;
mod duplicates;
mod hostile;
mod local;
mod losses;
mod lossless;
mod lossy;
mod migration;
mod mixed;
mod out_of_order;
#[path = "../common/packet.rs"]
mod packet;
mod pieces;
#[path = "../common/random.rs"]
mod random;
mod refusals;
mod reliable;
mod reports;
mod rough;
mod runs;
mod scenario;
mod standing;
mod tally;
mod unreliable;
mod window;
mod world;
mod xrc;
