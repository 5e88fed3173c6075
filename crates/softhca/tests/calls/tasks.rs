//! Verbs for tasks: awaited operations, many tasks on one CQ, full queues, and the ends of devices
//! and runtimes.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::common::{PATIENCE, Side, connect, sides};
use fabric::Fabric;
use softhca::aio::{DatagramQp, Qp};
use softhca::{About, Access, Error, EventKind, Message, Operation, Reliable, Status};
use tokio::task::JoinSet;

/// Awaits a future with a time limit that only a hang reaches.
async fn soon<F: Future>(future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("it hangs; {:?}", softhca::reasons(5)),
    }
}

/// Two connected queue pairs of the current runtime.
fn pair(a: &Side, b: &Side) -> (Qp<Reliable>, Qp<Reliable>) {
    let (left, right) = connect(a, b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    (Qp::new(left).expect("a runtime"), Qp::new(right).expect("a runtime"))
}

#[test]
fn futures_may_go_to_other_threads() {
    fn sent<T: Send + Sync>(_: &T) {}
    fn check(qp: &Qp<Reliable>, cq: &softhca::Cq, buffer: softhca::Buffer) {
        sent(qp);
        fn future<T: Send>(_: T) {}
        future(qp.send(buffer));
        future(qp.message());
        future(qp.batch().run());
        future(cq.next());
    }
    let _ = check;
}

#[tokio::test]
async fn every_operation_can_be_awaited() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b);
    let window = b.pd.expose(4096, Access::ALL).expect("memory");
    let there = window.token();

    let mut buffer = a.pd.buffer(64).expect("memory");
    buffer.fill(7);
    let message = Message::from(buffer.part(..20)).immediate(9);
    let (sent, came) =
        soon(async { tokio::join!(left.send(message), right.receive(b.pd.buffer(64).expect("memory"))) }).await;
    let came = came.expect("a message");
    assert_eq!((came.data(), came.immediate(), came.operation()), (&[7; 20][..], Some(9), Operation::Receive));
    let buffer = sent.expect("it has arrived").into_buffer();
    assert_eq!(buffer.len(), 64);

    let buffer =
        soon(left.write(buffer.part(..8), &there.part(64..).expect("inside"))).await.expect("written").into_buffer();
    soon(left.write_inline(b"inline", &there)).await.expect("written");
    assert_eq!((window.to_vec(..6), window.to_vec(64..72)), (b"inline".to_vec(), vec![7; 8]));
    let read = soon(left.read(buffer, &there)).await.expect("read");
    assert_eq!((read.operation(), &read.data()[..6]), (Operation::Read, &b"inline"[..]));
    window.store(8, 40);
    let word = there.part(8..).expect("inside");
    let added = soon(left.fetch_add(read.into_buffer().part(..8), &word, 2)).await.expect("added");
    assert_eq!((added.word(), window.load(8)), (Some(40), 42));
    let swapped = soon(left.compare_swap(added.into_buffer().part(..8), &word, 42, 1)).await.expect("swapped");
    assert_eq!((swapped.word(), window.load(8)), (Some(42), 1));

    (0..2).for_each(|_| right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted"));
    let batch = left.batch().write(swapped.into_buffer(), &there).send_inline(b"done", None);
    assert_eq!(soon(batch.run()).await.expect("all of it").into_buffers().len(), 1);
    soon(left.send_inline(b"more", Some(1))).await.expect("sent");
    assert_eq!(soon(right.message()).await.expect("a message").data(), b"done");
    assert_eq!(soon(right.message()).await.expect("a message").data(), b"more");

    let refused = soon(left.write(a.pd.buffer(9).expect("memory"), &there.part(..8).expect("inside")))
        .await
        .expect_err("too long");
    assert_eq!((refused.error.errno(), refused.buffers[0].len()), (22, 9));
    let refused = soon(left.batch().run()).await.expect_err("nothing in it");
    assert_eq!(refused.error.errno(), 22);
}

#[tokio::test]
async fn datagrams_can_be_awaited() {
    let (_fabric, a, b) = sides();
    let made =
        |side: &Side| DatagramQp::new(side.pd.datagrams(&side.sent).receive_cq(&side.received).build().expect("a QP"));
    let (left, right) = (made(&a).expect("a runtime"), made(&b).expect("a runtime"));
    let to_right = left.verbs().peer(&right.verbs().endpoint()).expect("an address");
    let header = softhca::DatagramQp::HEADER;
    (0..2).for_each(|_| right.post_receive(b.pd.buffer(header + 8).expect("memory")).expect("posted"));
    let sent = soon(left.send(a.pd.buffer(8).expect("memory"), &to_right)).await.expect("sent");
    soon(left.batch().send(sent.into_buffer().part(..3), &to_right).run()).await.expect("sent");
    assert_eq!(soon(right.message()).await.expect("a datagram").bytes(), 8);
    let came = soon(right.message()).await.expect("a datagram");
    let back = right.verbs().answer(&came.source().expect("a datagram has one")).expect("an address");
    left.post_receive(a.pd.buffer(header + 8).expect("memory")).expect("posted");
    soon(right.send_inline(b"back", &back, None)).await.expect("sent");
    assert_eq!(soon(left.message()).await.expect("a datagram").data(), b"back");
}

