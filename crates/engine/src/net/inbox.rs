//! The inbox: where packets from other hosts arrive.
//!
//! The agent receives for all engines and hands each engine its packets over a wire lane. If the
//! agent lets this engine read its sockets ([`crate::net::lease`]), the engine receives from the
//! sockets directly, and gives packets of other engines back over the same lane. Receiving is in
//! `inbox/receiving.rs`, parsing in [`crate::net::deliver`]. Principal type: [`Inbox`].

mod receiving;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::command::number as command;
use abi::errno::Errno;
use abi::wire::{LEASE_PAGE_LEN, WireOpen, WireOut, open_flags};
use arc_swap::ArcSwap;
use shm::{Glance, LANE_LEN, LaneRx, Notifier, RECORD_MAX, Side};

use crate::core::Core;
use crate::error::{Result, by_system, refusal};
use crate::lock::Mutex;
use crate::net::connected_receiver::ConnectedReceiver;
use crate::net::datagrams::{Datagrams, Senders};
use crate::net::lease::ReceiveLease;
use crate::net::to_agent::ToAgent;
use crate::net::uniform_traffic::UniformTraffic;
use crate::request;

/// Room for the largest datagram.
const BUFFER: usize = 64 * 1024;
/// One of this many rounds of a polling program also reads the sockets of addresses that only other
/// engines use. No one else reads them while the lease is held.
pub(crate) const OTHERS: u32 = 32;

/// Where packets from other hosts arrive.
pub(crate) struct Inbox<Q> {
    reception: Mutex<Reception<Q>>,
    /// Shows threads that do not hold `reception` whether the agent has handed over records after
    /// `position`, up to which the records have been read.
    glance: Glance,
    position: AtomicU32,
    /// The way to the agent.
    pub(crate) agent: Arc<ToAgent>,
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

/// The state of receiving; one thread at a time has it.
pub(crate) struct Reception<Q> {
    rx: LaneRx,
    record: [u8; RECORD_MAX],
    buffer: Box<[u8]>,
    pub(crate) touched: Vec<Arc<Q>>,
    pub(crate) recent: Option<Arc<Q>>,
    /// An address that does not belong to this agent, and the epoch of the tables for which that is
    /// valid.
    pub(crate) foreign: Option<([u8; 16], u32)>,
    pub(crate) origins: Senders,
    /// Reads of the sockets so far.
    looks: u32,
    connected: ConnectedReceiver,
    pub(crate) uniform: UniformTraffic,
    /// Datagrams since a read of the sockets that found nothing.
    streak: u32,
    /// Bytes received from the sockets in this round.
    bytes: usize,
}

impl<Q> Inbox<Q> {
    /// Releases the QPs of the last packets.
    pub(crate) fn forget_qps(&self) {
        let mut reception = self.reception.lock();
        reception.recent = None;
        reception.touched.clear();
    }

    fn open(core: &Core) -> Result<Self> {
        let open = WireOpen { flags: 0, reserved: 0 };
        let answer = core.call(&request::private(command::WIRE_OPEN, &open, size_of::<WireOut>()))?;
        let out: WireOut = answer.get(0)?;
        let mut fds = answer.fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| refusal(Errno::EIO, "WIRE_OPEN came without its descriptors"));
        let region = shm::Region::map(next()?.as_fd(), LANE_LEN).map_err(by_system)?;
        let (misdelivered, rx) = shm::ends(Arc::new(region), Side::B);
        let agent = Arc::new(ToAgent::new(misdelivered, Notifier::from(next()?)));
        let lease = match out.flags & open_flags::SHARED {
            0 => None,
            _ => Some(ReceiveLease::new(shm::Region::map(next()?.as_fd(), LEASE_PAGE_LEN).map_err(by_system)?)),
        };
        let glance = rx.ring.glance();
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
                origins: Senders::default(),
                looks: 0,
                connected: ConnectedReceiver::default(),
                uniform: UniformTraffic::default(),
                streak: 0,
                bytes: 0,
            }),
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

    /// Whether a round has to call [`crate::Engine::receive_from_hosts`]. If the program has
    /// `polled` and does not use the wire, it checks for packets only in its `turn`. So several
    /// threads with queues of their own do not contend for the lock.
    #[inline]
    pub(crate) fn is_wanted(&self, core: &Core, polled: bool, turn: bool) -> bool {
        !polled || self.has_hot() || turn && self.may_have_packets(core)
    }

    /// Whether it is worth locking `reception` although there is no hot socket.
    fn may_have_packets(&self, core: &Core) -> bool {
        self.glance.sees(self.position.load(Ordering::Relaxed))
            || self.lease.as_ref().is_some_and(|lease| lease.is_ours(core))
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

    /// Gives packets of another engine back to the agent. Returns false if there is no room; then
    /// they are lost, as on a network.
    pub(crate) fn give_back(&self, datagrams: &Datagrams, bytes: &[u8]) -> bool {
        self.agent.push(datagrams.arrival(bytes.len()), bytes)
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

impl<Q> Reception<Q> {
    /// The received bytes, and separately the parts that delivery changes.
    pub(crate) fn parts(&mut self) -> (&[u8], &mut Vec<Arc<Q>>, &mut Option<Arc<Q>>) {
        (&self.buffer, &mut self.touched, &mut self.recent)
    }
}
