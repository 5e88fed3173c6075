//! Tests faults on demand, on lanes and on the wire: reliable connections survive them with all
//! data intact, unreliable ones lose what a rule says, and the same seed loses the same packets.

use crate::common::wait::{event, until};
use crate::common::{Fabric, Plan, Side, connect, cq, everywhere, make_qp};
use abi::cq::{Wc, status};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::opcode;
use abi::qp::state;
use engine::{SendWr, Service};

/// Half of a side's memory. The first half is for sending, the second for receiving.
const HALF: usize = 32 * 1024;

/// Bytes that differ from position to position and from round to round.
fn pattern(round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + round * 13 + at / 251) as u8).collect()
}

/// Runs every operation between two sides, `rounds` times, with an oracle of all memory.
fn talk(a: &Side, b: &Side, rounds: usize) {
    let total = std::cell::Cell::new(0_u64);
    let done = |side: &Side| {
        let wc = side.sent();
        assert_eq!(wc.status, status::SUCCESS, "{:?}", engine::reason::last(4));
    };
    b.memory.put_word(0, 0);
    for round in 0..rounds {
        let len = [9000, 1, 4096, HALF - 8, 1024][round % 5];
        let sent = pattern(round, len);
        a.memory.put(8, &sent);
        let to = SendWr { remote_addr: b.memory.addr(HALF), rkey: b.mr.rkey(), ..SendWr::default() };
        // The data is written, read back, sent, and counted.
        a.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &a.sge(8, len), ..to });
        done(a);
        assert_eq!(b.memory.get(HALF, len), sent, "round {round}: written");
        a.post(&SendWr { opcode: opcode::RDMA_READ, sges: &a.sge(HALF, len), ..to });
        done(a);
        assert_eq!(a.memory.get(HALF, len), sent, "round {round}: read");
        b.memory.put(HALF, &vec![0; len]);
        b.recv(round as u64, HALF, HALF);
        a.post(&SendWr { opcode: opcode::SEND, sges: &a.sge(8, len), ..SendWr::default() });
        done(a);
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (round as u64, status::SUCCESS, len));
        assert_eq!(b.memory.get(HALF, len), sent, "round {round}: received");
        let count = SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, remote_addr: b.memory.addr(0), ..to };
        a.post(&SendWr { compare_add: 3, sges: &a.sge(0, 8), ..count });
        done(a);
        assert_eq!(a.memory.word(0), total.get(), "round {round}: an atomic happens once");
        total.set(total.get() + 3);
    }
    assert_eq!(b.memory.word(0), total.get());
}

/// A pair with a long timeout. Losses are detected long before it expires.
fn pair(fabric: &Fabric) -> (Side, Side) {
    fabric.pair(&Plan { timeout: 18, memory: 2 * HALF, ..Plan::rc() })
}

fn connections_get_over_each_kind(fabric: &Fabric) {
    for rule in [
        "loss 5% seed 7",
        "loss every 7 opcode ack",
        "duplicate 10% seed 3",
        "reorder 10% seed 4",
        "corrupt 5% seed 5",
        "ghost-ack 50%",
        "rnr 30% seed 6",
        "delay 30us jitter 20us rate 20%",
        "bandwidth 800mbit",
        "loss 5% direction in seed 8",
        "reorder 5% direction in; duplicate 5% direction both seed 9",
    ] {
        fabric.add_faults(rule);
        let (a, b) = pair(fabric);
        talk(&a, &b, 8);
        let (seen, acted) = fabric.fault_counts();
        assert!(acted > 0 && seen >= acted, "{rule}: {acted} of {seen}");
        fabric.clear_faults();
        assert_eq!(fabric.fault_counts(), (0, 0));
        // The connection continues after the rules are gone.
        talk(&a, &b, 2);
    }
}

/// A program with perftest's settings must survive each of these faults alone, and all together.
fn connections_get_over_the_rates_of_a_bad_network(fabric: &Fabric) {
    for rules in [
        "loss 1% seed 7",
        "loss 5% seed 8",
        "reorder 5% seed 4",
        "duplicate 1% seed 3",
        "corrupt 0.1% seed 5",
        "loss 5% seed 7; reorder 5% seed 2; duplicate 1% seed 3; corrupt 0.1% seed 5",
    ] {
        fabric.add_faults(rules);
        let (a, b) = fabric.pair(&Plan { memory: 2 * HALF, ..Plan::rc() });
        talk(&a, &b, 50);
        let (seen, acted) = fabric.fault_counts();
        assert!(acted > 0 && seen >= acted, "{rules}: {acted} of {seen}");
        fabric.clear_faults();
    }
}

