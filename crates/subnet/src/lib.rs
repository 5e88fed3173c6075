//! An InfiniBand fabric as a model: ports, links, switches and routers.
#![forbid(unsafe_code)]

pub mod arbitration;
pub mod counters;
pub mod credit;
pub mod frame;
pub mod pkey;
pub mod rate;
pub mod service;
pub mod state;

pub use counters::{Cause, Counters};
pub use frame::Frame;
pub use rate::{Mtu, Rate, Speed, Time, Width};
