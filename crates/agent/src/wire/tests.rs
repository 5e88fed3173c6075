//! Tests of the sockets of a world whose addresses come and go, in a time that the test controls,
//! and of the records that engines write to the agent.
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::board;
use abi::layout::Record;
use abi::wire::{Arrival, arrival_flags, arrival_kind};
use proptest::prelude::*;
use shm::{LANE_LEN, Notifier, RECORD_MAX, Region, Side, WakeWord};

use super::ReceivedBurst;
use super::link::{Delivery, FromEngine, Waker, WireLaneEnd};

use crate::config::Config;
use crate::gids::HostAddress;
use crate::world::World;

/// A loopback address that no other test uses.
fn address() -> Ipv4Addr {
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    Ipv4Addr::new(127, random[0], random[1], random[2] | 1)
}

fn carried(ip: impl Into<IpAddr>, mtu: u32) -> HostAddress {
    HostAddress { ip: ip.into(), ifindex: 1, mtu, prefix: 8 }
}

struct Setting {
    world: World,
    now: Instant,
}

impl Setting {
    fn new() -> Self {
        Self { world: World::new(&Config::default(), "a test").unwrap(), now: Instant::now() }
    }

    fn follow(&mut self, host: &[HostAddress]) {
        self.world.follow_addresses(host);
        self.pass(Duration::ZERO);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.world.follow_wire(|| now);
    }

    fn word(&self, index: u32) -> u32 {
        self.world.board.view().word(board::gid_wire(0, 1, index).unwrap()).load(Ordering::Acquire)
    }

    /// The time until the next try.
    fn next_try(&self) -> Option<Duration> {
        self.world.wire.next_try().map(|at| at - self.now)
    }
}

fn is_free(ip: Ipv4Addr) -> bool {
    UdpSocket::bind((ip, 4791)).is_ok()
}

#[test]
fn an_address_has_the_wire_for_as_long_as_it_is_there() {
    let mut setting = Setting::new();
    let (a, b) = (address(), address());
    setting.follow(&[carried(a, 1500), carried(b, 9000)]);
    assert_eq!((setting.word(1), setting.word(2)), (3, 5));
    assert!(!is_free(a) && !is_free(b));
    assert!(!setting.world.wire.is_due(|| unreachable!("nobody asks for the time while nothing is missing")));
    let epoch = setting.world.board.wire_epoch();
    setting.follow(&[carried(b, 1500)]);
    assert_eq!((setting.word(1), setting.word(2)), (0, 3), "one is gone, the other's packets are smaller");
    assert!(is_free(a) && !is_free(b));
    assert_eq!(setting.world.board.wire_epoch(), epoch + 1);
    assert_eq!(setting.next_try(), None);
    drop(setting);
    assert!(is_free(b));
}

#[test]
fn a_port_of_somebody_else_is_tried_again_and_again() {
    let mut setting = Setting::new();
    let (a, b) = (address(), address());
    let other = UdpSocket::bind((a, 4791)).unwrap();
    setting.follow(&[carried(a, 65536), carried(b, 65536)]);
    assert_eq!((setting.word(1), setting.word(2)), (0, 5));
    let mut waits = Vec::new();
    for _ in 0..8 {
        let wait = setting.next_try().unwrap();
        setting.pass(wait / 2);
        assert_eq!(setting.next_try(), Some(wait - wait / 2), "not before its time");
        setting.pass(wait - wait / 2);
        waits.push(wait.as_millis());
    }
    assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    drop(other);
    setting.pass(Duration::from_secs(5));
    assert_eq!((setting.word(1), setting.next_try()), (5, None));
}

#[test]
fn an_address_that_goes_while_it_is_waited_for_is_forgotten() {
    let mut setting = Setting::new();
    let a = address();
    let _other = UdpSocket::bind((a, 4791)).unwrap();
    setting.follow(&[carried(a, 65536)]);
    assert!(setting.next_try().is_some());
    setting.follow(&[]);
    assert_eq!(setting.next_try(), None);
    // An address that the host does not have behaves like one whose port is in use.
    setting.follow(&[carried(Ipv4Addr::new(192, 0, 2, 77), 1500)]);
    assert!(setting.next_try().is_some());
    let entry = setting.world.devices[0].ports[0].gids.entry(1).unwrap();
    let why = setting.world.wire.why_not(entry).unwrap();
    assert!(why.contains("192.0.2.77 is not an address of this host"), "{why}");
}

