//! `dispatch` as a function: a table of commands and their results, on a host without a kernel.
//!
//! The host's memory is the test's own, and its random numbers are in order. It records what it is
//! asked for, and the table says what that is. A descriptor is always one of the kernel's, so all
//! of them lead to `/dev/null`. Only the push sockets are real: they show that no command wakes a
//! client, and that flushing the world does. The principal type is [`Row`].

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use abi::command::{extended, legacy, number};
use abi::cq::{CreateCompChannel, CreateCq, DestroyCq};
use abi::device::{GetContext, QueryPort};
use abi::dm::{AllocDm, DmOut};
use abi::mr::{DeregMr, RegMr};
use abi::pd::{AllocPd, DeallocPd};
use abi::post::{Post, SendWr};
use abi::private::{DirectAsk, DirectGrant, EngineHello, EngineHelloAnswer, LaneOpen, LaneOut};
use abi::qp::{CreateQp, DestroyQp, ModifyQp, attr, kind, state};
use abi::queue::context_page;
use abi::target::XrcEvent;
use abi::xrc::{OpenQp, OpenXrcd};
use abi::{Errno, event};
use agent::Config;
use agent::config::WireMode;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::foreign::PassedFd;
use agent::host::Host;
use agent::numbers::Chance;
use agent::world::World;
use shm::region::{Lender, Region};
use shm::socket::Socket;
use shm::{Notifier, WakeWord, WakeWordView};

/// A host without a kernel.
struct Paper {
    /// How many more pieces of memory it gives out.
    pieces: AtomicUsize,
    /// How many more descriptors it duplicates.
    copies: AtomicUsize,
    /// What it was asked for.
    calls: Mutex<Vec<&'static str>>,
}

impl Paper {
    fn note(&self, call: &'static str) {
        self.calls.lock().expect("no test panics there").push(call);
    }

    /// What it was asked for since the last time.
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock().expect("no test panics there"))
    }
}

/// Takes one of what is left.
fn take(left: &AtomicUsize, otherwise: io::ErrorKind) -> io::Result<()> {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    taken.map(drop).map_err(|_| otherwise.into())
}

/// Memory that goes with its region.
#[derive(Debug)]
struct Heap(Box<[AtomicU64]>);

impl Lender for Heap {
    fn take_back(&self, _base: NonNull<u8>) {}
}

fn nothing() -> io::Result<OwnedFd> {
    File::open("/dev/null").map(OwnedFd::from)
}

impl Host for Paper {
    fn chance(&self) -> Option<Chance> {
        let mut last = 0;
        Some(Box::new(move || {
            last += 1;
            last
        }))
    }

    fn secret(&self) -> u64 {
        self.note("secret");
        7
    }

    fn memory(&self, _name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        self.note("memory");
        take(&self.pieces, io::ErrorKind::OutOfMemory)?;
        let heap = Box::new(Heap((0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect()));
        let base = NonNull::from(&heap.0[0]).cast();
        // SAFETY: the words are atomics, the region has no more bytes than they, and the lender,
        // which owns them, goes with the region.
        Ok((unsafe { Region::lent(base, len, heap) }, nothing()?))
    }

    fn published(&self, name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        self.memory(name, len)
    }

    fn punch(&self, _memory: &Region, _offset: usize, _len: usize) -> io::Result<()> {
        self.note("punch");
        Ok(())
    }

    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        self.note("later");
        job();
    }

    fn capture_ring(&self, _room: usize) -> io::Result<OwnedFd> {
        self.note("capture ring");
        nothing()
    }

    fn duplicate(&self, _fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.note("duplicate");
        take(&self.copies, io::ErrorKind::QuotaExceeded)?;
        nothing()
    }

    fn inode(&self, _memory: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
        self.note("inode");
        Ok((1, 1))
    }

    fn event_file(&self) -> io::Result<OwnedFd> {
        self.note("event file");
        nothing()
    }

    fn push_socket(&self, _room: usize) -> io::Result<(Socket, OwnedFd)> {
        self.note("push socket");
        let (ours, theirs) = Socket::pair()?;
        Ok((ours, theirs.into()))
    }

