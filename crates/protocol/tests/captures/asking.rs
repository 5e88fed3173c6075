//! Our requester in place of the driver's: it posts the program's requests, and gets the answers
//! that the driver got. Principal type: [`Asker`].

use crate::memory::Memory;
use crate::packet::OneByOne;
use crate::script::{Packet, Script, Side, as_sent, is_reliable};
use crate::table::{CONVERSATIONS, Conversation, Difference};
use softhca_protocol::{Incoming, Operation, Requester, RequesterConfig, Service, Status, Time};
use std::collections::{BTreeMap, VecDeque};
use wire::{Headers, Psn, Qpn};

/// The tolerance for a timer of the driver, which has ticks of 4 ms in an emulated machine.
const TICKS: u64 = 12_000_000;

/// Our requester.
struct Asker<'a> {
    name: &'a str,
    script: &'a Script,
    requester: Requester,
    now: Time,
    /// How many of the program's work requests are posted.
    posted: usize,
    /// Packets that were sent, with their times, and are not compared yet.
    sent: VecDeque<(Time, Headers, Vec<u8>)>,
    /// The data of READs and atomics, by slot.
    placed: BTreeMap<u32, Vec<u8>>,
    ends: Vec<Status>,
    differences: BTreeMap<Difference, usize>,
}

impl<'a> Asker<'a> {
    fn new(conversation: &'a Conversation, script: &'a Script) -> Asker<'a> {
        let mut requester = Requester::new(conversation.service, 64);
        requester.configure(RequesterConfig {
            mtu: conversation.mtu,
            src_qp: Qpn::new(conversation.qps.0),
            dest_qp: Qpn::new(conversation.qps.1),
            pkey: 0xffff,
            sq_psn: Psn::new(conversation.psn),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: conversation.rnr_retry,
            max_rd_atomic: 4,
            ..RequesterConfig::default()
        });
        Asker {
            name: conversation.file,
            script,
            requester,
            now: Time(script.packets[0].time),
            posted: 0,
            sent: VecDeque::new(),
            placed: BTreeMap::new(),
            ends: Vec::new(),
            differences: BTreeMap::new(),
        }
    }

    fn post(&mut self) {
        let asked = &self.script.asked[self.posted];
        self.requester.post(asked.op).unwrap();
        self.posted += 1;
        self.transmit();
    }

    /// Sends everything that may be sent.
    fn transmit(&mut self) {
        while let Some(packet) = self.requester.poll_transmit(self.now) {
            let message = &self.script.asked[packet.slot as usize].message;
            let (start, end) = (packet.offset as usize, (packet.offset + packet.len) as usize);
            let payload = if packet.len == 0 { Vec::new() } else { message[start..end].to_vec() };
            self.sent.push_back((self.now, as_sent(&packet.headers, &payload), payload));
        }
        while let Some(completion) = self.requester.poll_completion() {
            assert_eq!(completion.slot as usize, self.ends.len(), "{}", self.name);
            self.ends.push(completion.status);
        }
    }

    /// The driver sent this packet, so our requester must send it.
    fn expect(&mut self, theirs: &Packet) {
        self.now = self.now.max(Time(theirs.time));
        if self.sent.is_empty()
            && theirs.headers.psn == self.requester.sq_psn()
            && self.posted < self.script.asked.len()
        {
            self.post();
        }
        if self.sent.is_empty() {
            let due = self.requester.poll_timeout().unwrap_or_else(|| panic!("{}: {}", self.name, theirs.headers));
            let off = due.0.abs_diff(theirs.time);
            assert!(off < TICKS, "{}: {}: our timer ends {off} ns from theirs", self.name, theirs.headers);
            self.now = self.now.max(due);
            self.requester.handle_timeout(self.now);
            self.transmit();
        }
        let (sent, mut ours, payload) =
            self.sent.pop_front().unwrap_or_else(|| panic!("{}: {}", self.name, theirs.headers));
        let opcode = ours.opcode;
        if opcode.operation == wire::Operation::ReadRequest || opcode.is_atomic() {
            assert!(!ours.ack_req && theirs.headers.ack_req, "{}: {ours}", self.name);
            ours.ack_req = true;
            *self.differences.entry(Difference::NoWishToHear).or_default() += 1;
        }
        assert_eq!(ours, theirs.headers, "{}: {ours} | {}", self.name, theirs.headers);
        assert_eq!(payload, theirs.payload, "{}: {ours}", self.name);
        if theirs.time.saturating_sub(sent.0) > TICKS {
            *self.differences.entry(Difference::Sooner).or_default() += 1;
        }
    }

    /// The driver received this packet, so our requester gets it.
    fn hear(&mut self, theirs: &Packet) {
        self.now = self.now.max(Time(theirs.time));
        match self.requester.handle_response(self.now, &theirs.headers, theirs.payload.len() as u32) {
            Incoming::Nothing | Incoming::OutOfOrder => {}
            Incoming::Place { slot, offset, len, .. } => {
                let placed = self.placed.entry(slot).or_default();
                assert_eq!((placed.len(), theirs.payload.len()), (offset as usize, len as usize), "{}", self.name);
                placed.extend_from_slice(&theirs.payload);
                self.requester.placed(self.now, Ok(()));
            }
            Incoming::PlaceAtomic { slot, value } => {
                self.placed.insert(slot, value.to_le_bytes().to_vec());
                self.requester.placed(self.now, Ok(()));
            }
        }
        self.transmit();
    }

    /// Checks that the end state is that of the driver.
    fn finish(&mut self, conversation: &Conversation) {
        assert!(self.sent.is_empty(), "{}: we sent more: {:?}", self.name, self.sent.front());
        assert_eq!(self.posted, self.script.asked.len(), "{}", self.name);
        let mut ends = vec![Status::Success; self.posted];
        *ends.last_mut().unwrap() = conversation.ends;
        assert_eq!(self.ends, ends, "{}", self.name);
        assert_eq!(self.requester.poll_timeout(), None, "{}: nothing is awaited", self.name);
        let mut memory = Memory::new(conversation);
        for (slot, asked) in
            self.script.asked.iter().enumerate().filter(|(slot, _)| self.ends[*slot] == Status::Success)
        {
            let op = &asked.op;
            let there = match op.operation {
                Operation::Read if !memory.is_known() => continue,
                Operation::Read => memory.read(op.remote_addr, op.length),
                Operation::FetchAdd => {
                    memory.update(op.remote_addr, |word| word.wrapping_add(op.swap_add)).to_le_bytes().into()
                }
                Operation::CmpSwap => {
                    let new = |word| if word == op.compare { op.swap_add } else { word };
                    memory.update(op.remote_addr, new).to_le_bytes().into()
                }
                _ => continue,
            };
            assert_eq!(self.placed[&(slot as u32)], there, "{}: {}", self.name, op.operation);
        }
        let mine = [Difference::NoWishToHear, Difference::Sooner];
        let expected =
            conversation.differ.iter().copied().filter(|(difference, _)| mine.contains(difference)).collect();
        assert_eq!(self.differences, expected, "{}", self.name);
    }
}

