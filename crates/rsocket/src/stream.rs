//! One connection as a state machine: credits, the places to write to in the peer's memory, the
//! rings on this side, and which side has ended which direction. The principal type is [`Stream`].
//!
//! The owner has the queue pair and the memory. It asks how much it may send ([`Stream::room`]),
//! tells the stream what it sends, posts the resulting [`Transfer`], and reports completions. Every
//! message uses one of the peer's receives. Credits limit the messages with data. Messages about
//! the connection use a few reserved slots. If the peer still has no receive, the queue pair
//! retries. iWARP does not retry, so there [`MARGIN`] receives are kept for messages about the
//! connection. (`docs/rsocket`; the numbers are rdma-core's.)

mod inbox;
mod work;

#[cfg(test)]
mod tests;

pub use inbox::Inbox;
pub use work::Work;

use crate::connect::Hello;
use crate::iomap::Entry;
use crate::message::MAX_LENGTH;
use crate::message::{Control, Message};
use crate::ring::{Pieces, Ring};
use crate::target::{Order, Target};
use crate::violation::Violation;
use crate::window::Window;

/// The number of entries in this side's list of buffers.
pub const ENTRIES: usize = 2;
/// The number of send queue entries reserved for messages about the connection.
pub const CONTROL_SLOTS: u16 = 4;
/// The number of receives that are kept for messages about the connection where a missing receive
/// ends the connection. A peer that polls no completions gets at most two grants because of the
/// messages that it has sent, two because of their bytes, and two messages about the end.
pub const MARGIN: u16 = 8;
/// The least room in the send ring for starting a message.
pub const LOW_WATER: u32 = 2048;
/// The size of the smallest queue.
pub const LEAST_QUEUE: u16 = 16;
/// The size of the largest queue: message numbers have 16 bits, and comparing them uses half of
/// this range.
pub const MOST_QUEUE: u16 = 0x7FFE;
/// The size of the largest ring: half of it must fit into one message.
const LARGEST_RING: u32 = 1 << 30;

/// The sizes of a connection's rings and queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes that may be outstanding.
    pub send_ring: u32,
    /// Bytes that may wait to be read.
    pub receive_ring: u32,
    /// Entries of the send queue.
    pub send_queue: u16,
    /// Entries of the receive queue.
    pub receive_queue: u16,
}

impl Sizes {
    /// The nearest sizes with which a connection works, if a queue may have `most` entries.
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

/// A transfer to post: an RDMA WRITE, mostly with immediate data or followed by a SEND. The function
/// that returns it describes its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// What the transfer does. [`Work::id`] is the id of the work request.
    pub work: Work,
    /// The message; `None` for an RDMA WRITE without one.
    pub message: Option<Message>,
    /// The destination in the peer's memory.
    pub address: u64,
    /// The remote key of the destination.
    pub key: u32,
}

/// A message that grants credits, and possibly writes a new entry of the peer's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The transfer to post.
    pub transfer: Transfer,
    /// The payload of the transfer: the entry.
    pub entry: Option<[u8; Target::SIZE]>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// One side has closed it.
    Closed,
    /// The connection failed.
    Failed,
}

/// One side of a connection.
#[derive(Debug, Clone)]
pub struct Stream {
    outbox: Ring,
    window: Window,
    inbox: Inbox,
    /// The place of the next byte in the peer's ring.
    place: Target,
    /// The entry of this side's list that names the next place after that.
    next_entry: usize,
    /// Whether this side's list may have changed since the last look.
    news: bool,
    /// The number of the next message with data, and the first number that the peer has not
    /// allowed.
    sent: u16,
    allowed: u16,
    /// How many of the peer's receives are not used for messages with data.
    margin: u16,
    slots: u16,
    control_slots: u16,
    send_queue: u16,
    peer: Peer,
    readable: bool,
    writable: bool,
    end: Option<End>,
}

/// The peer's description of its memory.
#[derive(Debug, Clone, Copy)]
struct Peer {
    order: Order,
    list: Target,
    next_entry: u32,
    iomap: u16,
}

impl Stream {
    /// Makes a connection from the peer's description. The sizes must be [fitted](Sizes::fitted).
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
            margin: 0,
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

    /// Keeps [`MARGIN`] of the peer's receives for messages about the connection. The peer grants
    /// credits when half of them are used, so more than that is not kept.
    pub fn keep_margin(&mut self) {
        self.margin = MARGIN.min(self.allowed / 2);
        self.allowed -= self.margin;
    }

    /// The byte order of the peer's memory.
    #[must_use]
    pub fn peer_order(&self) -> Order {
        self.peer.order
    }

