//! The queue memory of one context: it places CQs, QPs and SRQs so that 1,000 of them need few
//! mappings.
//!
//! Regions are sealed memfds. Their sizes grow (256 KiB, 512 KiB, … 64 MiB, or the size of one
//! large object). Objects are placed in regions first fit. When the last object of a region goes,
//! the region goes on both sides, and its id is never reused. The client may overwrite all of it,
//! so the agent only reads single words. The principal types are [`QueueMemory`] and [`Block`]. The
//! layouts are in `abi::queue`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::queue::Mapping;
use parking_lot::Mutex;

use crate::closer::Closer;
use crate::freed_later::FreedLater;
use crate::host::Host;

/// Objects start on cache lines.
const ALIGN: usize = 64;
const FIRST_REGION: usize = 256 << 10;
const LARGEST_SHARED_REGION: usize = 64 << 20;
/// Freed ranges of at least this size are returned to the system. This takes time, and a program
/// that writes to the memory's file can hold it up, so the user's thread does it.
const PUNCH: usize = 1 << 20;
const PAGE: usize = 4096;
/// Maximum number of bytes of one context. The limit protects the agent's address space and
/// mappings. Memory belongs to the client once the client touches it.
const MOST: u64 = 256 << 30;
/// The flag of [`Mapping`] for "the region's descriptor is attached".
const ATTACHED: u32 = 1;

/// All regions of one context.
pub struct QueueMemory {
    host: Arc<dyn Host>,
    closer: Closer,
    slabs: BTreeMap<u32, RegionSlab>,
    last_id: u32,
    /// Total size of the regions.
    bytes: u64,
}

struct RegionSlab {
    region: Arc<FreedLater>,
    /// Free ranges, offset to length, never adjacent.
    free: BTreeMap<usize, usize>,
    /// Free ranges whose memory the user's thread has returned to the system.
    punched: Arc<Mutex<Vec<(usize, usize)>>>,
    objects: usize,
    /// Places of former objects from which clients may still read.
    left: usize,
}

/// The place of one object.
#[derive(Clone)]
pub struct Block {
    region: Arc<FreedLater>,
    id: u32,
    offset: usize,
    len: usize,
}

/// The place of a new object, and how its client maps it.
pub struct Allocation {
    /// The place.
    pub block: Block,
    /// The mapping that the client is told.
    pub mapping: Mapping,
    /// The region's descriptor, if the client does not have it yet.
    pub fd: Option<OwnedFd>,
}

impl QueueMemory {
    /// No regions yet; they will be memory of `host`. `closer` is of the user that gets them.
    pub fn new(host: Arc<dyn Host>, closer: Closer) -> Self {
        Self { host, closer, slabs: BTreeMap::new(), last_id: 0, bytes: 0 }
    }

    /// Allocates `len` bytes. The first cache line, the control block, is zero.
    pub fn allocate(&mut self, len: usize) -> io::Result<Allocation> {
        let len = len.max(1).next_multiple_of(ALIGN);
        // A client drops its mapping with the region's last object. A region with only left places
        // is skipped, because the client would need its descriptor again.
        let mut mapped = self.slabs.iter_mut().filter(|(_, slab)| slab.objects > 0);
        let found = mapped.find_map(|(id, slab)| Some((*id, slab.take(len)?)));
        match found {
            Some((id, offset)) => self.grant(id, offset, len, false),
            None => {
                let shared = FIRST_REGION << self.slabs.len().min(8);
                let id = self.add(shared.min(LARGEST_SHARED_REGION).max(len).next_multiple_of(PAGE))?;
                let offset = self.slabs.get_mut(&id).and_then(|slab| slab.take(len)).unwrap_or_default();
                self.grant(id, offset, len, true)
            }
        }
    }

    /// Allocates a region for one object that the counters do not count as queue memory: the
    /// context page.
    pub fn allocate_apart(&mut self, len: usize) -> io::Result<Allocation> {
        let id = self.add(len.next_multiple_of(PAGE))?;
        if let Some(slab) = self.slabs.get_mut(&id) {
            slab.free.clear();
        }
        self.grant(id, 0, len, true)
    }

    /// Frees a place; with the last place its region goes.
    pub fn release(&mut self, block: &Block) {
        let Some(slab) = self.slabs.get_mut(&block.id) else { return };
        slab.objects -= 1;
        self.free(block);
    }

    /// Like [`QueueMemory::release`], but the place is not reused before [`QueueMemory::reclaim`],
    /// because its client still reads there. Until then the region stays mapped and counts.
    pub fn leave(&mut self, block: &Block) {
        let Some(slab) = self.slabs.get_mut(&block.id) else { return };
        slab.objects -= 1;
        slab.left += 1;
    }

