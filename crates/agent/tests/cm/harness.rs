//! An event channel over its socket, with one short method per command.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use abi::Errno;
use abi::envelope::{ReplyEnvelope, RequestEnvelope, request as envelope_flag};
use abi::layout::Record;
use abi::open::{Open, OpenAnswer, flag, profile};
use abi::qp::kind;
use abi::ucma::address::{Bind, Query, QueryAddrAnswer, ResolveAddr, ResolveRoute, query};
use abi::ucma::connection::{
    Accept, ConnParam, Connect, Disconnect, EventAnswer, GetEvent, InitQpAttr, Listen, QpAttr, Reject, UdParam,
};
use abi::ucma::id::{CreateId, CreateIdAnswer, DestroyId, DestroyIdAnswer};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command, port_space};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::RecvFlags;
use shm::socket::Socket;

use crate::common::Answer;

/// Longer than any event takes.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) answer: EventAnswer,
    pub(crate) sentence: String,
}

impl Event {
    pub(crate) fn status(&self) -> i32 {
        self.answer.status.cast_signed()
    }

    pub(crate) fn conn(&self) -> ConnParam {
        self.answer.param.as_conn()
    }

    pub(crate) fn ud(&self) -> UdParam {
        self.answer.param
    }
}

/// An event channel.
pub(crate) struct Channel {
    socket: Socket,
    pub(crate) event_socket: OwnedFd,
    sequence: u32,
}

impl Channel {
    pub(crate) fn open(run_dir: &Path) -> Self {
        Self::open_with(run_dir, 0)
    }

    /// A channel whose event socket brings the events.
    pub(crate) fn told(run_dir: &Path) -> Self {
        Self::open_with(run_dir, flag::TOLD)
    }

    fn open_with(run_dir: &Path, flags: u32) -> Self {
        let socket = Socket::connect(&run_dir.join(abi::ucma::NODE)).expect("connected");
        socket.send(Open { flags, ..Open::new(profile::MAINLINE) }.bytes(), &[]).expect("sent");
        let mut bytes = [0; 16];
        let mut received = socket.recv(&mut bytes).expect("an answer");
        assert_eq!(OpenAnswer::read(&bytes[..received.len]).expect("whole").status, 0);
        assert_eq!(received.fds.len(), 1, "the event socket");
        Self { socket, event_socket: received.fds.remove(0), sequence: 0 }
    }

    pub(crate) fn call<T: Record>(&mut self, command: u32, body: &T, tail: &[u8], room: usize) -> Answer {
        self.raw(&build(command, body, tail, room))
    }

    pub(crate) fn raw(&mut self, request: &[u8]) -> Answer {
        self.sequence += 1;
        let envelope = RequestEnvelope { sequence: self.sequence, flags: 0 };
        self.socket.send(&[envelope.bytes(), request].concat(), &[]).expect("sent");
        let mut bytes = vec![0; 64 * 1024];
        let received = self.socket.recv(&mut bytes).expect("a reply");
        let envelope = ReplyEnvelope::read(&bytes[..received.len]).expect("an envelope");
        assert_eq!(envelope.sequence, self.sequence);
        Answer { status: envelope.status, bytes: bytes[16..received.len].to_vec(), fds: received.fds }
    }

    /// A command without a reply.
    pub(crate) fn quiet(&self, request: &[u8]) {
        let envelope = RequestEnvelope { sequence: 0, flags: envelope_flag::QUIET };
        self.socket.send(&[envelope.bytes(), request].concat(), &[]).expect("sent");
    }

    /// The status of the reply to a request in this envelope.
    pub(crate) fn enveloped(&mut self, envelope: &RequestEnvelope, request: &[u8]) -> i32 {
        self.socket.send(&[envelope.bytes(), request].concat(), &[]).expect("sent");
        let mut bytes = vec![0; 64 * 1024];
        let received = self.socket.recv(&mut bytes).expect("a reply");
        ReplyEnvelope::read(&bytes[..received.len]).expect("an envelope").status
    }

