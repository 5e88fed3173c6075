//! The reasons of failed requests: a QP explains each failed request with its numbers, and each
//! flushed request behind it.

use crate::common::wait::until;
use crate::common::{Fabric, Plan, QKEY, Side, ah, everywhere};
use abi::cq::status;
use abi::post::{Sge, opcode};
use abi::qp::{ModifyQp, attr, state};
use abi::reason::Cause;
use engine::{RecvWr, SendWr};

everywhere! {
    a_bad_rkey
    a_receiver_that_is_never_ready
    a_receive_buffer_that_is_too_short
    each_length_error_names_its_own_cause
    an_address_handle_of_another_pd
    a_read_without_initiator_depth
    an_lkey_that_nobody_has
    a_peer_that_is_gone
    a_program_that_flushes
    datagrams_that_are_dropped
}

/// The sentence about a request, which names the request and its QP.
#[track_caller]
fn why(side: &Side, wr_id: u64) -> String {
    let sentence = side.qp.why(wr_id).expect("something failed");
    assert!(sentence.starts_with(&format!("QP {:#x}, wr_id {wr_id:#x}: ", side.qp.qpn())), "{sentence}");
    sentence
}

#[track_caller]
fn says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
}

fn a_bad_rkey(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    assert_eq!((a.qp.why(1), a.qp.cause()), (None, None));
    b.recv(9, 0, 8);
    let bad = b.mr.rkey() ^ 0xff00;
    let write = SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(0), rkey: bad, ..SendWr::default() };
    let sge = a.sge(0, 8);
    a.post_all(&[SendWr { wr_id: 1, sges: &sge, ..write }, SendWr { wr_id: 2, sges: &sge, ..SendWr::default() }]);
    assert_eq!((a.sent().status, a.sent().status), (status::REM_ACCESS_ERR, status::WR_FLUSH_ERR));
    let peer = format!("QP {}", wire::Qpn::new(b.qp.qpn()));
    says(&why(&a, 1), &["remote access error", "NAK", &peer, "packet", "check rkey"]);
    says(&why(&a, 2), &["flushed", "wr_id 0x1 failed", "remote access error", &peer]);
    // The other side knows the key in question.
    assert_eq!(b.received().status, status::WR_FLUSH_ERR);
    says(&why(&b, 9), &["flushed", "refused a peer's RDMA WRITE", &format!("{bad:#x}")]);
}

fn a_receiver_that_is_never_ready(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan { rnr_retry: 1, ..Plan::rc() });
    a.post(&SendWr { wr_id: 3, sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(a.sent().status, status::RNR_RETRY_EXC_ERR);
    says(&why(&a, 3), &["no receive request", "2 tries (rnr_retry 1)", "post receive requests"]);
}

fn a_receive_buffer_that_is_too_short(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    b.recv(4, 0, 8);
    a.post(&SendWr { wr_id: 5, sges: &a.sge(0, 100), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (status::REM_INV_REQ_ERR, status::LOC_LEN_ERR));
    says(&why(&b, 4), &["at least 100 bytes", "receive buffer of 8", "as long as the longest"]);
    says(&why(&a, 5), &["remote invalid request", "the peer's reasons"]);
}

#[track_caller]
fn says_nothing_of(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(!sentence.contains(word), "{word:?} is in: {sentence}");
    }
}

/// Words for the receiver's remedy and about the peer. An error that the peer never learned of must
/// not contain them.
const OF_OTHERS: [&str; 3] = ["post receive buffers", "peer", "::"];

fn each_length_error_names_its_own_cause(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let too_long = a.mtu() + 1;
    let wr = SendWr { wr_id: 1, sges: &a.sge(0, too_long), ..SendWr::default() };
    a.post(&SendWr { ud: Some((&a.ah(&b), b.qp.qpn(), QKEY)), ..wr });
    assert_eq!(a.sent().status, status::LOC_LEN_ERR);
    let (datagram, mtu) = (format!("a datagram of {too_long} bytes"), format!("MTU of {}", a.mtu()));
    says(&why(&a, 1), &["local length error", &datagram, &mtu, "at most one MTU"]);
    says_nothing_of(&why(&a, 1), &OF_OTHERS);

    for (lens, words) in [
        (&[0x8000_0000_u32, 1][..], ["a message of 2147483649 bytes is", "max_msg_sz, which is 2147483648"]),
        (&[0x8000_0000, 0x8000_0000, 8], ["a message of 4294967295 bytes or more", "several messages"]),
    ] {
        let (a, _b) = fabric.pair(&Plan::rc());
        let sges: Vec<_> = lens.iter().map(|&len| Sge::new(a.memory.addr(0), len, a.mr.lkey())).collect();
        a.post(&SendWr { wr_id: 2, sges: &sges, ..SendWr::default() });
        assert_eq!(a.sent().status, status::LOC_LEN_ERR);
        says(&why(&a, 2), &words);
        says_nothing_of(&why(&a, 2), &OF_OTHERS);
    }

    let (a, b) = fabric.pair(&Plan::rc());
    let add = SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, compare_add: 1, ..SendWr::default() };
    let target = SendWr { remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..add };
    a.post(&SendWr { wr_id: 3, sges: &a.sge(0, 7), ..target });
    assert_eq!(a.sent().status, status::LOC_LEN_ERR);
    says(&why(&a, 3), &["the answer of 8 bytes", "scatter list of 7", "give an atomic 8 bytes"]);
    says_nothing_of(&why(&a, 3), &OF_OTHERS);
}

