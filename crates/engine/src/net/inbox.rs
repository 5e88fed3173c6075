//! The inbox: where packets from other hosts come in.
//!
//! The agent receives for everybody and hands each engine its packets over a wire lane. Where it lets this engine read its sockets
//! ([`crate::net::lease`]), packets come straight out of those, and what turns out to be another engine's goes back over the
//! same lane. Principal type: [`Inbox`].

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

use crate::access;
use crate::engine::Engine;
use crate::error::{Error, Result};
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
/// After so many bytes a round takes no more than one datagram of each socket: what has come is acknowledged, so that its sender goes on while the rest is
/// taken. Else a sender that is faster than its receiver fills its window, waits until all of it has been taken, and the receiver waits for it then.
const AT_ONCE: usize = 96 * 1024;
/// A datagram of so many bytes is a burst of somebody who has more to say: another look costs little beside it, and saves an answer.
const BURST: usize = 32 * 1024;
/// Of so many rounds in which the program polls, one looks at the sockets that others of this agent may wait for, too: nobody else does
/// while the lease is held.
pub(crate) const OTHERS: u32 = 32;

/// Where packets come in.
pub(crate) struct Inbox {
    reception: Mutex<Reception>,
    /// Whether the agent has handed over something, for those who do not have the reception, and where the reception stands.
    glance: Glance,
    position: AtomicU32,
    /// The way back to the agent.
    misdelivered: Mutex<LaneTx>,
    agent: Notifier,
    /// The right to read the agent's sockets, where it is given to engines at all.
    pub(crate) lease: Option<ReceiveLease>,
    sockets: ArcSwap<Vec<Shared>>,
    /// Some of them are this engine's to read.
    any_hot: AtomicBool,
    /// The board's epoch for which `sockets` holds.
    known: AtomicU32,
}

/// One of the agent's sockets.
pub(crate) struct Shared {
    gid: [u8; 16],
    socket: udp::Socket,
    /// This engine has to do with that address.
    hot: AtomicBool,
    /// It hears one sender only, and there is another one for everybody else ([`crate::net::connected_receiver`]).
    connected: bool,
}

/// Which sockets are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    All,
    /// Those of addresses that this engine has to do with.
    Hot,
    /// Of those the ones that hear one sender only.
    Connected,
}

impl Look {
    fn takes(self, shared: &Shared) -> bool {
        self == Look::All || (shared.is_hot() && (shared.connected || self == Look::Hot))
    }
}

/// What receiving needs, and one thread at a time has.
pub(crate) struct Reception {
    rx: LaneRx,
    record: [u8; RECORD_MAX],
    buffer: Box<[u8]>,
    pub(crate) touched: Vec<Arc<Qp>>,
    pub(crate) recent: Option<Arc<Qp>>,
    /// An address that was found not to be of this agent, and the epoch of the tables for which that holds.
    pub(crate) foreign: Option<([u8; 16], u32)>,
    pub(crate) origins: Origins,
    /// Looks at the sockets so far.
    looks: u32,
    connected: ConnectedReceiver,
    pub(crate) alike: Alike,
    /// Datagrams since a look at the sockets that found nothing.
    streak: u32,
    /// Bytes out of the sockets in this round.
    bytes: usize,
}

impl Engine {
    /// Sees to it that packets from other hosts can come in, if the agent has the wire at all. Waits for the agent.
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

    /// Follows the agent's sockets, if they are shared and have changed. Waits for the agent.
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

    /// Takes what has come in. With `sure`, waits for whoever is at it. Where the program has `polled`, it is shown what came before
    /// acknowledgements leave that can wait; and one that has nothing to do with other hosts looks only in its `turn` whether something came all
    /// the same.
    pub(crate) fn receive_from_hosts(self: &Arc<Self>, sure: bool, polled: bool, turn: bool) -> bool {
        let Some(inbox) = self.net.inbox() else { return false };
        // What several threads with queues of their own find out without meeting at the lock.
        if polled && !inbox.has_hot() && !(turn && inbox.seems_to_have(self)) {
            return false;
        }
        crate::usermem::prepare_thread();
        let reception = if sure { Some(inbox.reception.lock()) } else { inbox.reception.try_lock() };
        let Some(mut reception) = reception else { return false };
        // Looked at before the ring: what the agent handed over before it granted the lease is older than what is in the sockets.
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

    /// Gives the lease back if nothing has come for long enough; not while somebody reads, or what the agent reads next would overtake.
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
                // Copied before anything in it is believed: the memory is the agent's, too.
                if let Some(bytes) = reception.rx.bulk.slice(arrival.bulk, arrival.len).filter(|_| len <= BUFFER) {
                    access::plain(reception.buffer.as_mut_ptr(), bytes.as_ptr(), len);
                    reception.rx.bulk.release(arrival.bulk, arrival.len);
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

    /// Takes up to `most` datagrams out of each socket. One is best for a program that polls: it asks again in a moment, and to find
    /// out that there is no second one costs as much as a message. While everything comes by a connected socket, the other sockets are looked at now and then only,
    /// for each look is a system call; but whoever may go to sleep has looked at all of them.
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

    /// The same, out of those of the sockets that are looked at.
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

    /// Takes what one call gives out of a socket, and says from where it came.
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

    /// What one call gives out of a socket. Of what is always alike only the bytes are asked for.
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

    /// Programs of one agent talk over lanes: what says that it comes from here does not.
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
    /// Lets go of the QPs of the last packets.
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
        let mut next = || fds.next().ok_or_else(|| Error::refuse(Errno::EIO, "WIRE_OPEN came without its descriptors"));
        let region = shm::Region::map(next()?.as_fd(), LANE_LEN)?;
        let (misdelivered, rx) = shm::ends(Arc::new(region), Side::B);
        let agent = Notifier::from(next()?);
        let lease = match out.flags & open_flags::SHARED {
            0 => None,
            _ => Some(ReceiveLease::new(shm::Region::map(next()?.as_fd(), LEASE_PAGE_LEN)?)),
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
            // No epoch that the board shows.
            known: AtomicU32::new(u32::MAX),
        })
    }

    /// This engine has to do with `gid`: its socket is worth looking at.
    pub(crate) fn expect_at(&self, gid: &[u8; 16]) {
        for shared in self.sockets.load().iter().filter(|shared| &shared.gid == gid && !shared.is_hot()) {
            shared.hot.store(true, Ordering::Relaxed);
            self.any_hot.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it is worth taking the reception, though there is no socket to read.
    fn seems_to_have(&self, engine: &Engine) -> bool {
        self.glance.sees(self.position.load(Ordering::Relaxed))
            || self.lease.as_ref().is_some_and(|lease| lease.is_ours(engine))
    }

    /// Whether there is a socket to read.
    pub(crate) fn has_hot(&self) -> bool {
        self.any_hot.load(Ordering::Relaxed)
    }

    /// Hands `f` the sockets to wait for while the lease is held.
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

    /// Hands the agent what is another engine's; lost where there is no room, as on a network.
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
    /// The datagrams at hand, apart from what is needed to deliver them.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Vec<Arc<Qp>>, &mut Option<Arc<Qp>>) {
        (&self.buffer, &mut self.touched, &mut self.recent)
    }
}

/// All of the agent's sockets, and the epoch for which that holds.
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
