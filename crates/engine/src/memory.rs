//! Queue memory: the regions that the agent allocates and this process maps, one mapping for many
//! queues.
//!
//! The agent names a place by region, offset and length. It attaches the region's descriptor when
//! the region's first object appears. A [`View`] is one object's part. The mapping ends with the
//! last view; at that time the agent forgets the region, too.
//!
//! A queue is a [`Ring`] of entries in a view, addressed by free-running indices ([`Wheel`]). A
//! send entry is a header, then either gather elements or inline data. The header has 16 bytes on a
//! connection and 64 bytes for a datagram, which carries its own address. A receive entry is a
//! header of 16 bytes, then scatter elements. Only the owning process reads and writes the entries,
//! under its queue's lock. The stride comes from the agent. A completion queue has entries of 64
//! bytes ([`Cqe`]). Principal types: [`QueueMemory`], [`View`], [`Ring`] and [`Wheel`].

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use abi::cq::Wc;
use abi::errno::Errno;
use abi::post::Sge;
use abi::queue::{DATAGRAM_WQE_HEADER, Mapping, RECV_WQE_HEADER, SEND_WQE_HEADER};
use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;
use shm::region::Region;
use shm::{Sink, Source};

use crate::control::too_many_open;
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
            (None, None) if mapping.flags & ATTACHED != 0 => return Err(too_many_open()),
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

/// The header of a datagram's send entry, with the address vector at the time of posting.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct DatagramEntry {
    pub(crate) brief: SendBrief,
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    /// Whether the address handle is on another PD.
    pub(crate) foreign: u8,
    pub(crate) static_rate: u8,
    /// The destination LID if there is no GRH; otherwise 0.
    pub(crate) dlid: u16,
    /// The low bits of the sender's LID.
    pub(crate) src_path_bits: u8,
    pub(crate) reserved: u8,
    /// The LID in the address handle, also if there is a GRH; switches forward by it.
    pub(crate) lid: u16,
    pub(crate) reserved2: [u8; 8],
}

/// The start of the header of every send entry. For a connection it is the whole header, because
/// the requester keeps the rest.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct SendBrief {
    pub(crate) wr_id: u64,
    /// Total bytes of the gather list or of the inline data.
    pub(crate) length: u32,
    /// Work request opcode (IBV numbering).
    pub(crate) opcode: u8,
    pub(crate) signaled: u8,
    pub(crate) inline: u8,
    pub(crate) num_sge: u8,
}

const _: () = assert!(size_of::<SendBrief>() == SEND_WQE_HEADER);
const _: () = assert!(size_of::<DatagramEntry>() == DATAGRAM_WQE_HEADER);

/// The header of a receive entry.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct RecvEntry {
    pub(crate) wr_id: u64,
    pub(crate) num_sge: u32,
    /// Total bytes of the scatter list.
    pub(crate) length: u32,
}

const _: () = assert!(size_of::<RecvEntry>() == RECV_WQE_HEADER);

/// The location of one queue's entries.
#[derive(Clone, Copy, Default)]
pub(crate) struct Layout {
    pub(crate) offset: u32,
    pub(crate) count: u32,
    pub(crate) stride: u32,
}

/// A ring of entries in queue memory, addressed by free-running index.
#[derive(Clone)]
pub(crate) struct Ring {
    /// `None` after [`Ring::forget`].
    view: Option<View>,
    layout: Layout,
    /// Bytes of an entry before its elements or inline data.
    header: u32,
    wheel: Wheel,
}

/// Elements of an entry's gather or scatter list.
#[derive(Clone)]
pub(crate) struct Elements<'a> {
    ring: &'a Ring,
    index: u32,
    numbers: Range<usize>,
}

impl Iterator for Elements<'_> {
    type Item = Sge;

    // A closure in place of this type was not inlined, and cost as much as a copy of a few bytes.
    #[inline(always)]
    fn next(&mut self) -> Option<Sge> {
        Some(self.ring.element(self.index, self.numbers.next()?))
    }
}

impl Ring {
    /// A ring of entries that begin with `header` bytes. Refuses a layout that does not fit its
    /// memory, because the layout comes from another process.
    pub(crate) fn new(view: View, layout: Layout, header: usize) -> Option<Self> {
        let bytes = u64::from(layout.count) * u64::from(layout.stride) + u64::from(layout.offset);
        let sound = usize::try_from(bytes).is_ok_and(|end| end <= view.len())
            && (layout.count == 0 || layout.stride as usize >= header && layout.stride.is_multiple_of(8));
        sound.then(|| Self { view: Some(view), layout, header: header as u32, wheel: Wheel::new(layout.count) })
    }

    /// A queue without entries and memory.
    pub(crate) fn empty() -> Self {
        Self { view: None, layout: Layout::default(), header: 0, wheel: Wheel::new(0) }
    }

    /// Releases the memory: the queue is destroyed and nothing will touch it again.
    pub(crate) fn forget(&mut self) {
        self.view = None;
    }

    #[inline]
    fn view(&self) -> &View {
        self.view.as_ref().expect("entries are used only while the queue exists")
    }

    pub(crate) fn count(&self) -> u32 {
        self.layout.count
    }

    /// Bytes from one entry to the next.
    pub(crate) fn stride(&self) -> usize {
        self.layout.stride as usize
    }

    #[inline]
    fn entry(&self, index: u32) -> usize {
        self.layout.offset as usize + self.wheel.slot(index) * self.layout.stride as usize
    }

    /// The index after `index`.
    #[inline]
    pub(crate) fn advance(&self, index: u32) -> u32 {
        self.wheel.next(index)
    }

