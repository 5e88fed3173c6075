//! The passive side until the program decides: LISTEN, new connections, their requests. Adds to
//! [`Manager`].

use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpStream};

use abi::Errno;
use abi::qp::kind;
use abi::ucma::connection::{ConnParam, EventAnswer, UdParam, event};
use abi::ucma::sockaddr::Sockaddr;
use iwarp::Responder;
use iwarp::negotiation::Asked;
use rustix::event::epoll::{self, EventFlags};

use super::halves::Half;
use super::shown::{ARRIVED, LEAVES};
use super::sockets;
use super::{End, Key, REQUEST_TIME, Tcp, as_duration};
use crate::cm::Manager;
use crate::cm::channel::Event;
use crate::cm::id::{Id, Stage};
use crate::cm::incoming::padded;
use crate::cm::resolving::path_between;
use crate::gids::gid_of;
use crate::refusal::{Outcome, refuse};

/// Connections that are accepted in one piece of work.
const ACCEPTED: usize = 16;

impl Manager {
    /// Takes the TCP port that the agent has chosen for an id at every iWARP device with its
    /// address, until the id listens or ends. Returns false if another socket of the host has it.
    pub(in crate::cm) fn hold_tcp_port(&mut self, name: u32, local: SocketAddr) -> bool {
        let Some(id) = self.ids.get(name).filter(|id| id.kind == kind::RC) else { return true };
        let v6_only = id.options.af_only == Some(true);
        let mut held = Vec::new();
        for at in self.locals.listening_addresses(local) {
            match sockets::hold(at, v6_only) {
                Ok(socket) => held.push(socket),
                Err(error) if error.kind() == ErrorKind::AddrInUse => return false,
                // LISTEN says what is wrong.
                Err(_) => {}
            }
        }
        if !held.is_empty() {
            self.mail.tcp.ends.insert(name, End::Bound(held));
        }
        true
    }

