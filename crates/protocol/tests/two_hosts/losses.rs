//! A path as between hosts: packets have a latency and a spacing, and some are lost. First long
//! runs in both directions; then single losses, to see which ones need the timer and which do not.

use crate::corners::{answer, request, responder, summary, take};
use crate::mixed::{Expectation, READ, WORDS, post};
use crate::packet::{Answers, OneByOne};
use crate::reliable::{is, pattern, psns};
use crate::world::{A, B, Scenario, World};
use softhca_protocol::{Outcome, Requester, Status, Time, timeout};
use wire::{NakCode, Operation as W, Syndrome};

/// Keeps both queues full until each has sent `total` messages, and compares everything with the
/// model.
fn stream(scenario: Scenario, total: usize) -> World {
    let mut world = World::new(scenario);
    let reads = [A, B].map(|_| world.random.bytes(0x4_0000));
    let mut models = [A, B].map(|_| Expectation {
        written: vec![0; 0x4_0000],
        words: [0; 4],
        messages: Vec::new(),
        local: Vec::new(),
        atomics: 0,
        carried_out: Vec::new(),
    });
    for host in [A, B] {
        world.hosts[host].memory[READ as usize..][..0x4_0000].copy_from_slice(&reads[host]);
    }
    let (mut seen, mut received) = ([0; 2], [0; 2]);
    loop {
        for host in [A, B] {
            while world.hosts[host].local.len() < total && world.hosts[host].requester.outstanding() < 64 {
                let World { random, hosts, .. } = &mut world;
                if post(random, scenario.mtu, &mut hosts[host], &reads[1 - host], &mut models[host]) {
                    // Some receive requests are posted late.
                    let late = if random.percent(2) { u64::from(random.below(200_000)) } else { 0 };
                    world.post_receive_later(1 - host, late, 0x4_0000);
                }
            }
        }
        let more = world.step();
        for from in [A, B] {
            let model = &mut models[from];
            while let Some(&(slot, status)) = world.hosts[from].completions.get(seen[from]) {
                assert_eq!((slot as usize, status), (seen[from], Status::Success), "{scenario:?}");
                let local = std::mem::take(&mut world.hosts[from].local[seen[from]]);
                assert!(
                    local == std::mem::take(&mut model.local[seen[from]]),
                    "request {slot} of {from}: {scenario:?}"
                );
                seen[from] += 1;
            }
            let peer = &mut world.hosts[1 - from];
            while let Some(message) = peer.received.get_mut(received[from]) {
                assert!(std::mem::take(message) == std::mem::take(&mut model.messages[received[from]]), "{scenario:?}");
                received[from] += 1;
            }
            assert_eq!(peer.responder.dead(), None, "{scenario:?}");
        }
        if !more {
            break;
        }
    }
    for from in [A, B] {
        let (host, peer, model) = (&world.hosts[from], &world.hosts[1 - from], &models[from]);
        assert_eq!((seen[from], received[from]), (total, model.messages.len()), "{scenario:?}");
        assert!(peer.memory[..0x4_0000] == model.written, "memory written by {from}: {scenario:?}");
        let words: Vec<_> = (0..4).map(|which| peer.word(WORDS as usize + 8 * which)).collect();
        assert_eq!((words, peer.atomics), (model.words.to_vec(), model.atomics), "atomics by {from}: {scenario:?}");
        assert_eq!(host.requester.under_way(), 0);
    }
    world
}

const PATH: Scenario = Scenario {
    service: softhca_protocol::Service::Rc,
    seed: 1,
    mtu: 1024,
    psn: 0xff_f000,
    loss: 1,
    duplication: 0,
    reordering: 0,
    path_full: 0,
    lossless: false,
    timeout: 14,
    retry_cnt: 7,
    rnr_retry: 7,
    rd_atomic: 16,
    read_piece: 16,
    window: 40,
    probe_after: 0,
    patience: 1,
    latency: 15_000,
    spacing: 1_000,
};

/// A timeout as programs choose it: 67 ms.
const LONG_WAIT: u64 = 4096 << 14;

