//! Two requesters send the same requests, one in runs of packets and one packet by packet: they
//! send the same packets. Two responders get the same packets, and one of them accepts those that
//! it expects at once: they give the same answers, whatever happens in between.

use crate::corners::{request, responder};
use crate::packet::{Answer, Answers, OneByOne, packets as packets_of};
use softhca_protocol::{
    Access, Nak, Operation, Outcome, PayloadPlace, RecvEnd, Requester, RequesterConfig, Responder, ResponderConfig,
    SendOp, Service, Step, Time,
};
use wire::{Aeth, Headers, NakCode, Opcode, Operation as W, Psn, Syndrome, Transport};

const MTU: u32 = 1024;

/// Where the payload of a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Received { offset: u32, len: u32, first: bool, last: Option<RecvEnd> },
    Written { at: u64, rkey: u32, len: u32, imm: Option<RecvEnd> },
    Other,
}

/// Random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % limit
    }
}

fn handle(responder: &mut Responder, headers: &Headers, len: u32, outcome: Outcome, done: &mut Vec<Done>) {
    match responder.handle(headers, len) {
        Step::Ignore(_) | Step::Reply | Step::OutOfOrder => return,
        Step::Receive { offset, len, first, last } => done.push(Done::Received { offset, len, first, last }),
        Step::Write { va, rkey, offset, len, imm, .. } => {
            done.push(Done::Written { at: va + u64::from(offset), rkey, len, imm });
        }
        _ => done.push(Done::Other),
    }
    responder.finish(outcome);
}

/// Accepts the packet if it is the expected one.
fn accept(responder: &mut Responder, headers: &Headers, len: u32, done: &mut Vec<Done>) -> bool {
    let which = (headers.opcode, headers.psn);
    // A packet without a RETH may have anything in its place.
    let reth = if headers.opcode.has_reth() { headers.reth } else { wire::Reth { va: 1, rkey: 2, len: 3 } };
    let Some(expected) = responder.expects(which, reth, len) else { return false };
    let ends = headers.opcode.place().ends();
    let end = |byte_len| RecvEnd {
        byte_len,
        imm: headers.opcode.has_immdt().then_some(headers.imm),
        invalidate: None,
        solicited: headers.solicited,
    };
    done.push(match expected.place {
        PayloadPlace::Receive { offset } => {
            let (first, last) = (headers.opcode.place().begins(), ends.then(|| end(offset + len)));
            Done::Received { offset, len, first, last }
        }
        PayloadPlace::Write { va, rkey } => {
            let imm = headers.opcode.has_immdt().then(|| end(headers.reth.len));
            Done::Written { at: va, rkey, len, imm }
        }
    });
    responder.accept(expected, headers.ack_req);
    true
}

/// Messages as a requester sends them, from `psn` on, with occasional mistakes.
fn packets(dice: &mut Dice, mut psn: Psn) -> Vec<(Headers, u32)> {
    let mut packets = Vec::new();
    for _ in 0..8 {
        let is_write = dice.below(2) == 0;
        let count = 1 + dice.below(9);
        let end = 1 + dice.below(MTU);
        let total = (count - 1) * MTU + end;
        let harm = dice.below(40);
        for index in 0..count {
            let operation = match (is_write, index == 0, index + 1 == count) {
                (true, true, true) => W::WriteOnlyImm,
                (true, true, false) => W::WriteFirst,
                (true, false, false) => W::WriteMiddle,
                (true, false, true) => W::WriteLast,
                (false, true, true) => W::SendOnly,
                (false, true, false) => W::SendFirst,
                (false, false, false) => W::SendMiddle,
                (false, false, true) => W::SendLast,
            };
            let mut headers = request(operation, psn.value(), 4096, total);
            headers.ack_req = index + 1 == count || dice.below(4) == 0;
            let mut len = if index + 1 == count { end } else { MTU };
            match harm {
                // A middle packet that is too short, too long, one too many, or of another
                // operation.
                0 if index == 3 => len -= 1,
                1 if index == 3 => len += 4,
                2 if index == 1 => headers.reth.len = 2 * MTU,
                3 if index == 3 => headers.opcode = request(W::SendMiddle, 0, 0, 0).opcode,
                4 if index == 4 => headers.opcode = request(W::WriteMiddle, 0, 0, 0).opcode,
                // The message ends too late.
                5 if index + 1 == count => headers.opcode = request(W::WriteMiddle, 0, 0, 0).opcode,
                _ => {}
            }
            psn += 1;
            match dice.below(60) {
                // The packet is lost, repeated, or repeated from much earlier.
                0 => continue,
                1 => packets.push((headers, len)),
                2 => {
                    let again = packets[packets.len().saturating_sub(5)..].to_vec();
                    packets.push((headers, len));
                    packets.extend(again);
                    continue;
                }
                _ => {}
            }
            packets.push((headers, len));
        }
    }
    packets
}

