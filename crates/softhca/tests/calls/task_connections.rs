//! Connections by address, for tasks: awaited operations, futures that are dropped at every point,
//! and disconnections.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;

use crate::common::PATIENCE;
use fabric::Fabric;
use softhca::aio::{Connection, Connector, DatagramListener, DatagramQp, Incoming, Listener, Outgoing};
use softhca::{Context, Cq, Error, Pd, Status, cm};

async fn soon<F: Future>(future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("it hangs; {:?}", softhca::reasons(5)),
    }
}

/// Polls a future at `polls` wake-ups, and drops it. Returns its value if it became ready.
async fn abandon<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    // Without the runtime's budget, which is meant for tasks that yield now and then.
    let mut future = pin!(tokio::task::unconstrained(future));
    let mut left = polls;
    soon(poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        // The next poll is the last: there may be no more wake-ups.
        if left == 0 && polled.is_pending() { Poll::Ready(None) } else { polled }
    }))
    .await
}

struct Program {
    device: Context,
    pd: Pd,
    cq: Cq,
}

impl Program {
    fn on(fabric: &Fabric, host: usize) -> Self {
        let device = fabric.host(host).open().expect("a device");
        let (pd, cq) = (device.pd().expect("a PD"), device.cq(1024).expect("a CQ"));
        Self { device, pd, cq }
    }

    async fn outgoing(&self, to: SocketAddr) -> Outgoing {
        let route = soon(Connector::new(&self.device).resolve(to)).await.expect("a route");
        route.prepare(self.pd.reliable(&self.cq)).expect("a QP")
    }

    async fn incoming(&self, listener: &Listener) -> Incoming {
        let request = soon(listener.accept()).await.expect("a request");
        let incoming = request.prepare(self.pd.reliable(&self.cq)).expect("a QP");
        incoming.post_receive(self.pd.buffer(64).expect("memory")).expect("posted");
        incoming
    }
}

fn listen(on: &Program) -> Listener {
    Listener::bind(&on.device, "0.0.0.0:0".parse().expect("an address")).expect("it listens")
}

fn reach(listener: &Listener, host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], listener.local_addr().port()))
}

/// Connects two programs, and sends a message.
async fn greet(asks: &Program, to: SocketAddr, listens: &Program, listener: &Listener) -> (Connection, Connection) {
    let (far, near) = soon(async {
        tokio::join!(async { asks.outgoing(to).await.connect(b"far").await }, async {
            listens.incoming(listener).await.accept(b"near").await
        })
    })
    .await;
    let (far, near) = (far.expect("connected"), near.expect("accepted"));
    let (sent, came) = soon(async { tokio::join!(far.send_inline(b"hello", None), near.message()) }).await;
    sent.expect("it has arrived");
    let came = came.expect("a message");
    assert_eq!(came.data(), b"hello");
    near.post_receive(came.into_buffer()).expect("posted");
    (far, near)
}

#[tokio::test]
async fn tasks_connect_and_hear_of_the_end() {
    let fabric = Fabric::two_hosts().expect("two agents");
    for host in 0..2 {
        let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, host));
        let listener = listen(&listens);
        let (far, near) = greet(&asks, reach(&listener, host), &listens, &listener).await;
        assert!(far.private_data().starts_with(b"near") && near.private_data().starts_with(b"far"));
        assert_eq!((far.peer_addr(), far.local_addr()), (near.local_addr(), near.peer_addr()));
        let ends = async { tokio::join!(near.message(), near.closed(), near.closed()) };
        let (ends, ()) = soon(async { tokio::join!(ends, async { drop(far) }) }).await;
        let ended = ends.0.expect_err("the peer is gone");
        assert!(matches!(ended.error, Error::Failed { status: Status::WrFlushErr, .. }), "{ended}");
        assert_eq!(ended.buffers[0].len(), 64);
        assert!(ends.1.is_ok() && ends.2.is_ok() && near.is_closed());
        near.disconnect().expect("it is over already");
    }
}

#[tokio::test]
async fn refusals_are_awaited_too() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let listener = listen(&listens);
    let to = reach(&listener, 1);
    let declining = async { listener.accept().await.expect("a request").reject(b"no").expect("rejected") };
    let (declined, ()) =
        soon(async { tokio::join!(async { asks.outgoing(to).await.connect(b"").await }, declining) }).await;
    assert!(matches!(declined.expect_err("it does not want us"), Error::Declined { code: 28, .. }));
    drop(listener);
    let declined = soon(asks.outgoing(to).await.connect(b"")).await.expect_err("nobody listens");
    assert!(matches!(declined, Error::Declined { code: 8, .. }), "{declined:?}");
}

