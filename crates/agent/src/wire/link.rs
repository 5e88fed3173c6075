//! The agent's end of one engine's wire lane.
//!
//! An engine may write anything into its lane; at worst the agent stops using this lane. If the
//! lane has no room for datagrams, a bounded amount of them waits here until the engine has made
//! room: its program may only be waiting for a processor. [`super::forwarder`] decides which engine
//! gets which datagram. The principal type is [`WireLaneEnd`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::layout::Record;
use abi::private::{Push, push};
use abi::wire::{Arrival, arrival_flags, arrival_kind, inline_max};
use parking_lot::Mutex;
use shm::{Broken, LANE_LEN, LaneRx, LaneTx, Notifier, PushError, RECORD_MAX, Region, Side, Socket, WakeWordView};

use super::forwarder::ReceivedBurst;

/// Maximum number of bytes of datagrams in one record.
const INLINE_MAX: usize = inline_max(RECORD_MAX);
/// Maximum number of bytes that wait for room on one lane.
const WAITING_MAX: usize = 1 << 20;
/// The ECN bits of a traffic class. They are 0 if the sender does not support ECN. A CE mark has
/// both bits set.
const ECN: u8 = 3;
/// Maximum number of records that are taken from one engine before the next engine is served.
const RECORDS: usize = 64;

/// The agent's end of a wire lane.
#[derive(Debug)]
pub(crate) struct WireLaneEnd {
    sender: Mutex<Sender>,
    receiver: Mutex<LaneRx>,
    wake_word: WakeWordView,
    waker: Waker,
    /// The arming of the wake word for which the engine was last woken.
    woken: AtomicU32,
    /// The engine notifies the wire thread with it. The agent never reads it, because the engine
    /// could make the read block.
    notifier: Notifier,
    shared: bool,
    /// The engine has broken the protocol.
    broken: AtomicBool,
}

#[derive(Debug)]
struct Sender {
    tx: LaneTx,
    /// The buffer in which a record is built.
    record: [u8; RECORD_MAX],
    /// Datagrams without room, in order, and their bytes.
    waiting: VecDeque<(Arrival, Box<[u8]>)>,
    bytes: usize,
    /// How many bytes may wait: none if the agent does not listen for room.
    most: usize,
}

/// How an engine is woken.
#[derive(Debug)]
pub(crate) enum Waker {
    /// Through its eventfd. A program could make that write block, so this is for programs of the
    /// agent's own user.
    Eventfd(Notifier),
    /// Through a message on its push socket, which never blocks.
    Push(Arc<Socket>),
}

/// A record of an engine.
pub(crate) enum FromEngine<'a> {
    /// Packets of other engines, which it has read from the agent's sockets.
    Misdelivered(ReceivedBurst<'a>),
    /// Multicast datagrams for the links of the subnet.
    ToGroup(Arrival, &'a [u8]),
}

/// What an engine gets for its end.
pub(crate) struct EngineEnd {
    /// The lane's memory.
    pub(crate) memory: OwnedFd,
    /// The notifier of the wire thread.
    pub(crate) notifier: OwnedFd,
}

/// The result of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The engine has them.
    Done,
    /// There was no room.
    Full,
    /// The lane is broken.
    Lost,
}

