//! iWARP in simulated time, through engines and agents: TCP connections that split, merge, delay,
//! stall, corrupt and reset, and peers that do not read for a while. Each work request completes
//! exactly once and in order, and what has succeeded has the right data. A seed decides everything,
//! and a failed assertion names it.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Plan, cq, make_qp};
use abi::cq::{Wc, status};
use abi::post::{Sge, opcode};
use abi::qp::{ModifyQp, attr, state};
use agent::Config;
use engine::{Cq, Engine, Mr, Pd, Qp, RecvWr, SendWr};
use fabric::simulation::{Conditions, HostId, Memory, Simulation, StreamHarm, StreamId};

/// Number of seeds for each kind of trouble.
const SEEDS: u64 = 100;
/// Work requests of each side of a connection.
pub(crate) const WORKS: usize = 24;
/// Bytes of each work request at most: two FPDUs.
pub(crate) const SLOT: usize = 40 * 1024;
/// The parts of a side's memory: what it sends or gets, its receive requests, what the peer writes,
/// what the peer reads, and the peer's counter.
const OWN: usize = 0;
const RECEIVED: usize = WORKS * SLOT;
pub(crate) const WRITTEN: usize = 2 * WORKS * SLOT;
const SOURCE: usize = 3 * WORKS * SLOT;
const COUNTER: usize = 4 * WORKS * SLOT;
/// The address of each region, so that no packet has an address of this process.
const BASE: u64 = 0x10_0000;
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing is lost: everything succeeds.
    Delays,
    /// One byte, or the connection.
    Harm,
    /// A program posts a wrong key.
    Mistakes,
    /// A program ends its connection: with a reset, if it has work outstanding.
    Ends,
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) opcode: u32,
    pub(crate) len: usize,
    pub(crate) is_wrong: bool,
}

/// One side of a connection, and what it was told.
pub(crate) struct Side {
    pub(crate) engine: Arc<Engine>,
    pub(crate) qp: Arc<Qp>,
    scq: Arc<Cq>,
    rcq: Arc<Cq>,
    pub(crate) memory: Memory,
    pub(crate) mr: Arc<Mr>,
    _pd: Arc<Pd>,
    pub(crate) works: Vec<Work>,
    pub(crate) posted: usize,
    pub(crate) sent: Vec<Wc>,
    pub(crate) received: Vec<Wc>,
}

/// The bytes of a work request, or of what it reads.
pub(crate) fn pattern(side: usize, nth: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + nth * 31 + side * 131 + (at >> 8)) as u8).collect()
}

fn polled(cq: &Cq, into: &mut Vec<Wc>) {
    let mut wcs = [Wc::default(); 8];
    while let count @ 1.. = cq.poll(&mut wcs).expect("a device") {
        into.extend_from_slice(&wcs[..count]);
    }
}

impl Side {
    fn new(engine: &Arc<Engine>, simulation: &mut Simulation, number: usize, trouble: Trouble) -> Self {
        let mut plan = Plan::rc();
        (plan.caps.max_send_wr, plan.caps.max_recv_wr) = (WORKS as u32, WORKS as u32);
        let pd = engine.alloc_pd().expect("a PD");
        let (scq, rcq) = (cq(engine, plan.cqe), cq(engine, plan.cqe));
        let qp = make_qp(engine, &pd, &plan, (&scq, &rcq), None);
        let memory = Memory::new(COUNTER + 8);
        let mr = pd.reg_mr(memory.address(), memory.len() as u64, BASE, plan.mr_access).expect("an MR");
        let wrong = if trouble == Trouble::Mistakes { simulation.below(2 * WORKS as u64) as usize } else { WORKS };
        let mut draw = |nth: usize| {
            let opcodes =
                [opcode::SEND, opcode::SEND, opcode::RDMA_WRITE, opcode::RDMA_READ, opcode::ATOMIC_FETCH_AND_ADD];
            let opcode = opcodes[simulation.below(opcodes.len() as u64) as usize];
            let longest = [64, 2000, SLOT][simulation.below(3) as usize];
            let len =
                if opcode == opcode::ATOMIC_FETCH_AND_ADD { 8 } else { 1 + simulation.below(longest as u64) as usize };
            Work { opcode, len, is_wrong: nth == wrong && opcode != opcode::SEND }
        };
        let works: Vec<Work> = (0..WORKS).map(&mut draw).collect();
        for (nth, work) in works.iter().enumerate() {
            if matches!(work.opcode, opcode::SEND | opcode::RDMA_WRITE) {
                memory.put(OWN + nth * SLOT, &pattern(number, nth, work.len));
            }
            memory.put(SOURCE + nth * SLOT, &pattern(1 - number, nth, SLOT));
        }
        let (engine, sent, received) = (Arc::clone(engine), Vec::new(), Vec::new());
        Self { engine, qp, scq, rcq, memory, mr, _pd: pd, works, posted: 0, sent, received }
    }

    fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [Sge::new(BASE + at as u64, len as u32, self.mr.lkey())]
    }

    pub(crate) fn connect(&self) {
        let to = |qp_state, mask, more: ModifyQp| {
            self.qp.modify(&ModifyQp { attr_mask: attr::STATE | mask, qp_state, ..more }).expect("a change");
        };
        let init = ModifyQp { port_num: 1, qp_access_flags: 0xe, ..ModifyQp::default() };
        to(state::INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS, init);
        for nth in 0..WORKS {
            let sges = self.sge(RECEIVED + nth * SLOT, SLOT);
            self.qp.post_recv(&RecvWr { wr_id: nth as u64, sges: &sges }).expect("a receive");
        }
        let dest = abi::qp::Dest { is_global: 1, port_num: 1, ..abi::qp::Dest::default() };
        let mask = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC;
        let rtr = ModifyQp { dest, path_mtu: 3, max_dest_rd_atomic: 4, ..ModifyQp::default() };
        to(state::RTR, mask | attr::MIN_RNR_TIMER, rtr);
        let mask = attr::SQ_PSN | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        to(state::RTS, mask, ModifyQp { max_rd_atomic: 4, ..ModifyQp::default() });
    }

    pub(crate) fn close(&self) {
        let to_error = ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
        self.qp.modify(&to_error).expect("a change");
    }

    /// Posts the next work request.
    pub(crate) fn post(&mut self, rkey: u32) {
        let nth = self.posted;
        let Some(work) = self.works.get(nth) else { return };
        let remote = match work.opcode {
            opcode::RDMA_WRITE => WRITTEN + nth * SLOT,
            opcode::RDMA_READ => SOURCE + nth * SLOT,
            _ => COUNTER,
        };
        let request = SendWr {
            wr_id: nth as u64,
            opcode: work.opcode,
            sges: &self.sge(OWN + nth * SLOT, work.len),
            remote_addr: BASE + remote as u64,
            rkey: if work.is_wrong { !rkey } else { rkey },
            compare_add: 1,
            ..SendWr::default()
        };
        let mut batch = self.qp.send_batch().expect("a batch");
        batch.push(&request).expect("room");
        batch.finish();
        self.posted += 1;
    }

    pub(crate) fn poll(&mut self) {
        polled(&self.scq, &mut self.sent);
        polled(&self.rcq, &mut self.received);
    }

    /// Whether every work request is done.
    fn is_done(&self) -> bool {
        self.sent.len() == WORKS
    }

    pub(crate) fn is_in_error(&self) -> bool {
        self.qp.state() == u32::from(state::ERR)
    }
}

