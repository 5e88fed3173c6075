//! Whole packets through the CRC's register, 64 bytes at a time: for processors that multiply polynomials in registers of 64 bytes. All
//! others, and short packets, go through the tables and `crc32fast`, which uses such registers too, but only for more than 2048 bytes.
//!
//! 64 bytes that have D bits behind them weigh as much as other bytes, with none behind: the sum of the products of each half of their four
//! parts of 128 bits with a power of x. So they can be added to what stands D bits on. Four registers go over the bytes side by
//! side; in the end they are added to one, its four parts to one, and what is left of those 128 bits after division by the polynomial is
//! the CRC's register. Zeros before the first byte change nothing, so what is odd is filled up there.

#![allow(unsafe_code, reason = "wide loads, and a function that only some processors can carry out")]

use super::field::{DIVISOR, QUOTIENT, weights};
use crate::bth;
use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_and_si128, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_prefetch, _mm_set_epi32,
    _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256,
    _mm512_castsi512_si256, _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_inserti32x4,
    _mm512_loadu_si512, _mm512_mask_or_epi32, _mm512_mask_xor_epi64, _mm512_maskz_loadu_epi32, _mm512_maskz_set1_epi32,
    _mm512_set_epi64, _mm512_set1_epi32, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

/// Bytes of one register.
const WIDE: usize = 64;
/// What four registers take at once; shorter packets are not worth it.
const STRIDE: usize = 4 * WIDE;
/// So many bytes ahead memory is fetched.
const AHEAD: usize = 8 * STRIDE;

/// The register after a packet, with ones in the place of its fifth byte; or `None`: this processor cannot do it so, or it is no gain.
#[inline]
pub(super) fn packet_through(register: u32, packet: &[u8]) -> Option<u32> {
    // What fills no register has to have the fifth byte, and words are the smallest that is loaded.
    let odd = packet.len() % WIDE;
    let can = packet.len() >= WIDE + STRIDE && odd >= 8 && odd.is_multiple_of(4) && is_able();
    // SAFETY: the processor can do what the function needs.
    can.then(|| unsafe { wide_through(register, packet) })
}

/// A packet on its way through the register while its payload is copied: whoever copies has each byte in a register anyway. A copy of
/// [`Folding::STRIDE`] bytes multiplies the four sums by the weights, adds the bytes, and leaves the sums; this module says only how one begins
/// and what comes out.
///
/// That there is one says that the processor has AVX-512F and VPCLMULQDQ.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Folding {
    sums: [__m512i; 4],
    weights: __m512i,
}

impl Folding {
    /// Bytes that go through at once.
    pub const STRIDE: usize = STRIDE;
    /// Where the sums begin, as far as who copies needs to know: 64 bytes each, in the order of the bytes that they belong to.
    pub const SUMS: usize = std::mem::offset_of!(Folding, sums);
    /// Where the weights are: in each 16 bytes, of the lower half of a sum's 16 and of the upper one.
    pub const WEIGHTS: usize = std::mem::offset_of!(Folding, weights);

    /// Has gone over `head`, of which the fifth byte counts as ones; strides are to follow.
    pub(super) fn begin(register: u32, head: &[u8; bth::LEN]) -> Option<Folding> {
        // SAFETY: the processor can do what the function needs.
        is_able().then(|| unsafe { begin_folding(register, head) })
    }

    /// The register behind the last stride.
    pub(super) fn end(&self) -> u32 {
        // SAFETY: the processor can do it, or there would be no such value.
        unsafe { end_folding(self) }
    }
}

