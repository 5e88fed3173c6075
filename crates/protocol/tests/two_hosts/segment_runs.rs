//! Segment runs. One responder takes middle packets as runs, another one by one: both must give the
//! same answers and states, whatever happens in between. Two requesters that send them are compared
//! in the same way.

use crate::corners::{request, responder};
use softhca_protocol::{
    Access, Nak, Operation, Outcome, Place, RecvEnd, Requester, RequesterConfig, Responder, Response, SendOp, Service,
    Step, Time, Transmit,
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

fn one(responder: &mut Responder, headers: &Headers, len: u32, outcome: Outcome, done: &mut Vec<Done>) {
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

/// Carries out the packets that are a run, and returns their number.
fn run(responder: &mut Responder, packets: &[(Headers, u32)], limit: u32, done: &mut Vec<Done>) -> usize {
    let Some(run) = responder.awaited_segment_run() else { return 0 };
    let is_next = |(index, (headers, len)): &(u32, &(Headers, u32))| {
        headers.opcode == run.opcode && headers.psn == run.first + *index && *len == run.len
    };
    let most = run.most.min(limit) as usize;
    let taken: Vec<_> = (0..).zip(packets).take(most).take_while(is_next).map(|(_, (headers, _))| headers).collect();
    for index in 0..taken.len() as u32 {
        done.push(match run.place {
            Place::Receive { offset } => {
                Done::Received { offset: offset + index * run.len, len: run.len, first: false, last: None }
            }
            Place::Write { va, rkey } => {
                Done::Written { at: va + u64::from(index * run.len), rkey, len: run.len, imm: None }
            }
        });
    }
    responder.finish_segment_run(taken.len() as u32, taken.iter().any(|headers| headers.ack_req));
    taken.len()
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
fn said(responder: &mut Responder) -> (Vec<Response>, Psn, u32, bool) {
    let answers = std::iter::from_fn(|| responder.poll_transmit()).collect();
    (answers, responder.expected_psn(), responder.msn(), responder.dead().is_some())
}

#[test]
fn a_run_comes_to_the_same_as_its_packets() {
    let (mut in_runs, mut refused, mut lost) = (0, 0, 0);
    for seed in 0..4000 {
        let mut dice = Dice(seed);
        let [mut alone, mut together] = [responder(4), responder(4)];
        let first = Psn::new(dice.below(2) * 0xff_fff0);
        for responder in [&mut alone, &mut together] {
            let mut config = responder_config();
            config.rq_psn = first;
            responder.configure(config);
        }
        let [mut done, mut done_together] = [vec![], vec![]];
        let packets = packets(&mut dice, first);
        let mut at = 0;
        while at < packets.len() {
            let burst = &packets[at..(at + 1 + dice.below(30) as usize).min(packets.len())];
            at += burst.len();
            let mut taken = 0;
            while taken < burst.len() {
                let rest = &burst[taken..];
                let run = run(&mut together, rest, 1 + dice.below(12), &mut done_together);
                in_runs += run;
                for (headers, len) in &rest[..run] {
                    one(&mut alone, headers, *len, Outcome::Done, &mut done);
                }
                taken += run;
                let Some((headers, len)) = burst.get(taken).filter(|_| run == 0) else { continue };
                // Packets outside a run may fail: no receive request, no memory.
                let outcome = match dice.below(200) {
                    0 => Outcome::Refused(Nak::RemoteAccess),
                    1..4 => Outcome::Rnr,
                    4 => Outcome::Dropped,
                    _ => Outcome::Done,
                };
                one(&mut alone, headers, *len, outcome, &mut done);
                one(&mut together, headers, *len, outcome, &mut done_together);
                taken += 1;
            }
            let (expected, found) = (said(&mut alone), said(&mut together));
            assert_eq!(expected, found, "seed {seed}");
            assert_eq!(alone.awaited_segment_run(), together.awaited_segment_run(), "seed {seed}");
            lost += usize::from(expected.0.iter().any(|answer| answer.headers.aeth.syndrome.as_u8() == 0x60));
        }
        assert_eq!(done, done_together, "seed {seed}");
        refused += u32::from(alone.dead().is_some());
    }
    assert!(in_runs > 20_000 && refused > 100 && lost > 1000, "{in_runs} {refused} {lost}: chance shows nothing");
}

fn responder_config() -> softhca_protocol::ResponderConfig {
    softhca_protocol::ResponderConfig { mtu: MTU, access: Access(14), max_dest_rd_atomic: 4, ..Default::default() }
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
fn a_middle_is_what_would_have_been_sent() {
    let mut middles = 0;
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
            loop {
                let row = together.next_segment_run(now).map(|row| row.at_most(1 + dice.below(20)));
                let mut expected = None;
                if let Some(row) = row {
                    for number in 0..row.count {
                        expected = alone.poll_transmit(now);
                        let expected = expected.expect("a packet");
                        let headers = expected.headers;
                        let is_middle = matches!(headers.opcode.operation, W::SendMiddle | W::WriteMiddle);
                        assert!(is_middle && !headers.solicited);
                        let asks = row.asks && number + 1 == row.count;
                        assert_eq!((headers.psn, headers.ack_req), (row.first + number, asks), "seed {seed}");
                        let place = (row.slot, row.offset + number * MTU, MTU);
                        assert_eq!((expected.slot, expected.offset, expected.len), place, "seed {seed}");
                        middles += 1;
                    }
                    together.sent_segment_run(now, &row);
                } else {
                    expected = alone.poll_transmit(now);
                    let found = together.poll_transmit(now);
                    assert_eq!(expected, found, "seed {seed}");
                    let is_middle =
                        |it: &Transmit| matches!(it.headers.opcode.operation, W::SendMiddle | W::WriteMiddle);
                    assert!(
                        service == Service::Uc || !found.is_some_and(|it| is_middle(&it)),
                        "it was one: seed {seed}"
                    );
                }
                if expected.is_none() {
                    break;
                }
                if dice.below(16) == 0 && row.is_none_or(|row| row.count == 1) {
                    alone.untransmit();
                    together.untransmit();
                    break;
                }
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
    assert!(middles > 20_000, "{middles}: chance shows nothing");
}

#[test]
fn a_run_leaves_the_last_packet_to_others() {
    let mut responder = responder(1);
    assert_eq!(responder.awaited_segment_run(), None, "no message has begun");
    let _ = crate::corners::take(&mut responder, &request(W::WriteFirst, 0, 0, 3 * MTU), MTU);
    let run = responder.awaited_segment_run().expect("a middle");
    assert_eq!((run.first, run.most, run.len), (Psn::new(1), 1, MTU));
    responder.finish_segment_run(1, false);
    assert_eq!(responder.awaited_segment_run(), None, "only the last one may come");
    let _ = crate::corners::take(&mut responder, &request(W::WriteLast, 2, 0, 0), MTU);
    assert_eq!((responder.msn(), responder.awaited_segment_run()), (1, None));
    let _ = crate::corners::take(&mut responder, &request(W::WriteFirst, 3, 0, 3 * MTU), MTU);
    assert!(responder.awaited_segment_run().is_some());
    responder.set_access(Access(0));
    assert_eq!(responder.awaited_segment_run(), None, "what is no longer allowed is refused one by one");
}
