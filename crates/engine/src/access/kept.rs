//! The region that a QP uses again and again. After some uses in a row, it is neither looked up nor
//! held any more.
//!
//! To look a region up and to hold it takes two locked instructions and four loads that depend on
//! each other. The lock of the QP, under which it copies, replaces them: a deregistration first
//! withdraws the region, and then takes the lock of each QP that keeps it. After that, no copy is
//! under way, and no QP uses the region again ([`crate::extent::Keepers`]). Principal type:
//! [`KeptRegion`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::extent::{Extent, Keeper};

/// After this many look-ups in a row a QP keeps the region. To keep another one takes two locks and
/// allocates, so it must be rare.
const OFTEN: u32 = 8;

/// What a QP keeps for one direction. It is used only under the lock of the QP.
#[derive(Default)]
pub(crate) struct KeptRegion {
    kept: Option<KeptExtent>,
    /// The key that was looked up last, and how often in a row.
    last: (u32, u32),
}

struct KeptExtent {
    extent: Arc<Extent>,
    keeper: usize,
}

impl Drop for KeptExtent {
    fn drop(&mut self) {
        self.extent.keepers.remove(self.keeper);
    }
}

#[inline]
fn is_withdrawn(extent: &Extent) -> bool {
    // Relaxed: read under the lock of the QP, which `Keepers::withdraw` takes after it has written.
    extent.keepers.withdrawn.load(Ordering::Relaxed)
}

impl KeptRegion {
    /// The region, if it has this key.
    #[inline]
    pub(super) fn get(&mut self, key: u32) -> Option<&Extent> {
        let extent = &*self.kept.as_ref()?.extent;
        let is_it = extent.key == key && !is_withdrawn(extent);
        if is_it {
            self.last.1 = 0;
        }
        is_it.then_some(extent)
    }

    /// Notes that a region was looked up, and keeps it after some times in a row. The caller holds
    /// the region, so it is not withdrawn yet.
    #[inline]
    pub(super) fn note(&mut self, extent: &Arc<Extent>, keeper: &dyn Keeper) {
        let (key, count) = self.last;
        self.last = (extent.key, if key == extent.key { count + 1 } else { 1 });
        if self.last.1 >= OFTEN && !extent.is_window() {
            self.keep(extent, keeper);
        }
    }

    #[cold]
    fn keep(&mut self, extent: &Arc<Extent>, keeper: &dyn Keeper) {
        let keeper = extent.keepers.add(keeper.weak());
        self.kept = Some(KeptExtent { extent: Arc::clone(extent), keeper });
        self.last.1 = 0;
    }

    /// Gives the region up if it is withdrawn.
    pub(crate) fn give_up_withdrawn(&mut self) {
        if self.kept.as_ref().is_some_and(|kept| is_withdrawn(&kept.extent)) {
            *self = Self::default();
        }
    }
}
