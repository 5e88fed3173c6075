//! Tests many threads, queue pairs and lanes at once, and blocked queue pairs that do not block
//! others.

use std::sync::Arc;

use crate::common::stranger::Stranger;
use crate::common::wait::{next, until};
use crate::common::{Fabric, Plan, Side, connect};
use abi::cq::{Wc, status};
use abi::post::opcode;
use abi::qp::state;
use engine::{Engine, SendWr};

/// Rounds of a SEND, a WRITE and a READ in one direction. All bytes are compared.
fn converse(a: &Side, b: &Side, rounds: usize, len: usize) {
    for round in 0..rounds {
        a.memory.pattern(0, len, round);
        b.recv(round as u64, 0, len);
        let remote = SendWr { remote_addr: b.memory.addr(len), rkey: b.mr.rkey(), ..SendWr::default() };
        a.post_all(&[
            SendWr { sges: &a.sge(0, len), ..SendWr::default() },
            SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(0, len), ..remote },
            SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(len, len), ..remote },
        ]);
        for _ in 0..3 {
            let wc = a.sent();
            assert_eq!(wc.status, 0, "{:?}", engine::reason::last(3));
        }
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.byte_len as usize), (round as u64, len));
        let sent = a.memory.get(0, len);
        assert!(b.memory.get(0, 2 * len) == [&sent[..], &sent].concat(), "round {round}");
        assert!(a.memory.get(len, len) == sent, "round {round}");
    }
}

fn pair_on(engines: (&Arc<Engine>, &Arc<Engine>), plan: &Plan) -> (Side, Side) {
    let pair = (Side::new(engines.0, plan), Side::new(engines.1, plan));
    connect(&pair.0, &pair.1);
    pair
}

fn two_queue_pairs_of_one_engine(fabric: &Fabric) {
    let engine = fabric.engine();
    let (a, b) = pair_on((&engine, &engine), &Plan::rc());
    converse(&a, &b, 20, 300);
    converse(&b, &a, 5, 30_000);
    // Datagrams too.
    let (c, d) = pair_on((&engine, &engine), &Plan::ud());
    let to_d = c.ah(&d);
    d.recv(1, 0, 100);
    c.post(&SendWr { ud: Some((&to_d, d.qp.qpn(), crate::common::QKEY)), sges: &c.sge(0, 50), ..SendWr::default() });
    assert_eq!((c.sent().status, d.received().byte_len), (0, 90));
}

#[test]
fn a_queue_pair_connected_with_itself() {
    let fabric = Fabric::start();
    let a = Side::new(&fabric.engine(), &Plan::rc());
    a.init();
    a.rtr(a.gid(), a.qp.qpn());
    a.rts();
    converse(&a, &a, 10, 1000);
}

fn threads_with_queue_pairs_of_their_own(fabric: &Fabric) {
    let engines = [fabric.engine(), fabric.engine()];
    // More connections than there are lanes between two engines, in both directions, and some
    // within one engine.
    let ends = [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (0, 0), (1, 1), (1, 0)];
    let pairs: Vec<_> = ends.map(|(a, b)| pair_on((&engines[a], &engines[b]), &Plan::rc())).into();
    std::thread::scope(|scope| {
        for (index, (a, b)) in pairs.iter().enumerate() {
            scope.spawn(move || converse(a, b, 100, [8, 200, 3000, 30_000][index % 4]));
        }
    });
}

