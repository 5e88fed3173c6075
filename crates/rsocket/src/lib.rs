//! rsockets without sockets and without RDMA: the messages, the credits and the rings of
//! rdma-core's rsocket protocol, version 1 (`librdmacm/docs/rsocket` of rdma-core describes it). So
//! peers with rdma-core's library can connect.
//!
//! A connection is a [`Stream`]. It says what to post, and its owner tells it what has completed.
//! It never sees the memory with the data. A datagram socket needs no state here, only the headers
//! in [`datagram`]. This crate has no clock, no memory and no queue pair; `librdmacm` has them.
//!
//! Where to read first: [`message`], then [`stream`].
#![forbid(unsafe_code)]

pub mod connect;
pub mod datagram;
pub mod iomap;
pub mod message;
pub mod ring;
pub mod stream;
pub mod target;
mod violation;
pub mod window;

pub use message::{Control, Message};
pub use stream::Stream;
pub use target::{Order, Target};
pub use violation::Violation;