    fn relay(
        &self,
        _set: BorrowedFd<'_>,
        _number: u32,
        _wake_word: BorrowedFd<'_>,
    ) -> io::Result<(OwnedFd, WakeWordView)> {
        self.note("relay");
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A world of this host, and clients of these users that have not sent a command.
fn room<const N: usize>(pieces: usize, copies: usize, uids: [u32; N]) -> (Arc<Paper>, World, [ContextId; N]) {
    let config = Config { wire: WireMode::Off, ..Config::default() };
    let (pieces, copies) = (AtomicUsize::new(pieces), AtomicUsize::new(copies));
    let host = Arc::new(Paper { pieces, copies, calls: Mutex::default() });
    let mut world = World::on(Arc::<Paper>::clone(&host), &config, "a test").expect("a world");
    let ids = uids.map(|uid| world.open(0, 0, Peer { pid: 1, uid, comm: "test".into() }).expect("open"));
    host.calls();
    (host, world, ids)
}

/// The clients of the table. Two are of one user.
const ME: usize = 0;
const FRIEND: usize = 1;
const STRANGER: usize = 2;
const UIDS: [u32; 3] = [2, 2, 3];

/// The handles that the commands before have returned.
#[derive(Default)]
struct Made {
    pd: u32,
    mr: u32,
    cq: u32,
    qp: u32,
    channel: u32,
    dm: u32,
    xrcd: u32,
    friends_xrcd: u32,
    target: u32,
    opened: u32,
    /// The word after the last handle: of a QP, its number.
    number: u32,
}

enum Expected {
    Done,
    /// The answer's first word is the handle of a new object.
    Makes(fn(&mut Made) -> &mut u32),
    /// Nothing is sent before the world is flushed, and this client is woken then.
    Wakes(usize),
    /// With these words in the sentence.
    Refused(Errno, &'static str),
}
use Expected::{Done, Makes, Refused, Wakes};

/// A client, its command, what comes of it, and what the host is asked for.
type Row = (usize, &'static str, fn(&Made) -> Vec<u8>, Expected, &'static [&'static str]);

fn reg_mr(pd_handle: u32) -> Vec<u8> {
    let body = RegMr { start: 4096, hca_va: 4096, length: 100, pd_handle, ..RegMr::default() };
    legacy(number::REG_MR, &body, &[], 12)
}

fn create_qp(made: &Made, qp_type: u8) -> Vec<u8> {
    let (pd_handle, cq) = (made.pd, made.cq);
    let body = CreateQp { pd_handle, send_cq_handle: cq, recv_cq_handle: cq, qp_type, ..CreateQp::default() };
    legacy(number::CREATE_QP, &body, &[], 104)
}

fn modify(made: &Made, qp_state: u8, attr_mask: u32) -> Vec<u8> {
    let body = ModifyQp { qp_handle: made.qp, attr_mask, qp_state, port_num: 1, ..ModifyQp::default() };
    legacy(number::MODIFY_QP, &body, &[], 0)
}

fn create_cq(cqe: u32) -> Vec<u8> {
    legacy(number::CREATE_CQ, &CreateCq { cqe, comp_channel: -1, ..CreateCq::default() }, &[], 64)
}

fn dealloc_pd(made: &Made) -> Vec<u8> {
    legacy(number::DEALLOC_PD, &DeallocPd { pd_handle: made.pd }, &[], 0)
}

const INIT: u32 = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;

const OPENED: &[&str] = &["memory", "duplicate", "inode", "event file", "duplicate"];
/// Queue memory, or other memory for the client.
const NEW_MEMORY: &[&str] = &["memory", "duplicate"];
const NEW_EVENT_FILE: &[&str] = &["event file", "duplicate"];
const NEW_ENGINE: &[&str] = &["duplicate", "push socket"];
const NEW_LANE: &[&str] = &["memory", "duplicate", "duplicate", "duplicate", "duplicate"];
const KNOWN_LANE: &[&str] = &["duplicate", "duplicate", "duplicate", "duplicate"];
/// The lane's memory goes again.
const NO_RELAY: &[&str] = &["memory", "relay", "later"];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (ME, "a PD before the device is open", |_| alloc_pd(), Refused(Errno::EINVAL, "GET_CONTEXT"), &[]),
    (ME, "the device", |_| get_context(), Done, OPENED),
    (ME, "a port that does not exist", |_| query_port(9), Refused(Errno::EINVAL, "port"), &[]),
    (ME, "a PD", |_| alloc_pd(), Makes(|made| &mut made.pd), &[]),
    (ME, "an MR without a PD", |_| reg_mr(0), Refused(Errno::ENOENT, "PD"), &[]),
    (ME, "an MR", |made| reg_mr(made.pd), Makes(|made| &mut made.mr), &[]),
    (ME, "a CQ without room", |_| create_cq(0), Refused(Errno::EINVAL, ""), &[]),
    (ME, "a CQ", |_| create_cq(10), Makes(|made| &mut made.cq), NEW_MEMORY),
    (ME, "a QP of no type", |made| create_qp(made, 77), Refused(Errno::EOPNOTSUPP, "77"), &[]),
    (ME, "a QP", |made| create_qp(made, kind::RC), Makes(|made| &mut made.qp), &[]),
    (ME, "RESET to RTS", |made| modify(made, state::RTS, attr::STATE), Refused(Errno::EINVAL, "RTS"), &[]),
    (ME, "RESET to INIT", |made| modify(made, state::INIT, INIT), Done, &[]),
    (ME, "a post without an engine", post_send, Refused(Errno::EOPNOTSUPP, "POST_SEND needs an engine"), &[]),
    (ME, "a PD that is in use", dealloc_pd, Refused(Errno::EBUSY, "PD 1"), &[]),
    (ME, "the QP goes", |made| destroy_qp(made.qp), Done, &[]),
    (ME, "the CQ goes", destroy_cq, Done, &[]),
    (ME, "a CQ of 8 MiB", |_| create_cq(1 << 17), Makes(|made| &mut made.cq), NEW_MEMORY),
    (ME, "its memory takes long to go", destroy_cq, Done, &["later"]),
    (ME, "the MR goes", |made| legacy(number::DEREG_MR, &DeregMr { mr_handle: made.mr }, &[], 0), Done, &[]),
    (ME, "the PD goes", dealloc_pd, Done, &[]),
    (ME, "a PD that is gone", dealloc_pd, Refused(Errno::ENOENT, "PD"), &[]),
    (ME, "a channel", |_| create_channel(), Makes(|made| &mut made.channel), NEW_EVENT_FILE),
    (ME, "device memory", |_| alloc_dm(), Makes(|made| &mut made.dm), NEW_MEMORY),

    (FRIEND, "a friend's device", |_| get_context(), Done, OPENED),
    (STRANGER, "a stranger's device", |_| get_context(), Done, OPENED),
    (ME, "a lane without an engine", |_| open_lane(FRIEND), Refused(Errno::EINVAL, "ENGINE_HELLO"), &[]),
    (ME, "an engine", |_| hello(), Done, NEW_ENGINE),
    (FRIEND, "a friend's engine", |_| hello(), Done, NEW_ENGINE),
    (STRANGER, "a stranger's engine", |_| hello(), Done, NEW_ENGINE),
    (ME, "a lane to a friend", |_| open_lane(FRIEND), Wakes(FRIEND), NEW_LANE),
    (FRIEND, "the lane that is there", |_| open_lane(ME), Done, KNOWN_LANE),
    (ME, "a lane to a stranger", |_| open_lane(STRANGER), Refused(Errno::ENOMEM, "could not get memory"), NO_RELAY),
    (ME, "a request for direct access", |_| ask(FRIEND), Wakes(FRIEND), &[]),
    (FRIEND, "the access", |_| grant(ME), Wakes(ME), &[]),

    (ME, "a domain of a file", |_| open_xrcd(), Makes(|made| &mut made.xrcd), &["secret"]),
    (FRIEND, "the same domain", |_| open_xrcd(), Makes(|made| &mut made.friends_xrcd), &[]),
    (ME, "a target", create_target, Makes(|made| &mut made.target), NEW_MEMORY),
    (FRIEND, "a handle of the target", open_qp, Makes(|made| &mut made.opened), &[]),
    (ME, "an event of the target", xrc_event, Wakes(FRIEND), &[]),
    (ME, "the target passes to the friend", |made| destroy_qp(made.target), Wakes(FRIEND), NEW_MEMORY),
];

fn get_context() -> Vec<u8> {
    legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48)
}

fn alloc_pd() -> Vec<u8> {
    legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12)
}

fn query_port(port_num: u8) -> Vec<u8> {
    legacy(number::QUERY_PORT, &QueryPort { response: 1, port_num, ..QueryPort::default() }, &[], 40)
}

fn post_send(made: &Made) -> Vec<u8> {
    let body = Post { response: 1, handle: made.qp, wqe_size: size_of::<SendWr>() as u32, ..Post::default() };
    legacy(number::POST_SEND, &body, &[], 4)
}

fn destroy_qp(qp_handle: u32) -> Vec<u8> {
    legacy(number::DESTROY_QP, &DestroyQp { response: 1, qp_handle, reserved: 0 }, &[], 4)
}

fn destroy_cq(made: &Made) -> Vec<u8> {
    legacy(number::DESTROY_CQ, &DestroyCq { response: 1, cq_handle: made.cq, reserved: 0 }, &[], 8)
}

fn create_channel() -> Vec<u8> {
    legacy(number::CREATE_COMP_CHANNEL, &CreateCompChannel { response: 1 }, &[], 4)
}

fn alloc_dm() -> Vec<u8> {
    extended(number::ALLOC_DM, &AllocDm { length: 100, ..AllocDm::default() }, size_of::<DmOut>(), 0)
}

fn hello() -> Vec<u8> {
    extended(number::ENGINE_HELLO, &EngineHello { pid: 1, flags: 0 }, size_of::<EngineHelloAnswer>(), 0)
}

/// The number of a client's engine.
fn engine(client: usize) -> u32 {
    client as u32 + 1
}

fn open_lane(to: usize) -> Vec<u8> {
    let body = LaneOpen { engine: engine(to), lane_index: 0 };
    extended(number::LANE_OPEN, &body, size_of::<LaneOut>(), 0)
}

fn ask(whom: usize) -> Vec<u8> {
    extended(number::DIRECT_ASK, &DirectAsk { engine: engine(whom), ..DirectAsk::default() }, 0, 0)
}

fn grant(whom: usize) -> Vec<u8> {
    extended(number::DIRECT_GRANT, &DirectGrant { engine: engine(whom), ..DirectGrant::default() }, 0, 0)
}

fn open_xrcd() -> Vec<u8> {
    const CREATE: u32 = 0o100;
    legacy(number::OPEN_XRCD, &OpenXrcd { response: 1, fd: 0, oflags: CREATE }, &[], 20)
}

fn create_target(made: &Made) -> Vec<u8> {
    let body = CreateQp { pd_handle: made.xrcd, qp_type: kind::XRC_TGT, ..CreateQp::default() };
    legacy(number::CREATE_QP, &body, &[], 104)
}

fn open_qp(made: &Made) -> Vec<u8> {
    let (pd_handle, qpn) = (made.friends_xrcd, made.number);
    let body = OpenQp { response: 1, pd_handle, qpn, qp_type: kind::XRC_TGT, ..OpenQp::default() };
    legacy(number::OPEN_QP, &body, &[], 32)
}

fn xrc_event(made: &Made) -> Vec<u8> {
    let body = XrcEvent { qp_handle: made.target, event: event::kind::COMM_EST };
    extended(number::XRC_EVENT, &body, 0, 0)
}

/// The descriptors that a client passes with a command.
fn passed(request: &[u8]) -> Vec<PassedFd> {
    let some = |fds: Vec<OwnedFd>| fds.into_iter().map(PassedFd::ours).collect();
    let null = || nothing().expect("it is there");
    match request[0] {
        number::ENGINE_HELLO => {
            let (_, wake_word) = WakeWord::create().expect("a wake word");
            some(vec![wake_word, Notifier::new().expect("an eventfd").into()])
        }
        number::DIRECT_GRANT => some(vec![null(), null()]),
        number::OPEN_XRCD => some(vec![null()]),
        _ => Vec::new(),
    }
}

/// The clients' ends of what wakes them.
#[derive(Default)]
struct Ends {
    pushes: [Option<Socket>; 3],
    /// How many events were in each client's page.
    events: [u32; 3],
}

impl Ends {
    /// The clients to which a push or an event has come since the last time.
    fn woken(&mut self, world: &World, ids: [ContextId; 3]) -> Vec<usize> {
        let is_woken = |client: &usize| {
            let pushed = self.pushes[*client].as_ref().is_some_and(|end| end.try_recv(&mut [0; 64]).is_ok());
            let file = world.contexts[&ids[*client]].events.as_ref();
            let events = file.map_or(0, |file| file.page().read(context_page::HEAD));
            pushed | (std::mem::replace(&mut self.events[*client], events) != events)
        };
        [ME, FRIEND, STRANGER].into_iter().filter(is_woken).collect()
    }
}

/// Carries out the table. Returns all replies.
fn carry_out() -> Vec<(i32, Vec<u8>)> {
    let (host, mut world, ids) = room(usize::MAX, usize::MAX, UIDS);
    let (mut made, mut ends) = (Made::default(), Ends::default());
    let mut replies = Vec::new();
    for (client, what, request, expected, calls) in ROWS {
        let request = request(&made);
        let Reply { status, bytes, mut fds } = dispatch(&mut world, ids[*client], &request, passed(&request));
        let said = String::from_utf8_lossy(&bytes);
        assert_eq!(host.calls(), *calls, "{what}: {said}");
        if request == hello() {
            ends.pushes[*client] = fds.pop().map(Socket::from);
        }
        match expected {
            Refused(errno, words) => {
                assert_eq!(status, errno.to_status(), "{what}: {said}");
                assert!(said.contains(words), "{what}: {said}");
            }
            _ => assert_eq!(status, 0, "{what}: {said}"),
        }
        if let Makes(handle) = expected {
            let word =
                |at: usize| bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().expect("4")));
            (*handle(&mut made), made.number) = (word(0), word(4));
        }
        assert!(ends.woken(&world, ids).is_empty(), "{what}: somebody is woken before the flush");
        world.flush(false);
        let wakes = if let Wakes(whom) = expected { vec![*whom] } else { Vec::new() };
        assert_eq!(ends.woken(&world, ids), wakes, "{what}");
        replies.push((status, bytes));
    }
    replies
}

