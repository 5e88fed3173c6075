//! Device memory: memory of the device, to and from which programs copy.
//!
//! A piece of device memory is a memfd of the agent. It is mapped here for copies and for the
//! regions that are registered on it. Principal type: [`Dm`].

use std::os::fd::AsFd;
use std::sync::Arc;

use abi::command::number as command;
use abi::dm::{AllocDm, DmOut, FreeDm, Import};
use abi::errno::Errno;
use abi::layout::Record;
use abi::mr::{RegMr, RegMrAnswer, access as right};
use abi::queue::{MrIn, REV, mr_flags};
use shm::region::Region;
use shm::{Sink, Source};

use crate::access;
use crate::control::{Answer, too_many_open};
use crate::core::Core;
use crate::error::{Error, Result, by_system, refusal};
use crate::extent::MemoryKind;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::request;

/// Offsets and lengths of copies are multiples of this, as with common adapters.
const GRAIN: u64 = 4;
/// The rights that a region of device memory may have.
const RIGHTS: u32 = right::LOCAL_WRITE
    | right::REMOTE_WRITE
    | right::REMOTE_READ
    | right::REMOTE_ATOMIC
    | right::ZERO_BASED
    | right::RELAXED_ORDERING;

/// A piece of device memory.
pub struct Dm {
    core: Arc<Core>,
    handle: u32,
    length: u64,
    region: Arc<Region>,
}

impl Core {
    /// Allocates device memory, aligned to a power of two.
    ///
    /// # Errors
    /// EINVAL for a length of 0 or an alignment above a page; ENOMEM when less is left.
    pub fn alloc_dm(self: &Arc<Self>, length: u64, log_align_req: u32) -> Result<Arc<Dm>> {
        let body = AllocDm { length, log_align_req, reserved: 0 };
        self.take_dm(self.call(&request::private(command::ALLOC_DM, &body, size_of::<DmOut>()))?)
    }

    /// Device memory of the imported context, by its handle there.
    ///
    /// # Errors
    /// EINVAL when there is no device memory with this handle.
    pub fn import_dm(self: &Arc<Self>, handle: u32) -> Result<Arc<Dm>> {
        let body = Import { handle, reserved: 0 };
        self.take_dm(self.call(&request::private(command::IMPORT_DM, &body, size_of::<DmOut>()))?)
    }

    fn take_dm(self: &Arc<Self>, answer: Answer) -> Result<Arc<Dm>> {
        // Copies to and from the program's memory may fault.
        crate::usermem::install().map_err(by_system)?;
        let out: DmOut = answer.get(0)?;
        let region = map(&answer, out.length).inspect_err(|_| {
            // Otherwise nobody could free the handle. If the agent is gone, so is the handle.
            let _ = self.tell(&free(out.dm_handle));
        })?;
        Ok(Arc::new(Dm { core: Arc::clone(self), handle: out.dm_handle, length: out.length, region }))
    }
}

/// Maps the memfd from an answer.
pub(crate) fn map(answer: &Answer, length: u64) -> Result<Arc<Region>> {
    let fd = answer.fds.first().ok_or_else(too_many_open)?;
    Ok(Arc::new(Region::map(fd.as_fd(), usize::try_from(length).unwrap_or(usize::MAX)).map_err(by_system)?))
}

/// A range of device memory in this process.
pub(crate) fn place(region: &Region, offset: u64, length: u64) -> Option<Sink<'_>> {
    region.sink(usize::try_from(offset).ok()?, usize::try_from(length).ok()?)
}

impl Dm {
    /// The agent's handle of the memory.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// EFAULT beyond its end or for unmapped program memory; EINVAL if offset or length is not a
    /// multiple of 4.
    pub fn write(&self, offset: u64, from: Source<'_>) -> Result<()> {
        let here = self.range(offset, from.len() as u64)?;
        access::copy(&here, from).map_err(|_| missing(from.start().addr() as u64))
    }

    /// Fills `to` with the bytes from `offset` on.
    ///
    /// # Errors
    /// As [`Dm::write`].
    pub fn read(&self, offset: u64, to: &Sink<'_>) -> Result<()> {
        let here = self.range(offset, to.len() as u64)?;
        access::copy(to, here.source()).map_err(|_| missing(to.start().addr() as u64))
    }

    fn range(&self, offset: u64, length: u64) -> Result<Sink<'_>> {
        self.core.check_process()?;
        crate::usermem::prepare_thread();
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        let here = place(&self.region, offset, length).filter(|_| inside).ok_or_else(|| {
            let all = self.length;
            refusal(
                Errno::EFAULT,
                format!("the range of {length} bytes at offset {offset} is outside the device memory ({all} bytes)"),
            )
        })?;
        if !offset.is_multiple_of(GRAIN) || !length.is_multiple_of(GRAIN) {
            let what = format!(
                "offset {offset} and length {length} of a copy must be multiples of {GRAIN} bytes in device memory"
            );
            return Err(refusal(Errno::EINVAL, what));
        }
        Ok(here)
    }

    /// Frees the memory.
    ///
    /// # Errors
    /// EBUSY while a region is registered on it.
    pub fn free(&self) -> Result<()> {
        self.core.check_process()?;
        match self.core.call(&free(self.handle)) {
            Err(error) if !self.core.has_lost(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The command that frees a handle of device memory.
fn free(dm_handle: u32) -> Vec<u8> {
    request::private(command::FREE_DM, &FreeDm { dm_handle, reserved: 0 }, 0)
}

fn missing(host: u64) -> Error {
    refusal(Errno::EFAULT, format!("the program has no memory at {host:#x} to copy device memory to or from"))
}

impl Pd {
    /// Registers a range of device memory. Its addresses begin at 0.
    ///
    /// # Errors
    /// EINVAL beyond its end, without ZERO_BASED, or for rights that device memory does not have.
    pub fn reg_dm_mr(self: &std::sync::Arc<Self>, dm: &Dm, offset: u64, length: u64, access: u32) -> Result<Arc<Mr>> {
        let core = self.core();
        core.check_process()?;
        if access & right::ZERO_BASED == 0 || access & !RIGHTS != 0 {
            return Err(refusal(
                Errno::EINVAL,
                format!(
                    "device memory with access flags {access:#x}: it is zero-based, and has local and remote rights"
                ),
            ));
        }
        let inside = offset.checked_add(length).is_some_and(|end| end <= dm.length);
        let place = place(&dm.region, offset, length).filter(|_| inside).ok_or_else(|| {
            let all = dm.length;
            refusal(
                Errno::EINVAL,
                format!("the range of {length} bytes at offset {offset} is outside the device memory ({all} bytes)"),
            )
        })?;
        crate::usermem::install().map_err(by_system)?;
        let body = RegMr {
            response: 1,
            start: offset,
            length,
            hca_va: 0,
            pd_handle: self.handle(),
            access_flags: access & !right::RELAXED_ORDERING,
        };
        let tail = MrIn { rev: REV, flags: mr_flags::DEVICE, dm_handle: dm.handle, ..MrIn::default() };
        let request = abi::command::legacy(command::REG_MR, &body, tail.bytes(), size_of::<RegMrAnswer>());
        let answer: RegMrAnswer = core.call(&request)?.get(0)?;
        let host = place.start().expose_provenance() as u64;
        Ok(Mr::adopt(self, &answer, host, &body, MemoryKind::Device, Some(Arc::clone(&dm.region))))
    }
}
