//! The receiver-not-ready timer codes: a 5-bit code is the time after which the requester may
//! retry. Not the timer itself. IBA 9.7.5.2.8. Principal function: [`nanoseconds`].

/// Hundredths of a millisecond per code; code 0 is the longest.
const TABLE: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The time of `code` (its low five bits), in nanoseconds.
#[must_use]
pub const fn nanoseconds(code: u8) -> u64 {
    TABLE[(code & 0x1f) as usize] as u64 * 10_000
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn codes_stand_for_the_times_of_the_specification() {
        assert_eq!(nanoseconds(0), 655_360_000);
        assert_eq!(nanoseconds(1), 10_000);
        assert_eq!(nanoseconds(12), 640_000);
        assert_eq!(nanoseconds(31), 491_520_000);
        assert!((2..32).all(|code| nanoseconds(code) > nanoseconds(code - 1)));
    }
}
