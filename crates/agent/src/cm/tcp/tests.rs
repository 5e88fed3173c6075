//! The manager of an iWARP device against peers with plain sockets, on loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use abi::Errno;
use abi::layout::Record;
use abi::ucma::address::{Query, QueryAddrAnswer, QueryPathAnswer, QueryRouteAnswer, query};
use abi::ucma::connection::{Accept, ConnParam, Connect, EventAnswer, Listen, Reject, event};
use abi::ucma::id::{CreateId, CreateIdAnswer};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{command, port_space};
use iwarp::negotiation::{Answer, Asked};
use iwarp::{Initiator, Responder, Terms};
use protocol::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::tcp_nodelay;

use super::super::ports::Ports;
use super::super::tests::Host;
use super::Key;
use crate::config::{Config, DeviceConfig, Transport, WireMode};
use crate::foreign::Foreign;
use crate::rnic::{StartUp, WorkArounds};
use crate::streams::{Leaving, LeftStream, StreamNews};
use crate::testing::program_with_qp;

/// The time of the peers' state machines, which never expire.
const NEVER: Duration = Duration::MAX;
const USER: u32 = 1000;

fn host() -> Host {
    host_that_starts(StartUp::default())
}

fn host_that_starts(iwarp: StartUp) -> Host {
    let devices = vec![DeviceConfig { transport: Transport::Iwarp, iwarp, ..DeviceConfig::default() }];
    let mut host = Host::of(&Config { wire: WireMode::Off, devices, ..Config::default() }, &["127.0.0.1"]);
    let (context, handle) = program_with_qp(&mut host.world, 7);
    host.qpn = host.world.tables.qps.find(context, handle).expect("it exists").qpn;
    host
}

impl Host {
    /// Serves the sockets until an event waits.
    fn tcp_event(&mut self) -> EventAnswer {
        while self.waiting() == 0 {
            self.serve_sockets();
        }
        self.event()
    }

    /// Waits for sockets, and serves them.
    fn serve_sockets(&mut self) {
        let sockets = self.manager.sockets();
        poll(&mut [PollFd::from_borrowed_fd(sockets, PollFlags::IN)], None).expect("ready");
        self.manager.on_sockets(&self.world);
    }

    /// An id that listens on a free port of loopback, and the address.
    fn tcp_listener(&mut self) -> (u32, SocketAddr) {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let id = self.tcp_id();
        self.listen_at(id, Sockaddr::Ip(free));
        (id, free)
    }

    fn tcp_id(&mut self) -> u32 {
        let body = CreateId { uid: 5, ps: port_space::TCP, ..CreateId::default() };
        CreateIdAnswer::read(&self.call(command::CREATE_ID, &body, 4)).expect("whole").id
    }

    /// An id that calls a peer.
    fn calls(&mut self, to: &TcpListener) -> u32 {
        let port = to.local_addr().expect("bound").port();
        let id = self.routed("127.0.0.1", port);
        self.call(command::CONNECT, &Connect { conn_param: self.param(b"hello"), id, ..Connect::default() }, 0);
        id
    }

    fn param(&self, private: &[u8]) -> ConnParam {
        let mut private_data = [0; 256];
        private_data[..private.len()].copy_from_slice(private);
        ConnParam {
            private_data,
            private_data_len: private.len() as u8,
            qp_num: self.qpn,
            responder_resources: 4,
            initiator_depth: 3,
            valid: 1,
            ..ConnParam::default()
        }
    }
}

/// A peer that has asked for a connection.
fn asks(at: SocketAddr) -> (TcpStream, Initiator) {
    let mut initiator = Initiator::new(Terms::default(), b"please", NEVER).expect("short");
    let mut socket = TcpStream::connect(at).expect("it listens");
    socket.write_all(&initiator.poll_transmit().expect("the request")).expect("sent");
    (socket, initiator)
}

