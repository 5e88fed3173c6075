//! The parts of a connection: a queue pair, its completions, and three pieces of registered memory.
//! These are the send ring, the receive ring, and the list in which the peer announces its buffers
//! (followed by the I/O map). The parts do not change while the connection lives. The principal
//! type is [`Link`].

use super::cm::{Endpoint, Shape};
use super::memory::Region;
use super::settings::Settings;
use super::verbs::{Access, Completions, Load, Queue};
use super::words::Words;
use crate::entry::Outcome;
use crate::layout::{DeviceAttr, QpCap};
use crate::verbs;
use bytemuck::Zeroable;
use rsocket::connect::Hello;
use rsocket::iomap::Entry;
use rsocket::ring::Pieces;
use rsocket::stream::{ENTRIES, MARGIN, Sizes};
use rsocket::{Order, Stream, Target};
use std::ffi::c_int;

/// The least inline size of a queue pair: an entry of an I/O map.
const LEAST_INLINE: u32 = 32;

/// The parts of a connection.
pub(crate) struct Link {
    pub(crate) completions: Completions,
    pub(crate) queue: Queue,
    pub(crate) outbox: Region,
    pub(crate) inbox: Region,
    list: Region,
    pub(crate) words: Words,
    sizes: Sizes,
    iomap: u16,
    /// Messages up to this length are copied when they are posted.
    pub(crate) inline: u32,
}

impl Link {
    /// Makes the parts on the device that the id's address resolved to.
    pub(crate) fn new(endpoint: &Endpoint, settings: &Settings) -> Outcome<Self> {
        let context = endpoint.context();
        let mut device = DeviceAttr::zeroed();
        // SAFETY: an id's context stays open, and `device` is a local variable.
        verbs::done(unsafe { verbs::ibv_query_device(context, &raw mut device) })?;
        // iWARP: a message is a WRITE and a SEND, and some receives are kept.
        let sends = endpoint.is_iwarp();
        let most = if sends { device.max_qp_wr / 2 - c_int::from(MARGIN) } else { device.max_qp_wr };
        let sizes = settings.sizes().fitted(u16::try_from(most.max(0)).unwrap_or(u16::MAX));
        let max_send_wr = u32::from(sizes.send_queue) * if sends { 2 } else { 1 };
        let max_recv_wr = u32::from(sizes.receive_queue) + if sends { MARGIN.into() } else { 0 };
        let completions = Completions::new(context, max_send_wr + max_recv_wr)?;
        let cap = QpCap {
            max_send_wr,
            max_recv_wr,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: settings.inline.max(LEAST_INLINE),
        };
        let cap = endpoint.make_queue(completions.cq(), &Shape { datagrams: false, cap })?;
        let whole = || -> Outcome<(Queue, Words, Region, Region, Region)> {
            let pd = endpoint.pd();
            let list = ENTRIES * Target::SIZE + usize::from(settings.iomap) * Entry::SIZE;
            let queue = Queue::new(context, endpoint.queue_pair(), sends);
            let words = Words::new(pd, &queue, max_recv_wr, sends)?;
            Ok((
                queue,
                words,
                Region::new(pd, size(sizes.send_ring), Access::Local)?,
                Region::new(pd, size(sizes.receive_ring), Access::RemoteWrite)?,
                Region::new(pd, list, Access::RemoteWrite)?,
            ))
        };
        let inline = settings.inline.min(cap.max_inline_data);
        match whole() {
            Ok((queue, words, outbox, inbox, list)) => {
                Ok(Self { completions, queue, outbox, inbox, list, words, sizes, iomap: settings.iomap, inline })
            }
            Err(refusal) => {
                endpoint.end_queue();
                Err(refusal)
            }
        }
    }

    /// The description of this side for the peer.
    pub(crate) fn hello(&self) -> Hello {
        let list = Target { address: self.list.address(), key: self.list.rkey(), length: 2 };
        let length = self.sizes.receive_ring;
        let buffer = Target { address: self.inbox.address(), key: self.inbox.rkey(), length };
        Hello { order: Order::NATIVE, credits: self.sizes.receive_queue, iomap: self.iomap, list, buffer }
    }

    /// Makes the stream from the peer's description of itself.
    pub(crate) fn stream(&self, peer: &Hello) -> Stream {
        let mut stream = Stream::new(self.sizes, peer);
        stream.set_ring(self.inbox.address(), self.inbox.rkey());
        if self.queue.sends() {
            stream.keep_margin();
        }
        stream
    }

    /// An entry of the list of buffers that the peer fills.
    pub(crate) fn entry(&self, index: usize) -> Target {
        Target::parse(&self.list.read(index * Target::SIZE), Order::NATIVE)
    }

    /// Clears an entry of that list.
    pub(crate) fn clear_entry(&self, index: usize) {
        self.list.write(index * Target::SIZE, &[0; Target::SIZE]);
    }

    /// The place in the peer's memory that the peer has mapped at an offset.
    pub(crate) fn mapped(&self, offset: u64) -> Option<Target> {
        (0..usize::from(self.iomap))
            .map(|index| self.list.read(ENTRIES * Target::SIZE + index * Entry::SIZE))
            .find_map(|bytes| Entry::parse(&bytes, Order::NATIVE).at(offset))
    }

    /// Pieces of the send ring, ready to post.
    pub(crate) fn load(&self, pieces: Pieces) -> Load {
        let start = self.outbox.address();
        let (offset, length) = pieces.first;
        Load::pieces(self.outbox.lkey(), (start + u64::from(offset), length), (start, pieces.second))
    }

    /// The sizes of its queues and rings.
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }
}

/// A number of bytes as a size in memory.
pub(crate) fn size(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