#[test]
fn ten_thousand_messages_and_nothing_lost() {
    let world = stream(Scenario { loss: 0, ..PATH }, 10_000);
    assert_eq!([A, B].map(|host| world.hosts[host].requester.losses()), [0, 0]);
}

#[test]
fn ten_thousand_messages_with_one_percent_lost() {
    let world = stream(PATH, 10_000);
    // Almost only losses that no packet follows wait for the timer.
    let losses = world.hosts[A].requester.losses() + world.hosts[B].requester.losses();
    assert!(world.now.0 / LONG_WAIT < u64::from(losses) / 10, "{} timers for {losses} losses", world.now.0 / LONG_WAIT);
}

#[test]
fn ten_thousand_messages_with_five_percent_lost() {
    let _ = stream(Scenario { loss: 5, ..PATH }, 10_000);
}

#[test]
fn ten_thousand_messages_with_loss_and_probes() {
    let took = [0, 1, 5].map(|loss| stream(Scenario { loss, probe_after: 2_000_000, ..PATH }, 10_000).now.0);
    assert!(took[1] < 3 * took[0] && took[2] < 10 * took[0], "{took:?} ns with 0, 1 and 5 % loss");
}

/// All kinds of requests, so many that the window is full until near the end.
fn workload(world: &mut World) {
    world.hosts[B].memory[..60_000].copy_from_slice(&pattern(60_000));
    world.hosts[B].receives.extend([20_000; 6]);
    world.hosts[A].write(100_000, &pattern(20_000));
    world.hosts[A].read(0, 50_000);
    world.hosts[A].send(&pattern(3_000));
    world.hosts[A].fetch_add(200_000, 1);
    world.hosts[A].read(10_000, 100);
    for _ in 0..4 {
        world.hosts[A].send(&pattern(2_000));
    }
    world.hosts[A].read(0, 20_000);
    world.hosts[A].write(150_000, &pattern(20_000));
    world.hosts[A].send(b"end");
}

#[test]
fn of_all_packets_only_the_last_needs_the_timer() {
    let scenario = Scenario { loss: 0, ..PATH };
    let mut whole = World::new(scenario);
    workload(&mut whole);
    whole.run();
    for from in [A, B] {
        let packets = whole.operations(from);
        for (n, operation) in packets.iter().enumerate() {
            let mut world = World::new(scenario);
            world.lose_nth(from, n, |_| true);
            workload(&mut world);
            world.run();
            let what = format!("packet {n} of {from} lost, {operation:?}");
            assert_eq!(world.hosts[A].statuses(), [Status::Success; 12], "{what}");
            let last = n + 1 == packets.len();
            assert_eq!(world.now.0 > LONG_WAIT, last, "{what}");
            // Exactly one loss is counted. The next ACK makes up for a lost ACK.
            let expected = u32::from(last || *operation != W::Acknowledge);
            assert_eq!(world.hosts[A].requester.losses(), expected, "{what}");
        }
    }
}

/// Loses the first `times` packets of `host` for which `is` holds.
fn lose(world: &mut World, host: usize, times: u32, is: impl Fn(&wire::Headers) -> bool + 'static) {
    let mut left = times;
    world.lose = Box::new(move |from, headers| {
        let hit = left > 0 && from == host && is(headers);
        left -= u32::from(hit);
        hit
    });
}

#[test]
fn repeated_loss_of_one_packet_is_repaired_without_the_timer() {
    // The packet is lost seven times, which is all that `retry_cnt` allows.
    let scenario = Scenario { loss: 0, psn: 100, ..PATH };
    let mut world = World::new(scenario);
    lose(&mut world, A, 7, |headers| headers.psn.value() == 105);
    world.hosts[A].write(0, &pattern(20_000));
    world.run();
    assert_eq!((world.hosts[A].statuses(), world.hosts[A].requester.losses()), (vec![Status::Success], 7));
    assert!(world.now.0 < LONG_WAIT);
    assert_eq!(psns(&world, B).iter().filter(|&&psn| psn == 105).count(), 7, "a NAK for each");

    let mut world = World::new(scenario);
    lose(&mut world, B, 7, |headers| headers.psn.value() == 105);
    world.hosts[A].read(0, 20_000);
    world.run();
    assert_eq!((world.hosts[A].statuses(), world.hosts[A].requester.losses()), (vec![Status::Success], 7));
    assert!(world.now.0 < LONG_WAIT);

    let mut world = World::new(scenario);
    lose(&mut world, A, 8, |headers| headers.psn.value() == 105);
    world.hosts[A].write(0, &pattern(20_000));
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::RetryExcErr], "and once more is once too often");
    assert!(world.now.0 < LONG_WAIT);
}