/// Two threads do the same work one after the other, each on its own queues. If they have no lock
/// in common, neither can block the other. This holds while a thread polls. A thread that a busy
/// machine stops polls all lanes once after that, so the test tries again.
#[cfg(debug_assertions)]
#[test]
fn threads_with_queues_of_their_own_share_no_lock() {
    const TRIES: usize = 200;
    let fabric = Fabric::start();
    let engines = [fabric.engine(), fabric.engine()];
    let pairs = [(); 2].map(|()| pair_on((&engines[0], &engines[1]), &Plan::rc()));
    // Polls both ends all the time, as a program that does nothing else. Returns the number of
    // calls that have certainly taken a lock: posts, and polls that have found a completion.
    // Whether this thread or a helper thread does the rest depends on which thread has a processor.
    let talk = |(a, b): &(Side, Side), rounds: usize| {
        let mut calls = 0;
        for (a, b) in [(a, b), (b, a)].repeat(rounds) {
            for len in [8, 250, 4096, 30_000] {
                b.recv(1, 0, len);
                let remote = SendWr { remote_addr: b.memory.addr(len), rkey: b.mr.rkey(), ..SendWr::default() };
                a.post_all(&[
                    SendWr { sges: &a.sge(0, len), ..SendWr::default() },
                    SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(0, len), ..remote },
                    SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(len, len), ..remote },
                ]);
                calls += 2;
                let (mut wcs, mut came) = ([Wc::default(); 4], 0);
                until("its completions", || {
                    for cq in [&a.scq, &b.rcq] {
                        let count = cq.poll(&mut wcs).expect("an open device");
                        assert!(wcs[..count].iter().all(|wc| wc.status == 0), "{:?}", engine::reason::last(3));
                        came += count;
                        calls += u64::from(count > 0);
                    }
                    (came == 4).then_some(())
                });
            }
        }
        calls
    };
    // The first use opens lanes and creates objects.
    for pair in &pairs {
        talk(pair, 1);
    }
    let locks_of = |pair: &(Side, Side)| {
        engines.iter().for_each(Engine::catch_up);
        let thread = || {
            for side in [&pair.0, &pair.1].repeat(1000) {
                assert_eq!(side.scq.poll(&mut []), Ok(0), "no room for completions");
            }
            let mut calls = 0;
            let locks = engine::locks_taken(|| calls = talk(pair, 4));
            (locks, calls)
        };
        std::thread::scope(|scope| scope.spawn(thread).join().expect("no panic"))
    };
    let mut both = Vec::new();
    for _ in 0..TRIES {
        let [one, other] = pairs.each_ref().map(locks_of);
        for (locks, calls) in [&one, &other] {
            let taken = locks.values().sum::<u64>();
            assert!(*calls >= 4 * 32 && taken >= *calls, "{taken} locks in {calls} calls");
        }
        both = one.0.iter().filter_map(|(lock, times)| Some((*times, *other.0.get(lock)?))).collect();
        if both.is_empty() {
            return;
        }
    }
    panic!("{TRIES} times both threads took the same locks, and at last so often: {both:?}");
}

