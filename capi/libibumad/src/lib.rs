//! `libibumad.so.3`: management datagrams (MADs) for C programs, under the names and versions that
//! programs look up.
//!
//! A *port* of this library is an open file `umadN`: a connection to the agent's node `umad`
//! ([`abi::umad`] is the contract). The descriptor can be polled, because MADs arrive on the
//! connection itself ([`file`]). Facts about devices come from the agent's mirror of
//! `/sys/class/infiniband` ([`sysfs`]). The path redirector is not needed for either. It is needed
//! to open the path of `umad_get_issm_path`, and for `ioctl` on the descriptor. The structs of
//! `umad.h` are in [`layout`].

mod describe;
mod devices;
#[allow(dead_code, unused_macros, unused_imports, reason = "shared with libibverbs, which has more kinds of functions")]
#[path = "../../libibverbs/src/entry.rs"]
mod entry;
#[allow(unused_macros, unused_imports, reason = "shared with libibverbs, which exports data as well")]
#[path = "../../libibverbs/src/export.rs"]
mod export;
mod exports;
mod file;
mod layout;
mod list;
mod message;
mod names;
mod pairs;
mod port;
mod sysfs;
mod transfer;
