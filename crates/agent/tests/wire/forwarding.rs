//! The forwarder: which engine gets which datagrams, in which records, and what is lost. There are
//! no sockets here.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;

use agent::Config;
use agent::config::WireMode;
use agent::wire::{Drops, Forwarder, ReceivedBurst};
use proptest::prelude::*;

use crate::common::TestAgent;
use crate::ear::{Ear, Heard, datagram};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const MULTICAST: u32 = 0x00ff_ffff;

fn gid(ip: Ipv4Addr) -> [u8; 16] {
    ip.to_ipv6_mapped().octets()
}

/// An agent that gets packets only through its forwarder.
fn external() -> TestAgent {
    let config = Config { wire: WireMode::External, addresses: vec![HERE.into()], ..Config::default() };
    TestAgent::start_as(&config)
}

fn incoming(bytes: &[u8], segment: usize) -> ReceivedBurst<'_> {
    ReceivedBurst {
        from: gid(THERE),
        from_port: 0xc123,
        to: gid(HERE),
        traffic_class: 2,
        hop_limit: 63,
        segment,
        bytes,
    }
}

/// Lengths of the records and the marks of their datagrams.
fn shape(records: &[Heard]) -> Vec<Vec<u8>> {
    let marks = |heard: &Heard| {
        let segments = heard.bytes.chunks(usize::from(heard.arrival.segment));
        segments.map(|segment| segment[segment.len() - 1]).collect()
    };
    records.iter().map(marks).collect()
}

#[test]
fn a_batch_is_cut_where_the_owner_changes() {
    let agent = external();
    let (mut one, mut two) = (Ear::new(&agent), Ear::new(&agent));
    let (a, b) = (one.qpn(), two.qpn());
    let owners = [a, a, b, a, b, b];
    let mut batch: Vec<u8> = (1..).zip(owners).flat_map(|(mark, qpn)| datagram(qpn, 64, mark)).collect();
    batch.truncate(batch.len() - 24);
    agent.handle.forwarder().take(&incoming(&batch, 64));
    let (first, second) = (one.hear_all(), two.hear_all());
    assert_eq!(shape(&first), [vec![1, 2], vec![4]]);
    assert_eq!(shape(&second), [vec![3], vec![5, 6]]);
    assert_eq!([first, second].concat().iter().map(|heard| heard.bytes.len()).sum::<usize>(), batch.len());
    let mut again = two.hear_all();
    agent.handle.forwarder().take(&incoming(&batch[..64], 64));
    again.extend(one.hear_all());
    let arrival = again[0].arrival;
    assert_eq!((arrival.from, arrival.to, arrival.from_port), (gid(THERE), gid(HERE), 0xc123));
    assert_eq!((arrival.traffic_class, arrival.hop_limit, arrival.segment, arrival.len), (2, 63, 64, 64));
    assert_eq!(agent.handle.forwarder().drops(), Drops::default());
}

#[test]
fn a_long_batch_comes_whole_and_a_longer_one_in_pieces() {
    let agent = external();
    let mut ear = Ear::new(&agent);
    let qpn = ear.qpn();
    for (count, segment, records) in [(15, 4160, 1), (62, 1048, 1), (64, 1048, 2), (100, 1048, 2), (1, 65_507, 1)] {
        let batch: Vec<u8> = (0..count).flat_map(|mark| datagram(qpn, segment, mark)).collect();
        agent.handle.forwarder().take(&incoming(&batch, segment));
        let heard = ear.hear_all();
        assert_eq!(heard.len(), records, "{count} datagrams of {segment} bytes");
        assert!(heard.iter().map(|heard| heard.bytes.as_slice()).collect::<Vec<_>>().concat() == batch);
        assert!(heard.iter().all(|heard| heard.bytes.len() <= 64 * 1024));
    }
}

