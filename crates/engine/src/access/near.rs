//! A region that several copies in a row probably use: it is looked up once, and held from the
//! first copy to the last.
//!
//! Finding and releasing a region costs a locked instruction each, more than a copy of a few bytes.
//! Each copy is still checked as in [`super::gather`], [`super::scatter`] and [`super::write`]. The
//! reason of a failure is not reported here; callers that need it use those functions. While the
//! region is held, a thread that deregisters it waits. So the holder must not wait for any thread
//! that might deregister it. Principal type: [`Near`].

use std::sync::Arc;

use abi::mr::access as right;
use abi::post::Sge;
use parking_lot::MappedRwLockReadGuard;
use shm::{Sink, Source};

use super::{Use, check};
use crate::core::Core;
use crate::extent::{Extent, LOCAL_READ, Matter};
use crate::usermem;

/// The region that was used last.
pub(crate) struct Near<'a> {
    core: &'a Core,
    region: Option<MappedRwLockReadGuard<'a, Arc<Extent>>>,
}

impl<'a> Near<'a> {
    /// Holds no region yet.
    pub(crate) fn new(core: &'a Core) -> Self {
        Self { core, region: None }
    }

    /// Releases the region.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.region = None;
    }

    /// Where the range lies in this process, if plain copies can access it. The region is held
    /// until the next call.
    #[inline]
    fn open(&mut self, wanted: Use, (key, addr, len): (u32, u64, usize)) -> Option<*mut u8> {
        if self.region.as_ref().is_none_or(|region| region.key != key) {
            // The old region is released first, so that no thread holds two regions at once.
            self.region = None;
            self.region = self.core.keys.extents.hold(key >> 8);
        }
        let region = self.region.as_ref()?;
        let host = check(region, wanted, key, addr, len as u64).ok()?;
        (region.matter != Matter::Nothing).then(|| std::ptr::with_exposed_provenance_mut(host as usize))
    }

    /// Fills `to` with the first bytes of an element; returns whether it succeeded. No other thread
    /// reads `to` before the caller publishes it.
    #[inline]
    pub(crate) fn gather(&mut self, pd: u32, element: &Sge, to: &Sink<'_>) -> bool {
        let wanted = Use { pd, right: LOCAL_READ, qpn: 0 };
        if to.len() > element.length as usize {
            return false;
        }
        let Some(from) = self.open(wanted, (element.lkey, element.addr, to.len())) else { return false };
        // SAFETY: `to` is writable, and no other thread knows of it yet; `from` lies in a
        // registered range, which is held; faults are survived.
        unsafe { usermem::stage(to.start(), from, to.len()) }.is_ok()
    }

    /// Copies `from` to the beginning of an element; returns whether it succeeded.
    #[inline]
    pub(crate) fn scatter(&mut self, pd: u32, element: &Sge, from: Source<'_>) -> bool {
        let wanted = Use { pd, right: right::LOCAL_WRITE, qpn: 0 };
        from.len() <= element.length as usize && self.write(wanted, (element.lkey, element.addr), from)
    }

    /// Copies `from` to `addr` of a region; returns whether it succeeded.
    #[inline]
    pub(crate) fn write(&mut self, wanted: Use, (key, addr): (u32, u64), from: Source<'_>) -> bool {
        let Some(to) = self.open(wanted, (key, addr, from.len())) else { return false };
        // SAFETY: `to` lies in a range that the program registered for this use, and that is held;
        // `from` is readable; faults are survived.
        unsafe { usermem::copy(to, from.start(), from.len()) }.is_ok()
    }
}
