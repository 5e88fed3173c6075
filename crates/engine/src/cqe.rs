//! The entries of a completion queue and its control words, as they lie in queue memory. Principal
//! type: [`Cqe`].

use abi::cq::Wc;
use bytemuck::{Pod, Zeroable};

/// The control words of a CQ, by offset (see the ABI document, "queue memory").
pub(crate) mod word {
    pub(crate) const PRODUCER: usize = 0;
    pub(crate) const CONSUMER: usize = 4;
    pub(crate) const ARMED: usize = 8;
    pub(crate) const OVERRUN: usize = 12;
    pub(crate) const COMP_EVENTS: usize = 16;
    pub(crate) const ASYNC_EVENTS: usize = 20;
    pub(crate) const ENTRIES: usize = 64;
}

/// One entry as it lies in queue memory.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Cqe {
    pub(crate) wc: Wc,
    pub(crate) timestamp: u64,
    /// The work queue's index after this entry's request. A poll frees the entries before this
    /// index.
    pub(crate) freed: u32,
    /// The queue to free: [`FREES_SEND`], [`FREES_RECV`], or 0 for no queue.
    pub(crate) frees: u32,
}

// `Cq::take_each` reads the entry by this layout.
const _: () = assert!(size_of::<Cqe>() == 64 && std::mem::offset_of!(Cqe, freed) == size_of::<Wc>() + 8);

/// The entry completes a send request.
pub(crate) const FREES_SEND: u32 = 1;
/// The entry completes a receive request of the QP's own queue.
pub(crate) const FREES_RECV: u32 = 2;
