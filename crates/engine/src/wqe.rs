//! Queue entries as they lie in queue memory: send and receive work requests.
//!
//! A send entry is a header, then either gather elements or inline data. The header has 16 bytes on
//! a connection and 64 bytes for a datagram, which carries its own address. A receive entry is a
//! header of 16 bytes, then scatter elements. Only the owning process reads and writes the entries,
//! under its queue's lock. The stride comes from the agent. Principal type: [`Ring`].

use std::ops::Range;

use abi::post::Sge;
use abi::queue::{DATAGRAM_WQE_HEADER, RECV_WQE_HEADER, SEND_WQE_HEADER};
use bytemuck::{Pod, Zeroable};
use shm::{Sink, Source};

use crate::memory::View;
use crate::wheel::Wheel;

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
        self.view.as_ref().expect("whoever touches entries has seen that the queue lives")
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
