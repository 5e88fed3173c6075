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
//! * [`groups`]: multicast groups and their members.
//! * [`sa`]: subnet administration.
//!
//! A peer may send any bytes. They never cause a panic, and what is kept for a peer has a limit.
//!
//! Where to read first: [`manager`], then `manager/discovery.rs`, `manager/configure.rs` and
//! `manager/election.rs`.
#![forbid(unsafe_code)]

pub mod groups;
pub mod inventory;
pub mod sa;