/// Twelve connections on one CQ of each side, eight tasks on each.
async fn crowd() {
    const TASKS: u64 = 8;
    const MESSAGES: u64 = 40;
    let fabric = Fabric::start().expect("an agent");
    let (a, b) = (Side::new(&fabric), Side::new(&fabric));
    let (here, there) = (a.context.cq(2048).expect("a CQ"), b.context.cq(2048).expect("a CQ"));
    let mut tasks = JoinSet::new();
    for _ in 0..12 {
        let left = a.pd.reliable(&here).build().expect("a QP");
        let right = b.pd.reliable(&there).receives(64).build().expect("a QP");
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let left = Arc::new(Qp::new(left.connect(&to_right).expect("connected")).expect("a runtime"));
        let right = Arc::new(Qp::new(right.connect(&to_left).expect("connected")).expect("a runtime"));
        for buffer in b.pd.buffer(64 * 8).expect("memory").pieces(8) {
            right.post_receive(buffer).expect("posted");
        }
        for (task, mut buffer) in a.pd.buffer(8 * TASKS as usize).expect("memory").pieces(8).into_iter().enumerate() {
            let left = Arc::clone(&left);
            tasks.spawn(async move {
                for number in 0..MESSAGES {
                    buffer.copy_from_slice(&(task as u64 * MESSAGES + number).to_ne_bytes());
                    buffer = left.send(buffer).await.expect("it arrives").into_buffer();
                }
                0
            });
            let right = Arc::clone(&right);
            tasks.spawn(async move {
                let mut sum = 0;
                for _ in 0..MESSAGES {
                    let came = right.message().await.expect("a message");
                    sum += u64::from_ne_bytes(came.data().try_into().expect("8 bytes"));
                    right.post_receive(came.into_buffer()).expect("posted");
                }
                sum
            });
        }
    }
    let sum: u64 = soon(tasks.join_all()).await.into_iter().sum();
    assert_eq!(sum, 12 * (0..TASKS * MESSAGES).sum::<u64>());
}

#[tokio::test]
async fn many_tasks_share_one_thread() {
    crowd().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_tasks_share_threads() {
    crowd().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_to_a_full_queue_wait_in_order() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received).sends(4));
    let (left, right) = (Arc::new(Qp::new(left).expect("a runtime")), Qp::new(right).expect("a runtime"));
    // No receive is posted yet: the queue fills, and the other sends wait.
    let mut sends = JoinSet::new();
    for number in 0..100_u8 {
        let (left, mut buffer) = (Arc::clone(&left), a.pd.buffer(1).expect("memory"));
        buffer[0] = number;
        // Polled once here, so that the sends have this order.
        let mut sending = Box::pin(async move {
            if number % 3 == 0 {
                left.batch().send(buffer).send_inline(&[number], None).run().await
            } else {
                left.send(buffer).await
            }
        });
        assert!(poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_pending())).await);
        sends.spawn(sending);
    }
    let mut came = Vec::new();
    while came.len() < 134 {
        let message = soon(right.receive(b.pd.buffer(1).expect("memory"))).await.expect("a message");
        came.push(message.data()[0]);
    }
    assert!(came.is_sorted(), "{came:?}");
    assert!(soon(sends.join_all()).await.into_iter().all(|sent| sent.is_ok()));
}

#[tokio::test]
async fn requests_with_ids_and_events_can_be_awaited_on_the_same_queues() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b);
    (0..2).for_each(|_| right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted"));
    left.verbs().send_inline(5, b"five", None).expect("posted");
    let (done, sent) = soon(async { tokio::join!(a.sent.next(), left.send_inline(b"six", None)) }).await;
    assert_eq!(done.expect("a completion").id(), 5);
    sent.expect("it has arrived");
    assert_eq!(a.sent.wait().expect_err("tasks have its events").errno(), 16);
    assert!(a.sent.poll().expect("polled").is_none());
    assert_eq!(soon(right.message()).await.expect("a message").data(), b"five");

    // A scope blocks, and gives tasks the completions that it finds meanwhile.
    let mut into = [0; 8];
    left.verbs()
        .scope(|s| {
            s.receive(1, &mut into)?;
            right.verbs().send_inline(9, b"scope", None)
        })
        .expect("received");
    assert_eq!(&into[..5], b"scope");
    assert_eq!(soon(b.sent.next()).await.expect("a completion").id(), 9);
    assert_eq!(soon(right.message()).await.expect("a message").data(), b"six");

    let srq = b.pd.srq(8).expect("an SRQ");
    srq.limit(1).expect("armed");
    let taker = b.pd.reliable(&b.sent).receive_cq(&b.received).srq(&srq).build().expect("a QP");
    let giver = a.pd.reliable(&a.sent).build().expect("a QP");
    let (to_taker, to_giver) = (taker.endpoint(), giver.endpoint());
    let taker = Qp::new(taker.connect(&to_giver).expect("connected")).expect("a runtime");
    let giver = Qp::new(giver.connect(&to_taker).expect("connected")).expect("a runtime");
    srq.receive(3, b.pd.buffer(8).expect("memory")).expect("posted");
    let (event, sent) = soon(async {
        let limit = async {
            loop {
                let event = b.context.next_event().await.expect("an event");
                if event.kind == EventKind::SrqLimitReached {
                    return event.about;
                }
            }
        };
        tokio::join!(limit, giver.send_inline(b"taken", None))
    })
    .await;
    sent.expect("it has arrived");
    assert_eq!(event, About::Srq(srq.number()));
    let came = soon(taker.message()).await.expect("a message");
    assert_eq!((came.id(), came.data()), (3, &b"taken"[..]));
}