#[test]
fn datagrams_beyond_the_room_of_a_lane_wait_in_order() {
    for (len, records) in [(64_usize, 1000), (1000, 900), (60_000, 16)] {
        let wake_word = WakeWord::create().unwrap().1;
        let (link, end) =
            WireLaneEnd::new(wake_word.as_fd(), Waker::Eventfd(Notifier::new().unwrap()), true, true).unwrap();
        let (_, mut rx) = shm::ends(Arc::new(Region::map(end.memory.as_fd(), LANE_LEN).unwrap()), Side::B);
        let head = Arrival { kind: arrival_kind::DATAGRAMS, segment: len as u16, ..Arrival::default() };
        for number in 0..records {
            let head = Arrival { from_port: number, ..head };
            assert_eq!(link.deliver(1, &head, &vec![number as u8; len]), Delivery::Done, "{len} bytes, {number}");
        }
        assert!(link.is_behind());
        let (mut record, mut heard) = ([0; RECORD_MAX], 0);
        while heard < records {
            let Some(_) = rx.ring.pop(&mut record).unwrap() else {
                // Nothing has arrived: the engine gets more once it does what the agent asked for.
                rx.ring.publish();
                assert!(rx.ring.peer_waiting(), "{len} bytes, {heard}");
                rx.ring.clear_waiting();
                link.go_on(1);
                continue;
            };
            let arrival = Arrival::read(&record).unwrap();
            assert_eq!((arrival.from_port, arrival.len), (heard, len as u32));
            if arrival.flags & arrival_flags::BULK != 0 {
                let mut bytes = vec![0; len];
                assert!(rx.bulk.take(arrival.bulk, &mut bytes));
                assert!(bytes.iter().all(|byte| *byte == heard as u8));
            } else {
                assert_eq!(record[size_of::<Arrival>()], heard as u8);
            }
            heard += 1;
        }
        assert!(!link.is_behind());
        assert_eq!(rx.ring.pop(&mut record).unwrap(), None);
    }
}

#[test]
fn not_everything_waits() {
    let wake_word = WakeWord::create().unwrap().1;
    for heard in [true, false] {
        let kick = Notifier::new().unwrap();
        let (link, _end) = WireLaneEnd::new(wake_word.as_fd(), Waker::Eventfd(kick), true, heard).unwrap();
        let deliver = || link.deliver(1, &Arrival { segment: 1000, ..Arrival::default() }, &[0; 1000]);
        let taken = (0..10_000).take_while(|_| deliver() == Delivery::Done).count();
        assert!((100..3000).contains(&taken), "{taken}");
        assert_eq!((deliver(), link.is_behind()), (Delivery::Full, heard));
    }
}

/// A record as an engine may write it, mostly close to a valid one.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![0..300_u32, 60_000..70_000_u32, any::<u32>()];
    let fields =
        (0..3_u8, 0..4_u8, any::<u16>(), length, prop_oneof![Just(0), (0..9000_u32).prop_map(|line| line * 64)]);
    let near = fields.prop_map(|(kind, flags, segment, len, bulk)| {
        let arrival = Arrival { kind, flags, segment, len, bulk, ..Arrival::default() };
        [arrival.bytes(), &[7; RECORD_MAX][size_of::<Arrival>()..]].concat()
    });
    prop_oneof![near, prop::collection::vec(any::<u8>(), 0..RECORD_MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn an_engine_may_give_back_anything(records in prop::collection::vec(record(), 1..40)) {
        let wake_word = WakeWord::create().unwrap().1;
        let kick = Notifier::new().unwrap();
        let (link, end) = WireLaneEnd::new(wake_word.as_fd(), Waker::Eventfd(kick), true, true).unwrap();
        let lane = Arc::new(Region::map(end.memory.as_fd(), LANE_LEN).unwrap());
        let (mut tx, _) = shm::ends(lane, Side::B);
        let mut buffer = vec![0; 64 * 1024];
        for record in records {
            let _ = tx.ring.push(&record);
            let mut taken = 0;
            link.take_records(1, &mut buffer, |record| {
                let (FromEngine::Misdelivered(ReceivedBurst { bytes, .. }) | FromEngine::ToGroup(_, bytes)) = record;
                taken += 1 + bytes.len();
            });
            prop_assert!(taken <= 1 + 64 * 1024);
            prop_assert!(link.is_shared() || link.deliver(1, &Arrival::default(), &[0; 16]) == Delivery::Lost);
        }
    }
}
