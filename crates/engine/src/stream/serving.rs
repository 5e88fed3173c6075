//! The sockets of all streams of an engine: which are ready, and what has arrived. Adds to
//! [`Engine`] and [`Qp`]. Principal type: [`Streams`].

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::capture::{path, record_flag};
use abi::command::number as command;
use abi::stream::StreamEnd;
use iwarp::Transmit;
use protocol::{State, Time};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::dropping::drop_arrived;
use super::memory::Access;
use super::part::Addresses;
use super::{Live, duration};
use crate::engine::Engine;
use crate::qp::{Inner, Qp};
use crate::request;

/// Bytes that are read at once.
const BUFFER: usize = 256 * 1024;
/// Reads of one socket before others get their turn.
const READS: u32 = 4;
/// Bytes that are dropped before a socket is closed: more than its receive buffer, which has 6 MiB by
/// default (tcp(7)).
const DROPPED_MAX: usize = 8 << 20;
/// Sockets that are served in one round.
const READY: usize = 64;

impl Engine {
    /// Serves the sockets that are ready. With `sure`, waits for a thread that does so.
    pub(crate) fn serve_streams(self: &Arc<Self>, sure: bool) -> bool {
        let Some(set) = self.net.streams.ready() else { return false };
        let guard = if sure { Some(self.net.streams.buffer.lock()) } else { self.net.streams.buffer.try_lock() };
        let Some(mut buffer) = guard else { return false };
        buffer.resize(BUFFER, 0);
        if !sure
            && let Some(qp) = self.net.streams.hot().and_then(|qpn| self.qps.find(qpn))
            && let Some(worked) = qp.try_socket(&mut buffer)
        {
            return worked;
        }
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; READY];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(set, &mut events, Some(&at_once)).unwrap_or(0);
        if count == 0 {
            return false;
        }
        crate::usermem::prepare_thread();
        self.net.streams.note_ready(&events[..count]);
        for event in &events[..count] {
            if let Some(qp) = self.qps.find(event.data.u64() as u32) {
                qp.on_ready(&mut buffer);
            }
        }
        true
    }

    /// The stream of a queue pair has ended; the helper thread tells the agent.
    pub(super) fn report_stream_end(&self, qpn: u32) {
        self.net.streams.ended.lock().push(qpn);
        self.waker.kick();
    }

    /// Tells the agent which streams have ended.
    pub(crate) fn report_stream_ends(&self) {
        for qpn in std::mem::take(&mut *self.net.streams.ended.lock()) {
            // Without an agent, nobody waits for it.
            let _ = self.tell(&request::private(command::STREAM_END, &StreamEnd { qpn, flags: 0 }, 0));
        }
    }
}

impl Qp {
    /// Ends the sending direction of a connection, or the whole connection.
    pub(super) fn end_socket(&self, socket: &OwnedFd, addresses: &Addresses, end: Transmit) {
        let flag = if end == Transmit::Reset { record_flag::RESET } else { record_flag::FIN };
        self.show_stream(addresses, path::WIRE_OUT, flag, &[]);
        if end == Transmit::Reset {
            // Closing it would not be enough: the agent has the socket, too.
            self.engine().net.network.reset(socket.as_fd());
        } else {
            let _ = shutdown(socket, Shutdown::Write);
        }
    }

    /// Ends a connection that nobody uses any more, behind what was sent.
    pub(super) fn finish_socket(&self, socket: &OwnedFd, addresses: &Addresses) {
        self.end_socket(socket, addresses, Transmit::Finish);
        drop_arrived(socket, DROPPED_MAX);
    }

    /// The socket is ready: reads and sends.
    fn on_ready(self: &Arc<Self>, buffer: &mut [u8]) {
        let mut inner = self.lock();
        let mut live = self.take_live(&mut inner);
        if let Some(live) = &mut live {
            self.read_socket(&mut inner, live, buffer);
        }
        self.pump_live(&mut inner, live);
    }

    /// Reads without knowing whether the socket is ready. Returns whether there was anything to do;
    /// `None` if the queue pair has no stream.
    fn try_socket(self: &Arc<Self>, buffer: &mut [u8]) -> Option<bool> {
        let mut inner = self.lock();
        let mut live = self.take_live(&mut inner)?;
        crate::usermem::prepare_thread();
        let worked = self.read_socket(&mut inner, &mut live, buffer);
        if worked || live.is_full {
            self.pump_live(&mut inner, Some(live));
        } else {
            self.put_live_back(&mut inner, live);
        }
        Some(worked)
    }

    /// Returns whether anything has arrived.
    fn read_socket(&self, inner: &mut Inner, live: &mut Live, buffer: &mut [u8]) -> bool {
        for round in 0..READS {
            if live.peer_ended || live.gate.until.is_some() {
                return round > 0;
            }
            let len = match recv(&live.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((len, _)) => len,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return round > 0,
                Err(_) => {
                    self.show_stream(&live.addresses, path::WIRE_IN, record_flag::RESET, &[]);
                    live.peer_ended = true;
                    live.output.clear();
                    live.gate.clear();
                    live.stream.lost();
                    self.heed_events(inner, live);
                    return true;
                }
            };
            let now = duration(self.engine().now());
            live.received += len as u64;
            if len == 0 {
                self.pass_all(inner, live);
                self.show_stream(&live.addresses, path::WIRE_IN, record_flag::FIN, &[]);
                live.peer_ended = true;
                if live.is_broken {
                    live.stream.lost()
                } else {
                    live.stream.receive_end()
                }
                self.heed_events(inner, live);
                return true;
            }
            if self.engine().faults.is_on() || !live.gate.is_empty() {
                live.gate.add(&buffer[..len]);
                self.pass_gate(inner, live);
                continue;
            }
            let inside = if live.stream.is_between() { 0 } else { record_flag::INSIDE };
            self.show_stream(&live.addresses, path::WIRE_IN, inside, &buffer[..len]);
            // A queue pair in error takes nothing more; it only waits for the peer's end.
            if inner.state != State::Err {
                let Live { stream, receives, .. } = live;
                stream.receive(now, &buffer[..len], &mut Access { qp: self, inner, receives });
                self.heed_events(inner, live);
            }
            if len < buffer.len() {
                break;
            }
        }
        true
    }

    /// A timer of a stream may be due.
    pub(crate) fn on_stream_timer(self: &Arc<Self>, inner: &mut Inner, now: Time) {
        let mut live = self.take_live(inner);
        if let Some(live) = &mut live {
            live.stream.handle_timeout(duration(now));
            self.heed_events(inner, live);
            self.pass_gate(inner, live);
        }
        self.pump_live(inner, live);
    }
}
