//! The client half of the connection manager: event channels and ids over the agent's `rdma_cm`
//! node.
//!
//! A [`Channel`] is one open of the node, as `rdma_create_event_channel(3)` makes one. Ids belong
//! to a channel. Commands name an id by its [`Id`], a number from the agent. Events name it by the
//! cookie that its creator chose. The methods cover the commands that the kernel's `rdma_user_cm.h`
//! defines and the agent serves. Of two forms of a command, they use the newer one. A refusal of
//! the agent is an errno with a sentence ([`Error`]).
//!
//! This crate does not decide who owns an id and when it ends, and it handles neither QPs nor
//! events. `librdmacm` and `softhca::cm` do this, each in its own way.
#![forbid(unsafe_code)]

mod address;
mod channel;
mod commands;
mod event;
mod event_socket;
mod param;

pub use address::{Address, AddressIb};
pub use channel::Channel;
pub use engine::{Error, Result};
pub use event::{ConnEvent, Event, EventKind, Known, UdEvent};
pub use param::{
    Addresses, ConnParam, Ece, Gids, Id, Multicast, MulticastJoin, Path, PortSpace, QpAttributes, QpKind, QpState,
    SetOption,
};
