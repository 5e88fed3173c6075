//! The active side: CONNECT, and the peer's reply. Adds to [`Manager`].

use std::io;
use std::net::{SocketAddr, TcpStream};

use abi::ucma::connection::{ConnParam, EventAnswer, UdParam, event};
use abi::ucma::sockaddr::Sockaddr;
use abi::{Errno, Refusal};
use iwarp::negotiation::Answer;
use iwarp::{Agreement, Error, Initiator};
use protocol::Time;
use rustix::event::epoll::{self, EventFlags};

use super::pending::{self, PendingConnection};
use super::shown::{ARRIVED, LEAVES};
use super::sockets;
use super::{End, Key, REPLY_TIME, as_duration};
use crate::cm::Manager;
use crate::cm::channel::Event;
use crate::cm::connecting::given;
use crate::cm::id::Stage;
use crate::cm::incoming::padded;
use crate::refusal::{Outcome, by_network, by_system, refuse};

/// How a request has ended without a connection: the event and its status.
type Failure = (u32, Errno);

const REJECTED: Failure = (event::REJECTED, Errno::ECONNRESET);

impl Manager {
    /// Begins to connect an id whose route is resolved.
    pub(in crate::cm) fn connect_by_tcp(&mut self, name: u32, param: &ConnParam) -> Outcome<()> {
        let deadline = self.now().after(REPLY_TIME);
        let Some(id) = self.ids.get_mut(name) else { return refuse(Errno::ENOENT, "the id is gone") };
        let (Some(Sockaddr::Ip(from)), Some(Sockaddr::Ip(to))) = (id.local, id.remote) else {
            return refuse(Errno::EINVAL, format!("id {name:#x} needs IP addresses: iWARP has no others"));
        };
        let terms = id.start_up().unwrap_or_default().terms(param.responder_resources, param.initiator_depth);
        let user = self.channels.get(&id.channel).map_or(0, |owner| owner.channel.peer.uid);
        let Some(asker) = self.mail.tcp.askers.add(user, pending::MOST) else {
            let most = pending::MOST;
            return refuse(
                Errno::EAGAIN,
                format!("id {name:#x}: {most} connections of user {user} wait for their peers"),
            );
        };
        let initiator = Initiator::new(terms, given(param), as_duration(deadline))
            .map_err(|error| Refusal::new(Errno::EINVAL, format!("id {name:#x}: {error}")))?;
        let mut source = from;
        source.set_port(0);
        let socket = sockets::begin(source, to)
            .map_err(|error| by_network(&error, &format!("id {name:#x}: no TCP connection from {source} to {to}")))?;
        if let Ok(SocketAddr::V4(_) | SocketAddr::V6(_)) = socket.local_addr().inspect(|at| source = *at) {
            id.local = Some(Sockaddr::Ip(source));
        }
        (id.qpn, id.stage) = (param.qp_num, Stage::Connecting);
        self.request(name, socket, initiator, (deadline, false), asker).map_err(by_system)
    }

    /// Sends a request as soon as TCP is connected.
    fn request(
        &mut self,
        name: u32,
        socket: TcpStream,
        initiator: Initiator,
        (until, again): (Time, bool),
        asker: PendingConnection,
    ) -> io::Result<()> {
        let (tcp, key) = (&mut self.mail.tcp, Key::Id(name));
        tcp.watch(&socket, key, EventFlags::OUT)?;
        tcp.deadlines.set(key, until);
        tcp.ends.insert(name, End::Asking { socket, initiator: Box::new(initiator), sent: false, again, asker });
        Ok(())
    }

    /// The socket of a request is ready.
    pub(super) fn on_reply_bytes(&mut self, name: u32) {
        let Some(End::Asking { sent, .. }) = self.mail.tcp.ends.get(&name) else { return };
        if *sent { self.take_reply(name) } else { self.send_request(name) }
    }

    /// TCP is connected, or is not.
    fn send_request(&mut self, name: u32) {
        let tcp = &mut self.mail.tcp;
        let Some(End::Asking { socket, initiator, sent, .. }) = tcp.ends.get_mut(&name) else { return };
        let request = initiator.poll_transmit().unwrap_or_default();
        let connected = socket.take_error().and_then(|error| error.map_or(Ok(()), Err));
        let asked = connected.and_then(|()| {
            sockets::send(socket, &request)?;
            Ok(epoll::modify(&tcp.epoll, &*socket, Key::Id(name).data(), EventFlags::IN | EventFlags::RDHUP)?)
        });
        *sent = true;
        if let Err(error) = asked {
            return self.not_connected(name, &error);
        }
        self.show_asking(name, LEAVES, &request);
    }

    fn show_asking(&self, name: u32, path: u32, bytes: &[u8]) {
        if let Some(End::Asking { socket, .. }) = self.mail.tcp.ends.get(&name) {
            self.show_frame(name, socket, path, bytes);
        }
    }

