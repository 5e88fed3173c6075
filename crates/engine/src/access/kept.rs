//! The region that a QP uses again and again. After some uses in a row, it is neither looked up nor
//! held any more.
//!
//! To look a region up and to hold it takes two locked instructions and four loads that depend on
//! each other. The lock of the QP, under which it copies, replaces them: a deregistration first
//! withdraws the region, and then takes the lock of each QP that keeps it. After that, no copy is
//! under way, and no QP uses the region again. Principal types: [`KeptRegion`], [`Keepers`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::extent::Extent;

/// After this many look-ups in a row a QP keeps the region. To keep another one takes two locks and
/// allocates, so it must be rare.
const OFTEN: u32 = 8;

/// A QP that keeps regions.
pub(crate) trait Keeper: Send + Sync {
    /// A reference that does not keep the QP alive.
    fn weak(&self) -> Weak<dyn Keeper>;

    /// Waits until the copies under way have ended, and gives up the regions that are withdrawn.
    fn give_up_withdrawn(&self);
}

/// The QPs that keep a region.
#[derive(Default)]
pub(crate) struct Keepers {
    withdrawn: AtomicBool,
    /// By the address of the QP.
    list: Mutex<BTreeMap<usize, Entry>>,
}

struct Entry {
    keeper: Weak<dyn Keeper>,
    /// In how many directions it keeps the region.
    count: u32,
}

fn address(keeper: &Weak<dyn Keeper>) -> usize {
    keeper.as_ptr().cast::<()>().addr()
}

impl Keepers {
    #[inline]
    fn is_withdrawn(&self) -> bool {
        // Relaxed: read under the lock of the QP, which `withdraw` takes after it has written.
        self.withdrawn.load(Ordering::Relaxed)
    }

    fn add(&self, keeper: Weak<dyn Keeper>) {
        self.list.lock().entry(address(&keeper)).or_insert(Entry { keeper, count: 0 }).count += 1;
    }

    fn remove(&self, keeper: usize) {
        let mut list = self.list.lock();
        if let Some(entry) = list.get_mut(&keeper) {
            entry.count -= 1;
            if entry.count == 0 {
                list.remove(&keeper);
            }
        }
    }

    /// Makes all QPs give up the region, which no table has any more. When this returns, none of
    /// them accesses it. The caller holds no lock of a QP.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Relaxed);
        let list = std::mem::take(&mut *self.list.lock());
        for keeper in list.values().filter_map(|entry| entry.keeper.upgrade()) {
            keeper.give_up_withdrawn();
        }
    }
}

/// What a QP keeps for one direction. It is used only under the lock of the QP.
#[derive(Default)]
pub(crate) struct KeptRegion {
    kept: Option<Kept>,
    /// The key that was looked up last, and how often in a row.
    last: (u32, u32),
}

struct Kept {
    extent: Arc<Extent>,
    keeper: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.extent.keepers.remove(self.keeper);
    }
}

impl KeptRegion {
    /// The region, if it has this key.
    #[inline]
    pub(super) fn get(&mut self, key: u32) -> Option<&Extent> {
        let extent = &*self.kept.as_ref()?.extent;
        let is_it = extent.key == key && !extent.keepers.is_withdrawn();
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
        let weak = keeper.weak();
        let keeper = address(&weak);
        extent.keepers.add(weak);
        self.kept = Some(Kept { extent: Arc::clone(extent), keeper });
        self.last.1 = 0;
    }

    /// Gives the region up if it is withdrawn.
    pub(crate) fn give_up_withdrawn(&mut self) {
        if self.kept.as_ref().is_some_and(|kept| kept.extent.keepers.is_withdrawn()) {
            *self = Self::default();
        }
    }
}