#[tokio::test]
async fn a_dropped_accept_loses_no_request() {
    let fabric = Fabric::start().expect("an agent");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 0));
    let listener = listen(&listens);
    let to = reach(&listener, 0);
    for polls in 0..4 {
        assert!(abandon(listener.accept(), polls.min(1)).await.is_none());
        let asking = async { asks.outgoing(to).await.connect(b"").await.expect("connected") };
        let answering = async {
            let request = match abandon(listener.accept(), polls).await {
                Some(request) => request,
                None => listener.accept().await,
            };
            let incoming = request.expect("a request").prepare(listens.pd.reliable(&listens.cq)).expect("a QP");
            incoming.accept(b"").await.expect("accepted")
        };
        drop(soon(async { tokio::join!(asking, answering) }).await);
    }
}

#[tokio::test]
async fn a_dropped_connection_in_the_making_is_given_up() {
    for host in 0..2 {
        let fabric = Fabric::two_hosts().expect("two agents");
        let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, host));
        let listener = listen(&listens);
        let to = reach(&listener, host);
        for polls in 0..4 {
            abandon(Connector::new(&asks.device).resolve(to), polls).await;
            // The active side gives up: the passive side learns it now, or after it has accepted.
            let asking = async { abandon(asks.outgoing(to).await.connect(b""), polls.max(1)).await };
            let answering = async {
                let incoming = listens.incoming(&listener).await;
                match incoming.accept(b"").await {
                    Ok(near) => near.closed().await.expect("no error"),
                    Err(error) => assert_ne!(error.errno(), 0),
                }
            };
            soon(async {
                tokio::join!(async { drop(asking.await) }, answering);
            })
            .await;
            // The passive side gives up.
            let asking = async {
                match asks.outgoing(to).await.connect(b"").await {
                    Ok(far) => far.closed().await.expect("no error"),
                    Err(error) => assert_ne!(error.errno(), 0),
                }
            };
            let answering = async { drop(abandon(listens.incoming(&listener).await.accept(b""), polls).await) };
            soon(async { tokio::join!(asking, answering) }).await;
            greet(&asks, to, &listens, &listener).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_accept_and_connect() {
    const TASKS: usize = 16;
    const TIMES: usize = 5;
    let fabric = Fabric::two_hosts().expect("two agents");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let listener = cm::Listener::builder(&listens.device).backlog(64).bind("10.0.0.2:0".parse().expect("an address"));
    let listener = std::sync::Arc::new(Listener::from(listener.expect("it listens")));
    let to = listener.local_addr();
    let (asks, listens) = (std::sync::Arc::new(asks), std::sync::Arc::new(listens));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (listener, listens) = (std::sync::Arc::clone(&listener), std::sync::Arc::clone(&listens));
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let near = listens.incoming(&listener).await.accept(b"").await.expect("accepted");
                let came = near.message().await.expect("a message");
                near.send(came.into_buffer()).await.expect("it has arrived");
                near.closed().await.expect("no error");
            }
        });
        let asks = std::sync::Arc::clone(&asks);
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let outgoing = asks.outgoing(to).await;
                outgoing.post_receive(asks.pd.buffer(64).expect("memory")).expect("posted");
                let far = outgoing.connect(b"").await.expect("connected");
                far.send_inline(b"around", None).await.expect("it has arrived");
                assert!(far.message().await.expect("a message").data().starts_with(b"around"));
            }
        });
    }
    soon(tasks.join_all()).await;
}

#[tokio::test]
async fn tasks_find_datagram_queue_pairs() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let listener = DatagramListener::bind(&listens.device, "10.0.0.2:0".parse().expect("an address"));
    let listener = listener.expect("it listens");
    let made = |program: &Program| DatagramQp::new(program.pd.datagrams(&program.cq).build().expect("a QP"));
    let (far, near) = (made(&asks).expect("a runtime"), made(&listens).expect("a runtime"));
    near.post_receive(listens.pd.buffer(softhca::DatagramQp::HEADER + 8).expect("memory")).expect("posted");
    let asking = async {
        abandon(Connector::new(&asks.device).find(&far, listener.local_addr(), b""), 1).await;
        let found = Connector::new(&asks.device).find(&far, listener.local_addr(), b"").await.expect("an answer");
        far.send_inline(b"found", found.peer(), None).await.expect("it has left");
    };
    // The first search may have been abandoned, so more than one request can come.
    let answering = async {
        loop {
            tokio::select! {
                request = listener.accept() => request.expect("a request").answer(near.verbs(), b"").unwrap_or_default(),
                came = near.message() => return came.expect("a datagram"),
            }
        }
    };
    let ((), came) = soon(async { tokio::join!(asking, answering) }).await;
    assert_eq!(came.data(), b"found");
}

#[tokio::test]
async fn a_device_that_is_gone_ends_who_waits_for_connections() {
    let fabric = Fabric::start().expect("an agent");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 0));
    let listener = listen(&listens);
    let (far, near) = greet(&asks, reach(&listener, 0), &listens, &listener).await;
    let gone = async {
        tokio::task::yield_now().await;
        drop(fabric);
    };
    let (accepted, closed, came, ()) =
        soon(async { tokio::join!(listener.accept(), near.closed(), near.message(), gone) }).await;
    assert!(accepted.is_err() && came.is_err());
    drop(closed);
    drop(far);
}