fn reply(socket: &mut TcpStream, initiator: &mut Initiator) -> Answer {
    let mut bytes = [0; 600];
    loop {
        let len = socket.read(&mut bytes).expect("a reply");
        if let (_, Some(answer)) = initiator.receive(&bytes[..len]).expect("a valid reply") {
            return answer;
        }
    }
}

#[test]
fn an_accepted_peer_is_offered_to_the_engine_and_established_when_it_is_taken() {
    let mut host = host();
    let (_, at) = host.tcp_listener();
    let (mut socket, mut initiator) = asks(at);
    let asked = host.tcp_event();
    let shown = asked.param.as_conn();
    assert_eq!((asked.event, &shown.private_data[..6]), (event::CONNECT_REQUEST, &b"please"[..]));
    let accept = Accept { uid: 9, conn_param: host.param(b"yes"), id: asked.id, ..Accept::default() };
    host.call(command::ACCEPT, &accept, 0);
    let Answer::Accepted(agreement, private) = reply(&mut socket, &mut initiator) else { panic!("not accepted") };
    assert_eq!((agreement.ord, &private[..]), (16, &b"yes"[..]));
    assert_eq!(host.waiting(), 0, "the engine has not taken it");
    let (offer, _) = host.world.wire.streams().take(host.qpn).expect("there is room").expect("it waits");
    assert_eq!((offer.agreed.ird, offer.agreed.ord), (16, 3));
    assert!(tcp_nodelay(&offer.socket).expect("an option"), "no message waits for others");
    host.manager.follow_streams(&host.world);
    assert_eq!((host.event().event, host.waiting()), (event::ESTABLISHED, 0));
    host.world.wire.streams().note_end(host.qpn);
    host.manager.follow_streams(&host.world);
    assert_eq!(host.event().event, event::DISCONNECTED);
    assert_eq!(host.world.wire.streams().take_news(), Vec::<StreamNews>::new());
}

/// A connection that an engine has taken: the peer's socket, and the engine's.
fn taken(host: &mut Host) -> (TcpStream, TcpStream) {
    let (_, at) = host.tcp_listener();
    let (mut peer, mut initiator) = asks(at);
    let asked = host.tcp_event();
    host.call(command::ACCEPT, &Accept { conn_param: host.param(b""), id: asked.id, ..Accept::default() }, 0);
    assert!(matches!(reply(&mut peer, &mut initiator), Answer::Accepted(..)));
    let (offer, second) = host.world.wire.streams().take(host.qpn).expect("there is room").expect("it waits");
    host.world.wire.streams().keep(host.qpn, USER, Foreign::ours(second));
    (peer, offer.socket.into())
}

/// The kernel resets a connection whose peer sends after it was closed.
#[test]
fn a_peer_that_still_sends_gets_everything_that_was_sent_to_it() {
    for how in [Leaving::ByEngine, Leaving::ByProcess] {
        let mut host = host();
        let (mut peer, mut engine) = taken(&mut host);
        engine.set_nonblocking(true).expect("changed");
        let mut sent = 0;
        while let Ok(len) = engine.write(&[1; 65536]) {
            sent += len;
        }
        if how == Leaving::ByEngine {
            engine.shutdown(Shutdown::Write).expect("open");
        }
        assert!(host.world.wire.streams().leave(host.qpn, USER, how));
        drop(engine);
        host.manager.follow_streams(&host.world);
        assert_eq!(host.manager.mail.tcp.closings(), 1);
        for _ in 0..3 {
            peer.write_all(b"more").expect("open");
            host.serve_sockets();
        }
        let mut got = Vec::new();
        assert_eq!(peer.read_to_end(&mut got).expect("no reset"), sent);
        drop(peer);
        let limit = Instant::now() + Duration::from_secs(30);
        while host.manager.mail.tcp.closings() > 0 {
            assert!(Instant::now() < limit, "the connection is not closed");
            host.serve_sockets();
        }
    }
}

