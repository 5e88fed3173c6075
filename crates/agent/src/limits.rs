//! The limits of a device: `ibv_query_device` reports them, and the agent enforces them.
//!
//! These are plain numbers and their bounds. [`crate::objects`] has the objects that they limit.
//! The names are those of `struct ibv_device_attr`. The principal type is [`Limits`].

use serde::Deserialize;

/// Upper bounds of one device, each a key of `[devices.limits]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Queue pairs of all processes together.
    pub max_qp: u32,
    /// Outstanding work requests of one send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of one work request.
    pub max_sge: u32,
    /// Bytes of inline data in one work request.
    pub max_inline_data: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of one memory region.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Bytes of device memory, of all processes together; none if 0.
    pub max_dm_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// RDMA READs and atomics outstanding at one queue pair as the target.
    pub max_qp_rd_atom: u32,
    /// RDMA READs and atomics outstanding at one queue pair as the initiator.
    pub max_qp_init_rd_atom: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Outstanding work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter entries of one work request of a shared receive queue.
    pub max_srq_sge: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
}

/// The agent creates at most this much memory.
const DM_MOST: u64 = 1 << 30;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 65_536,
            max_qp_wr: 16_384,
            max_sge: 30,
            max_inline_data: 512,
            max_cq: 65_536,
            max_cqe: 4_194_304,
            max_mr: 1_048_576,
            max_mr_size: 1 << 47,
            max_mw: 1_048_576,
            max_dm_size: 1 << 20,
            max_pd: 65_536,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            max_ah: 131_072,
            max_srq: 65_536,
            max_srq_wr: 16_384,
            max_srq_sge: 30,
            max_mcast_grp: 1_024,
            max_mcast_qp_attach: 256,
        }
    }
}

impl Limits {
    /// Refuses values that cannot be represented or served, with a sentence that names the key.
    pub(crate) fn check(&self) -> Result<(), String> {
        let bounds: [(&str, u64, u64); 18] = [
            ("max_qp", u64::from(self.max_qp), 1 << 20),
            ("max_qp_wr", u64::from(self.max_qp_wr), 65_536),
            ("max_sge", u64::from(self.max_sge), 256),
            ("max_inline_data", u64::from(self.max_inline_data), 4_096),
            ("max_cq", u64::from(self.max_cq), 1 << 20),
            ("max_cqe", u64::from(self.max_cqe), 1 << 24),
            ("max_mr", u64::from(self.max_mr), 1 << 20),
            ("max_mr_size", self.max_mr_size, u64::MAX),
            ("max_mw", u64::from(self.max_mw), 1 << 20),
            ("max_pd", u64::from(self.max_pd), 1 << 20),
            ("max_qp_rd_atom", u64::from(self.max_qp_rd_atom), 128),
            ("max_qp_init_rd_atom", u64::from(self.max_qp_init_rd_atom), 128),
            ("max_ah", u64::from(self.max_ah), 1 << 20),
            ("max_srq", u64::from(self.max_srq), 1 << 20),
            ("max_srq_wr", u64::from(self.max_srq_wr), 65_536),
            ("max_srq_sge", u64::from(self.max_srq_sge), 256),
            ("max_mcast_grp", u64::from(self.max_mcast_grp), 65_536),
            ("max_mcast_qp_attach", u64::from(self.max_mcast_qp_attach), 65_536),
        ];
        if self.max_dm_size > DM_MOST {
            return Err(format!("`max_dm_size` is {}; 0 to {DM_MOST} are possible", self.max_dm_size));
        }
        for (key, value, most) in bounds {
            if value == 0 || value > most {
                return Err(format!("`{key}` is {value}; 1 to {most} are possible"));
            }
        }
        Ok(())
    }
}
