//! Networks that reorder packets: out-of-order packets wait in the out-of-order buffer instead of
//! being retransmitted. The tests count the sent packets, and compare the count with that of a
//! network without faults. They run in simulated time, so a seed decides everything: no thread
//! waits for a processor, and no timer expires because of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Plan, Side};
use abi::cq::{Wc, status};
use abi::post::opcode;
use engine::{Cq, SendWr};
use fabric::simulation::{Conditions, Fate, Seen, Simulation};

/// Bytes of a message: one burst of small packets, or a quarter of a burst of large ones.
const LEN: usize = 64 * 1024;

/// Number of messages.
const ROUNDS: usize = 100;

/// Two connected sides on separate hosts, and the count of sent packets.
struct Network {
    simulation: Simulation,
    sides: (Side, Side),
    packets: Arc<AtomicU64>,
    late: Arc<AtomicU64>,
}

impl Network {
    fn new(seed: u64, path_mtu: u8) -> Self {
        let mut simulation = Simulation::new(seed);
        let plan = Plan { memory: 2 * LEN, timeout: 18, ..Plan::rc() };
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|address| {
            let host = simulation.host(address).expect("a host");
            Side::new(&simulation.connect(host).expect("an engine"), &plan)
        });
        for (own, peer) in [(&a, &b), (&b, &a)] {
            own.init();
            own.modify(&own.rtr_request(peer.gid(), peer.qp.qpn(), path_mtu));
            own.rts();
        }
        let (packets, late) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&packets), Arc::clone(&late));
        simulation.watch(move |_, what| {
            if let Seen::Sent { fate, .. } = what {
                counts.0.fetch_add(1, Ordering::Relaxed);
                counts.1.fetch_add((*fate == Fate::Late).into(), Ordering::Relaxed);
            }
        });
        Self { simulation, sides: (a, b), packets, late }
    }

    fn next(&mut self, cq: &Cq) {
        let mut wcs = [Wc::default()];
        let limit = Duration::from_secs(60);
        assert!(self.simulation.run_until(limit, || cq.poll(&mut wcs).expect("a device") == 1), "nothing completes");
        assert_eq!(wcs[0].status, status::SUCCESS, "{:?}", engine::reason::last(4));
    }

    /// Sends messages one after the other, and returns the number of packets that this took.
    fn packets(&mut self, opcode: u32, conditions: Conditions) -> u64 {
        self.simulation.set_conditions(conditions);
        let before = self.packets.load(Ordering::Relaxed);
        for round in 0..ROUNDS {
            let (a, b) = &self.sides;
            let sent: Vec<u8> = (0..LEN).map(|at| (at / 3 + at / 1024 + round * 7) as u8).collect();
            let reads = opcode == opcode::RDMA_READ;
            let (from, to) = if reads { (b, a) } else { (a, b) };
            from.memory.put(0, &sent);
            to.memory.put(LEN, &[0; LEN]);
            let at = if reads { LEN } else { 0 };
            if opcode == opcode::SEND {
                b.recv(round as u64, LEN, LEN);
            }
            let (remote_addr, rkey) = (b.memory.addr(LEN - at), b.mr.rkey());
            a.post(&SendWr { opcode, sges: &a.sge(at, LEN), remote_addr, rkey, ..SendWr::default() });
            let (scq, rcq) = (Arc::clone(&a.scq), Arc::clone(&b.rcq));
            self.next(&scq);
            if opcode == opcode::SEND {
                self.next(&rcq);
            }
            let to = if reads { &self.sides.0 } else { &self.sides.1 };
            assert!(to.memory.get(LEN, LEN) == sent, "round {round}: every byte is where it belongs");
        }
        self.packets.load(Ordering::Relaxed) - before
    }
}

/// Small and large packets, some of which are late by up to `extra_delay`. The late packets must cause
/// no retransmissions. The tolerance of one percent is for acknowledgements, whose number varies.
#[track_caller]
fn expect_few(extra_delay: Duration) {
    let good = Conditions { pauses: 0.0, ..Conditions::default() };
    let spoilt = Conditions { reordering: 0.05, extra_delay, ..good.clone() };
    for opcode in [opcode::RDMA_WRITE, opcode::SEND, opcode::RDMA_READ] {
        for (seed, path_mtu) in [(1, 3), (2, 5)] {
            let mut network = Network::new(seed, path_mtu);
            let whole = network.packets(opcode, good.clone());
            let more = network.packets(opcode, spoilt.clone());
            let late = network.late.load(Ordering::Relaxed);
            println!("opcode {opcode}, MTU code {path_mtu}: {more} packets instead of {whole}, {late} were late");
            assert!(late > 50, "{late} packets were late, nothing is proved");
            assert!(
                more <= whole + whole / 100,
                "opcode {opcode}: {more} packets instead of {whole}, {late} were late"
            );
        }
    }
}

/// Few packets are overtaken.
#[test]
fn one_that_overtakes_is_not_sent_again() {
    expect_few(Duration::from_micros(2));
}

/// The whole rest of a burst overtakes the late packet.
#[test]
fn a_burst_that_overtakes_is_not_sent_again() {
    expect_few(Duration::from_micros(60));
}