#[target_feature(enable = "avx512f")]
fn begin_folding(register: u32, head: &[u8; bth::LEN]) -> Folding {
    // As if a stride had come before, of which only the last twelve bytes are not zero: those of the head, with ones in the place of the fifth. By
    // words: so the head was written just now, and what is read at once must not be wider than what was written.
    let word = |at| i32::from_le_bytes(std::array::from_fn(|index| head[at + index]));
    let last = _mm_set_epi32(word(8), word(4) | 0xff, word(0) ^ register.cast_signed(), 0);
    let sums = [zero(), zero(), zero(), _mm512_inserti32x4::<3>(zero(), last)];
    Folding { sums, weights: four(const { weights(8 * STRIDE as u32) }) }
}

#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
fn end_folding(folding: &Folding) -> u32 {
    // Each 128 bits of the sums have a weight of their own, so that none has to wait for another.
    let own = const { [own_weights(3), own_weights(2), own_weights(1)] };
    let [a, b, c, d] = &folding.sums;
    let sum = add(*a, eight(own[0]), add(*b, eight(own[1]), add(*c, eight(own[2]), zero())));
    reduce_with(*d, sum)
}

/// Of each 128 bits of a sum that has `behind` others of 64 bytes behind it.
const fn own_weights(behind: u32) -> [i64; 8] {
    let bits = 8 * WIDE as u32 * behind;
    let [[a, b], [c, d], [e, f], [g, h]] =
        [weights(bits + 384), weights(bits + 256), weights(bits + 128), weights(bits)];
    [a, b, c, d, e, f, g, h]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn eight([a, b, c, d, e, f, g, h]: [i64; 8]) -> __m512i {
    _mm512_set_epi64(h, g, f, e, d, c, b, a)
}

/// Whether this processor can do it.
#[inline]
fn is_able() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("pclmulqdq")
        && std::arch::is_x86_feature_detected!("vpclmulqdq")
}

#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
fn wide_through(register: u32, packet: &[u8]) -> u32 {
    let (odd, rest) = packet.split_at(packet.len() % WIDE);
    let (strides, rest) = rest.as_chunks::<STRIDE>();
    let (wides, _) = rest.as_chunks::<WIDE>();
    let far = four(const { weights(8 * STRIDE as u32) });
    let near = four(const { weights(8 * WIDE as u32) });
    let mut sums = [begin(register, odd), zero(), zero(), zero()];
    if let Some((stride, strides)) = strides.split_first() {
        let [first, others @ ..] = parts(stride);
        sums = [add(sums[0], near, first), others[0], others[1], others[2]];
        for stride in strides {
            fetch_ahead(stride);
            for (sum, next) in sums.iter_mut().zip(parts(stride)) {
                *sum = add(*sum, far, next);
            }
        }
        for index in 1..4 {
            sums[0] = add(sums[0], near, sums[index]);
        }
    }
    reduce(wides.iter().fold(sums[0], |sum, wide| add(sum, near, load(wide))))
}

/// The first bytes, which fill no register, behind zeros; the fifth is ones, and the first four have the register added.
#[target_feature(enable = "avx512f")]
fn begin(register: u32, odd: &[u8]) -> __m512i {
    let zeros = 16 - odd.len() / 4;
    let from = odd.as_ptr().wrapping_add(odd.len()).wrapping_sub(WIDE);
    // SAFETY: only those words are read that lie in `odd`, at its end.
    let words = unsafe { _mm512_maskz_loadu_epi32(0xffff << zeros, from.cast()) };
    let marked = _mm512_mask_or_epi32(words, 2 << zeros, words, _mm512_set1_epi32(0xff));
    _mm512_xor_si512(marked, _mm512_maskz_set1_epi32(1 << zeros, register.cast_signed()))
}

/// `next`, and what `sum` weighs there.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn add(sum: __m512i, weights: __m512i, next: __m512i) -> __m512i {
    let (low, high) = (_mm512_clmulepi64_epi128(sum, weights, 0x00), _mm512_clmulepi64_epi128(sum, weights, 0x11));
    _mm512_ternarylogic_epi64(low, high, next, 0x96) // all three exclusive-ored
}

/// The register that these 64 bytes leave.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
fn reduce(sum: __m512i) -> u32 {
    reduce_with(sum, zero())
}

