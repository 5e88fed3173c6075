//! A channel against a scripted agent: which commands it sends, how it handles the answers, and
//! that the event socket keeps one message for each event.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::ucma::connection::{ConnParam as ConnRecord, EventAnswer, NextEventAnswer, UdParam, known};
use abi::ucma::id::{
    ChannelAnswer, CreateIdAnswer, DestroyId, DestroyIdAnswer, MigrateId, RenewIdAnswer, SetOption as OptionRecord,
    Taken, Wake,
};
use abi::ucma::{command, connection, event_message};
use abi::{Errno, Record};
use engine::{Answer, Control, Error};
use parking_lot::Mutex;
use softhca_cm::{Channel, ConnParam, EventKind, Id, PortSpace, QpKind, SetOption};

type Script = VecDeque<(u32, Result<Vec<u8>, Errno>)>;

/// Answers as scripted, and records the bodies of the commands.
#[derive(Default)]
struct Agent {
    script: Mutex<Script>,
    seen: Mutex<Vec<Vec<u8>>>,
}

struct Scripted(Arc<Agent>);

impl Control for Scripted {
    fn call(&self, request: &[u8], _fds: &[BorrowedFd<'_>]) -> engine::Result<Answer> {
        let admitted = abi::ucma::admit(request).expect("well formed");
        let (number, answer) = self.0.script.lock().pop_front().expect("a command that is expected");
        assert_eq!(admitted.number(), number);
        self.0.seen.lock().push(request[8..].to_vec());
        answer.map(|bytes| Answer { bytes, fds: Vec::new() }).map_err(Error::from)
    }

    fn close(&self) {}
}

struct Room {
    channel: Channel,
    agent: Arc<Agent>,
    /// The agent's end of the event socket.
    event_socket: OwnedFd,
}

fn room() -> Room {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let agent = Arc::new(Agent::default());
    let (ours, event_socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
    let channel = Channel::over(Box::new(Scripted(Arc::clone(&agent))), ours);
    Room { channel, agent, event_socket }
}

impl Room {
    fn expects(&self, number: u32, answer: Result<Vec<u8>, Errno>) {
        self.agent.script.lock().push_back((number, answer));
    }

    fn notifies(&self, times: usize) {
        for _ in 0..times {
            self.says(&[event_message::ASK]);
        }
    }

    fn says(&self, message: &[u8]) {
        rustix::io::write(&self.event_socket, message).expect("notified");
    }

    /// The next event, if one waits.
    fn next(&self) -> Option<(EventKind, u32)> {
        self.channel.try_event().expect("no refusal").map(|event| (event.kind, event.id.0))
    }

    fn waiting(&self) -> u64 {
        rustix::io::ioctl_fionread(self.channel.as_fd()).expect("a socket")
    }

    fn body<T: Record>(&self, index: usize) -> T {
        T::read_zero_extended(&self.agent.seen.lock()[index])
    }

    fn is_done(&self) -> bool {
        self.agent.script.lock().is_empty()
    }
}

fn event(kind: EventKind, id: u32) -> Vec<u8> {
    next(EventAnswer { uid: 7, id, event: kind.0, ..EventAnswer::default() }).bytes().to_vec()
}

/// An event that counts against an id, as the event socket brings it.
fn told(kind: EventKind, id: u32, counts: u32) -> Vec<u8> {
    let event = EventAnswer { uid: 7, id, event: kind.0, ..EventAnswer::default() };
    NextEventAnswer { counts, ..next(event) }.bytes().to_vec()
}

fn next(event: EventAnswer) -> NextEventAnswer {
    NextEventAnswer { event, ..NextEventAnswer::default() }
}

#[test]
fn a_byte_is_an_event() {
    let room = room();
    assert!(room.channel.try_event().expect("no refusal").is_none(), "no byte, no question");
    room.notifies(2);
    room.expects(command::NEXT_EVENT, Ok(event(EventKind::ADDR_RESOLVED, 3)));
    room.expects(command::NEXT_EVENT, Ok(event(EventKind::ROUTE_RESOLVED, 3)));
    let first = room.channel.next_event().expect("an event");
    assert_eq!((first.kind, first.cookie, first.id), (EventKind::ADDR_RESOLVED, 7, Id(3)));
    assert_eq!(room.waiting(), 1);
    assert_eq!(room.channel.next_event().expect("an event").kind, EventKind::ROUTE_RESOLVED);
    assert_eq!(room.waiting(), 0);
}

#[test]
fn the_descriptors_flag_decides_whether_to_wait() {
    let room = room();
    rustix::io::ioctl_fionbio(room.channel.as_fd(), true).expect("set");
    assert_eq!(room.channel.next_event().expect_err("nothing there").errno, Errno::EAGAIN);
    room.notifies(1);
    room.expects(command::NEXT_EVENT, Err(Errno::EAGAIN));
    assert_eq!(room.channel.next_event().expect_err("a byte in vain").errno, Errno::EAGAIN);
    assert!(room.is_done());
}

#[test]
fn an_agent_that_ends_wakes_who_waits() {
    let Room { channel, event_socket, .. } = room();
    let waiting = std::thread::spawn(move || channel.next_event().map(|event| event.kind));
    drop(event_socket);
    assert_eq!(waiting.join().unwrap().expect_err("gone").errno, Errno::EIO);
}

#[test]
fn the_bytes_of_events_that_went_with_their_id_are_taken() {
    let room = room();
    room.notifies(3);
    let answer = DestroyIdAnswer { events_reported: 0, event_bytes: 2 };
    room.expects(command::DESTROY_ID, Ok(answer.bytes().to_vec()));
    room.expects(command::WAKE, Ok(Vec::new()));
    assert_eq!(room.channel.destroy_id(Id(3)).expect("ended"), 0);
    assert_eq!((room.waiting(), room.body::<Wake>(1).count), (0, 1));
    room.says(&[event_message::WOKEN]);
    room.expects(command::NEXT_EVENT, Ok(event(EventKind::ROUTE_RESOLVED, 4)));
    assert_eq!(room.next(), Some((EventKind::ROUTE_RESOLVED, 4)));
    assert_eq!(room.next(), None);
}

#[test]
fn the_bell_brings_events() {
    let room = room();
    room.says(&told(EventKind::ADDR_RESOLVED, 3, 3));
    room.says(&[&told(EventKind::ADDR_ERROR, 4, 4)[..], b"why"].concat());
    assert_eq!(room.next(), Some((EventKind::ADDR_RESOLVED, 3)));
    assert_eq!(room.channel.next_event().expect("an event").reason.as_deref(), Some("why"));
    assert_eq!(room.next(), None);
    assert!(room.is_done() && room.agent.seen.lock().is_empty(), "nothing was asked");
    let answer = DestroyIdAnswer { events_reported: 1, event_bytes: 0 };
    room.expects(command::DESTROY_ID, Ok(answer.bytes().to_vec()));
    assert_eq!(room.channel.destroy_id(Id(3)).expect("ended"), 1, "as many as were got");
}

#[test]
fn a_renewed_id_is_kept_for_the_next_request() {
    let room = room();
    room.says(&told(EventKind::DISCONNECTED, 3, 3));
    let answer = |id| Ok(RenewIdAnswer { events_reported: 1, event_bytes: 0, id }.bytes().to_vec());
    room.expects(command::RENEW_ID, answer(8));
    assert_eq!(room.channel.renew_id(Id(3), 70, PortSpace::TCP, QpKind::RC).expect("ended"), 0);
    assert_eq!(room.next(), None, "its event went with it");
    assert_eq!(room.channel.kept_id(PortSpace::TCP, QpKind::UC), None);
    // Only one id is kept.
    room.expects(command::RENEW_ID, answer(9));
    room.expects(command::DESTROY_ID, Ok(DestroyIdAnswer::default().bytes().to_vec()));
    assert_eq!(room.channel.renew_id(Id(4), 71, PortSpace::TCP, QpKind::RC).expect("ended"), 0);
    assert_eq!(room.body::<DestroyId>(2).id, 8);
    assert_eq!(room.channel.kept_id(PortSpace::TCP, QpKind::RC), Some((71, Id(9))));
    assert_eq!(room.channel.kept_id(PortSpace::TCP, QpKind::RC), None);
}

#[test]
fn a_request_that_the_bell_brings_is_taken() {
    let room = room();
    room.says(&told(EventKind::CONNECT_REQUEST, 9, 3));
    room.expects(command::TAKEN, Ok(Vec::new()));
    assert_eq!(room.next(), Some((EventKind::CONNECT_REQUEST, 9)));
    let Taken { id, count } = room.body(0);
    assert_eq!((id, count), (3, 1));
}

#[test]
fn told_events_go_with_their_id_and_requests_with_their_listener() {
    let room = room();
    for (kind, id, counts) in [
        (EventKind::CONNECT_REQUEST, 9, 3),
        (EventKind::ADDR_RESOLVED, 4, 4),
        (EventKind::CONNECT_REQUEST, 10, 3),
        (EventKind::ROUTE_RESOLVED, 4, 4),
    ] {
        room.says(&told(kind, id, counts));
    }
    let ended = |events_reported| Ok(DestroyIdAnswer { events_reported, event_bytes: 0 }.bytes().to_vec());
    for reported in [2, 0, 0] {
        room.expects(command::DESTROY_ID, ended(reported));
    }
    room.expects(command::WAKE, Ok(Vec::new()));
    assert_eq!(room.channel.destroy_id(Id(3)).expect("ended"), 0, "none was got");
    let ends: Vec<u32> = (0..3).map(|index| room.body::<DestroyId>(index).id).collect();
    assert_eq!(ends, [3, 9, 10]);
    assert_eq!((room.waiting(), room.body::<Wake>(3).count), (0, 2), "nothing is readable but the requested messages");
    // A message before the wake-up stays behind the kept messages.
    room.says(&told(EventKind::ADDR_RESOLVED, 5, 5));
    room.says(&[event_message::WOKEN]);
    room.says(&[event_message::WOKEN]);
    assert_eq!(room.next(), Some((EventKind::ADDR_RESOLVED, 4)));
    assert_eq!(room.next(), Some((EventKind::ROUTE_RESOLVED, 4)));
    assert_eq!(room.next(), Some((EventKind::ADDR_RESOLVED, 5)));
    assert_eq!(room.next(), None);
    assert!(room.is_done());
}

#[test]
fn told_events_move_with_their_id() {
    let (old, new) = (room(), room());
    old.expects(command::CHANNEL, Ok(ChannelAnswer { channel: 99 }.bytes().to_vec()));
    old.says(&told(EventKind::ADDR_RESOLVED, 5, 5));
    old.says(&told(EventKind::ROUTE_RESOLVED, 5, 5));
    old.says(&told(EventKind::ADDR_RESOLVED, 6, 6));
    assert_eq!(old.next(), Some((EventKind::ADDR_RESOLVED, 5)));
    new.says(&told(EventKind::DISCONNECTED, 5, 5));
    new.expects(command::MIGRATE_ID, Ok(DestroyIdAnswer { events_reported: 2, event_bytes: 0 }.bytes().to_vec()));
    old.expects(command::WAKE, Ok(Vec::new()));
    new.expects(command::WAKE, Ok(Vec::new()));
    assert_eq!(new.channel.migrate_id(Id(5), &old.channel).expect("moved"), 1, "one has been got");
    assert_eq!((old.body::<Wake>(1).count, new.body::<Wake>(1).count), (1, 1));
    old.says(&[event_message::WOKEN]);
    new.says(&[event_message::WOKEN]);
    assert_eq!((old.next(), old.next()), (Some((EventKind::ADDR_RESOLVED, 6)), None));
    assert_eq!(new.next(), Some((EventKind::ROUTE_RESOLVED, 5)));
    assert_eq!((new.next(), new.next()), (Some((EventKind::DISCONNECTED, 5)), None));
    new.expects(command::DESTROY_ID, Ok(DestroyIdAnswer { events_reported: 3, event_bytes: 0 }.bytes().to_vec()));
    assert_eq!(new.channel.destroy_id(Id(5)).expect("ended"), 3, "those of both channels");
}

#[test]
fn an_id_moves_with_its_bytes() {
    let (old, new) = (room(), room());
    old.notifies(2);
    new.notifies(1);
    old.expects(command::CHANNEL, Ok(ChannelAnswer { channel: 99 }.bytes().to_vec()));
    for _ in 0..2 {
        new.expects(command::MIGRATE_ID, Ok(DestroyIdAnswer { events_reported: 0, event_bytes: 2 }.bytes().to_vec()));
        assert_eq!(new.channel.migrate_id(Id(5), &old.channel).expect("moved"), 0);
    }
    assert_eq!((old.waiting(), new.waiting()), (0, 1));
    assert_eq!((new.body::<MigrateId>(0).fd, new.body::<MigrateId>(1).id), (99, 5), "the number is asked for once");
}

#[test]
fn commands_say_what_they_were_told() {
    let room = room();
    room.expects(command::CREATE_ID, Ok(CreateIdAnswer { id: 12 }.bytes().to_vec()));
    let id = room.channel.create_id(8, PortSpace::TCP, QpKind::RC).expect("made");
    assert_eq!(id, Id(12));
    room.expects(command::CONNECT, Ok(Vec::new()));
    let param = ConnParam { qp_num: 5, private_data: b"hello", retry_count: 7, srq: true, ..ConnParam::default() };
    room.channel.connect(id, &param).expect("asked");
    let asked: connection::Connect = room.body(1);
    let ConnRecord { qp_num, private_data, private_data_len, srq, retry_count, valid, .. } = asked.conn_param;
    assert_eq!((qp_num, &private_data[..6], private_data_len), (5, &b"hello\0"[..], 5));
    assert_eq!((srq, retry_count, valid, asked.id), (1, 7, 1, 12));
    room.expects(command::SET_OPTION, Ok(Vec::new()));
    room.channel.set_option(id, SetOption::ReuseAddress(true)).expect("set");
    let option: OptionRecord = room.body(2);
    assert_eq!((option.optname, option.optlen, room.agent.seen.lock()[2].len()), (1, 4, 28));
}

#[test]
fn private_data_above_the_limit_returns_einval() {
    let room = room();
    let param = ConnParam { private_data: &[0; 256], ..ConnParam::default() };
    assert_eq!(room.channel.connect(Id(1), &param).expect_err("too long").errno, Errno::EINVAL);
    assert!(room.agent.seen.lock().is_empty());
}

#[test]
fn both_forms_of_an_event_are_read() {
    let room = room();
    let conn = ConnRecord {
        qp_num: 9,
        private_data: [4; 256],
        private_data_len: 3,
        initiator_depth: 2,
        ..ConnRecord::default()
    };
    let ud = UdParam { qp_num: 8, qkey: 6, private_data: [5; 256], private_data_len: 2, ..UdParam::default() };
    for param in [UdParam::from_conn(&conn), ud] {
        let answer = EventAnswer { param, event: EventKind::ESTABLISHED.0, ..EventAnswer::default() };
        room.expects(command::NEXT_EVENT, Ok([next(answer).bytes(), b"why"].concat()));
        room.notifies(1);
    }
    let first = room.channel.next_event().expect("an event");
    let told = first.conn();
    assert_eq!((told.qp_num, told.private_data, told.initiator_depth), (9, &[4u8; 3][..], 2));
    assert_eq!(first.reason.as_deref(), Some("why"));
    let second = room.channel.next_event().expect("an event");
    assert_eq!((second.ud().qp_num, second.ud().qkey, second.ud().private_data), (8, 6, &[5u8; 2][..]));
}

#[test]
fn an_event_carries_addresses_and_attributes_of_its_id() {
    let room = room();
    room.notifies(2);
    let init = connection::QpAttr { qp_state: 1, ..connection::QpAttr::default() };
    let answer =
        NextEventAnswer { known: known::ADDRESSES | known::INIT, sgid: [3; 16], init, ..NextEventAnswer::default() };
    room.expects(command::NEXT_EVENT, Ok(answer.bytes().to_vec()));
    let told = room.channel.next_event().expect("an event").known;
    assert_eq!(
        told.addresses.map(|(addresses, gids)| (addresses.source.is_empty(), gids.source)),
        Some((true, [3; 16]))
    );
    assert_eq!(told.attributes[0].as_ref().map(|init| init.qp_state), Some(1));
    assert!(told.path.is_none() && told.attributes[1].is_none() && told.attributes[2].is_none());
    room.expects(command::NEXT_EVENT, Ok(event(EventKind::DISCONNECTED, 1)));
    let told = room.channel.next_event().expect("an event").known;
    assert!(told.addresses.is_none() && told.attributes[0].is_none());
}
