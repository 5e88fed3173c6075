//! Connections by address: on one host and between hosts, by threads, with every refusal and every
//! kind of disconnection.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, next};
use fabric::{Fabric, Faults};
use softhca::cm::{Connection, Connector, DatagramListener, Incoming, Listener, Outgoing, Service};
use softhca::{Access, Context, Cq, DatagramQp, Error, Gid, Pd, Status};

/// A program on a host.
struct Program {
    device: Context,
    pd: Pd,
    cq: Cq,
}

impl Program {
    fn on(fabric: &Fabric, host: usize) -> Self {
        let device = fabric.host(host).open().expect("a device");
        let (pd, cq) = (device.pd().expect("a PD"), device.cq(256).expect("a CQ"));
        Self { device, pd, cq }
    }

    fn listen(&self, address: &str) -> Listener {
        Listener::bind(&self.device, at(address)).expect("it listens")
    }

    fn outgoing(&self, to: SocketAddr) -> Outgoing {
        let route = Connector::new(&self.device).resolve(to).expect("a route");
        assert_eq!(route.peer_addr(), to);
        route.prepare(self.pd.reliable(&self.cq)).expect("a QP")
    }

    fn incoming(&self, listener: &Listener) -> Incoming {
        let request = listener.accept_for(PATIENCE).expect("no error").expect("a request");
        let incoming = request.prepare(self.pd.reliable(&self.cq)).expect("a QP");
        incoming.receive(1, self.pd.buffer(64).expect("memory")).expect("posted");
        incoming
    }
}

fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address")
}

/// Connects two programs; `listens` has the listener.
fn connect(asks: &Program, listens: &Program, listener: &Listener) -> (Connection, Connection) {
    let to = listener.local_addr();
    thread::scope(|threads| {
        let asking = threads.spawn(|| {
            let outgoing = asks.outgoing(to);
            outgoing.receive(1, asks.pd.buffer(64).expect("memory")).expect("posted");
            outgoing.connect(b"").expect("connected")
        });
        let near = listens.incoming(listener).accept(b"").expect("accepted");
        (asking.join().expect("no panic"), near)
    })
}

/// A message each way, and a READ.
fn talk(asks: &Program, far: &Connection, listens: &Program, near: &Connection) {
    let window = listens.pd.expose(4096, Access::ALL).expect("memory");
    far.send_inline(2, b"question", None).expect("posted");
    assert_eq!(next(&listens.cq).ok().expect("a success").data(), b"question");
    next(&asks.cq).ok().expect("it has arrived");
    near.send_inline(3, b"answer", None).expect("posted");
    assert_eq!(next(&asks.cq).ok().expect("a success").data(), b"answer");
    next(&listens.cq).ok().expect("it has arrived");
    window.write(0, b"read");
    far.read(4, asks.pd.buffer(4).expect("memory"), &window.token()).expect("posted");
    assert_eq!(next(&asks.cq).ok().expect("a success").data(), b"read");
}

fn speak(fabric: &Fabric, asks: usize, listens: usize, address: &str) {
    let (asks, listens) = (Program::on(fabric, asks), Program::on(fabric, listens));
    let listener = listens.listen(address);
    let (far, near) = connect(&asks, &listens, &listener);
    assert_eq!((far.peer_addr(), near.local_addr()), (listener.local_addr(), listener.local_addr()));
    assert_eq!(far.local_addr(), near.peer_addr());
    assert_eq!((far.endpoint(), near.endpoint()), (near.peer(), far.peer()));
    talk(&asks, &far, &listens, &near);
    far.disconnect().expect("disconnected");
    assert!(near.wait_closed_for(PATIENCE).expect("no error") && far.wait_closed_for(PATIENCE).expect("no error"));
    assert!(near.is_closed() && far.is_closed());
}

#[test]
fn programs_of_one_host_connect() {
    speak(&Fabric::start().expect("an agent"), 0, 0, "10.0.0.1:7471");
}

#[test]
fn programs_of_two_hosts_connect() {
    let fabric = Fabric::two_hosts().expect("two agents");
    speak(&fabric, 0, 1, "10.0.0.2:7471");
    speak(&fabric, 1, 0, "10.0.0.1:7471");
}

