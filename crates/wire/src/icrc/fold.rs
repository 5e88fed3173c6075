//! Computes the CRC of whole packets, 64 bytes at a time, on processors that multiply polynomials
//! in wide registers. On other processors, and for short packets, [`super::field`] and `crc32fast`
//! do it.
//!
//! 64 bytes with D bits behind them contribute the same to the CRC as other 64 bytes with no bits
//! behind them. Those bytes are computed from the four parts of 128 bits: each half of a part is
//! multiplied by a power of x, and the products are added. So the result can be added to the 64
//! bytes that stand D bits further on. Four sums of 64 bytes run over the packet side by side. In
//! the end, they are added to one sum, and its four parts to one part. The remainder of these 128
//! bits modulo the polynomial is the CRC register. Zeros before the first byte change nothing, so a
//! partial block is padded at its front.
//!
//! Principal types: [`Folding`], and the [`Width`] of its registers. [`whole`] and [`half`] do the
//! same work in registers of different widths.

#![allow(unsafe_code, reason = "wide loads, and functions that only some processors can carry out")]

pub(crate) mod castagnoli;
mod half;
mod whole;

use super::field::{DIVISOR, QUOTIENT, weights};
use crate::bth;
use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_and_si128, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_prefetch, _mm_set_epi32,
    _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128,
};

/// Bytes of one sum.
const WIDE: usize = 64;
/// Bytes that four sums take at once. For shorter packets folding is not worthwhile.
const STRIDE: usize = 4 * WIDE;
/// How many bytes ahead memory is prefetched.
const AHEAD: usize = 8 * STRIDE;

/// The width of the registers in which a processor multiplies polynomials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bytes: AVX2 and VPCLMULQDQ.
    Half,
    /// 64 bytes: AVX-512F and VPCLMULQDQ.
    Whole,
}

impl Width {
    /// The widths of this processor, the widest first.
    pub fn all() -> impl Iterator<Item = Width> {
        [Width::Whole, Width::Half].into_iter().filter(|width| width.is_there())
    }

    /// The widest width of this processor.
    #[inline]
    fn widest() -> Option<Width> {
        if Width::Whole.is_there() { Some(Width::Whole) } else { Width::Half.is_there().then_some(Width::Half) }
    }

    #[inline]
    fn is_there(self) -> bool {
        let wide = match self {
            Width::Half => std::arch::is_x86_feature_detected!("avx2"),
            Width::Whole => std::arch::is_x86_feature_detected!("avx512f"),
        };
        wide && std::arch::is_x86_feature_detected!("pclmulqdq") && std::arch::is_x86_feature_detected!("vpclmulqdq")
    }
}

/// The register after a packet, whose fifth byte counts as ones. `None`: this processor cannot
/// compute it in this way, or it would gain nothing.
#[inline]
pub(super) fn packet_through(register: u32, packet: &[u8]) -> Option<u32> {
    // SAFETY: the processor has the registers.
    unsafe { packet_through_in(Width::widest()?, register, packet) }
}

/// Like [`packet_through`], in registers of one width.
///
/// # Safety
/// The processor has registers of this width.
#[inline]
unsafe fn packet_through_in(width: Width, register: u32, packet: &[u8]) -> Option<u32> {
    // The bytes before the first whole sum must include the fifth byte. They must consist of words,
    // because a word is the smallest unit that is loaded.
    let odd = packet.len() % WIDE;
    let can = packet.len() >= WIDE + STRIDE && odd >= 8 && odd.is_multiple_of(4);
    // SAFETY: the processor has the registers, as the caller guarantees.
    can.then(|| unsafe {
        match width {
            Width::Half => half::packet_through(register, packet),
            Width::Whole => whole::packet_through(register, packet),
        }
    })
}

/// The CRC of a packet that is computed while its payload is copied, because the copying code has
/// each byte in a register anyway. The copy starts with four sums. They are all zeros except the
/// last 16 bytes of the last sum, which are [`Folding::LAST`]. For each [`Folding::STRIDE`] bytes,
/// the copy multiplies the sums by the weights and adds the bytes. At the end it stores the sums.
/// (With [`Width::Half`] there are two sums, which take half a stride at once.) This type provides
/// only the start values and the result.
///
/// A value of this type proves that the processor has registers of its width.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Folding {
    sums: [[u8; WIDE]; 4],
    weights: [[i64; 2]; 4],
    last: __m128i,
    width: Width,
}

impl Folding {
    /// Bytes that the four sums take at once.
    pub const STRIDE: usize = STRIDE;
    /// The offset where the copying code stores the sums: 64 bytes each, in the order of the bytes
    /// that they belong to.
    pub const SUMS: usize = std::mem::offset_of!(Folding, sums);
    /// The offset of the weights. Each 16 bytes hold the weight of the lower half and of the upper
    /// half of 16 bytes of a sum.
    pub const WEIGHTS: usize = std::mem::offset_of!(Folding, weights);
    /// The offset of the last 16 bytes of the last initial sum.
    pub const LAST: usize = std::mem::offset_of!(Folding, last);

    /// A value for the widest registers of this processor. `None`: no registers are wide enough.
    #[must_use]
    pub fn new() -> Option<Folding> {
        Width::widest().map(Folding::within)
    }