    /// A place that was left is in use again.
    pub(crate) fn come_back(&mut self, block: &Block) {
        let Some(slab) = self.slabs.get_mut(&block.id) else { return };
        slab.left -= 1;
        slab.objects += 1;
    }

    /// Frees a place that was left; with the last place its region goes.
    pub fn reclaim(&mut self, block: &Block) {
        let Some(slab) = self.slabs.get_mut(&block.id) else { return };
        slab.left -= 1;
        self.free(block);
    }

    fn free(&mut self, block: &Block) {
        let Some(slab) = self.slabs.get_mut(&block.id) else { return };
        if slab.objects + slab.left == 0 {
            self.end(block.id);
        } else {
            slab.put(&self.host, &self.closer, block.offset, block.len);
        }
    }

    /// A descriptor of the region of `block`, for a client that has not mapped the region.
    pub fn descriptor(&self, block: &Block) -> io::Result<OwnedFd> {
        let slab = self.slabs.get(&block.id).ok_or(io::ErrorKind::NotFound)?;
        self.host.duplicate(slab.region.fd().as_fd())
    }

    /// How many regions there are.
    pub fn regions(&self) -> usize {
        self.slabs.len()
    }

    /// Total size of the regions, touched or not.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, len: usize) -> io::Result<u32> {
        if self.bytes() + len as u64 > MOST {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "the context has its share of queue memory"));
        }
        let (region, fd) = self.host.memory("softhca-queues", len)?;
        self.last_id += 1;
        let region = Arc::new(FreedLater::new(Arc::clone(&self.host), region, fd));
        let free = BTreeMap::from([(0, len)]);
        let slab = RegionSlab { region, free, punched: Arc::default(), objects: 0, left: 0 };
        self.bytes += slab.region.len() as u64;
        self.slabs.insert(self.last_id, slab);
        Ok(self.last_id)
    }

    /// Ends a region whose last object is gone.
    fn end(&mut self, id: u32) {
        if let Some(slab) = self.slabs.remove(&id) {
            self.bytes -= slab.region.len() as u64;
        }
    }

    fn grant(&mut self, id: u32, offset: usize, len: usize, new: bool) -> io::Result<Allocation> {
        let slab = self.slabs.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        slab.objects += 1;
        let block = Block { region: Arc::clone(&slab.region), id, offset, len };
        let fd = match new.then(|| self.host.duplicate(block.descriptor())).transpose() {
            Ok(fd) => fd,
            Err(error) => {
                self.release(&block);
                return Err(error);
            }
        };
        for word in 0..ALIGN.min(len) / 4 {
            block.word(word * 4).store(0, Ordering::Relaxed);
        }
        let mapping = block.mapping(fd.is_some());
        Ok(Allocation { block, mapping, fd })
    }
}

impl RegionSlab {
    fn take(&mut self, len: usize) -> Option<usize> {
        let punched = std::mem::take(&mut *self.punched.lock());
        for (offset, len) in punched {
            self.join(offset, len);
        }
        let (offset, room) = self.free.iter().map(|(o, r)| (*o, *r)).find(|(_, room)| *room >= len)?;
        self.free.remove(&offset);
        if room > len {
            self.free.insert(offset + len, room - len);
        }
        Some(offset)
    }

    fn put(&mut self, host: &Arc<dyn Host>, closer: &Closer, offset: usize, len: usize) {
        if len < PUNCH {
            return self.join(offset, len);
        }
        let start = offset.next_multiple_of(PAGE);
        let end = (offset + len) / PAGE * PAGE;
        // A region that ends meanwhile is freed as a whole.
        let (host, region, punched) = (Arc::clone(host), Arc::downgrade(&self.region), Arc::clone(&self.punched));
        closer.act(move || {
            let Some(region) = region.upgrade() else { return };
            // If the memory cannot be returned, the agent keeps it.
            let _ = host.punch(&region, start, end - start);
            // The range is not reused before this push.
            punched.lock().push((offset, len));
        });
    }

    fn join(&mut self, mut offset: usize, mut len: usize) {
        if let Some(after) = self.free.remove(&(offset + len)) {
            len += after;
        }
        if let Some((&before, &room)) = self.free.range(..offset).next_back()
            && before + room == offset
        {
            offset = before;
            len += room;
        }
        self.free.insert(offset, len);
    }
}

