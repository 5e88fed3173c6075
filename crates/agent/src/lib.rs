//! The agent: it plays the kernel's part for verbs programs, in a process of its own or inside a
//! test.
//!
//! The agent owns devices and their ports. It checks every command that a program's engine sends,
//! keeps the tables of objects, allocates queue memory, and creates the lanes between engines. Data
//! on lanes does not pass through it. It forwards packets of other hosts, unless an engine reads
//! the sockets. [`world::World`] is all of its state, and [`dispatch::dispatch`] carries out
//! commands. [`Agent`] runs them behind sockets in a run directory, or without one for clients in
//! the same process. The `abi` crate defines the commands. The engine moves the data.
#![forbid(unsafe_code)]

pub mod account;
pub mod addresses;
pub mod admin;
pub mod agent;
mod asker;
pub mod board;
mod bounds;
mod capture;
mod client;
pub mod closer;
mod cm;
pub mod commands;
pub mod config;
pub mod context;
mod deferred_free;
pub mod device;
mod device_changes;
pub mod device_clients;
pub mod devices;
pub mod dispatch;
pub mod dscp;
pub mod engine_link;
mod fair;
pub mod faults;
pub mod foreign;
mod freed_later;
pub mod gids;
mod headroom;
pub mod host;
pub mod identity;
mod ids;
mod inadmissible;
mod inbox;
pub mod kept_lids;
pub mod lanes;
pub mod lids;
mod lifecycle;
pub mod limits;
mod listening;
pub mod local;
mod mad_numbers;
mod mads;
mod management;
mod mapped;
mod mirror;
mod netlink;
mod node_views;
pub mod numbers;
pub mod objects;
mod outward;
pub mod pending;
pub mod pkeys;
mod poller;
pub mod port_change;
mod ports;
pub mod priority;
mod proxy;
pub mod queue_memory;
pub mod rate;
mod reasons;
pub mod refusal;
pub mod relays;
pub mod rnic;
pub mod rundir;
mod server;
pub mod shares;
mod show;
mod stepped;
mod streams;
pub mod subnet_settings;
pub mod table;
#[cfg(test)]
mod testing;
pub mod topology;
mod traffic;
pub mod users;
mod violation_counts;
mod violations;
pub mod wire;
pub mod world;

pub use agent::{Agent, AgentHandle, StartError, require_addresses};
pub use config::{Config, ConfigError};
pub use listening::FILES_MIN;
pub use local::{LocalChannel, LocalControl};
pub use mads::{OwnManager, change_of, change_of_link};
pub use stepped::{Stepped, SteppedChannel, SteppedControl};
