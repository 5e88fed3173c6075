//! The sources of the wire thread: the receiving sockets, the engines' notifiers and the lease
//! page.
//!
//! The agent's thread opens and closes sockets, and the wire thread reads them. Both hold the same
//! [`Intake`], and see each other's changes at once. [`super::receivers`] decides which sockets
//! there are. [`super::lease`] decides who reads them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abi::wire::{LEASE_PAGE_LEN, WireSocket, socket_flags};
use parking_lot::RwLock;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use shm::Notifier;
use shm::region::Region;

use super::forwarder::{Forwarder, ReceivedBurst};
use super::receivers::ReceiveAddress;
use crate::gids::gid_of;

/// Maximum number of batches that are read from one socket before the next socket is read.
const BURST: u32 = 8;
/// Maximum number of sockets that are handled at once.
const READY: usize = 16;

/// Tokens of the outer epoll; an engine's notifier is [`ENGINE`] and its number.
const WAKE: u64 = 0;
const SOCKETS: u64 = 1;
const GROUPS: u64 = 2;
const ENGINE: u64 = 1 << 32;

/// The state that the agent's thread and the wire thread share.
#[derive(Debug)]
pub(crate) struct Intake {
    /// The epoll on which the wire thread sleeps.
    outer: OwnedFd,
    /// The sockets of addresses, while the wire thread reads them. If a socket is in an epoll, each
    /// sender to it must notify the epoll, even if no thread waits. This takes a twentieth of a
    /// small message's latency.
    inner: OwnedFd,
    /// The sockets of groups. The wire thread always reads them, because their datagrams go to
    /// several engines.
    groups: OwnedFd,
    wake: Notifier,
    sockets: RwLock<BTreeMap<u64, Receiver>>,
    /// Whether the wire thread reads the sockets of addresses. It changes only while `sockets` is
    /// locked for writing.
    listens: AtomicBool,
    page: Arc<Region>,
    page_fd: OwnedFd,
    stopping: AtomicBool,
    /// Whether the sockets report traffic class and hop limit.
    hops: AtomicBool,
    /// Engines may get the sockets, so each address has a connected receive socket too.
    shared: bool,
}

#[derive(Debug)]
struct Receiver {
    socket: udp::Socket,
    /// The connected receive socket of the same address. The lease holder decides to which sender
    /// it is connected. The agent treats datagrams of both sockets alike.
    connected: Option<udp::Socket>,
    is_group: bool,
    /// The address or group as a GID.
    gid: [u8; 16],
    ifindex: u32,
}

/// What happened while the wire thread slept.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The sockets of addresses have datagrams.
    pub(crate) datagrams: bool,
    /// The sockets of groups have datagrams.
    pub(crate) to_groups: bool,
    /// Engines that have notified the agent.
    pub(crate) engines: Vec<u32>,
}

impl Receiver {
    fn sockets(&self) -> impl Iterator<Item = &udp::Socket> {
        self.connected.iter().chain([&self.socket])
    }
}

impl Intake {
    /// Creates an intake without sockets. `shared`: engines may get them.
    pub(crate) fn new(shared: bool) -> io::Result<Self> {
        let [outer, inner, groups] = [(); 3].map(|()| crate::poller::new_epoll());
        let (outer, inner, groups) = (outer?, inner?, groups?);
        let wake = Notifier::new()?;
        epoll::add(&outer, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&outer, &inner, EventData::new_u64(SOCKETS), EventFlags::IN)?;
        epoll::add(&outer, &groups, EventData::new_u64(GROUPS), EventFlags::IN)?;
        let (page, page_fd) = Region::create("softhca-lease", LEASE_PAGE_LEN)?;
        let stopping = AtomicBool::new(false);
        Ok(Self {
            outer,
            inner,
            groups,
            wake,
            sockets: RwLock::default(),
            listens: AtomicBool::new(true),
            page: Arc::new(page),
            page_fd,
            stopping,
            hops: AtomicBool::new(false),
            shared,
        })
    }

    /// Opens a socket and begins to read it.
    pub(crate) fn open(&self, token: u64, place: &ReceiveAddress, ifindex: u32) -> io::Result<()> {
        let ((socket, connected), ip) = match *place {
            ReceiveAddress::Address { ip, scope } if self.shared => (udp::Socket::receiver_pair(ip, scope)?, ip),
            ReceiveAddress::Address { ip, scope } => ((udp::Socket::receiver(ip, scope)?, None), ip),
            ReceiveAddress::Group { ip, ifindex } => ((udp::Socket::group_receiver(ip, ifindex)?, None), ip),
        };
        let is_group = matches!(place, ReceiveAddress::Group { .. });
        let receiver = Receiver { socket, connected, is_group, gid: gid_of(ip), ifindex };
        let epoll = if is_group { &self.groups } else { &self.inner };
        let mut sockets = self.sockets.write();
        for socket in receiver.sockets() {
            if self.hops.load(Ordering::Relaxed) {
                socket.tell_hops()?;
            }
            if is_group || self.listens.load(Ordering::Relaxed) {
                epoll::add(epoll, socket.as_fd(), EventData::new_u64(token), EventFlags::IN)?;
            }
        }
        sockets.insert(token, receiver);
        Ok(())
    }

    /// Makes the sockets report traffic class and hop limit. The programs of datagram QPs see them.
    pub(crate) fn tell_hops(&self) -> io::Result<()> {
        let sockets = self.sockets.write();
        if self.hops.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        sockets.values().flat_map(Receiver::sockets).try_for_each(udp::Socket::tell_hops)
    }

