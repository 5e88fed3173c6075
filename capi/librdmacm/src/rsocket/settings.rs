//! The options that a program has set on a socket, and the defaults (those of rdma-core, except for
//! the buffer sizes). The principal type is [`Settings`].

use super::waiting::Patience;
use rsocket::stream::Sizes;
use std::ffi::c_int;
use std::time::Duration;

/// The default buffer size. If two programs share a processor, a large buffer lets one send more
/// before the other runs, and so there are fewer context switches for each byte. Pages that were
/// never written cost no memory.
const BUFFER: u32 = 1 << 22;

/// The options of one socket. A connection inherits its listener's.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `SO_SNDBUF` and `SO_RCVBUF`, doubled as Linux doubles them.
    pub(crate) send_buffer: u32,
    pub(crate) receive_buffer: u32,
    /// `RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE`, `RDMA_IOMAPSIZE`.
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    pub(crate) inline: u32,
    pub(crate) iomap: u16,
    /// `RDMA_ROUTE`.
    pub(crate) route: Option<Vec<u8>>,
    /// `F_SETFL` and `F_SETFD`.
    pub(crate) status_flags: c_int,
    pub(crate) descriptor_flags: c_int,
    /// `SO_KEEPALIVE`, `TCP_KEEPIDLE`.
    pub(crate) keepalive: bool,
    pub(crate) keepalive_time: u32,
    /// `SO_LINGER`.
    pub(crate) linger: Option<c_int>,
    /// `SO_RCVTIMEO`, `SO_SNDTIMEO`.
    pub(crate) receive_limit: Option<Duration>,
    pub(crate) send_limit: Option<Duration>,
    /// Options that are only stored: `SO_REUSEADDR`, `SO_OOBINLINE`, `TCP_NODELAY`, `IPV6_V6ONLY`;
    /// and `IP_TOS`.
    pub(crate) reuse_address: bool,
    pub(crate) oob_inline: bool,
    pub(crate) no_delay: bool,
    pub(crate) v6_only: bool,
    pub(crate) traffic_class: c_int,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_buffer: BUFFER,
            receive_buffer: BUFFER,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            iomap: 0,
            route: None,
            status_flags: 0,
            descriptor_flags: 0,
            keepalive: false,
            keepalive_time: 7200,
            linger: None,
            receive_limit: None,
            send_limit: None,
            reuse_address: false,
            oob_inline: false,
            no_delay: false,
            v6_only: false,
            traffic_class: 0,
        }
    }
}

impl Settings {
    /// The sizes of a connection's rings and queues.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            send_ring: self.send_buffer,
            receive_ring: self.receive_buffer,
            send_queue: self.send_queue,
            receive_queue: self.receive_queue,
        }
    }

    /// Whether a call with these flags is nonblocking.
    pub(crate) fn never_waits(&self, flags: c_int) -> bool {
        self.status_flags & libc::O_NONBLOCK != 0 || flags & libc::MSG_DONTWAIT != 0
    }

    /// How long a receiving call may wait.
    pub(crate) fn receive_patience(&self, flags: c_int) -> Patience {
        if self.never_waits(flags) { Patience::None } else { Patience::of(self.receive_limit) }
    }

    /// How long a sending call may wait.
    pub(crate) fn send_patience(&self, flags: c_int) -> Patience {
        if self.never_waits(flags) { Patience::None } else { Patience::of(self.send_limit) }
    }
}
