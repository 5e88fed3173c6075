//! Batches: posted all or none, executed in order, completed once, and the ownership of their
//! memory.

use crate::common::{connect, next, sides};
use softhca::{Access, Buffer, DatagramQp, Error, Message, Operation, PostCause, PostError, Status};

fn filled(pd: &softhca::Pd, len: usize, with: u8) -> Buffer {
    let mut buffer = pd.buffer(len).expect("memory");
    buffer.fill(with);
    buffer
}

#[test]
fn one_completion_gives_every_buffer_back() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let window = b.pd.expose(4096, Access::ALL).expect("memory");
    let there = window.token();
    window.store(8, 40);
    (0..2).for_each(|id| right.receive(id, b.pd.buffer(16).expect("memory")).expect("posted"));

    let batch = left
        .batch()
        .write(filled(&a.pd, 100, 1), &there.part(100..).expect("inside"))
        .write_inline(b"flag", &there)
        .send(Message::from(filled(&a.pd, 8, 2).part(..4)).immediate(5))
        .read(a.pd.buffer(4).expect("memory"), &there)
        .fetch_add(a.pd.buffer(8).expect("memory"), &there.part(8..).expect("inside"), 2)
        .send_inline(b"end", None);
    assert_eq!((batch.len(), batch.is_empty()), (6, false));
    batch.post(7).expect("posted");

    let done = next(&a.sent).ok().expect("a success");
    assert_eq!((done.id(), done.operation(), done.bytes()), (7, Operation::Batch, 100 + 4 + 4 + 8));
    assert!(done.data().is_empty() && done.word().is_none());
    let buffers = done.into_buffers();
    assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [100, 8, 4, 8]);
    assert_eq!((&buffers[2][..], &buffers[3][..]), (&b"flag"[..], &40_u64.to_ne_bytes()[..]));
    assert_eq!((window.to_vec(..4), window.load(8), window.to_vec(199..201)), (b"flag".to_vec(), 42, vec![1, 0]));
    let first = next(&b.received);
    assert_eq!((first.data(), first.immediate()), (&[2; 4][..], Some(5)));
    assert_eq!(next(&b.received).data(), b"end");
    assert!(a.sent.poll().expect("polled").is_none(), "there is one completion");

    left.batch().send_inline(b"", None).post(8).expect("a batch of one");
    right.receive(2, b.pd.buffer(1).expect("memory")).expect("posted");
    assert_eq!(next(&a.sent).ok().expect("a success").id(), 8);
}

#[test]
fn all_or_none_is_posted() {
    let (_fabric, a, b) = sides();
    let (left, right) =
        connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received).sends(4).inline(8));
    let most = 4;
    let window = b.pd.expose(8, Access::WRITE).expect("memory").token();

    let empty = left.batch().post(0).expect_err("there is nothing in it");
    assert_eq!(empty.error.errno(), 22);
    let long = (0..most + 100).fold(left.batch(), |batch, _| batch.send(a.pd.buffer(1).expect("memory")));
    let refused = long.post(0).expect_err("longer than the queue");
    assert_eq!((refused.error.errno(), refused.buffers.len()), (22, most + 100));
    let outside = left.batch().send(filled(&a.pd, 1, 0)).write(filled(&a.pd, 9, 0), &window);
    let refused = outside.post(0).expect_err("longer than the region");
    assert!(refused.error.reason().contains("8 bytes"), "{refused}");
    assert_eq!(refused.buffers.len(), 2);
    assert!(left.batch().send_inline(&[0; 5000], None).post(0).is_err(), "longer than the queue pair takes inline");

    // Two requests wait for the peer's receives: three more do not fit, and none of the three is
    // posted.
    left.batch().send_inline(b"1", None).send_inline(b"2", None).post(1).expect("posted");
    let refused = (3..6).fold(left.batch(), |batch, _| batch.send(filled(&a.pd, 1, 3))).post(2).expect_err("no room");
    assert_eq!((refused.error.errno(), refused.buffers.len(), refused.buffers[2][0]), (12, 3, 3));
    let Error::NotPosted(PostError { cause, .. }) = refused.error else { panic!("{refused}") };
    assert_eq!(cause, PostCause::NoRoom { wanted: 3, depth: 4 });
    left.send_inline(3, b"3", None).expect("posted");
    (0..3).for_each(|id| right.receive(id, b.pd.buffer(1).expect("memory")).expect("posted"));
    let came: Vec<u8> = (0..3).map(|_| next(&b.received).ok().expect("a success").data()[0]).collect();
    assert_eq!(came, *b"123");
    assert_eq!([next(&a.sent).id(), next(&a.sent).id()], [1, 3]);
}

