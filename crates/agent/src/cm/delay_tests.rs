//! Tests of connections whose datagrams a rule delays. The manager's clock is advanced by the test,
//! so there are no sockets and no waiting.

use std::time::Duration;

use abi::ucma::command;
use abi::ucma::connection::{Accept, ConnParam, Connect, Disconnect, event};

use super::tests::{Host, PORT};
use crate::faults::Scope;

fn param(qp_num: u32) -> ConnParam {
    ConnParam { qp_num, valid: 1, retry_count: 7, ..ConnParam::default() }
}

impl Host {
    /// Advances the time from timer to timer until `count` events wait, by a minute at most.
    fn until_events(&mut self, count: usize) -> Duration {
        let mut passed = Duration::ZERO;
        while self.waiting() < count {
            let step = self.manager.next_time().expect("something is due") + Duration::from_micros(1);
            passed += step;
            assert!(passed < Duration::from_secs(60), "no event comes");
            self.manager.outside.pass(step);
            self.manager.on_time(&self.world);
        }
        passed
    }

    fn expect(&mut self, kind: u32) -> u32 {
        let told = self.event();
        assert_eq!(event::name(told.event), event::name(kind));
        told.id
    }

    /// Sends a request. Returns the ids of both ends, and how long the listener waited for the
    /// event.
    fn asked(&mut self) -> (u32, u32, Duration) {
        let asking = self.routed("10.0.0.1", PORT);
        self.call(command::CONNECT, &Connect { id: asking, conn_param: param(0x11), ..Connect::default() }, 0);
        let took = self.until_events(1);
        (asking, self.expect(event::CONNECT_REQUEST), took)
    }

    /// Both ends connect. Then they disconnect, and nothing is left.
    fn connects(&mut self, asking: u32, asked: u32) {
        self.call(command::ACCEPT, &Accept { uid: 6, conn_param: param(0x22), id: asked, ..Accept::default() }, 0);
        self.until_events(1);
        assert_eq!(self.expect(event::CONNECT_RESPONSE), asking);
        self.call(command::ACCEPT, &Accept { id: asking, ..Accept::default() }, 0);
        self.until_events(1);
        assert_eq!(self.expect(event::ESTABLISHED), asked);
        self.late_ones_come();
        self.call(command::DISCONNECT, &Disconnect { id: asking }, 0);
        self.until_events(1);
        assert_eq!(self.expect(event::DISCONNECTED), asked);
        self.call(command::DISCONNECT, &Disconnect { id: asked }, 0);
        self.until_events(3);
        let told: Vec<_> = (0..3).map(|_| self.event()).map(|told| (told.id, told.event)).collect();
        let of = |id: u32| -> Vec<u32> { told.iter().filter(|told| told.0 == id).map(|told| told.1).collect() };
        assert_eq!(
            (of(asking), of(asked)),
            (vec![event::DISCONNECTED, event::TIMEWAIT_EXIT], vec![event::TIMEWAIT_EXIT])
        );
        self.late_ones_come();
    }

    /// The delayed datagrams arrive and cause no event.
    fn late_ones_come(&mut self) {
        while self.manager.delayed.next_time().is_some() {
            let step = self.manager.next_time().expect("something is due") + Duration::from_micros(1);
            self.manager.outside.pass(step);
            self.manager.on_time(&self.world);
        }
        assert_eq!(self.waiting(), 0, "each event once");
    }
}

fn with(rule: &str) -> Host {
    let mut host = Host::with(&["10.0.0.1"]);
    host.world.add_faults(Scope::All, rule).expect("a rule");
    host.listener(PORT);
    host
}

/// The first request arrives after its repetition, so it is recognized as a duplicate.
#[test]
fn a_request_that_is_later_than_its_time_out_is_repeated() {
    let mut host = with("delay 9s opcode cm nth 1");
    let (asking, asked, took) = host.asked();
    assert!((Duration::from_secs(1)..Duration::from_secs(9)).contains(&took), "repeated after {took:?}");
    host.connects(asking, asked);
    assert!(host.manager.delayed.is_empty(), "it has come");
}

#[test]
fn all_datagrams_may_be_late_or_come_behind_the_next() {
    for rule in [
        "delay 300ms opcode cm",
        "delay 1s jitter 1s opcode cm",
        "reorder opcode cm",
        "reorder 50% opcode cm seed 3",
        "duplicate opcode cm; delay 100ms jitter 90ms opcode cm",
        "bandwidth 100kbit opcode cm",
        // REQ, REP and RTU, each reordered behind the next datagram.
        "reorder nth 1 opcode cm",
        "reorder nth 2 opcode cm",
        "reorder nth 3 opcode cm",
    ] {
        let mut host = with(rule);
        for _ in 0..3 {
            let (asking, asked, _) = host.asked();
            host.connects(asking, asked);
        }
    }
}

/// Only rules about CM datagrams affect CM datagrams.
#[test]
fn a_delay_is_as_long_as_the_rule_says() {
    let mut host = with("delay 300ms opcode cm");
    let (.., took) = host.asked();
    assert!((Duration::from_millis(299)..Duration::from_millis(400)).contains(&took), "{took:?}");
    let mut host = with("delay 300ms; reorder; loss");
    let (asking, asked, took) = host.asked();
    assert_eq!(took, Duration::ZERO);
    host.connects(asking, asked);
}

/// A datagram of another host waits on its way in, and causes one event.
#[test]
fn a_delayed_incoming_datagram_causes_one_event() {
    let ms = Duration::from_millis;
    for (rule, least, most) in [
        ("delay 300ms opcode cm direction in", ms(299), ms(400)),
        ("reorder opcode cm direction in", Duration::from_micros(900), ms(100)),
        ("duplicate opcode cm direction in", ms(0), ms(0)),
        ("duplicate opcode cm direction in; delay 300ms opcode cm direction in", ms(299), ms(400)),
        // This rule does not affect incoming datagrams.
        ("delay 300ms opcode cm direction out", ms(0), ms(0)),
    ] {
        let mut host = with(rule);
        host.arriving();
        let arrivals = host.manager.take_arrivals();
        host.manager.on_datagrams(&host.world, arrivals);
        let took = host.until_events(1);
        assert!((least..=most).contains(&took), "{rule}: {took:?}");
        host.expect(event::CONNECT_REQUEST);
        host.late_ones_come();
    }
}
