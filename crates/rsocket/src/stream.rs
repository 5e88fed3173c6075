//! One connection as a state machine: credits, the places to write to in the peer's memory, the rings on this side, and who has
//! finished what. The principal type is [`Stream`].
//!
//! Its owner has the queue pair and the memory. It asks what it may send ([`Stream::room`]), tells what it sends, posts the
//! [`Transfer`] that it gets, and says what has completed. Every message takes one of the peer's receives: those with data are
//! bounded by credits, those about the connection by the few slots that are kept for them, and a queue pair that tries again
//! when there is no receive does the rest. (`docs/rsocket`; the numbers are rdma-core's.)

mod inbox;
mod work;

#[cfg(test)]
mod tests;

pub use inbox::Inbox;
pub use work::Work;

use crate::connect::Hello;
use crate::iomap::Entry;
use crate::message::MAX_LENGTH;
use crate::ring::{Pieces, Ring};
use crate::window::Window;
use crate::{Control, Message, Order, Target, Violation};

/// How many entries our list of buffers has.
pub const ENTRIES: usize = 2;
/// How many places of the send queue are kept for messages about the connection.
pub const CONTROL_SLOTS: u16 = 4;
/// The least room in the send ring with which a message is begun.
pub const LOW_WATER: u32 = 2048;
/// The smallest queue.
pub const LEAST_QUEUE: u16 = 16;
/// The largest queue: numbers of messages have 16 bits and are compared with half of them.
pub const MOST_QUEUE: u16 = 0x7FFE;
/// The largest ring: half of it must fit into one message.
const LARGEST_RING: u32 = 1 << 30;

/// How large the rings and queues of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes that may be under way.
    pub send_ring: u32,
    /// Bytes that may wait to be read.
    pub receive_ring: u32,
    /// Entries of the send queue.
    pub send_queue: u16,
    /// Entries of the receive queue.
    pub receive_queue: u16,
}

impl Sizes {
    /// The nearest sizes with which a connection works, when a queue may have so many entries.
    #[must_use]
    pub fn fitted(self, most: u16) -> Self {
        let most = most.clamp(LEAST_QUEUE, MOST_QUEUE);
        Self {
            send_ring: self.send_ring.clamp(LOW_WATER, LARGEST_RING),
            receive_ring: self.receive_ring.clamp(LOW_WATER, LARGEST_RING) & !1,
            send_queue: self.send_queue.clamp(LEAST_QUEUE, most),
            receive_queue: self.receive_queue.clamp(LEAST_QUEUE, most),
        }
    }
}

/// Something to post: an RDMA WRITE, mostly with immediate data. What it carries is said where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// What it is; [`Work::id`] is for the work request.
    pub work: Work,
    /// The immediate data; none for a plain RDMA WRITE.
    pub message: Option<Message>,
    /// Where to, in the peer's memory.
    pub address: u64,
    /// The key for it.
    pub key: u32,
}

/// A message that grants credits, perhaps with a new entry for the peer's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// What to post.
    pub transfer: Transfer,
    /// The bytes that it carries.
    pub entry: Option<[u8; Target::SIZE]>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// One side has closed it.
    Closed,
    /// Something went wrong.
    Failed,
}

/// One side of a connection.
#[derive(Debug, Clone)]
pub struct Stream {
    outbox: Ring,
    window: Window,
    inbox: Inbox,
    /// Where the next byte goes in the peer's ring.
    place: Target,
    /// Which entry of our list says where to go on after that.
    next_entry: usize,
    /// Whether our list may have changed since it was last looked at.
    news: bool,
    /// The number of the next message with data, and of the first that the peer has not allowed.
    sent: u16,
    allowed: u16,
    slots: u16,
    control_slots: u16,
    send_queue: u16,
    peer: Peer,
    readable: bool,
    writable: bool,
    end: Option<End>,
}

/// What the peer has told of its memory.
#[derive(Debug, Clone, Copy)]
struct Peer {
    order: Order,
    list: Target,
    next_entry: u32,
    iomap: u16,
}