/// The pending answers, and the remembered state.
fn said(responder: &mut Responder) -> (Vec<Answer>, Psn, u32, bool) {
    let answers = std::iter::from_fn(|| responder.poll_transmit()).collect();
    (answers, responder.expected_psn(), responder.msn(), responder.dead().is_some())
}

#[test]
fn an_accepted_packet_comes_to_the_same_as_one_that_is_handled() {
    let (mut accepted, mut refused, mut lost) = (0, 0, 0);
    for seed in 0..4000 {
        let mut dice = Dice(seed);
        let [mut one, mut other] = [responder(4), responder(4)];
        let first = Psn::new(dice.below(2) * 0xff_fff0);
        for responder in [&mut one, &mut other] {
            responder.configure(ResponderConfig { rq_psn: first, ..responder_config() });
        }
        let [mut done, mut done_by_other] = [vec![], vec![]];
        let packets = packets(&mut dice, first);
        for (headers, len) in &packets {
            // Some packets fail: no receive request, no memory.
            let outcome = match dice.below(400) {
                0 => Outcome::Refused(Nak::RemoteAccess),
                1..4 => Outcome::Rnr,
                4 => Outcome::Dropped,
                _ => Outcome::Done,
            };
            handle(&mut one, headers, *len, outcome, &mut done);
            if outcome == Outcome::Done && accept(&mut other, headers, *len, &mut done_by_other) {
                accepted += 1;
            } else {
                handle(&mut other, headers, *len, outcome, &mut done_by_other);
            }
            if dice.below(15) == 0 {
                let (expected, found) = (said(&mut one), said(&mut other));
                assert_eq!(expected, found, "seed {seed}");
                lost += usize::from(expected.0.iter().any(|answer| answer.headers.aeth.syndrome.as_u8() == 0x60));
            }
        }
        assert_eq!((said(&mut one), one.standing()), (said(&mut other), other.standing()), "seed {seed}");
        assert_eq!(done, done_by_other, "seed {seed}");
        refused += u32::from(one.dead().is_some());
    }
    assert!(accepted > 50_000 && refused > 100 && lost > 1000, "{accepted} {refused} {lost}: chance shows nothing");
}

fn responder_config() -> ResponderConfig {
    ResponderConfig { mtu: MTU, access: Access(14), max_dest_rd_atomic: 4, ..Default::default() }
}

/// A requester with random requests, window and acknowledgement interval.
fn requester(dice: &mut Dice, service: Service) -> Requester {
    let mut requester = Requester::new(service, 64);
    let (sq_psn, ack_every) = (Psn::new(0xff_ffe0 + dice.below(64)), dice.below(9));
    requester.configure(RequesterConfig {
        mtu: MTU,
        sq_psn,
        ack_every,
        timeout: 14,
        retry_cnt: 7,
        ..RequesterConfig::default()
    });
    for slot in 0..20 {
        let operation = match dice.below(6) {
            0 => Operation::Send,
            1 => Operation::SendImm,
            2 if service == Service::Rc => Operation::Read,
            3 => Operation::WriteImm,
            _ => Operation::Write,
        };
        let length = dice.below(12) * MTU + dice.below(3) * dice.below(MTU);
        let solicited = dice.below(2) == 0;
        requester.post(SendOp { slot, operation, length, solicited, imm: 7, ..SendOp::default() }).expect("room");
    }
    requester
}

