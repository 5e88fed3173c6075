//! Static rates: how fast a sender may send on a path. Not the rates of links.
//! IBA 9.11 and table 224. The functions are [`rate_mbps`] and [`rate_code`].

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

/// The code of the fastest static rate that a link of this many Mbit/s carries; 0 if it carries
/// none. Links are named by the data that they carry, and static rates from FDR on by the signals
/// on the line, which are up to 6.25 % more.
#[must_use]
pub fn rate_code(link_mbps: u32) -> u8 {
    let most = u64::from(link_mbps) * 107 / 100;
    let codes = (2..).zip(&RATES[2..]).filter(|(_, mbps)| u64::from(**mbps) <= most);
    codes.max_by_key(|(_, mbps)| **mbps).map_or(0, |(code, _)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_rate_is_a_code_of_the_verbs_or_nothing() {
        assert_eq!([0, 2, 16, 24].map(rate_mbps), [Some(0), Some(2_500), Some(103_125), Some(1_275_000)]);
        assert_eq!([1, 25, 255].map(rate_mbps), [None; 3]);
    }

    #[test]
    fn links_have_the_code_of_their_name() {
        // `enum ibv_rate`: the name in Gbit/s, and the code.
        let named = [
            (5, 5),
            (10, 3),
            (14, 11),
            (20, 6),
            (25, 15),
            (28, 19),
            (30, 4),
            (40, 7),
            (50, 20),
            (56, 12),
            (60, 8),
            (80, 9),
            (100, 16),
            (112, 13),
            (120, 10),
            (168, 14),
            (200, 17),
            (300, 18),
            (400, 21),
            (600, 22),
            (800, 23),
            (1200, 24),
        ];
        for (gbps, code) in named {
            assert_eq!(rate_code(gbps * 1000), code, "{gbps} Gbit/s");
        }
        assert_eq!((rate_code(2_500), rate_code(1_000), rate_code(0), rate_code(u32::MAX)), (2, 0, 0, 24));
    }
}