fn threads_that_share_a_queue_pair_and_its_queue(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    const THREADS: u64 = 4;
    const EACH: u64 = 100;
    let (remote_addr, rkey) = (b.memory.addr(0), b.mr.rkey());
    let counted = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, counted) = (&a, &counted);
            scope.spawn(move || {
                let wr = SendWr {
                    opcode: opcode::ATOMIC_FETCH_AND_ADD,
                    compare_add: 1,
                    remote_addr,
                    rkey,
                    ..SendWr::default()
                };
                for _ in 0..EACH {
                    a.post(&SendWr { sges: &a.sge(thread as usize * 8, 8), ..wr });
                    // Any thread's completion will do, because each thread has at most one
                    // outstanding request.
                    assert_eq!(next(&a.scq).status, 0);
                    counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((counted.into_inner(), b.memory.word(0)), (THREADS * EACH, THREADS * EACH));
}

fn a_connection_without_receives_does_not_delay_others(fabric: &Fabric) {
    let engines = [fabric.engine(), fabric.engine()];
    // As many connections as there are lanes, and more, so that some share a lane with the waiting
    // connection.
    let pairs: Vec<_> = (0..6).map(|_| pair_on((&engines[0], &engines[1]), &Plan::rc())).collect();
    let (waiting, others) = pairs.split_first().expect("six");
    (0..20).for_each(|_| waiting.0.post(&SendWr { sges: &waiting.0.sge(0, 40_000), ..SendWr::default() }));
    for (a, b) in others {
        converse(a, b, 10, 20_000);
    }
    assert_eq!(waiting.0.scq.poll(&mut [Wc::default()]), Ok(0));
    (0..20).for_each(|wr_id| waiting.1.recv(wr_id, 0, 40_000));
    (0..20).for_each(|wr_id| assert_eq!((waiting.0.sent().status, waiting.1.received().wr_id), (0, wr_id)));
}

#[test]
fn a_peer_that_takes_nothing_holds_up_nobody() {
    let fabric = Fabric::start();
    let engines = [fabric.engine(), fabric.engine()];
    let stranger = Stranger::new(&fabric);
    let plan = Plan::rc();
    let stuck: Vec<_> = (0..3)
        .map(|_| {
            let side = Side::new(&engines[0], &plan.hasty());
            side.init();
            side.rtr(side.gid(), stranger.qpn);
            side.rts();
            side
        })
        .collect();
    // Far more data than the lanes hold.
    for (index, side) in stuck.iter().enumerate() {
        let len = [60_000, 50_000, 40_000][index];
        (0..32).for_each(|_| side.post(&SendWr { sges: &side.sge(0, len), ..SendWr::default() }));
    }
    let pairs: Vec<_> = (0..5).map(|_| pair_on((&engines[0], &engines[1]), &plan)).collect();
    for (a, b) in &pairs {
        converse(a, b, 10, 20_000);
        converse(b, a, 10, 200);
    }
    stuck.iter().for_each(|side| assert_eq!(side.scq.poll(&mut [Wc::default()]), Ok(0)));
    // A QP that waits for room can be destroyed and reset.
    stuck[1].to(state::RESET);
    stuck[2].qp.destroy().expect("destroyed");
    // When the stranger ends, its peers see a peer that does not answer.
    drop(stranger);
    let wc = stuck[0].sent();
    assert_eq!(wc.status, status::RETRY_EXC_ERR, "{:?}", engine::reason::last(3));
    (1..32).for_each(|_| assert_eq!(stuck[0].sent().status, status::WR_FLUSH_ERR));
    // The QP that was reset can be connected to another peer.
    let peer = Side::new(&engines[1], &plan);
    connect(&stuck[1], &peer);
    converse(&stuck[1], &peer, 3, 5000);
}

fn queue_pairs_come_and_go_under_traffic(fabric: &Fabric) {
    let engines = [fabric.engine(), fabric.engine()];
    let (a, b) = pair_on((&engines[0], &engines[1]), &Plan::rc());
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| converse(&a, &b, 200, 2000));
        scope.spawn(|| {
            for round in 0..40 {
                let (c, d) = pair_on((&engines[round % 2], &engines[1]), &Plan::rc());
                converse(&c, &d, 1, 100);
                // A pair with outstanding work, destroyed in either order.
                c.post(&SendWr { sges: &c.sge(0, 100), ..SendWr::default() });
                if round % 4 < 2 {
                    c.destroy();
                    d.destroy();
                } else {
                    d.destroy();
                    c.destroy();
                }
            }
        });
        traffic.join().expect("it ends well");
    });
    until("a quiet end", || (a.scq.poll(&mut [Wc::default()]) == Ok(0)).then_some(()));
}

fn hundreds_of_queue_pairs_on_a_few_lanes(fabric: &Fabric) {
    let (ours, theirs, plan) = (fabric.engine(), fabric.engine(), Plan { memory: 4096, ..Plan::rc() });
    let (our_pd, their_pd) = (ours.alloc_pd().expect("a PD"), theirs.alloc_pd().expect("a PD"));
    let [our_cq, their_cq] = [&ours, &theirs].map(|engine| crate::common::cq(engine, 20_000));
    let pairs: Vec<_> = (0..200)
        .map(|_| {
            let a = Side::on_cqs(&ours, &our_pd, &plan, (&our_cq, &our_cq), None);
            let b = Side::on_cqs(&theirs, &their_pd, &plan, (&their_cq, &their_cq), None);
            connect(&a, &b);
            (a, b)
        })
        .collect();
    const EACH: u64 = 16;
    // The engine knows that this program polls, and the program posts as if it went on polling. So
    // another thread must make room.
    (0..1000).for_each(|_| assert_eq!(our_cq.poll(&mut [Wc::default()]), Ok(0)));
    // Everything at once, in both directions. No thread polls meanwhile.
    for (a, b) in &pairs {
        for side in [a, b] {
            (0..EACH).for_each(|wr_id| side.recv(1000 + wr_id, 0, 4096));
        }
    }
    for wr_id in 0..EACH {
        for (a, b) in &pairs {
            a.post(&SendWr { wr_id, sges: &a.sge(0, 4096), ..SendWr::default() });
            b.post(&SendWr { wr_id, sges: &b.sge(0, 100), ..SendWr::default() });
        }
    }
    for cq in [&our_cq, &their_cq] {
        let mut seen = std::collections::HashMap::<(u32, bool), u64>::new();
        for _ in 0..pairs.len() as u64 * EACH * 2 {
            let wc = next(cq);
            assert_eq!(wc.status, 0, "{:?}", engine::reason::last(3));
            let expected = seen.entry((wc.qp_num, wc.wr_id >= 1000)).or_default();
            assert_eq!(wc.wr_id % 1000, *expected, "in order for each queue");
            *expected += 1;
        }
    }
}

