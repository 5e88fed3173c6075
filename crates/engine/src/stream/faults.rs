//! Faults on demand on streams. A rule sees each FPDU that leaves, or that arrives
//! (`passing.rs`).
//!
//! | kind | what happens |
//! |---|---|
//! | loss | TCP would only retransmit, so the connection is reset |
//! | corrupt | a bit changes, but none of the length: with CRCs, the receiver ends the stream |
//! | delay, bandwidth | the stream sends, or takes, nothing until the time is over |
//!
//! The other kinds do nothing here. Adds to [`Qp`].

use std::time::Duration;

use abi::fault::{Direction, Facts, Fate};
use iwarp::rdmap::Opcode;
use wire::{Operation, Transport};

use super::part::Addresses;
use crate::qp::Qp;

/// What becomes of an FPDU.
#[derive(Default)]
pub(super) struct Harm {
    /// The connection is reset instead.
    pub(super) resets: bool,
    /// The FPDU leaves, or passes, at this time at the earliest.
    pub(super) until: Option<Duration>,
    /// The words for captures.
    pub(super) words: String,
}

/// Bytes of a marker, and of the length of an FPDU.
const MARKER: usize = 4;
const LENGTH: usize = 2;

/// What an FPDU is, and where its segment begins. A marker before the FPDU begins with zeros, and
/// no FPDU has a length of 0. No marker is inside of the length and the first two bytes of the
/// segment, because markers are at multiples of 4.
fn kind(fpdu: &[u8]) -> Option<(Opcode, usize)> {
    let begin = LENGTH + if fpdu.starts_with(&[0; LENGTH]) { MARKER } else { 0 };
    let rdmap = fpdu.get(begin + 1)?;
    Some((Opcode::parse(*rdmap).ok()?, begin))
}

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
    /// Applies the rules to an FPDU that is about to leave, or that has arrived.
    #[cold]
    pub(super) fn harm(&self, direction: Direction, port: u8, addresses: &Addresses, fpdu: &mut [u8]) -> Harm {
        let engine = self.engine();
        let Some((kind, begin)) = kind(fpdu) else { return Harm::default() };
        let facts = Facts {
            direction,
            device: engine.device(),
            port: port.into(),
            peer: addresses.remote.0,
            qpn: self.qpn(),
            peer_qpn: 0,
            opcode: opcode(kind),
            syndrome: 0,
            len: fpdu.len() as u32,
            management: false,
            links: 0,
        };
        let (verdict, words) = engine.faults.decide_frame(engine, &facts, &format_args!("iWARP {kind}"));
        if let Fate::Damaged(bit) = verdict.fate {
            let bits = 8 * (fpdu.len() - begin) as u64;
            let at = 8 * begin + (bit % bits) as usize;
            fpdu[at / 8] ^= 1 << (at % 8);
        }
        Harm { resets: verdict.fate == Fate::Lost, until: verdict.until.map(Duration::from_nanos), words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fpdu_is_known_with_and_without_a_marker_before_it() {
        let mut sender = iwarp::fpdu::Sender::new(true, true);
        let mut out = [0; 2048];
        let mut begins = Vec::new();
        for _ in 0..3 {
            // The first FPDU has a marker before it, and so has each one that begins at 512 bytes.
            let segment = [[0xc1, 0x40].as_slice(), &[0; 498]].concat();
            sender.frame(&mut out, &segment, 0, |_, _, _| Ok::<_, ()>(false)).expect("nothing is fetched");
            let (opcode, begin) = kind(&out).expect("a WRITE");
            assert_eq!(opcode, Opcode::Write);
            begins.push(begin);
        }
        assert_eq!(begins, [6, 6, 6]);
        sender.frame(&mut out, &[0x41, 0x43], 0, |_, _, _| Ok::<_, ()>(false)).expect("nothing is fetched");
        sender.frame(&mut out, &[0x41, 0x43], 0, |_, _, _| Ok::<_, ()>(false)).expect("nothing is fetched");
        assert_eq!(kind(&out), Some((Opcode::Send, 2)));
        assert_eq!((kind(&out[..3]), kind(&[0; 8])), (None, None));
    }
}