/// The same, with 128 bits in each part of `more` that have nothing behind them.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
fn reduce_with(sum: __m512i, more: __m512i) -> u32 {
    // The last part has nothing behind it.
    let [[a, b], [c, d], [e, f]] = const { [weights(384), weights(256), weights(128)] };
    let steps = _mm512_set_epi64(0, 0, f, e, d, c, b, a);
    let sum = add(sum, steps, _mm512_mask_xor_epi64(more, 0b1100_0000, more, sum));
    let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    let part = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    // 128 bits to 96, to 64, and those divided by the polynomial.
    let [shorten, shorter] = const { [weights(128)[1], weights(96)[1]] };
    let part = _mm_xor_si128(_mm_clmulepi64_si128(part, low(shorten), 0), _mm_srli_si128(part, 8));
    let part = _mm_xor_si128(_mm_clmulepi64_si128(word(part), low(shorter), 0), _mm_srli_si128(part, 4));
    let times = word(_mm_clmulepi64_si128(word(part), low(QUOTIENT), 0));
    let rest = _mm_xor_si128(part, _mm_clmulepi64_si128(times, low(DIVISOR), 0));
    _mm_extract_epi32(rest, 1).cast_unsigned()
}

#[inline]
#[target_feature(enable = "sse2")]
fn low(number: i64) -> __m128i {
    _mm_set_epi64x(0, number)
}

/// The lowest 32 bits.
#[inline]
#[target_feature(enable = "sse2")]
fn word(number: __m128i) -> __m128i {
    _mm_and_si128(number, _mm_set_epi32(0, 0, 0, -1))
}

/// The same weights for all four parts.
#[inline]
#[target_feature(enable = "avx512f")]
fn four([low, high]: [i64; 2]) -> __m512i {
    _mm512_set_epi64(high, low, high, low, high, low, high, low)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn zero() -> __m512i {
    _mm512_set1_epi32(0)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn parts(stride: &[u8; STRIDE]) -> [__m512i; 4] {
    let (wides, _) = stride.as_chunks::<WIDE>();
    [load(&wides[0]), load(&wides[1]), load(&wides[2]), load(&wides[3])]
}

/// Fetches what comes some strides later, perhaps of the next packet: where a page begins the processor does not guess it.
#[inline]
#[target_feature(enable = "sse")]
fn fetch_ahead(stride: &[u8; STRIDE]) {
    for line in 0..STRIDE / WIDE {
        _mm_prefetch::<_MM_HINT_T0>(stride.as_ptr().wrapping_add(AHEAD + line * WIDE).cast());
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; WIDE]) -> __m512i {
    // SAFETY: 64 bytes can be read there; they need not be aligned.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::super::field::through;
    use super::*;

    /// Every length around those at which something changes, from every alignment; on a processor that cannot, it is not done.
    #[test]
    fn packets_are_as_through_the_tables() {
        let bytes: Vec<u8> = (0..4500_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let able = packet_through(0, &bytes[..1036]).is_some();
        for (index, len) in (0..1400).chain([2060, 2076, 4108, 4124, 4156, 4160]).enumerate() {
            let packet = &bytes[index % 70..][..len];
            for register in [0, 1, u32::MAX, 0xdebb_20e3] {
                let found = packet_through(register, packet);
                assert_eq!(
                    found.is_some(),
                    able && len >= 320 && len.is_multiple_of(4) && len % 64 >= 8,
                    "{len} bytes"
                );
                let mut covered = packet.to_vec();
                if let Some(found) = found {
                    covered[4] = 0xff;
                    assert_eq!(found, through(register, &covered), "{len} bytes");
                }
            }
        }
    }

    #[test]
    fn the_numbers_that_everybody_uses() {
        assert_eq!(weights(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(weights(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!((QUOTIENT, DIVISOR), (0x1_f701_1641, 0x1_db71_0641));
    }
}