#[test]
fn a_requester_sends_what_the_driver_sent() {
    for conversation in CONVERSATIONS {
        let script = Script::read(conversation, Side::Requester);
        let mut asker = Asker::new(conversation, &script);
        for packet in &script.packets {
            if packet.headers.opcode.is_response() {
                asker.hear(packet);
            } else {
                asker.expect(packet);
            }
        }
        asker.finish(conversation);
    }
}

/// A program that posts everything at once: the packets are the same, and of the acknowledgements,
/// the last one is enough.
#[test]
fn one_answer_is_enough_for_all_before_it() {
    let mut count = 0;
    for conversation in CONVERSATIONS.iter().filter(is_reliable) {
        let script = Script::read(conversation, Side::Requester);
        let (requests, answers): (Vec<&Packet>, Vec<&Packet>) =
            script.packets.iter().partition(|packet| !packet.headers.opcode.is_response());
        let is_plain = |packet: &&Packet| packet.headers.opcode.operation == wire::Operation::Acknowledge;
        let lost = requests.windows(2).any(|pair| !pair[0].headers.psn.is_before(pair[1].headers.psn));
        if lost || conversation.ends != Status::Success || !answers.iter().all(is_plain) {
            continue;
        }
        count += 1;
        let mut asker = Asker::new(conversation, &script);
        for _ in &script.asked {
            asker.post();
        }
        for packet in requests {
            asker.expect(packet);
        }
        asker.hear(answers.last().unwrap());
        // The driver sent these packets later, each after an answer; our requester sent them at
        // once.
        asker.differences.remove(&Difference::Sooner);
        asker.finish(conversation);
    }
    assert_eq!(count, 17);
}

/// Answers of another service are ignored, and answers of earlier connections are ghost answers.
#[test]
fn answers_that_are_heard_again_change_nothing() {
    for conversation in CONVERSATIONS {
        let script = Script::read(conversation, Side::Requester);
        let mut asker = Asker::new(conversation, &script);
        for packet in &script.packets {
            if !packet.headers.opcode.is_response() {
                asker.expect(packet);
                continue;
            }
            asker.hear(packet);
            let (ends, sent) = (asker.ends.len(), asker.sent.len());
            let refused = asker.requester.fatal();
            asker.hear(packet);
            assert_eq!((asker.ends.len(), asker.sent.len()), (ends, sent), "{}: {}", asker.name, packet.headers);
            assert_eq!(asker.requester.fatal(), refused);
        }
        asker.finish(conversation);
        assert!(
            conversation.service == Service::Rc
                || script.packets.iter().all(|packet| !packet.headers.opcode.is_response())
        );
    }
}
