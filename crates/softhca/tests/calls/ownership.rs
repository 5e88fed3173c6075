//! Ownership of memory: refused, flushed, dropped while in progress, borrowed, and after the device
//! is gone.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{connect, next, sides};
use fabric::Fabric;
use softhca::{
    Access, Buffer, Completion, Context, Cq, DatagramQp, Endpoint, Error, Exposed, PostCause, PostError, Qp, Reliable,
    Srq, Status, WorkQueue,
};

#[test]
fn handles_may_go_to_other_threads() {
    fn both<T: Send + Sync>() {}
    both::<(Context, Cq, Qp<Reliable>, DatagramQp, Srq)>();
    both::<(Buffer, Exposed, Completion, Error)>();
}

#[test]
fn a_refused_request_gives_its_buffer_back() {
    let (_fabric, a, b) = sides();
    let small = a.context.cq(1).expect("a CQ");
    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receives(2).receive_cq(&side.received));
    let made = |len| a.pd.buffer(len).expect("memory");

    (0..2).for_each(|id| left.receive(id, made(1)).expect("posted"));
    let refused = left.receive(2, made(77)).expect_err("the queue is full");
    assert_eq!((refused.error.errno(), refused.buffers[0].len()), (12, 77));
    let queue = WorkQueue::Receive(left.number());
    let full = PostError { queue, cause: PostCause::QueueFull { depth: 2 } };
    assert!(matches!(refused.error, Error::NotPosted(error) if error == full), "{refused}");
    let why = format!("post_recv on QP {:#x}: the receive queue is full: 2 requests", left.number());
    assert_eq!(
        (refused.error.reason(), refused.to_string()),
        ((&*why).into(), format!("{why} ({})", abi::Errno::ENOMEM))
    );

    let window = b.pd.expose(10, Access::WRITE).expect("memory").token();
    let refused = left.write(3, made(11), &window).expect_err("too long");
    assert!(refused.error.reason().contains("10 bytes"), "{refused}");
    let refused = left.send(4, (0..5).map(|_| made(1).into()).collect::<Vec<_>>()).expect_err("too many parts");
    assert_eq!(refused.buffers.len(), 5);
    assert!(refused.error.reason().contains("5 gather elements"), "{refused}");

    let waiting = a.pd.reliable(&small).build().expect("a QP");
    for id in 0..u64::from(small.capacity()) {
        waiting.receive(id, made(1)).expect("the CQ has room");
    }
    let refused = waiting.receive(2, made(1)).expect_err("the CQ would overrun");
    let Error::NotPosted(PostError { cause, .. }) = refused.error else { panic!("{refused}") };
    let capacity = small.capacity();
    assert_eq!(cause, PostCause::CqFull { cq: small.number(), capacity, outstanding: capacity });
    drop(waiting);
    a.pd.reliable(&small).build().expect("a QP").receive(0, made(1)).expect("there is room again");
}

#[test]
fn a_failure_says_why_and_gives_the_buffers_back() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    right.receive(1, b.pd.buffer(10).expect("memory")).expect("posted");
    right.receive(2, b.pd.buffer(11).expect("memory")).expect("posted");
    left.send(3, a.pd.buffer(20).expect("memory")).expect("posted");
    let failed = next(&a.sent);
    assert_eq!((failed.status(), failed.bytes(), failed.data().len()), (Status::RemInvReqErr, 0, 0));
    assert!(failed.error().expect("it failed").reason().contains("remote invalid request"), "{:?}", failed.error());
    assert_eq!(failed.into_buffer().len(), 20);
    let failed = next(&b.received);
    assert_eq!((failed.id(), failed.status()), (1, Status::LocLenErr));
    let error = failed.error().expect("it failed");
    assert!(error.reason().contains("20 bytes came for a receive buffer of 10"), "{error}");
    assert!(error.to_string().starts_with("request 1 (wr_id 0x1) on QP 0x"), "{error}");
    let flushed = next(&b.received);
    assert_eq!((flushed.id(), flushed.status(), flushed.into_buffer().len()), (2, Status::WrFlushErr, 11));
    left.send(4, a.pd.buffer(12).expect("memory")).expect("posted, to be flushed");
    let flushed = next(&a.sent);
    assert!(flushed.error().is_some_and(|error| error.reason().contains("error state")));
    assert_eq!((flushed.id(), flushed.into_buffer().len()), (4, 12));

    let stale = b.pd.expose(8, Access::READ).expect("memory").token();
    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    left.read(5, a.pd.buffer(8).expect("memory"), &stale).expect("posted");
    let failed = next(&a.sent);
    assert_eq!(failed.status(), Status::RemAccessErr, "the memory has ended, and its key with it");
}

#[test]
fn a_flushed_buffer_returns_and_a_dropped_one_is_freed() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    left.receive(1, a.pd.buffer(1000).expect("memory")).expect("posted");
    left.flush().expect("flushed");
    assert_eq!(next(&a.received).into_buffer().len(), 1000);

    // A sender writes all the time while the receiver and its memory go.
    let (stop, stopped) = mpsc::channel::<()>();
    std::thread::scope(|threads| {
        for round in 0..20 {
            let (left, right) = connect(&a, &b, |side| side.pd.unreliable(&side.sent).receive_cq(&side.received));
            (0..32).for_each(|id| right.receive(id, b.pd.buffer(4096).expect("memory")).expect("posted"));
            let sender = threads.spawn({
                let a = &a;
                move || {
                    for id in 0..32 {
                        left.send(id, a.pd.buffer(4096).expect("memory")).expect("posted");
                        next(&a.sent);
                    }
                }
            });
            if round % 2 == 0 {
                next(&b.received);
            }
            drop(right);
            sender.join().expect("no panic");
            while b.received.poll().expect("polled").is_some() {}
        }
    });
    drop(right);
    drop((stop, stopped));
}

