//! A region that several copies in a row probably use: it is looked up once, and held from the
//! first copy to the last.
//!
//! Finding and releasing a region costs a locked instruction each, more than a copy of a few bytes.
//! Each copy is checked against its key. While a region is held, a thread that deregisters it
//! waits. So the holder must not wait for a thread that might deregister a region, and it releases
//! the region before it looks up another one. Principal type: [`HeldRegion`].

use std::sync::Arc;

use parking_lot::MappedRwLockReadGuard;
use shm::{Sink, Source};
use wire::icrc::Folding;

use super::{Refusal, Use, check, gone, zero};
use crate::core::Core;
use crate::extent::{Extent, MemoryKind};
use crate::usermem;

/// The region that was used last.
pub(crate) struct HeldRegion<'a> {
    core: &'a Core,
    region: Option<MappedRwLockReadGuard<'a, Arc<Extent>>>,
    /// The next copy is probably the last one.
    is_last: bool,
}

impl<'a> HeldRegion<'a> {
    /// Holds no region yet.
    #[inline]
    pub(crate) fn new(core: &'a Core) -> Self {
        Self { core, region: None, is_last: false }
    }

    /// Releases the region.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.region = None;
    }

    /// Says whether the next read is probably the last copy. Then it releases the region itself,
    /// before the caller publishes what it has read: each locked instruction after that waits until
    /// the peer has released the cache line.
    #[inline]
    pub(crate) fn set_last(&mut self, is_last: bool) {
        self.is_last = is_last;
    }

    /// The address of the range in this process, or `None` if the region has no memory.
    #[inline(always)]
    fn open(&mut self, wanted: Use, (key, addr, len): (u32, u64, usize)) -> Result<Option<*mut u8>, Refusal> {
        if self.region.as_ref().is_none_or(|region| region.key != key) {
            // The old region is released first, so that no thread holds two regions at once.
            self.region = None;
            self.region = self.core.keys.extents.hold(key >> 8);
        }
        let region = self.region.as_ref().ok_or(Refusal::NoKey { key })?;
        let host = check(region, wanted, key, addr, len as u64)?;
        Ok((region.memory_kind != MemoryKind::Null).then(|| std::ptr::with_exposed_provenance_mut(host as usize)))
    }

    /// Copies `from` to `addr` of a region.
    #[inline]
    pub(crate) fn write(&mut self, wanted: Use, (key, addr): (u32, u64), from: Source<'_>) -> Result<(), Refusal> {
        let Some(to) = self.open(wanted, (key, addr, from.len()))? else { return Ok(()) };
        // SAFETY: `to` lies in a range that the program registered for this use, and that is held;
        // `from` is readable; faults are survived.
        unsafe { usermem::copy(to, from.start(), from.len()) }.map_err(|_| gone(self.core, key, addr))
    }

    /// Fills `to` with the bytes at `addr` of a region. No other thread reads `to` before the
    /// caller publishes it.
    #[inline]
    pub(crate) fn read(&mut self, wanted: Use, (key, addr): (u32, u64), to: &mut Sink<'_>) -> Result<(), Refusal> {
        let Some(from) = self.open(wanted, (key, addr, to.len()))? else { return zero(to) };
        // SAFETY: `to` is writable, and no other thread knows of it yet; `from` lies in a
        // registered range, which is held; faults are survived.
        let read = unsafe { usermem::stage(to.start(), from, to.len()) };
        if self.is_last {
            self.region = None;
        }
        read.map_err(|_| gone(self.core, key, addr))
    }

    /// Like `read`, for whole strides, which are also folded into an ICRC. Returns false, without
    /// having read anything, if the region has no memory.
    pub(crate) fn read_folding(
        &mut self,
        wanted: Use,
        (key, addr): (u32, u64),
        to: &Sink<'_>,
        folding: &mut Folding,
    ) -> Result<bool, Refusal> {
        let Some(from) = self.open(wanted, (key, addr, to.len()))? else { return Ok(false) };
        // SAFETY: as in `read`.
        let read = unsafe { usermem::copy_folding(to.start(), from, to.len(), folding) };
        read.map(|()| true).map_err(|_| gone(self.core, key, addr))
    }
}