#[test]
fn a_lost_nak_is_the_business_of_the_timer_or_of_a_probe() {
    for (probe_after, limit) in [(0, 2 * LONG_WAIT), (2_000_000, 3_000_000)] {
        let mut world = World::new(Scenario { loss: 0, psn: 100, probe_after, ..PATH });
        let mut packets = 0;
        world.lose = Box::new(move |from, headers| {
            packets += u32::from(from == A && headers.psn.value() == 105);
            let nak = matches!(headers.aeth.syndrome, Syndrome::Nak(_));
            packets == 1 && (from == A && headers.psn.value() == 105 || from == B && nak)
        });
        world.hosts[A].write(0, &pattern(20_000));
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::Success]);
        assert!(world.now.0 < limit, "{:?}", world.now);
    }
}

/// Sends everything that may be sent.
fn burst(requester: &mut Requester, now: u64) -> usize {
    std::iter::from_fn(|| requester.poll_transmit(Time(now))).count()
}

#[test]
fn a_report_that_is_repeated_counts_once() {
    let nak = answer(W::Acknowledge, 102, Syndrome::Nak(NakCode::PsnSequence));
    let passing = answer(W::ReadResponseMiddle, 108, Syndrome::ACK);
    for (report, read) in [(nak, false), (passing, true)] {
        let mut world = World::new(Scenario { loss: 0, psn: 100, ..PATH });
        if read {
            world.hosts[A].read(0, 15_000);
        } else {
            world.hosts[A].write(0, &pattern(15_000));
        }
        let requester = &mut world.hosts[A].requester;
        let _ = burst(requester, 0);
        // There is no better estimate, so the first report sets the response time: about 30 µs.
        for now in 30_000..37_000 {
            let _ = requester.handle_response(Time(now), &report, 1024);
            let _ = burst(requester, now);
        }
        assert_eq!((requester.losses(), requester.fatal()), (1, None));
        // A later report may be of another loss, of the retransmission, and counts as one. The
        // limit becomes longer each time.
        for round in 1..=7 {
            let now = 30_000 + (15_000 << round);
            let _ = requester.handle_response(Time(now), &report, 1024);
            let _ = burst(requester, now);
        }
        assert_eq!(requester.fatal(), Some(Status::RetryExcErr));
    }
}

#[test]
fn a_responder_reports_once_what_is_sent_once() {
    let mut responder = responder(1);
    let nak = Some((W::Acknowledge, 0, 0x60));
    for (psn, answer) in [(1, nak), (2, None), (2, None), (5, None), (1, nak), (3, None), (2, nak)] {
        let _ = take(&mut responder, &request(W::WriteOnly, psn, 0, 8), 8);
        assert_eq!(summary(responder.poll_transmit()), answer, "at {psn}");
    }
    let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 0, 0x1f)));
    let _ = take(&mut responder, &request(W::WriteOnly, 2, 0, 8), 8);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 1, 0x60)));
    // Packets behind one that found no receive request will be retransmitted anyway.
    let _ = take(&mut responder, &request(W::WriteOnly, 9, 0, 8), 8);
    let _ = responder.handle(&request(W::SendOnly, 1, 0, 8), 8);
    responder.finish(Outcome::Rnr);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 1, 0x20)));
    let _ = take(&mut responder, &request(W::WriteOnly, 2, 0, 8), 8);
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn a_repeated_ack_passes_no_read_whose_answer_is_perhaps_lost() {
    let mut responder = responder(2);
    for (operation, psn) in [(W::WriteOnly, 0), (W::WriteOnly, 1), (W::ReadRequest, 2), (W::WriteOnly, 3)] {
        let _ = take(&mut responder, &request(operation, psn, 0, 8), if psn == 2 { 0 } else { 8 });
    }
    while responder.poll_transmit().is_some() {}
    let mut again = |psn| {
        let _ = responder.handle(&request(W::WriteOnly, psn, 0, 8), 8);
        summary(responder.poll_transmit())
    };
    assert_eq!(again(0), Some((W::Acknowledge, 1, 0x1f)), "up to the READ");
    assert_eq!(again(3), Some((W::Acknowledge, 3, 0x1f)));
}