#[test]
fn a_connection_that_the_engine_could_not_take_is_reset() {
    let mut host = host();
    let (mut peer, _engine) = taken(&mut host);
    assert!(host.world.wire.streams().leave(host.qpn, USER, Leaving::NotTaken));
    host.manager.follow_streams(&host.world);
    assert_eq!(host.manager.mail.tcp.closings(), 0);
    assert_eq!(peer.read(&mut [0]).expect_err("an error").kind(), ErrorKind::ConnectionReset);
}

#[test]
fn connections_that_one_user_has_left_do_not_displace_those_of_others() {
    let mut host = host();
    let mut pairs: Vec<_> = std::iter::repeat_with(|| UnixStream::pair().expect("a pair")).take(200).collect();
    let mut left = |host: &mut Host, uid| {
        let (socket, peer) = pairs.pop().expect("enough");
        let socket = Foreign::ours(socket.into());
        host.manager.mail.tcp.close_left(LeftStream { socket, uid, how: Leaving::ByEngine }, Time(0));
        peer.set_nonblocking(true).expect("changed");
        peer
    };
    let mut other = left(&mut host, USER);
    let mut all: Vec<_> = (0..150).map(|_| left(&mut host, USER + 1)).collect();
    let is_open = |peer: &mut UnixStream| peer.read(&mut [0]).is_err();
    assert!(is_open(&mut other));
    assert_eq!(all.iter_mut().map(is_open).collect::<Vec<_>>(), (0..150).map(|at| at >= 22).collect::<Vec<_>>());
}

#[test]
fn a_peer_that_never_closes_is_left_at_its_deadline() {
    let mut host = host();
    let (mut peer, engine) = taken(&mut host);
    let leave = || host.world.wire.streams().leave(host.qpn, USER, Leaving::ByProcess);
    assert!(leave() && !leave());
    drop(engine);
    host.manager.follow_streams(&host.world);
    assert_eq!((peer.read(&mut [0; 9]).expect("the end"), host.manager.mail.tcp.closings()), (0, 1));
    host.manager.outside.pass(Duration::from_secs(11));
    host.manager.on_time(&host.world);
    assert_eq!(host.manager.mail.tcp.closings(), 0);
}

#[test]
fn a_request_of_revision_1_shows_depths_that_a_program_can_take_over() {
    let mut host = host();
    let (_, at) = host.tcp_listener();
    let mut socket = TcpStream::connect(at).expect("it listens");
    socket.write_all(b"MPA ID Req Frame\x40\x01\0\0").expect("sent");
    let asked = host.tcp_event().param.as_conn();
    assert_eq!((asked.responder_resources, asked.initiator_depth), (16, 16));
}

#[test]
fn a_rejected_peer_gets_the_private_data() {
    let mut host = host();
    let (_, at) = host.tcp_listener();
    let (mut socket, mut initiator) = asks(at);
    let asked = host.tcp_event();
    let mut reject = Reject { id: asked.id, private_data_len: 2, ..Reject::default() };
    reject.private_data[..2].copy_from_slice(b"no");
    host.call(command::REJECT, &reject, 0);
    assert_eq!(reply(&mut socket, &mut initiator), Answer::Rejected(b"no".to_vec()));
    assert_eq!(host.refused(command::ACCEPT, &Accept { id: asked.id, ..Accept::default() }), abi::Errno::EINVAL);
}

/// siw loses the private data of a rejection if the end comes just behind it.
#[test]
fn a_rejected_siw_has_time_to_close_first() {
    for siw in [false, true] {
        let mut host = host_that_starts(StartUp { siw: WorkArounds::all(siw), ..StartUp::default() });
        let (_, at) = host.tcp_listener();
        let (mut socket, mut initiator) = asks(at);
        let asked = host.tcp_event();
        host.call(command::REJECT, &Reject { id: asked.id, ..Reject::default() }, 0);
        assert_eq!(reply(&mut socket, &mut initiator), Answer::Rejected(Vec::new()));
        if siw {
            socket.set_nonblocking(true).expect("changed");
            assert_eq!(socket.read(&mut [0; 9]).expect_err("open").kind(), ErrorKind::WouldBlock);
            socket.set_nonblocking(false).expect("changed");
            host.manager.outside.pass(Duration::from_secs(2));
            host.manager.on_time(&host.world);
        }
        assert_eq!(socket.read(&mut [0; 9]).expect("the end"), 0);
    }
}

