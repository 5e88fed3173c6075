//! A subnet manager and subnet administration, as state machines. They have no clock, no thread and
//! no socket: datagrams are values, and time is an argument. Equal calls give equal results.
//!
//! ```text
//!            datagrams of QP 0                          datagrams of QP 1
//!                  │                                           │
//!   Config ─► Manager ──── &Inventory, notices ───────► subnet administration
//!   LidMap ─►    │   ◄──── set_groups(members) ────────────────┘
//!                │
//!     discovery ─► election ─► lids, partitions, routing ─► what differs is set
//! ```
//! * [`inventory`]: what the manager knows of its subnet.
//! * [`manager`]: the machine. Its folder has a file for each part of a sweep.
//! * [`config`], [`partitions`]: what the operator chooses. [`settings`]: how people write it.
//! * [`lids`]: which LID a port gets, and the map that survives a restart.
//! * [`routing`]: unicast and multicast tables from an inventory. Pure functions.
//! * [`sa`], [`groups`]: subnet administration, and its multicast groups.
//! * [`service`]: the manager and subnet administration together.
//! * [`event`]: what the caller is told. [`address`]: where datagrams go.
//!
//! # To integrate
//!
//! The caller passes datagrams of QP 0 that no agent serves to [`Manager::receive`], calls
//! [`Manager::handle_timeout`] when [`Manager::next_timeout`] is due, and then polls for datagrams
//! and events until there are none. It sets the IsSM bit of its port, and writes the map of
//! [`Event::Lids`] to a file, which [`lids::parse`] reads at the next start. Subnet administration
//! answers while [`Manager::is_up`]. [`Service`] is both machines in one, for QP 0 and QP 1.
//!
//! A peer may send any bytes. They never cause a panic, and what is kept for a peer has a limit.
//!
//! Where to read first: [`manager`], then `manager/discovery.rs`, `manager/configure.rs` and
//! `manager/election.rs`.
#![forbid(unsafe_code)]

pub mod address;
pub mod config;
pub mod event;
pub mod groups;
pub mod inventory;
pub mod lids;
pub mod manager;
pub mod partitions;
pub mod qos;
pub mod routing;
pub mod sa;
pub mod service;
pub mod settings;

pub use address::{Address, Transmit};
pub use config::Config;
pub use event::{Event, Problem};
pub use manager::Manager;
pub use service::Service;
pub use settings::{BadSettings, Settings};
