//! Objects of another context, used here: its device by descriptor, its PDs and MRs by handle.
//!
//! An imported object is a normal object of this context. When it is freed, the reference to the
//! original object ends. Principal methods: [`Core::import_pd`], [`Pd::import_mr`].

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use abi::command::number as command;
use abi::dm::{Import, ImportContext, ImportContextAnswer, ImportMr, ImportMrAnswer, ImportPdAnswer};
use abi::errno::Errno;
use abi::mr::{DeregMr, RegMr, RegMrAnswer};
use abi::queue::mr_flags;

use crate::control::Answer;
use crate::core::Core;
use crate::dm;
use crate::error::{Result, by_system, refusal};
use crate::extent::MemoryKind;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::request;

impl Core {
    /// Lets this context use the objects of another one. `fd` is that context's [`Core::share`]
    /// descriptor, or a copy.
    ///
    /// # Errors
    /// EINVAL when the descriptor belongs to no context of this device.
    pub fn import(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let len = size_of::<ImportContextAnswer>();
        let request = request::private(command::IMPORT_CONTEXT, &ImportContext::default(), len);
        self.call_with(&request, &[fd]).map(drop)
    }

    /// The descriptor by which other contexts import this one. A process with this descriptor may
    /// use all objects of this context.
    #[must_use]
    pub fn share(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// A PD of the imported context, by its handle there. [`Pd::dealloc`] releases it.
    ///
    /// # Errors
    /// EINVAL when there is no PD with this handle.
    pub fn import_pd(self: &Arc<Self>, handle: u32) -> Result<Arc<Pd>> {
        let body = Import { handle, reserved: 0 };
        let answer: ImportPdAnswer =
            self.call(&request::private(command::IMPORT_PD, &body, size_of::<ImportPdAnswer>()))?.get(0)?;
        Ok(Pd::adopt(self, answer.pd_handle))
    }
}

impl Pd {
    /// An MR of the imported context, by its handle there. This PD must be imported from the MR's
    /// PD. [`Mr::dereg`] releases it.
    ///
    /// # Errors
    /// EOPNOTSUPP when the memory belongs to another process; EMFILE when the process has no room
    /// for its descriptor.
    pub fn import_mr(self: &Arc<Self>, handle: u32) -> Result<Arc<Mr>> {
        let core = self.core();
        let body = ImportMr { pd_handle: self.handle(), handle };
        let answer = core.call(&request::private(command::IMPORT_MR, &body, size_of::<ImportMrAnswer>()))?;
        let said: ImportMrAnswer = answer.get(0)?;
        self.adopt_mr(&answer, &said).map_err(|error| {
            // Otherwise nobody could deregister it. If the agent is gone, so is the MR.
            let undo = DeregMr { mr_handle: said.mr_handle };
            let _ = core.tell(&request::legacy(command::DEREG_MR, &undo, 0));
            refusal(error.errno, format!("MR {handle} of the imported context cannot be used: {}", error.reason))
        })
    }

    fn adopt_mr(self: &Arc<Self>, answer: &Answer, said: &ImportMrAnswer) -> Result<Arc<Mr>> {
        let (memory_kind, host, backing) = match said.flags {
            mr_flags::DEVICE => {
                let region = dm::map(answer, said.dm_length)?;
                let unsound = || refusal(Errno::EIO, "the agent described an MR beyond its device memory");
                let place = dm::place(&region, said.start, said.length).ok_or_else(unsound)?;
                let host = place.start().expose_provenance() as u64;
                (MemoryKind::Device, host, Some(region))
            }
            mr_flags::NOTHING => (MemoryKind::Null, 0, None),
            _ => (MemoryKind::Program, said.start, None),
        };
        crate::usermem::install().map_err(by_system)?;
        let body = RegMr {
            response: 0,
            start: said.start,
            length: said.length,
            hca_va: said.hca_va,
            pd_handle: self.handle(),
            access_flags: said.access_flags,
        };
        let key = RegMrAnswer { mr_handle: said.mr_handle, lkey: said.key, rkey: said.key };
        Ok(Mr::adopt(self, &key, host, &body, memory_kind, backing))
    }
}
