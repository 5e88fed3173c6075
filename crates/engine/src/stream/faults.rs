//! Faults on demand on streams. A rule sees each FPDU that leaves.
//!
//! | kind | what happens |
//! |---|---|
//! | loss | TCP would only retransmit, so the connection is reset |
//! | corrupt | a bit of the FPDU changes, but none of its length: with CRCs, the peer ends the stream |
//! | delay, bandwidth | the stream sends nothing until the time is over |
//!
//! The other kinds do nothing here. Adds to [`Qp`].

use std::time::Duration;

use abi::fault::{Direction, Facts, Fate};
use iwarp::ddp::Header;
use iwarp::rdmap::Opcode;
use wire::{Operation, Transport};

use super::part::Addresses;
use crate::qp::Qp;

/// What becomes of an FPDU.
#[derive(Default)]
pub(super) struct Harm {
    /// The connection is reset instead.
    pub(super) resets: bool,
    /// The FPDU leaves at this time at the earliest.
    pub(super) until: Option<Duration>,
    /// The words for captures.
    pub(super) words: String,
}

/// Where the length of an FPDU ends.
const LENGTH: usize = 2;

/// The opcode of RoCE that does the same, by which rules select packets.
fn opcode(of: Opcode) -> u8 {
    let operation = match of {
        Opcode::Write => Operation::WriteOnly,
        Opcode::ReadRequest => Operation::ReadRequest,
        Opcode::ReadResponse => Operation::ReadResponseOnly,
        Opcode::AtomicRequest => Operation::FetchAdd,
        Opcode::AtomicResponse => Operation::AtomicAcknowledge,
        // The other messages need a receive request, or end the stream.
        _ => Operation::SendOnly,
    };
    wire::Opcode::new(Transport::Rc, operation).as_u8()
}

impl Qp {
    /// Applies the rules to an FPDU that is about to leave.
    #[cold]
    pub(super) fn harm(&self, port: u8, addresses: &Addresses, fpdu: &mut [u8]) -> Harm {
        let engine = self.engine();
        let rdmap = fpdu.get(LENGTH..).and_then(|segment| Header::parse(segment).ok()).map(|(header, _)| header.rdmap);
        let Some(kind) = rdmap.and_then(|rdmap| Opcode::parse(rdmap).ok()) else { return Harm::default() };
        let facts = Facts {
            direction: Direction::Out,
            device: engine.device(),
            port: port.into(),
            peer: addresses.remote.0,
            qpn: self.qpn(),
            peer_qpn: 0,
            opcode: opcode(kind),
            syndrome: 0,
            len: fpdu.len() as u32,
            management: false,
        };
        let (verdict, words) = engine.faults.decide_frame(engine, &facts, &format_args!("iWARP {kind}"));
        if let Fate::Damaged(bit) = verdict.fate {
            let bits = 8 * (fpdu.len() - LENGTH) as u64;
            let at = 8 * LENGTH + (bit % bits) as usize;
            fpdu[at / 8] ^= 1 << (at % 8);
        }
        Harm { resets: verdict.fate == Fate::Lost, until: verdict.until.map(Duration::from_nanos), words }
    }
}
