//! `libibverbs.so.1`: the C interface of softhca. Programs written for `verbs.h` find every
//! function here under the name and version that they were linked with.
//!
//! This crate only translates: C structs to the engine's calls, and refusals to errno values. It
//! decides nothing. Every call enters through [`entry`]. [`layout`] describes the C structs.
//! `exports`, `exports_first`, `exports_private` and `export` say which names are exported, and
//! how. The only state is the list of devices that the process has seen, and the table of [`live`]
//! objects.

mod acks;
mod address;
mod buffer;
mod channel;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
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
mod lists;
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