    /// A command that succeeds without an answer.
    pub(crate) fn ok<T: Record>(&mut self, command: u32, body: &T, tail: &[u8]) {
        let answer = self.call(command, body, tail, 0);
        assert_eq!(answer.status, 0, "{}", answer.reason());
    }

    /// A command that is refused.
    #[track_caller]
    pub(crate) fn refused<T: Record>(&mut self, command: u32, body: &T, errno: Errno) -> String {
        let answer = self.call(command, body, &[], 512);
        assert_eq!(answer.status, errno.to_status(), "{}", answer.reason());
        assert!(!answer.reason().is_empty());
        answer.reason()
    }

    pub(crate) fn create(&mut self, uid: u64, ps: u16) -> u32 {
        let body = CreateId { uid, response: 1, ps, qp_type: kind::RC, ..CreateId::default() };
        self.call(command::CREATE_ID, &body, &[], 4).get::<CreateIdAnswer>(0).id
    }

    /// Destroys an id, and reads from the event socket the bytes that it leaves there.
    pub(crate) fn destroy(&mut self, id: u32) -> u32 {
        let body = DestroyId { response: 1, id, reserved: 0 };
        let answer: DestroyIdAnswer = self.call(command::DESTROY_ID, &body, &[], 8).get(0);
        assert_eq!(self.take(answer.event_bytes as usize), answer.event_bytes as usize);
        answer.events_reported
    }

    pub(crate) fn bind(&mut self, id: u32, addr: SocketAddr) {
        self.ok(command::BIND, &bind(id, addr), &[]);
    }

    /// A listening id.
    pub(crate) fn listener(&mut self, uid: u64, ps: u16, addr: SocketAddr, backlog: u32) -> u32 {
        let id = self.create(uid, ps);
        self.bind(id, addr);
        self.ok(command::LISTEN, &Listen { id, backlog }, &[]);
        id
    }

    pub(crate) fn addresses(&mut self, id: u32) -> (Option<Sockaddr>, Option<Sockaddr>, QueryAddrAnswer) {
        self.ask_addresses(id, query::ADDR)
    }

    pub(crate) fn ask_addresses(
        &mut self,
        id: u32,
        option: u32,
    ) -> (Option<Sockaddr>, Option<Sockaddr>, QueryAddrAnswer) {
        let room = size_of::<QueryAddrAnswer>();
        let answer: QueryAddrAnswer = self.call(command::QUERY, &Query { response: 1, id, option }, &[], room).get(0);
        let parse = |bytes: &[u8; 128], size: u16| Sockaddr::parse(&bytes[..usize::from(size)]).expect("an address");
        (parse(&answer.src_addr, answer.src_size), parse(&answer.dst_addr, answer.dst_size), answer)
    }

    /// The port that an id is bound to.
    pub(crate) fn port(&mut self, id: u32) -> u16 {
        match self.addresses(id).0 {
            Some(Sockaddr::Ip(addr)) => addr.port(),
            other => panic!("bound to {other:?}"),
        }
    }

