//! An InfiniBand fabric as a model: ports, links, switches and routers.
#![forbid(unsafe_code)]

pub mod arbitration;
pub mod counters;
pub mod credit;
pub mod deadlock;
pub mod fabric;
pub mod frame;
pub mod pkey;
pub mod port;
pub mod rate;
pub mod router;
pub mod service;
pub mod state;
pub mod switch;

pub use counters::{Cause, Counters};
pub use fabric::{Delivery, End, Fabric, NodeId};
pub use frame::Frame;
pub use rate::{Mtu, Rate, Speed, Time, Width};
