//! The client half of the connection manager: event channels and ids over the agent's `rdma_cm` node.
//!
//! A [`Channel`] is one open of the node, as `rdma_create_event_channel(3)` makes one. Ids live on a channel and are named by an
//! [`Id`], a number that the agent gave out; events name them by the cookie that their maker chose. Every command of the kernel's
//! `rdma_user_cm.h` is a method here; what the agent refuses comes back as errno and sentence ([`Error`]).
//!
//! Not here: who owns an id and when it ends, QPs, and what to do about an event. `librdmacm` and `softhca::cm` do that, each in
//! its own way.
#![forbid(unsafe_code)]

mod address;
mod bell;
mod channel;
mod commands;
mod event;
mod param;

pub use address::{Address, AddressIb};
pub use channel::Channel;
pub use engine::{Error, Result};
pub use event::{ConnEvent, Event, EventKind, Known, UdEvent};
pub use param::{
    Addresses, ConnParam, Ece, Gids, Id, Multicast, MulticastJoin, Path, PortSpace, QpAttributes, QpKind, QpState,
    SetOption,
};
