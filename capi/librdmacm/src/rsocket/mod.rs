//! rsockets: sockets whose data travels by RDMA (`rsocket(7)`). The peer may use rdma-core's
//! library.
//!
//! The crate `rsocket` decides the protocol on the wire. This module has the queue pairs, the
//! memory, the descriptors, and the waiting. [`stream`] is a connection or a listener, and
//! [`datagram`] is a datagram socket. [`poll`] waits for many sockets and for ordinary descriptors.
//! [`table`] finds a socket by its descriptor. [`api`] and [`options`] are the C functions.
//!
//! The only thread is that for keepalives. The program's own threads drive a socket when they call
//! its functions. A waiting thread spins for a short time and then sleeps on descriptors. A thread
//! that finds work for other threads wakes them ([`waiting`]).

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
mod watched;
mod words;

use crate::entry::{Outcome, Refusal};

/// The answer "not now" of a nonblocking socket.
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
