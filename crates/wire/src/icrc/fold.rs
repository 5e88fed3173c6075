//! Whole packets through the CRC's register, 64 bytes at a time: for processors that multiply polynomials in wide registers. All others,
//! and short packets, go through the tables and `crc32fast`.
//!
//! 64 bytes that have D bits behind them weigh as much as other bytes, with none behind: the sum of the products of each half of their four
//! parts of 128 bits with a power of x. So they can be added to what stands D bits on. Four sums of 64 bytes go over the bytes side by
//! side; in the end they are added to one, its four parts to one, and what is left of those 128 bits after division by the polynomial is
//! the CRC's register. Zeros before the first byte change nothing, so what is odd is filled up there.
//!
//! Principal types: [`Folding`], and the [`Width`] of the registers that it is done in. [`whole`] and [`half`] do the same in different ones.

#![allow(unsafe_code, reason = "wide loads, and functions that only some processors can carry out")]

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
/// What four sums take at once; shorter packets are not worth it.
const STRIDE: usize = 4 * WIDE;
/// So many bytes ahead memory is fetched.
const AHEAD: usize = 8 * STRIDE;

/// The registers in which a processor multiplies polynomials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Of 32 bytes: AVX2 and VPCLMULQDQ.
    Half,
    /// Of 64 bytes: AVX-512F and VPCLMULQDQ.
    Whole,
}

impl Width {
    /// Those of this processor, the widest first.
    pub fn all() -> impl Iterator<Item = Width> {
        [Width::Whole, Width::Half].into_iter().filter(|width| width.is_there())
    }

    /// The widest of this processor.
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

/// The register after a packet, with ones in the place of its fifth byte; or `None`: this processor cannot do it so, or it is no gain.
#[inline]
pub(super) fn packet_through(register: u32, packet: &[u8]) -> Option<u32> {
    // SAFETY: the processor has the registers.
    unsafe { packet_through_in(Width::widest()?, register, packet) }
}

/// The same in registers of one width.
///
/// # Safety
/// The processor has them.
#[inline]
unsafe fn packet_through_in(width: Width, register: u32, packet: &[u8]) -> Option<u32> {
    // What fills no sum has to have the fifth byte, and words are the smallest that is loaded.
    let odd = packet.len() % WIDE;
    let can = packet.len() >= WIDE + STRIDE && odd >= 8 && odd.is_multiple_of(4);
    // SAFETY: the processor has the registers, as the caller vouches for.
    can.then(|| unsafe {
        match width {
            Width::Half => half::packet_through(register, packet),
            Width::Whole => whole::packet_through(register, packet),
        }
    })
}

/// A packet on its way through the register while its payload is copied: whoever copies has each byte in a register anyway. The copy begins with four
/// sums, all zeros but for the last 16 bytes, which are [`Folding::LAST`]. Of each [`Folding::STRIDE`] bytes it multiplies the sums by the weights and
/// adds the bytes; then it leaves the sums. (In registers of [`Width::Half`] there are two sums, which take half a stride at once.) This module says only
/// how one begins and what comes out.
///
/// That there is one says that the processor has registers of its width.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Folding {
    sums: [[u8; WIDE]; 4],
    weights: [[i64; 2]; 4],
    last: __m128i,
    width: Width,
}

impl Folding {
    /// Bytes that go through at once.
    pub const STRIDE: usize = STRIDE;
    /// Where the sums go, as far as who copies needs to know: 64 bytes each, in the order of the bytes that they belong to.
    pub const SUMS: usize = std::mem::offset_of!(Folding, sums);
    /// Where the weights are: in each 16 bytes, of the lower half of a sum's 16 and of the upper one.
    pub const WEIGHTS: usize = std::mem::offset_of!(Folding, weights);
    /// Where the last 16 bytes are that a sum begins with.
    pub const LAST: usize = std::mem::offset_of!(Folding, last);

    /// One in the widest registers of this processor; `None`: it has none that are wide enough.
    #[must_use]
    pub fn new() -> Option<Folding> {
        Width::widest().map(Folding::within)
    }

    /// One in registers of this width.
    ///
    /// # Panics
    /// This processor has none such.
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

    /// The registers that whoever copies is to do it in.
    #[inline]
    #[must_use]
    pub fn width(&self) -> Width {
        self.width
    }

    /// Begins anew, and has gone over `head`, of which the fifth byte counts as ones; all strides of the payload are to follow, in one copy.
    #[inline]
    pub(super) fn begin(&mut self, register: u32, head: &[u8; bth::LEN]) {
        // As if a stride had come before, of which only the last twelve bytes are not zero: those of the head, with ones in the place of the
        // fifth. By words: so the head was written just now, and what is read at once must not be wider than what was written.
        let word = |at| u32::from_le_bytes(std::array::from_fn(|index| head[at + index]));
        let [a, b, c] = [word(0) ^ register, word(4) | 0xff, word(8)].map(u32::cast_signed);
        self.last = words([0, a, b, c]);
    }

    /// The ICRC, behind the last stride.
    #[inline]
    #[must_use]
    pub fn icrc(&self) -> [u8; 4] {
        // SAFETY: the processor has the registers, or there would be no such value.
        let register = unsafe {
            match self.width {
                Width::Half => half::end_folding(&self.sums),
                Width::Whole => whole::end_folding(&self.sums),
            }
        };
        (!register).to_le_bytes()
    }
}

/// The register that 128 bits leave which have nothing behind them.
#[inline]
#[target_feature(enable = "sse4.1,pclmulqdq")]
fn reduce(part: __m128i) -> u32 {
    // 128 bits to 96, to 64, and those divided by the polynomial.
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

/// Fetches what comes some strides later, perhaps of the next packet: where a page begins the processor does not guess it.
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

    /// Every length around those at which something changes, from every alignment; on a processor that cannot, it is not done.
    #[test]
    fn packets_are_as_through_the_tables() {
        let bytes: Vec<u8> = (0..4500_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for width in Width::all() {
            for (index, len) in (0..1400).chain([2060, 2076, 4108, 4124, 4156, 4160]).enumerate() {
                let packet = &bytes[index % 70..][..len];
                for register in [0, 1, u32::MAX, 0xdebb_20e3] {
                    // SAFETY: it is one of this processor's.
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
    fn what_is_chosen_is_the_widest() {
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
