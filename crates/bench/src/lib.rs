//! Runs a load between two programs and measures it: one operation, several sizes, some queue pairs
//! and threads.
//!
//! One side asks ([`ask`]), the other side answers ([`answer`]). They talk over a [`Talk`], which
//! is any socket. A [`Plan`] says what to measure, and the asking side sends it to the other side.
//! The results are [`Case`]s, one for each size, which [`chart`] and [`svg`] show. All operations
//! go through the crate `softhca`, as in users' programs.
//!
//! This crate is not the command: options, processes and sockets belong to `softhca bench`.
#![forbid(unsafe_code)]

mod answering;
mod asking;
pub mod chart;
mod contents;
mod error;
mod figures;
mod look;
mod place;
mod plan;
mod session;
mod stream;
pub mod svg;
mod talk;
mod team;
mod window;

pub use error::{Error, Result};
pub use figures::{Case, Latency};
pub use place::Place;
pub use plan::{Amount, Measure, Operation, Plan, Size};
pub use session::{answer, ask};
pub use talk::Talk;
