//! tshark's view of a capture. It runs tshark and does not parse packets itself. The principal type
//! is [`Row`].

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use softhca_wire::{Headers, Operation};

/// The fields to print, by tshark's names.
const FIELDS: &[&str] = &[
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.reserved7",
    "infiniband.bth.psn",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.invariant.crc",
    "_ws.expert.message",
    "_ws.expert.severity",
    "_ws.malformed",
];

/// Disables heuristics that guess the protocol of payloads. They guess wrong for the payloads of
/// these tests.
const GUESSES: &[&str] = &["--disable-heuristic", "mellanox_eoib", "--disable-protocol", "rpcordma"];

/// One packet.
pub(crate) struct Row(pub(crate) BTreeMap<&'static str, String>);

/// All packets of a capture.
pub(crate) fn read(file: &Path) -> Vec<Row> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-E", "separator=/t"]).args(GUESSES).arg("-r").arg(file);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let row = |line: &str| Row(FIELDS.iter().copied().zip(line.split('\t').map(str::to_owned)).collect());
    text.lines().map(row).collect()
}

impl Row {
    /// The number in a field, if the packet has the field. tshark prints bytes as hex digits
    /// without 0x, and numbers as hex with 0x or as decimal.
    fn number(&self, field: &str) -> Option<u64> {
        // Some fields occur twice: as a header, and inside this header.
        let text = self.0[field].split(',').next().unwrap_or_default();
        let hex = ["infiniband.immdt", "infiniband.ieth"].contains(&field).then_some(text).or(text.strip_prefix("0x"));
        let number = hex.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
        (!text.is_empty()).then(|| number.unwrap_or_else(|_| panic!("{field} is {text}")))
    }

    /// Checks that tshark found no fault and that it and `wire` parsed the same values.
    #[track_caller]
    pub(crate) fn agrees_with(&self, headers: &Headers, payload: &[u8], packet: &[u8]) {
        let opcode = headers.opcode;
        let is_atomic_answer = opcode.operation == Operation::AtomicAcknowledge;
        let icrc = packet.last_chunk().map(|icrc| u64::from(u32::from_be_bytes(*icrc)));
        let when = |present: bool, value: u64| present.then_some(value);
        let any_reth = opcode.has_reth() || opcode.is_atomic();
        let (va, rkey) = if opcode.is_atomic() {
            (headers.atomic.va, headers.atomic.rkey)
        } else {
            (headers.reth.va, headers.reth.rkey)
        };
        for (field, ours) in [
            ("infiniband.bth.opcode", Some(opcode.as_u8().into())),
            ("infiniband.bth.se", Some(headers.solicited.into())),
            ("infiniband.bth.m", Some(headers.migrated.into())),
            ("infiniband.bth.padcnt", Some(payload.len() as u64 % 4).map(|over| (4 - over) % 4)),
            ("infiniband.bth.tver", Some(0)),
            ("infiniband.bth.p_key", Some(0xffff)),
            ("infiniband.bth.destqp", Some(headers.dest_qp.value().into())),
            ("infiniband.bth.a", Some(headers.ack_req.into())),
            ("infiniband.bth.reserved7", Some(0)),
            ("infiniband.bth.psn", Some(headers.psn.value().into())),
            ("infiniband.aeth.syndrome", when(opcode.has_aeth(), headers.aeth.syndrome.as_u8().into())),
            ("infiniband.aeth.msn", when(opcode.has_aeth(), headers.aeth.msn.into())),
            ("infiniband.reth.va", when(any_reth, va)),
            ("infiniband.reth.r_key", when(any_reth, rkey.into())),
            ("infiniband.reth.dmalen", when(opcode.has_reth(), headers.reth.len.into())),
            ("infiniband.atomiceth.swapdt", when(opcode.is_atomic(), headers.atomic.swap_add)),
            ("infiniband.atomiceth.cmpdt", when(opcode.is_atomic(), headers.atomic.compare)),
            ("infiniband.atomicacketh.origremdt", when(is_atomic_answer, headers.atomic_ack)),
            ("infiniband.immdt", when(opcode.has_immdt(), headers.imm.into())),
            ("infiniband.ieth", when(opcode.has_ieth(), headers.ieth.into())),
            ("infiniband.deth.q_key", when(opcode.has_deth(), headers.deth.qkey.into())),
            ("infiniband.deth.srcqp", when(opcode.has_deth(), headers.deth.src_qp.value().into())),
            ("infiniband.invariant.crc", icrc),
        ] {
            assert_eq!(self.number(field), ours, "{field} of {headers}");
        }
        self.has_no_fault();
    }

    /// Checks that tshark found no fault.
    #[track_caller]
    pub(crate) fn has_no_fault(&self) {
        for fault in ["_ws.expert.message", "_ws.expert.severity", "_ws.malformed"] {
            assert_eq!(self.0[fault], "", "{:?}", self.0);
        }
    }
}
