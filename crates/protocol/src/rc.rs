//! What makes the reliable connection reliable: the requester's side of answers and going back ([`requester`]), of timers
//! ([`timers`]), of how much is under way ([`window`]) and of what the receiver can take ([`credits`]), and the responder's side of answering ([`responder`], [`answers`])
//! and, on both sides, the middle of long messages ([`segment_run`], [`awaited_run`]) and out-of-order packets ([`out_of_order`]).
//! IBA 9.7.

pub(crate) mod answers;
pub(crate) mod awaited_run;
mod confirmed;
mod credits;
pub(crate) mod fast_path;
pub(crate) mod out_of_order;
pub(crate) mod requester;
mod responder;
pub(crate) mod segment_run;
pub(crate) mod standing;
mod timers;
mod window;

pub(crate) use requester::Reliable;
