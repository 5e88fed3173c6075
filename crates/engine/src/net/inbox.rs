//! The inbox: where packets from other hosts come in.
//!
//! The agent receives for all engines and hands each engine its packets over a wire lane. If the
//! agent lets this engine read its sockets ([`crate::net::lease`]), the engine receives from the
//! sockets directly, and gives packets of other engines back over the same lane. Parsing is in
//! [`crate::net::deliver`]. Principal type: [`Inbox`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::command::number as command;
use abi::errno::Errno;
use abi::layout::Record;
use abi::reason::{Cause, DropRecord};
use abi::wire::{
    Arrival, LEASE_PAGE_LEN, SOCKETS_MAX, WireOpen, WireOut, WireSockets, WireSocketsAnswer, arrival_flags,
    arrival_kind, inline_max, open_flags, socket_flags,
};
use arc_swap::ArcSwap;
use shm::{Glance, LANE_LEN, LaneRx, LaneTx, Notifier, RECORD_MAX, Side};
use udp::Received;

use crate::engine::Engine;
use crate::error::{Result, by_system, refusal};
use crate::lock::Mutex;
use crate::net::alike::Alike;
use crate::net::congestion::{STREAK, marked};
use crate::net::connected_receiver::ConnectedReceiver;
use crate::net::deliver::Datagrams;
use crate::net::lease::ReceiveLease;
use crate::net::origins::Origins;
use crate::qp::Qp;
use crate::request;
use crate::tsc;

/// Room for the largest datagram.
const BUFFER: usize = 64 * 1024;
/// Records, or datagrams of one socket, that one round takes.
const BATCH: usize = 16;
/// After this many bytes, a round takes at most one datagram of each socket. Then the engine
/// acknowledges what has come, so that the sender goes on while the engine takes the rest. Without
/// this limit, a sender that is faster than its receiver fills its window and waits until the
/// receiver has taken everything; then the receiver waits for the sender.
const AT_ONCE: usize = 96 * 1024;
/// A datagram of this size is part of a burst. Another read costs little beside it, and saves an
/// answer.
const BURST: usize = 32 * 1024;
/// One of this many rounds of a polling program also reads the sockets of addresses that only other
/// engines use. No one else reads them while the lease is held.
pub(crate) const OTHERS: u32 = 32;

/// Where packets come in.
pub(crate) struct Inbox {
    reception: Mutex<Reception>,
    /// Shows threads without the reception whether the agent has handed over something after
    /// `position`, up to which the reception has read.
    glance: Glance,
    position: AtomicU32,
    /// The lane back to the agent.
    misdelivered: Mutex<LaneTx>,
    agent: Notifier,
    /// The right to read the agent's sockets, if the agent grants it to engines at all.
    pub(crate) lease: Option<ReceiveLease>,
    sockets: ArcSwap<Vec<Shared>>,
    /// This engine uses the address of at least one of `sockets`.
    any_hot: AtomicBool,
    /// The board's epoch for which `sockets` is valid.
    known: AtomicU32,
}

/// One of the agent's sockets.
pub(crate) struct Shared {
    gid: [u8; 16],
    socket: udp::Socket,
    /// This engine uses the socket's address.
    hot: AtomicBool,
    /// This socket receives from one sender only; another socket of the address receives from all
    /// others ([`crate::net::connected_receiver`]).
    connected: bool,
}

/// Which sockets to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    All,
    /// The sockets of addresses that this engine uses.
    Hot,
    /// Of the hot sockets, only the connected ones.
    Connected,
}

impl Look {
    fn takes(self, shared: &Shared) -> bool {
        self == Look::All || (shared.is_hot() && (shared.connected || self == Look::Hot))
    }
}

/// The state of receiving; one thread at a time has it.
pub(crate) struct Reception {
    rx: LaneRx,
    record: [u8; RECORD_MAX],
    buffer: Box<[u8]>,
    pub(crate) touched: Vec<Arc<Qp>>,
    pub(crate) recent: Option<Arc<Qp>>,
    /// An address that does not belong to this agent, and the epoch of the tables for which that is
    /// valid.
    pub(crate) foreign: Option<([u8; 16], u32)>,
    pub(crate) origins: Origins,
    /// Reads of the sockets so far.
    looks: u32,
    connected: ConnectedReceiver,
    pub(crate) alike: Alike,
    /// Datagrams since a read of the sockets that found nothing.
    streak: u32,
    /// Bytes received from the sockets in this round.
    bytes: usize,
}