#[test]
fn each_engine_with_members_gets_one_copy() {
    let agent = external();
    let (mut one, mut two, mut other) = (Ear::new(&agent), Ear::new(&agent), Ear::new(&agent));
    let group = gid(GROUP);
    let mine = one.member(group);
    one.member(group);
    two.member(group);
    other.member(gid(Ipv4Addr::new(239, 1, 1, 2)));
    let bytes = [datagram(MULTICAST, 100, 1), datagram(MULTICAST, 100, 2)].concat();
    let forwarder = agent.handle.forwarder();
    forwarder.take(&ReceivedBurst { to: group, ..incoming(&bytes, 100) });
    for ear in [&mut one, &mut two] {
        let heard = ear.hear_all();
        assert_eq!((shape(&heard), heard[0].arrival.to), (vec![vec![1, 2]], group));
    }
    assert!(other.hear().is_none());
    one.leave(group, mine);
    drop(two);
    agent.eventually("status", |status| status["contexts"] == 2);
    forwarder.take(&ReceivedBurst { to: group, ..incoming(&bytes, 100) });
    assert_eq!(one.hear_all().len(), 1, "its other QP is still a member");
    assert_eq!(forwarder.drops(), Drops::default());
    // Sent to a group, but for one QP; then for all members, but to one address.
    forwarder.take(&ReceivedBurst { to: group, ..incoming(&datagram(one.qpn(), 64, 1), 64) });
    forwarder.take(&incoming(&bytes, 100));
    assert_eq!(forwarder.drops(), Drops { malformed: 3, ..Drops::default() });
}

#[test]
fn datagrams_for_no_engine_are_counted_as_drops() {
    let agent = external();
    let mut ear = Ear::new(&agent);
    let qpn = ear.qpn();
    let forwarder = agent.handle.forwarder();
    let mut drops = Drops::default();
    let batch = [datagram(qpn, 64, 1), datagram(qpn, 64, 2)].concat();
    forwarder.take(&ReceivedBurst { from: gid(HERE), ..incoming(&batch, 64) });
    drops.own_source += 2;
    forwarder.take(&incoming(&[datagram(0, 64, 1), datagram(1, 64, 2), datagram(0x00ab_cdef, 64, 3)].concat(), 64));
    drops.management += 2;
    drops.no_engine += 1;
    forwarder.take(&incoming(&[], 64));
    forwarder.take(&incoming(&[4; 15], 0));
    forwarder.take(&incoming(&[datagram(qpn, 64, 7), vec![0; 15]].concat(), 64));
    drops.malformed += 3;
    assert_eq!(forwarder.drops(), drops);
    assert_eq!(shape(&ear.hear_all()), [[7]]);
    // A client with QPs that has not sent WIRE_OPEN, and one that has ended.
    let mut deaf = agent.client();
    deaf.hello();
    forwarder.take(&incoming(&datagram(deaf.qp().2.qpn, 64, 1), 64));
    drop(ear);
    agent.eventually("status", |status| status["contexts"] == 1);
    forwarder.take(&incoming(&batch, 64));
    drops.no_engine += 3;
    assert_eq!(forwarder.drops(), drops);
    let shown = agent.ask("devices");
    assert_eq!(
        (shown["wire"]["mode"].as_str(), shown["wire"]["drops"]["no_engine"].as_u64()),
        (Some("external"), Some(4))
    );
}

#[test]
fn a_full_lane_of_one_engine_loses_no_datagram_of_another() {
    let agent = external();
    let (mut slow, mut quick) = (Ear::new(&agent), Ear::new(&agent));
    let (a, b) = (slow.qpn(), quick.qpn());
    let forwarder = agent.handle.forwarder();
    for len in [64, 240, 1000, 60_000] {
        let (mine, theirs) = (datagram(a, len, 1), datagram(b, len, 2));
        let before = forwarder.drops().ring_full;
        for _ in 0..400 {
            forwarder.take(&incoming(&mine, len));
            forwarder.take(&incoming(&theirs, len));
            assert!(quick.hear().is_some(), "{len} bytes");
        }
        let lost = forwarder.drops().ring_full - before;
        assert!(lost > 0, "{len} bytes");
        let heard = slow.hear_all();
        assert_eq!(heard.len() as u64 + lost, 400);
        assert!(heard.iter().all(|heard| heard.bytes == mine));
    }
}