#[test]
fn an_ack_of_what_was_received_before_is_no_report() {
    // Not all responders are so careful.
    let mut world = World::new(Scenario { loss: 0, psn: 100, ..PATH });
    for _ in 0..3 {
        world.hosts[A].write(0, b"data");
        world.hosts[A].fetch_add(0, 1);
    }
    let requester = &mut world.hosts[A].requester;
    let _ = burst(requester, 0);
    requester.handle_timeout(requester.poll_timeout().expect("a timer"));
    let now = LONG_WAIT + 1_000_000;
    let _ = burst(requester, now);
    let ack = answer(W::Acknowledge, 104, Syndrome::ACK);
    let _ = requester.handle_response(Time(now + 30_000), &ack, 0);
    assert_eq!((requester.losses(), requester.under_way()), (1, 5), "the atomics are still to be answered");
    // When a newer request is answered before the atomics, they are lost.
    world.hosts[A].write(0, b"data");
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester, now), 1);
    let ack = answer(W::Acknowledge, 106, Syndrome::ACK);
    let _ = requester.handle_response(Time(now + 60_000), &ack, 0);
    assert_eq!((requester.losses(), requester.under_way()), (2, 0));
}

#[test]
fn probes_use_up_no_tries() {
    let mut world = World::new(Scenario { loss: 0, retry_cnt: 2, probe_after: 2_000_000, ..PATH });
    world.hosts[B].serves = false;
    world.hosts[A].write(0, &pattern(10_000));
    world.run();
    assert_eq!((world.hosts[A].statuses(), world.hosts[A].requester.losses()), (vec![Status::RetryExcErr], 2));
    assert_eq!(world.now, Time(3 * timeout(14).expect("a time")));
    // Ten packets at each of three tries, and one packet after 2, 6, 14, 30 and 62 ms.
    assert_eq!(psns(&world, A).len(), 3 * (10 + 5));
}

#[test]
fn patience_makes_each_try_longer() {
    for patience in [0, 1, 4] {
        let mut world = World::new(Scenario { loss: 0, retry_cnt: 2, patience, ..PATH });
        world.hosts[B].serves = false;
        world.hosts[A].write(0, b"data");
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::RetryExcErr]);
        assert_eq!(world.now, Time(3 * u64::from(patience.max(1)) * timeout(14).expect("a time")));
    }
}

#[test]
fn a_slow_peer_is_bothered_with_single_packets() {
    let mut world = World::new(Scenario { loss: 0, psn: 100, latency: 10_000_000, probe_after: 2_000_000, ..PATH });
    world.hosts[A].write(0, &pattern(30_000));
    world.hosts[A].read(0, 3_000);
    world.run();
    assert_eq!((world.hosts[A].statuses(), world.hosts[A].requester.losses()), (vec![Status::Success; 2], 0));
    // Probes leave after 2, 6 and 14 ms. When the first answer comes, the rest may have been lost,
    // so it is sent again.
    let sent = psns(&world, A).len();
    assert!(sent < 31 + 3 + 31, "{sent}");
    assert_eq!(psns(&world, A)[31..34], [100; 3]);
    // By now the path is known to be slow.
    world.hosts[A].write(0, &pattern(30_000));
    world.run();
    assert_eq!(psns(&world, A).len(), sent + 30);
}

#[test]
fn a_lost_end_is_found_by_a_probe() {
    for host in [A, B] {
        let mut world = World::new(Scenario { loss: 0, probe_after: 2_000_000, ..PATH });
        lose(&mut world, host, 2, is([W::WriteOnly, W::Acknowledge][host]));
        world.hosts[A].write(0, b"data");
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::Success]);
        assert!(world.now < Time(7_000_000), "{:?}", world.now);
    }
}
