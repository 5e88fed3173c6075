//! Two queue pairs, each with memory and receive requests, and a network between them that loses, repeats and reorders as it is
//! told: everything in simulated time, which jumps to whatever happens next. Every packet is made into bytes and back.
//!
//! A run is named by its `Scenario`, the seed included; a run that fails prints it.

mod alone;
mod confirmed;
mod corners;
mod credits;
mod duplicates;
mod hostile;
mod local;
mod losses;
mod lossless;
mod migration;
mod mixed;
mod out_of_order;
mod pieces;
#[path = "../common/random.rs"]
mod random;
mod refusals;
mod reliable;
mod rough;
mod scenario;
mod segment_runs;
mod unreliable;
mod window;
mod world;
mod xrc;