    /// Listens on the TCP port of an id, on every iWARP device that has its address. The kernel keeps
    /// about `backlog` connections until the agent takes them, as for siw.
    pub(in crate::cm) fn listen_by_tcp(&mut self, name: u32, backlog: u32) -> Outcome<()> {
        let Some(id) = self.ids.get(name) else { return refuse(Errno::ENOENT, "the id is gone") };
        let (Some(Sockaddr::Ip(local)), kind::RC) = (id.local, id.kind) else { return Ok(()) };
        let v6_only = id.options.af_only == Some(true);
        // What holds the port makes room for the listeners.
        self.close_end(name);
        let mut listeners = Vec::new();
        for at in self.locals.listening_addresses(local) {
            match sockets::listen(at, v6_only, backlog) {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    let errno = error.raw_os_error().map_or(Errno::EADDRINUSE, Errno);
                    return refuse(errno, format!("id {name:#x} cannot listen on TCP {at}: {error}"));
                }
            }
        }
        if listeners.is_empty() {
            return Ok(());
        }
        for listener in &listeners {
            self.mail.tcp.watch(listener, Key::Id(name), EventFlags::IN).map_err(crate::refusal::by_system)?;
        }
        self.mail.tcp.ends.insert(name, End::Listening(listeners));
        Ok(())
    }

    /// Takes new connections of a listener.
    pub(super) fn take_connections(&mut self, name: u32) {
        let deadline = self.now().after(REQUEST_TIME);
        let Tcp { ends, spare, .. } = &mut self.mail.tcp;
        let Some(End::Listening(listeners)) = ends.get(&name) else { return };
        let mut sockets = Vec::new();
        for listener in listeners {
            let next = || spare.accept(|| sockets::accept(listener), drop);
            sockets.extend(std::iter::from_fn(next).take(ACCEPTED));
        }
        for socket in sockets {
            let at = socket.local_addr().ok().and_then(|at| self.locals.on_iwarp(at.ip().to_canonical()));
            let Some(start_up) = at.and_then(|at| at.iwarp) else { continue };
            let responder = Box::new(Responder::new(start_up.terms(0, 0), as_duration(deadline)));
            self.mail.tcp.add_half(Half::Starting { socket, responder, listener: name }, deadline);
        }
    }

    /// A connection without an id has bytes, or has ended.
    pub(super) fn on_half_socket(&mut self, number: u32) {
        let asked = match self.mail.tcp.halves.get_mut(number) {
            Some(Half::Starting { socket, responder, .. }) => {
                let mut arrived = Vec::new();
                let result = sockets::feed(socket, |bytes| {
                    arrived.extend_from_slice(bytes);
                    (bytes.len(), responder.receive(bytes))
                });
                let last = responder.poll_transmit();
                self.show_starting(number, ARRIVED, &arrived);
                match result {
                    Ok(None | Some(Ok(None))) => return,
                    Ok(Some(Ok(Some(asked)))) => Some(asked),
                    Ok(Some(Err(error))) => {
                        tracing::debug!(%error, "a connection of iWARP is closed");
                        if let (Some(half), Some(last)) = (self.mail.tcp.halves.get(number), last) {
                            let _ = sockets::send(half.socket(), &last);
                            self.show_starting(number, LEAVES, &last);
                        }
                        None
                    }
                    Err(_) => None,
                }
            }
            Some(Half::Leaving(socket)) => match sockets::feed(socket, |bytes| (0, bytes.len())) {
                Ok(None) => return,
                _ => None,
            },
            None => return,
        };
        if let (Some(Half::Starting { socket, responder, listener }), Some(asked)) =
            (self.mail.tcp.remove_half(number), asked)
        {
            self.introduce_by_tcp(listener, socket, responder, &asked);
        }
    }

    fn show_starting(&self, number: u32, path: u32, bytes: &[u8]) {
        if let Some(Half::Starting { socket, listener, .. }) = self.mail.tcp.halves.get(number)
            && !bytes.is_empty()
        {
            self.show_frame(*listener, socket, path, bytes);
        }
    }

    /// Makes a request an id of the listener's channel, and tells the listener.
    fn introduce_by_tcp(&mut self, listener: u32, socket: TcpStream, mut responder: Box<Responder>, asked: &Asked) {
        let (Ok(local), Ok(remote)) = (socket.local_addr(), socket.peer_addr()) else { return };
        let Some(id) = self.request_of(listener, local, remote) else {
            return self.send_away(listener, socket, &mut responder, &[]);
        };
        let Some(name) = self.add(id) else { return self.send_away(listener, socket, &mut responder, &[]) };
        let Some(uid) = self.ids.get_mut(listener).map(|listener| {
            listener.backlog -= 1;
            listener.uid
        }) else {
            return;
        };
        if self.mail.tcp.watch(&socket, Key::Id(name), EventFlags::IN | EventFlags::RDHUP).is_err() {
            self.end(name);
            return;
        }
        self.mail.tcp.ends.insert(name, End::Asked { socket, responder });
        let param = ConnParam {
            private_data: padded(&asked.private),
            private_data_len: asked.private.len().min(usize::from(u8::MAX)) as u8,
            responder_resources: asked.ord.min(u16::from(u8::MAX)) as u8,
            initiator_depth: asked.ird.min(u16::from(u8::MAX)) as u8,
            ..ConnParam::default()
        };
        let param = UdParam::from_conn(&param);
        let answer = EventAnswer { uid, id: name, event: event::CONNECT_REQUEST, param, ..EventAnswer::default() };
        let event = Event { answer, id: listener, member: None, request: Some(name), sentence: String::new() };
        self.queue(listener, event);
    }

    /// The id of a request, if the listener takes one more.
    fn request_of(&mut self, listener: u32, local: SocketAddr, remote: SocketAddr) -> Option<Id> {
        let attachment = self.locals.on_iwarp(local.ip().to_canonical())?;
        let of = self.ids.get(listener).filter(|id| id.stage == Stage::Listening && id.backlog > 0)?;
        if !self.channels.get_mut(&of.channel)?.channel.has_room() {
            return None;
        }
        let mut id = Id::new(of.channel, 0, of.space, of.kind);
        (id.known, id.stage, id.options) = (false, Stage::Connecting, of.options);
        let target = gid_of(remote.ip().to_canonical());
        id.path = Some(path_between(&attachment, target, false, id.options.tos, None));
        (id.local, id.remote) = (Some(Sockaddr::Ip(plain(local))), Some(Sockaddr::Ip(plain(remote))));
        (id.attachment, id.target) = (Some(attachment), Some(target));
        Some(id)
    }

    /// Rejects a request, and gives the peer time to read why. `name` is its id, or the listener.
    pub(super) fn send_away(&mut self, name: u32, socket: TcpStream, responder: &mut Responder, private: &[u8]) {
        let Ok((reply, linger)) = responder.reject(private) else { return };
        let _ = epoll::delete(&self.mail.tcp.epoll, &socket);
        if sockets::send(&socket, &reply).is_err() {
            return;
        }
        self.show_frame(name, &socket, LEAVES, &reply);
        let mut time = super::LINGER;
        if linger.is_zero() {
            if socket.shutdown(Shutdown::Write).is_err() {
                return;
            }
            self.show_end(name, &socket);
        } else {
            // The peer closes first, or the time ends.
            time = u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX);
        }
        let deadline = self.now().after(time);
        self.mail.tcp.add_half(Half::Leaving(socket), deadline);
    }
}

/// An address without the mapped form of IPv4.
fn plain(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, at.port()),
        _ => at,
    }
}
