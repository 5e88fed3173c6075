//! A region that several copies in a row are likely to use: found once, and held from the first to the last of them.
//!
//! To find a region and to let it go is a locked instruction each, more than to copy a few bytes. Each copy is checked all the same, as
//! [`super::gather`], [`super::scatter`] and [`super::write`] do it, but why it was not done is not said: who wants to know asks those.
//! While it is held, whoever deregisters the region waits; so its holder must not wait for anybody who might. Principal type: [`Near`].

use std::sync::Arc;

use abi::mr::access as right;
use abi::post::Sge;
use parking_lot::MappedRwLockReadGuard;

use super::{LOCAL_READ, Use, check};
use crate::engine::Engine;
use crate::mr::{Extent, Matter};
use crate::usermem;

/// The region that was used last.
pub(crate) struct Near<'a> {
    engine: &'a Engine,
    region: Option<MappedRwLockReadGuard<'a, Arc<Extent>>>,
}

impl<'a> Near<'a> {
    /// None so far.
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine, region: None }
    }

    /// Holds none any more.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.region = None;
    }

    /// Where the range lies in this process, if it can be had by plain copies. The region is held until the next call.
    #[inline]
    fn open(&mut self, wanted: Use, (key, addr, len): (u32, u64, usize)) -> Option<*mut u8> {
        if self.region.as_ref().is_none_or(|region| region.key != key) {
            // The old one first: never two at once.
            self.region = None;
            self.region = self.engine.extents.hold(key >> 8);
        }
        let region = self.region.as_ref()?;
        let host = check(region, wanted, key, addr, len as u64).ok()?;
        (region.matter != Matter::Nothing).then(|| std::ptr::with_exposed_provenance_mut(host as usize))
    }

    /// Copies the first `len` bytes of an element to `to`, where nobody looks before being told; says whether it did.
    #[inline]
    pub(crate) fn gather(&mut self, pd: u32, element: &Sge, to: *mut u8, len: usize) -> bool {
        let wanted = Use { pd, right: LOCAL_READ, qpn: 0 };
        if len > element.length as usize {
            return false;
        }
        let Some(from) = self.open(wanted, (element.lkey, element.addr, len)) else { return false };
        // SAFETY: `to` is the caller's, valid for `len`, and nobody is told of it yet; `from` lies in a registered range, which is held;
        // faults are survived.
        unsafe { usermem::stage(to, from, len) }.is_ok()
    }

    /// Copies `len` bytes from `from` to the beginning of an element; says whether it did.
    #[inline]
    pub(crate) fn scatter(&mut self, pd: u32, element: &Sge, from: *const u8, len: usize) -> bool {
        let wanted = Use { pd, right: right::LOCAL_WRITE, qpn: 0 };
        len <= element.length as usize && self.write(wanted, (element.lkey, element.addr), from, len)
    }

    /// Copies `len` bytes from `from` to `addr` of a region; says whether it did.
    #[inline]
    pub(crate) fn write(&mut self, wanted: Use, (key, addr): (u32, u64), from: *const u8, len: usize) -> bool {
        let Some(to) = self.open(wanted, (key, addr, len)) else { return false };
        // SAFETY: `to` lies in a range that the program registered for this use, and that is held; `from` is the caller's, valid for `len`;
        // faults are survived.
        unsafe { usermem::copy(to, from, len) }.is_ok()
    }
}
