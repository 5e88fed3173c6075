//! `librdmacm.so.1`: the connection manager for C programs, under the names and versions that
//! programs of rdma-core v44 to v65 look up.
//!
//! It builds on two parts: the agent's `rdma_cm` node, through the `cm` crate, and the C functions
//! of `libibverbs.so.1` ([`verbs`]), which contains the engine. This crate implements what the
//! manual pages of `rdma_cma.h` promise: synchronous ids, the QP that belongs to an id, events and
//! their acknowledgement. The structs are in [`cma`]. Every call enters through [`entry`]. Rsockets
//! (`rsocket(7)`) are in `rsocket/`.

mod address;
mod addrinfo;
mod arrival;
mod attributes;
mod channel;
mod cma;
mod connection;
mod devices;
mod ece;
mod endpoint;
#[allow(dead_code, reason = "shared with libibverbs, which has more kinds of functions")]
#[path = "../../libibverbs/src/entry.rs"]
mod entry;
mod event;
#[allow(unused_macros, unused_imports, reason = "shared with libibverbs, which exports data as well")]
#[path = "../../libibverbs/src/export.rs"]
mod export;
mod exports;
mod get_event;
mod group;
mod id;
mod id_life;
#[allow(dead_code, unused_imports, reason = "the structs of verbs.h, of which libibverbs uses more")]
#[path = "../../libibverbs/src/layout/mod.rs"]
mod layout;
#[path = "../../libibverbs/src/live.rs"]
mod live;
mod membership;
#[allow(dead_code, unused_macros, unused_imports, reason = "shared with libibverbs")]
#[path = "../../libibverbs/src/object.rs"]
mod object;
mod option;
mod qp;
mod reasons;
mod registry;
mod resolve_info;
mod rsocket;
mod shown;
mod sockaddr;
mod srq;
mod verbs;
