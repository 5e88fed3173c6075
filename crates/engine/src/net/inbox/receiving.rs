//! How the engine takes packets from its inbox: from the agent's ring, and from the sockets while
//! it holds the lease. Adds to [`Engine`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::command::number as command;
use abi::layout::Record;
use abi::reason::{Cause, DropRecord};
use abi::wire::{Arrival, SOCKETS_MAX, WireSockets, WireSocketsAnswer, arrival_flags, arrival_kind, socket_flags};
use shm::RECORD_MAX;
use udp::Received;

use super::{BUFFER, Inbox, OTHERS, Reception, Shared};
use crate::engine::Engine;
use crate::error::Result;
use crate::net::datagrams::{Datagrams, marked};
use crate::qp::Qp;
use crate::{request, tsc};

/// After this many datagrams in a row without an empty receive, the engine checks how full the
/// socket's buffer is.
const STREAK: u32 = 16;
/// Records, or datagrams of one socket, that one round takes.
const BATCH: usize = 16;
/// After this many bytes, a round takes at most one datagram of each socket. Then the engine
/// acknowledges these datagrams, so that the sender continues while the engine takes the rest.
/// Without this limit, a sender that is faster than its receiver fills its window and waits until
/// the receiver has taken everything; then the receiver waits for the sender.
const AT_ONCE: usize = 96 * 1024;
/// A datagram of this size is part of a burst. Another read costs little beside it, and saves an
/// answer.
const BURST: usize = 32 * 1024;

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

/// After this many datagrams a drain ends, because senders may go on sending.
const DRAIN: usize = 4096;

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
    /// has `polled`, it gets messages before the engine sends ACKs that can wait.
    pub(crate) fn receive_from_hosts(self: &Arc<Self>, sure: bool, polled: bool) -> bool {
        let Some(inbox) = self.net.inbox() else { return false };
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
                reception.uniform.forget();
                lease.want(self, inbox.agent.notifier(), (ringed > 0 || self.waker.is_watching()) && inbox.has_hot());
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

    /// Gives the lease back if no packet has come for long enough. Locks `reception` first: the
    /// agent must not read and deliver new packets before another thread has delivered the packets
    /// that it has read.
    pub(crate) fn return_idle_lease(&self) {
        if let Some(inbox) = self.net.inbox()
            && let Some(lease) = &inbox.lease
            && lease.is_ours(self)
            && let Some(_reception) = inbox.reception.try_lock()
        {
            lease.rest(self, inbox.agent.notifier());
        }
    }

    fn take_ring(self: &Arc<Self>, inbox: &Inbox<Qp>, reception: &mut Reception<Qp>) -> usize {
        let taken = self.take_records(inbox, reception);
        if taken > 0 {
            inbox.position.store(reception.rx.ring.position(), Ordering::Relaxed);
            reception.rx.ring.publish();
            if reception.rx.ring.peer_waiting() {
                reception.rx.ring.clear_waiting();
                inbox.agent.notifier().notify();
            }
        }
        taken
    }

    fn take_records(self: &Arc<Self>, inbox: &Inbox<Qp>, reception: &mut Reception<Qp>) -> usize {
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
    /// arrives on a connected socket, the engine reads the other sockets rarely, because each read
    /// is a system call. A caller that may go to sleep reads all of them.
    fn take_sockets(self: &Arc<Self>, inbox: &Inbox<Qp>, reception: &mut Reception<Qp>, most: usize) -> usize {
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
        inbox: &Inbox<Qp>,
        reception: &mut Reception<Qp>,
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
        inbox: &Inbox<Qp>,
        reception: &mut Reception<Qp>,
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
                lease.note_misdelivered(self, inbox.agent.notifier(), misdelivered);
            }
        }
        Some(received.from)
    }

    /// Receives with one call from a socket. For uniform traffic, the call asks only for the bytes;
    /// the rest is inferred.
    fn take_out(&self, reception: &mut Reception<Qp>, shared: &Shared, polled: bool) -> Option<Received> {
        if polled
            && shared.connected
            && let Some(predicted) = reception.uniform.predict(&shared.gid)
            && !self.is_capturing()
        {
            let len = shared.socket.receive_bytes(&mut reception.buffer).ok()??;
            let covered = reception.origins.expect(&Datagrams::of(&predicted, &shared.gid));
            let segment = reception.uniform.measure(&reception.buffer[..len], covered);
            return Some(Received { len, segment, ..predicted });
        }
        let received = shared.socket.receive(&mut reception.buffer).ok()??;
        if shared.connected {
            reception.uniform.note(&shared.gid, &received);
        }
        Some(received)
    }

    /// Programs of one agent talk over lanes, so a packet with a source address of this agent is
    /// not genuine.
    fn is_foreign(&self, reception: &mut Reception<Qp>, from: &[u8; 16]) -> bool {
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

    /// Connects the second socket of the address of `shared`, if there is one, to the sender `at`.
    /// Returns how many datagrams it received meanwhile.
    #[cold]
    pub(crate) fn connect_receiver(
        self: &Arc<Self>,
        inbox: &Inbox<Qp>,
        reception: &mut Reception<Qp>,
        (sockets, shared): (&[Shared], &Shared),
        at: &SocketAddr,
    ) -> usize {
        let Some(connected) = sockets.iter().find(|one| one.is_connected() && one.gid() == shared.gid()) else {
            return 0;
        };
        if connected.socket().connect_receiver(None).is_err() {
            return 0;
        }
        reception.uniform.forget();
        let before = self.drain(inbox, reception, connected);
        if let Err(error) = connected.socket().connect_receiver(Some(at)) {
            tracing::debug!("the receive socket cannot be connected to {at}: {error}");
        }
        before + self.drain(inbox, reception, shared)
    }

    fn drain(self: &Arc<Self>, inbox: &Inbox<Qp>, reception: &mut Reception<Qp>, shared: &Shared) -> usize {
        (0..DRAIN).take_while(|_| self.take_datagrams(inbox, reception, shared, false).is_some()).count()
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