#[test]
fn borrowed_memory_is_back_when_the_scope_ends() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let window = b.pd.expose(64, Access::ALL).expect("memory");
    let there = window.token();
    // A receive of another caller, whose completion comes while the scope waits: the CQ keeps it.
    left.receive(77, a.pd.buffer(8).expect("memory")).expect("posted");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut got = [0_u8; 8];
            let length = right.scope(|s| {
                s.receive(1, &mut got)?;
                s.settle()?;
                Ok(s.bytes(1))
            });
            assert_eq!((length.expect("received"), &got[..4]), (Some(4), &b"ping"[..]));
            right.send_inline(2, b"for 77", None).expect("posted");
            right.send_inline(2, b"pong", None).expect("posted");
            (0..2).for_each(|_| drop(next(&b.sent).ok().expect("a success")));
        });
        let (question, mut answer, mut read) = (*b"ping", [0; 4], [0; 2]);
        left.scope(|s| {
            s.receive(1, &mut answer)?;
            s.write(2, &question, &there)?;
            s.read(3, &mut read, &there.part(1..3)?)?;
            s.send(4, &question)
        })
        .expect("all went well");
        assert_eq!((&answer, &read), (b"pong", b"in"));
    });
    let other = next(&a.received);
    assert_eq!((other.id(), other.data()), (77, &b"for 77"[..]));
}

#[test]
fn a_scope_tells_the_first_failure_and_a_panic_ends_it() {
    let (_fabric, a, b) = sides();
    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let stale = b.pd.expose(8, Access::READ).expect("memory").token();
    let (mut into, mut never) = ([0; 8], [0; 8]);
    let failed = left.scope(|s| {
        s.read(5, &mut into, &stale)?;
        // Nobody sends; the receive is flushed when the read has failed.
        s.receive(6, &mut never)
    });
    assert!(matches!(failed, Err(Error::Failed { status: Status::RemAccessErr, id: 5, .. })), "{failed:?}");

    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        left.scope(|s| -> Result<(), Error> {
            s.receive(1, &mut into)?;
            panic!("as it happens");
        })
    }));
    assert!(panicked.is_err());
    into[0] = 1;
    assert_eq!(into[0], 1, "it is ours again");
}

#[test]
fn a_device_that_is_gone_gives_everything_back() {
    let (fabric, a, b) = sides();
    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    left.receive(1, a.pd.buffer(50).expect("memory")).expect("posted");
    drop(fabric);
    let flushed = next(&a.received);
    assert_eq!((flushed.status(), flushed.into_buffer().len()), (Status::WrFlushErr, 50));
    let gone = loop {
        match a.context.wait_event_for(Duration::from_secs(20)) {
            Ok(event) => drop(event.expect("an event")),
            Err(gone) => break gone,
        }
    };
    assert_eq!(gone.errno(), 5);
    assert_eq!(a.received.wait().expect_err("nothing more comes").errno(), 5);
    assert_eq!(a.context.pd().expect_err("gone").errno(), 5);
}

#[test]
fn endpoints_travel_as_bytes_and_text() {
    let (_fabric, a, b) = sides();
    let qp = a.pd.reliable(&a.sent).build().expect("a QP");
    let endpoint = qp.endpoint();
    assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()).expect("its own bytes"), endpoint);
    assert_eq!(endpoint.to_string().parse::<Endpoint>().expect("its own text"), endpoint);
    for wrong in
        ["", "rc,0x1000000,1,1024,1,::1", "rc,0x100,1,1000,1,::1", "xx,0x100,1,1024,1,::1", "rc,0x1,1,1024,1,::1,"]
    {
        assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
    }
    assert!(Endpoint::from_bytes(&[0xff; Endpoint::LEN]).is_err());
    let other = b.pd.unreliable(&b.sent).build().expect("a QP");
    let refused = other.connect(&endpoint).expect_err("another service");
    assert!(refused.reason().contains("reliable"), "{refused}");
    let datagrams = a.pd.datagrams(&a.sent).qkey(5).build().expect("a QP").endpoint();
    assert_eq!(softhca::DatagramEndpoint::from_bytes(&datagrams.to_bytes()).expect("its own bytes"), datagrams);
    assert_eq!(datagrams.to_string().parse::<softhca::DatagramEndpoint>().expect("its own text"), datagrams);
}

#[test]
fn waiting_threads_each_get_one() {
    let fabric = Fabric::start().expect("an agent");
    let (a, b) = (crate::common::Side::new(&fabric), crate::common::Side::new(&fabric));
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    (0..8).for_each(|id| right.receive(id, b.pd.buffer(8).expect("memory")).expect("posted"));
    std::thread::scope(|threads| {
        let waiters: Vec<_> =
            (0..8).map(|_| threads.spawn(|| next(&b.received).ok().expect("a success").id())).collect();
        for id in 0..8 {
            left.send_inline(id, b"wake up", None).expect("posted");
            next(&a.sent).ok().expect("a success");
        }
        let mut ids: Vec<u64> = waiters.into_iter().map(|waiter| waiter.join().expect("no panic")).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..8).collect::<Vec<_>>());
    });
    assert!(b.received.wait_for(Duration::from_millis(1)).expect("no error").is_none());
}