fn an_address_handle_of_another_pd(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let other = a.engine.alloc_pd().expect("a PD");
    let foreign = ah(&other, b.gid(), a.gid_index());
    let ud = Some((&*foreign, b.qp.qpn(), QKEY));
    a.post(&SendWr { wr_id: 1, ud, sges: &a.sge(0, 8), ..SendWr::default() });
    assert_ne!(a.sent().status, status::SUCCESS);
    says(&why(&a, 1), &["the address handle is on another PD", "create the address handle on the QP's PD"]);
    says_nothing_of(&why(&a, 1), &["lkey", "region", "peer"]);
}

fn a_read_without_initiator_depth(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { max_rd_atomic: 0, ..Plan::rc() });
    let read = SendWr { opcode: opcode::RDMA_READ, remote_addr: b.memory.addr(0), ..SendWr::default() };
    a.post(&SendWr { wr_id: 1, rkey: b.mr.rkey(), sges: &a.sge(0, 8), ..read });
    assert_eq!(a.sent().status, status::LOC_QP_OP_ERR);
    says(&why(&a, 1), &["max_rd_atomic is 0", "set max_rd_atomic to at least 1"]);
    says_nothing_of(&why(&a, 1), &["peer"]);
}

fn an_lkey_that_nobody_has(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan::rc());
    let bad = a.mr.lkey() ^ 0xff_ff00;
    a.post(&SendWr { wr_id: 1, sges: &[Sge::new(a.memory.addr(0), 8, bad)], ..SendWr::default() });
    assert_eq!(a.sent().status, status::LOC_PROT_ERR);
    says(&why(&a, 1), &[&format!("{bad:#x}"), "check the lkey"]);
    says_nothing_of(&why(&a, 1), &["access flags", "peer"]);
}

fn a_peer_that_is_gone(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc().hasty());
    b.engine.close();
    a.post(&SendWr { wr_id: 6, sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    says(&why(&a, 6), &["did not acknowledge", "retry_cnt 2", "check that the peer's program is running"]);
}

fn a_program_that_flushes(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan::rc());
    a.recv(7, 0, 8);
    a.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() });
    assert_eq!(a.received().status, status::WR_FLUSH_ERR);
    says(&why(&a, 7), &["flushed", "the program moved it there"]);
    // A refused request has a reason too. After a reset, the QP has no reasons.
    let too_many = [a.sge(0, 8)[0]; 5];
    assert!(a.qp.post_recv(&RecvWr { wr_id: 8, sges: &too_many }).is_err());
    says(&why(&a, 8), &["post_recv", "5 scatter elements", "takes 4"]);
    a.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::RESET, ..ModifyQp::default() });
    assert_eq!((a.qp.why(8), a.qp.cause()), (None, None));
}

fn datagrams_that_are_dropped(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::ud());
    let ah = a.ah(&b);
    let send = |qpn, qkey| a.post(&SendWr { ud: Some((&ah, qpn, qkey)), sges: &a.sge(0, 8), ..SendWr::default() });
    let (from, to) = (a.qp.qpn(), b.qp.qpn());
    // A wrong Q_Key first, and then no receive request.
    send(to, QKEY + 1);
    send(to, QKEY);
    assert_eq!((a.sent().status, a.sent().status), (0, 0));
    for (cause, words) in
        [(Cause::QKey, ["Q_Key", "the QP has"]), (Cause::NoReceive, ["no receive request", "post receive"])]
    {
        let found = until("the drop", || b.engine.drops().into_iter().find(|drop| drop.cause() == Some(cause)));
        assert_eq!((found.qpn, found.count, found.src_qp, found.dest_qp), (to, 1, from, to));
        says(&found.sentence(), &words);
    }
    let noted = engine::reason::last(usize::MAX);
    let told = |sentence: &String| sentence.starts_with(&format!("QP {to:#x}: ")) && sentence.contains("Q_Key");
    assert!(noted.iter().any(told), "{noted:?}");
}
