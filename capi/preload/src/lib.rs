//! `libsofthca_preload.so`: the path redirector. `softhca run` puts it into `LD_PRELOAD`, and for the program and its
//! children `/sys/class/infiniband…` and `/dev/infiniband` are what the agent's mirror says, whatever the host has there.
//!
//! Each function of the C library that takes a path stands here under its own name. It looks at the first characters of
//! the path; if they are none of ours it calls the next function of that name with what it was given, and that is all.
//! Else the next function gets the mirror's path instead. What a path means is decided in [`paths`], which is pure; where
//! the mirror lies is [`root`]'s to know. [`entry`] is the one door: it makes the functions, and pointers of the program
//! have types of their own behind it.
//!
//! One thing more is the agent's in place of the kernel's: sockets of NETLINK_RDMA ([`netlink`]).
//!
//! What holds for every function: no allocation where the C library makes none, no lock, no panic, so that it may be called
//! in a signal handler, in a forked child and before `main`; `errno` is what the C library would have set. The work behind
//! the door calls the *next* functions and never the ones here. Programs that do not call the C library (statically linked
//! ones, Go) are out of reach.
#![cfg_attr(test, allow(dead_code, reason = "a test program keeps the C library's own functions"))]

mod access;
mod attributes;
mod directories;
mod entry;
mod links;
mod netlink;
mod next;
mod open;
mod paths;
mod root;
mod socket;
mod stat;
mod tree_walk;
mod wildcard;