#[test]
fn an_engine_that_breaks_its_lane_is_cut_off_alone() {
    let agent = external();
    let (mut bad, mut good) = (Ear::new(&agent), Ear::new(&agent));
    let (a, b) = (bad.qpn(), good.qpn());
    let forwarder = agent.handle.forwarder();
    // The consumer's head of the direction from the agent, with more than was ever written.
    bad.lane.word(0).store(0x4000_0000, Ordering::Release);
    for _ in 0..1000 {
        forwarder.take(&incoming(&[datagram(a, 240, 1), datagram(b, 240, 2)].concat(), 240));
        assert_eq!(shape(&good.hear_all()), [[2]]);
    }
    assert!(forwarder.drops().no_engine > 500, "{:?}", forwarder.drops());
    bad.lane.word(0).store(0, Ordering::Release);
    let before = forwarder.drops().no_engine;
    forwarder.take(&incoming(&datagram(a, 240, 1), 240));
    assert_eq!(forwarder.drops().no_engine, before + 1, "once broken is broken");
}

#[test]
fn an_engine_is_woken_once_for_each_time_it_falls_asleep() {
    let agent = external();
    let mut ear = Ear::new(&agent);
    let qpn = ear.qpn();
    let forwarder = agent.handle.forwarder();
    forwarder.take(&incoming(&datagram(qpn, 64, 1), 64));
    assert!(!ear.kick.drain(), "it is awake");
    for _ in 0..3 {
        ear.wake_word.arm();
        assert!(shm::sleeper_barrier());
        forwarder.take(&incoming(&datagram(qpn, 64, 1), 64));
        assert!(ear.kick.drain());
        forwarder.take(&incoming(&datagram(qpn, 64, 1), 64));
        assert!(!ear.kick.drain());
        ear.wake_word.disarm();
    }
}

/// Forwards `batch` and checks that each of its datagrams was received or counted.
fn nothing_vanishes(forwarder: &Forwarder, ear: &mut Ear, batch: &ReceivedBurst<'_>) -> Result<(), TestCaseError> {
    let count =
        |drops: Drops| drops.no_engine + drops.ring_full + drops.own_source + drops.malformed + drops.management;
    let before = count(forwarder.drops());
    forwarder.take(batch);
    let lost = count(forwarder.drops()) - before;
    let heard: usize =
        ear.hear_all().iter().map(|heard| heard.bytes.len().div_ceil(usize::from(heard.arrival.segment))).sum();
    let segment = if batch.segment == 0 { batch.bytes.len() } else { batch.segment.min(batch.bytes.len()) };
    let sent = batch.bytes.len().checked_div(segment).map_or(1, |_| batch.bytes.len().div_ceil(segment));
    prop_assert_eq!(heard as u64 + lost, sent as u64);
    Ok(())
}

#[test]
fn any_bytes_are_heard_or_counted() {
    let agent = external();
    let mut ear = Ear::new(&agent);
    ear.member(gid(GROUP));
    let qpn = ear.qpn();
    let forwarder = agent.handle.forwarder();
    let ear = std::cell::RefCell::new(ear);
    let address = prop_oneof![Just(gid(HERE)), Just(gid(THERE)), Just(gid(GROUP)), any::<[u8; 16]>(),];
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400),
        prop::collection::vec(prop_oneof![Just(qpn), Just(MULTICAST), 0..3_u32, any::<u32>()], 0..40)
            .prop_map(|qpns| { qpns.into_iter().flat_map(|qpn| datagram(qpn, 48, 9)).collect() }),
    ];
    let strategy = (address.clone(), address, bytes, prop_oneof![Just(48), 0..100_usize, any::<usize>()], any::<u8>());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    proptest!(config, |((from, to, bytes, segment, hop_limit) in strategy)| {
        let batch = ReceivedBurst { from, to, hop_limit, ..incoming(&bytes, segment) };
        nothing_vanishes(&forwarder, &mut ear.borrow_mut(), &batch)?;
    });
}
