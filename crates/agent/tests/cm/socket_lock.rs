//! Sockets of iWARP whose lock a program holds. The kernel holds the lock of a TCP socket while it
//! copies what a program sends. If the program sends from a mapping of a FUSE file, the copy takes
//! as long as the program likes. However the agent is made to use such a socket, it continues to
//! serve.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use abi::Errno;
use abi::command::{extended, legacy, number};
use abi::cq::{CreateCompChannel, CreateCompChannelAnswer};
use abi::private::ChannelDestroy;
use abi::qp::{CreateQpAnswer, DestroyQp};
use abi::stream::{StreamEnd, StreamOut, StreamTake, end_flags};
use rustix::net::SendFlags;

use crate::common::fuse::{Server, copy_page_of, request};
use crate::common::hostile::{HANG, HOSTILE, as_user, for_everybody_with, in_time, serves, serves_another};
use crate::common::{Client, TestAgent};
use crate::harness::{Channel, TCP, here, param};

const IWARP: &str = "wire = 'off'\naddresses = ['127.0.0.1']\n[[devices]]\ntransport = 'iwarp'\n";
/// A request of MPA in revision 1 (RFC 5044, 7.1).
const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";
/// More than two sockets buffer.
const MUCH: usize = 32 << 20;

/// A queue pair with a connection, of a program without an engine.
struct Connected {
    client: Client,
    _channel: Channel,
    qp: CreateQpAnswer,
    peer: TcpStream,
}

impl Connected {
    /// The connection is accepted, and not taken yet.
    fn new(agent: &TestAgent) -> Self {
        let mut client = agent.client();
        let (_, _, qp) = client.qp();
        let mut channel = Channel::open(&agent.dir);
        let listener = channel.listener(100, TCP, here(0), 5);
        let mut peer = TcpStream::connect(here(channel.port(listener))).expect("it listens");
        peer.set_read_timeout(Some(HANG)).and_then(|()| peer.set_write_timeout(Some(HANG))).expect("set");
        peer.write_all(REQUEST).expect("sent");
        let (id, _) = channel.request(100);
        channel.accept(200, id, param(qp.qpn, b""));
        peer.read_exact(&mut [0; REQUEST.len()]).expect("the reply");
        Self { client, _channel: channel, qp, peer }
    }

    /// Takes the socket, or returns the status.
    fn take(&mut self) -> Result<OwnedFd, i32> {
        let take = StreamTake { qp_handle: self.qp.qp_handle, reserved: 0 };
        let mut taken = self.client.call(&extended(number::STREAM_TAKE, &take, size_of::<StreamOut>(), 0));
        taken.fds.pop().ok_or(taken.status)
    }
}

/// Leaves the connection of a queue pair. Returns when the agent has heard of it.
type Way = fn(Client, CreateQpAnswer, &Path);

/// What the peer of the connection sees when the agent can use the socket.
type Seen = fn(&mut TcpStream);

fn gets_the_end(peer: &mut TcpStream) {
    assert_eq!(peer.read(&mut [0]).expect("the end"), 0);
}

fn can_send_on(peer: &mut TcpStream) {
    peer.write_all(&vec![0; MUCH]).expect("the agent reads");
}

fn is_reset(peer: &mut TcpStream) {
    assert_eq!(peer.read(&mut [0]).expect_err("a reset").kind(), ErrorKind::ConnectionReset);
}

fn destroys(mut client: Client, qp: CreateQpAnswer, _: &Path) {
    let body = DestroyQp { response: 1, qp_handle: qp.qp_handle, reserved: 0 };
    assert_eq!(client.call(&legacy(number::DESTROY_QP, &body, &[], 4)).status, 0);
}

fn ends(client: Client, _: CreateQpAnswer, dir: &Path) {
    drop(client);
    let shown = || agent::admin::ask(dir, &serde_json::json!({"request": "show"})).expect("an answer");
    while shown()["contexts"].as_array().is_none_or(|contexts| !contexts.is_empty()) {
        std::thread::yield_now();
    }
}

fn could_not_take(mut client: Client, qp: CreateQpAnswer, _: &Path) {
    let body = StreamEnd { qpn: qp.qpn, flags: end_flags::NOT_TAKEN };
    client.call(&extended(number::STREAM_END, &body, 0, 0));
    client.alloc_pd();
}

const WAYS: [(&str, Way, Seen); 3] = [
    ("a queue pair is destroyed", destroys, can_send_on),
    ("a process ends", ends, gets_the_end),
    ("an engine could not take a connection", could_not_take, is_reset),
];

#[test]
fn a_program_that_holds_the_lock_of_its_socket_holds_up_nobody_else() {
    for (name, way, seen) in WAYS {
        let Some(agent) = for_everybody_with(IWARP) else { return };
        let place = tempfile::tempdir().expect("a directory");
        let Some(server) = Server::start(place.path(), request::READ) else { return };
        let mut connected = as_user(HOSTILE, || Connected::new(&agent));
        let socket = connected.take().expect("the socket");
        let Connected { client, qp, mut peer, .. } = connected;
        let kept = socket.try_clone().expect("a copy");
        // Behind the lock, it would be noticed only when the lock is free.
        peer.write_all(b"something to drop").expect("sent");
        copy_page_of(&server, move |page| rustix::net::send(socket, page, SendFlags::NOSIGNAL));
        let dir: PathBuf = agent.dir.clone();
        in_time(move || way(client, qp, &dir), &format!("the agent hangs after {name}"));
        serves(&agent, name);
        serves_another(&agent, name);
        drop(server);
        seen(&mut peer);
        drop(kept);
    }
}

/// Without a second descriptor, the agent's close of the socket could be the last one, and block.
#[test]
fn a_program_with_its_share_of_descriptors_gets_its_connection_later() {
    let Some(agent) = for_everybody_with(IWARP) else { return };
    let mut connected = as_user(HOSTILE, || Connected::new(&agent));
    let mut channels = Vec::new();
    let create = legacy(number::CREATE_COMP_CHANNEL, &CreateCompChannel { response: 1 }, &[], 4);
    let refused = loop {
        let answer = connected.client.call(&create);
        if answer.status != 0 {
            break answer;
        }
        channels.push(answer);
    };
    assert_eq!(refused.status, Errno::EMFILE.to_status(), "{}", refused.reason());
    assert_eq!(connected.take().expect_err("no room"), Errno::EMFILE.to_status());
    let channel: CreateCompChannelAnswer = channels.pop().expect("one").get(0);
    let destroy = ChannelDestroy { handle: channel.fd.cast_unsigned(), reserved: 0 };
    assert_eq!(connected.client.call(&extended(number::CHANNEL_DESTROY, &destroy, 0, 0)).status, 0);
    connected.take().expect("the socket");
}