impl Block {
    /// A word of the object's control block, or of the bytes after it. The client may write it at
    /// any time.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.len, "word {offset} of an object of {} bytes", self.len);
        self.region.word(self.offset + offset)
    }

    /// The value of this word now.
    pub fn read(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// The value of 8 bytes now.
    pub fn read64(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= self.len, "word {offset} of an object of {} bytes", self.len);
        self.region.word64(self.offset + offset).load(Ordering::Acquire)
    }

    /// Copies bytes from `offset` on. The client may write them during the copy.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.len, "{} bytes at {offset} of {}", into.len(), self.len);
        self.region.copy_out(self.offset + offset, into);
    }

    /// Copies `bytes` to `offset`.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "{} bytes at {offset} of {}", bytes.len(), self.len);
        self.region.copy_in(self.offset + offset, bytes);
    }

    /// The mapping of this place, for the client.
    pub fn mapping(&self, attached: bool) -> Mapping {
        Mapping {
            region: self.id,
            flags: if attached { ATTACHED } else { 0 },
            region_len: self.region.len() as u64,
            offset: self.offset as u64,
            length: self.len as u64,
        }
    }

    /// The descriptor of its region.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.region.fd().as_fd()
    }

    /// The region's id.
    pub fn region(&self) -> u32 {
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_objects_need_few_regions_and_leave_none() {
        let mut memory = QueueMemory::new(Arc::new(crate::host::System::default()), Closer::default());
        let mut blocks = Vec::new();
        let mut attached = 0;
        for index in 0..1_000 {
            let allocation = memory.allocate(3_000 + index % 7 * 1_000).expect("room");
            attached += u32::from(allocation.fd.is_some());
            assert_eq!(allocation.mapping.flags & ATTACHED != 0, allocation.fd.is_some());
            blocks.push(allocation.block);
        }
        assert!(attached <= 8 && memory.regions() <= 8, "{attached} mappings for 1,000 objects");
        for (index, block) in blocks.iter().enumerate() {
            for other in &blocks[index + 1..] {
                let apart = block.offset + block.len <= other.offset || other.offset + other.len <= block.offset;
                assert!(block.id != other.id || apart, "two objects share memory");
            }
        }
        for block in &blocks {
            memory.release(block);
        }
        assert_eq!((memory.regions(), memory.bytes()), (0, 0));
    }

    #[test]
    fn freed_room_is_joined_and_used_again_with_a_clean_control_block() {
        let mut memory = QueueMemory::new(Arc::new(crate::host::System::default()), Closer::default());
        let keep = memory.allocate(64).expect("room").block;
        let parts: Vec<Block> = (0..3).map(|_| memory.allocate(80_000).expect("room").block).collect();
        parts[1].word(8).store(7, Ordering::Relaxed);
        for block in [&parts[0], &parts[2], &parts[1]] {
            memory.release(block);
        }
        let whole = memory.allocate(240_000).expect("room");
        assert!(whole.fd.is_none(), "the three holes became one");
        assert_eq!(whole.block.region(), keep.region());
        assert_eq!(memory.allocate(64 << 20).expect("room").block.read(0), 0);
        assert_eq!(memory.regions(), 2);
    }

    #[test]
    fn a_place_that_was_left_counts_until_it_is_reclaimed() {
        let mut memory = QueueMemory::new(Arc::new(crate::host::System::default()), Closer::default());
        let first = memory.allocate(64 << 20).expect("room").block;
        let second = memory.allocate(64 << 20).expect("room").block;
        memory.leave(&first);
        assert_eq!((memory.regions(), memory.bytes()), (2, 128 << 20));
        memory.reclaim(&first);
        assert_eq!(memory.regions(), 1);
        memory.leave(&second);
        memory.reclaim(&second);
        assert_eq!((memory.regions(), memory.bytes()), (0, 0));
    }

    #[test]
    fn a_large_place_is_given_to_others_when_its_memory_is_clean() {
        const LARGE: usize = 24 << 20;
        let mut memory = QueueMemory::new(Arc::new(crate::host::System::default()), Closer::default());
        // Regions grow; the first of 64 MiB has room for two.
        let small: Vec<_> = (18..26).map(|bits| memory.allocate(1 << bits).expect("room").block).collect();
        let _keep = memory.allocate(LARGE).expect("room").block;
        let first = memory.allocate(LARGE).expect("room").block;
        assert!(small.iter().all(|block| block.id != first.id));
        first.copy_in(LARGE - 8, &[7; 8]);
        memory.release(&first);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let next = memory.allocate(LARGE).expect("room").block;
            let mut bytes = [1; 8];
            next.copy_out(LARGE - 8, &mut bytes);
            assert_eq!(bytes, [0; 8], "whoever gets it finds nothing of its last user");
            if (next.id, next.offset) == (first.id, first.offset) {
                break;
            }
            assert!(std::time::Instant::now() < end, "the place never comes back");
        }
    }

    #[test]
    fn region_ids_never_come_back() {
        let mut memory = QueueMemory::new(Arc::new(crate::host::System::default()), Closer::default());
        let first = memory.allocate(64).expect("room").block;
        memory.release(&first);
        let second = memory.allocate(64).expect("room").block;
        assert_ne!(first.region(), second.region());
    }
}
