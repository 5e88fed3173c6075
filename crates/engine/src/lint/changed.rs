//! The check that a program does not change the bytes of a send: it compares a checksum taken at
//! the post with one taken when the peer has the message.
//!
//! Until then a packet may have to be retransmitted. The change may also come from a peer's WRITE,
//! or from a message received into the buffer. Principal functions: [`sum`] and [`compare`].

use abi::post::Sge;
use shm::Sink;

use super::finding::{Check, Finding};
use super::shadow::Posted;
use crate::access::{self, HeldRegion};
use crate::core::Core;
use crate::qp::Qp;

/// Bytes per copy.
const PIECE: u32 = 64 * 1024;

/// The checksum of a list's bytes; `None` if they cannot be read.
pub(super) fn sum(core: &Core, pd: u32, sges: &[Sge]) -> Option<u64> {
    let mut piece = vec![0u8; PIECE.min(sges.iter().map(|sge| sge.length).max().unwrap_or(0)) as usize];
    let mut sum = 0u64;
    for sge in sges {
        let mut at = 0;
        while at < sge.length {
            let len = (sge.length - at).min(PIECE);
            let piece = &mut piece[..len as usize];
            access::gather(&mut HeldRegion::new(core), pd, std::iter::once(*sge), at, &mut Sink::from(&mut *piece))
                .ok()?;
            sum = add(sum, piece);
            at += len;
        }
    }
    Some(sum)
}

/// Adds bytes to the checksum. It detects changes; it does not resist an attacker.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(ODD).rotate_left(29);
    let sum = words.iter().fold(sum, |sum, word| mix(sum, u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte) + 1))
}

/// Whether the bytes of a request that the peer has taken are unchanged.
pub(super) fn compare(qp: &Qp, posted: Posted) -> Option<Finding> {
    let before = posted.sum?;
    let after = sum(qp.engine(), qp.pd, &posted.sges)?;
    (before != after).then(|| {
        let (first, length) = (posted.sges.first()?.addr, posted.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>());
        let what = format!(
            "ibv_post_send on QP {:#x}, wr_id {:#x}: its {length} bytes at {first:#x} were changed before it was complete",
            qp.qpn(),
            posted.wr_id
        );
        Some(Finding::at(posted.site, Check::ChangedBuffer, qp.qpn(), what))
    })?
}

#[cfg(test)]
mod tests {
    use super::add;

    #[test]
    fn every_byte_counts() {
        let bytes: Vec<u8> = (0..100).collect();
        let sum = add(0, &bytes);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(add(0, &other), sum, "byte {at}");
        }
        assert_ne!(add(0, &[0]), add(0, &[0, 0]));
    }
}
