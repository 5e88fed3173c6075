//! Two ends that exchange datagrams, and strangers that forge some.

use super::*;

const SECOND: Time = 2 * HELLO;
const OFFER: Offer = Offer { widths: 3, speeds: 0x1f, mtu: Mtu::B4096 };

fn ends() -> [Tunnel; 2] {
    [Tunnel::new(0xa, "S1[3]", "S2[4]", OFFER), Tunnel::new(0xb, "S2[4]", "S1[3]", OFFER)]
}

/// Carries datagrams until both ends are silent. Returns the changes of each.
fn exchange(ends: &mut [Tunnel; 2], now: Time) -> [Vec<Change>; 2] {
    let mut changes = [Vec::new(), Vec::new()];
    for turn in 0.. {
        assert!(turn < 20, "they never stop");
        let mut is_silent = true;
        for from in 0..2 {
            while let Some(bytes) = ends[from].poll_transmit(now) {
                is_silent = false;
                match ends[1 - from].handle(&bytes, now) {
                    Ok(Received::Link(change)) => changes[1 - from].extend(change),
                    other => assert_eq!(other, Err(Ignored::Cookie)),
                }
            }
        }
        if is_silent {
            return changes;
        }
    }
    changes
}

fn up() -> [Tunnel; 2] {
    let mut ends = ends();
    assert_eq!(exchange(&mut ends, 0), [vec![Change::Up(OFFER)], vec![Change::Up(OFFER)]]);
    ends
}

fn frame() -> Frame {
    let lrh = wire::lrh::Header { vl: 15, dlid: 2, slid: 1, ..wire::lrh::Header::default() };
    let mut frame = Frame::new(lrh, vec![0; 256 + 24]).unwrap();
    frame.hops = 3;
    frame
}

#[test]
fn both_ends_come_up_and_carry_packets() {
    let [mut one, mut other] = up();
    let bytes = one.packet(&frame()).unwrap();
    let Ok(Received::Packet(arrived)) = other.handle(&bytes, 0) else { panic!("a packet") };
    assert_eq!((&arrived, arrived.hops), (&frame(), 3));
    let mut damaged = bytes.clone();
    damaged[HEADER + 9] ^= 1;
    assert_eq!(other.handle(&damaged, 0), Err(Ignored::Packet));
    assert_eq!(one.handle(&bytes, 0), Err(Ignored::Cookie), "its own packet");
    assert!(ends()[0].packet(&frame()).is_none(), "nobody is there");
}

#[test]
fn an_idle_tunnel_stays_up_and_a_silent_peer_is_gone() {
    let mut ends = up();
    for second in 1..10 {
        let now = second * SECOND;
        assert_eq!(ends.each_mut().map(|end| end.handle_timeout(now)), [None; 2]);
        assert_eq!(exchange(&mut ends, now), [vec![], vec![]]);
    }
    assert_eq!(ends[0].handle_timeout(9 * SECOND + SILENCE - 1), None);
    assert_eq!(ends[0].handle_timeout(9 * SECOND + SILENCE), Some(Change::Down));
    assert_eq!(ends[0].handle_timeout(20 * SECOND), None, "once");
}

#[test]
fn an_end_says_what_its_fabric_reaches_when_it_changes_and_to_a_new_peer() {
    let [mut one, mut other] = up();
    let reached = vec![Reached {
        lid: 5,
        levels: 0xffff,
        mtu: Mtu::B1024,
        pkeys: vec![0xffff, 0x8001],
        address: None,
        tunnels: 0,
        gid: [7; 16],
        ip: Some([10, 0, 0, 5].into()),
    }];
    one.set_reach(&reached);
    let bytes = one.poll_transmit(1).expect("a datagram");
    assert_eq!(one.poll_transmit(1), None, "once");
    assert_eq!(other.handle(&bytes, 1), Ok(Received::Reach(Some(reached.clone()))));
    assert_eq!(other.handle(&bytes, 1), Ok(Received::Reach(None)), "as before");
    assert!(one.poll_transmit(SECOND).is_some(), "a hello");
    assert_eq!(one.poll_transmit(SECOND).as_ref(), Some(&bytes), "again, because it may be lost");
    assert_eq!(other.handle_timeout(9 * SECOND), Some(Change::Down));
    assert_eq!(other.handle(&bytes, 9 * SECOND), Err(Ignored::Cookie));
}

#[test]
fn a_peer_that_starts_again_trains_again() {
    let [one, _] = up();
    let mut ends = [one, Tunnel::new(0xc, "S2[4]", "S1[3]", OFFER)];
    assert_eq!(exchange(&mut ends, SECOND), [vec![Change::Up(OFFER)], vec![Change::Up(OFFER)]]);
    let bye = ends[1].close().unwrap();
    assert_eq!(ends[0].handle(&bye, SECOND), Ok(Received::Link(Some(Change::Down))));
}

#[test]
fn the_peer_follows_a_port_that_is_off_or_trains_again() {
    let mut ends = up();
    ends[0].restart();
    assert_eq!(exchange(&mut ends, 1), [vec![], vec![Change::Up(OFFER)]]);
    ends[0].set_port(false, OFFER);
    assert_eq!(exchange(&mut ends, 2), [vec![], vec![Change::Down]]);
    let slower = Offer { speeds: 1, ..OFFER };
    ends[0].set_port(true, slower);
    assert_eq!(exchange(&mut ends, 3), [vec![], vec![Change::Up(slower)]]);
}

#[test]
fn who_does_not_see_the_datagrams_changes_nothing() {
    let [mut one, _] = up();
    one.poll_transmit(SECOND);
    let forged = |receiver, from, to| {
        let hello = Hello { cookie: 0xf, restarts: 9, offer: OFFER, on: false, from, to };
        Message::Hello(hello).to_bytes(receiver)
    };
    assert_eq!(one.handle(&forged(0, "S2[4]", "S1[3]"), SECOND), Ok(Received::Link(None)));
    let answer = one.poll_transmit(SECOND).expect("an answer");
    assert_eq!(answer.len(), forged(0, "S2[4]", "S1[3]").len(), "no amplification");
    for guess in 0..10 {
        assert_ne!(one.handle(&forged(guess, "S2[4]", "S1[3]"), SECOND).ok(), Some(Received::Link(Some(Change::Down))));
    }
    assert_eq!(one.poll_transmit(SECOND), None, "answers are rare");
    assert_eq!(one.handle(&forged(0xa, "S2[5]", "S1[3]"), SECOND), Err(Ignored::Names));
    assert_eq!(one.handle(&Message::Bye.to_bytes(1), SECOND), Err(Ignored::Cookie));
    assert!(one.is_up());
}

#[test]
fn an_mtu_fits_into_datagrams_of_the_network() {
    assert_eq!(longest_mtu(1500 - 28), Some(Mtu::B1024));
    assert_eq!(longest_mtu(9000 - 28), Some(Mtu::B4096));
    assert_eq!((longest_mtu(datagram(Mtu::B256)), longest_mtu(datagram(Mtu::B256) - 1)), (Some(Mtu::B256), None));
}
