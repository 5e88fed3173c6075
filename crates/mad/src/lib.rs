//! Management datagrams as state machines, without clock, socket or memory of others: time is an
//! argument, and datagrams are values. Not their formats, which `wire` has.
//!
//! * [`transactions`]: requests that wait for an answer, with timeouts and retries; the rule of
//!   transaction ids.
//! * [`rmpp`]: messages that are longer than one datagram.
//! * [`client`]: what a client has outstanding of both.
//! * [`dispatch`]: which client serves which class and method.
//! * [`key`]: packets with a wrong key.
//! * [`node`]: the state of a node that management sees. [`sma`] and [`pma`] are its agents,
//!   [`samples`] samples its counters, [`smi`] forwards directed routes through it, and [`traps`]
//!   are its notices to the manager.
//! * [`topology`]: files that describe a subnet.
//!
//! A peer may send any bytes. They never cause a panic, and each machine has a limit for what it
//! holds.
#![forbid(unsafe_code)]

pub mod client;
pub mod counters;
pub mod dispatch;
pub mod key;
pub mod node;
pub mod pma;
pub mod rmpp;
pub mod samples;
pub mod sma;
pub mod smi;
pub mod topology;
pub mod transactions;
pub mod traps;
