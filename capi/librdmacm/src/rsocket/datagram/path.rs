//! A UD queue pair of a datagram socket, on one local address. It does not know peers. The
//! principal type is [`Path`].

use super::peers::PATIENCE;
use crate::entry::{Outcome, Refusal};
use crate::layout::{QpCap, Wc};
use crate::rsocket::AGAIN;
use crate::rsocket::address::{Name, inward};
use crate::rsocket::cm::{Endpoint, Kind, News, Shape};
use crate::rsocket::memory::Region;
use crate::rsocket::settings::Settings;
use crate::rsocket::verbs::{self, Access, Completions, Handle, Load, Queue};
use crate::rsocket::waiting::{self, input};
use bytemuck::Zeroable;
use rsocket::datagram::{MAX_SIZE, Source};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

/// The length of the GRH before each received datagram (IBA, volume 1, 11.4.1.2).
const GRH: u32 = 40;
/// The bit that marks the work request id of a receive.
const RECEIVE: u64 = 1 << 32;
const BATCH: usize = 16;

/// A queue pair and its memory.
pub(super) struct Path {
    completions: Completions,
    queue: Queue,
    outbox: Region,
    inbox: Region,
    /// The free slots of the send memory, and the number of all slots.
    free: Vec<u32>,
    places: usize,
    armed: bool,
    inline: u32,
    /// The length of the longest datagram that it sends, including its header.
    longest: usize,
    /// The socket's address, which every datagram carries.
    pub(super) local: SocketAddr,
    /// The address of the queue pair: the local address, or one of a device if no device has the
    /// local address.
    pub(super) device: SocketAddr,
    pub(super) endpoint: Endpoint,
}

impl Drop for Path {
    fn drop(&mut self) {
        self.endpoint.end_queue();
    }
}