#[test]
fn hosts_with_ipv6_addresses_connect() {
    let fabric = Fabric::builder().host("2001:db8::1").host("2001:db8::2").build().expect("two agents");
    speak(&fabric, 0, 1, "[2001:db8::2]:7471");
}

#[test]
fn hosts_connect_over_a_bad_network() {
    let fabric = Fabric::builder().host("10.0.0.1").host("10.0.0.2").faults(Faults::all(0.05, 7)).build();
    let fabric = fabric.expect("two agents");
    for _ in 0..2 {
        speak(&fabric, 0, 1, "10.0.0.2:0");
    }
}

#[test]
fn private_data_goes_both_ways() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let listener = Listener::builder(&listens.device).backlog(4).bind(at("0.0.0.0:0")).expect("it listens");
    let port = listener.local_addr().port();
    assert_ne!(port, 0);
    let to = SocketAddr::from(([10, 0, 0, 2], port));
    thread::scope(|threads| {
        threads.spawn(|| {
            let far = asks.outgoing(to).connect(&[7; 56]).expect("connected");
            assert!(far.private_data().starts_with(&[9; 196]));
            assert!(asks.outgoing(to).connect(&[7; 57]).is_err(), "longer than the message holds");
            let declined = asks.outgoing(to).connect(b"again").expect_err("it does not want us");
            let Error::Declined { code: 28, ref private_data, .. } = declined else { panic!("{declined:?}") };
            assert!(private_data.starts_with(b"once is enough"));
            assert_eq!(declined.errno(), 111);
            let declined = asks.outgoing(to).connect(b"").expect_err("it does not look at us");
            assert!(matches!(declined, Error::Declined { code: 28, .. }), "{declined:?}");
            let declined = asks.outgoing(to).connect(b"").expect_err("it makes a QP and forgets us");
            assert!(matches!(declined, Error::Declined { .. }), "{declined:?}");
            far.wait_closed_for(PATIENCE).expect("no error");
        });
        let request = listener.accept().expect("a request");
        assert_eq!((request.local_addr(), request.peer_addr().ip()), (to, at("10.0.0.1:0").ip()));
        assert!(request.private_data().starts_with(&[7; 56]));
        let incoming = request.prepare(listens.pd.reliable(&listens.cq)).expect("a QP");
        let near = incoming.accept(&[9; 196]).expect("accepted");
        listener.accept().expect("a request").reject(b"once is enough").expect("rejected");
        drop(listener.accept().expect("a request"));
        drop(listens.incoming(&listener));
        drop(near);
    });
}

#[test]
fn connect_errors_tell_the_three_causes_apart() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let asks = Program::on(&fabric, 0);
    let declined = asks.outgoing(at("10.0.0.2:1")).connect(b"").expect_err("nobody listens");
    assert!(matches!(declined, Error::Declined { code: 8, .. }), "{declined:?}");
    assert!(!declined.reason().is_empty());

    let listens = Program::on(&fabric, 1);
    let listener = listens.listen("10.0.0.2:7471");
    let taken = Listener::bind(&listens.device, at("10.0.0.2:7471")).expect_err("somebody listens there");
    assert_eq!(taken.errno(), 98);
    assert_eq!(Listener::bind(&listens.device, at("10.9.9.9:1")).expect_err("another's address").errno(), 99);
    drop(listener);
    listens.listen("10.0.0.2:7471");

    let other = Program::on(&fabric, 0);
    let route = Connector::new(&asks.device).resolve(at("10.0.0.2:1")).expect("a route");
    let refused = route.prepare(other.pd.reliable(&other.cq)).expect_err("another open device");
    assert_eq!(refused.errno(), 22);
}

#[test]
fn a_full_backlog_rejects() {
    let fabric = Fabric::start().expect("an agent");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 0));
    let listener = Listener::builder(&listens.device).backlog(1).bind(at("10.0.0.1:0")).expect("it listens");
    let to = listener.local_addr();
    thread::scope(|threads| {
        let askers: Vec<_> = (0..4).map(|_| threads.spawn(|| asks.outgoing(to).connect(b""))).collect();
        // Some requests are rejected while another one waits.
        let near = listens.incoming(&listener).accept(b"").expect("accepted");
        drop(listener);
        let connected = askers.into_iter().filter_map(|asker| asker.join().expect("no panic").ok()).count();
        assert_eq!(connected, 1);
        drop(near);
    });
}

