//! Device memory, and objects shared between contexts: softhca's own commands ALLOC_DM, FREE_DM,
//! IMPORT_CONTEXT, IMPORT_PD, IMPORT_MR and IMPORT_DM, for which a kernel has ioctls.

record! {
    /// ALLOC_DM (208), request.
    pub struct AllocDm[16] {
        /// Length in bytes.
        0 => length: u64,
        /// Alignment wanted, as a power of two; at most 12.
        8 => log_align_req: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// ALLOC_DM (208) and IMPORT_DM (213), answer. One fd is attached: the memory's memfd.
    pub struct DmOut[16] {
        /// Handle of the device memory in this context.
        0 => dm_handle: u32,
        /// 0.
        4 => reserved: u32,
        /// Length in bytes.
        8 => length: u64,
    }

    /// FREE_DM (209), request; no answer.
    pub struct FreeDm[8] {
        /// Handle of the device memory.
        0 => dm_handle: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// IMPORT_CONTEXT (210), request. One fd is attached: the region of the other context's page,
    /// which identifies that context.
    pub struct ImportContext[8] {
        /// 0.
        0 => flags: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// IMPORT_CONTEXT (210), answer.
    pub struct ImportContextAnswer[8] {
        /// Number of the other context.
        0 => context: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// IMPORT_PD (211) and IMPORT_DM (213), request.
    pub struct Import[8] {
        /// Handle in the other context.
        0 => handle: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// IMPORT_PD (211), answer.
    pub struct ImportPdAnswer[8] {
        /// Handle of the PD in this context; DEALLOC_PD releases it.
        0 => pd_handle: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// IMPORT_MR (212), request.
    pub struct ImportMr[8] {
        /// An imported PD of this context.
        0 => pd_handle: u32,
        /// Handle of the MR in the other context. The MR must be on that PD.
        4 => handle: u32,
    }

    /// IMPORT_MR (212), answer. For an MR of device memory, the memory's memfd is attached.
    pub struct ImportMrAnswer[48] {
        /// Handle of the MR in this context; DEREG_MR releases it.
        0 => mr_handle: u32,
        /// Its key, as in the other context.
        4 => key: u32,
        /// Address of the first byte, or its offset in the device memory.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// Address of the first byte in work requests.
        24 => hca_va: u64,
        /// Rights.
        32 => access_flags: u32,
        /// As in `MrIn`: the kind of memory.
        36 => flags: u32,
        /// For device memory: the length of the whole device memory in bytes.
        40 => dm_length: u64,
    }
}
