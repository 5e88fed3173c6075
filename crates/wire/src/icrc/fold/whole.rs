//! Folding in registers of 64 bytes, one for each sum. Narrower registers are in [`super::half`].
//! Principal functions: [`packet_through`], [`end_folding`].

use super::super::field::weights;
use super::{STRIDE, WIDE, fetch_ahead, reduce};
use std::arch::x86_64::{
    __m512i, _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_or_epi32,
    _mm512_mask_xor_epi64, _mm512_maskz_loadu_epi32, _mm512_maskz_set1_epi32, _mm512_set_epi64, _mm512_set1_epi32,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

/// The weights of folding during a copy, where four sums follow.
pub(super) const WEIGHTS: [i64; 2] = weights(8 * STRIDE as u32);

/// The register of four sums after a copied packet.
#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
pub(super) fn end_folding(sums: &[[u8; WIDE]; 4]) -> u32 {
    // Each 128 bits of the sums have a weight of their own, so that no multiplication waits for
    // another.
    let own = const { [own_weights(3), own_weights(2), own_weights(1)] };
    let [a, b, c, d] = sums;
    let sum = add(load(a), eight(own[0]), add(load(b), eight(own[1]), add(load(c), eight(own[2]), zero())));
    reduce_with(load(d), sum)
}

/// The weights of each 128 bits of a sum with `behind` other sums of 64 bytes behind it.
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

/// The register after a packet that is longer than a stride. The bytes before the first whole sum
/// include the fifth byte and consist of words.
#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
pub(super) fn packet_through(register: u32, packet: &[u8]) -> u32 {
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
    reduce_with(wides.iter().fold(sums[0], |sum, wide| add(sum, near, load(wide))), zero())
}

/// The bytes before the first whole sum, with zeros in front. The fifth byte counts as ones, and
/// the register is added to the first four bytes.
#[target_feature(enable = "avx512f")]
fn begin(register: u32, odd: &[u8]) -> __m512i {
    let zeros = 16 - odd.len() / 4;
    let from = odd.as_ptr().wrapping_add(odd.len()).wrapping_sub(WIDE);
    // SAFETY: the mask selects only the words that lie in `odd`, at its end.
    let words = unsafe { _mm512_maskz_loadu_epi32(0xffff << zeros, from.cast()) };
    let marked = _mm512_mask_or_epi32(words, 2 << zeros, words, _mm512_set1_epi32(0xff));
    _mm512_xor_si512(marked, _mm512_maskz_set1_epi32(1 << zeros, register.cast_signed()))
}

/// `next` plus `sum` times its weights.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn add(sum: __m512i, weights: __m512i, next: __m512i) -> __m512i {
    let (low, high) = (_mm512_clmulepi64_epi128(sum, weights, 0x00), _mm512_clmulepi64_epi128(sum, weights, 0x11));
    _mm512_ternarylogic_epi64(low, high, next, 0x96) // all three exclusive-ored
}

/// The register of these 64 bytes and of `more`, each of whose parts of 128 bits has no bits behind
/// it.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq,vpclmulqdq")]
fn reduce_with(sum: __m512i, more: __m512i) -> u32 {
    // The last part has no bits behind it.
    let [[a, b], [c, d], [e, f]] = const { [weights(384), weights(256), weights(128)] };
    let steps = _mm512_set_epi64(0, 0, f, e, d, c, b, a);
    let sum = add(sum, steps, _mm512_mask_xor_epi64(more, 0b1100_0000, more, sum));
    let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    reduce(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)))
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

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; WIDE]) -> __m512i {
    // SAFETY: 64 bytes can be read there; they need not be aligned.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