#[test]
fn dropping_either_end_closes_the_connection() {
    let fabric = Fabric::two_hosts().expect("two agents");
    for (host, drops) in [(0, true), (1, true), (1, false)] {
        let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, host));
        let listener = listens.listen(&format!("10.0.0.{}:7471", host + 1));
        let (far, near) = connect(&asks, &listens, &listener);
        assert!(!near.wait_closed_for(Duration::from_millis(1)).expect("no error"));
        if drops {
            drop(far);
        } else {
            // The program ends without a disconnect.
            drop((far, asks));
        }
        // A thread that waits for a message is woken by the disconnection, without asking for the
        // event.
        let flushed = next(&listens.cq);
        assert_eq!((flushed.id(), flushed.status()), (1, Status::WrFlushErr));
        near.wait_closed().expect("no error");
        assert!(near.disconnect().is_ok(), "a second time is no error");
    }
}

#[test]
fn a_device_that_is_gone_ends_listeners_and_connections() {
    let fabric = Fabric::start().expect("an agent");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 0));
    let listener = listens.listen("10.0.0.1:7471");
    let (far, near) = connect(&asks, &listens, &listener);
    thread::scope(|threads| {
        let accepting = threads.spawn(|| listener.accept().map(drop));
        let closing = threads.spawn(|| near.wait_closed());
        drop(fabric);
        assert!(accepting.join().expect("no panic").is_err());
        let _ = closing.join().expect("no panic");
    });
    assert!(far.disconnect().is_err() || far.is_closed());
    assert!(Listener::bind(&asks.device, at("10.0.0.1:1")).is_err());
}

#[test]
fn many_connect_at_once_and_again() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let listener = listens.listen("10.0.0.2:7471");
    let to = listener.local_addr();
    const EACH: usize = 25;
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..EACH {
                    let far = asks.outgoing(to).connect(b"").expect("connected");
                    far.disconnect().expect("disconnected");
                }
            });
        }
        for _ in 0..2 {
            threads.spawn(|| {
                for _ in 0..2 * EACH {
                    let request = listener.accept_for(PATIENCE).expect("no error").expect("a request");
                    let incoming = request.prepare(listens.pd.reliable(&listens.cq)).expect("a QP");
                    // The peer may be gone by now.
                    if let Ok(near) = incoming.accept(b"") {
                        assert!(near.wait_closed_for(PATIENCE).expect("no error"));
                    }
                }
            });
        }
    });
}

#[test]
fn datagram_queue_pairs_are_found_by_address() {
    let fabric = Fabric::two_hosts().expect("two agents");
    for host in 0..2 {
        let (asks, listens) = (Program::on(&fabric, 0), Program::on(&fabric, host));
        let address = at(&format!("10.0.0.{}:7471", host + 1));
        // The ports of connections are another port space.
        let _other = listens.listen(&address.to_string());
        let listener = DatagramListener::bind(&listens.device, address).expect("it listens");
        let (near, far) = (
            listens.pd.datagrams(&listens.cq).qkey(0x77).build().expect("a QP"),
            asks.pd.datagrams(&asks.cq).build().expect("a QP"),
        );
        near.receive(1, listens.pd.buffer(DatagramQp::HEADER + 64).expect("memory")).expect("posted");
        thread::scope(|threads| {
            threads.spawn(|| {
                let found = Connector::new(&asks.device).find(&far, address, b"who is it").expect("an answer");
                assert!(found.private_data().starts_with(b"it is me"));
                assert_eq!(found.peer().endpoint(), near.endpoint());
                far.send_inline(2, b"datagram", found.peer(), None).expect("posted");
                next(&asks.cq).ok().expect("it has left");
                let declined = Connector::new(&asks.device).find(&far, address, b"").expect_err("none is named");
                assert!(matches!(declined, Error::Declined { .. }), "{declined:?}");
                let declined = Connector::new(&asks.device).find(&far, address, b"").expect_err("none is named");
                assert!(matches!(declined, Error::Declined { .. }), "{declined:?}");
            });
            let request = listener.accept_for(PATIENCE).expect("no error").expect("a request");
            assert!(request.private_data().starts_with(b"who is it"));
            assert_eq!((request.local_addr(), request.peer_addr().ip()), (address, at("10.0.0.1:0").ip()));
            request.answer(&near, b"it is me").expect("answered");
            assert_eq!(next(&listens.cq).ok().expect("a success").data(), b"datagram");
            listener.accept().expect("a request").reject(b"no").expect("rejected");
            drop(listener.accept().expect("a request"));
        });
    }
}