#[test]
fn a_peer_that_breaks_the_rules_is_closed_without_an_event() {
    let mut host = host();
    let (_, at) = host.tcp_listener();
    let mut socket = TcpStream::connect(at).expect("it listens");
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n\r\n").expect("sent");
    host.serve_sockets();
    while host.manager.mail.tcp.halves.len() > 0 {
        host.serve_sockets();
    }
    let ended =
        socket.read(&mut [0; 9]).map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |len| len == 0);
    assert!(ended, "it is still open");
    assert_eq!(host.waiting(), 0);
}

#[test]
fn a_silent_peer_is_closed_at_its_deadline() {
    let mut host = host();
    let (_, at) = host.tcp_listener();
    let mut socket = TcpStream::connect(at).expect("it listens");
    host.serve_sockets();
    assert_eq!(host.manager.mail.tcp.halves.len(), 1);
    host.manager.outside.pass(Duration::from_secs(6));
    host.manager.on_time(&host.world);
    assert!(host.manager.mail.tcp.halves.len() == 0);
    assert_eq!(socket.read(&mut [0; 9]).expect("the end"), 0);
}

#[test]
fn a_reply_brings_the_connection_to_the_engine() {
    let mut host = host();
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let id = host.calls(&peer);
    let (mut socket, _) = peer.accept().expect("it calls");
    host.serve_sockets();
    let (mut responder, asked) = request(&mut host, &mut socket);
    assert_eq!((asked.ird, asked.ord, &asked.private[..]), (4, 3, &b"hello"[..]));
    let (reply, _) = responder.accept(2, 2, b"welcome").expect("asked");
    // A first FPDU behind the reply stays in the socket.
    socket.write_all(&[&reply[..], b"FPDU"].concat()).expect("sent");
    let answer = host.tcp_event();
    assert_eq!((answer.event, answer.id), (event::CONNECT_RESPONSE, id));
    assert_eq!(&answer.param.as_conn().private_data[..7], b"welcome");
    let (offer, _) = host.world.wire.streams().take(host.qpn).expect("there is room").expect("it waits");
    assert!(tcp_nodelay(&offer.socket).expect("an option"), "no message waits for others");
    let mut socket = TcpStream::from(offer.socket);
    let mut first = [0; 4];
    socket.read_exact(&mut first).expect("the FPDU");
    assert_eq!((&first, offer.agreed.ord), (b"FPDU", 3));
}

/// A reset could discard the Terminate message.
#[test]
fn a_wrong_reply_gets_a_terminate_message_and_then_the_end() {
    // The peer wants 200 READs outstanding, and a ready-to-receive message that was not offered.
    for (fields, code) in [(*b"\x00\x04\x00\xc8", 6), (*b"\xc0\x04\x00\x04", 7)] {
        let mut host = host();
        let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
        let id = host.calls(&peer);
        let (mut socket, _) = peer.accept().expect("it calls");
        host.serve_sockets();
        request(&mut host, &mut socket);
        socket.write_all(&[b"MPA ID Rep Frame\x50\x02\x00\x04", &fields[..]].concat()).expect("sent");
        let answer = host.tcp_event();
        assert_eq!((answer.event, answer.id), (event::CONNECT_ERROR, id));
        socket.set_nonblocking(false).expect("a socket");
        let mut sent = Vec::new();
        socket.read_to_end(&mut sent).expect("the end, and no reset");
        assert_eq!(sent[20..24], [0x20, code, 0, 0], "{sent:02x?}");
    }
}

