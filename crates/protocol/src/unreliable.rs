//! The receiving side of the unreliable services. UC: messages in order. A message that lacks a
//! packet is abandoned, and its receive request serves the next message. UD: messages of one
//! packet, from any sender that shows the Q_Key. Nothing is answered. Adds to [`Responder`]; the
//! checks that UC shares with RC are in [`crate::responder`]. IBA 9.8.2, 9.8.3.

use crate::reason::Fault;
use crate::responder::{Open, Pending, Responder};
use crate::step::{Outcome, RecvEnd, Step};
use wire::Headers;

impl Responder {
    pub(crate) fn handle_uc(&mut self, headers: &Headers, len: u32) -> Step {
        let opcode = headers.opcode;
        let in_order = headers.psn == self.expected;
        self.expected = headers.psn + 1;
        if opcode.place().begins() {
            // The end of any earlier message is lost.
            self.message = Open::None;
            self.abandoned = false;
        } else if !in_order || self.abandoned || self.message == Open::None {
            self.abandon();
            return Step::Ignore(Fault::Abandoned { opcode });
        }
        self.begin_step(headers, len).unwrap_or_else(|fault| {
            self.abandon();
            Step::Ignore(fault)
        })
    }

    pub(crate) fn finish_uc(&mut self, pending: &Pending, outcome: Outcome) {
        match outcome {
            Outcome::Done | Outcome::AtomicDone(_) => self.message = pending.next,
            Outcome::Rnr | Outcome::Refused(_) | Outcome::Dropped => self.abandon(),
        }
    }

    fn abandon(&mut self) {
        self.message = Open::None;
        self.abandoned = true;
    }

    pub(crate) fn handle_ud(&mut self, headers: &Headers, len: u32) -> Step {
        let (expected, got) = (self.config.qkey, headers.deth.qkey);
        if got != expected {
            return Step::Ignore(Fault::QKey { expected, got });
        }
        if len > self.config.mtu {
            return Step::Ignore(Fault::Length { opcode: headers.opcode, got: len, mtu: self.config.mtu });
        }
        let imm = headers.opcode.has_immdt().then_some(headers.imm);
        let end = RecvEnd { byte_len: len, imm, invalidate: None, solicited: headers.solicited };
        Step::Receive { offset: 0, len, first: true, last: Some(end) }
    }
}
