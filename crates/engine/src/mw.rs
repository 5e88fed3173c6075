//! Memory windows as objects of the agent: they are allocated on a PD and freed. What work requests
//! do with them is in `window.rs`. Principal type: [`Mw`].

use std::sync::Arc;

use abi::command::number as command;
use abi::layout::Record;
use abi::mr::{AllocMw, AllocMwAnswer, DeallocMw, mw_type};
use abi::queue::{MwIn, REV};
use parking_lot::Mutex;

use crate::core::Core;
use crate::error::Result;
use crate::pd::Pd;
use crate::request;
use crate::window::{Binding, MemoryWindow};

/// A memory window.
pub struct Mw {
    core: Arc<Core>,
    handle: u32,
    window: Arc<MemoryWindow>,
}

impl Mw {
    fn alloc(pd: &Pd, kind: u8) -> Result<Arc<Self>> {
        let core = Arc::clone(pd.core());
        let body = AllocMw { response: 1, pd_handle: pd.handle(), mw_type: kind, reserved: [0; 3] };
        let answer: AllocMwAnswer =
            core.call(&request::legacy(command::ALLOC_MW, &body, size_of::<AllocMwAnswer>()))?.get(0)?;
        let key = answer.rkey;
        let state = Mutex::new(Binding { key, to: None });
        let to_number = kind == mw_type::TYPE_2 && core.binds_to_number();
        let window = Arc::new(MemoryWindow { pd: pd.handle(), kind, to_number, number: key, state });
        core.keys.windows.insert(key >> 8, Arc::clone(&window));
        Ok(Arc::new(Self { core, handle: answer.mw_handle, window }))
    }

    /// The agent's handle of the window.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The number by which work requests name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.window.number
    }

    /// The type: 1 or 2.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.window.kind
    }

    /// The current key, bound or not.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.window.state.lock().key
    }

    /// Frees the window, bound or not. When this returns, no peer accesses memory through it any
    /// more.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn dealloc(&self) -> Result<()> {
        self.core.check_process()?;
        self.core.take_arrived();
        let mut state = self.window.state.lock();
        let tail = MwIn { rev: REV, key: state.key };
        let body = DeallocMw { mw_handle: self.handle };
        match self.core.call(&abi::command::legacy(command::DEALLOC_MW, &body, tail.bytes(), 0)) {
            Err(error) if !self.core.has_lost(&error) => Err(error),
            _ => {
                self.core.keys.windows.remove(self.window.number >> 8);
                self.window.unbind(&mut state, &self.core.keys.extents);
                Ok(())
            }
        }
    }
}

impl Pd {
    /// Allocates an unbound memory window of type 1 or 2.
    ///
    /// # Errors
    /// EINVAL for another type, ENOMEM beyond the device's limit.
    pub fn alloc_mw(&self, kind: u8) -> Result<Arc<Mw>> {
        Mw::alloc(self, kind)
    }
}