#[test]
fn a_resolved_id_has_the_gid_of_its_device_and_no_path() {
    let mut host = host();
    let id = host.routed("127.0.0.1", 9);
    let own = host.world.devices.get(0).and_then(|device| device.gid(1, 0).ok()).expect("it has one");
    let room = size_of::<QueryRouteAnswer>();
    let ask = |option| Query { response: 1, id, option };
    let route = QueryRouteAnswer::read(&host.call(command::QUERY_ROUTE, &ask(0), room)).expect("whole");
    assert_eq!((route.num_paths, route.ib_route[0].sgid, route.ib_route[0].dgid), (0, own, [0; 16]));
    let paths = QueryPathAnswer::read(&host.call(command::QUERY, &ask(query::PATH), 80)).expect("whole");
    assert_eq!(paths.num_paths, 0);
    let room = size_of::<QueryAddrAnswer>();
    let gids = QueryAddrAnswer::read(&host.call(command::QUERY, &ask(query::GID), room)).expect("whole");
    assert_eq!((&gids.src_addr[8..24], &gids.dst_addr[8..24]), (&own[..], &[0; 16][..]));
}

/// The request of an id, as a peer with these terms reads it.
fn request(host: &mut Host, socket: &mut TcpStream) -> (Responder, Asked) {
    let mut responder = Responder::new(Terms::default(), NEVER);
    let mut bytes = [0; 600];
    socket.set_nonblocking(true).expect("a socket");
    loop {
        host.manager.on_sockets(&host.world);
        match socket.read(&mut bytes) {
            Ok(len) => {
                if let Some(asked) = responder.receive(&bytes[..len]).expect("a valid request") {
                    return (responder, asked);
                }
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

#[test]
fn a_peer_that_closes_is_asked_again_in_revision_1() {
    let mut host = host();
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let id = host.calls(&peer);
    let (mut socket, _) = peer.accept().expect("it calls");
    assert_eq!(request(&mut host, &mut socket).1.revision, 2);
    drop(socket);
    host.serve_sockets();
    let (mut socket, _) = peer.accept().expect("it calls again");
    let (mut responder, asked) = request(&mut host, &mut socket);
    assert_eq!((asked.revision, &asked.private[..]), (1, &b"hello"[..]));
    let (reply, _) = responder.accept(2, 2, b"welcome").expect("asked");
    socket.write_all(&reply).expect("sent");
    let answer = host.tcp_event();
    assert_eq!((answer.event, answer.id), (event::CONNECT_RESPONSE, id));
    let taken = host.world.wire.streams().take(host.qpn).expect("there is room");
    assert_eq!(taken.expect("it waits").0.agreed.revision, 1);
}

#[test]
fn calls_fail_with_the_event_of_their_cause() {
    let mut host = host();
    let peer = TcpListener::bind("127.0.0.1:0").expect("a port");
    let status = |told: &EventAnswer| (told.event, told.status.cast_signed());
    // The peer closes, in both revisions.
    host.calls(&peer);
    for _ in 0..2 {
        let (mut socket, _) = peer.accept().expect("it calls");
        request(&mut host, &mut socket);
        drop(socket);
        host.serve_sockets();
    }
    assert_eq!(status(&host.tcp_event()), (event::REJECTED, -104));
    // The peer sends something that is no reply frame.
    host.calls(&peer);
    let (mut socket, _) = peer.accept().expect("it calls");
    host.serve_sockets();
    socket.write_all(&[7; 20]).expect("sent");
    assert_eq!(status(&host.tcp_event()), (event::CONNECT_ERROR, -22));
    // The peer says nothing.
    let id = host.calls(&peer);
    host.serve_sockets();
    host.manager.outside.pass(Duration::from_secs(11));
    host.manager.on_time(&host.world);
    assert_eq!(status(&host.tcp_event()), (event::UNREACHABLE, -110));
    assert!(host.manager.mail.tcp.deadlines.of(Key::Id(id)).is_none());
    // Nobody listens.
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = gone.local_addr().expect("bound").port();
    drop(gone);
    let id = host.routed("127.0.0.1", port);
    host.call(command::CONNECT, &Connect { conn_param: host.param(b""), id, ..Connect::default() }, 0);
    assert_eq!(status(&host.tcp_event()), (event::REJECTED, -111));
}

/// What tgtd does: one listener for each family on one port.
#[test]
fn listeners_of_one_family_each_share_a_port() {
    let mut host = host();
    let free = TcpListener::bind("0.0.0.0:0").and_then(|free| free.local_addr()).expect("a free port").port();
    for at in ["0.0.0.0", "::"] {
        let id = host.tcp_id();
        host.manager.ids.get_mut(id).expect("present").options.af_only = Some(true);
        host.listen_at(id, Sockaddr::Ip((at.parse::<IpAddr>().expect(at), free).into()));
    }
}

/// The agent's table of ports does not know what other processes have.
#[test]
fn a_chosen_port_is_free_for_tcp_and_stays_the_ids() {
    let mut host = host();
    let pair = || {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let next = port.checked_add(1)?;
        TcpListener::bind(("127.0.0.1", next)).is_ok().then_some((taken, port, next))
    };
    let (_taken, port, next) = std::iter::repeat_with(pair).flatten().next().expect("two ports in a row");
    host.manager.ports = Ports::new(port..=next, next);
    let id = host.tcp_id();
    let any = Sockaddr::Ip("127.0.0.1:0".parse().expect("an address"));
    host.bind_at(id, any);
    let has = || TcpListener::bind(("127.0.0.1", next)).expect_err("the id has it").kind();
    assert_eq!(has(), ErrorKind::AddrInUse);
    host.call(command::LISTEN, &Listen { id, backlog: 1 }, 0);
    assert_eq!(has(), ErrorKind::AddrInUse);
    TcpStream::connect(("127.0.0.1", next)).expect("it listens");
}

/// The agent does not accept here, so the kernel keeps the connections.
#[test]
fn a_listener_has_the_backlog_of_its_program() {
    let mut host = host();
    for (backlog, connected) in [(1, 2), (3, 4), (0, 6)] {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let id = host.tcp_id();
        host.bind_at(id, Sockaddr::Ip(free));
        host.call(command::LISTEN, &Listen { id, backlog }, 0);
        let calls: Vec<TcpStream> = std::iter::repeat_with(|| begins(free)).take(6).collect();
        let is_connected = |call: &&TcpStream| call.peer_addr().is_ok();
        assert_eq!(calls.iter().filter(is_connected).count(), connected, "backlog {backlog}");
    }
}

/// On loopback, a connection that a listener has room for is there at once.
fn begins(to: SocketAddr) -> TcpStream {
    super::sockets::begin("127.0.0.1:0".parse().expect("an address"), to).expect("a socket")
}

#[test]
fn a_connection_needs_a_queue_pair_of_the_device() {
    let mut host = host();
    let peer = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let id = host.routed("127.0.0.1", peer.local_addr().expect("bound").port());
    for qp_num in [0, host.qpn ^ 1] {
        let conn_param = ConnParam { qp_num, ..host.param(b"") };
        let connect = Connect { conn_param, id, ..Connect::default() };
        assert_eq!(host.refused(command::CONNECT, &connect), Errno::EINVAL);
    }
    let (_, at) = host.tcp_listener();
    let (mut socket, mut initiator) = asks(at);
    let asked = host.tcp_event();
    let wrong = ConnParam { qp_num: 0, ..host.param(b"") };
    let accept = Accept { conn_param: wrong, id: asked.id, ..Accept::default() };
    assert_eq!(host.refused(command::ACCEPT, &accept), Errno::EINVAL);
    // The request still waits.
    let accept = Accept { conn_param: host.param(b""), id: asked.id, ..Accept::default() };
    host.call(command::ACCEPT, &accept, 0);
    assert!(matches!(reply(&mut socket, &mut initiator), Answer::Accepted(..)));
}