fn connections_get_over_all_of_them_at_once(fabric: &Fabric) {
    fabric.add_faults("loss 5%; reorder 5% seed 2; duplicate 1% seed 3; corrupt 0.1% seed 4; ghost-ack 5%; rnr 5%");
    let (a, b) = pair(fabric);
    talk(&a, &b, 20);
    talk(&b, &a, 5);
}

fn connections_that_were_there_before_get_over_them_too(fabric: &Fabric) {
    let (a, b) = pair(fabric);
    talk(&a, &b, 3);
    // From here on the rule also concerns this connection, which existed before the rule.
    b.recv(77, HALF, HALF);
    fabric.add_faults("loss 10% seed 5");
    a.post(&SendWr { sges: &a.sge(0, 5000), ..SendWr::default() });
    assert_eq!((a.sent().status, b.received().wr_id), (0, 77));
    talk(&a, &b, 20);
    fabric.clear_faults();
    fabric.add_faults("loss 20% seed 5 opcode response");
    talk(&b, &a, 5);
}

/// Which of a hundred datagrams arrived.
fn arrived(fabric: &Fabric, service: Service) -> Vec<u64> {
    let mut plan = Plan::new(service);
    plan.caps.max_recv_wr = 128;
    plan.cqe = 256;
    let (a, b) = fabric.pair(&plan);
    (0..100).for_each(|wr_id| b.recv(wr_id, 64, 64));
    let handle = (service == Service::Ud).then(|| a.ah(&b));
    for number in 0..100_u64 {
        a.memory.put_word(0, number);
        let wr = SendWr { opcode: opcode::SEND_WITH_IMM, imm: number as u32, ..SendWr::default() };
        let ud = handle.as_deref().map(|handle| (handle, b.qp.qpn(), crate::common::QKEY));
        a.post(&SendWr { ud, sges: &a.sge(0, 8), ..wr });
        assert_eq!(a.sent().status, status::SUCCESS, "unreliable sends are over when they are sent");
    }
    // No rule in this test loses the last datagram. When it arrives, every earlier one has arrived
    // or is lost.
    let mut came = Vec::new();
    while came.last() != Some(&99) {
        came.push(u64::from(b.received().imm_data));
    }
    came
}

fn unreliable_services_lose_what_a_rule_says_and_the_same_again_with_its_seed(fabric: &Fabric) {
    for service in [Service::Ud, Service::Uc] {
        fabric.add_faults("loss nth 3 opcode send");
        let expected: Vec<u64> = (0..100).filter(|number| *number != 2).collect();
        assert_eq!(arrived(fabric, service), expected, "{service:?}");
        fabric.clear_faults();
        let lossy = |seed: u64| {
            // 15 losses at most, so that the last message is not lost.
            fabric.add_faults(&format!("loss 20% count 15 seed {seed} opcode send"));
            let came = arrived(fabric, service);
            fabric.clear_faults();
            came
        };
        let one = lossy(7);
        assert!(one.len() < 95 && one == lossy(7) && one != lossy(8), "{service:?}: {one:?}");
    }
}

everywhere! {
    connections_get_over_each_kind
    connections_get_over_the_rates_of_a_bad_network
    connections_get_over_all_of_them_at_once
    connections_that_were_there_before_get_over_them_too
    unreliable_services_lose_what_a_rule_says_and_the_same_again_with_its_seed
}

