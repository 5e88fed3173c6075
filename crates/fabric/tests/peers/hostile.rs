//! Tests a peer that writes random data into the lane's memory: its own connections end, all other
//! connections continue, and engines trust nothing in the lane.

use crate::common::stranger::{Noise, Stranger, StrangersLane};
use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side};
use abi::cq::{Wc, status};
use abi::qp::state;
use engine::SendWr;
use shm::memory::CELL_DATA;
use shm::{PushError, RECORD_MAX, ends};

/// The offset of the transport headers in the record of a small packet. The sending QP's number is
/// before them, at 8.
const BTH: usize = 16;
/// The flags, at 7, of a record that says that a packet's destination QP does not exist.
const NOTICE: u8 = 4;

/// A QP connected to the stranger's QP, with some requests outstanding.
fn victim(fabric: &Fabric, stranger: &Stranger) -> (Side, StrangersLane) {
    let side = Side::new(&fabric.engine(), &Plan::rc().hasty());
    aim(&side, stranger);
    // The first connection from one engine to another takes the first lane.
    let lane = stranger.lane(side.engine.number(), 0);
    (side, lane)
}

fn aim(side: &Side, stranger: &Stranger) {
    side.init();
    side.rtr(side.gid(), stranger.qpn);
    side.rts();
    (0..4).for_each(|wr_id| side.recv(wr_id, 0, 100));
    // The first message fits into a record. The others have their bytes in the bulk ring.
    let lens = [100, 10_000, 10_000, 40_000];
    (0..4)
        .for_each(|wr_id| side.post(&SendWr { wr_id, sges: &side.sge(0, lens[wr_id as usize]), ..SendWr::default() }));
}

/// Two engines that share only the agent with the stranger. One of them is the victim's engine.
struct Bystanders(Side, Side);

impl Bystanders {
    fn new(fabric: &Fabric, victim: &Side) -> Self {
        let pair = (Side::new(&victim.engine, &Plan::rc()), Side::new(&fabric.engine(), &Plan::rc()));
        crate::common::connect(&pair.0, &pair.1);
        Self(pair.0, pair.1)
    }

    fn go_on(&self) {
        for (from, to) in [(&self.0, &self.1), (&self.1, &self.0)] {
            from.memory.pattern(0, 50_000, 9);
            to.recv(1, 0, 50_000);
            from.post(&SendWr { sges: &from.sge(0, 50_000), ..SendWr::default() });
            assert_eq!((from.sent().status, to.received().byte_len), (0, 50_000), "{:?}", engine::reason::last(3));
            assert!(to.memory.get(0, 50_000) == from.memory.get(0, 50_000));
        }
    }
}

fn assert_ended(side: &Side) {
    let statuses: Vec<_> = (0..4).map(|_| side.sent().status).collect();
    assert_eq!(statuses[0], status::RETRY_EXC_ERR, "{:?}", engine::reason::last(5));
    assert!(statuses[1..].iter().all(|&status| status == status::WR_FLUSH_ERR), "{statuses:?}");
    assert_eq!(side.qp.state(), u32::from(state::ERR));
    (0..4).for_each(|_| assert_eq!(side.received().status, status::WR_FLUSH_ERR));
}

/// Checks that the connection has ended, whatever came before.
fn assert_gone(side: &Side) {
    until("the end", || {
        while side.scq.poll(&mut [Wc::default()]) == Ok(1) {}
        (side.qp.state() == u32::from(state::ERR)).then_some(())
    });
}

#[test]
fn memory_full_of_noise() {
    let fabric = Fabric::start();
    for seed in 1..=8 {
        let stranger = Stranger::new(&fabric);
        let (side, lane) = victim(&fabric, &stranger);
        let bystanders = Bystanders::new(&fabric, &side);
        bystanders.go_on();
        Noise(0x9e37_79b9_7f4a_7c15 >> seed).fill(&lane.region);
        lane.peer.notify();
        assert_ended(&side);
        bystanders.go_on();
        let reasons = engine::reason::last(64);
        assert!(reasons.iter().any(|reason| reason.contains("broken")), "{reasons:?}");
        // The stranger may continue to write. No engine reads the lane any more.
        Noise(seed).fill(&lane.region);
        bystanders.go_on();
        // The victim's QP can be connected again, to another peer.
        let other = Side::new(&fabric.engine(), &Plan::rc());
        side.to(state::RESET);
        crate::common::connect(&side, &other);
        other.recv(1, 0, 10);
        side.post(&SendWr::default());
        assert_eq!((side.sent().status, other.received().wr_id), (0, 1));
    }
    assert!(fabric.engine().query_device().is_ok(), "the agent goes on");
}

