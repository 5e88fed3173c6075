//! Every byte that crosses a process boundary in softhca.
//!
//! A client (the verbs library, or any program that talks to an agent's node itself) and the agent
//! exchange the commands of the uverbs ABI, version 6, in a small envelope. Both map queue memory
//! with a fixed layout. This crate has the records ([`layout::Record`]), their constants, the rules
//! that decide whether a command is well formed ([`command::admit`]), and [`document()`], which
//! generates `docs/abi.md` from all of them.
//!
//! The crate has no socket, clock, thread or shared memory. It names words in shared memory by
//! their offsets; other crates read and write them.
#![forbid(unsafe_code)]

#[macro_use]
pub mod layout;

pub mod ah;
pub mod board;
pub mod capture;
pub mod command;
pub mod cq;
pub mod device;
pub mod dm;
mod document;
pub mod envelope;
pub mod errno;
pub mod event;
pub mod fault;
pub mod interfaces;
pub mod lid;
pub mod mcast;
pub mod mr;
pub mod netlink;
pub mod open;
pub mod pd;
pub mod post;
pub mod private;
pub mod qp;
pub mod queue;
pub mod reason;
pub mod refusal;
pub mod rtnetlink;
pub mod srq;
pub mod stream;
pub mod target;
pub mod ucma;
pub mod umad;
pub mod wire;
pub mod wq;
pub mod xrc;

pub use document::document;
pub use errno::Errno;
pub use layout::Record;
pub use refusal::Refusal;