impl Stream {
    /// A connection with what the peer has said. The sizes are [fitted](Sizes::fitted).
    #[must_use]
    pub fn new(sizes: Sizes, peer: &Hello) -> Self {
        let slots = sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        Self {
            outbox: Ring::new(sizes.send_ring),
            window: Window::new(sizes.send_ring),
            inbox: Inbox::new(sizes.receive_ring, sizes.receive_queue),
            place: peer.buffer,
            next_entry: 1,
            news: false,
            sent: 0,
            allowed: peer.credits,
            slots,
            control_slots: CONTROL_SLOTS,
            send_queue: sizes.send_queue,
            peer: Peer {
                order: peer.order,
                list: peer.list,
                next_entry: 1 % peer.list.length.max(1),
                iomap: peer.iomap,
            },
            readable: true,
            writable: true,
            end: None,
        }
    }

    /// How many bytes may be sent as one message now.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.slots == 0 || self.sent == self.allowed || !self.writable {
            return 0;
        }
        self.ring_room().min(self.place.length).min(MAX_LENGTH)
    }

    /// How many bytes may be put into the send ring now.
    fn ring_room(&self) -> u32 {
        let free = self.outbox.free_within(self.window.limit());
        if free < LOW_WATER.min(self.outbox.size()) { 0 } else { free }
    }

    /// Whether the send ring is what keeps from sending, and not the peer.
    #[must_use]
    pub fn lacks_ring(&self) -> bool {
        self.ring_room() == 0
    }

    /// Takes note that somebody has waited for the send ring, for longer than a receiver needs that runs, or not.
    pub fn waited(&mut self, long: bool) {
        self.window.waited(long);
    }

    /// Sends `length` bytes, no more than there is [room](Self::room) for, that the owner has elsewhere.
    pub fn send_from_elsewhere(&mut self, length: u32) -> Transfer {
        self.advance(length, 0)
    }

    /// Sends `length` bytes, no more than there is [room](Self::room) for; they are to lie in these pieces of the send ring.
    pub fn send(&mut self, length: u32) -> (Transfer, Pieces) {
        let pieces = self.outbox.take(length);
        (self.advance(length, length), pieces)
    }

    fn advance(&mut self, length: u32, ring: u32) -> Transfer {
        self.sent = self.sent.wrapping_add(1);
        self.slots = self.slots.saturating_sub(1);
        let (address, key) = (self.place.address, self.place.key);
        self.place.address = address.wrapping_add(length.into());
        self.place.length = self.place.length.saturating_sub(length);
        Transfer { work: Work::Data { ring }, message: Some(Message::Data(length)), address, key }
    }

    /// How many bytes may be written into a mapped buffer of the peer's by one transfer now.
    #[must_use]
    pub fn direct_room(&self) -> u32 {
        if self.slots > 0 && self.writable { self.ring_room().min(MAX_LENGTH) } else { 0 }
    }

    /// Writes `length` bytes into a mapped buffer of the peer's; they are to lie in these pieces of the send ring.
    pub fn send_direct(&mut self, length: u32, to: Target) -> (Transfer, Pieces) {
        let pieces = self.outbox.take(length);
        self.slots = self.slots.saturating_sub(1);
        let work = Work::Direct { ring: length };
        (Transfer { work, message: None, address: to.address, key: to.key }, pieces)
    }

    /// How many mapped buffers the peer can know of.
    #[must_use]
    pub fn iomap(&self) -> u16 {
        self.peer.iomap
    }

    /// Tells the peer of a mapped buffer; `None` while that cannot be sent.
    pub fn map(&mut self, index: u16, entry: &Entry) -> Option<(Transfer, [u8; Entry::SIZE])> {
        if self.slots == 0 || self.sent == self.allowed || index >= self.peer.iomap || !self.is_up() {
            return None;
        }
        self.sent = self.sent.wrapping_add(1);
        self.slots -= 1;
        let place = Target::SIZE as u64 * u64::from(self.peer.list.length) + Entry::SIZE as u64 * u64::from(index);
        let transfer = Transfer {
            work: Work::Map,
            message: Some(Message::IomapUpdated(index)),
            address: self.peer.list.address.wrapping_add(place),
            key: self.peer.list.key,
        };
        Some((transfer, entry.emit(self.peer.order)))
    }

    /// Says something about the connection; `None` while that cannot be sent.
    pub fn control(&mut self, control: Control) -> Option<Transfer> {
        self.control_slots = self.control_slots.checked_sub(1)?;
        let message = (control != Control::Keepalive).then_some(Message::Control(control));
        Some(Transfer { work: Work::Control(control), message, address: 0, key: 0 })
    }

    /// Whether a message about the connection can be sent.
    #[must_use]
    pub fn can_control(&self) -> bool {
        self.control_slots > 0
    }

    /// The grant that is due, if one is and can be sent.
    pub fn grant(&mut self) -> Option<Grant> {
        if self.control_slots == 0 || !self.is_up() || !self.inbox.grant_due() {
            return None;
        }
        self.control_slots -= 1;
        let (number, half) = self.inbox.grant();
        let (mut address, mut key) = (0, 0);
        let entry = half.map(|half| {
            address = self.peer.list.address.wrapping_add(Target::SIZE as u64 * u64::from(self.peer.next_entry));
            key = self.peer.list.key;
            self.peer.next_entry = (self.peer.next_entry + 1) % self.peer.list.length.max(1);
            half.emit(self.peer.order)
        });
        Some(Grant {
            transfer: Transfer { work: Work::Credits, message: Some(Message::Credits(number)), address, key },
            entry,
        })
    }

    /// Says where the receive ring lies, which grants need.
    pub fn set_ring(&mut self, address: u64, key: u32) {
        self.inbox.set_ring(address, key);
    }

    /// Which entry of our list is to be looked at now, if one is.
    #[must_use]
    pub fn wanted_entry(&self) -> Option<usize> {
        (self.news && self.place.length == 0).then_some(self.next_entry)
    }

    /// Tells what stands in the entry that is [wanted](Self::wanted_entry). If this says true, its length is to be made zero,
    /// so that it is not taken again.
    pub fn take_entry(&mut self, entry: Target) -> bool {
        if entry.length == 0 {
            self.news = false;
            return false;
        }
        self.place = entry;
        self.next_entry = (self.next_entry + 1) % ENTRIES;
        true
    }

    /// Takes what has been received.
    ///
    /// # Errors
    /// What the peer did wrong; the connection has failed then.
    pub fn received(&mut self, immediate: u32) -> Result<(), Violation> {
        let taken = self.take(immediate);
        if taken.is_err() {
            self.fail();
        }
        taken
    }

    fn take(&mut self, immediate: u32) -> Result<(), Violation> {
        match Message::parse(immediate)? {
            Message::Data(length) => self.inbox.received(length)?,
            Message::Credits(number) => {
                self.allowed = number;
                self.news = true;
            }
            Message::IomapUpdated(_) => self.inbox.counted(),
            Message::Control(Control::Disconnect) => self.close(),
            Message::Control(Control::Shutdown) if self.writable => self.readable = false,
            Message::Control(Control::Shutdown) => self.close(),
            Message::Control(Control::Keepalive | Control::Unknown(_)) => {}
        }
        Ok(())
    }

    /// Takes note that something posted has completed, well or not.
    pub fn completed(&mut self, work: Work, well: bool) {
        match work {
            Work::Data { ring } | Work::Direct { ring } => {
                self.slots += 1;
                self.outbox.give_back(ring);
            }
            Work::Map => self.slots += 1,
            Work::Credits => self.control_slots += 1,
            Work::Control(control) => {
                self.control_slots += 1;
                if control == Control::Disconnect && well {
                    self.close();
                }
            }
            Work::Receive => {}
        }
        if !well {
            self.fail();
        }
    }

    /// What has been received and not read.
    #[must_use]
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Takes note that so many bytes have been read.
    pub fn consume(&mut self, length: u32) {
        self.inbox.consume(length);
    }

    /// Finishes sending, reading or both on this side, and says what the peer is to be told.
    pub fn shut_down(&mut self, reading: bool, writing: bool) -> Option<Control> {
        if !self.is_up() || !(self.readable && reading || self.writable && writing) {
            return None;
        }
        self.readable &= !reading;
        self.writable &= !writing;
        match (self.readable, self.writable) {
            (false, false) => Some(Control::Disconnect),
            (true, false) => Some(Control::Shutdown),
            (_, true) => None,
        }
    }

    /// The connection has been closed by one side.
    pub fn close(&mut self) {
        self.finish(End::Closed);
    }

    /// The connection has failed.
    pub fn fail(&mut self) {
        self.finish(End::Failed);
    }

    fn finish(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
            self.readable = false;
            self.writable = false;
        }
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether it has not ended.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.end.is_none()
    }

    /// Whether more may come from the peer than what is there.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether this side may send.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether everything that was posted has completed.
    #[must_use]
    pub fn all_sent(&self) -> bool {
        self.slots == self.send_queue.saturating_sub(CONTROL_SLOTS) && self.control_slots == CONTROL_SLOTS
    }
}
