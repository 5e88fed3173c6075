//! The sockets of a world as addresses come and go, in time that the test makes.
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abi::board;

use crate::config::Config;
use crate::gids::HostAddress;
use crate::world::World;

/// A loopback address that no other test uses.
fn address() -> Ipv4Addr {
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    Ipv4Addr::new(127, random[0], random[1], random[2] | 1)
}

fn carried(ip: impl Into<IpAddr>, mtu: u32) -> HostAddress {
    HostAddress { ip: ip.into(), ifindex: 1, mtu }
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

    /// How long until it tries again.
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
    // One that the host does not have is as good as one that somebody else has.
    setting.follow(&[carried(Ipv4Addr::new(192, 0, 2, 77), 1500)]);
    assert!(setting.next_try().is_some());
    let entry = setting.world.devices[0].ports[0].gids.entry(1).unwrap();
    let why = setting.world.wire.why_not(1, entry).unwrap();
    assert!(why.contains("192.0.2.77 is no address of this host"), "{why}");
}
