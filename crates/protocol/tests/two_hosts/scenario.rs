//! The parameters of a run: everything that can vary, including the random seed. Principal type:
//! [`Scenario`].

use softhca_protocol::Service;

use crate::random::Random;

impl Random {
    pub(crate) fn bytes(&mut self, len: u32) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Everything that a run depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub service: Service,
    pub seed: u64,
    pub mtu: u32,
    pub psn: u32,
    /// Percent of packets that are lost.
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    /// Percent of send attempts that find the path full.
    pub path_full: u32,
    pub lossless: bool,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rd_atomic: u8,
    pub read_piece: u32,
    pub window: u32,
    pub probe_after: u32,
    pub patience: u8,
    /// Latency of a packet, and spacing between two packets, in nanoseconds.
    pub latency: u64,
    pub spacing: u64,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            service: Service::Rc,
            seed: 1,
            mtu: 1024,
            psn: 100,
            loss: 0,
            duplication: 0,
            reordering: 0,
            path_full: 0,
            lossless: false,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            rd_atomic: 4,
            read_piece: 0,
            window: u32::MAX,
            probe_after: 0,
            patience: 1,
            latency: 1000,
            spacing: 0,
        }
    }
}
