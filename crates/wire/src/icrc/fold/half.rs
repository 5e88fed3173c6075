//! Folding in registers of 32 bytes, two for each sum, for processors without AVX-512, or with
//! AVX-512 switched off by their makers. Folding during a copy uses two sums: four registers keep
//! the multiplier of such a processor busy, and more registers would only have to be added up in
//! the end. Wider registers are in [`super::whole`]. Principal functions: [`packet_through`],
//! [`end_folding`].

use super::super::field::weights;
use super::{STRIDE, WIDE, fetch_ahead, reduce};
use std::arch::x86_64::{
    __m256i, _mm_xor_si128, _mm256_and_si256, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_maskload_epi32, _mm256_or_si256, _mm256_set_epi64x,
    _mm256_set1_epi32, _mm256_xor_si256,
};

/// Bytes of a register.
pub(super) const HALF: usize = WIDE / 2;
/// Registers of four sums.
const COUNT: usize = STRIDE / HALF;
/// Registers that fold during a copy.
const FOLDED: usize = COUNT / 2;

/// The weights of folding during a copy, where two sums follow.
pub(super) const WEIGHTS: [i64; 2] = weights(8 * (FOLDED * HALF) as u32);

/// The register of the first two sums after a copied packet.
#[target_feature(enable = "avx2,pclmulqdq,vpclmulqdq")]
pub(super) fn end_folding(sums: &[[u8; WIDE]; 4]) -> u32 {
    // Each 128 bits of the sums have a weight of their own, so that no multiplication waits for
    // another. The last register is left.
    let (halves, _) = sums.as_flattened().as_chunks::<HALF>();
    let own = const { own_weights() };
    let mut sum = zero();
    for (half, own) in halves.iter().zip(own) {
        sum = add(load(half), pair(own), sum);
    }
    reduce_with(load(&halves[FOLDED - 1]), sum)
}

/// The weights of each 128 bits in all registers except the last.
const fn own_weights() -> [[i64; 4]; FOLDED - 1] {
    let mut own = [[0; 4]; FOLDED - 1];
    let mut index = 0;
    while index < FOLDED - 1 {
        let behind = 8 * HALF as u32 * (FOLDED - 1 - index) as u32;
        let [[a, b], [c, d]] = [weights(behind + 128), weights(behind)];
        own[index] = [a, b, c, d];
        index += 1;
    }
    own
}

/// The register after a packet that is longer than a stride. The bytes before the first whole sum
/// include the fifth byte and consist of words.
#[target_feature(enable = "avx2,pclmulqdq,vpclmulqdq")]
pub(super) fn packet_through(register: u32, packet: &[u8]) -> u32 {
    let (odd, rest) = packet.split_at(packet.len() % WIDE);
    let (strides, rest) = rest.as_chunks::<STRIDE>();
    let (wides, _) = rest.as_chunks::<WIDE>();
    let far = both(const { weights(8 * STRIDE as u32) });
    let near = both(const { weights(8 * WIDE as u32) });
    let mut sum = begin(register, odd);
    if let Some((stride, strides)) = strides.split_first() {
        let mut sums = parts(stride);
        (sums[0], sums[1]) = (add(sum[0], near, sums[0]), add(sum[1], near, sums[1]));
        for stride in strides {
            fetch_ahead(stride);
            for (sum, next) in sums.iter_mut().zip(parts(stride)) {
                *sum = add(*sum, far, next);
            }
        }
        sum = [sums[0], sums[1]];
        for next in sums[2..].as_chunks::<2>().0 {
            sum = [add(sum[0], near, next[0]), add(sum[1], near, next[1])];
        }
    }
    for wide in wides {
        let (halves, _) = wide.as_chunks::<HALF>();
        sum = [add(sum[0], near, load(&halves[0])), add(sum[1], near, load(&halves[1]))];
    }
    let [[a, b], [c, d]] = const { [weights(384), weights(256)] };
    reduce_with(sum[1], add(sum[0], pair([a, b, c, d]), zero()))
}

/// Words of zeros in the first half and of ones in the second. Read from a later index, the ones
/// begin earlier.
static BEHIND: [i32; 32] = marked(16);
/// The same, but only the first word of the second half is all ones.
static FIRST: [i32; 32] = marked(1);

const fn marked(count: usize) -> [i32; 32] {
    let mut words = [0; 32];
    let mut index = 16;
    while index < 16 + count {
        words[index] = -1;
        index += 1;
    }
    words
}

/// The bytes before the first whole sum, with zeros in front. The fifth byte counts as ones, and
/// the register is added to the first four bytes.
#[target_feature(enable = "avx2")]
fn begin(register: u32, odd: &[u8]) -> [__m256i; 2] {
    let zeros = 16 - odd.len() / 4;
    let from = odd.as_ptr().wrapping_add(odd.len()).wrapping_sub(WIDE);
    std::array::from_fn(|half| {
        let at = 16 - zeros + 8 * half;
        let (behind, first, second) = (eight(&BEHIND, at), eight(&FIRST, at), eight(&FIRST, at - 1));
        // SAFETY: the mask selects only the words that lie in `odd`, at its end.
        let words = unsafe { _mm256_maskload_epi32(from.wrapping_add(HALF * half).cast(), behind) };
        let marked = _mm256_or_si256(words, _mm256_and_si256(second, _mm256_set1_epi32(0xff)));
        _mm256_xor_si256(marked, _mm256_and_si256(first, _mm256_set1_epi32(register.cast_signed())))
    })
}

/// Eight words from `at` on.
#[inline]
#[target_feature(enable = "avx2")]
fn eight(words: &[i32; 32], at: usize) -> __m256i {
    let words = &words[at..at + 8];
    // SAFETY: 32 bytes can be read there; they need not be aligned.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// `next` plus `sum` times its weights.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
pub(super) fn add(sum: __m256i, weights: __m256i, next: __m256i) -> __m256i {
    let (low, high) = (_mm256_clmulepi64_epi128(sum, weights, 0x00), _mm256_clmulepi64_epi128(sum, weights, 0x11));
    _mm256_xor_si256(_mm256_xor_si256(low, next), high)
}

/// The register of these 32 bytes and of `more`, each of whose parts of 128 bits has no bits behind
/// it.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq,vpclmulqdq")]
fn reduce_with(last: __m256i, more: __m256i) -> u32 {
    // The upper part has no bits behind it.
    let [a, b] = const { weights(128) };
    let sum = add(last, pair([a, b, 0, 0]), more);
    let upper = _mm_xor_si128(_mm256_extracti128_si256(sum, 1), _mm256_extracti128_si256(last, 1));
    reduce(_mm_xor_si128(_mm256_castsi256_si128(sum), upper))
}

/// The same weights for both parts.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn both([low, high]: [i64; 2]) -> __m256i {
    pair([low, high, low, high])
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn pair([a, b, c, d]: [i64; 4]) -> __m256i {
    _mm256_set_epi64x(d, c, b, a)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn zero() -> __m256i {
    _mm256_set1_epi32(0)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn parts(stride: &[u8; STRIDE]) -> [__m256i; COUNT] {
    // No closure: `array::from_fn` does not have these features, so it would call it.
    let (halves, _) = stride.as_chunks::<HALF>();
    [
        load(&halves[0]),
        load(&halves[1]),
        load(&halves[2]),
        load(&halves[3]),
        load(&halves[4]),
        load(&halves[5]),
        load(&halves[6]),
        load(&halves[7]),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; HALF]) -> __m256i {
    // SAFETY: 32 bytes can be read there; they need not be aligned.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
