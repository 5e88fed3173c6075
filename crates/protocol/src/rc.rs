//! The reliable connection's own rules; not what all services share, which is in
//! [`crate::requester`] and [`crate::responder`]. On the requester's side: responses and going back
//! ([`requester`]), and the window, end-to-end credits and timers ([`window`]). On the responder's
//! side: checking requests ([`responder`]) and answering them ([`answers`]). On both sides:
//! out-of-order packets ([`out_of_order`]). Principal type: [`Reliable`]. IBA 9.7.

pub(crate) mod answers;
mod confirmed;
pub(crate) mod out_of_order;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod standing;
mod window;

pub(crate) use requester::Reliable;
