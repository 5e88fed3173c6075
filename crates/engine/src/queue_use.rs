//! Queue-pair state that other objects need: polling a CQ frees entries of the work queues, and
//! strict mode needs the SRQ. Principal type: [`QueueUse`].

use std::sync::atomic::AtomicU32;

/// How far the program has polled, and the QP's SRQ.
#[derive(Default)]
pub(crate) struct QueueUse {
    /// The entries of the send queue before this index may be used again.
    pub(crate) freed_send: AtomicU32,
    /// The same for the receive queue.
    pub(crate) freed_recv: AtomicU32,
    /// The handle of the SRQ from which it takes receive requests.
    pub(crate) srq: Option<u32>,
}