impl WireLaneEnd {
    /// Creates both ends of a wire lane. `shared`: the engine may read the agent's sockets.
    /// `heard`: the agent listens to the engine's notifier and then calls [`WireLaneEnd::go_on`].
    pub(crate) fn new(
        wake_word: BorrowedFd<'_>,
        waker: Waker,
        shared: bool,
        heard: bool,
    ) -> io::Result<(Self, EngineEnd)> {
        let (region, memory) = Region::create("softhca-wire", LANE_LEN)?;
        let (tx, rx) = shm::ends(Arc::new(region), Side::A);
        let notifier = Notifier::new()?;
        let end = EngineEnd { memory, notifier: notifier.try_clone()?.into() };
        let link = Self {
            sender: Mutex::new(Sender {
                tx,
                record: [0; RECORD_MAX],
                waiting: VecDeque::new(),
                bytes: 0,
                most: if heard { WAITING_MAX } else { 0 },
            }),
            receiver: Mutex::new(rx),
            wake_word: WakeWordView::map(wake_word)?,
            waker,
            woken: AtomicU32::new(0),
            notifier,
            shared,
            broken: AtomicBool::new(false),
        };
        Ok((link, end))
    }

    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Whether the engine may read the agent's sockets. It may unless it has broken the protocol.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared && !self.is_broken()
    }

    /// Puts datagrams on the lane and wakes the engine if it sleeps. `head` lacks the fields that
    /// depend on their position.
    pub(crate) fn deliver(&self, engine: u32, head: &Arrival, bytes: &[u8]) -> Delivery {
        if self.is_broken() {
            return Delivery::Lost;
        }
        let mut sender = self.sender.lock();
        let sent = sender.send(head, bytes);
        drop(sender);
        match sent {
            Ok(()) => {
                self.wake();
                Delivery::Done
            }
            Err(PushError::Full) => Delivery::Full,
            Err(PushError::Broken(Broken)) => self.cut_off(engine),
        }
    }

    /// The engine may have made room: continues with the waiting datagrams.
    pub(crate) fn go_on(&self, engine: u32) {
        let mut sender = self.sender.lock();
        if sender.waiting.is_empty() || self.is_broken() {
            return;
        }
        let gone_on = sender.go_on();
        drop(sender);
        match gone_on {
            Ok(()) => self.wake(),
            Err(Broken) => drop(self.cut_off(engine)),
        }
    }

    /// Whether datagrams wait for room.
    pub(crate) fn is_behind(&self) -> bool {
        !self.sender.lock().waiting.is_empty()
    }

    /// Takes what the engine has put on the lane, up to a fair number of records. Returns true if
    /// there may be more.
    pub(crate) fn take_records(&self, engine: u32, buffer: &mut [u8], mut hand_on: impl FnMut(FromEngine<'_>)) -> bool {
        if self.is_broken() {
            return false;
        }
        let mut rx = self.receiver.lock();
        let mut taken = 0;
        while taken < RECORDS {
            match next_record(&mut rx, buffer, self.shared, &mut hand_on) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(Broken) => {
                    self.cut_off(engine);
                    return false;
                }
            }
        }
        if taken == 0 {
            return false;
        }
        rx.ring.publish();
        if rx.ring.peer_waiting() {
            rx.ring.clear_waiting();
            self.waker.wake();
        }
        taken == RECORDS
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// After a push: wakes the engine if it has armed its wake word.
    fn wake(&self) {
        shm::poster_fence();
        if let Some(word) = self.wake_word.armed()
            && self.woken.swap(word, Ordering::Relaxed) != word
        {
            self.waker.wake();
        }
    }

    #[cold]
    fn cut_off(&self, engine: u32) -> Delivery {
        if !self.broken.swap(true, Ordering::Relaxed) {
            tracing::warn!(engine, "an engine has damaged its wire lane: it hears nothing from other hosts any more");
        }
        Delivery::Lost
    }
}

impl Waker {
    /// Wakes the engine, through its push socket or through its eventfd.
    pub(crate) fn wake(&self) {
        match self {
            Self::Eventfd(notifier) => notifier.notify(),
            // If the socket is full, its messages wake the engine too.
            Self::Push(socket) => drop(socket.try_send(Push { kind: push::WAKE, ..Push::default() }.bytes(), &[])),
        }
    }
}

impl Sender {
    /// Puts datagrams on the lane, or behind the waiting ones.
    fn send(&mut self, head: &Arrival, bytes: &[u8]) -> Result<(), PushError> {
        if self.waiting.is_empty() {
            match self.push(head, bytes) {
                Err(PushError::Full) if self.keep(head, bytes) => return Ok(self.go_on()?),
                result => return result,
            }
        }
        if self.keep(head, bytes) { Ok(()) } else { Err(PushError::Full) }
    }