#[tokio::test]
async fn completions_before_the_runtime_are_delivered_first() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    (1..4).for_each(|id| right.receive(id, b.pd.buffer(8).expect("memory")).expect("posted"));
    left.send_inline(0, b"one", None).expect("posted");
    left.send_inline(0, b"two", None).expect("posted");
    (0..2).for_each(|_| drop(crate::common::next(&a.sent).ok().expect("a success")));
    // The scope finds both completions and keeps them for later polls.
    right
        .scope(|s| s.send(9, &[]).and_then(|()| left.receive(0, a.pd.buffer(0).expect("memory")).map_err(Into::into)))
        .expect("sent");
    let (left, right) = (Qp::new(left).expect("a runtime"), Qp::new(right).expect("a runtime"));
    soon(left.send_inline(b"three", None)).await.expect("it has arrived");
    for (id, said) in [(1, &b"one"[..]), (2, b"two"), (3, b"three")] {
        let came = soon(right.message()).await.expect("a message");
        assert_eq!((came.id(), came.data()), (id, said));
    }
}

#[tokio::test]
async fn a_failure_gives_the_buffers_back() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b);
    let stale = b.pd.expose(8, Access::READ).expect("memory").token();
    left.post_receive(a.pd.buffer(33).expect("memory")).expect("posted");
    let batch = left.batch().send_inline(b"first", None).read(a.pd.buffer(8).expect("memory"), &stale);
    let (failed, came) =
        soon(async { tokio::join!(batch.run(), right.receive(b.pd.buffer(8).expect("memory"))) }).await;
    assert_eq!(came.expect("a message").data(), b"first");
    let failed = failed.expect_err("the key is stale");
    assert!(matches!(failed.error, Error::Failed { status: Status::RemAccessErr, .. }), "{failed}");
    assert_eq!(failed.buffers.len(), 1);
    let flushed = soon(left.message()).await.expect_err("flushed");
    assert_eq!(flushed.buffers[0].len(), 33);
    assert!(soon(left.message()).await.expect_err("nothing is left to receive into").buffers.is_empty());
    let flushed = soon(left.send(a.pd.buffer(3).expect("memory"))).await.expect_err("flushed");
    assert!(matches!(flushed.error, Error::Failed { status: Status::WrFlushErr, .. }), "{flushed}");
    assert_eq!(flushed.buffers[0].len(), 3);
}

#[tokio::test]
async fn a_device_that_is_gone_wakes_everybody() {
    let (fabric, a, b) = sides();
    let (left, right) = pair(&a, &b);
    let idle = pair(&a, &b);
    let waits = async {
        tokio::join!(
            left.receive(a.pd.buffer(50).expect("memory")),
            right.send(b.pd.buffer(60).expect("memory")),
            left.send(a.pd.buffer(70).expect("memory")),
            idle.0.message(),
            a.sent.next(),
        )
    };
    let gone = async {
        tokio::task::yield_now().await;
        drop(fabric);
    };
    let ((came, sent, stuck, idle, next), ()) = soon(async { tokio::join!(waits, gone) }).await;
    // The message may have arrived just before.
    drop((came, sent));
    let stuck = stuck.expect_err("nobody receives it");
    assert_eq!(stuck.buffers[0].len(), 70, "{stuck}");
    assert_eq!(idle.expect_err("gone").error.errno(), 5);
    assert_eq!(next.expect_err("gone").errno(), 5);
    assert_eq!(soon(a.sent.next()).await.expect_err("gone").errno(), 5);
    let events = async { while b.context.next_event().await.is_ok() {} };
    soon(events).await;
}

#[test]
fn a_runtime_that_ends_leaves_nobody_waiting() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (_fabric, a, b) = sides();
    let outside = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    assert_eq!(Qp::new(outside.0).expect_err("no runtime").errno(), 22);

    let first = runtime();
    let (left, right) = first.block_on(async { pair(&a, &b) });
    right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted");
    drop(first);
    runtime().block_on(async {
        // Completions that are there are still found.
        soon(left.send_inline(b"last", None)).await.map_or_else(|error| assert_eq!(error.errno(), 5), |()| ());
        let ended = soon(left.receive(a.pd.buffer(8).expect("memory"))).await.expect_err("nobody watches");
        assert!(ended.error.reason().contains("runtime"), "{ended}");
    });
}
