//! Address handles: where a datagram goes.

use std::sync::Arc;

use abi::ah::{AhAttr, CreateAh, CreateAhAnswer, DestroyAh};
use abi::command::number as command;

use crate::error::Result;
use crate::pd::Pd;
use crate::request;

/// An address vector (`ibv_ah_attr`).
pub type AddressVector = AhAttr;

/// An address handle.
pub struct Ah {
    pd: Arc<Pd>,
    handle: u32,
    vector: AddressVector,
}

impl Ah {
    pub(crate) fn create(pd: &Arc<Pd>, vector: &AddressVector) -> Result<Arc<Self>> {
        let body = CreateAh { response: 1, pd_handle: pd.handle(), attr: *vector, ..Default::default() };
        let answer: CreateAhAnswer =
            pd.engine().call(&request::legacy(command::CREATE_AH, &body, size_of::<CreateAhAnswer>()))?.get(0)?;
        Ok(Self::adopt(pd, answer.ah_handle, vector))
    }

    /// Makes the handle that the agent has made.
    pub fn adopt(pd: &Arc<Pd>, handle: u32, vector: &AddressVector) -> Arc<Self> {
        Arc::new(Self { pd: Arc::clone(pd), handle, vector: *vector })
    }

    /// The agent's name for it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd.handle()
    }

    /// Where it leads.
    #[must_use]
    pub fn vector(&self) -> &AddressVector {
        &self.vector
    }

    /// Destroys the handle.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn destroy(&self) -> Result<()> {
        self.pd.engine().call(&request::legacy(command::DESTROY_AH, &DestroyAh { ah_handle: self.handle }, 0)).map(drop)
    }
}
