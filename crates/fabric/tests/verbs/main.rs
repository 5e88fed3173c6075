//! Verbs and objects: what programs post, receive and change, between engines of one host and
//! between hosts.
//!
//! All these tests are one program, so that they are linked once. No two tests share an agent.

#[path = "../common/mod.rs"]
mod common;

mod completion_queues;
mod datagrams;
mod device_gone;
mod device_memory;
mod embedded;
mod inline_first;
mod memory;
mod notification;
mod operations;
mod posting;
mod refusals;
mod registrations;
mod shared_receive;
mod shown;
mod states;
mod why;
mod windows;
mod xrc;
mod xrc_proxy;
mod xrc_shared;
