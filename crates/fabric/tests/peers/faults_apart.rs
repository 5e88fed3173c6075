//! Tests that faults on demand affect only the connections that their rules concern, at both ends.
//! Other connections run no timers, have direct access, and send packets of a lane's maximal
//! length.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side, connect};
use abi::command::number;
use abi::cq::status;
use abi::fault::area;
use abi::layout::Record;
use abi::open::profile;
use abi::post::opcode;
use abi::private::{EngineHello, hello};
use abi::queue::context_page::FAULTS;
use abi::queue::{CONTEXT_LEN, ContextOut};
use capture::{Packet, Session, Wanted};
use engine::{Answer, Control, Engine, Error, SendWr, SocketControl};
use parking_lot::Mutex;
use shm::{Region, Socket};

/// A program with its own rules, like a program that is started with `SOFTHCA_FAULTS`: the rules
/// are written behind the context page, and a flag in ENGINE_HELLO says so.
struct Bringing {
    agent: SocketControl,
    rules: &'static str,
    page: Mutex<Option<Region>>,
}

impl Control for Bringing {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer, Error> {
        let command = u32::from(request[0]);
        let mut request = request.to_vec();
        if command == u32::from(number::ENGINE_HELLO) {
            let page = self.page.lock();
            let page = page.as_ref().expect("GET_CONTEXT comes first");
            page.copy_in(FAULTS + area::TEXT, self.rules.as_bytes());
            page.write(FAULTS + area::LEN, &(self.rules.len() as u32));
            let at = request.len() - size_of::<EngineHello>();
            let body = EngineHello { pid: std::process::id(), flags: hello::FAULTS };
            request.splice(at.., body.bytes().iter().copied());
        }
        let answer = self.agent.call(&request, fds)?;
        if command == u32::from(number::GET_CONTEXT) {
            let out: ContextOut = answer.get(answer.bytes.len() - size_of::<ContextOut>())?;
            assert!(out.page.offset == 0 && out.page.length >= CONTEXT_LEN as u64);
            let page = Region::map(answer.fds[1].as_fd(), out.page.region_len as usize).expect("the context page");
            *self.page.lock() = Some(page);
        }
        Ok(answer)
    }

    fn close(&self) {
        self.agent.close();
    }
}

fn engine_with(fabric: &Fabric, rules: &'static str) -> Arc<Engine> {
    let agent = SocketControl::open(&fabric.node(0), profile::MAINLINE).expect("an agent");
    Engine::open(Box::new(Bringing { agent, rules, page: Mutex::default() })).expect("a context")
}

fn joined(a: &Arc<Engine>, b: &Arc<Engine>) -> (Side, Side) {
    // A long timeout, because the machine may be busy. Losses are detected long before it expires.
    let plan = Plan { timeout: 17, ..Plan::rc() };
    let pair = (Side::new(a, &plan), Side::new(b, &plan));
    connect(&pair.0, &pair.1);
    pair
}

fn send(a: &Side, b: &Side, len: usize) {
    a.memory.pattern(0, len, len);
    b.recv(1, 0, len);
    a.post(&SendWr { sges: &a.sge(0, len), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().status), (status::SUCCESS, 0), "{:?}", engine::reason::last(3));
    assert_eq!(b.memory.get(0, len), a.memory.get(0, len));
}

fn write(a: &Side, b: &Side) -> u64 {
    let before = a.qp.carried_directly();
    let to =
        SendWr { opcode: opcode::RDMA_WRITE, remote_addr: b.memory.addr(64), rkey: b.mr.rkey(), ..SendWr::default() };
    a.post(&SendWr { sges: &a.sge(0, 64), ..to });
    assert_eq!(a.sent().status, status::SUCCESS, "{:?}", engine::reason::last(3));
    a.qp.carried_directly() - before
}

/// Checks a connection that no rule concerns: it has no timers, and its WRITEs are direct.
/// Connections that a rule concerns do none of this.
fn is_untouched(a: &Side, b: &Side) {
    for (a, b) in [(a, b), (b, a)] {
        send(a, b, 5000);
        assert!(!a.qp.expects_losses() && !a.qp.is_ruled());
        (0..20).for_each(|_| send(a, b, 64));
        until("a write that goes direct", || (write(a, b) == 1).then_some(()));
        assert_eq!((0..100).map(|_| write(a, b)).sum::<u64>(), 100, "all of them go direct");
        assert!(!a.qp.expects_losses());
    }
}

/// The number of packets in a message of 20000 bytes. A captured program has no direct access, so
/// tests call this last.
fn packets_of_a_message(fabric: &Fabric, a: &Side, b: &Side) -> usize {
    let socket = Socket::connect(&fabric.node(0).with_file_name("admin")).expect("an admin node");
    let mut seen = Session::begin(socket, Wanted::default()).expect("a capture");
    send(a, b, 20_000);
    let packets = seen.finish();
    let of_it = |packet: &&Packet| packet.src_qp == a.qp.qpn() && packet.dest_qp() == Some(b.qp.qpn());
    packets.iter().filter(of_it).count()
}

