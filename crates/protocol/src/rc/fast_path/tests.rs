//! Compares two equal ends: one always takes the general path, the other takes the fast path where
//! possible. After each step, their output and their state must be equal. The tests of the
//! transport itself are in `tests/two_hosts`.

use super::*;
use crate::requester::RequesterConfig;
use crate::responder::ResponderConfig;
use crate::step::{Nak, Outcome, Step};
use wire::{Aeth, Headers, NakCode, Opcode, Operation as W, Qpn, Reth, Syndrome, Transport};

const MTU: u32 = 64;

/// Random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % limit
    }
}

fn requester() -> Requester {
    let mut requester = Requester::new(Service::Rc, 8);
    requester.configure(RequesterConfig {
        mtu: MTU,
        src_qp: Qpn::new(3),
        dest_qp: Qpn::new(5),
        pkey: 0xffff,
        sq_psn: Psn::new(0xff_fff0),
        timeout: 10,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 2,
        lossless: true,
        migrated: true,
        ..RequesterConfig::default()
    });
    requester
}

fn same<T: std::fmt::Debug>(one: &T, other: &T, step: u32) {
    assert_eq!(format!("{one:?}"), format!("{other:?}"), "step {step}");
}

fn post(dice: &mut Dice, slot: u32) -> SendOp {
    let kinds = [Operation::Send, Operation::Write, Operation::SendImm, Operation::Read, Operation::WriteImm];
    let kind = if dice.below(8) == 0 { dice.below(5) } else { dice.below(2) };
    SendOp {
        slot,
        operation: kinds[kind as usize],
        length: if dice.below(8) == 0 { dice.below(4 * MTU) } else { dice.below(MTU + 1) },
        remote_addr: u64::from(dice.below(1000)),
        rkey: 7,
        solicited: dice.below(4) == 0,
        fence: dice.below(16) == 0,
        ..SendOp::default()
    }
}

fn answer(dice: &mut Dice, requester: &Requester) -> Headers {
    let ahead = requester.cursor.high - requester.rc.unacked;
    let psn = match dice.below(12) {
        0 => requester.rc.unacked - 1,
        1 => requester.cursor.high,
        _ => requester.rc.unacked + dice.below(ahead.max(1)),
    };
    let syndrome = match dice.below(32) {
        0 => Syndrome::RnrNak(1),
        1 => Syndrome::Nak(NakCode::PsnSequence),
        2 if dice.below(4) == 0 => Syndrome::Nak(NakCode::RemoteAccess),
        3 => Syndrome::Ack(2),
        _ => Syndrome::ACK,
    };
    let opcode = Opcode::new(Transport::Rc, W::Acknowledge);
    Headers { opcode, psn, aeth: Aeth { syndrome, msn: requester.cursor.begun }, ..Headers::default() }
}

/// Sends everything that both ends can send. Returns how many messages took the fast path.
fn send(general: &mut Requester, other: &mut Requester, now: Time) -> u32 {
    let mut fast = 0;
    while let Some(packet) = general.poll_transmit(now) {
        let Some(FastMessage { psn, op }) = other.next_fast_message() else {
            assert_eq!(other.poll_transmit(now), Some(packet));
            continue;
        };
        fast += 1;
        let headers = &packet.headers;
        let write = op.operation == Operation::Write;
        let operation = if write { W::WriteOnly } else { W::SendOnly };
        assert_eq!((headers.opcode, headers.psn), (Opcode::new(Transport::Rc, operation), psn));
        assert!(headers.ack_req && headers.solicited == (op.solicited && !write));
        assert_eq!((headers.dest_qp, headers.pkey, headers.migrated), other.addresses());
        if write {
            assert_eq!(headers.reth, Reth { va: op.remote_addr, rkey: op.rkey, len: op.length });
        }
        assert_eq!((packet.slot, packet.offset, packet.len), (op.slot, 0, op.length));
        other.sent_fast_message();
    }
    assert!(other.next_fast_message().is_none() && other.poll_transmit(now).is_none());
    fast
}

#[test]
fn a_requester_is_the_same_whichever_way_its_messages_go() {
    let mut dice = Dice(1);
    let (mut sent, mut heard) = (0, 0);
    for _ in 0..150 {
        let (mut general, mut other) = (requester(), requester());
        let mut now = Time(0);
        for step in 0..200 {
            match dice.below(16) {
                0..6 => {
                    let op = post(&mut dice, step);
                    assert_eq!(general.post(op).is_ok(), other.post(op).is_ok());
                }
                6..9 => sent += send(&mut general, &mut other, now),
                9..13 => {
                    let headers = answer(&mut dice, &general);
                    let _ = general.handle_response(now, &headers, 0);
                    if headers.aeth.syndrome == Syndrome::ACK && other.acknowledged_on_fast_path(now, headers.psn) {
                        heard += 1;
                    } else {
                        let _ = other.handle_response(now, &headers, 0);
                    }
                }
                13 => {
                    now = now.after(u64::from(dice.below(10_000_000)));
                    [&mut general, &mut other].into_iter().for_each(|one| one.handle_timeout(now));
                }
                14 => {
                    let what = dice.below(24);
                    [&mut general, &mut other].into_iter().for_each(|one| match what {
                        0 => one.flush(),
                        1 => one.note_loss(now),
                        2 => one.drain(),
                        3 => one.set_window(2),
                        4..12 => one.resume(),
                        _ => one.set_window(1 << 20),
                    });
                }
                _ => {
                    assert_eq!(general.has_completions(), other.has_completions());
                    assert_eq!(general.poll_completion(), other.poll_completion());
                }
            }
            [&mut general, &mut other].into_iter().for_each(Requester::note_undo);
            same(&general, &other, step);
        }
    }
    assert!(sent > 1000 && heard > 500, "{sent} sent and {heard} answers heard by the fast path");
}

