//! `librspreload.so`: in `LD_PRELOAD`, it turns the internet sockets of an unmodified program into
//! rsockets (`rsocket(7)`), so that their data travels by RDMA. Both sides of a connection need it,
//! or must use rsockets themselves.
//!
//! Each function of the C library that takes a socket is replaced here under its own name. A
//! descriptor that is not an rsocket goes to the C library's function, after one look into an array
//! ([`table`]). The program sees a descriptor of its own, which stands for the rsocket's
//! descriptor. So `dup`, `close` and `exec` treat it as any other. [`next`] has the C library's
//! functions. [`rdma`] has those of `librdmacm.so.1`, which is loaded with the first socket. If no
//! RDMA peer accepts a connection, TCP is tried.
//!
//! A forked child cannot use its parent's connections. With `RDMAV_FORK_SAFE=1` on both sides, a
//! connection begins as a TCP connection and becomes an rsocket with the first byte, in the process
//! that sends or receives it ([`fork`]).
//!
//! This library does not see programs that do not call the C library, nor calls inside the C
//! library (`FILE` on a socket, name look-ups).
#![cfg_attr(test, allow(dead_code, reason = "a test program keeps the C library's own functions"))]

mod data;
mod epoll;
mod files;
mod fork;
mod next;
mod rdma;
mod sizes;
mod sockets;
mod table;
mod wait;
