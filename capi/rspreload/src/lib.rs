//! `librspreload.so`: put into `LD_PRELOAD`, it makes the internet sockets of an unmodified program rsockets (`rsocket(7)`), so that
//! their data travels by RDMA. Both sides of a connection need it, or use rsockets themselves.
//!
//! Each function of the C library that takes a socket stands here under its own name. A descriptor that is no rsocket goes to the
//! C library's function; that is one look into an array ([`table`]). The descriptor that the program sees is one of its own, which
//! stands for the rsocket's; so `dup`, `close` and `exec` treat it as any other. [`next`] has the C library's functions,
//! [`rdma`] those of `librdmacm.so.1`, which is loaded with the first socket. A connection that nobody takes by RDMA is tried by TCP.
//!
//! A forked child cannot use its parent's connections. With `RDMAV_FORK_SAFE=1`, on both sides, a connection begins as one of TCP
//! and becomes an rsocket with the first byte, in whichever process that is ([`fork`]).
//!
//! Not seen are programs that do not call the C library, and what the C library does itself (`FILE` on a socket, name look-ups).
#![cfg_attr(test, allow(dead_code, reason = "a test program keeps the C library's own functions"))]

mod data;
mod epoll;
mod files;
mod fork;
mod next;
mod rdma;
mod sockets;
mod table;
mod wait;
