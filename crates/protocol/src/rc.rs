//! What makes the reliable connection reliable: the requester's side of answers and going back ([`requester`]), of timers
//! ([`timers`]) and of how much is under way ([`window`]), and the responder's side of answering ([`responder`], [`answers`]).
//! IBA 9.7.

pub(crate) mod answers;
pub(crate) mod requester;
mod responder;
mod timers;
mod window;

pub(crate) use requester::Reliable;