    /// Reads the reply.
    fn take_reply(&mut self, name: u32) {
        while let Some(End::Asking { socket, initiator, .. }) = self.mail.tcp.ends.get_mut(&name) {
            let mut arrived = Vec::new();
            let answer = sockets::feed(socket, |bytes| match initiator.receive(bytes) {
                Ok((taken, answer)) => {
                    arrived.extend_from_slice(&bytes[..taken]);
                    (taken, Ok(answer))
                }
                Err(error) => {
                    // What is not read would make the end of the connection a reset, before which the
                    // peer may not get the Terminate message.
                    arrived.extend_from_slice(bytes);
                    (bytes.len(), Err(error))
                }
            });
            if !arrived.is_empty() {
                self.show_asking(name, ARRIVED, &arrived);
            }
            match answer {
                Ok(None) => return,
                Ok(Some(Ok(None))) => {}
                Ok(Some(Ok(Some(Answer::Accepted(agreement, private))))) => {
                    return self.agreed(name, &agreement, &private);
                }
                Ok(Some(Ok(Some(Answer::Rejected(private))))) => {
                    let why = "the peer's program rejects it";
                    return self.no_connection(name, REJECTED, &private, why);
                }
                Ok(Some(Err(error))) => return self.wrong_reply(name, &error),
                Err(error) => return self.closed_without_reply(name, &error),
            }
        }
    }

    /// The reply is invalid, or does not fit the request.
    fn wrong_reply(&mut self, name: u32, error: &Error) {
        if self.asks_again(name) {
            return;
        }
        if let Some(End::Asking { socket, initiator, .. }) = self.mail.tcp.ends.get_mut(&name)
            && let Some(last) = initiator.poll_transmit()
        {
            let _ = sockets::send(socket, &last);
            self.show_asking(name, LEAVES, &last);
        }
        self.no_connection(name, (event::CONNECT_ERROR, Errno::EINVAL), &[], &error.to_string());
    }

    /// The peer has closed the connection, or has reset it.
    fn closed_without_reply(&mut self, name: u32, error: &io::Error) {
        if !self.asks_again(name) {
            self.no_connection(name, REJECTED, &[], &format!("the peer ends the connection without a reply: {error}"));
        }
    }

    /// Connects again in revision 1 of MPA, if the peer may not know revision 2.
    fn asks_again(&mut self, name: u32) -> bool {
        let Some(id) = self.ids.get(name) else { return false };
        let (Some(Sockaddr::Ip(mut from)), Some(Sockaddr::Ip(to))) = (id.local, id.remote) else { return false };
        let until = self.mail.tcp.deadlines.of(Key::Id(name)).unwrap_or_default();
        let Some(End::Asking { initiator, .. }) = self.mail.tcp.ends.get(&name) else { return false };
        let Some(initiator) = initiator.in_revision_1(as_duration(until)) else { return false };
        let Some(End::Asking { asker, .. }) = self.mail.tcp.ends.remove(&name) else { return false };
        self.mail.tcp.deadlines.forget(Key::Id(name));
        from.set_port(0);
        let Ok(socket) = sockets::begin(from, to) else { return false };
        if let (Ok(source), Some(id)) = (socket.local_addr(), self.ids.get_mut(name)) {
            id.local = Some(Sockaddr::Ip(source));
        }
        self.request(name, socket, initiator, (until, true), asker).is_ok()
    }

    /// The peer accepts.
    fn agreed(&mut self, name: u32, agreement: &Agreement, private: &[u8]) {
        let Some(End::Asking { socket, .. }) = self.mail.tcp.ends.remove(&name) else { return };
        let Some(id) = self.ids.get(name) else { return };
        let (uid, qpn) = (id.uid, id.qpn);
        let param = ConnParam {
            private_data: padded(private),
            private_data_len: private.len().min(usize::from(u8::MAX)) as u8,
            responder_resources: agreement.ird.min(u16::from(u8::MAX)) as u8,
            initiator_depth: agreement.ord.min(u16::from(u8::MAX)) as u8,
            ..ConnParam::default()
        };
        self.offer(name, qpn, socket, agreement);
        let answer = EventAnswer {
            uid,
            id: name,
            event: event::CONNECT_RESPONSE,
            param: UdParam::from_conn(&param),
            ..EventAnswer::default()
        };
        self.queue(name, Event { answer, id: name, member: None, request: None, sentence: String::new() });
    }

    /// TCP does not connect, or the connection broke.
    fn not_connected(&mut self, name: u32, error: &io::Error) {
        if let Some(End::Asking { again: true, .. }) = self.mail.tcp.ends.get(&name) {
            // The first try reached the peer, which closed it. The program is told this.
            return self.closed_without_reply(name, error);
        }
        let errno = error.raw_os_error().map_or(Errno::ECONNRESET, Errno);
        // As in Linux's rdma_cm (cma_iw_handler).
        let kind = match errno {
            Errno::ECONNREFUSED | Errno::ECONNRESET => event::REJECTED,
            Errno::ETIMEDOUT => event::UNREACHABLE,
            _ => event::CONNECT_ERROR,
        };
        self.no_connection(name, (kind, errno), &[], &format!("TCP: {error}"));
    }

    /// The peer has not replied in time.
    pub(super) fn no_reply(&mut self, name: u32) {
        let failure = (event::UNREACHABLE, Errno::ETIMEDOUT);
        self.no_connection(name, failure, &[], "the peer does not answer");
    }

    fn no_connection(&mut self, name: u32, (kind, errno): Failure, private: &[u8], why: &str) {
        self.close_end(name);
        let Some(id) = self.ids.get_mut(name) else { return };
        id.stage = Stage::Over;
        let peer = id.remote.map_or_else(String::new, |remote| remote.to_string());
        let param = ConnParam {
            private_data: padded(private),
            private_data_len: private.len().min(usize::from(u8::MAX)) as u8,
            ..ConnParam::default()
        };
        let text = format!("no iWARP connection to {peer}: {why}");
        self.tell(name, kind, errno.to_status(), UdParam::from_conn(&param), text);
    }
}
