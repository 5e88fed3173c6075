//! The program `softhca`, run as users run it.

mod oom_score;
mod pair;
mod programs;
mod ready;
mod refusals;
