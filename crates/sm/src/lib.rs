//! A subnet manager and subnet administration, as state machines. They have no clock, no thread and
//! no socket: datagrams are values, and time is an argument. Equal calls give equal results.
//!
//! * [`inventory`]: what the manager knows of its subnet.
//!
//! A peer may send any bytes. They never cause a panic, and what is kept for a peer has a limit.
#![forbid(unsafe_code)]

pub mod inventory;