/// What both sides must have been told.
fn check(seed: u64, trouble: Trouble, number: usize, own: &Side, peer: &Side) {
    let told = |what: &str| format!("seed {seed}, {trouble:?}, side {number}: {what}; {:?}", own.sent);
    let ids = own.sent.iter().map(|wc| wc.wr_id);
    assert!(ids.eq(0..WORKS as u64), "{}", told("each work request completes once, in order"));
    let good = own.sent.iter().take_while(|wc| wc.status == status::SUCCESS).count();
    let failed = own.sent[good..].iter().filter(|wc| wc.status != status::WR_FLUSH_ERR);
    for wc in failed {
        let refused = matches!(wc.status, status::REM_ACCESS_ERR | status::REM_OP_ERR);
        assert!(refused && own.works[wc.wr_id as usize].is_wrong, "{}", told("an error that is nobody's mistake"));
    }
    if trouble == Trouble::Delays {
        assert_eq!(good, WORKS, "{}", told("everything succeeds"));
    }
    let mut counted = 0;
    for (nth, work) in own.works[..good].iter().enumerate() {
        let here = own.memory.bytes(OWN + nth * SLOT, work.len);
        match work.opcode {
            opcode::RDMA_READ => assert!(here == pattern(number, nth, work.len), "{}", told("what was read")),
            opcode::ATOMIC_FETCH_AND_ADD => {
                assert_eq!(here, u64::to_ne_bytes(counted), "{}", told("the value before"));
                counted += 1;
            }
            _ => {}
        }
    }
    if trouble == Trouble::Delays {
        for (nth, work) in own.works.iter().enumerate().filter(|(_, work)| work.opcode == opcode::RDMA_WRITE) {
            let there = peer.memory.bytes(WRITTEN + nth * SLOT, work.len);
            assert!(there == pattern(number, nth, work.len), "{}", told("what was written"));
        }
    }
    // Messages arrive once, in order and whole; the receive requests behind them are flushed.
    let ids = peer.received.iter().map(|wc| wc.wr_id);
    assert!(ids.eq(0..peer.received.len() as u64), "{}", told("receive requests end once, in order"));
    let mut sends = own.works.iter().enumerate().filter(|(_, work)| work.opcode == opcode::SEND);
    for wc in peer.received.iter().take_while(|wc| wc.status == status::SUCCESS) {
        let (nth, work) = sends.next().expect("no more messages than SENDs");
        assert_eq!(wc.byte_len as usize, work.len, "{}", told("a message"));
        let there = peer.memory.bytes(RECEIVED + wc.wr_id as usize * SLOT, work.len);
        assert!(there == pattern(number, nth, work.len), "{}", told("what has arrived"));
    }
    if trouble == Trouble::Delays {
        assert!(sends.next().is_none(), "{}", told("a message is missing"));
    }
}

fn harm(simulation: &mut Simulation, trouble: Trouble) -> StreamHarm {
    let at = simulation.below(400_000);
    match (trouble, simulation.below(3)) {
        (Trouble::Harm, 0) => StreamHarm::Corrupt(at),
        (Trouble::Harm, 1) => StreamHarm::Reset(at),
        (Trouble::Delays | Trouble::Ends, 0) => {
            StreamHarm::Unread(at, Duration::from_micros(simulation.below(300_000)))
        }
        _ => StreamHarm::Stall(at, Duration::from_micros(simulation.below(300_000))),
    }
}

/// Two hosts with an engine each.
pub(crate) fn engines(simulation: &mut Simulation) -> [(HostId, Arc<Engine>); 2] {
    let config = Config::parse("[[devices]]\ntransport = 'iwarp'\n").expect("a configuration");
    let hosts = ["10.0.0.1", "10.0.0.2"].map(|address| simulation.host_with(&[address], &config).expect("a host"));
    hosts.map(|host| (host, simulation.connect(host).expect("an engine")))
}

/// Two sides with queue pairs of these engines, which are joined and not connected yet.
pub(crate) fn pair(
    simulation: &mut Simulation,
    engines: &[(HostId, Arc<Engine>); 2],
    trouble: Trouble,
) -> ([Side; 2], StreamId) {
    let sides = [0, 1].map(|number| Side::new(&engines[number].1, simulation, number, trouble));
    let ends = [0, 1].map(|number| (engines[number].0, sides[number].qp.qpn()));
    let stream = simulation.join(ends, 4).expect("a connection");
    (sides, stream)
}

