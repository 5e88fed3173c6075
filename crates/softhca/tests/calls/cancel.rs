//! Futures that are dropped at every point where they wait: no memory is freed too early, no
//! message is lost, and everything continues to work.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::{PATIENCE, Side, connect, sides};
use softhca::aio::Qp;
use softhca::{Access, Reliable};

/// More polls than a task makes before it sleeps.
const POLLS: usize = 110;

async fn soon<F: Future>(future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("it hangs; {:?}", softhca::reasons(5)),
    }
}

fn pair(a: &Side, b: &Side, sends: u32) -> (Qp<Reliable>, Qp<Reliable>) {
    let (left, right) = connect(a, b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received).sends(sends));
    (Qp::new(left).expect("a runtime"), Qp::new(right).expect("a runtime"))
}

/// Polls a future `polls` times, and drops it. Returns its value if it became ready.
async fn abandon<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    // Without the runtime's budget, which is meant for tasks that yield now and then.
    let mut future = pin!(tokio::task::unconstrained(future));
    for _ in 0..polls {
        if let Poll::Ready(value) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return Some(value);
        }
    }
    None
}

/// Sends a message from one side to the other, to check that everything still works.
async fn across(left: &Qp<Reliable>, right: &Qp<Reliable>, to: &Side) {
    let into = to.pd.buffer(8).expect("memory");
    let (sent, came) = soon(async { tokio::join!(left.send_inline(b"across", None), right.receive(into)) }).await;
    sent.expect("it has arrived");
    assert_eq!(came.expect("a message").data(), b"across");
}

#[tokio::test]
async fn a_dropped_send_arrives_once_or_not_at_all() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 64);
    for polls in 0..POLLS {
        right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted");
        let mut buffer = a.pd.buffer(8).expect("memory");
        buffer.fill(polls as u8);
        abandon(left.send(buffer), polls).await;
        if polls == 0 {
            soon(left.send_inline(&[0; 8], None)).await.expect("the first was never posted");
        }
        assert_eq!(soon(right.message()).await.expect("a message").data(), [polls as u8; 8]);
    }
    // The memory was freed when the messages had arrived: everything still works.
    across(&left, &right, &b).await;
}

#[tokio::test]
async fn one_that_waits_for_room_has_done_nothing() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 4);
    // No receive is posted: the queue fills up.
    let mut room = 0;
    while left.verbs().send_inline(room, b"full", None).is_ok() {
        room += 1;
    }
    for polls in 0..POLLS {
        // The first future waits for room, the second for its place in the order, the third for
        // both.
        let first = left.send(a.pd.buffer(8).expect("memory"));
        let second = left.batch().send(a.pd.buffer(8).expect("memory")).run();
        let mut first = Box::pin(first);
        let _ = poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending())).await;
        assert!(abandon(second, polls).await.is_none());
        drop(first);
        assert!(abandon(left.send(a.pd.buffer(8).expect("memory")), polls).await.is_none());
    }
    for id in 0..room {
        assert_eq!(soon(right.receive(b.pd.buffer(8).expect("memory"))).await.expect("a message").data(), b"full");
        assert_eq!(soon(a.sent.next()).await.expect("a completion").id(), id);
    }
    across(&left, &right, &b).await;
}

#[tokio::test]
async fn a_dropped_receive_loses_no_message() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 64);
    for polls in 0..POLLS as u8 {
        let first = abandon(right.receive(b.pd.buffer(8).expect("memory")), usize::from(polls)).await;
        assert!(first.is_none());
        if polls == 0 {
            right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted");
        }
        soon(left.send_inline(&[polls], None)).await.expect("it has arrived");
        // The message may have arrived when the future is dropped, before the test looks at it.
        let came = match abandon(right.message(), usize::from(polls % 2)).await {
            Some(came) => came,
            None => soon(right.message()).await,
        };
        assert_eq!(came.expect("a message").data(), [polls]);
    }
}

