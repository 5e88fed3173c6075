//! Converts `enum ibv_rate` to and from multiples of 2.5 Gbit/s and Mbit/s. Unknown rates give -1,
//! unknown speeds `IBV_RATE_MAX`.

use std::ffi::{c_int, c_uint};

/// `IBV_RATE_MAX`: only the port limits the rate.
const RATE_MAX: c_uint = 0;

/// (`enum ibv_rate`, the multiple of 2.5 Gbit/s if it is a whole number, Mbit/s on the wire).
const RATES: [(c_uint, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `ibv_rate_to_mult`.
pub(crate) extern "C" fn rate_to_mult(rate: c_uint) -> c_int {
    RATES.iter().find(|row| row.0 == rate).and_then(|row| row.1).unwrap_or(-1)
}

/// `mult_to_ibv_rate`.
pub(crate) extern "C" fn mult_to_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|row| row.1 == Some(mult)).map_or(RATE_MAX, |row| row.0)
}

/// `ibv_rate_to_mbps`.
pub(crate) extern "C" fn rate_to_mbps(rate: c_uint) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate`.
pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|row| row.2 == mbps).map_or(RATE_MAX, |row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_goes_there_and_back() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(rate_to_mbps(rate), mbps);
            assert_eq!(mbps_to_rate(mbps), rate);
            assert_eq!(abi::ah::rate_mbps(rate as u8), Some(mbps.cast_unsigned()), "as the device has it");
            assert_eq!(rate_to_mult(rate), mult.unwrap_or(-1));
            if let Some(mult) = mult {
                assert_eq!(mult_to_rate(mult), rate);
            }
        }
    }

    #[test]
    fn unknown_values_are_answered() {
        assert_eq!((rate_to_mult(1), rate_to_mbps(99)), (-1, -1));
        assert_eq!((mult_to_rate(3), mbps_to_rate(1)), (RATE_MAX, RATE_MAX));
    }
}
