//! The engine: the HCA's data path, inside the process that uses it.
//!
//! Work requests go from queue memory through the transport's state machines to lanes. Data from
//! lanes goes the other way, into the program's memory. [`Engine`] is one context; its [`Core`] is
//! the part without queues. Its objects are `Arc`s: [`Pd`], [`Mr`], [`Cq`], [`Channel`], [`Srq`],
//! [`Qp`] and [`Ah`]. The engine asks the agent through [`Control`] and does none of the agent's
//! work.
//!
//! Unsafe code is in `usermem` (fault-safe access to the program's memory), `access` (which forms
//! its addresses), `lock` and `tsc`.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the one place that forms addresses of the program's memory")]
mod access;
mod addressing;
mod adopt;
mod advice;
mod ah;
mod arrived;
mod async_modify;
mod board;
mod budget;
pub mod capture;
mod cell;
mod channel;
mod clock;
mod control;
mod core;
mod cq;
mod datagram;
mod direct;
mod dm;
mod drops;
mod ece;
mod engine;
mod error;
mod event;
mod event_file;
mod expected;
mod extent;
mod faults;
mod flows;
mod grant_table;
mod helper;
mod idle;
mod import;
mod kept;
mod keys;
mod lane;
mod lid;
pub mod lint;
mod local_requests;
#[allow(unsafe_code, reason = "a lock is a promise that only its author can make")]
mod lock;
pub mod log;
mod mcast;
mod memory;
mod migration;
mod moderation;
mod mr;
mod mw;
mod net;
mod network;
mod noticed;
mod out_of_order;
mod pace;
mod parent;
mod partition;
mod paths;
mod pd;
mod pollers;
mod post_error;
mod progress;
mod progress_mode;
mod proxy;
mod put;
mod qp;
mod queue_use;
pub mod reason;
mod receive;
mod remote_srq;
mod request;
mod rnr_grace;
mod route;
pub mod rundir;
mod send;
mod simulated;
mod special;
mod srq;
mod srq_request;
mod stall;
mod state;
mod step;
mod stream;
mod table;
mod target;
mod traffic;
mod transmit;
#[allow(unsafe_code, reason = "the one instruction has no safe name")]
mod tsc;
mod untold;
#[allow(unsafe_code, reason = "its purpose: the program's memory may vanish while it is copied")]
pub mod usermem;
mod violations;
mod watchdog;
mod why;
mod window;
mod xrc;

pub use self::core::Core;
pub use ah::{AddressVector, Ah};
pub use channel::Channel;
pub use control::{Answer, Control, SocketControl};
pub use cq::{Cq, CqSpec, EventCounts};
pub use direct::VARIABLE as DIRECT_VARIABLE;
pub use dm::Dm;
pub use ece::Ece;
pub use engine::Engine;
pub use error::{Error, Result, by_system, refusal};
pub use event::AsyncEvent;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use lock::witness::locks_taken;
pub use mr::Mr;
pub use mw::Mw;
pub use network::{Network, Outlet};
pub use pace::RateLimit;
pub use parent::{Allocator, Purpose, Td};
pub use pd::Pd;
pub use post_error::{PostCause, PostError, WorkQueue};
pub use protocol::Service;
pub use qp::{Caps, Qp, QpSpec, RecvWr};
pub use send::{Flush, Mark, SendBatch, SendWr};
pub use shm::cancellation::without_cancellation;
pub use shm::region::{Lender, Region};
pub use shm::{Sink, Source};
pub use simulated::Simulated;
pub use srq::{Srq, SrqSpec};
pub use step::Step;
pub use stream::dropping::drop_arrived;
pub use why::Names;
pub use window::Bind;
pub use wire::Feth;
pub use xrc::{Hold, InitiatorSpec, Xrcd};
