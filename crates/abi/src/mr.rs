//! Memory regions and windows: REG_MR, REREG_MR, DEREG_MR, ALLOC_MW, DEALLOC_MW, and the access
//! rights.

record! {
    /// REG_MR (9), request; `MrIn` may follow.
    pub struct RegMr[40] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Address of the first byte in the caller's address space.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// Address by which work requests will name the first byte; equal to `start` modulo 4096.
        24 => hca_va: u64,
        /// PD of the region.
        32 => pd_handle: u32,
        /// Rights: see `access`.
        36 => access_flags: u32,
    }

    /// REG_MR (9), answer.
    pub struct RegMrAnswer[12] {
        /// Handle of the new MR.
        0 => mr_handle: u32,
        /// Key for local use, in scatter/gather entries.
        4 => lkey: u32,
        /// Key for remote use.
        8 => rkey: u32,
    }

    /// REREG_MR (11), request.
    pub struct ReregMr[48] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the MR.
        8 => mr_handle: u32,
        /// What changes: see `rereg`.
        12 => flags: u32,
        /// New address of the first byte (with TRANSLATION).
        16 => start: u64,
        /// New length in bytes (with TRANSLATION).
        24 => length: u64,
        /// New address in work requests (with TRANSLATION).
        32 => hca_va: u64,
        /// New PD (with PD).
        40 => pd_handle: u32,
        /// New rights (with ACCESS).
        44 => access_flags: u32,
    }

    /// REREG_MR (11), answer.
    pub struct ReregMrAnswer[8] {
        /// New key for local use.
        0 => lkey: u32,
        /// New key for remote use.
        4 => rkey: u32,
    }

    /// DEREG_MR (13), request; no answer.
    pub struct DeregMr[4] {
        /// Handle of the MR.
        0 => mr_handle: u32,
    }

    /// ALLOC_MW (14), request.
    pub struct AllocMw[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// PD of the window.
        8 => pd_handle: u32,
        /// 1 or 2.
        12 => mw_type: u8,
        /// 0.
        13 => reserved: [u8; 3],
    }

    /// ALLOC_MW (14), answer.
    pub struct AllocMwAnswer[8] {
        /// Handle of the new MW.
        0 => mw_handle: u32,
        /// Its key.
        4 => rkey: u32,
    }

    /// DEALLOC_MW (16), request; no answer.
    pub struct DeallocMw[4] {
        /// Handle of the MW.
        0 => mw_handle: u32,
    }
}

constants! {
    /// Rights of a memory region, and of a QP towards its peer.
    pub mod access: u32 {
        /// The owner's work requests may write (receive buffers, READ and atomic results).
        LOCAL_WRITE = 1,
        /// The peer may RDMA WRITE; needs LOCAL_WRITE.
        REMOTE_WRITE = 2,
        /// The peer may RDMA READ.
        REMOTE_READ = 4,
        /// The peer may do atomics; needs LOCAL_WRITE.
        REMOTE_ATOMIC = 8,
        /// Memory windows may be bound to the region.
        MW_BIND = 16,
        /// Addresses in work requests start at 0.
        ZERO_BASED = 32,
        /// On-demand paging: a hint that changes nothing, since softhca never pins.
        ON_DEMAND = 64,
        /// The memory is made of huge pages: a hint that changes nothing.
        HUGETLB = 128,
        /// FLUSH to global visibility.
        FLUSH_GLOBAL = 256,
        /// FLUSH to persistence.
        FLUSH_PERSISTENT = 512,
        /// Relaxed ordering: a hint that changes nothing.
        RELAXED_ORDERING = 1 << 20,
    }

    /// `AllocMw::mw_type`.
    pub mod mw_type: u8 {
        /// Bound by its own verb; every bind gives another key; any QP of the PD may use it.
        TYPE_1 = 1,
        /// Bound and invalidated by work requests, its key chosen with them; only the QP that bound
        /// it may use it (2B).
        TYPE_2 = 2,
    }

    /// What REREG_MR changes.
    pub mod rereg: u32 {
        /// Address and length.
        TRANSLATION = 1,
        /// Protection domain.
        PD = 2,
        /// Rights.
        ACCESS = 4,
    }
}

/// The key after `key`: the next of the 256 that differ in the lower 8 bits (`ibv_inc_rkey`).
#[must_use]
pub const fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_differs_in_the_lower_8_bits_alone() {
        for (key, next) in [
            (0x1234_5600, 0x1234_5601),
            (0x1234_567f, 0x1234_5680),
            (0x1234_56ff, 0x1234_5600),
            (u32::MAX, 0xffff_ff00),
        ] {
            assert_eq!(next_key(key), next);
        }
    }
}
