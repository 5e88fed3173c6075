//! `libsofthca_preload.so`: the path redirector. `softhca run` puts it into `LD_PRELOAD`. For the
//! program and its children, `/sys/class/infiniband…` and `/dev/infiniband` then come from the
//! agent's mirror, whatever the host has there.
//!
//! Each function of the C library that takes a path is replaced here under its own name. It looks
//! at the first characters of the path. If the path cannot be redirected, it only calls the next
//! function of that name with its arguments. Otherwise the next function gets the mirror's path
//! instead. [`paths`] decides what a path means, and is pure. [`root`] knows where the mirror is.
//! [`entry`] is the only entry: it makes the functions, and gives pointers of the program their own
//! types.
//!
//! The agent also takes the kernel's place for sockets of NETLINK_RDMA ([`netlink`]), for the nodes
//! of management datagrams ([`mads`]), and for the interfaces of a topology's node ([`interfaces`]).
//!
//! Rules for every function: it allocates only where the C library allocates, takes no lock and
//! never panics. So a program may call it in a signal handler, in a forked child and before `main`.
//! `errno` is what the C library would have set. The code behind the entry calls the *next*
//! functions, never the functions of this library. Programs that do not call the C library
//! (statically linked ones, Go) cannot be redirected.
#![cfg_attr(test, allow(dead_code, reason = "a test program keeps the C library's own functions"))]

mod access;
mod attributes;
mod connection;
mod counters;
mod directories;
mod duplicates;
mod entry;
mod interfaces;
mod links;
mod mad_file;
mod mads;
mod marks;
mod netlink;
mod next;
mod open;
mod packet;
mod parent;
mod paths;
mod root;
mod socket;
mod stat;
mod tree_walk;
mod wildcard;

interpose::when_loaded!({
    next::NEXT.look_up_all();
    root::learn();
    mads::adopt_inherited();
    parent::follow();
});
