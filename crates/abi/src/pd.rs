//! Protection domains: ALLOC_PD and DEALLOC_PD.

record! {
    /// ALLOC_PD (3), request.
    pub struct AllocPd[8] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
    }

    /// ALLOC_PD (3), answer; `PdOut` follows.
    pub struct AllocPdAnswer[4] {
        /// Handle of the new PD.
        0 => pd_handle: u32,
    }

    /// DEALLOC_PD (4), request; no answer.
    pub struct DeallocPd[4] {
        /// Handle of the PD.
        0 => pd_handle: u32,
    }
}