    fn keep(&mut self, head: &Arrival, bytes: &[u8]) -> bool {
        let takes = size_of::<(Arrival, Box<[u8]>)>() + bytes.len();
        if self.bytes + takes > self.most {
            return false;
        }
        self.bytes += takes;
        let mut head = *head;
        if self.bytes > self.most / 2 && head.traffic_class & ECN != 0 {
            // Marks the datagrams, like a switch whose queue grows. The engine then sends CNPs.
            head.traffic_class |= ECN;
        }
        self.waiting.push_back((head, bytes.into()));
        true
    }

    /// Puts waiting datagrams on the lane, as far as there is room. For the rest, asks the engine
    /// to notify the agent of room.
    fn go_on(&mut self) -> Result<(), Broken> {
        for asked in [false, true] {
            while let Some((head, bytes)) = self.waiting.pop_front() {
                match self.push(&head, &bytes) {
                    Ok(()) => self.bytes -= size_of::<(Arrival, Box<[u8]>)>() + bytes.len(),
                    Err(PushError::Full) => {
                        self.waiting.push_front((head, bytes));
                        break;
                    }
                    Err(PushError::Broken(broken)) => {
                        self.waiting.clear();
                        self.bytes = 0;
                        return Err(broken);
                    }
                }
            }
            if self.waiting.is_empty() {
                return Ok(());
            }
            if !asked {
                // Tries once more after the request: room that the engine made before it could see
                // the request is not notified.
                self.tx.ring.set_waiting(true);
            }
        }
        Ok(())
    }

    fn push(&mut self, head: &Arrival, bytes: &[u8]) -> Result<(), PushError> {
        const HEAD: usize = Arrival::LAYOUT.size;
        let Self { tx, record, .. } = self;
        let len = u32::try_from(bytes.len()).map_err(|_| PushError::Full)?;
        if bytes.len() <= INLINE_MAX {
            record[..HEAD].copy_from_slice(Arrival { len, ..*head }.bytes());
            record[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
            return tx.ring.push(&record[..HEAD + bytes.len()]);
        }
        // Avoids a useless copy.
        if tx.ring.free_cells() == 0 && !tx.ring.is_broken() {
            return Err(PushError::Full);
        }
        let slot = tx.bulk.put(bytes)?.ok_or(PushError::Full)?;
        let pushed = tx.ring.push(Arrival { flags: arrival_flags::BULK, len, bulk: slot.offset, ..*head }.bytes());
        if pushed.is_err() {
            tx.bulk.cancel(slot);
        }
        pushed
    }
}

/// Forwards the next record, if there is one. An engine that may not read the agent's sockets has
/// nothing to give back.
fn next_record(
    rx: &mut LaneRx,
    buffer: &mut [u8],
    shared: bool,
    hand_on: &mut impl FnMut(FromEngine<'_>),
) -> Result<bool, Broken> {
    let mut record = [0; RECORD_MAX];
    let Some(len) = rx.ring.pop(&mut record)? else { return Ok(false) };
    let arrival = Arrival::read(&record[..len]).ok_or(Broken)?;
    let is_for_group = arrival.kind == arrival_kind::TO_GROUP;
    if !is_for_group && (arrival.kind != arrival_kind::DATAGRAMS || !shared) {
        return Err(Broken);
    }
    let bytes = if arrival.flags & arrival_flags::BULK != 0 {
        let piece = buffer.get_mut(..arrival.len as usize).ok_or(Broken)?;
        if !rx.bulk.take(arrival.bulk, piece) {
            return Err(Broken);
        }
        &*piece
    } else {
        record[Arrival::LAYOUT.size..len].get(..arrival.len as usize).ok_or(Broken)?
    };
    if is_for_group {
        hand_on(FromEngine::ToGroup(arrival, bytes));
        return Ok(true);
    }
    hand_on(FromEngine::Misdelivered(ReceivedBurst {
        from: arrival.from,
        from_port: arrival.from_port,
        to: arrival.to,
        traffic_class: arrival.traffic_class,
        hop_limit: arrival.hop_limit,
        segment: usize::from(arrival.segment),
        bytes,
    }));
    Ok(true)
}
