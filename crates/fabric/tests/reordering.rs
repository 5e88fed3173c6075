//! Networks that reorder packets: what overtakes another is kept until that has come, instead of being sent again. Counts the packets that
//! cross the switch, and compares them with those that cross it where nothing goes wrong.

mod common;

use ::fabric::Faults;
use abi::cq::status;
use abi::post::opcode;
use common::{Fabric, Plan, Side};
use engine::SendWr;

/// Bytes of a message: a burst of small packets, or a quarter of one.
const LEN: usize = 64 * 1024;

/// How many messages.
const ROUNDS: usize = 100;

/// Sends messages one after the other, and says how many packets that took.
fn packets(fabric: &Fabric, (a, b): &(Side, Side), opcode: u32) -> u64 {
    let before = fabric.switch().counts().packets;
    for round in 0..ROUNDS {
        let sent: Vec<u8> = (0..LEN).map(|at| (at / 3 + at / 1024 + round * 7) as u8).collect();
        let (from, to) = if opcode == opcode::RDMA_READ { (b, a) } else { (a, b) };
        from.memory.put(0, &sent);
        to.memory.put(LEN, &[0; LEN]);
        let at = if opcode == opcode::RDMA_READ { LEN } else { 0 };
        if opcode == opcode::SEND {
            b.recv(round as u64, LEN, LEN);
        }
        let place = b.memory.addr(LEN - at);
        a.post(&SendWr { opcode, sges: &a.sge(at, LEN), remote_addr: place, rkey: b.mr.rkey(), ..SendWr::default() });
        assert_eq!(a.sent().status, status::SUCCESS, "{:?}", engine::reason::last(4));
        if opcode == opcode::SEND {
            assert_eq!(b.received().status, status::SUCCESS);
        }
        assert!(to.memory.get(LEN, LEN) == sent, "round {round}: every byte is where it belongs");
    }
    fabric.switch().counts().packets - before
}

/// Small and large packets. Without what is tested here it takes about twice as many when something is wrong.
#[track_caller]
fn expect_few(spoil: impl Fn(&Fabric)) {
    for opcode in [opcode::RDMA_WRITE, opcode::SEND, opcode::RDMA_READ] {
        let (mut whole, mut spoilt) = (0, 0);
        for mtu in [1024, 4096] {
            let fabric = Fabric::hosts(["10.0.0.1", "10.0.0.2"], mtu, Faults::default());
            let sides = fabric.pair(&Plan { memory: 2 * LEN, timeout: 18, ..Plan::rc() });
            whole += packets(&fabric, &sides, opcode);
            spoil(&fabric);
            spoilt += packets(&fabric, &sides, opcode);
            let acted = fabric.fault_counts().1 + fabric.switch().counts().reordered;
            assert!(acted > 50, "{acted} packets were late, nothing is proved");
        }
        let ratio = spoilt as f64 / whole as f64;
        println!("opcode {opcode}: {ratio:.2} times as many packets as {whole}");
        // A thread that waits for a processor meanwhile costs some.
        assert!(ratio < 1.5, "opcode {opcode}: {ratio:.2} times as many packets as {whole}");
    }
}

/// The next packet overtakes.
#[test]
fn one_that_overtakes_is_not_sent_again() {
    expect_few(|fabric| fabric.switch().set_faults(Faults { reordering: 0.05, ..Faults::default() }));
}

/// All that leaves meanwhile overtakes: the rest of a burst.
#[test]
fn a_burst_that_overtakes_is_not_sent_again() {
    expect_few(|fabric| fabric.add_faults("reorder 5%"));
}