#[test]
fn a_table_of_commands_has_the_same_replies_each_time() {
    let replies = carry_out();
    assert_eq!(replies, carry_out());
    let post = ROWS.iter().position(|(_, what, ..)| what.contains("post")).expect("it is in the table");
    assert_eq!(replies[post].1[..4], [1, 0, 0, 0], "the first work request is at fault");
}

#[test]
fn a_host_without_memory_refuses_and_nothing_is_left() {
    // The board and the context page.
    let (_, mut world, [id]) = room(2, usize::MAX, [2]);
    assert_eq!(dispatch(&mut world, id, &get_context(), Vec::new()).status, 0);
    let reply = dispatch(&mut world, id, &create_cq(10), Vec::new());
    assert_eq!(reply.status, Errno::ENOMEM.to_status());
    assert!(String::from_utf8_lossy(&reply.bytes).contains("could not get memory"), "{reply:?}");
    assert_eq!(world.tables.cqs.count_of(id), 0);
}

#[test]
fn a_host_without_descriptors_refuses_and_nothing_is_left() {
    // Two for each device, and one for each engine.
    let (_, mut world, ids) = room(usize::MAX, 6, [2, 2]);
    for (id, request) in ids.into_iter().flat_map(|id| [(id, get_context()), (id, hello())]) {
        assert_eq!(dispatch(&mut world, id, &request, passed(&request)).status, 0);
    }
    world.flush(false);
    for request in [create_channel(), create_cq(10), alloc_dm(), open_lane(FRIEND)] {
        let reply = dispatch(&mut world, ids[ME], &request, Vec::new());
        assert_eq!(reply.status, Errno::ENOMEM.to_status());
        assert!(String::from_utf8_lossy(&reply.bytes).contains("could not get memory or a descriptor"), "{reply:?}");
    }
    let (tables, id) = (&world.tables, ids[ME]);
    assert_eq!([tables.channels.count_of(id), tables.cqs.count_of(id), tables.dms.count_of(id)], [0; 3]);
    assert!(world.lanes.is_empty() && world.contexts[&id].descriptors() == 0);
    assert!(
        !world.contexts[&ids[FRIEND]].engine.as_ref().expect("it has one").waits(),
        "no LANE push waits for the peer"
    );
}
