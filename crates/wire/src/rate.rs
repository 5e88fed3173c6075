//! Static rates: how fast a sender may send on a path. Not the rates of links.
//! IBA 9.11 and table 224. The function is [`rate_mbps`].

/// Rates by their codes, in Mbit/s; 0 is as fast as the port.
const RATES: [u32; 25] = [
    0, 0, 2_500, 10_000, 30_000, 5_000, 20_000, 40_000, 60_000, 80_000, 120_000, 14_062, 56_250, 112_500, 168_750,
    25_781, 103_125, 206_250, 309_375, 28_125, 53_125, 425_000, 637_500, 850_000, 1_275_000,
];

/// The value of a static rate in Mbit/s: 0 for "as fast as the port", `None` for an unknown code.
#[must_use]
pub fn rate_mbps(code: u8) -> Option<u32> {
    RATES.get(usize::from(code)).copied().filter(|&mbps| mbps != 0 || code == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_rate_is_a_code_of_the_verbs_or_nothing() {
        assert_eq!([0, 2, 16, 24].map(rate_mbps), [Some(0), Some(2_500), Some(103_125), Some(1_275_000)]);
        assert_eq!([1, 25, 255].map(rate_mbps), [None; 3]);
    }
}