#[tokio::test]
async fn two_wait_and_one_gives_up() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 64);
    for polls in 1..POLLS {
        right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted");
        let mut stays = Box::pin(right.message());
        let mut leaves = Box::pin(right.message());
        for _ in 0..polls {
            poll_fn(|context| {
                assert!(stays.as_mut().poll(context).is_pending() && leaves.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        // The first waiter is woken, and drops its future with the message.
        soon(left.send_inline(b"news", None)).await.expect("it has arrived");
        let (leaves, stays) = if polls % 2 == 0 { (leaves, stays) } else { (stays, leaves) };
        drop(leaves);
        assert_eq!(soon(stays).await.expect("a message").data(), b"news");
    }
}

#[tokio::test]
async fn queue_pairs_go_while_dropped_requests_are_under_way() {
    let (_fabric, a, b) = sides();
    for polls in (0..POLLS).step_by(7).chain([1, 2]) {
        let (left, right) = pair(&a, &b, 64);
        let window = b.pd.expose(65536, Access::ALL).expect("memory").token();
        // No receive is posted for the first send, so all others wait behind it.
        abandon(left.send(a.pd.buffer(4096).expect("memory")), polls).await;
        abandon(left.write(a.pd.buffer(65536).expect("memory"), &window), polls).await;
        abandon(left.read(a.pd.buffer(65536).expect("memory"), &window), polls).await;
        abandon(left.batch().read(a.pd.buffer(8).expect("memory"), &window).send_inline(b"", None).run(), polls).await;
        abandon(right.receive(b.pd.buffer(4096).expect("memory")), polls % 2).await;
        drop((left, right));
        let (left, right) = pair(&a, &b, 64);
        across(&left, &right, &b).await;
    }
}

#[tokio::test]
async fn dropped_waits_for_completions_and_events_lose_nothing() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 64);
    for polls in 0..POLLS {
        assert!(abandon(a.sent.next(), polls).await.is_none());
        // The first message makes an event; there are no others.
        assert!(polls == 0 || abandon(a.context.next_event(), polls).await.is_none());
        right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted");
        left.verbs().send_inline(polls as u64, b"", None).expect("posted");
        soon(right.message()).await.expect("a message");
        let done = match abandon(a.sent.next(), polls % 3).await {
            Some(done) => done,
            None => soon(a.sent.next()).await,
        };
        assert_eq!(done.expect("a completion").id(), polls as u64);
    }
}

#[tokio::test]
async fn a_future_that_nobody_polls_holds_up_no_other() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 64);
    let (other, other_right) = pair(&a, &b, 64);
    for polls in [1, 10, POLLS] {
        let mut forgotten = Box::pin(left.receive(a.pd.buffer(8).expect("memory")));
        let mut sending = Box::pin(left.send_inline(b"later", None));
        for _ in 0..polls {
            poll_fn(|context| {
                assert!(forgotten.as_mut().poll(context).is_pending() && sending.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        // The dropped task is the one that polls, or sleeps; the others are woken all the same.
        for _ in 0..10 {
            across(&other, &other_right, &b).await;
        }
        right.post_receive(b.pd.buffer(8).expect("memory")).expect("posted");
        soon(right.send_inline(b"woken", None)).await.expect("it has arrived");
        assert_eq!(soon(forgotten).await.expect("a message").data(), b"woken");
        soon(sending).await.expect("it has arrived");
    }
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_sleeping_task_is_woken_by_its_own_completion_alone() {
    let (_fabric, a, b) = sides();
    let (left, right) = pair(&a, &b, 64);
    let (other, other_right) = pair(&a, &b, 64);
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    let mut waiting = Box::pin(right.receive(b.pd.buffer(8).expect("memory")));
    while {
        let before = count.0.load(Ordering::Relaxed);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        count.0.load(Ordering::Relaxed) > before
    } {}
    let asleep = count.0.load(Ordering::Relaxed);
    for _ in 0..100 {
        across(&other, &other_right, &b).await;
    }
    assert_eq!(count.0.load(Ordering::Relaxed), asleep, "the same CQ, but nothing for it");
    soon(left.send_inline(b"", None)).await.expect("it has arrived");
    while count.0.load(Ordering::Relaxed) == asleep {
        tokio::task::yield_now().await;
    }
    assert!(waiting.as_mut().poll(&mut context).is_ready());
}
