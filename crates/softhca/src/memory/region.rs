//! One registration and the memory that it owns. It does not decide who may touch the bytes: its
//! users do. Principal type: [`Region`].

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use abi::errno::Errno;
use abi::mr::access as right;
use abi::post::Sge;

use super::own::{Held, Kept, Memory};
use crate::error::{Error, Result};
use crate::pd::PdInner;

/// A registration. Its memory is freed after the registration has ended, which waits for every copy
/// in progress.
pub(crate) struct Region {
    mr: Arc<engine::Mr>,
    base: NonNull<u8>,
    len: usize,
    /// A [`Held`]; `None` when the memory has been given back.
    memory: Option<Box<dyn Any + Send>>,
    _pd: Arc<PdInner>,
}

// SAFETY: a region is an address, a length and an owner that nobody calls. `Buffer` and `Exposed`
// decide who may touch the bytes and when.
unsafe impl Send for Region {}
// SAFETY: as above; the region itself is never changed while it is shared.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new<M: Memory>(pd: &Arc<PdInner>, memory: M, rights: u32) -> Result<Arc<Self>, Kept<M>> {
        let (held, bytes) = Held::new(memory);
        let (base, len) = (bytes.cast::<u8>(), bytes.len());
        let addr = base.as_ptr().expose_provenance() as u64;
        let registered = match len {
            0 => Err(Error::refused(Errno::EINVAL, "memory of 0 bytes cannot be registered")),
            _ => pd.pd.reg_mr(addr, len as u64, addr, right::LOCAL_WRITE | rights).map_err(Error::from),
        };
        match registered {
            Ok(mr) => Ok(Arc::new(Self { mr, base, len, memory: Some(held), _pd: Arc::clone(pd) })),
            Err(error) => Err(Kept { error, memory: Held::release(held).expect("of this type") }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    pub(super) fn addr(&self, at: usize) -> u64 {
        self.pointer(at).addr() as u64
    }

    pub(super) fn pointer(&self, at: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(at)
    }

    pub(super) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge::new(self.addr(at), u32::try_from(len).unwrap_or(u32::MAX), self.mr.lkey())
    }

    /// Ends the registration and gives the memory back. When the call returns, nobody can access
    /// the memory through its key.
    pub(super) fn release<M: Memory>(region: Arc<Self>) -> Result<M, (Error, Arc<Self>)> {
        if !region.memory.as_deref().is_some_and(<dyn Any + Send>::is::<Held<M>>) {
            let reason = format!("the registered memory is not of type {}", std::any::type_name::<M>());
            return Err((Error::refused(Errno::EINVAL, reason), region));
        }
        let mut region = Arc::try_unwrap(region).map_err(|shared| {
            let reason = "the registered memory is still in use by a clone, another part or a request";
            (Error::refused(Errno::EBUSY, reason), shared)
        })?;
        if let Err(error) = region.mr.dereg() {
            return Err((error.into(), Arc::new(region)));
        }
        let held = region.memory.take().expect("it was there before");
        Ok(Held::release(held).expect("the type was checked before"))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        // If deregistration fails (in a process that inherited the memory over a fork, or when the
        // agent refuses), somebody may still touch the memory. So the memory stays for ever.
        if self.mr.dereg().is_err() {
            let _ = ManuallyDrop::new(memory);
        }
    }
}
