//! Posting through the agent: POST_SEND, POST_RECV, POST_SRQ_RECV with their work requests and
//! scatter/gather entries.
//!
//! The engine posts to queue memory instead; it uses the same opcodes and flags.

record! {
    /// Start of POST_SEND (28), POST_RECV (29) and POST_SRQ_RECV (36). Then `wr_count` work
    /// requests of `wqe_size` bytes follow, and `sge_count` records `Sge`, which the work requests
    /// use in order.
    pub struct Post[24] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// Handle of the QP, or of the SRQ for POST_SRQ_RECV.
        8 => handle: u32,
        /// Number of work requests.
        12 => wr_count: u32,
        /// Number of scatter/gather entries in all.
        16 => sge_count: u32,
        /// Bytes per work request: 56 (`SendWr`), 64 (with `XrcSend` behind it) or 16 (`RecvWr`). A
        /// longer request has a tail, which the agent ignores.
        20 => wqe_size: u32,
    }

    /// Answer of these three commands; it is present also on error.
    pub struct PostAnswer[4] {
        /// Position of the refused work request, counted from 1; 0 if none was refused. The
        /// requests before it are posted.
        0 => bad_wr: u32,
    }

    /// A send work request.
    pub struct SendWr[56] {
        /// The caller's name for it; the completion carries it.
        0 => wr_id: u64,
        /// Number of gather entries.
        8 => num_sge: u32,
        /// See `opcode`.
        12 => opcode: u32,
        /// See `send_flags`.
        16 => send_flags: u32,
        /// Immediate data in network byte order, or the key that the peer invalidates.
        20 => imm_data: u32,
        /// `Rdma`, `Atomic` or `Ud`, by opcode and QP type.
        24 => target: [u64; 4],
    }

    /// `SendWr::target` of RDMA WRITE and READ.
    pub struct Rdma[32] {
        /// Address at the peer.
        0 => remote_addr: u64,
        /// The peer's key.
        8 => rkey: u32,
        /// 0.
        12 => reserved: u32,
        /// Ignored.
        16 => unused: [u64; 2],
    }

    /// `SendWr::target` of the atomics.
    pub struct Atomic[32] {
        /// Address at the peer, aligned to 8.
        0 => remote_addr: u64,
        /// Value to compare with, or to add.
        8 => compare_add: u64,
        /// Value to swap in.
        16 => swap: u64,
        /// The peer's key.
        24 => rkey: u32,
        /// 0.
        28 => reserved: u32,
    }

    /// `SendWr::target` on a UD QP.
    pub struct Ud[32] {
        /// Handle of the AH.
        0 => ah_handle: u32,
        /// QP number of the receiver; 0xffffff for multicast.
        4 => remote_qpn: u32,
        /// Q_Key to send. If its top bit is set, the QP's own Q_Key is sent.
        8 => remote_qkey: u32,
        /// 0.
        12 => reserved: u32,
        /// Ignored.
        16 => unused: [u64; 2],
    }

    /// Follows `SendWr` on an XRC initiator.
    pub struct XrcSend[8] {
        /// Number of the SRQ at the peer.
        0 => remote_srqn: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// A receive work request.
    pub struct RecvWr[16] {
        /// The caller's name for it; the completion carries it.
        0 => wr_id: u64,
        /// Number of scatter entries.
        8 => num_sge: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// A scatter/gather entry.
    pub struct Sge[16] {
        /// Address; the MR's first byte has the address `hca_va`.
        0 => addr: u64,
        /// Length in bytes.
        8 => length: u32,
        /// Key of the MR.
        12 => lkey: u32,
    }
}

impl SendWr {
    /// The target of an RDMA READ or WRITE.
    #[must_use]
    pub fn rdma(&self) -> Rdma {
        bytemuck::cast(self.target)
    }

    /// The target of an atomic.
    #[must_use]
    pub fn atomic(&self) -> Atomic {
        bytemuck::cast(self.target)
    }

    /// The target of a UD send.
    #[must_use]
    pub fn ud(&self) -> Ud {
        bytemuck::cast(self.target)
    }
}

impl From<Rdma> for [u64; 4] {
    fn from(target: Rdma) -> Self {
        bytemuck::cast(target)
    }
}

impl From<Atomic> for [u64; 4] {
    fn from(target: Atomic) -> Self {
        bytemuck::cast(target)
    }
}

impl From<Ud> for [u64; 4] {
    fn from(target: Ud) -> Self {
        bytemuck::cast(target)
    }
}

impl Sge {
    /// An entry for `length` bytes from `addr`.
    #[must_use]
    pub fn new(addr: u64, length: u32, lkey: u32) -> Self {
        Self { addr, length, lkey }
    }
}

constants! {
    /// `SendWr::opcode` (IBV_WR_*).
    pub mod opcode: u32 {
        /// RDMA WRITE.
        RDMA_WRITE = 0,
        /// RDMA WRITE with immediate data.
        RDMA_WRITE_WITH_IMM = 1,
        /// SEND.
        SEND = 2,
        /// SEND with immediate data.
        SEND_WITH_IMM = 3,
        /// RDMA READ.
        RDMA_READ = 4,
        /// Compare and swap, 8 bytes.
        ATOMIC_CMP_AND_SWP = 5,
        /// Fetch and add, 8 bytes.
        ATOMIC_FETCH_AND_ADD = 6,
        /// Invalidate a local key.
        LOCAL_INV = 7,
        /// Bind a memory window.
        BIND_MW = 8,
        /// SEND that invalidates a key at the peer.
        SEND_WITH_INV = 9,
        /// Segmentation offload.
        TSO = 10,
        /// READ, then invalidate the local key.
        RDMA_READ_WITH_INV = 11,
        /// Masked compare and swap.
        MASKED_CMP_AND_SWP = 12,
        /// Masked fetch and add.
        MASKED_FETCH_AND_ADD = 13,
        /// FLUSH.
        FLUSH = 14,
        /// ATOMIC WRITE.
        ATOMIC_WRITE = 15,
    }

    /// Bits of `SendWr::send_flags` (IBV_SEND_*).
    pub mod send_flags: u32 {
        /// Wait for earlier READs and atomics.
        FENCE = 1,
        /// Give a completion.
        SIGNALED = 2,
        /// The receiver's completion is solicited.
        SOLICITED = 4,
        /// Data is copied at once; lkeys are ignored.
        INLINE = 8,
        /// Compute the IP checksum.
        IP_CSUM = 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target has the same 32 bytes for each operation.
    #[test]
    fn each_target_comes_back_from_the_bytes_of_a_request() {
        let words = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 0x2122_2324_2526_2728, 0x3132_3334_3536_3738];
        let request = SendWr { target: words, ..SendWr::default() };
        assert_eq!(<[u64; 4]>::from(request.rdma()), words);
        assert_eq!(<[u64; 4]>::from(request.atomic()), words);
        assert_eq!(<[u64; 4]>::from(request.ud()), words);
        assert_eq!((request.rdma().remote_addr, request.atomic().remote_addr), (words[0], words[0]));
    }
}
