//! The memory behind a key: an address range, the rights of its users, the windows on it, and the
//! QPs that keep it.
//!
//! The registration of regions is in `mr.rs`, the binding of windows in `window.rs`. Principal
//! type: [`Extent`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use abi::errno::Errno;
use parking_lot::Mutex;
use shm::region::Region;

use crate::error::{Result, refusal};

/// The right of its owner to read a memory region. Every region has this right, and no memory
/// window has it. Programs do not request it.
pub(crate) const LOCAL_READ: u32 = 1 << 31;

/// The PD of a window of type 2A, which is bound only to a QP number. No PD handle is that large.
pub(crate) const EVERY_PD: u32 = u32::MAX;

/// The memory behind the key of a region or of a bound window. `rereg` replaces the whole value.
pub(crate) struct Extent {
    pub(crate) key: u32,
    /// The PD that may use it, or [`EVERY_PD`].
    pub(crate) pd: u32,
    /// The address of the first byte in this process.
    pub(crate) host: u64,
    /// The address of the first byte for work requests and peers.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
    /// A window of type 2: the QP that has bound it. 0 means every QP.
    pub(crate) only: u32,
    pub(crate) memory_kind: MemoryKind,
    /// The windows that are bound to the region.
    pub(crate) windows: Arc<Windows>,
    /// Keeps the memory mapped, if it is not the program's own (in the agent's proxy engine).
    pub(crate) backing: Option<Arc<Region>>,
    /// The QPs that keep it.
    pub(crate) keepers: Keepers,
}

impl Extent {
    /// Whether this is a memory window. Its owner does not have the right that each region's owner
    /// has.
    pub(crate) fn is_window(&self) -> bool {
        self.access & LOCAL_READ == 0
    }
}

/// How many windows are bound to a region. While there are any, the region cannot change.
#[derive(Default)]
pub(crate) struct Windows(AtomicU32);

/// The region is about to end or to change.
const CLOSED: u32 = 1 << 31;

impl Windows {
    /// Counts one more window. Returns `false` if the region is about to end or to change.
    pub(crate) fn add(&self) -> bool {
        let more = |count| (count & CLOSED == 0).then_some(count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Prevents new windows until [`Windows::open`]. EBUSY while a window is bound.
    pub(crate) fn close(&self, key: u32) -> Result<()> {
        self.0.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed).map(drop).map_err(|count| {
            refusal(Errno::EBUSY, format!("{} memory windows are bound to MR {key:#x}", count & !CLOSED))
        })
    }

    pub(crate) fn open(&self) {
        self.0.store(0, Ordering::Release);
    }
}

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
    /// The region has ended.
    pub(crate) withdrawn: AtomicBool,
    /// By the address of the QP.
    list: Mutex<BTreeMap<usize, ExtentEntry>>,
}

struct ExtentEntry {
    keeper: Weak<dyn Keeper>,
    /// In how many directions it keeps the region.
    count: u32,
}

impl Keepers {
    /// Counts one direction more; returns the address for [`Keepers::remove`].
    pub(crate) fn add(&self, keeper: Weak<dyn Keeper>) -> usize {
        let address = keeper.as_ptr().cast::<()>().addr();
        self.list.lock().entry(address).or_insert(ExtentEntry { keeper, count: 0 }).count += 1;
        address
    }

    pub(crate) fn remove(&self, keeper: usize) {
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

/// The kind of memory behind a region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// The program's memory.
    Program,
    /// No memory: reads give zeros, and writes are dropped.
    Null,
    /// Device memory.
    Device,
}