#[test]
fn a_path_that_loses_everything_ends_as_on_a_wire() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc().hasty());
    fabric.add_faults(&format!("loss qp {:#x}", a.qp.qpn()));
    b.recv(1, 0, 8);
    a.post(&SendWr { wr_id: 5, sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!((a.sent().wr_id, a.qp.state()), (5, u32::from(state::ERR)));
    let told = engine::reason::last(64);
    let of_rule = format!("fault: by rule 1 (loss qp {:#x}) 1 packet was lost; the last: ", a.qp.qpn());
    assert!(told.iter().any(|sentence| sentence.contains(&of_rule)), "{told:?}");
    assert_eq!(b.rcq.poll(&mut [Wc::default()]), Ok(0));
    // Other connections are not affected.
    let (c, d) = fabric.pair(&Plan::rc());
    d.recv(2, 0, 8);
    c.post(&SendWr { sges: &c.sge(0, 8), ..SendWr::default() });
    assert_eq!((c.sent().status, d.received().wr_id), (0, 2));
}

#[test]
fn a_receiver_is_not_ready_as_often_as_a_rule_says() {
    let fabric = Fabric::start();
    fabric.add_faults("rnr");
    let (a, b) = fabric.pair(&Plan { rnr_retry: 3, ..Plan::rc() });
    b.recv(1, 0, 8);
    a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
    assert_eq!(a.sent().status, status::RNR_RETRY_EXC_ERR);
    assert_eq!(fabric.fault_counts(), (4, 4));
}

#[test]
fn commands_fail_as_a_rule_says() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let (pd, plan) = (engine.alloc_pd().expect("a PD"), Plan::rc());
    let cqs = (cq(&engine, 16), cq(&engine, 16));
    fabric.add_faults("fail create_qp ENOMEM nth 2; fail reg_mr EFAULT; fail modify_qp ETIMEDOUT after 2");
    drop(make_qp(&engine, &pd, &plan, (&cqs.0, &cqs.1), None));
    let spec = engine::QpSpec {
        service: Service::Rc,
        send_cq: &cqs.0,
        recv_cq: &cqs.1,
        srq: None,
        caps: plan.caps,
        sq_sig_all: true,
        cookie: 0,
    };
    let error = engine.create_qp(&pd, &spec).map(drop).expect_err("the second one fails");
    assert_eq!(error.errno, Errno::ENOMEM);
    assert!(error.reason.contains("fault: create_qp fails with ENOMEM"), "{}", error.reason);
    let qp = engine.create_qp(&pd, &spec).expect("the third one does not");
    let word = 7_u64;
    let place = (&raw const word).addr() as u64;
    assert_eq!(pd.reg_mr(place, 8, place, 1).map(drop).expect_err("refused").errno, Errno::EFAULT);
    fabric.clear_faults();
    pd.reg_mr(place, 8, place, 1).expect("no rule").dereg().expect("gone");
    qp.destroy().expect("gone");
}

#[test]
fn a_port_goes_down_and_comes_up_again_by_itself() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan { timeout: 17, ..Plan::rc() });
    fabric.add_faults("port-down for 20ms");
    for side in [&a, &b] {
        assert_eq!(event(&side.engine).kind, kind::PORT_ERR);
    }
    b.recv(1, 0, 8);
    a.post(&SendWr { sges: &a.sge(0, 8), ..SendWr::default() });
    for side in [&a, &b] {
        assert_eq!(event(&side.engine).kind, kind::PORT_ACTIVE);
    }
    assert_eq!((a.sent().status, b.received().wr_id), (0, 1));
    // Without a duration, the port comes up when the rule is removed.
    fabric.add_faults("port-down");
    assert_eq!(event(&a.engine).kind, kind::PORT_ERR);
    fabric.clear_faults();
    assert_eq!(event(&a.engine).kind, kind::PORT_ACTIVE);
}

#[test]
fn a_device_is_taken_away_and_its_peers_hear_of_it() {
    let fabric = Fabric::start();
    let (a, b) = (Side::new(&fabric.engine(), &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc().hasty()));
    connect(&a, &b);
    a.recv(1, 0, 8);
    b.post(&SendWr { sges: &b.sge(0, 8), ..SendWr::default() });
    assert_eq!((b.sent().status, a.received().wr_id), (0, 1));
    fabric.add_faults("remove");
    for side in [&a, &b] {
        assert_eq!(event(&side.engine).kind, kind::DEVICE_FATAL);
        until("the error state", || (side.qp.state() == u32::from(state::ERR)).then_some(()));
        assert_eq!(side.engine.query_device().map(drop).expect_err("it is gone").errno, Errno::EIO);
    }
    // The agent continues. A program that opens the device now can use it.
    let (c, d) = fabric.pair(&Plan::rc());
    d.recv(2, 0, 8);
    c.post(&SendWr { sges: &c.sge(0, 8), ..SendWr::default() });
    assert_eq!((c.sent().status, d.received().wr_id), (0, 2));
}

#[test]
fn refused_rules_name_the_permitted_words() {
    let fabric = ::fabric::Fabric::two_hosts().expect("hosts");
    let host = fabric.host(0);
    for (text, expected) in [
        ("loss 5% device mlx5_0", "device: there is no \"mlx5_0\"; devices are softhca0"),
        ("port-down port 9", "port: there is no port 9; the device has 1"),
        ("loose", "unknown kind of fault"),
        ("", "it has no rule"),
    ] {
        let why = host.add_faults(text).expect_err(text);
        assert!(why.contains(expected), "{why}");
    }
    (0..16).for_each(|_| drop(host.add_faults("loss 0%").expect("room")));
    assert!(host.add_faults("loss 0%").expect_err("full").contains("the limit of 16 rules is reached"));
    host.clear_faults();
    assert_eq!(host.add_faults("loss nth 3").expect("room"), [17]);
}