#[test]
fn a_run_is_what_would_have_been_sent_packet_by_packet() {
    let mut in_runs = 0;
    for seed in 0..2000 {
        let service = if seed % 8 == 0 { Service::Uc } else { Service::Rc };
        let [mut alone, mut together] = [0; 2].map(|_| requester(&mut Dice(seed), service));
        let mut dice = Dice(!seed);
        let mut now = Time(0);
        for _ in 0..60 {
            now = now.after(1 + u64::from(dice.below(1000)));
            let window = 1 + dice.below(40);
            let whole = (dice.below(2) == 0).then(|| 1 + dice.below(80));
            for requester in [&mut alone, &mut together] {
                match whole {
                    Some(whole) => requester.set_exclusive_window(window, whole),
                    None => requester.set_window(window),
                }
            }
            while let Some(run) = together.poll_run(now) {
                if dice.below(16) == 0 {
                    // The path is full.
                    break;
                }
                let run = run.at_most(1 + dice.below(20));
                let is_middle = matches!(run.opcode.operation, W::SendMiddle | W::WriteMiddle);
                assert!(run.count == 1 || is_middle, "seed {seed}");
                for packet in packets_of(&together, &run) {
                    assert_eq!(alone.poll_transmit(now), Some(packet), "seed {seed}");
                }
                together.sent(now, &run);
                in_runs += run.count - 1;
            }
            assert_eq!((alone.under_way(), alone.poll_timeout()), (together.under_way(), together.poll_timeout()));
            if service == Service::Rc && alone.under_way() > 0 {
                // Some packets are answered or reported missing; or no answer comes.
                let newest = alone.sq_psn() - 1;
                let psn = newest - dice.below(alone.under_way());
                let syndrome = match dice.below(10) {
                    0 => Syndrome::Nak(NakCode::PsnSequence),
                    1 => Syndrome::RnrNak(1),
                    _ => Syndrome::ACK,
                };
                let opcode = Opcode::new(Transport::Rc, W::Acknowledge);
                let answer = Headers { opcode, psn, aeth: Aeth { syndrome, msn: 0 }, ..Headers::default() };
                for requester in [&mut alone, &mut together] {
                    if dice.0.is_multiple_of(7) {
                        now = now.max(requester.poll_timeout().unwrap_or(now));
                        requester.handle_timeout(now);
                    } else {
                        let _ = requester.handle_response(now, &answer, 0);
                    }
                    while requester.poll_completion().is_some() {}
                }
            }
        }
    }
    assert!(in_runs > 20_000, "{in_runs}: chance shows nothing");
}

#[test]
fn nothing_is_expected_while_a_packet_is_carried_out_or_after_a_refusal() {
    let expects = |responder: &Responder, psn, operation| {
        let reth = wire::Reth { va: 0, rkey: 7, len: 8 };
        responder.expects((request(operation, 0, 0, 0).opcode, Psn::new(psn)), reth, 8).is_some()
    };
    let mut responder = responder(1);
    assert!(expects(&responder, 0, W::SendOnly) && expects(&responder, 0, W::WriteOnly));
    assert!(!expects(&responder, 1, W::SendOnly) && !expects(&responder, 0, W::ReadRequest));
    assert!(matches!(responder.handle(&request(W::SendOnly, 0, 0, 0), 8), Step::Receive { .. }));
    assert!(!expects(&responder, 0, W::SendOnly));
    responder.finish(Outcome::Done);
    assert!(expects(&responder, 1, W::WriteOnly));
    responder.set_access(Access(0));
    assert!(!expects(&responder, 1, W::WriteOnly) && expects(&responder, 1, W::SendOnly));
    let _ = crate::corners::take(&mut responder, &request(W::WriteOnly, 1, 0, 8), 8);
    assert!(responder.dead().is_some() && !expects(&responder, 1, W::SendOnly));
}

#[test]
fn only_an_acknowledgement_of_what_was_sent_is_handled_at_once() {
    let first = Psn::new(0xff_ffff);
    let mut requester = Requester::new(Service::Rc, 8);
    let config = RequesterConfig { mtu: MTU, sq_psn: first, rnr_retry: 7, lossless: true, ..Default::default() };
    requester.configure(config);
    for slot in 0..4 {
        requester.post(SendOp { slot, length: 8, ..SendOp::default() }).expect("room");
    }
    let now = Time(0);
    assert!(!requester.handle_ack(now, first), "nothing was sent");
    for _ in 0..2 {
        assert!(requester.poll_transmit(now).is_some());
    }
    for psn in [first - 1, first + 2] {
        assert!(!requester.handle_ack(now, psn) && requester.poll_completion().is_none(), "{psn} was not sent");
    }
    assert!(requester.handle_ack(now, first + 1), "it answers both");
    assert_eq!([(); 3].map(|()| requester.poll_completion().map(|end| end.slot)), [Some(0), Some(1), None]);
    assert!(requester.poll_transmit(now).is_some());
    let opcode = Opcode::new(Transport::Rc, W::Acknowledge);
    let aeth = Aeth { syndrome: Syndrome::RnrNak(1), msn: 0 };
    let _ = requester.handle_response(now, &Headers { opcode, psn: first + 2, aeth, ..Headers::default() }, 0);
    assert!(!requester.handle_ack(now, first + 2), "the receiver was not ready");
}