#[test]
fn a_device_without_a_manager_says_so() {
    let fabric = Fabric::start().expect("an agent");
    let control = fabric.host(0).control(0).expect("a control");
    let device = Context::with_control(Box::new(control)).expect("a device");
    let refused = Listener::bind(&device, at("10.0.0.1:1")).expect_err("no way to it");
    assert_eq!(refused.errno(), 95);
}

/// The GID of a host's first address.
fn gid(program: &Program) -> Gid {
    program.device.gids(1).expect("a table").iter().find(|entry| entry.index > 0).expect("an address").gid
}

/// A service id in the port space of RDMA CM needs no right. One of IPoIB names an interface, so
/// only root may listen there. Private data comes as it was sent in both cases.
#[test]
fn a_service_is_found_by_gid() {
    let fabric = Fabric::two_hosts().expect("a fabric");
    let (here, there) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let is_root = rustix::process::geteuid().is_root();
    for (id, allowed) in [(0x013f_1234, true), (0x1000_0000_0001_2345, is_root)] {
        let service = |gid, id| Service { gid, pkey: 0xffff, id };
        let to = service(gid(&there), id);
        let listener = Listener::builder(&there.device).bind_service(&to);
        assert_eq!(listener.is_ok(), allowed, "{listener:?}");
        let Ok(listener) = listener else { continue };
        thread::scope(|threads| {
            let asking = threads.spawn(|| {
                let from = service(gid(&here), 0);
                let route = Connector::new(&here.device).resolve_service(&from, &to).expect("a route");
                route.prepare(here.pd.reliable(&here.cq)).expect("a QP").connect(b"asks").expect("connected")
            });
            let request = listener.accept_for(PATIENCE).expect("no error").expect("a request");
            assert_eq!(&request.private_data()[..5], b"asks\0");
            let near =
                request.prepare(there.pd.reliable(&there.cq)).expect("a QP").accept(b"answers").expect("accepted");
            let far = asking.join().expect("no panic");
            assert_eq!((&far.private_data()[..8], far.endpoint().qpn), (&b"answers\0"[..], near.peer().qpn));
        });
    }
}

/// The service is that of the queue pairs. A listener of one service rejects requests for the
/// other.
#[test]
fn an_unreliable_connection_is_made_by_gid() {
    let fabric = Fabric::two_hosts().expect("a fabric");
    let (here, there) = (Program::on(&fabric, 0), Program::on(&fabric, 1));
    let service = |gid, id| Service { gid, pkey: 0xffff, id };
    let (from, to) = (service(gid(&here), 0), service(gid(&there), 0x013f_1234));
    let listener = Listener::builder(&there.device).bind_service(&to).expect("a listener");
    thread::scope(|threads| {
        let asking = threads.spawn(|| {
            let reliable = Connector::new(&here.device).resolve_service(&from, &to).expect("a route");
            let refused = reliable.prepare(here.pd.reliable(&here.cq)).expect("a QP").connect(b"");
            assert!(matches!(refused, Err(Error::Declined { .. })), "{refused:?}");
            let route = Connector::new(&here.device).resolve_service(&from, &to).expect("a route");
            route.prepare(here.pd.unreliable(&here.cq)).expect("a QP").connect(b"").expect("connected")
        });
        let request = listener.accept_for(PATIENCE).expect("no error").expect("a request");
        let incoming = request.prepare(there.pd.unreliable(&there.cq)).expect("a QP");
        incoming.receive(1, there.pd.buffer(64).expect("memory")).expect("posted");
        let near = incoming.accept(b"").expect("accepted");
        let far = asking.join().expect("no panic");
        far.send_inline(2, b"hello", None).expect("sent");
        assert_eq!(there.cq.wait().expect("it arrives").ok().expect("no error").data(), b"hello");
        assert_eq!((far.endpoint().reliable, far.endpoint().qpn), (false, near.peer().qpn));
    });
}