#[test]
fn a_polling_thread_takes_packets_of_a_stopped_thread() {
    let fabric = Fabric::start();
    let (ours, theirs) = (fabric.engine(), fabric.engine());
    let ((a, b), (c, d)) = (pair_on((&ours, &theirs), &Plan::rc()), pair_on((&ours, &theirs), &Plan::rc()));
    // Two threads poll, each where its own queue pair sends. Each leaves the other's lane alone.
    std::thread::scope(|scope| {
        for (ours, theirs) in [(&a, &b), (&c, &d)] {
            scope.spawn(move || {
                let remote = SendWr { remote_addr: theirs.memory.addr(0), rkey: theirs.mr.rkey(), ..SendWr::default() };
                for _ in 0..500 {
                    ours.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &ours.sge(0, 8), ..remote });
                    assert_eq!(ours.sent().status, 0);
                }
            });
        }
    });
    // One thread continues. The other queue pair has no polling thread, but WRITEs to it must
    // arrive and complete.
    for round in 0..20 {
        d.memory.pattern(0, 8, round);
        let remote = SendWr { remote_addr: c.memory.addr(64), rkey: c.mr.rkey(), ..SendWr::default() };
        d.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &d.sge(0, 8), ..remote });
        until("what was written", || {
            assert_eq!(a.scq.poll(&mut [Wc::default()]), Ok(0));
            (c.memory.get(64, 8) == d.memory.get(0, 8)).then_some(())
        });
        assert_eq!(d.sent().status, 0);
    }
}

fn both_ways_at_once_with_more_than_fits(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan { memory: 1 << 20, ..Plan::rc() });
    for side in [&a, &b] {
        (0..16).for_each(|wr_id| side.recv(wr_id, 0, 200_000));
    }
    for (from, to) in [(&a, &b), (&b, &a)] {
        let remote = SendWr { remote_addr: to.memory.addr(500_000), rkey: to.mr.rkey(), ..SendWr::default() };
        for _ in 0..8 {
            from.post(&SendWr { sges: &from.sge(300_000, 200_000), ..SendWr::default() });
            from.post(&SendWr { opcode: opcode::RDMA_READ, sges: &from.sge(700_000, 200_000), ..remote });
            from.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &from.sge(300_000, 200_000), ..remote });
        }
    }
    for side in [&a, &b] {
        (0..24).for_each(|_| assert_eq!(side.sent().status, 0));
        (0..8).for_each(|wr_id| assert_eq!(side.received().wr_id, wr_id));
    }
}

#[test]
fn an_engine_that_closes_under_traffic() {
    let fabric = Fabric::start();
    let ours = fabric.engine();
    let (steady, other) = pair_on((&ours, &fabric.engine()), &Plan::rc());
    for code in [opcode::RDMA_WRITE, opcode::RDMA_READ, opcode::SEND] {
        let theirs = fabric.engine();
        let (a, b) = pair_on((&ours, &theirs), &Plan::rc().hasty());
        (0..30).for_each(|wr_id| b.recv(wr_id, 0, 60_000));
        let remote = SendWr { opcode: code, remote_addr: b.memory.addr(0), rkey: b.mr.rkey(), ..SendWr::default() };
        (0..20).for_each(|_| a.post(&SendWr { sges: &a.sge(0, 60_000), ..remote }));
        assert_eq!(a.sent().status, 0);
        theirs.close();
        let failed = until("an error", || {
            let wc = a.sent();
            if wc.status == 0 {
                a.post(&SendWr { sges: &a.sge(0, 60_000), ..remote });
            }
            (wc.status != 0).then_some(wc.status)
        });
        assert_eq!(failed, status::RETRY_EXC_ERR, "{:?}", engine::reason::last(3));
        assert_eq!(a.qp.state(), u32::from(state::ERR));
        converse(&steady, &other, 3, 5000);
    }
}

crate::common::everywhere! {
    hundreds_of_queue_pairs_on_a_few_lanes
    a_connection_without_receives_does_not_delay_others
}

crate::common::even_with_losses! {
    two_queue_pairs_of_one_engine
    threads_with_queue_pairs_of_their_own
    threads_that_share_a_queue_pair_and_its_queue
    queue_pairs_come_and_go_under_traffic
    both_ways_at_once_with_more_than_fits
}