    /// A value for registers of this width.
    ///
    /// # Panics
    /// This processor has no such registers.
    #[must_use]
    pub fn of_width(width: Width) -> Folding {
        assert!(width.is_there(), "{width:?}: this processor has no such registers");
        Folding::within(width)
    }

    fn within(width: Width) -> Folding {
        let weights = match width {
            Width::Half => half::WEIGHTS,
            Width::Whole => whole::WEIGHTS,
        };
        Folding { sums: [[0; WIDE]; 4], weights: [weights; 4], last: low(0), width }
    }

    /// The width of the registers that the copying code must use.
    #[inline]
    #[must_use]
    pub fn width(&self) -> Width {
        self.width
    }

    /// Restarts with `head`, whose fifth byte counts as ones. All strides of the payload must
    /// follow, in one copy.
    #[inline]
    pub(super) fn begin(&mut self, register: u32, head: &[u8; bth::LEN]) {
        // The start looks like a previous stride whose bytes are zero except the last twelve: the
        // bytes of `head`, with ones as the fifth byte. `head` is read in words, because it has
        // just been written, and a load must not be wider than the recent stores.
        let word = |at| u32::from_le_bytes(std::array::from_fn(|index| head[at + index]));
        let [a, b, c] = [word(0) ^ register, word(4) | 0xff, word(8)].map(u32::cast_signed);
        self.last = words([0, a, b, c]);
    }

    /// The ICRC, after the last stride.
    #[inline]
    #[must_use]
    pub fn icrc(&self) -> [u8; 4] {
        // SAFETY: the processor has the registers, because otherwise no value of this type would
        // exist.
        let register = unsafe {
            match self.width {
                Width::Half => half::end_folding(&self.sums),
                Width::Whole => whole::end_folding(&self.sums),
            }
        };
        (!register).to_le_bytes()
    }
}

/// The register of 128 bits with no bits behind them.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn reduce(part: __m128i) -> u32 {
    // Reduces 128 bits to 96, then to 64, and divides those by the polynomial.
    let [shorten, shorter] = const { [weights(128)[1], weights(96)[1]] };
    let part = _mm_xor_si128(_mm_clmulepi64_si128(part, low(shorten), 0), _mm_srli_si128(part, 8));
    let part = _mm_xor_si128(_mm_clmulepi64_si128(word(part), low(shorter), 0), _mm_srli_si128(part, 4));
    let times = word(_mm_clmulepi64_si128(word(part), low(QUOTIENT), 0));
    let rest = _mm_xor_si128(part, _mm_clmulepi64_si128(times, low(DIVISOR), 0));
    _mm_extract_epi32(rest, 1).cast_unsigned()
}

#[inline]
fn low(number: i64) -> __m128i {
    // SAFETY: every processor of this kind has SSE2.
    unsafe { _mm_set_epi64x(0, number) }
}

#[inline]
fn words([a, b, c, d]: [i32; 4]) -> __m128i {
    // SAFETY: as above.
    unsafe { _mm_set_epi32(d, c, b, a) }
}

/// The lowest 32 bits.
#[inline]
#[target_feature(enable = "sse2")]
fn word(number: __m128i) -> __m128i {
    _mm_and_si128(number, words([-1, 0, 0, 0]))
}

/// Prefetches memory some strides ahead, perhaps of the next packet. The processor does not guess
/// the access across the start of a page.
#[inline]
#[target_feature(enable = "sse")]
fn fetch_ahead(stride: &[u8; STRIDE]) {
    for line in 0..STRIDE / WIDE {
        let ahead = stride.as_ptr().wrapping_add(AHEAD + line * WIDE).cast();
        #[allow(unused_unsafe, reason = "a safe function in newer releases than the oldest that builds this")]
        // SAFETY: a hint; the processor ignores an address that it cannot read.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::field::through;
    use super::*;

    /// Every length around those where the algorithm changes, from every alignment. A processor
    /// without the registers skips the test.
    #[test]
    fn packets_are_as_through_the_tables() {
        let bytes: Vec<u8> = (0..4500_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for width in Width::all() {
            for (index, len) in (0..1400).chain([2060, 2076, 4108, 4124, 4156, 4160]).enumerate() {
                let packet = &bytes[index % 70..][..len];
                for register in [0, 1, u32::MAX, 0xdebb_20e3] {
                    // SAFETY: the width is one of this processor's.
                    let found = unsafe { packet_through_in(width, register, packet) };
                    assert_eq!(
                        found.is_some(),
                        len >= 320 && len.is_multiple_of(4) && len % 64 >= 8,
                        "{len} bytes, {width:?}"
                    );
                    let mut covered = packet.to_vec();
                    if let Some(found) = found {
                        covered[4] = 0xff;
                        assert_eq!(found, through(register, &covered), "{len} bytes, {width:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_widest_available_implementation_is_chosen() {
        assert_eq!(Width::widest(), Width::all().next());
        let packet = [7; 1036];
        assert_eq!(packet_through(0, &packet).is_some(), Width::all().next().is_some());
    }

    #[test]
    fn the_numbers_that_everybody_uses() {
        assert_eq!(weights(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(weights(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!((QUOTIENT, DIVISOR), (0x1_f701_1641, 0x1_db71_0641));
    }
}
