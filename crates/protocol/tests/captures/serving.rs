//! Our responder in place of the driver's: it gets the driver's requests, and must give the
//! driver's answers. Principal type: [`Server`].

use crate::memory::Memory;
use crate::packet::Answers;
use crate::script::{Packet, Script, Side, as_sent, is_reliable};
use crate::table::{CONVERSATIONS, Conversation, Difference};
use softhca_protocol::{
    Access, AtomicOp, Nak, Operation, Outcome, Responder, ResponderConfig, ResponseData, Service, Status, Step,
};
use std::collections::{BTreeMap, VecDeque};
use wire::{Headers, NakCode, Psn, Qpn, Syndrome};

/// Our responder, and the executor of its steps.
struct Server<'a> {
    conversation: &'a Conversation,
    responder: Responder,
    memory: Memory,
    began: u64,
    receives: usize,
    /// The message that is being received.
    message: Vec<u8>,
    /// Messages received, and immediate data.
    received: Vec<(Vec<u8>, Option<u32>, Option<u32>)>,
    /// Answers that are not compared yet.
    said: VecDeque<(Headers, Vec<u8>)>,
    /// The last answer of the driver.
    last: Option<Headers>,
    differences: BTreeMap<Difference, usize>,
}

impl<'a> Server<'a> {
    fn new(conversation: &'a Conversation, script: &Script) -> Server<'a> {
        let mut responder = Responder::new(conversation.service);
        responder.configure(ResponderConfig {
            mtu: conversation.mtu,
            dest_qp: Qpn::new(conversation.qps.0),
            pkey: 0xffff,
            rq_psn: Psn::new(conversation.psn),
            max_dest_rd_atomic: 4,
            min_rnr_timer: conversation.min_rnr_timer,
            access: Access(Access::REMOTE_ATOMIC.0 | Access::REMOTE_READ.0 | Access::REMOTE_WRITE.0),
            qkey: script.packets[0].headers.deth.qkey,
            service: conversation.service,
            migrated: false,
        });
        Server {
            conversation,
            responder,
            memory: Memory::new(conversation),
            began: script.packets[0].time,
            receives: conversation.receives.0,
            message: Vec::new(),
            received: Vec::new(),
            said: VecDeque::new(),
            last: None,
            differences: BTreeMap::new(),
        }
    }

    /// Handles a request.
    fn serve(&mut self, packet: &Packet, next: &[Packet]) {
        self.memory.learn(packet, next);
        match self.responder.handle(&packet.headers, packet.payload.len() as u32) {
            Step::Ignore(_) | Step::Reply | Step::OutOfOrder => {}
            step => {
                let outcome = self.execute(&step, &packet.payload, packet.time);
                self.responder.finish(outcome);
            }
        }
    }

    fn take_receive(&mut self, time: u64) -> bool {
        let (_, _, after) = self.conversation.receives;
        let there = self.receives > 0 && time >= self.began + after;
        self.receives -= usize::from(there);
        there
    }

    fn execute(&mut self, step: &Step, payload: &[u8], time: u64) -> Outcome {
        match *step {
            Step::Ignore(_) | Step::Reply | Step::OutOfOrder => unreachable!("nothing to carry out"),
            Step::Receive { offset, first, last, .. } => {
                if first && !self.take_receive(time) {
                    return Outcome::Rnr;
                }
                if offset as usize + payload.len() > self.conversation.receives.1 {
                    return Outcome::Refused(Nak::InvalidRequest);
                }
                self.message.truncate(offset as usize);
                self.message.extend_from_slice(payload);
                if let Some(end) = last {
                    assert_eq!(end.byte_len as usize, self.message.len());
                    self.received.push((std::mem::take(&mut self.message), end.imm, end.invalidate));
                }
            }
            Step::Write { va, rkey, total, offset, imm, .. } => {
                if let Err(nak) = self.memory.check(va, rkey, total) {
                    return Outcome::Refused(nak);
                }
                if imm.is_some() && !self.take_receive(time) {
                    return Outcome::Rnr;
                }
                self.memory.write(va + u64::from(offset), payload);
                if let Some(end) = imm {
                    self.received.push((self.memory.read(va, total), end.imm, None));
                }
            }
            Step::Read { va, rkey, len } => {
                if let Err(nak) = self.memory.check(va, rkey, len) {
                    return Outcome::Refused(nak);
                }
            }
            Step::Atomic { op, va, rkey, swap_add, compare } => {
                if let Err(nak) = self.memory.check(va, rkey, 8) {
                    return Outcome::Refused(nak);
                }
                return Outcome::AtomicDone(self.memory.update(va, |old| match op {
                    AtomicOp::CmpSwap if old == compare => swap_add,
                    AtomicOp::CmpSwap => old,
                    AtomicOp::FetchAdd => old.wrapping_add(swap_add),
                }));
            }
            Step::AtomicWrite { .. } | Step::Flush { .. } => unreachable!("the driver of the captures has neither"),
        }
        Outcome::Done
    }

    /// Sends all answers.
    fn answer(&mut self) {
        while let Some(response) = self.responder.poll_transmit() {
            let payload = match response.source {
                ResponseData::None => Vec::new(),
                ResponseData::Read { va, offset, len, .. } => self.memory.read(va + u64::from(offset), len),
            };
            self.said.push_back((as_sent(&response.headers, &payload), payload));
        }
    }

    fn differs(&mut self, difference: Difference) {
        *self.differences.entry(difference).or_default() += 1;
    }

    /// The driver gave this answer, so our responder must give it.
    fn expect(&mut self, theirs: &Packet) {
        let name = self.conversation.file;
        let before = self.last.replace(theirs.headers);
        let sequence = Syndrome::Nak(NakCode::PsnSequence);
        let behind_rnr = before.is_some_and(|before| {
            matches!(before.aeth.syndrome, Syndrome::RnrNak(_)) && before.psn == theirs.headers.psn
        });
        if behind_rnr && theirs.headers.aeth.syndrome == sequence {
            return self.differs(Difference::NoNakBehindRnr);
        }
        let (mut ours, payload) = self.said.pop_front().unwrap_or_else(|| panic!("{name}: {}", theirs.headers));
        if ours.opcode != theirs.headers.opcode && ours.opcode.is_read_response() {
            let (our_place, place) = (ours.opcode.place(), theirs.headers.opcode.place());
            assert!(our_place.begins() && !place.begins(), "{name}: {ours} | {}", theirs.headers);
            assert_eq!(our_place.ends(), place.ends(), "{name}: {ours} | {}", theirs.headers);
            ours = as_sent(&Headers { opcode: theirs.headers.opcode, ..ours }, &payload);
            self.differs(Difference::AnsweredAnew);
        }
        let codes = (ours.aeth.syndrome, theirs.headers.aeth.syndrome);
        if codes == (Syndrome::Nak(NakCode::InvalidRequest), Syndrome::Nak(NakCode::RemoteOperational)) {
            ours.aeth.syndrome = codes.1;
            self.differs(Difference::TooLong);
        }
        assert_eq!(ours, theirs.headers, "{name}: {ours} | {}", theirs.headers);
        assert_eq!(payload, theirs.payload, "{name}: {ours}");
    }

    /// Checks that the differences are those in the table.
    fn check_differences(&self) {
        let Conversation { file, differ, .. } = self.conversation;
        let mine = [Difference::NoNakBehindRnr, Difference::AnsweredAnew, Difference::TooLong];
        let expected = differ.iter().copied().filter(|(difference, _)| mine.contains(difference)).collect();
        assert_eq!(self.differences, expected, "{file}");
    }

    /// Checks that the program got the same messages as with the driver.
    fn check_received(&self, script: &Script) {
        let Conversation { file, ends, .. } = self.conversation;
        let done = script.asked.len() - usize::from(*ends != Status::Success);
        let received = |(op, message): (&softhca_protocol::SendOp, &Vec<u8>)| match op.operation {
            Operation::Send => Some((message.clone(), None, None)),
            Operation::SendImm | Operation::WriteImm => Some((message.clone(), Some(op.imm), None)),
            Operation::SendInv => Some((message.clone(), None, Some(op.imm))),
            _ => None,
        };
        let wanted: Vec<_> =
            script.asked[..done].iter().filter_map(|asked| received((&asked.op, &asked.message))).collect();
        assert_eq!(self.received, wanted, "{file}");
        if self.conversation.service == Service::Rc {
            assert_eq!(self.responder.msn() as usize, done, "{file}: every message once");
        }
    }
}

#[test]
fn a_responder_says_what_the_driver_said() {
    for conversation in CONVERSATIONS {
        let script = Script::read(conversation, Side::Responder);
        let mut server = Server::new(conversation, &script);
        for (index, packet) in script.packets.iter().enumerate() {
            if packet.headers.opcode.is_response() {
                server.expect(packet);
            } else {
                server.serve(packet, &script.packets[index..]);
                server.answer();
            }
        }
        let more = server.said.front().map(|(headers, _)| headers.to_string());
        assert_eq!(more, None, "{}: we said more", conversation.file);
        server.check_differences();
        server.check_received(&script);
    }
}

/// The driver acknowledges each packet that requests it. Our responder answers after a batch of
/// packets. Whatever the size of the batch, the last answer is the same, and there are no more
/// answers than the driver gave. (Answers to READs and atomics may not wait, because a requester
/// sends the next request only after the answer.)
#[test]
fn answers_that_are_given_late_end_the_same() {
    let mut joined = 0;
    for conversation in CONVERSATIONS.iter().filter(is_reliable) {
        let script = Script::read(conversation, Side::Responder);
        if script.asked.iter().any(|asked| asked.op.operation.is_read_or_atomic()) {
            continue;
        }
        let mut server = Server::new(conversation, &script);
        let (requests, theirs): (Vec<&Packet>, Vec<&Packet>) =
            script.packets.iter().partition(|packet| !packet.headers.opcode.is_response());
        for packet in requests {
            server.serve(packet, &[]);
        }
        server.answer();
        assert!(server.said.len() <= theirs.len(), "{}", conversation.file);
        joined += theirs.len() - server.said.len();
        server.said.drain(..server.said.len() - 1);
        server.expect(theirs.last().unwrap());
        server.check_received(&script);
    }
    assert!(joined > 40, "{joined} answers were joined with others");
}