#[test]
fn the_first_failure_is_the_batchs_and_a_cq_never_overruns() {
    let (_fabric, a, b) = sides();
    let stale = b.pd.expose(8, Access::READ).expect("memory").token();
    let small = a.context.cq(4).expect("a CQ");
    let room = small.capacity() as usize;
    for round in 0..20 {
        let left = a.pd.reliable(&small).sends(64).build().expect("a QP");
        let right = b.pd.reliable(&b.sent).receive_cq(&b.received).build().expect("a QP");
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, right) = (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"));
        right.receive(0, b.pd.buffer(8).expect("memory")).expect("posted");
        let mut batch = left.batch().send(filled(&a.pd, 8, 1)).read(a.pd.buffer(8).expect("memory"), &stale);
        while batch.len() < room {
            batch = batch.send(filled(&a.pd, 8, 2));
        }
        batch.post(9).expect("posted");
        assert_eq!(left.send_inline(1, b"", None).expect_err("the CQ has no more room").errno(), 12);
        let failed = next(&small);
        assert_eq!((failed.id(), failed.status(), failed.bytes()), (9, Status::RemAccessErr, 0));
        let error = failed.error().expect("it failed");
        assert!(error.reason().contains("remote access"), "{error}");
        assert_eq!(failed.into_buffers().len(), room);
        assert_eq!(next(&b.received).data(), [1; 8], "what came before it has arrived");

        // In the error state all requests are flushed and complete at once.
        let flushed = (0..room).fold(left.batch(), |batch, _| batch.send(filled(&a.pd, 8, 2)));
        flushed.post(10).expect("posted");
        let flushed = next(&small);
        assert_eq!((flushed.id(), flushed.status()), (10, Status::WrFlushErr));
        assert_eq!(flushed.into_buffers().len(), room);
        assert!(small.poll().expect("polled").is_none());
        if round % 2 == 0 {
            // A batch that is dropped while it is in progress frees its room, too.
            (0..room).fold(left.batch(), |batch, _| batch.send(filled(&a.pd, 8, 3))).post(11).expect("posted");
        }
        drop((left, right));
    }
}

#[test]
fn datagrams_go_in_batches_to_several() {
    let (_fabric, a, b) = sides();
    let made =
        |side: &crate::common::Side| side.pd.datagrams(&side.sent).receive_cq(&side.received).build().expect("a QP");
    let (left, first, second) = (made(&a), made(&b), made(&b));
    let peers = [&first, &second].map(|qp| left.peer(&qp.endpoint()).expect("an address"));
    for qp in [&first, &second] {
        qp.receive(1, b.pd.buffer(DatagramQp::HEADER + 8).expect("memory")).expect("posted");
    }
    left.batch().send(filled(&a.pd, 2, 7), &peers[0]).send_inline(b"two", &peers[1], Some(2)).post(3).expect("posted");
    assert_eq!(next(&a.sent).ok().expect("a success").into_buffers().len(), 1);
    let mut came = [next(&b.received), next(&b.received)];
    came.sort_by_key(softhca::Completion::bytes);
    assert_eq!([came[0].qp(), came[1].qp()], [first.number(), second.number()]);
    assert_eq!((came[0].data(), came[1].data(), came[1].immediate()), (&[7, 7][..], &b"two"[..], Some(2)));
}
