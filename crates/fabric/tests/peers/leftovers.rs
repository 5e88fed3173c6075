//! Fabrics and contexts come and go in one process. Afterwards the process has as many descriptors,
//! threads and shared mappings as before, whatever was in progress.
//!
//! This file has one test and runs in its own process, because it counts resources of the whole
//! process.

use std::fs;

use crate::common::wait::{PATIENCE, next, until};
use crate::common::{Plan, QKEY, Side, start};
use abi::post::opcode;
use engine::{SendWr, SrqSpec};
use fabric::{Fabric, Faults};
use softhca::cm::{Connector, Listener};
use softhca::{Context, Cq, Message, Qp, Reliable, Unreliable};

/// Number of fabrics of each kind.
const ROUNDS: usize = 50;
const O_CREAT: u32 = 0o100;

/// The number of descriptors, threads and shared mappings of this process.
fn held() -> [usize; 3] {
    let entries = |path| fs::read_dir(path).expect("a directory").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("a file");
    [
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        maps.lines().filter(|line| line.contains("softhca-")).count(),
    ]
}

/// Runs `work` once for resources that a process keeps for ever, and then many times.
#[track_caller]
fn leaves_nothing(what: &str, work: impl Fn()) {
    work();
    let before = held();
    (0..ROUNDS).for_each(|_| work());
    // A joined thread may still be visible for a moment.
    until(&format!("{what}: back to {before:?} descriptors, threads and mappings from {:?}", held()), || {
        held().iter().zip(&before).all(|(now, before)| now <= before).then_some(())
    });
}

/// Two contexts, of two hosts or of one.
fn contexts(fabric: &Fabric) -> [Context; 2] {
    [0, 1].map(|nth| fabric.host(nth % fabric.hosts().len()).open().expect("a device"))
}

/// Two ends of a connection, each with the CQ of its receives.
type Ends<S> = [(Qp<S>, Cq); 2];

macro_rules! connected {
    ($contexts:expr, $service:ident) => {{
        let made = $contexts.each_ref().map(|context| {
            let (pd, cq) = (context.pd().expect("a PD"), context.cq(64).expect("a CQ"));
            let qp = pd.$service(&cq).sends(32).build().expect("a queue pair");
            (0..4).for_each(|id| qp.receive(id, pd.buffer(64).expect("a buffer")).expect("posted"));
            (qp, cq)
        });
        let ends = made.each_ref().map(|(qp, _)| qp.endpoint());
        let [a, b] = made;
        [(a, ends[1]), (b, ends[0])].map(|((qp, cq), peer)| (qp.connect(&peer).expect("connected"), cq))
    }};
}

/// Both sides send, and some receive requests remain.
fn talk(fabric: &Fabric) {
    let contexts = contexts(fabric);
    let reliable: Ends<Reliable> = connected!(contexts, reliable);
    let unreliable: Ends<Unreliable> = connected!(contexts, unreliable);
    let hears = |cq: &Cq| {
        let is_theirs = |done: softhca::Completion| done.ok().expect("well").data() == b"across";
        while !is_theirs(cq.wait_for(PATIENCE).expect("a queue").expect("it comes")) {}
    };
    let [(left, near), (right, far)] = &reliable;
    left.send_inline(9, b"across", None).expect("posted");
    hears(far);
    right.send_inline(9, b"across", None).expect("posted");
    hears(near);
    let [(left, _), (_, far)] = &unreliable;
    left.send_inline(9, b"across", None).expect("posted");
    hears(far);

    let [here, there] = contexts.each_ref().map(|context| {
        let (pd, cq) = (context.pd().expect("a PD"), context.cq(4).expect("a CQ"));
        let qp = pd.datagrams(&cq).build().expect("a queue pair");
        (0..2).for_each(|id| qp.receive(id, pd.buffer(128).expect("a buffer")).expect("posted"));
        (pd, cq, qp)
    });
    let mut message = here.0.buffer(6).expect("a buffer");
    message.copy_from_slice(b"across");
    here.2.send(9, Message::from(message), &here.2.peer(&there.2.endpoint()).expect("an address")).expect("posted");
    hears(&there.1);
}