    /// The number of entries in `[head, tail)`.
    #[inline]
    pub(crate) fn used(&self, head: u32, tail: u32) -> u32 {
        self.wheel.between(head, tail)
    }

    #[inline(always)]
    pub(crate) fn read<T: Pod>(&self, index: u32) -> T {
        self.view().read(self.entry(index))
    }

    #[inline]
    pub(crate) fn write<T: Pod>(&self, index: u32, header: &T) {
        self.view().write(self.entry(index), header);
    }

    /// The start of the data after the header of an entry.
    #[inline]
    fn body(&self, index: u32) -> usize {
        self.entry(index) + self.header as usize
    }

    #[inline(always)]
    fn element(&self, index: u32, number: usize) -> Sge {
        self.view().read(self.body(index) + number * size_of::<Sge>())
    }

    /// The first `count` elements of an entry's gather or scatter list.
    #[inline(always)]
    pub(crate) fn elements(&self, index: u32, count: usize) -> Elements<'_> {
        Elements { ring: self, index, numbers: 0..count }
    }

    #[inline]
    pub(crate) fn set_element(&self, index: u32, number: usize, sge: &Sge) {
        self.view().write(self.body(index) + number * size_of::<Sge>(), sge);
    }

    /// The inline data of a send entry.
    #[inline]
    pub(crate) fn inline(&self, index: u32, len: usize) -> Source<'_> {
        self.view().source(self.body(index), len)
    }

    /// The room for the inline data of a send entry.
    #[inline]
    pub(crate) fn inline_room(&self, index: u32, len: usize) -> Sink<'_> {
        self.view().sink(self.body(index), len)
    }
}

/// The arithmetic of one ring, whose size need not be a power of two.
///
/// An index wraps so that index modulo size remains the slot: at the end of the word for powers of
/// two, otherwise at the largest multiple of the size that fits the word. A full ring differs from
/// an empty one. The constructor precomputes what would need divisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wheel {
    size: u32,
    wrap: u32,
    /// `size - 1`, if the size is a power of two.
    mask: Option<u32>,
}

impl Wheel {
    pub(crate) fn new(size: u32) -> Self {
        // 0 stands for 2^32, where powers of two wrap.
        let wrap = if size.is_power_of_two() { 0 } else { u32::MAX.checked_div(size).unwrap_or(0) * size };
        Self { size, wrap, mask: size.is_power_of_two().then(|| size - 1) }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The slot of `index`.
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> usize {
        match self.mask {
            Some(mask) => (index & mask) as usize,
            None => (index % self.size) as usize,
        }
    }

    /// The index after `index`.
    #[inline]
    pub(crate) fn next(&self, index: u32) -> u32 {
        let next = index.wrapping_add(1);
        if next == self.wrap { 0 } else { next }
    }

    /// The number of indices in `[from, to)`.
    #[inline]
    pub(crate) fn between(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.wrap.wrapping_sub(from).wrapping_add(to) }
    }
}

/// The control words of a CQ, by offset (see the ABI document, "queue memory").
pub(crate) mod word {
    pub(crate) const PRODUCER: usize = 0;
    pub(crate) const CONSUMER: usize = 4;
    pub(crate) const ARMED: usize = 8;
    pub(crate) const OVERRUN: usize = 12;
    pub(crate) const COMP_EVENTS: usize = 16;
    pub(crate) const ASYNC_EVENTS: usize = 20;
    pub(crate) const ENTRIES: usize = 64;
}

/// One entry as it lies in queue memory.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Cqe {
    pub(crate) wc: Wc,
    pub(crate) timestamp: u64,
    /// The work queue's index after this entry's request. A poll frees the entries before this
    /// index.
    pub(crate) freed: u32,
    /// [`FREES_SEND`], [`FREES_RECV`] or neither, and [`SOLICITED`].
    pub(crate) flags: u32,
}

impl Cqe {
    /// Whether it wakes a program that waits for solicited completions.
    pub(crate) fn is_solicited(&self) -> bool {
        self.flags & SOLICITED != 0 || self.wc.status != 0
    }
}

// `Cq::take_each` reads the entry by this layout.
const _: () = assert!(size_of::<Cqe>() == 64 && std::mem::offset_of!(Cqe, freed) == size_of::<Wc>() + 8);

/// The entry completes a send request.
pub(crate) const FREES_SEND: u32 = 1;
/// The entry completes a receive request of the QP's own queue.
pub(crate) const FREES_RECV: u32 = 2;
/// The sender has solicited the event of this completion.
pub(crate) const SOLICITED: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn slots_follow_each_other_over_the_wrap() {
        for size in [1, 2, 3, 7, 8, 1000, 4096] {
            let wheel = Wheel::new(size);
            let mut index = wheel.wrap.wrapping_sub(size + 1);
            let mut slot = wheel.slot(index);
            for _ in 0..2 * size + 3 {
                let next = wheel.next(index);
                assert_eq!(wheel.slot(next), (slot + 1) % size as usize, "size {size}");
                assert_eq!(wheel.between(index, next), 1);
                (index, slot) = (next, wheel.slot(next));
            }
        }
    }

    #[test]
    fn a_full_ring_is_not_an_empty_one() {
        for size in [3, 4] {
            let wheel = Wheel::new(size);
            let from = wheel.wrap.wrapping_sub(2);
            let to = (0..size).fold(from, |index, _| wheel.next(index));
            assert_eq!((wheel.between(from, to), wheel.between(from, from)), (size, 0));
        }
    }
}
