//! `libibverbs.so.1`: the C face of softhca. Programs written for `verbs.h` find every function here under the name and version
//! that they were linked with.
//!
//! This crate translates and decides nothing: C structs to the engine's calls, refusals to errno values. The door for every
//! call is [`entry`]; what the C structs look like is [`layout`]; which names are exported, and how, is in `exports`,
//! `exports_first`, `exports_private` and `export`. It holds no state but the list of devices that the process has seen, and which objects are
//! [`live`].

mod acks;
mod address;
mod buffer;
mod channel;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod devices;
mod dm;
mod dmah;
mod ece;
mod entry;
mod events;
mod export;
mod exports;
mod exports_first;
mod exports_private;
mod first;
mod fork;
mod import;
mod kern;
mod layout;
mod live;
mod log;
mod mcast;
mod memory;
mod object;
mod parent;
mod pd;
mod post;
mod provider;
mod qp;
mod qp_ex;
mod query;
mod rates;
mod srq;
mod sysfs;
#[cfg(test)]
mod tests;
mod text;
mod why;
mod window;
mod xrc;