    /// Closes a socket. When this returns, no thread of this process has the socket.
    pub(crate) fn close(&self, token: u64) {
        if let Some(receiver) = self.sockets.write().remove(&token) {
            // Engines may still have it open, and an epoll continues to report a descriptor that is
            // open elsewhere.
            let epoll = if receiver.is_group { &self.groups } else { &self.inner };
            for socket in receiver.sockets() {
                let _ = epoll::delete(epoll, socket.as_fd());
            }
        }
    }

    /// The number of sockets of addresses, and the sockets from number `first` on with their
    /// descriptors.
    pub(crate) fn sockets(&self, first: usize, max: usize) -> io::Result<(usize, Vec<(WireSocket, OwnedFd)>)> {
        let sockets = self.sockets.read();
        let all = sockets.values().filter(|receiver| !receiver.is_group).flat_map(|receiver| {
            let entry = WireSocket { gid: receiver.gid, ifindex: receiver.ifindex, flags: 0 };
            let connected = receiver
                .connected
                .iter()
                .map(move |connected| (WireSocket { flags: socket_flags::CONNECTED, ..entry }, connected));
            connected.chain([(entry, &receiver.socket)])
        });
        let total = all.clone().count();
        let some = all.skip(first).take(max).map(|(entry, socket)| Ok((entry, socket.as_fd().try_clone_to_owned()?)));
        Ok((total, some.collect::<io::Result<_>>()?))
    }

    /// The lease page.
    pub(crate) fn page(&self) -> &Arc<Region> {
        &self.page
    }

    /// The lease page's memfd, for an engine.
    pub(crate) fn page_descriptor(&self) -> io::Result<OwnedFd> {
        self.page_fd.try_clone()
    }

    /// Starts to listen to an engine's notifier. Only the epoll reports notifications: reading an
    /// eventfd that another process holds could block.
    pub(crate) fn hear(&self, engine: u32, notifier: BorrowedFd<'_>) -> io::Result<()> {
        let token = EventData::new_u64(ENGINE | u64::from(engine));
        Ok(epoll::add(&self.outer, notifier, token, EventFlags::IN | EventFlags::ET)?)
    }

    /// Stops listening to an engine's notifier, and makes the wire thread look at the lease.
    pub(crate) fn forget(&self, notifier: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.outer, notifier);
        self.wake.notify();
    }

    /// Starts or stops listening to the sockets of addresses. At the start, datagrams that are
    /// already there are reported.
    pub(crate) fn listen(&self, wanted: bool) -> io::Result<()> {
        let sockets = self.sockets.write();
        let addresses = sockets.iter().filter(|(_, receiver)| !receiver.is_group);
        for (token, socket) in addresses.flat_map(|(token, receiver)| receiver.sockets().map(move |one| (token, one))) {
            let changed = match wanted {
                true => epoll::add(&self.inner, socket.as_fd(), EventData::new_u64(*token), EventFlags::IN),
                false => epoll::delete(&self.inner, socket.as_fd()),
            };
            // An earlier call may have failed half-way.
            if let Err(error) = changed
                && !matches!(error, Errno::EXIST | Errno::NOENT)
            {
                return Err(error.into());
            }
        }
        self.listens.store(wanted, Ordering::Relaxed);
        Ok(())
    }

    /// Sleeps until there is something to do.
    pub(crate) fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<News> {
        wait(&self.outer, events, timeout)?;
        let mut news = News::default();
        for event in events.iter() {
            match event.data.u64() {
                WAKE => drop(self.wake.drain()),
                SOCKETS => news.datagrams = true,
                GROUPS => news.to_groups = true,
                // Besides the tokens above, only numbers of engines are added.
                token => news.engines.push((token & 0xffff_ffff) as u32),
            }
        }
        Ok(news)
    }

    /// Reads the sockets of addresses, one after the other, each for a bounded time.
    pub(crate) fn read(&self, events: &mut Vec<Event>, buffer: &mut [u8], forwarder: &Forwarder) -> io::Result<()> {
        self.read_from(&self.inner, events, buffer, forwarder)
    }

    /// Reads the sockets of groups in the same way.
    pub(crate) fn read_groups(
        &self,
        events: &mut Vec<Event>,
        buffer: &mut [u8],
        forwarder: &Forwarder,
    ) -> io::Result<()> {
        self.read_from(&self.groups, events, buffer, forwarder)
    }

    fn read_from(
        &self,
        epoll: &OwnedFd,
        events: &mut Vec<Event>,
        buffer: &mut [u8],
        forwarder: &Forwarder,
    ) -> io::Result<()> {
        wait(epoll, events, Some(Duration::ZERO))?;
        let sockets = self.sockets.read();
        for receiver in events.iter().filter_map(|event| sockets.get(&event.data.u64())) {
            for socket in receiver.sockets() {
                for _ in 0..BURST {
                    let Some(received) = socket.receive(buffer)? else { break };
                    forwarder.take(&ReceivedBurst {
                        from: gid_of(received.from.ip()),
                        from_port: received.from.port(),
                        to: receiver.gid,
                        traffic_class: received.traffic_class,
                        hop_limit: received.hop_limit,
                        segment: received.segment,
                        bytes: &buffer[..received.len],
                    });
                }
            }
        }
        Ok(())
    }

    /// Tells the wire thread to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.notify();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// Waits for events of an epoll. An interrupted wait returns no events.
fn wait(epoll: &OwnedFd, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
    events.clear();
    events.reserve(READY);
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The scope id of an address: link-local addresses need one.
pub(crate) fn scope(ip: IpAddr, ifindex: u32) -> u32 {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => ifindex,
        _ => 0,
    }
}
