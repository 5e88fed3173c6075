//! Engines and their peers: lanes, routes, direct access, faults, captures and hostile peers.
//!
//! One program for all of them, so that they are linked once. No test shares an agent with another
//! one.

#[path = "../common/mod.rs"]
mod common;

mod broken_helper;
mod capture;
mod direct;
mod direct_ends;
mod direct_peers;
mod faults;
mod faults_apart;
mod groups;
mod hostile;
mod hosts;
mod leftovers;
mod lids;
mod long_messages;
mod nobody;
mod random;
mod retries;
mod routes;
mod scheduler;
mod spinning;
mod threads;
