//! Tests of the server without its thread: the test runs each turn, so it can count the events
//! between two pieces of work.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use abi::command::{legacy, number};
use abi::device::GetContext;
use abi::open::{Open, OpenAnswer, profile};
use abi::queue::context_page;
use abi::umad::{self, FileRequest};
use abi::{layout::Record, netlink};
use rustix::event::epoll::Event;
use shm::notifier::Notifier;
use tracing::span::{Attributes, Id, Record as Values};
use tracing::{Metadata, Subscriber};

use super::admin_connections::AdminNode;
use super::*;
use crate::config::{LinkLayer, WireMode};
use crate::dispatch::dispatch;
use crate::faults::Scope;
use crate::foreign::Foreign;
use crate::headroom::tests::WITHHELD;
use crate::ids::Peer;

const HOSTILE: u32 = 77;
const OTHER: u32 = 78;

/// A server without clients and without network sockets.
fn server() -> Server {
    server_with(LinkLayer::Ethernet)
}

/// The same, with ports of this link layer.
fn server_with(link_layer: LinkLayer) -> Server {
    let config = Config { wire: WireMode::External, ..Config::default() }.with_link_layer(link_layer);
    let world = World::new(&config, "a test").expect("a world");
    let (sender, messages) = channel();
    let inbox = Inbox::new(sender, Notifier::new().expect("an eventfd"));
    shm::register_barrier();
    Server::new(&config, world, None, messages, inbox).expect("a server")
}

/// A client of a user, and the program's end of its connection.
fn client(server: &mut Server, uid: u32) -> (u32, Socket) {
    let (theirs, ours) = Socket::pair().expect("a pair");
    let client = Client::new(ours, Node::Device(0), &mut server.world.closers).expect("a client").of_user(uid);
    let id = server.next_connection();
    server.poller.watch(client.socket(), Token::Client(id), EventFlags::IN).expect("watched");
    server.registry.users.entry(uid).or_default().clients += 1;
    server.clients.insert(id, client);
    (id, theirs)
}

/// A connection to the admin node or to the NETLINK_RDMA node.
fn admin(server: &mut Server, node: AdminNode) -> (u32, Socket) {
    let (theirs, ours) = Socket::pair().expect("a pair");
    server.take_admin(ours, node);
    (server.registry.last, theirs)
}

/// The number of the hostile user's connections that the server reads.
fn read_from(server: &mut Server) -> usize {
    let clients = server.clients.values_mut().filter(|client| client.uid() == HOSTILE);
    let clients = clients.filter_map(|client| *client.watched().1);
    let admins = server.admins.values_mut().filter(|admin| admin.uid == HOSTILE);
    let admins = admins.filter_map(|admin| *admin.watched().1);
    clients.chain(admins).filter(|interest| *interest == EventFlags::IN).count()
}

/// Makes connections of the hostile user that the server does not read: `clients` of a device, and
/// `admins` others.
fn held_up(server: &mut Server, clients: usize, admins: usize) -> Vec<Socket> {
    // With these closers, a user with one descriptor that waits to be closed already has too many.
    let closers = std::mem::replace(&mut server.world.closers, Closers::threads(|_| {}, 0));
    let mut theirs = Vec::new();
    for number in 0..clients + admins {
        let (id, socket) = if number < clients {
            let (id, socket) = client(server, HOSTILE);
            server.serve(id);
            (id, socket)
        } else {
            let (id, socket) = admin(server, AdminNode::Admin);
            assert!(server.serve_admin(id));
            (id, socket)
        };
        if let Some(admin) = server.admins.get_mut(&id) {
            admin.uid = HOSTILE;
        }
        theirs.push(socket);
    }
    server.world.closers = closers;
    assert_eq!(read_from(server), 0);
    theirs
}

/// Whether a client's first message has been answered.
fn is_answered(socket: &Socket) -> bool {
    let mut bytes = [0; 64];
    socket.try_recv(&mut bytes).is_ok_and(|got| OpenAnswer::read(&bytes[..got.len]).is_some_and(|it| it.status == 0))
}

/// 256 connections are one piece of work. Another user that sends a command meanwhile is served
/// after the first piece.
#[test]
fn another_user_is_served_between_pieces_of_connections_that_are_read_again() {
    raise_descriptor_limit();
    for (clients, admins) in [(300, 0), (0, 300), (100, 200)] {
        let mut server = server();
        let _held = held_up(&mut server, clients, admins);
        let (_, other) = client(&mut server, OTHER);
        other.send(Open::new(profile::MAINLINE).bytes(), &[]).expect("sent");
        server.inbox.send(Message::Room(HOSTILE));
        let (mut events, mut seen) = (Vec::<Event>::with_capacity(256), Vec::new());
        for _ in 0..20 {
            let before = read_from(&mut server);
            // So that no turn blocks.
            server.inbox.wake_again();
            assert!(server.turn(&mut events));
            match read_from(&mut server) - before {
                0 if is_answered(&other) => seen.push("the other user"),
                0 => {}
                256 => seen.push("256"),
                44 => seen.push("the rest"),
                more => panic!("{more} connections in one turn"),
            }
        }
        assert_eq!(seen, ["256", "the other user", "the rest"], "{clients} clients, {admins} admins");
    }
}

/// Two NETLINK_RDMA requests, which are answered one after the other.
fn two_requests() -> Vec<u8> {
    let request = |sequence: u32| {
        let kind = 5 << 10 | netlink::command::SYS_GET;
        let head = [16_u32.to_ne_bytes(), [0; 4], sequence.to_ne_bytes(), [0; 4]].concat();
        let kind = [kind.to_ne_bytes(), netlink::flag::REQUEST.to_ne_bytes()].concat();
        [&head[..4], &kind, &head[8..]].concat()
    };
    [request(1), request(2)].concat()
}

