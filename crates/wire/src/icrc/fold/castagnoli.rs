//! Folding for CRC32C, the CRC of iWARP, in registers of 32 bytes. The polynomial differs from that
//! of the ICRC, so the weights differ as well. Adds to [`Folding`]. Principal function: [`fold`].

use super::super::field::weights_modulo;
use super::half::{HALF, add, both, pair, parts, zero};
use super::{Folding, STRIDE, Width, fetch_ahead, words};
use std::arch::x86_64::{
    _mm_extract_epi64, _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256,
};

/// Castagnoli's polynomial, bit-reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Bytes that contribute the same to the CRC as all bytes that were folded.
const LEN: usize = 16;

/// Folds the whole strides at the beginning of `bytes`. If the register is 0 before the bytes that
/// this returns, then it is the same behind them as behind the strides, before which it is
/// `register`. Returns also the bytes that are left. `None`: there is no stride, or this processor
/// cannot fold.
#[inline]
pub(crate) fn fold(register: u32, bytes: &[u8]) -> Option<([u8; LEN], &[u8])> {
    let (strides, rest) = bytes.as_chunks::<STRIDE>();
    if !Width::Half.is_there() {
        return None;
    }
    let (first, strides) = strides.split_first()?;
    // SAFETY: the processor has the registers.
    Some((unsafe { fold_strides(register, first, strides) }, rest))
}

/// CRC32C while copying.
impl Folding {
    /// The shortest beginning.
    const HEAD: usize = 16;

    /// A value for CRC32C and registers of this width.
    ///
    /// # Panics
    /// This processor has no such registers.
    #[must_use]
    pub fn of_crc32c(width: Width) -> Folding {
        let weights = match width {
            Width::Half => const { weights_modulo(POLYNOMIAL, 8 * STRIDE as u32 / 2) },
            Width::Whole => const { weights_modulo(POLYNOMIAL, 8 * STRIDE as u32) },
        };
        Folding { weights: [weights; 4], ..Folding::of_width(width) }
    }

    /// Restarts behind these bytes. One copy of whole strides must follow.
    ///
    /// # Panics
    /// There are fewer than 16 bytes.
    pub fn begin_crc32c(&mut self, bytes: &[u8]) {
        let (before, head) = bytes.split_last_chunk::<{ Self::HEAD }>().expect("16 bytes");
        // The copy begins as if a stride of zeros were before it that ends with `head`, to whose
        // first four bytes the register is added.
        let word = |at: usize| i32::from_le_bytes(std::array::from_fn(|index| head[at + index]));
        let register = !crc32c::crc32c(before);
        self.last = words([word(0) ^ register.cast_signed(), word(4), word(8), word(12)]);
    }

    /// The CRC of the bytes before the copy, of the copied bytes, and of `rest`.
    #[must_use]
    pub fn crc32c(&self, rest: &[u8]) -> u32 {
        let sums = match self.width {
            Width::Half => &self.sums.as_flattened()[..STRIDE / 2],
            Width::Whole => self.sums.as_flattened(),
        };
        // The sums contribute the same as all bytes before them, with a register of 0.
        crc32c::crc32c_append(crc32c::crc32c_append(!0, sums), rest)
    }
}

#[target_feature(enable = "avx2,pclmulqdq,vpclmulqdq")]
fn fold_strides(register: u32, first: &[u8; STRIDE], strides: &[[u8; STRIDE]]) -> [u8; LEN] {
    let far = both(const { weights_modulo(POLYNOMIAL, 8 * STRIDE as u32) });
    let near = both(const { weights_modulo(POLYNOMIAL, 8 * HALF as u32) });
    let mut sums = parts(first);
    // The register is added to the first four bytes.
    sums[0] = _mm256_xor_si256(sums[0], pair([register.into(), 0, 0, 0]));
    for stride in strides {
        fetch_ahead(stride);
        for (sum, next) in sums.iter_mut().zip(parts(stride)) {
            *sum = add(*sum, far, next);
        }
    }
    let mut sum = sums[0];
    for next in &sums[1..] {
        sum = add(sum, near, *next);
    }
    // The lower part has the upper one behind it.
    let [a, b] = const { weights_modulo(POLYNOMIAL, 8 * LEN as u32) };
    let lower = _mm256_castsi256_si128(add(sum, pair([a, b, 0, 0]), zero()));
    let folded = _mm_xor_si128(lower, _mm256_extracti128_si256(sum, 1));
    let (low, high) = (_mm_extract_epi64(folded, 0) as u64, _mm_extract_epi64(folded, 1) as u64);
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
