//! rsockets: sockets whose data travels by RDMA (`rsocket(7)`), so that a peer may be rdma-core's library.
//!
//! What is said on the wire is decided in the crate `rsocket`; here are the queue pairs, the memory, the descriptors, and who waits
//! for what. [`stream`] is a connection or a listener, [`datagram`] a socket of datagrams, [`poll`] waits for many of them and for
//! ordinary descriptors. [`table`] finds a socket by its descriptor, [`api`] and [`options`] are the C functions.
//!
//! There are no threads but one for keepalives: a socket is driven by who calls its functions. Who waits sleeps on descriptors
//! after a short spin; whoever finds something for others wakes them ([`waiting`]).

mod address;
mod api;
mod api_data;
mod cm;
mod datagram;
mod epoll;
mod exports;
mod iomap;
mod keepalive;
mod link;
mod memory;
mod options;
mod poll;
mod settings;
mod stream;
mod table;
mod vectors;
mod verbs;
mod waiting;

use crate::entry::{Outcome, Refusal};

/// "Not now": what a socket that does not wait says.
pub(crate) const AGAIN: Refusal = Refusal(libc::EAGAIN);

/// For functions that return a number of bytes, or -1 and `errno`.
pub(crate) fn bytes(name: &'static str, body: impl FnOnce() -> Outcome<usize>) -> isize {
    crate::entry::value(name, || match body() {
        Ok(count) => count.cast_signed(),
        Err(refusal) => {
            crate::entry::set_errno(refusal);
            -1
        }
    })
}