#[test]
fn a_message_behind_one_that_was_not_ready_is_not_for_the_fast_path() {
    let mut requester = requester();
    for slot in 0..2 {
        requester.post(SendOp { slot, length: 8, ..SendOp::default() }).expect("room");
    }
    assert!(requester.next_fast_message().is_some());
    requester.sent_fast_message();
    let headers = Headers {
        opcode: Opcode::new(Transport::Rc, W::Acknowledge),
        psn: Psn::new(0xff_fff0),
        aeth: Aeth { syndrome: Syndrome::RnrNak(1), msn: 0 },
        ..Headers::default()
    };
    let _ = requester.handle_response(Time(0), &headers, 0);
    assert!(requester.next_fast_message().is_none(), "it would overtake the first one");
    let later = requester.poll_timeout().expect("it waits");
    assert!(requester.next_fast_message().is_none());
    assert_eq!(requester.poll_transmit(later).map(|packet| packet.slot), Some(0));
}

#[test]
fn a_message_is_not_for_the_fast_path_while_another_one_is_carried_out() {
    let mut responder = Responder::new(Service::Rc);
    responder.configure(ResponderConfig { mtu: MTU, access: Access(0xf), ..ResponderConfig::default() });
    let headers = Headers { opcode: Opcode::new(Transport::Rc, W::SendOnly), ..Headers::default() };
    assert!(responder.awaits_fast_message(headers.psn, 8) && responder.awaits_fast_write(headers.psn, 8, 8));
    assert!(matches!(responder.handle(&headers, 8), Step::Receive { .. }));
    assert!(!responder.awaits_fast_message(headers.psn, 8) && !responder.awaits_fast_write(headers.psn, 8, 8));
    responder.finish(Outcome::Done);
    assert!(responder.awaits_fast_message(headers.psn + 1, 8));
}

#[test]
fn a_responder_is_the_same_whichever_way_its_messages_come() {
    let mut dice = Dice(2);
    let (mut taken, mut said) = (0, 0);
    for _ in 0..1000 {
        let config = ResponderConfig {
            mtu: MTU,
            dest_qp: Qpn::new(3),
            pkey: 0xffff,
            rq_psn: Psn::new(0xff_fff0),
            max_dest_rd_atomic: 2,
            access: Access(if dice.below(2) == 0 { 0 } else { 0xf }),
            migrated: dice.below(2) == 0,
            ..ResponderConfig::default()
        };
        let [mut general, mut other] = [0; 2].map(|_| {
            let mut responder = Responder::new(Service::Rc);
            responder.configure(config);
            responder
        });
        for step in 0..100 {
            if dice.below(4) == 0 {
                let response = general.poll_transmit();
                if let Some((psn, msn)) = other.fast_ack() {
                    said += 1;
                    let headers = response.expect("the other one has something to say").headers;
                    let aeth = Aeth { syndrome: Syndrome::ACK, msn };
                    assert_eq!((headers.psn, headers.aeth), (psn, aeth));
                    assert_eq!(headers.opcode, Opcode::new(Transport::Rc, W::Acknowledge));
                    assert_eq!((headers.dest_qp, headers.pkey, headers.migrated), other.addresses());
                    other.sent_fast_ack();
                } else {
                    assert_eq!(other.poll_transmit(), response);
                }
                same(&general, &other, step);
                continue;
            }
            let kinds = [W::SendOnly, W::WriteOnly, W::SendFirst, W::SendLast, W::ReadRequest, W::WriteOnlyImm];
            let kind = if dice.below(6) == 0 { dice.below(6) } else { dice.below(2) };
            let write = kind == 1;
            let len = if dice.below(20) == 0 { MTU + dice.below(2) } else { dice.below(MTU) };
            let harm = dice.below(24);
            let headers = Headers {
                opcode: Opcode::new(Transport::Rc, kinds[kind as usize]),
                psn: if harm < 2 { general.expected + dice.below(3) - 1 } else { general.expected },
                ack_req: dice.below(2) == 0,
                reth: Reth { va: 64, rkey: 7, len: if harm == 3 { len + 1 } else { len } },
                ..Headers::default()
            };
            let outcome = match dice.below(16) {
                0 => Outcome::Rnr,
                1 => Outcome::Dropped,
                2 if dice.below(8) == 0 => Outcome::Refused(Nak::RemoteAccess),
                _ => Outcome::Done,
            };
            let carry_out = |responder: &mut Responder| {
                if !matches!(responder.handle(&headers, len), Step::Ignore(_) | Step::Reply | Step::OutOfOrder) {
                    responder.finish(outcome);
                }
            };
            carry_out(&mut general);
            let fast = match kind {
                0 => other.awaits_fast_message(headers.psn, len),
                1 => other.awaits_fast_write(headers.psn, len, headers.reth.len),
                _ => false,
            };
            assert!(!write || !fast || config.access.allows(Access::REMOTE_WRITE));
            if fast && outcome == Outcome::Done {
                taken += 1;
                other.took_fast_message(headers.ack_req);
            } else {
                carry_out(&mut other);
            }
            same(&general, &other, step);
        }
    }
    assert!(taken > 1000 && said > 500, "{taken} taken and {said} acknowledged by the fast path");
}
