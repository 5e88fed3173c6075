//! The packets of one conversation, and the work requests that they carry out. Principal type:
//! [`Script`].

use crate::pcap::{self, Captured};
use crate::table::Conversation;
use softhca_protocol::{Destination, Operation, SendOp, Service};
use wire::{Headers, Psn};

/// A packet of the conversation.
pub(crate) struct Packet {
    pub time: u64,
    pub headers: Headers,
    pub payload: Vec<u8>,
}

/// A work request and its message.
pub(crate) struct Asked {
    pub op: SendOp,
    pub message: Vec<u8>,
}

/// The packets and requests of a conversation.
pub(crate) struct Script {
    /// The packets, in the order of the capture.
    pub packets: Vec<Packet>,
    /// The work requests, without repetitions.
    pub asked: Vec<Asked>,
}

/// The side of a loss from which to look.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Requester,
    Responder,
}

impl Script {
    pub(crate) fn read(conversation: &Conversation, side: Side) -> Script {
        let name = match (conversation.file.starts_with("drop_"), side) {
            (true, Side::Requester) => format!("{}.tap2", conversation.file),
            (true, Side::Responder) => format!("{}.tap1", conversation.file),
            _ => conversation.file.to_owned(),
        };
        let (from_qp, to_qp) = conversation.qps;
        let belongs = |captured: &Captured| {
            let (headers, _) = captured.parts();
            let dest = headers.dest_qp.value();
            if headers.opcode.is_response() {
                captured.sender() != conversation.from && dest == from_qp
            } else {
                captured.sender() == conversation.from && dest == to_qp
            }
        };
        let packets: Vec<Packet> = pcap::read(&name)
            .iter()
            .filter(|captured| belongs(captured))
            .map(|captured| {
                let (headers, payload) = captured.parts();
                Packet { time: captured.time, headers, payload: payload.to_vec() }
            })
            .collect();
        let asked = asked(conversation, &packets);
        let script = Script { packets, asked };
        assert_eq!(script.summary(conversation.memory.0), conversation.asks, "{name}");
        script
    }

    fn summary(&self, base: u64) -> String {
        let line = |asked: &Asked| summary(&asked.op, base);
        self.asked.iter().map(line).collect::<Vec<_>>().join(", ")
    }
}

fn asked(conversation: &Conversation, packets: &[Packet]) -> Vec<Asked> {
    let mut asked: Vec<Asked> = Vec::new();
    let mut next = Psn::new(conversation.psn);
    for Packet { headers, payload, .. } in packets {
        if headers.opcode.is_response() || headers.psn != next {
            continue; // A repetition, or a packet behind a loss.
        }
        let is_read = headers.opcode.operation == wire::Operation::ReadRequest;
        next += if is_read { headers.reth.len.div_ceil(conversation.mtu).max(1) } else { 1 };
        if headers.opcode.place().begins() {
            let op = SendOp {
                slot: asked.len() as u32,
                remote_addr: headers.reth.va,
                rkey: headers.reth.rkey,
                length: headers.reth.len,
                dest: Destination { dest_qp: headers.dest_qp, qkey: headers.deth.qkey },
                ..SendOp::default()
            };
            asked.push(Asked { op, message: Vec::new() });
        }
        let Asked { op, message } = asked.last_mut().unwrap();
        message.extend_from_slice(payload);
        if headers.opcode.place().ends() {
            op.operation = operation(headers);
            op.solicited = headers.solicited;
            op.imm = if headers.opcode.has_ieth() { headers.ieth } else { headers.imm };
            if op.operation.is_atomic() {
                (op.remote_addr, op.rkey, op.length) = (headers.atomic.va, headers.atomic.rkey, 8);
                (op.compare, op.swap_add) = (headers.atomic.compare, headers.atomic.swap_add);
            } else if !is_read {
                op.length = message.len() as u32;
            }
        }
    }
    asked
}

fn operation(headers: &Headers) -> Operation {
    let opcode = headers.opcode;
    match opcode.operation {
        wire::Operation::ReadRequest => Operation::Read,
        wire::Operation::CompareSwap => Operation::CmpSwap,
        wire::Operation::FetchAdd => Operation::FetchAdd,
        _ if opcode.has_ieth() => Operation::SendInv,
        _ if opcode.is_send() && opcode.has_immdt() => Operation::SendImm,
        _ if opcode.is_send() => Operation::Send,
        _ if opcode.has_immdt() => Operation::WriteImm,
        _ => Operation::Write,
    }
}

/// A short form of a work request. Addresses are relative to the base, where it is known.
fn summary(op: &SendOp, base: u64) -> String {
    let at = if base == 0 { String::new() } else { format!(" at {}", op.remote_addr.wrapping_sub(base)) };
    let text = match op.operation {
        Operation::Send => format!("SEND {}", op.length),
        Operation::SendImm => format!("SEND {} imm {:#x}", op.length, op.imm),
        Operation::SendInv => format!("SEND {} invalidates {:#x}", op.length, op.imm),
        Operation::Write => format!("WRITE {}{at}", op.length),
        Operation::WriteImm => format!("WRITE {}{at} imm {:#x}", op.length, op.imm),
        Operation::Read => format!("READ {}{at}", op.length),
        Operation::CmpSwap => format!("CAS{at} swap {:#x} compare {:#x}", op.swap_add, op.compare),
        Operation::FetchAdd => format!("ADD{at} of {:#x}", op.swap_add),
        other => panic!("{other} sends nothing"),
    };
    if op.solicited { text + " solicited" } else { text }
}

/// The headers as on the wire: with padding, and without fields that the opcode does not have.
pub(crate) fn as_sent(headers: &Headers, payload: &[u8]) -> Headers {
    let mut bytes = [0; wire::MAX_LEN];
    let headers = Headers { pad: (payload.len().wrapping_neg() & 3) as u8, ..*headers };
    let len = headers.emit(&mut bytes).unwrap();
    Headers::parse(&bytes[..len]).unwrap()
}

/// Conversations of a reliable service, which has answers.
pub(crate) fn is_reliable(conversation: &&Conversation) -> bool {
    conversation.service == Service::Rc
}
