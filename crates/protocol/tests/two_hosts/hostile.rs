//! A peer that sends arbitrary packets. Neither half panics, completions stay in order, and an
//! honest program's requests all end.

use crate::packet::Answers;
use crate::world::{A, BASE, RKEY, Random, Scenario, World};
use softhca_protocol::{Access, Incoming, Nak, Outcome, Responder, ResponderConfig, Service, Step, Time};
use wire::{Aeth, AtomicEth, Feth, Headers, Opcode, Psn, Reth, Syndrome};

fn anything(random: &mut Random, near: Psn) -> (Headers, u32) {
    let opcode = loop {
        if let Some(opcode) = Opcode::from_u8(random.below(256) as u8 & [0x1f, 0xff][random.below(2) as usize]) {
            break opcode;
        }
    };
    let va = BASE + u64::from(random.below(64));
    let rkey = if random.percent(90) { RKEY } else { 0 };
    let lengths = [0, 1, 255, 256, 257, 1000, 1 << 31, u32::MAX];
    let mut length = || lengths[random.below(8) as usize];
    let (len, payload) = (length(), length());
    let headers = Headers {
        opcode,
        ack_req: random.percent(50),
        psn: if random.percent(95) { near + random.below(40) - 10 } else { Psn::new(random.next() as u32) },
        feth: Feth { placement: random.below(4) as u8, selectivity: random.below(3) as u8 },
        reth: Reth { va, rkey, len },
        atomic: AtomicEth { va, rkey, ..AtomicEth::default() },
        aeth: Aeth { syndrome: Syndrome::from_u8(random.next() as u8), msn: 0 },
        ..Headers::default()
    };
    (headers, payload)
}

#[test]
fn answers() {
    for seed in 0..400 {
        let mut world = World::new(Scenario { mtu: 256, psn: 0xff_fff0, ..Scenario::default() });
        let mut random = Random(seed);
        for _ in 0..10 {
            world.hosts[A].read(0, 1000);
            world.hosts[A].send(&[0; 1000]);
            world.hosts[A].fetch_add(0, 1);
            world.hosts[A].atomic_write(0, 1);
            world.hosts[A].flush(0, 1000);
        }
        let requester = &mut world.hosts[A].requester;
        let mut completed = Vec::new();
        for round in 0..2000 {
            let now = Time(round * 100);
            while random.percent(70)
                && let Some(run) = requester.poll_run(now)
            {
                if random.percent(80) {
                    requester.sent(now, &run.at_most(1 + random.below(4)));
                }
            }
            let (headers, payload) = anything(&mut random, requester.sq_psn() - 20);
            match requester.handle_response(now, &headers, payload) {
                Incoming::Nothing | Incoming::OutOfOrder => {}
                Incoming::Place { offset, len, .. } => {
                    assert!(offset + len <= 1000 && len == payload);
                    requester.placed(now, Ok(()));
                }
                Incoming::PlaceAtomic { .. } => requester.placed(now, Ok(())),
            }
            requester.handle_timeout(now);
            completed.extend(std::iter::from_fn(|| requester.poll_completion()).map(|completion| completion.slot));
        }
        requester.flush();
        completed.extend(std::iter::from_fn(|| requester.poll_completion()).map(|completion| completion.slot));
        assert_eq!(completed, (0..50).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn requests() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let service = [Service::Rc, Service::Rc, Service::Uc, Service::Ud][seed as usize % 4];
        let mut responder = Responder::new(service);
        let config = ResponderConfig {
            mtu: 256,
            rq_psn: Psn::new(0xff_fff0),
            max_dest_rd_atomic: random.below(4) as u8,
            access: Access(random.below(16) | random.below(2) << 8),
            ..ResponderConfig::default()
        };
        responder.configure(config);
        for _ in 0..500 {
            let near = responder.expected_psn() - random.below(2) * 12;
            let (headers, payload) = anything(&mut random, near);
            let outcomes = [Outcome::Done, Outcome::Rnr, Outcome::Dropped, Outcome::Refused(Nak::RemoteAccess)];
            match responder.handle(&headers, payload) {
                Step::Ignore(_) | Step::Reply | Step::OutOfOrder => {}
                Step::Write { total, offset, len, .. } => {
                    assert!(len == payload && len <= 256 && offset.checked_add(len).is_some_and(|end| end <= total));
                    responder.finish(outcomes[random.below(3) as usize]);
                }
                Step::Atomic { .. } => responder.finish(Outcome::AtomicDone(1)),
                Step::Read { .. } | Step::AtomicWrite { .. } | Step::Flush { .. } => responder.finish(Outcome::Done),
                Step::Receive { len, .. } => {
                    assert!(len == payload && len <= 256);
                    responder.finish(outcomes[random.below(4) as usize]);
                }
            }
            for _ in 0..random.below(20) {
                if responder.poll_transmit().is_some() && random.percent(10) {
                    if random.percent(80) {
                        responder.untransmit(0);
                    } else {
                        responder.read_failed(0, Nak::RemoteAccess);
                    }
                }
            }
            if responder.dead().is_some() {
                responder = Responder::new(service);
                responder.configure(config);
            }
        }
    }
}
