//! Reasons in the safe API: a completion says why it failed, a queue pair why it is in error, a context what it has dropped.

mod common;

use std::time::Instant;

use common::{PATIENCE, connect, next, sides};
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