impl Path {
    /// Makes a path for a local address, to reach `to`.
    pub(super) fn new(local: SocketAddr, to: SocketAddr, settings: &Settings) -> Outcome<Self> {
        let (endpoint, device) = bound(local, to)?;
        let context = endpoint.context();
        if context.is_null() {
            return Err(Refusal(libc::EADDRNOTAVAIL));
        }
        let place = u32::try_from(MAX_SIZE).unwrap_or(u32::MAX);
        let receives = u32::from(settings.receive_queue).min(settings.receive_buffer / place).max(4);
        let sends = u32::from(settings.send_queue).min(settings.send_buffer / place).max(4);
        let completions = Completions::new(context, receives + sends)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline_data: settings.inline,
        };
        let cap = endpoint.make_queue(completions.cq(), &Shape { datagrams: true, cap })?;
        let whole = || -> Outcome<(Queue, Region, Region, usize)> {
            let bytes = |count: u32| usize::try_from(count).unwrap_or(0) * MAX_SIZE;
            let queue = Queue::new(context, endpoint.queue_pair(), false);
            let outbox = Region::new(endpoint.pd(), bytes(sends), Access::Local)?;
            let inbox = Region::new(endpoint.pd(), bytes(receives) + GRH as usize, Access::Local)?;
            let longest = verbs::port_mtu(context, endpoint.port())?.min(MAX_SIZE);
            Ok((queue, outbox, inbox, longest))
        };
        let (queue, outbox, inbox, longest) = whole().inspect_err(|_| endpoint.end_queue())?;
        let path = Self {
            completions,
            queue,
            outbox,
            inbox,
            free: (0..sends).collect(),
            places: usize::try_from(sends).unwrap_or(0),
            armed: false,
            inline: settings.inline.min(cap.max_inline_data),
            longest,
            local,
            device,
            endpoint,
        };
        for place in 0..receives {
            path.post_receive(place)?;
        }
        Ok(path)
    }

    /// The number of the queue pair.
    pub(super) fn number(&self) -> u32 {
        self.queue.number()
    }

    /// The descriptor to sleep on.
    pub(super) fn fd(&self) -> RawFd {
        self.completions.fd().as_raw_fd()
    }

    /// Makes the next completion raise an event.
    pub(super) fn arm(&mut self) {
        if !std::mem::replace(&mut self.armed, true) {
            self.completions.arm();
        }
    }

    /// Takes the event, if there is one.
    pub(super) fn take_event(&mut self) {
        if self.completions.take_event() {
            self.armed = false;
        }
    }

    /// Whether a datagram can be sent now.
    pub(super) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all datagrams have left.
    pub(super) fn all_sent(&self) -> bool {
        self.free.len() == self.places
    }

    /// Whether a datagram with this many bytes of data fits.
    pub(super) fn takes(&self, data: usize) -> bool {
        data + Source(self.local).size() <= self.longest
    }

    /// Sends a datagram. Fails with EAGAIN if there is no free slot now.
    pub(super) fn send(&mut self, handle: &Handle, qpn: u32, data: &[u8]) -> Outcome<()> {
        let place = self.free.pop().ok_or(AGAIN)?;
        let mut room = [0; MAX_SIZE];
        let head = Source(self.local).emit(&mut room);
        let whole = head + data.len();
        room.get_mut(head..whole).ok_or(Refusal(libc::EMSGSIZE))?.copy_from_slice(data);
        let offset = usize::try_from(place).unwrap_or(0) * MAX_SIZE;
        let length = u32::try_from(whole).unwrap_or(u32::MAX);
        let load = if length <= self.inline {
            Load::inline(room.as_ptr(), length)
        } else {
            self.outbox.write(offset, room.get(..whole).unwrap_or_default());
            Load::pieces(self.outbox.lkey(), (self.outbox.address() + offset as u64, length), (0, 0))
        };
        self.queue.datagram(u64::from(place), handle.as_ptr(), qpn, load).inspect_err(|_| self.free.push(place))
    }

    /// Takes completions. Datagrams go to `to` until it has `most` entries. With `only`, datagrams
    /// of other senders are dropped.
    pub(super) fn look(&mut self, to: &mut VecDeque<(SocketAddr, Vec<u8>)>, most: usize, only: Option<SocketAddr>) {
        let mut room = [Wc::zeroed(); BATCH];
        // A caller that only wants to send leaves datagrams where they are.
        while to.len() < most || self.free.is_empty() {
            let count = self.completions.poll(&mut room);
            for wc in room.iter().take(count) {
                let place = u32::try_from(wc.wr_id & 0xFFFF_FFFF).unwrap_or(0);
                if wc.wr_id & RECEIVE == 0 {
                    self.free.push(place);
                    continue;
                }
                if wc.status == 0 && to.len() < most {
                    to.extend(
                        self.datagram(place, wc.byte_len).filter(|(from, _)| only.is_none_or(|only| same(only, *from))),
                    );
                }
                let _ = self.post_receive(place);
            }
            if count < BATCH {
                return;
            }
        }
    }

    fn datagram(&self, place: u32, length: u32) -> Option<(SocketAddr, Vec<u8>)> {
        let length = usize::try_from(length.checked_sub(GRH)?).ok()?.min(MAX_SIZE);
        let bytes: [u8; MAX_SIZE] = self.inbox.read(usize::try_from(place).ok()? * MAX_SIZE);
        let (source, data) = Source::parse(bytes.get(..length)?)?;
        let mut from = inward(source.0);
        if let (SocketAddr::V6(from), SocketAddr::V6(local)) = (&mut from, &self.local)
            && from.ip().is_unicast_link_local()
        {
            // The sender is on the link of the queue pair.
            from.set_scope_id(local.scope_id());
        }
        Some((from, data.to_vec()))
    }

    fn post_receive(&self, place: u32) -> Outcome<()> {
        let start = self.inbox.address();
        // All GRHs go to one place behind the slots.
        let grh = (start + u64::try_from(self.inbox_places() * MAX_SIZE).unwrap_or(0), GRH);
        let data = (start + u64::from(place) * MAX_SIZE as u64, u32::try_from(MAX_SIZE).unwrap_or(0));
        self.queue.receive_datagram(RECEIVE | u64::from(place), self.inbox.lkey(), grh, data)
    }

    fn inbox_places(&self) -> usize {
        self.inbox.length() / MAX_SIZE
    }
}

/// Whether two addresses are the same host and port.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.ip() == b.ip() && a.port() == b.port()
}

/// Makes an id at a local address, and returns the id's address. On loopback, the host may choose
/// an address that belongs to no device, as always on a node of a topology. The address from which
/// the connection manager would reach the peer then takes its place.
fn bound(local: SocketAddr, to: SocketAddr) -> Outcome<(Endpoint, SocketAddr)> {
    let endpoint = Endpoint::new(true)?;
    match endpoint.bind(&Name::from(local)) {
        Ok(()) if !endpoint.context().is_null() => return Ok((endpoint, local)),
        Ok(()) | Err(Refusal(libc::EADDRNOTAVAIL)) => {}
        Err(refusal) => return Err(refusal),
    }
    // It may hold the port.
    drop(endpoint);
    let device = SocketAddr::new(source_towards(to)?, local.port());
    let endpoint = Endpoint::new(true)?;
    endpoint.bind(&Name::from(device))?;
    Ok((endpoint, device))
}

/// The address from which the connection manager would reach `to`. It answers in limited time,
/// mostly at once.
fn source_towards(to: SocketAddr) -> Outcome<IpAddr> {
    let endpoint = Endpoint::new(true)?;
    endpoint.resolve_address(None, &Name::from(to), PATIENCE)?;
    loop {
        match endpoint.news()? {
            Some(News { kind: Kind::AddressResolved, .. }) => return Ok(endpoint.local()?.internet()?.ip()),
            Some(_) => return Err(Refusal(libc::EADDRNOTAVAIL)),
            None => match waiting::sleep(&mut [input(endpoint.fd())], None) {
                Err(refusal) if refusal.0 != libc::EINTR => return Err(refusal),
                _ => {}
            },
        }
    }
}