/// Two such sides of engines of their own.
pub(crate) fn joined(simulation: &mut Simulation, trouble: Trouble) -> ([Side; 2], StreamId) {
    let engines = engines(simulation);
    pair(simulation, &engines, trouble)
}

/// Returns the digest of the run.
fn run(seed: u64, trouble: Trouble) -> u64 {
    let mut simulation = Simulation::new(seed);
    let most = Duration::from_micros(3 + simulation.below(300));
    simulation.set_conditions(Conditions { delay: (Duration::from_micros(2), most), ..Conditions::default() });
    let (mut sides, stream) = joined(&mut simulation, trouble);
    for from in 0..2 {
        let harm = harm(&mut simulation, trouble);
        simulation.harm(stream, from, harm);
    }
    sides.iter().for_each(Side::connect);
    let rkeys = [1, 0].map(|peer: usize| sides[peer].mr.rkey());
    let begin = simulation.now();
    let mut has_closed = false;
    let ends_at = Duration::from_micros(simulation.below(2_000));
    loop {
        let number = simulation.below(2) as usize;
        if simulation.below(3) == 0 {
            sides[number].post(rkeys[number]);
        }
        if simulation.below(4) == 0 {
            sides[number].poll();
        }
        let pause = simulation.below(50_000);
        simulation.run_for(Duration::from_nanos(pause));
        sides.iter_mut().for_each(Side::poll);
        if sides.iter().all(Side::is_done) {
            break;
        }
        let time = simulation.now() - begin;
        if time > ends_at && trouble == Trouble::Ends && !has_closed {
            has_closed = true;
            sides[0].close();
        }
        if time > LIMIT / 2 && trouble == Trouble::Harm && !has_closed {
            // A changed length makes the receiver wait for bytes that nobody sends.
            has_closed = true;
            sides.iter().for_each(Side::close);
        }
        let statuses = |side: &Side| (side.posted, side.sent.len(), side.qp.state());
        assert!(time < LIMIT, "seed {seed}, {trouble:?}: stuck: {:?}", sides.each_ref().map(statuses));
    }
    // What is under way arrives.
    simulation.run_for(Duration::from_secs(6));
    sides.iter_mut().for_each(Side::poll);
    for (side, wcs) in sides.iter().map(|side| (side, &side.received)) {
        assert!(!side.is_in_error() || wcs.len() == WORKS, "seed {seed}, {trouble:?}: receive requests are left");
    }
    for number in 0..2 {
        check(seed, trouble, number, &sides[number], &sides[1 - number]);
    }
    for wc in sides.iter().flat_map(|side| side.sent.iter().chain(&side.received)) {
        simulation.note(&[wc.wr_id, u64::from(wc.status)]);
    }
    simulation.digest()
}

#[test]
fn iw_stream_all_work_succeeds_over_connections_that_split_merge_and_stall() {
    (0..SEEDS).for_each(|seed| {
        run(seed, Trouble::Delays);
    });
}

#[test]
fn iw_lost_each_work_request_completes_once_if_bytes_change_and_connections_end() {
    (0..SEEDS).for_each(|seed| {
        run(seed, Trouble::Harm);
    });
}

#[test]
fn iw_terminate_each_work_request_completes_once_if_keys_are_wrong() {
    (0..SEEDS).for_each(|seed| {
        run(seed, Trouble::Mistakes);
    });
}

#[test]
fn iw_lost_each_work_request_completes_once_if_a_side_resets_its_connection() {
    (0..SEEDS).for_each(|seed| {
        run(seed, Trouble::Ends);
    });
}

#[test]
fn a_seed_of_streams_is_a_whole_story() {
    for trouble in [Trouble::Delays, Trouble::Harm, Trouble::Mistakes, Trouble::Ends] {
        assert_eq!(run(3, trouble), run(3, trouble), "{trouble:?}");
    }
}
