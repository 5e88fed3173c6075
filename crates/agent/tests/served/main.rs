//! An agent that runs, and clients that use its socket.
//!
//! These tests share a program because they leave its limits alone. Tests that lower a limit of
//! their process have a program each (`scarce_memory` and its neighbours).

#[path = "../common/mod.rs"]
mod common;

mod blocked_user;
mod descriptors;
mod floods;
mod floods_of_commands;
mod fuse;
mod hotplug;
mod lanes;
mod life;
mod memory_lock;
mod netlink;
mod slow_clients;
mod slow_path;
