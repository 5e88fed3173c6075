//! Paths that often lose, duplicate and reorder packets: how soon a loss that no packet follows is
//! probed. A path that has lost a packet is probed sooner. A path that is only slow is not treated
//! like that.

use crate::reliable::{is, psns};
use crate::world::{A, B, Scenario, World};
use softhca_protocol::Status;
use wire::Operation as W;

/// As between hosts: the first probe after 20 ms.
const PROBE: u32 = 20_000_000;

const PATH: Scenario = Scenario {
    service: softhca_protocol::Service::Rc,
    seed: 1,
    mtu: 1024,
    psn: 0xff_ff00,
    loss: 0,
    duplication: 0,
    reordering: 0,
    path_full: 0,
    lossless: false,
    timeout: 14,
    retry_cnt: 7,
    rnr_retry: 7,
    rd_atomic: 16,
    read_piece: 16,
    window: 96,
    probe_after: PROBE,
    patience: 4,
    latency: 15_000,
    spacing: 1_000,
};

/// Sends long messages, one after the other. Returns the time in milliseconds.
fn messages(scenario: Scenario, count: u32) -> u64 {
    let mut world = World::new(scenario);
    let data = world.random.bytes(64 << 10);
    for number in 0..count {
        world.post_receive_later(B, 0, data.len());
        if number % 2 == 0 {
            world.hosts[A].send(&data);
        } else {
            let _ = (world.hosts[A].read(0, data.len()), world.hosts[B].receives.pop_front());
        }
        world.run();
    }
    assert_eq!(world.hosts[A].statuses(), vec![Status::Success; count as usize], "{scenario:?}");
    assert!(world.hosts[B].received.iter().all(|(message, _)| *message == data), "{scenario:?}");
    world.now.0 / 1_000_000
}

#[test]
fn a_path_that_loses_much_does_not_stand_still() {
    for seed in 1..=5 {
        let path = Scenario { seed, ..PATH };
        let whole = messages(path, 100);
        for (fault, most) in [
            (Scenario { loss: 1, ..path }, 4),
            (Scenario { loss: 5, ..path }, 25),
            (Scenario { reordering: 5, ..path }, 6),
            (Scenario { duplication: 1, ..path }, 3),
            (Scenario { loss: 5, reordering: 5, duplication: 1, ..path }, 25),
        ] {
            let took = messages(fault, 100);
            assert!(took < most * whole.max(1), "{took} ms, and {whole} ms where nothing is wrong: {fault:?}");
        }
    }
}

/// Every eighth request of a ping-pong is lost. No packet follows it, so no NAK reports it.
#[test]
fn after_the_first_loss_that_nothing_follows_the_next_is_found_sooner() {
    let mut world = World::new(PATH);
    let mut count = 0;
    world.lose = Box::new(move |from, headers| {
        count += usize::from(from == A && headers.opcode.operation == W::WriteOnly);
        from == A && count % 8 == 1
    });
    let mut waits = Vec::new();
    for _ in 0..64 {
        let begun = world.now;
        world.hosts[A].write(0, b"data");
        world.run();
        let took = (world.now.0 - begun.0) / 1_000_000;
        if took > 0 {
            waits.push(took);
        }
    }
    assert_eq!(world.hosts[A].statuses(), vec![Status::Success; 64]);
    // The first answer after the probe shows that the probe was needed.
    let expected = [vec![20], vec![2; waits.len() - 1]].concat();
    assert!(waits.len() > 5 && waits == expected, "{waits:?}");
    assert_eq!(world.hosts[A].requester.losses(), 0);
}

/// The peer waits for a processor. It answers late, both the packet and the probe.
#[test]
fn a_peer_that_is_late_now_and_then_is_not_asked_sooner() {
    let mut world = World::new(Scenario { latency: 12_000_000, ..PATH });
    for _ in 0..20 {
        world.hosts[A].write(0, b"data");
        world.run();
    }
    // After its first answer the peer is known to be slow; the rest is sent once.
    assert_eq!((psns(&world, A).len(), world.hosts[A].statuses().len()), (21, 20));
    world.scenario.latency = 15_000;
    for _ in 0..5 {
        world.hosts[A].write(0, b"data");
        world.run();
    }
    world.scenario.latency = 12_000_000;
    let sent = psns(&world, A).len();
    world.hosts[A].write(0, b"data");
    world.run();
    assert_eq!(psns(&world, A).len(), sent + 2);
    // Then a packet is lost: the first probe comes as late as before.
    world.scenario.latency = 15_000;
    let before = world.now;
    world.lose_nth(A, 0, is(W::WriteOnly));
    world.hosts[A].write(0, b"data");
    world.run();
    assert!(world.now.0 - before.0 >= u64::from(PROBE), "{:?}", world.now);
}

/// After a long time without losses, the path counts as good again.
#[test]
fn a_loss_is_forgotten() {
    for (messages, sooner) in [(1, true), (2000, false)] {
        let mut world = World::new(PATH);
        world.lose_nth(A, 0, is(W::WriteFirst));
        world.hosts[A].write(0, &[7; 4096]);
        world.run();
        assert_eq!(world.hosts[A].requester.losses(), 1);
        for _ in 0..messages {
            world.hosts[A].write(0, b"data");
            world.run();
        }
        let before = world.now;
        world.lose_nth(A, 0, is(W::WriteOnly));
        world.hosts[A].write(0, b"data");
        world.run();
        assert_eq!(world.now.0 - before.0 < u64::from(PROBE), sooner, "after {messages} messages");
    }
}
