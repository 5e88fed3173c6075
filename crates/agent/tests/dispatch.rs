//! `dispatch` as a function: a table of commands and their results, on a host without a kernel.
//!
//! The host's memory is the test's own, and its random numbers are in order. A descriptor is always
//! one of the kernel's, so all of them lead to `/dev/null`. The principal type is [`Row`].

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::Errno;
use abi::command::{legacy, number};
use abi::cq::{CreateCq, DestroyCq};
use abi::device::{GetContext, QueryPort};
use abi::mr::{DeregMr, RegMr};
use abi::pd::{AllocPd, DeallocPd};
use abi::post::{Post, SendWr};
use abi::qp::{CreateQp, DestroyQp, ModifyQp, attr, kind, state};
use agent::Config;
use agent::config::Wire;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::host::Host;
use agent::numbers::Chance;
use agent::world::World;
use shm::region::{Lender, Region};
use shm::socket::Socket;
use shm::wake_word::WakeWordView;

/// A host without a kernel.
struct Paper {
    /// How many more pieces of memory it gives out.
    pieces: AtomicUsize,
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
        7
    }

    fn memory(&self, _name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        let taken = self.pieces.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.map_err(|_| io::ErrorKind::OutOfMemory)?;
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
        Ok(())
    }

    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }

    fn capture_ring(&self, _room: usize) -> io::Result<OwnedFd> {
        nothing()
    }

    fn duplicate(&self, _fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        nothing()
    }

    fn inode(&self, _memory: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
        Ok((1, 1))
    }

    fn event_file(&self) -> io::Result<OwnedFd> {
        nothing()
    }

    fn push_socket(&self, _room: usize) -> io::Result<(Socket, OwnedFd)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn relay(
        &self,
        _set: BorrowedFd<'_>,
        _number: u32,
        _wake_word: BorrowedFd<'_>,
    ) -> io::Result<(OwnedFd, WakeWordView)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A world of this host and a client that has not sent a command.
fn room(pieces: usize) -> (World, ContextId) {
    let config = Config { wire: Wire::Off, ..Config::default() };
    let host = Arc::new(Paper { pieces: AtomicUsize::new(pieces) });
    let mut world = World::on(host, &config, "a test").expect("a world");
    let id = world.open(0, 0, Peer { pid: 1, uid: 2, comm: "test".into() }).expect("open");
    (world, id)
}

/// The handles that the commands before have returned.
#[derive(Default)]
struct Made {
    pd: u32,
    mr: u32,
    cq: u32,
    qp: u32,
}

enum Expected {
    Done,
    /// The answer's first word is the handle of a new object.
    Makes(fn(&mut Made) -> &mut u32),
    /// With these words in the sentence.
    Refused(Errno, &'static str),
}
use Expected::{Done, Makes, Refused};

/// A command, and what comes of it.
type Row = (&'static str, fn(&Made) -> Vec<u8>, Expected);

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

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("a PD before the device is open", |_| alloc_pd(), Refused(Errno::EINVAL, "GET_CONTEXT")),
    ("the device", |_| legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48), Done),
    ("a port that does not exist", |_| query_port(9), Refused(Errno::EINVAL, "port")),
    ("a PD", |_| alloc_pd(), Makes(|made| &mut made.pd)),
    ("an MR without a PD", |_| reg_mr(0), Refused(Errno::ENOENT, "PD")),
    ("an MR", |made| reg_mr(made.pd), Makes(|made| &mut made.mr)),
    ("a CQ without room", |_| create_cq(0), Refused(Errno::EINVAL, "")),
    ("a CQ", |_| create_cq(10), Makes(|made| &mut made.cq)),
    ("a QP of no type", |made| create_qp(made, 77), Refused(Errno::EOPNOTSUPP, "77")),
    ("a QP", |made| create_qp(made, kind::RC), Makes(|made| &mut made.qp)),
    ("RESET to RTS", |made| modify(made, state::RTS, attr::STATE), Refused(Errno::EINVAL, "RTS")),
    ("RESET to INIT", |made| modify(made, state::INIT, INIT), Done),
    ("a post without an engine", post_send, Refused(Errno::EOPNOTSUPP, "POST_SEND needs an engine")),
    ("a PD that is in use", dealloc_pd, Refused(Errno::EBUSY, "PD 1")),
    ("the QP goes", |made| legacy(number::DESTROY_QP, &DestroyQp { response: 1, qp_handle: made.qp, reserved: 0 }, &[], 4), Done),
    ("the CQ goes", |made| legacy(number::DESTROY_CQ, &DestroyCq { response: 1, cq_handle: made.cq, reserved: 0 }, &[], 8), Done),
    ("the MR goes", |made| legacy(number::DEREG_MR, &DeregMr { mr_handle: made.mr }, &[], 0), Done),
    ("the PD goes", dealloc_pd, Done),
    ("a PD that is gone", dealloc_pd, Refused(Errno::ENOENT, "PD")),
];

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

/// Carries out the table. Returns all replies.
fn carry_out() -> Vec<(i32, Vec<u8>)> {
    let (mut world, id) = room(usize::MAX);
    let mut made = Made::default();
    let mut replies = Vec::new();
    for (what, request, expected) in ROWS {
        let Reply { status, bytes, .. } = dispatch(&mut world, id, &request(&made), Vec::new());
        let said = String::from_utf8_lossy(&bytes);
        match expected {
            Done => assert_eq!(status, 0, "{what}: {said}"),
            Makes(handle) => {
                assert_eq!(status, 0, "{what}: {said}");
                *handle(&mut made) = u32::from_le_bytes(bytes[..4].try_into().expect("a handle"));
            }
            Refused(errno, words) => {
                assert_eq!(status, errno.to_status(), "{what}: {said}");
                assert!(said.contains(words), "{what}: {said}");
            }
        }
        replies.push((status, bytes));
    }
    replies
}

#[test]
fn a_table_of_commands_has_the_same_replies_each_time() {
    let replies = carry_out();
    assert_eq!(replies, carry_out());
    let post = ROWS.iter().position(|(what, ..)| what.contains("post")).expect("it is in the table");
    assert_eq!(replies[post].1[..4], [1, 0, 0, 0], "the first work request is at fault");
}

#[test]
fn a_host_without_memory_refuses_and_nothing_is_left() {
    // The board and the context page.
    let (mut world, id) = room(2);
    let open = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48);
    assert_eq!(dispatch(&mut world, id, &open, Vec::new()).status, 0);
    let reply = dispatch(&mut world, id, &create_cq(10), Vec::new());
    assert_eq!(reply.status, Errno::ENOMEM.to_status());
    assert!(String::from_utf8_lossy(&reply.bytes).contains("could not get memory"), "{reply:?}");
    assert_eq!(world.tables.cqs.count_of(id), 0);
}