/// Receives the available messages. Returns whether the connection has ended.
fn take(socket: &Socket, answer: &mut Vec<Vec<u8>>) -> bool {
    let mut bytes = vec![0; 1 << 17];
    while let Ok(got) = socket.try_recv(&mut bytes) {
        if got.len == 0 {
            return true;
        }
        answer.push(bytes[..got.len].to_vec());
    }
    false
}

/// An answer begins while there is memory. It ends incomplete if there is no memory for the next
/// piece. An answer that begins when there is memory again is complete.
#[test]
fn each_piece_of_an_answer_asks_for_memory_anew() {
    let show = br#"{"request":"show"}"#.to_vec();
    for (node, question) in [(AdminNode::Admin, show), (AdminNode::Netlink, two_requests())] {
        let mut server = server();
        for _ in 0..100 {
            let peer = Peer { pid: 1, uid: OTHER, comm: String::new() };
            server.world.open(0, profile::MAINLINE, peer).expect("a context");
        }
        let [(one, its_end), (other, others_end)] = [(); 2].map(|()| {
            let (id, socket) = admin(&mut server, node);
            socket.send(&question, &[]).expect("sent");
            assert!(server.serve_admin(id), "the first piece");
            (id, socket)
        });
        let queued = [Token::Admin(one), Token::Admin(other)].map(|token| server.schedule.queued.contains(&token));
        assert_eq!(queued, [true, true], "{node:?}: the rest is a piece of work of its own");
        let (mut begun, mut whole) = (Vec::new(), Vec::new());
        assert!(!take(&its_end, &mut begun));
        WITHHELD.set(true);
        assert!(server.serve_admin(one), "the agent goes on");
        WITHHELD.set(false);
        assert!(!server.admins.contains_key(&one), "{node:?}: more was told without memory");
        let told = begun.len();
        assert!(take(&its_end, &mut begun) && begun.len() == told, "{node:?}: the connection ends without the rest");
        for _ in 0..1000 {
            assert!(server.serve_admin(other));
            assert!(!take(&others_end, &mut whole), "{node:?}: the other connection goes on");
        }
        match node {
            AdminNode::Admin => {
                // The answer is one short message in many pieces, so it needs no mark.
                let shown: serde_json::Value = serde_json::from_slice(&whole.concat()).expect("JSON");
                assert_eq!(shown["contexts"].as_array().map(Vec::len), Some(100));
            }
            AdminNode::Netlink => assert_eq!(netlink::messages(&whole.concat()).count(), 2),
        }
        assert!(server.admins.contains_key(&other));
    }
}

/// A program that dies while it waits for `issmN` does not take it from the one behind it.
#[test]
fn the_subnet_manager_behind_a_dead_one_gets_its_turn() {
    let mut server = server_with(LinkLayer::Infiniband);
    let [first, second, third] = [(); 3].map(|()| {
        let (theirs, ours) = Socket::pair().expect("a pair");
        server.take_mads((1, 0), Foreign::ours(ours));
        let id = server.registry.last;
        let request = FileRequest { kind: umad::kind::OPEN_MANAGER, ..FileRequest::default() };
        theirs.send(request.bytes(), &[]).expect("sent");
        server.serve_mads(id);
        (id, theirs)
    });
    let mut buffer = [0; 64];
    assert!(first.1.try_recv(&mut buffer).is_ok() && third.1.try_recv(&mut buffer).is_err());
    drop((first.1, second.1));
    server.serve_mads(first.0);
    third.1.try_recv(&mut buffer).expect("it is open");
    server.serve_mads(second.0);
    let mask = server.world.devices[0].port_attributes(1).expect("port 1").port_cap_flags;
    assert_eq!(mask & 2, 2, "a manager is there");
}

/// Records the account of each log line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Option<u32>>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Values<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.lock().expect("no panic").push(account::current());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The server notices the end between two pieces of work, when it works for no user. The line still
/// counts for the program's user.
#[test]
fn the_line_about_a_program_that_is_cut_off_counts_for_its_user() {
    let mut server = server();
    let contexts = [HOSTILE, OTHER].map(|uid| {
        server.world.open(0, profile::MAINLINE, Peer { pid: 1, uid, comm: "stopped".into() }).expect("a context")
    });
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || server.cut_off(&contexts));
    assert_eq!(*lines.0.lock().expect("no panic"), [Some(HOSTILE), Some(OTHER)]);
    assert_eq!(account::current(), None, "what comes next is nobody's");
    assert!(contexts.iter().all(|context| !server.world.contexts.contains_key(context)));
}

/// Nothing else wakes the server then, so it must not sleep before it has sent the events.
#[test]
fn events_that_a_step_after_the_flush_causes_are_sent_before_the_server_sleeps() {
    let mut server = server();
    let peer = Peer { pid: 1, uid: OTHER, comm: String::new() };
    let id = server.world.open(0, 0, peer).expect("a context");
    let get = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48);
    assert_eq!(dispatch(&mut server.world, id, &get, Vec::new()).status, 0);
    server.world.add_faults(Scope::All, "port-down for 1ms").expect("a rule");
    let deadline = Instant::now() + Duration::from_secs(60);
    // The server sleeps when no rule is to end and nothing is left.
    while server.follow().more || server.world.faults.next_time().is_some() {
        assert!(Instant::now() < deadline, "the rule does not end");
        std::thread::yield_now();
    }
    let events = server.world.contexts[&id].events.as_ref().expect("an open context");
    assert_eq!(events.page().read(context_page::HEAD), 2, "PORT_ERR and PORT_ACTIVE");
}