/// A program of one host connects to a program of the other host.
fn meet(fabric: &Fabric) {
    let [here, there] = contexts(fabric);
    let address = std::net::SocketAddr::new(fabric.host(1).addresses()[0], 17);
    let listener = Listener::bind(&there, address).expect("it listens");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (pd, cq) = (there.pd().expect("a PD"), there.cq(4).expect("a CQ"));
            let incoming = listener.accept().expect("a request").prepare(pd.reliable(&cq)).expect("a queue pair");
            incoming.receive(1, pd.buffer(8).expect("a buffer")).expect("posted");
            let connection = incoming.accept(b"").expect("a connection");
            let completion = cq.wait_for(PATIENCE).expect("no failure").expect("it comes");
            assert_eq!(completion.ok().expect("well").data(), b"hello");
            drop(connection);
        });
        let (pd, cq) = (here.pd().expect("a PD"), here.cq(4).expect("a CQ"));
        let route = Connector::new(&here).resolve(address).expect("a route");
        let connection = route.prepare(pd.reliable(&cq)).expect("a queue pair").connect(b"").expect("a connection");
        connection.send_inline(1, b"hello", None).expect("posted");
        server.join().expect("served");
    });
}

/// Closes engines while all their objects exist, with completions that were polled and completions
/// that were not, and with datagrams that wait for a host that never answers.
fn close_with_everything(fabric: &crate::common::Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    (0..2).for_each(|id| b.recv(id, 0, 64));
    let sges = a.sge(0, 64);
    (0..2).for_each(|wr_id| a.post(&SendWr { wr_id, opcode: opcode::SEND, sges: &sges, ..SendWr::default() }));
    a.sent();
    b.received();
    b.pd.alloc_mw(1).expect("a window");
    let xrcd = b.engine.open_xrcd(None, O_CREAT).expect("a domain");
    let spec = SrqSpec { max_wr: 4, max_sge: 1, cookie: 5 };
    b.engine.create_xrc_srq(&b.pd, &xrcd, &b.rcq, &spec).expect("an SRQ");

    let (talker, listener) = (Side::new(&a.engine, &Plan::ud()), Side::new(&b.engine, &Plan::ud()));
    start(&talker);
    start(&listener);
    let (sges, ah) = (talker.sge(0, talker.mtu()), talker.ah(&listener));
    let wr =
        SendWr { opcode: opcode::SEND, sges: &sges, ud: Some((&ah, listener.qp.qpn(), QKEY)), ..SendWr::default() };
    fabric.switch().set_faults(Faults::loss(1.0, 1));
    (0..30).for_each(|_| talker.post(&wr));
    next(&talker.scq);
}

#[test]
fn nothing_is_left_of_fabrics_and_contexts() {
    let two = || Fabric::two_hosts().expect("two hosts");
    leaves_nothing("hosts without programs", || drop(two()));
    leaves_nothing("two hosts talk", || talk(&two()));
    leaves_nothing("two programs of one host talk", || talk(&Fabric::start().expect("a host")));
    leaves_nothing("two hosts meet", || meet(&two()));
    leaves_nothing("hosts end before their programs", || {
        let fabric = two();
        let contexts = contexts(&fabric);
        let _connected: Ends<Reliable> = connected!(contexts, reliable);
        let (pd, cq) = (contexts[0].pd().expect("a PD"), contexts[0].cq(4).expect("a CQ"));
        let srq = pd.srq(4).expect("an SRQ");
        let _taker = pd.reliable(&cq).srq(&srq).build().expect("a queue pair");
        srq.receive(1, pd.buffer(8).expect("a buffer")).expect("posted");
        drop(fabric);
    });
    leaves_nothing("everything is left when an engine is closed", || {
        close_with_everything(&crate::common::Fabric::hosts(["10.0.0.1", "10.0.0.2"], 4096, Faults::default()));
    });
    let fabric = two();
    // The agents free a program's objects with a delay, but before they answer the next request.
    let witnesses = contexts(&fabric);
    leaves_nothing("contexts come and go while their hosts stay", || {
        talk(&fabric);
        for context in &witnesses {
            context.device().expect("an answer");
        }
    });
}