    /// How many bytes can be sent as one message now.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.slots == 0 || self.sent == self.allowed || !self.writable {
            return 0;
        }
        self.ring_room().min(self.place.length).min(MAX_LENGTH)
    }

    /// How many bytes can be put into the send ring now.
    fn ring_room(&self) -> u32 {
        let free = self.outbox.free_within(self.window.limit());
        if free < LOW_WATER.min(self.outbox.size()) { 0 } else { free }
    }

    /// Whether the send ring prevents sending, and not the peer.
    #[must_use]
    pub fn lacks_ring(&self) -> bool {
        self.ring_room() == 0
    }

    /// Notes that a thread has waited for the send ring. `long`: it waited longer than a running
    /// receiver needs.
    pub fn waited(&mut self, long: bool) {
        self.window.waited(long);
    }

    /// Sends `length` bytes that are not in the send ring. `length` must not exceed the
    /// [room](Self::room).
    pub fn send_from_elsewhere(&mut self, length: u32) -> Transfer {
        self.advance(length, 0)
    }

    /// Sends `length` bytes. `length` must not exceed the [room](Self::room). The owner must put
    /// the bytes into the returned pieces of the send ring.
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

    /// How many bytes one transfer can write into a mapped buffer of the peer now.
    #[must_use]
    pub fn direct_room(&self) -> u32 {
        if self.slots > 0 && self.writable { self.ring_room().min(MAX_LENGTH) } else { 0 }
    }

    /// Writes `length` bytes into a mapped buffer of the peer. The owner must put the bytes into
    /// the returned pieces of the send ring.
    pub fn send_direct(&mut self, length: u32, to: Target) -> (Transfer, Pieces) {
        let pieces = self.outbox.take(length);
        self.slots = self.slots.saturating_sub(1);
        let work = Work::Direct { ring: length };
        (Transfer { work, message: None, address: to.address, key: to.key }, pieces)
    }

    /// The number of mapped buffers that the peer can store.
    #[must_use]
    pub fn iomap(&self) -> u16 {
        self.peer.iomap
    }

    /// Announces a mapped buffer to the peer; `None` if the message cannot be sent now.
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

    /// Sends a message about the connection; `None` if it cannot be sent now.
    pub fn control(&mut self, control: Control) -> Option<Transfer> {
        self.control_slots = self.control_slots.checked_sub(1)?;
        let message = (control != Control::Keepalive).then_some(Message::Control(control));
        Some(Transfer { work: Work::Control(control), message, address: 0, key: 0 })
    }

    /// Whether a message about the connection can be sent now.
    #[must_use]
    pub fn can_control(&self) -> bool {
        self.control_slots > 0
    }

    /// The grant that is due, if there is one and it can be sent now.
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

    /// Sets the place of the receive ring, which grants need.
    pub fn set_ring(&mut self, address: u64, key: u32) {
        self.inbox.set_ring(address, key);
    }

    /// The entry of this side's list that must be read now, if there is one.
    #[must_use]
    pub fn wanted_entry(&self) -> Option<usize> {
        (self.news && self.place.length == 0).then_some(self.next_entry)
    }

    /// Takes the [wanted entry](Self::wanted_entry). If this returns true, the owner must set the
    /// entry's length to zero, so that the entry is not taken again.
    pub fn take_entry(&mut self, entry: Target) -> bool {
        if entry.length == 0 {
            self.news = false;
            return false;
        }
        self.place = entry;
        self.next_entry = (self.next_entry + 1) % ENTRIES;
        true
    }

    /// Handles a received message.
    ///
    /// # Errors
    /// The peer's violation. The connection has failed then.
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
                self.allowed = number.wrapping_sub(self.margin);
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

    /// Handles the completion of a transfer. `well`: it succeeded.
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
            Work::Receive { .. } | Work::Written => {}
        }
        if !well {
            self.fail();
        }
    }

    /// The bytes that have been received and not read.
    #[must_use]
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Notes that this many bytes have been read.
    pub fn consume(&mut self, length: u32) {
        self.inbox.consume(length);
    }

    /// Ends sending, reading or both on this side. Returns the message that the peer must get.
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

    /// Notes that one side has closed the connection.
    pub fn close(&mut self) {
        self.finish(End::Closed);
    }

    /// Notes that the connection has failed.
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

    /// How the connection ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether the connection has not ended.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.end.is_none()
    }

    /// Whether more data may come from the peer.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether this side may send.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether all posted transfers have completed.
    #[must_use]
    pub fn all_sent(&self) -> bool {
        self.slots == self.send_queue.saturating_sub(CONTROL_SLOTS) && self.control_slots == CONTROL_SLOTS
    }
}
