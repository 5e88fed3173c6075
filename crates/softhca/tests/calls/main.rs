//! Programs written against the crate, on agents of their own.

#[path = "../common/mod.rs"]
mod common;

mod batch;
mod cancel;
mod connections;
mod echo;
mod kv;
mod operations;
mod own_memory;
mod ownership;
mod pingpong;
mod reasons;
mod task_connections;
mod tasks;