impl Engine {
    /// Opens the inbox, if the agent has the wire at all. Waits for the agent.
    pub(crate) fn open_inbox(&self) {
        self.net.inbox.get_or_init(|| match Inbox::open(self) {
            Ok(inbox) => Some(inbox),
            Err(error) => {
                tracing::debug!("nothing comes in from other hosts: {error}");
                None
            }
        });
        self.renew_sockets();
    }

    /// Fetches the agent's sockets, if they are shared and have changed. Waits for the agent.
    pub(crate) fn renew_sockets(&self) {
        let Some(inbox) = self.net.inbox().filter(|inbox| inbox.lease.is_some()) else { return };
        if inbox.known.load(Ordering::Relaxed) == self.board.wire_sockets_epoch() || self.is_gone() {
            return;
        }
        match fetch(self) {
            Ok((epoch, sockets)) => {
                for shared in &sockets {
                    let was = inbox.sockets.load().iter().any(|old| old.gid == shared.gid && old.is_hot());
                    shared.hot.store(was || self.sends_from(&shared.gid), Ordering::Relaxed);
                }
                inbox.any_hot.store(sockets.iter().any(Shared::is_hot), Ordering::Relaxed);
                inbox.sockets.store(Arc::new(sockets));
                inbox.known.store(epoch, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!("the agent's sockets cannot be had: {error}"),
        }
    }

    fn sends_from(&self, gid: &[u8; 16]) -> bool {
        self.net.ports.lock().keys().any(|(source, _)| source == gid)
    }

    /// Receives packets. With `sure`, waits for another thread that is receiving. If the program
    /// has `polled`, it gets messages before the engine sends ACKs that can wait. A program that
    /// does not use the wire checks for packets only in its `turn`.
    pub(crate) fn receive_from_hosts(self: &Arc<Self>, sure: bool, polled: bool, turn: bool) -> bool {
        let Some(inbox) = self.net.inbox() else { return false };
        // Several threads with queues of their own learn this without contending for the lock.
        if polled && !inbox.has_hot() && !(turn && inbox.seems_to_have(self)) {
            return false;
        }
        crate::usermem::prepare_thread();
        let reception = if sure { Some(inbox.reception.lock()) } else { inbox.reception.try_lock() };
        let Some(mut reception) = reception else { return false };
        // Checked before the ring is read: packets that the agent handed over before it granted the
        // lease are older than those in the sockets.
        let held = inbox.lease.as_ref().is_some_and(|lease| lease.holds(self));
        let ringed = self.take_ring(inbox, &mut reception);
        let mut taken = ringed;
        if let Some(lease) = &inbox.lease {
            if ringed > 0 {
                lease.note_traffic(self);
            }
            if !held {
                reception.alike.forget();
                lease.want(self, inbox, ringed > 0);
            } else if ringed < BATCH {
                let read = self.take_sockets(inbox, &mut reception, if polled { 1 } else { BATCH });
                if read > 0 {
                    lease.note_traffic(self);
                }
                taken += read;
            }
        }
        if taken == 0 {
            return false;
        }
        while let Some(qp) = reception.touched.pop() {
            let mut inner = qp.lock();
            if polled {
                qp.pump_or_delay_ack(&mut inner);
            } else {
                qp.pump(&mut inner);
            }
        }
        true
    }

    /// Gives the lease back if no packet has come for long enough. Takes the reception first: a
    /// packet that another thread has read and not delivered yet must not be overtaken by the
    /// agent's next read.
    pub(crate) fn return_idle_lease(&self) {
        if let Some(inbox) = self.net.inbox()
            && let Some(lease) = &inbox.lease
            && lease.is_ours(self)
            && let Some(_reception) = inbox.reception.try_lock()
        {
            lease.rest(self, inbox);
        }
    }

    fn take_ring(self: &Arc<Self>, inbox: &Inbox, reception: &mut Reception) -> usize {
        let taken = self.take_records(inbox, reception);
        if taken > 0 {
            inbox.position.store(reception.rx.ring.position(), Ordering::Relaxed);
            reception.rx.ring.publish();
            if reception.rx.peer_waiting() {
                reception.rx.clear_waiting();
                inbox.notify_agent();
            }
        }
        taken
    }

    fn take_records(self: &Arc<Self>, inbox: &Inbox, reception: &mut Reception) -> usize {
        for taken in 0..BATCH {
            let popped = match reception.rx.ring.pop(&mut reception.record) {
                Ok(Some(len)) => len.min(RECORD_MAX),
                Ok(None) => return taken,
                Err(shm::Broken) => {
                    tracing::error!("the wire lane is broken: nothing comes in by it any more");
                    return taken;
                }
            };
            let record = &reception.record[..popped];
            let Some(arrival) = Arrival::read(record).filter(|arrival| arrival.kind == arrival_kind::DATAGRAMS) else {
                continue;
            };
            let len = arrival.len as usize;
            if arrival.flags & arrival_flags::BULK != 0 {
                // Copied before anything in it is checked, because the agent can still write this
                // memory.
                if len <= BUFFER && reception.rx.bulk.take(arrival.bulk, &mut reception.buffer[..len]) {
                    inbox.expect_at(&arrival.to);
                    self.deliver(reception, &Datagrams::from(&arrival), len, false);
                }
            } else if let Some(bytes) = record.get(size_of::<Arrival>()..).and_then(|rest| rest.get(..len)) {
                reception.buffer[..len].copy_from_slice(bytes);
                inbox.expect_at(&arrival.to);
                self.deliver(reception, &Datagrams::from(&arrival), len, false);
            }
        }
        BATCH
    }

    /// Takes up to `most` datagrams from each socket. One is best for a program that polls: it asks
    /// again soon, and finding no second datagram costs as much as a message. While all traffic
    /// comes by a connected socket, the engine reads the other sockets only now and then, because
    /// each read is a system call. A caller that may go to sleep has read all of them.
    fn take_sockets(self: &Arc<Self>, inbox: &Inbox, reception: &mut Reception, most: usize) -> usize {
        reception.bytes = 0;
        let sockets = inbox.sockets.load();
        let connected = reception.connected.suffices(tsc::now);
        if !connected {
            reception.looks = reception.looks.wrapping_add(1);
        }
        let look = if connected {
            Look::Connected
        } else if reception.looks.is_multiple_of(OTHERS) || (most == BATCH && !reception.connected.is_fixed()) {
            Look::All
        } else {
            Look::Hot
        };
        let taken = self.take_each(inbox, reception, (&sockets, look), most);
        if taken > 0 || most != BATCH || look == Look::All {
            taken
        } else {
            self.take_each(inbox, reception, (&sockets, Look::All), most)
        }
    }

    /// Takes datagrams from the sockets that `look` selects.
    fn take_each(
        self: &Arc<Self>,
        inbox: &Inbox,
        reception: &mut Reception,
        (sockets, look): (&[Shared], Look),
        most: usize,
    ) -> usize {
        let mut taken = 0;
        for shared in sockets.iter().filter(|shared| look.takes(shared)) {
            let mut left = if shared.is_hot() { most } else { BATCH };
            while left > 0 {
                let before = reception.bytes;
                let Some(from) = self.take_datagrams(inbox, reception, shared, most == 1) else { break };
                taken += 1;
                left -= usize::from(most > 1 || reception.bytes - before < BURST);
                let is_much = reception.bytes >= AT_ONCE;
                if reception.connected.note(shared.connected, &from, tsc::now) {
                    taken += self.connect_receiver(inbox, reception, (sockets, shared), &from);
                }
                if is_much {
                    break;
                }
            }
        }
        taken
    }

    /// Takes what one call returns from a socket, and returns the sender's address.
    pub(crate) fn take_datagrams(
        self: &Arc<Self>,
        inbox: &Inbox,
        reception: &mut Reception,
        shared: &Shared,
        polled: bool,
    ) -> Option<SocketAddr> {
        let lease = inbox.lease.as_ref().filter(|lease| lease.holds(self))?;
        let Some(received) = self.take_out(reception, shared, polled) else {
            reception.streak = 0;
            return None;
        };
        reception.streak = reception.streak.wrapping_add(1);
        reception.bytes += received.len;
        let mut traffic_class = received.traffic_class;
        if reception.streak.is_multiple_of(STREAK) {
            traffic_class = shared.socket.fill().map_or(traffic_class, |fill| marked(traffic_class, fill));
        }
        let datagrams = Datagrams { traffic_class, ..Datagrams::of(&received, &shared.gid) };
        if self.is_foreign(reception, &datagrams.from) {
            let misdelivered = self.deliver(reception, &datagrams, received.len, polled && received.len < BURST);
            if misdelivered > 0 {
                lease.note_misdelivered(self, inbox, misdelivered);
            }
        }
        Some(received.from)
    }

    /// Receives with one call from a socket. For uniform traffic, the call asks only for the bytes;
    /// the rest is inferred.
    fn take_out(&self, reception: &mut Reception, shared: &Shared, polled: bool) -> Option<Received> {
        if polled
            && shared.connected
            && let Some(usual) = reception.alike.usual(&shared.gid)
            && !self.is_capturing()
        {
            let len = shared.socket.receive_bytes(&mut reception.buffer).ok()??;
            let covered = reception.origins.expect(&Datagrams::of(&usual, &shared.gid));
            let segment = reception.alike.measure(&reception.buffer[..len], covered);
            return Some(Received { len, segment, ..usual });
        }
        let received = shared.socket.receive(&mut reception.buffer).ok()??;
        if shared.connected {
            reception.alike.note(&shared.gid, &received);
        }
        Some(received)
    }

    /// Programs of one agent talk over lanes, so a packet with a source address of this agent is
    /// not genuine.
    fn is_foreign(&self, reception: &mut Reception, from: &[u8; 16]) -> bool {
        let epoch = self.board.gid_epoch();
        if reception.foreign == Some((*from, epoch)) {
            return true;
        }
        if self.board.find(from).is_some() {
            self.drop_packet(Cause::OwnAddress, DropRecord { address: *from, ..DropRecord::default() });
            return false;
        }
        reception.foreign = Some((*from, epoch));
        true
    }
}

impl Inbox {
    /// Releases the QPs of the last packets.
    pub(crate) fn forget_qps(&self) {
        let mut reception = self.reception.lock();
        reception.recent = None;
        reception.touched.clear();
    }

    fn open(engine: &Engine) -> Result<Self> {
        let open = WireOpen { flags: 0, reserved: 0 };
        let answer = engine.call(&request::private(command::WIRE_OPEN, &open, size_of::<WireOut>()))?;
        let out: WireOut = answer.get(0)?;
        let mut fds = answer.fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| refusal(Errno::EIO, "WIRE_OPEN came without its descriptors"));
        let region = shm::Region::map(next()?.as_fd(), LANE_LEN).map_err(by_system)?;
        let (misdelivered, rx) = shm::ends(Arc::new(region), Side::B);
        let agent = Notifier::from(next()?);
        let lease = match out.flags & open_flags::SHARED {
            0 => None,
            _ => Some(ReceiveLease::new(shm::Region::map(next()?.as_fd(), LEASE_PAGE_LEN).map_err(by_system)?)),
        };
        let glance = rx.glance();
        Ok(Self {
            glance,
            position: AtomicU32::new(0),
            reception: Mutex::new(Reception {
                rx,
                record: [0; RECORD_MAX],
                buffer: vec![0; BUFFER].into_boxed_slice(),
                touched: Vec::with_capacity(64),
                recent: None,
                foreign: None,
                origins: Origins::default(),
                looks: 0,
                connected: ConnectedReceiver::default(),
                alike: Alike::default(),
                streak: 0,
                bytes: 0,
            }),
            misdelivered: Mutex::new(misdelivered),
            agent,
            lease,
            sockets: ArcSwap::default(),
            any_hot: AtomicBool::new(false),
            // An epoch that the board never shows.
            known: AtomicU32::new(u32::MAX),
        })
    }

    /// This engine uses `gid`: from now on it reads the address's sockets.
    pub(crate) fn expect_at(&self, gid: &[u8; 16]) {
        for shared in self.sockets.load().iter().filter(|shared| &shared.gid == gid && !shared.is_hot()) {
            shared.hot.store(true, Ordering::Relaxed);
            self.any_hot.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it is worth taking the reception although there is no hot socket.
    fn seems_to_have(&self, engine: &Engine) -> bool {
        self.glance.sees(self.position.load(Ordering::Relaxed))
            || self.lease.as_ref().is_some_and(|lease| lease.is_ours(engine))
    }

    /// Whether there is a socket to read.
    pub(crate) fn has_hot(&self) -> bool {
        self.any_hot.load(Ordering::Relaxed)
    }

    /// Calls `f` with the sockets to wait for while the lease is held.
    pub(crate) fn with_sockets<T>(&self, f: impl FnOnce(&mut dyn Iterator<Item = BorrowedFd<'_>>) -> T) -> T {
        let sockets = self.sockets.load();
        f(&mut sockets.iter().map(|shared| shared.socket.as_fd()))
    }

    pub(crate) fn forget_sockets(&self) {
        self.any_hot.store(false, Ordering::Relaxed);
        self.sockets.store(Arc::default());
    }

    /// Wakes the agent: a lease has changed, or there are misdelivered packets.
    pub(crate) fn notify_agent(&self) {
        self.agent.notify();
    }

    /// Gives packets of another engine back to the agent. They are lost if there is no room, as on
    /// a network.
    pub(crate) fn give_back(&self, engine: &Engine, datagrams: &Datagrams, bytes: &[u8]) {
        if self.push_misdelivered(datagrams, bytes).is_some() {
            self.notify_agent();
        } else {
            tracing::debug!("{} bytes for another engine were dropped: the way to the agent is full", bytes.len());
            engine.drop_datagram(datagrams, bytes, (Cause::NoRoom, 0), (0, 0));
        }
    }

    fn push_misdelivered(&self, datagrams: &Datagrams, bytes: &[u8]) -> Option<()> {
        const HEAD: usize = size_of::<Arrival>();
        let mut arrival = datagrams.arrival(bytes.len());
        let mut record = [0; RECORD_MAX];
        let mut misdelivered = self.misdelivered.lock();
        if bytes.len() <= inline_max(RECORD_MAX) {
            record[..HEAD].copy_from_slice(arrival.bytes());
            record[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
            return misdelivered.ring.push(&record[..HEAD + bytes.len()]).ok();
        }
        let slot = misdelivered.bulk.put(bytes).ok()??;
        (arrival.flags, arrival.bulk) = (arrival_flags::BULK, slot.offset);
        let pushed = misdelivered.ring.push(arrival.bytes());
        if pushed.is_err() {
            misdelivered.bulk.cancel(slot);
        }
        pushed.ok()
    }
}

impl Shared {
    pub(crate) fn gid(&self) -> &[u8; 16] {
        &self.gid
    }

    pub(crate) fn socket(&self) -> &udp::Socket {
        &self.socket
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connected
    }

    fn is_hot(&self) -> bool {
        self.hot.load(Ordering::Relaxed)
    }
}

impl Reception {
    /// The received bytes, and apart from them the parts that delivery changes.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Vec<Arc<Qp>>, &mut Option<Arc<Qp>>) {
        (&self.buffer, &mut self.touched, &mut self.recent)
    }
}

/// All of the agent's sockets, and the epoch for which the list is valid.
fn fetch(engine: &Engine) -> Result<(u32, Vec<Shared>)> {
    let mut sockets = Vec::new();
    loop {
        let ask = WireSockets { first: sockets.len() as u32, max: SOCKETS_MAX as u32 };
        let answer = engine.call(&request::private(command::WIRE_SOCKETS, &ask, size_of::<WireSocketsAnswer>()))?;
        let out: WireSocketsAnswer = answer.get(0)?;
        let count = answer.fds.len();
        for (entry, fd) in out.entries.iter().zip(answer.fds) {
            let socket = udp::Socket::from_fd(fd);
            let connected = entry.flags & socket_flags::CONNECTED != 0;
            sockets.push(Shared { gid: entry.gid, socket, hot: AtomicBool::new(false), connected });
        }
        if count == 0 || sockets.len() >= out.total as usize {
            return Ok((out.epoch, sockets));
        }
    }
}