#[test]
fn rules_of_one_program_concern_its_connections_and_no_others() {
    let fabric = Fabric::start();
    let (b, c, d) = (fabric.engine(), fabric.engine(), fabric.engine());
    // Connected before there are rules.
    let other = joined(&c, &d);
    is_untouched(&other.0, &other.1);
    let a = engine_with(&fabric, "loss 10% seed 7");
    let (one, two) = joined(&a, &b);
    // A connection of a program whose other connection is concerned.
    let beside = joined(&b, &c);
    let late = joined(&c, &d);
    for _ in 0..10 {
        send(&one, &two, 9000);
        send(&two, &one, 9000);
    }
    until("the peer's timers", || two.qp.expects_losses().then_some(()));
    assert!(one.qp.expects_losses());
    for _ in 0..10 {
        assert_eq!(write(&one, &two) + write(&two, &one), 0, "what may get lost is not done directly");
    }
    let (seen, acted) = fabric.fault_counts();
    assert!(acted > 0 && acted <= seen / 2, "{acted} of {seen}");
    for (x, y) in [&other, &beside, &late] {
        is_untouched(x, y);
    }
    // The rules checked no packets of other connections.
    assert_eq!(fabric.fault_counts(), (seen, acted));
    for (x, y) in [&other, &beside, &late] {
        assert_eq!(packets_of_a_message(&fabric, x, y), 1);
    }
    assert!(packets_of_a_message(&fabric, &two, &one) >= 5, "packets as long as the path MTU");
    // When the program ends, its rules are removed. Its peer's other connections never noticed
    // them.
    a.close();
    until("no rules", || (fabric.fault_counts() == (0, 0)).then_some(()));
    send(&beside.0, &beside.1, 9000);
}

#[test]
fn a_rule_for_one_queue_pair_concerns_its_two_ends_only() {
    let fabric = Fabric::start();
    let engines = [fabric.engine(), fabric.engine()];
    let [first, second] = [(); 2].map(|()| joined(&engines[0], &engines[1]));
    fabric.add_faults(&format!("loss 5% direction both seed 3 qp {:#x}", first.1.qp.qpn()));
    let third = joined(&engines[1], &engines[0]);
    for (a, b) in [&first, &second, &third] {
        for _ in 0..10 {
            send(a, b, 9000);
            send(b, a, 100);
        }
    }
    assert!(first.0.qp.expects_losses() && first.1.qp.expects_losses());
    let counts = fabric.fault_counts();
    assert!(counts.1 > 0);
    // Connections of the same programs, made before the rule and after it.
    for (a, b) in [&second, &third] {
        is_untouched(a, b);
    }
    assert_eq!(fabric.fault_counts(), counts, "the rule was asked about no packet of theirs");
    assert_eq!(write(&first.0, &first.1), 0, "the first does not go direct");
    assert_eq!(packets_of_a_message(&fabric, &second.0, &second.1), 1);
}

#[test]
fn a_connection_is_concerned_while_it_has_a_peer_and_there_is_a_rule() {
    let fabric = Fabric::start();
    let engines = [fabric.engine(), fabric.engine()];
    let plan = Plan { timeout: 17, ..Plan::rc() };
    let (a, b) = (Side::new(&engines[0], &plan), Side::new(&engines[1], &plan));
    fabric.add_faults(&format!("delay 1us qp {:#x}", b.qp.qpn()));
    assert!(!a.qp.is_ruled(), "it has no peer yet");
    connect(&a, &b);
    assert!(a.qp.is_ruled() && b.qp.is_ruled());
    send(&a, &b, 64);
    fabric.clear_faults();
    until("no rules", || (!a.qp.is_ruled() && !b.qp.is_ruled()).then_some(()));
    // Neither side needs its timers any more, but both keep them until they are reset.
    assert!(a.qp.expects_losses());
    send(&a, &b, 64);
    // A rule about receive requests needs no timers.
    let (c, d) = joined(&engines[0], &engines[1]);
    fabric.add_faults(&format!("rnr nth 1 qp {:#x}", c.qp.qpn()));
    until("both ends to know", || (c.qp.is_ruled() && d.qp.is_ruled()).then_some(()));
    send(&c, &d, 64);
    assert!(!c.qp.expects_losses() && fabric.fault_counts().1 > 0);
}

#[test]
fn rules_about_other_hosts_and_connection_requests_leave_lanes_alone() {
    let fabric = Fabric::start();
    let (a, b) = joined(&fabric.engine(), &fabric.engine());
    fabric.add_faults("loss peer 10.9.9.9; loss opcode cm; delay 1s peer fd00::9");
    send(&a, &b, 9000);
    send(&b, &a, 9000);
    assert!(!a.qp.expects_losses() && !b.qp.expects_losses());
    assert_eq!(packets_of_a_message(&fabric, &a, &b), 1);
}

#[test]
fn a_rule_for_one_device_concerns_who_talks_to_programs_that_have_it() {
    let fabric = Fabric::configured("addresses = ['127.0.0.1']\n[[devices]]\n[[devices]]\nname = 'softhca1'");
    let (near, far) = (fabric.engine(), fabric.engine_of(1));
    let (a, b) = joined(&near, &far);
    let (c, d) = joined(&near, &fabric.engine());
    send(&a, &b, 9000);
    is_untouched(&c, &d);
    // The connection exists before the rule.
    fabric.add_faults("loss 20% device softhca1 seed 3");
    until("both ends to know", || (a.qp.expects_losses() && b.qp.expects_losses()).then_some(()));
    for _ in 0..20 {
        send(&a, &b, 9000);
    }
    assert!(fabric.fault_counts().1 > 0);
    is_untouched(&c, &d);
}