#[test]
fn noise_while_traffic_runs() {
    let fabric = Fabric::start();
    for seed in 1..=4 {
        let stranger = Stranger::new(&fabric);
        let (side, lane) = victim(&fabric, &stranger);
        let bystanders = Bystanders::new(&fabric, &side);
        std::thread::scope(|scope| {
            let noise = scope.spawn(|| {
                // Single words at random places, so that the valid words around them are parsed
                // too.
                let mut noise = Noise(seed);
                for _ in 0..20_000 {
                    let at = noise.next() as usize % lane.region.len() / 8 * 8;
                    lane.region.write(at, &noise.next());
                    // The control words are hit more often.
                    lane.region.write(noise.next() as usize % 32 * 64, &noise.next());
                }
                lane.peer.notify();
            });
            (0..5).for_each(|_| bystanders.go_on());
            noise.join().expect("it ends");
        });
        // Single words may hit nothing that is parsed. When the stranger ends, the connection ends.
        drop((stranger, lane));
        assert_gone(&side);
        bystanders.go_on();
    }
}

#[test]
fn sound_records_with_nonsense_in_them() {
    let fabric = Fabric::start();
    for seed in 1..=20 {
        let stranger = Stranger::new(&fabric);
        let (side, lane) = victim(&fabric, &stranger);
        let bystanders = Bystanders::new(&fabric, &side);
        let (mut tx, mut rx) = ends(lane.region.clone(), lane.side);
        // Records that the victim itself has sent, with one bit changed, are sent back. Most of
        // their content is valid, but they come from the wrong side.
        let mut record = [0; RECORD_MAX];
        let len = until("a record", || rx.ring.pop(&mut record).expect("it is sound"));
        let mut noise = Noise(seed * 77);
        let own = stranger.qpn.to_le_bytes();
        for round in 0..2000u32 {
            let mut forged = record;
            if round % 2 == 0 {
                // From the stranger's own QP to the victim's QP. The victim parses such records
                // completely.
                forged[8..12].copy_from_slice(&own);
                forged[BTH + 5..BTH + 8].copy_from_slice(&side.qp.qpn().to_be_bytes()[1..]);
            }
            for _ in 0..noise.next() % 4 {
                let at = noise.next() as usize % len;
                forged[at] = noise.next() as u8;
            }
            match tx.ring.push(&forged[..len]) {
                Ok(()) | Err(PushError::Full) => lane.peer.notify(),
                Err(PushError::Broken(_)) => break,
            }
        }
        bystanders.go_on();
        // These records may or may not have ended the connection. When the stranger ends, the
        // connection certainly ends.
        drop((stranger, tx, rx));
        assert_gone(&side);
        bystanders.go_on();
    }
}

#[test]
fn packets_in_the_name_of_others_are_dropped() {
    let fabric = Fabric::start();
    let stranger = Stranger::new(&fabric);
    let (side, lane) = victim(&fabric, &stranger);
    let bystanders = Bystanders::new(&fabric, &side);
    let (mut tx, mut rx) = ends(lane.region.clone(), lane.side);
    let mut record = [0; RECORD_MAX];
    let len = until("a record", || rx.ring.pop(&mut record).expect("it is sound"));
    // A SEND to a QP of the victim's engine that is connected to a bystander. It claims to come
    // from the bystander and would be accepted from there.
    let (target, pretended) = (&bystanders.0, &bystanders.1);
    target.recv(5, 0, 50_000);
    let mut push = |src: u32, dest: u32, psn: u8| {
        let mut forged = record;
        forged[8..12].copy_from_slice(&src.to_le_bytes());
        forged[BTH + 5..BTH + 8].copy_from_slice(&dest.to_be_bytes()[1..]);
        forged[BTH + 11] = psn;
        until("room", || tx.ring.push(&forged[..len]).ok());
        // The same message in one cell, because so short records take a separate code path.
        forged[12..14].copy_from_slice(&8_u16.to_le_bytes());
        until("room", || tx.ring.push(&forged[..CELL_DATA]).ok());
        lane.peer.notify();
    };
    for src in [pretended.qp.qpn(), target.qp.qpn(), side.qp.qpn(), stranger.qpn, 0, 0xff_ffff] {
        (0..16).for_each(|psn| push(src, target.qp.qpn(), psn));
    }
    // Under the stranger's own number, to a QPN that does not exist. The notice in return proves
    // that all earlier records were parsed.
    push(stranger.qpn, 0xab_cdef, 0);
    until("the notice", || {
        let told = rx.ring.pop(&mut record).expect("it is sound").is_some();
        rx.ring.publish();
        (told && record[7] == NOTICE && record[8..12] == 0xab_cdefu32.to_le_bytes()).then_some(())
    });
    assert_eq!(target.rcq.poll(&mut [Wc::default()]), Ok(0), "nobody was believed");
    assert_eq!(target.qp.state(), u32::from(state::RTS));
    pretended.memory.pattern(0, 100, 1);
    pretended.post(&SendWr { sges: &pretended.sge(0, 100), ..SendWr::default() });
    assert_eq!((target.received().wr_id, pretended.sent().status), (5, 0));
}