    /// An id whose address and route are resolved.
    pub(crate) fn routed(&mut self, uid: u64, ps: u16, to: SocketAddr) -> u32 {
        let id = self.create(uid, ps);
        self.ok(command::RESOLVE_ADDR, &resolve(id, to), &[]);
        self.expect(id, abi::ucma::connection::event::ADDR_RESOLVED);
        self.ok(command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1000 }, &[]);
        self.expect(id, abi::ucma::connection::event::ROUTE_RESOLVED);
        id
    }

    pub(crate) fn connect(&mut self, id: u32, param: ConnParam) {
        self.ok(command::CONNECT, &Connect { conn_param: param, id, ..Connect::default() }, &[]);
    }

    pub(crate) fn accept(&mut self, uid: u64, id: u32, param: ConnParam) {
        self.ok(command::ACCEPT, &Accept { uid, conn_param: param, id, ..Accept::default() }, &[]);
    }

    /// Uses a connection that the peer has accepted.
    pub(crate) fn use_it(&mut self, id: u32) {
        self.ok(command::ACCEPT, &Accept { id, ..Accept::default() }, &[]);
    }

    pub(crate) fn reject(&mut self, id: u32, private: &[u8]) {
        let private_data_len = private.len() as u8;
        self.ok(
            command::REJECT,
            &Reject { id, private_data_len, private_data: padded(private), ..Reject::default() },
            &[],
        );
    }

    pub(crate) fn disconnect(&mut self, id: u32) {
        self.ok(command::DISCONNECT, &Disconnect { id }, &[]);
    }

    pub(crate) fn qp_attr(&mut self, id: u32, qp_state: u8) -> QpAttr {
        let body = InitQpAttr { response: 1, id, qp_state: u32::from(qp_state) };
        self.call(command::INIT_QP_ATTR, &body, &[], 144).get(0)
    }

    /// Reads bytes from the event socket. Returns how many of `count` there were.
    pub(crate) fn take(&self, count: usize) -> usize {
        if count == 0 {
            return 0;
        }
        let mut bytes = vec![0; count];
        rustix::net::recv(&self.event_socket, &mut bytes[..], RecvFlags::DONTWAIT).map_or(0, |(_, len)| len)
    }

    /// Whether an event waits.
    pub(crate) fn is_readable(&self) -> bool {
        self.waits(&Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    fn waits(&self, timeout: &Timespec) -> bool {
        let mut poll = [PollFd::new(&self.event_socket, PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(timeout)).expect("polled") == 1
    }

    /// Waits for an event.
    #[track_caller]
    pub(crate) fn wait(&self) {
        assert!(self.waits(&PATIENCE), "no event comes");
    }

    /// The next event.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Event {
        self.wait();
        let room = size_of::<EventAnswer>() + 512;
        let answer = self.call(command::GET_EVENT, &GetEvent { response: 1 }, &[], room);
        let event = answer.get(0);
        assert_eq!(self.take(1), 1);
        Event { answer: event, sentence: String::from_utf8_lossy(&answer.bytes[size_of::<EventAnswer>()..]).into() }
    }

    /// The next event, which must be of this kind.
    #[track_caller]
    pub(crate) fn expect(&mut self, id: u32, kind: u32) -> Event {
        let event = self.event();
        let name = abi::ucma::connection::event::name(event.answer.event);
        assert_eq!((event.answer.id, event.answer.event), (id, kind), "{name:?}: {}", event.sentence);
        event
    }

    /// The next event, which must be a request. Returns the id of the request.
    #[track_caller]
    pub(crate) fn request(&mut self, uid: u64) -> (u32, Event) {
        let event = self.event();
        assert_eq!(event.answer.event, abi::ucma::connection::event::CONNECT_REQUEST, "{}", event.sentence);
        assert_eq!(event.answer.uid, uid, "the listener's name");
        (event.answer.id, event)
    }
}

/// The parameters of a connection.
pub(crate) fn param(qp_num: u32, private: &[u8]) -> ConnParam {
    ConnParam {
        qp_num,
        private_data: padded(private),
        private_data_len: private.len() as u8,
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 6,
        valid: 1,
        ..ConnParam::default()
    }
}

pub(crate) fn padded(bytes: &[u8]) -> [u8; 256] {
    let mut room = [0; 256];
    room[..bytes.len()].copy_from_slice(bytes);
    room
}

pub(crate) fn bind(id: u32, addr: SocketAddr) -> Bind {
    let (addr, addr_size) = Sockaddr::Ip(addr).emit();
    Bind { id, addr_size, reserved: 0, addr }
}

pub(crate) fn resolve(id: u32, to: SocketAddr) -> ResolveAddr {
    let (dst_addr, dst_size) = Sockaddr::Ip(to).emit();
    ResolveAddr { id, timeout_ms: 2000, dst_size, dst_addr, ..ResolveAddr::default() }
}

/// An address of this host.
pub(crate) fn here(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

pub(crate) const TCP: u16 = port_space::TCP;
pub(crate) const UDP: u16 = port_space::UDP;
