//! Reasons in the safe API: a completion tells why it failed, a queue pair why it is in the error
//! state, a context what it has dropped.

use std::time::Instant;

use crate::common::{PATIENCE, connect, next, sides};
use softhca::{Access, Error, RemoteRegion, Status};

#[test]
fn a_completion_says_why_and_so_do_those_behind_it() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    assert_eq!(left.why(), None);
    let window = b.pd.expose(64, Access::ALL).expect("memory");
    let mut token = window.token().to_bytes();
    drop(window);
    let gone = RemoteRegion::from_bytes(&token);
    token.fill(0);
    left.write(1, a.pd.buffer(8).expect("memory"), &gone).expect("posted");
    left.send(2, a.pd.buffer(8).expect("memory")).expect("posted");
    let (first, second) = (next(&a.sent), next(&a.sent));
    assert_eq!((first.status(), second.status()), (Status::RemAccessErr, Status::WrFlushErr));
    let why = first.why().expect("it failed").to_owned();
    assert!(why.contains("NAK") && why.contains("check rkey"), "{why}");
    let flushed = second.why().expect("it failed");
    assert!(flushed.contains("flushed") && flushed.contains("remote access error"), "{flushed}");
    assert!(matches!(first.error(), Some(Error::Failed { id: 1, reason, .. }) if reason == why));
    assert!(left.why().is_some_and(|cause| cause.contains("remote access error")), "{:?}", left.why());
    assert!(right.why().is_some_and(|cause| cause.contains("refused a peer's RDMA WRITE")), "{:?}", right.why());
    assert!(a.context.drops().is_empty(), "{:?}", a.context.drops());
}

/// The sentences of this process that contain `part`.
fn sentences(part: &str) -> Vec<String> {
    softhca::reasons(usize::MAX).into_iter().filter(|sentence| sentence.contains(part)).collect()
}

#[test]
fn reasons_and_flushes_name_requests_by_the_ids_of_the_program() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let gone = b.pd.expose(64, Access::ALL).expect("memory").token();
    right.receive(0x5ec0_0002_0001, b.pd.buffer(8).expect("memory")).expect("posted");
    // Something is flushed even if the write fails before the send is posted.
    left.receive(1, a.pd.buffer(8).expect("memory")).expect("posted");
    left.write(0xfeed_0000_cafe, a.pd.buffer(8).expect("memory"), &gone).expect("posted");
    left.send(0xfeed_0000_cafe + 1, a.pd.buffer(8).expect("memory")).expect("posted");
    let (failed, flushed) = (next(&a.sent), next(&a.sent));
    assert_eq!((failed.id(), flushed.id()), (0xfeed_0000_cafe, 0xfeed_0000_caff));
    let (number, peer) = (left.number(), right.number());
    let sentence = format!("QP {number:#x}, wr_id 0xfeed0000cafe: remote access error");
    assert_eq!(sentences(&sentence).len(), 1, "{:?}", softhca::reasons(9));
    let cause = "wr_id 0xfeed0000cafe failed: remote access error";
    assert!(flushed.why().is_some_and(|why| why.contains(cause)), "{:?}", flushed.why());
    assert!(left.why().is_some_and(|why| why.starts_with(cause)), "{:?}", left.why());
    let told = sentences("requests are flushed");
    let told = told.iter().find(|sentence| sentence.starts_with(&format!("QP {number:#x}: "))).expect("a flush");
    assert!(told.contains(cause), "{told}");
    let error = failed.error().expect("it failed").to_string();
    assert!(
        error.starts_with(&format!("request 280293860756222 (wr_id 0xfeed0000cafe) on QP {number:#x} failed: ")),
        "{error}"
    );

    // The peer's receive was flushed, with its own id.
    let flushed = next(&b.received);
    assert_eq!((flushed.status(), flushed.id()), (Status::WrFlushErr, 0x5ec0_0002_0001));

    // A failed receive, one of an SRQ, and one in the middle of a batch.
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    right.receive(0x5ec0_0001, b.pd.buffer(8).expect("memory")).expect("posted");
    left.send(1, a.pd.buffer(9).expect("memory")).expect("posted");
    assert_eq!(next(&b.received).status(), Status::LocLenErr);
    assert_eq!(sentences(&format!("QP {:#x}, wr_id 0x5ec00001: ", right.number())).len(), 1);
    assert_ne!(right.number(), peer);
    next(&a.sent);

    let srq = b.pd.srq(4).expect("an SRQ");
    let (left, right) =
        (a.pd.reliable(&a.sent).build(), b.pd.reliable(&b.sent).receive_cq(&b.received).srq(&srq).build());
    let (left, right) = (left.expect("a QP"), right.expect("a QP"));
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"));
    srq.receive(0x5ec0_0003, b.pd.buffer(8).expect("memory")).expect("posted");
    left.send(1, a.pd.buffer(9).expect("memory")).expect("posted");
    assert_eq!(next(&b.received).status(), Status::LocLenErr);
    assert_eq!(sentences(&format!("QP {:#x}, wr_id 0x5ec00003: ", right.number())).len(), 1);
    next(&a.sent);

    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let batch = left.batch().write(a.pd.buffer(8).expect("memory"), &gone);
    batch.send_inline(b"after it", None).post(0xba7c).expect("posted");
    assert_eq!(next(&a.sent).status(), Status::RemAccessErr);
    assert_eq!(sentences(&format!("QP {:#x}, wr_id 0xba7c: remote access error", left.number())).len(), 1);
}

#[test]
fn an_error_is_debugged_as_its_sentence_and_only_once() {
    let (_fabric, a, b) = sides();
    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let gone = b.pd.expose(64, Access::ALL).expect("memory").token();
    let rejected = left.write(1, a.pd.buffer(65).expect("memory"), &gone).expect_err("too long");
    assert!(rejected.to_string().starts_with("the remote region has 64 bytes"), "{rejected}");
    assert_eq!(format!("{rejected:?}"), rejected.to_string());
    assert!(std::error::Error::source(&rejected).is_none(), "a chain of causes would print the sentence twice");
    let error = Error::from(rejected);
    assert_eq!(format!("{error:?}"), error.to_string());
    left.read(2, a.pd.buffer(8).expect("memory"), &gone).expect("posted");
    let error = next(&a.sent).ok().expect_err("the memory is gone");
    assert_eq!(format!("{error:?}"), error.to_string());
    let error = "rc".parse::<softhca::Endpoint>().expect_err("no endpoint");
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn a_context_says_what_it_has_dropped() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.unreliable(&side.sent).receive_cq(&side.received));
    left.send(1, a.pd.buffer(8).expect("memory")).expect("posted");
    assert_eq!(next(&a.sent).status(), Status::Success);
    let limit = Instant::now() + PATIENCE;
    while b.context.drops().is_empty() {
        assert!(b.received.poll().expect("polled").is_none() && Instant::now() < limit);
        std::thread::yield_now();
    }
    let [dropped] = &b.context.drops()[..] else { panic!("{:?}", b.context.drops()) };
    assert!(dropped.contains("no receive request was posted") && dropped.contains(&format!("{:#x}", right.number())));
}
