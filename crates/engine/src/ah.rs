//! Address handles: the destination of a datagram. Principal type: [`Ah`].

use std::sync::Arc;

use abi::ah::{AhAttr, CreateAh, CreateAhAnswer, DestroyAh};
use abi::command::number as command;

use crate::board::DevicePort;
use crate::error::Result;
use crate::lid::{GidRoute, NO_GRH};
use crate::memory::DatagramEntry;
use crate::pd::Pd;
use crate::request;

/// An address vector (`ibv_ah_attr`).
pub type AddressVector = AhAttr;

/// An address handle.
pub struct Ah {
    pd: Arc<Pd>,
    handle: u32,
    vector: AddressVector,
    /// Without a GRH: the GID for the LID, if the LID can be resolved.
    by_lid: Option<Option<GidRoute>>,
    /// The traffic class of its packets.
    traffic_class: u8,
}

impl Ah {
    fn create(pd: &Arc<Pd>, vector: &AddressVector) -> Result<Arc<Self>> {
        let body = CreateAh { response: 1, pd_handle: pd.handle(), attr: *vector, ..Default::default() };
        let answer: CreateAhAnswer =
            pd.core().call(&request::legacy(command::CREATE_AH, &body, size_of::<CreateAhAnswer>()))?.get(0)?;
        Ok(Self::adopt(pd, answer.ah_handle, vector))
    }

    /// Makes the handle from the agent's answer.
    pub fn adopt(pd: &Arc<Pd>, handle: u32, vector: &AddressVector) -> Arc<Self> {
        let core = pd.core();
        let from = DevicePort { device: core.device(), port: u32::from(vector.port_num) };
        let by_lid = (vector.is_global == 0).then(|| core.board.gid_route(from, vector.dlid));
        let traffic_class = core.board.traffic_class(from, vector.sl, vector.traffic_class);
        Arc::new(Self { pd: Arc::clone(pd), handle, vector: *vector, by_lid, traffic_class })
    }

    /// The agent's handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd.handle()
    }

    /// The address vector.
    #[must_use]
    pub fn vector(&self) -> &AddressVector {
        &self.vector
    }

    /// Writes the destination to a send entry.
    pub(crate) fn direct(&self, entry: &mut DatagramEntry) {
        let vector = &self.vector;
        (entry.sl, entry.static_rate, entry.src_path_bits) = (vector.sl, vector.static_rate, vector.src_path_bits);
        entry.lid = vector.dlid;
        if let Some(route) = self.by_lid {
            let GidRoute { dgid, sgid_index } = route.unwrap_or_default();
            (entry.dgid, entry.sgid_index) = (dgid, sgid_index);
            (entry.dlid, entry.hop_limit) = (vector.dlid, NO_GRH);
            return;
        }
        entry.dgid = vector.dgid;
        entry.flow_label = vector.flow_label;
        entry.sgid_index = vector.sgid_index;
        entry.hop_limit = vector.hop_limit;
        entry.traffic_class = self.traffic_class;
    }

    /// Destroys the handle.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn destroy(&self) -> Result<()> {
        self.pd.core().give_up(&request::legacy(command::DESTROY_AH, &DestroyAh { ah_handle: self.handle }, 0))
    }
}

impl Pd {
    /// Makes an address handle.
    ///
    /// # Errors
    /// EINVAL for an address that the port cannot use.
    pub fn create_ah(self: &Arc<Self>, vector: &AddressVector) -> Result<Arc<Ah>> {
        Ah::create(self, vector)
    }
}
