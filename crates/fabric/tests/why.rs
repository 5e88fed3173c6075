//! Why: each way in which a request fails is explained by its QP, with numbers, and so is everything that was flushed behind it.

mod common;

use abi::cq::status;
use abi::post::opcode;
use abi::qp::{ModifyQp, attr, state};
use abi::reason::Cause;
use common::wait::until;
use common::{Fabric, Plan, QKEY, Side, everywhere};
use engine::{RecvWr, SendWr};

everywhere! {
    a_bad_rkey
    a_receiver_that_is_never_ready
    a_receive_buffer_that_is_too_short
    a_peer_that_is_gone
    a_program_that_flushes
    datagrams_that_are_dropped
}

/// The sentence about a request, which names it and its QP.
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
    // The other side knows which key it was.
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

fn a_peer_that_is_gone(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc().hasty());
    b.engine.close();
    a.post(&SendWr { wr_id: 6, sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(a.sent().status, status::RETRY_EXC_ERR);
    says(&why(&a, 6), &["did not acknowledge", "retry_cnt 2", "still run"]);
}

fn a_program_that_flushes(fabric: &Fabric) {
    let (a, _b) = fabric.pair(&Plan::rc());
    a.recv(7, 0, 8);
    a.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() });
    assert_eq!(a.received().status, status::WR_FLUSH_ERR);
    says(&why(&a, 7), &["flushed", "the program moved it there"]);
    // What is refused is explained as well, and a QP that begins anew has forgotten.
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
    // Another Q_Key, and then no receive request.
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
