//! Event channels of the connection manager in simulated time: how often a request to a silent host
//! is retransmitted, and that no event is lost if a program does not read for a long time.
//! `connections.rs` tests connections.

use std::net::SocketAddr;
use std::time::Duration;

use abi::errno::Errno;
use cm::{Channel, ConnParam, Event, EventKind, PortSpace, QpKind};
use fabric::simulation::{Happened, Simulation};

/// The port on which a program listens.
const PORT: u16 = 7471;
/// Longer than all tries of a message take.
const PATIENCE: Duration = Duration::from_secs(120);

/// One host sends a connection request to another. Returns the first event after the route is
/// resolved, and the time that it took.
fn asked(cut_for: Option<Duration>) -> (Simulation, Event, Duration) {
    let mut simulation = Simulation::new(3);
    let hosts = ["10.0.0.1", "10.0.0.2"].map(|address| simulation.host(address).expect("a host"));
    let (here, there) = (simulation.manager(hosts[0]).expect("a channel"), simulation.manager(hosts[1]).expect("one"));
    let listener = there.create_id(9, PortSpace::TCP, QpKind::RC).expect("an id");
    let any: SocketAddr = ([0, 0, 0, 0], PORT).into();
    there.bind(listener, &any.into()).expect("bound");
    there.listen(listener, 1).expect("it listens");
    let id = here.create_id(7, PortSpace::TCP, QpKind::RC).expect("an id");
    let to: SocketAddr = format!("10.0.0.2:{PORT}").parse().expect("an address");
    here.resolve_addr(id, None, &to.into(), 1000).expect("it is looked for");
    let next = |simulation: &mut Simulation, channel: &Channel| {
        let mut event = None;
        simulation.run_until(PATIENCE, || {
            event = channel.try_event().expect("an agent");
            event.is_some()
        });
        event
    };
    assert_eq!(next(&mut simulation, &here).map(|event| event.kind), Some(EventKind::ADDR_RESOLVED));
    here.resolve_route(id, 1000).expect("it is looked for");
    assert_eq!(next(&mut simulation, &here).map(|event| event.kind), Some(EventKind::ROUTE_RESOLVED));
    simulation.cut(hosts[1], true);
    if let Some(cut_for) = cut_for {
        simulation.alarm(cut_for, 1);
    }
    let begin = simulation.now();
    here.connect(id, &ConnParam { qp_num: 0x11, private_data: b"hello", ..ConnParam::default() }).expect("asked");
    loop {
        if simulation.step() == Some(Happened::Alarm(1)) {
            simulation.cut(hosts[1], false);
        }
        for channel in [&here, &there] {
            if let Some(event) = channel.try_event().expect("an agent") {
                let took = simulation.now() - begin;
                return (simulation, event, took);
            }
        }
    }
}

#[test]
fn a_request_to_a_disconnected_host_is_repeated_until_it_times_out() {
    let (_, event, took) = asked(Some(Duration::from_secs(5)));
    assert_eq!((event.kind, event.conn().private_data.starts_with(b"hello")), (EventKind::CONNECT_REQUEST, true));
    assert!((Duration::from_secs(5)..Duration::from_secs(12)).contains(&took), "asked again after {took:?}");
    let (_, event, took) = asked(None);
    assert_eq!((event.kind, event.status), (EventKind::UNREACHABLE, -Errno::ETIMEDOUT.0));
    // Sixteen tries. Each waits two seconds plus a round trip.
    assert!((Duration::from_secs(32)..PATIENCE).contains(&took), "given up after {took:?}");
}

/// Events that a program does not read for a long time are not lost, and delay only this program.
#[test]
fn events_that_do_not_fit_come_when_there_is_room() {
    const COUNT: u64 = 1000;
    let mut simulation = Simulation::new(5);
    let host = simulation.host("10.0.0.1").expect("a host");
    let channel = simulation.manager(host).expect("a channel");
    let to: SocketAddr = format!("10.0.0.2:{PORT}").parse().expect("an address");
    for cookie in 0..COUNT {
        let id = channel.create_id(cookie, PortSpace::TCP, QpKind::RC).expect("an id");
        channel.resolve_addr(id, None, &to.into(), 1000).expect("it is looked for");
    }
    let mut told = Vec::new();
    while told.len() < COUNT as usize {
        let before = told.len();
        told.extend(std::iter::from_fn(|| channel.try_event().expect("an agent")).map(|event| event.cookie));
        assert!(told.len() > before, "after {before} there is nothing more");
        let _ = simulation.step();
    }
    assert!(told.iter().copied().eq(0..COUNT));
}
