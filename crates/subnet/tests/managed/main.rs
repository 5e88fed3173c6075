//! A fabric with agents and a small manager in it. Each test is named by its outcome. [`net`]
//! builds the fabric, [`manager`] manages it.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod classes;
mod keys;
mod links;
mod manager;
mod net;
mod random;
mod sweep;
mod tables;
mod tunnels;
