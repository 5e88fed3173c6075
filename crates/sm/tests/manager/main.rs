//! The manager in managed fabrics. Each test is named by its outcome. [`net`] builds the fabrics.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails where it should")]

mod changes;
mod elections;
mod groups;
mod hostile;
mod keys;
mod net;
mod random;
mod service;
mod sweep;
