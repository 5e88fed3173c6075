//! Queue memory: the regions that the agent allocates and this process maps, one mapping for many
//! queues.
//!
//! The agent names a place by region, offset and length. It attaches the region's descriptor when
//! the region's first object appears. A [`View`] is one object's part. The mapping ends with the
//! last view; at that time the agent forgets the region, too. Principal types: [`QueueMemory`] and
//! [`View`].

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use abi::errno::Errno;
use abi::queue::Mapping;
use bytemuck::Pod;
use parking_lot::Mutex;
use shm::region::Region;
use shm::{Sink, Source};

use crate::error::{Result, by_system, refusal};

/// The regions of one context.
pub(crate) struct QueueMemory {
    regions: Mutex<HashMap<u32, Weak<Region>>>,
}

/// The flag of [`Mapping`] for an attached descriptor of the region.
const ATTACHED: u32 = 1;

impl QueueMemory {
    pub(crate) fn new() -> Self {
        Self { regions: Mutex::new(HashMap::new()) }
    }

    /// The view that `mapping` names; `fds` provides the descriptor of a new region.
    pub(crate) fn view(&self, mapping: &Mapping, fds: &mut dyn Iterator<Item = OwnedFd>) -> Result<View> {
        let mut regions = self.regions.lock();
        regions.retain(|_, region| region.strong_count() > 0);
        let fd = if mapping.flags & ATTACHED != 0 { fds.next() } else { None };
        let region = match (regions.get(&mapping.region).and_then(Weak::upgrade), fd) {
            (Some(region), _) => region,
            (None, Some(fd)) => {
                let len = usize::try_from(mapping.region_len).unwrap_or(usize::MAX);
                let region = Arc::new(Region::map(fd.as_fd(), len).map_err(by_system)?);
                regions.insert(mapping.region, Arc::downgrade(&region));
                region
            }
            (None, None) => {
                return Err(refusal(
                    Errno::EIO,
                    format!("the agent named queue memory {} without its descriptor", mapping.region),
                ));
            }
        };
        let (offset, length) = (usize::try_from(mapping.offset), usize::try_from(mapping.length));
        match (offset, length) {
            (Ok(offset), Ok(length)) if offset.checked_add(length).is_some_and(|end| end <= region.len()) => {
                Ok(View { region, offset, length })
            }
            _ => {
                Err(refusal(Errno::EIO, format!("the agent named a place outside of queue memory {}", mapping.region)))
            }
        }
    }
}

/// One object's part of queue memory. Offsets are relative to it and checked.
#[derive(Clone)]
pub(crate) struct View {
    region: Arc<Region>,
    offset: usize,
    length: usize,
}

impl View {
    /// All of a region that belongs to a single queue.
    pub(crate) fn whole(region: Region) -> Self {
        let length = region.len();
        Self { region: Arc::new(region), offset: 0, length }
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> usize {
        if offset + len > self.length {
            self.misplaced(offset, len);
        }
        self.offset + offset
    }

    #[cold]
    fn misplaced(&self, offset: usize, len: usize) -> ! {
        panic!("offset {offset} + {len} in queue memory of {}", self.length)
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        self.region.word(self.at(offset, 4))
    }

    #[inline]
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        self.region.word64(self.at(offset, 8))
    }

    #[inline]
    pub(crate) fn read<T: Pod>(&self, offset: usize) -> T {
        self.region.read(self.at(offset, size_of::<T>()))
    }

    #[inline]
    pub(crate) fn write<T: Pod>(&self, offset: usize, value: &T) {
        self.region.write(self.at(offset, size_of::<T>()), value);
    }

    /// Copies a value directly to its destination. A second copy with other access sizes would
    /// stall on store forwarding.
    #[inline]
    pub(crate) fn read_to<T: Pod>(&self, offset: usize, value: &mut T) {
        self.region.copy_out(self.at(offset, size_of::<T>()), bytemuck::bytes_of_mut(value));
    }

    pub(crate) fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        self.region.copy_in(self.at(offset, bytes.len()), bytes);
    }

    /// `len` bytes at `offset`, for reading.
    #[inline]
    pub(crate) fn source(&self, offset: usize, len: usize) -> Source<'_> {
        self.region.source(self.at(offset, len), len).unwrap_or_else(|| self.misplaced(offset, len))
    }

    /// `len` bytes at `offset`, for writing.
    #[inline]
    pub(crate) fn sink(&self, offset: usize, len: usize) -> Sink<'_> {
        self.region.sink(self.at(offset, len), len).unwrap_or_else(|| self.misplaced(offset, len))
    }
}
