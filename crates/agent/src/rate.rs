//! The rate of a link: its width and its speed per lane. It is configured, or follows from the
//! port's network interface. The principal type is [`Rate`].

use std::fmt;
use std::str::FromStr;

use abi::device::link_speed;
use serde::{Deserialize, Deserializer};
use wire::rate_code;

/// Width and speed per lane, with the codes of `QueryPortAnswer` (IBA 14.2.5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The code of the width.
    pub width: u8,
    /// The code of the speed per lane.
    pub speed: u8,
}

/// The names of widths, and their codes.
const WIDTHS: &[(&str, u8)] = &[("1X", 1), ("2X", 16), ("4X", 2), ("8X", 4), ("12X", 8)];
/// The names of speeds, and their codes.
const SPEEDS: &[(&str, u8)] =
    &[("SDR", 1), ("DDR", 2), ("QDR", 4), ("FDR10", 8), ("FDR", 16), ("EDR", 32), ("HDR", 64), ("NDR", 128)];

/// The rates of Ethernet links: a rate is used up to this many Mb/s. Linux chooses the same ones.
const ETHERNET: &[(u32, Rate)] = &[
    (1_000, Rate { width: 1, speed: 1 }),
    (10_000, Rate { width: 1, speed: 8 }),
    (20_000, Rate { width: 2, speed: 2 }),
    (25_000, Rate { width: 1, speed: 32 }),
    (40_000, Rate { width: 2, speed: 8 }),
    (100_000, Rate { width: 2, speed: 32 }),
    (200_000, Rate { width: 2, speed: 64 }),
];

impl Rate {
    /// 4X EDR, 100 Gb/s: for ports whose interface reports no speed, as loopback.
    pub const UNKNOWN: Self = Self { width: 2, speed: 32 };

    /// The rate of an Ethernet link with this many Mb/s; 0 if the speed is unknown.
    pub fn of_ethernet(mbps: u32) -> Self {
        if mbps == 0 {
            return Self::UNKNOWN;
        }
        ETHERNET.iter().find(|(most, _)| mbps <= *most).map_or(Self { width: 2, speed: 128 }, |(_, rate)| *rate)
    }

    /// The code of the static rate that is as fast as the link (`enum ibv_rate`).
    pub fn code(self) -> u8 {
        rate_code(link_speed(self.width, self.speed).map_or(0, |hundreds| (hundreds * 100) as u32))
    }
}

/// As in the kernel's file `rate`: `100 Gb/sec (4X EDR)`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |names: &[(&'static str, u8)], code| {
            names.iter().find(|(_, own)| *own == code).map_or("?", |(name, _)| *name)
        };
        let hundreds = link_speed(self.width, self.speed).unwrap_or_default();
        write!(f, "{}", hundreds / 10)?;
        if !hundreds.is_multiple_of(10) {
            write!(f, ".{}", hundreds % 10)?;
        }
        write!(f, " Gb/sec ({} {})", name(WIDTHS, self.width), name(SPEEDS, self.speed))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let code = |names: &[(&str, u8)], word: &str| {
            names.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, code)| *code)
        };
        let mut words = text.split_whitespace();
        let width = words.next().and_then(|word| code(WIDTHS, word));
        let speed = words.next().and_then(|word| code(SPEEDS, word));
        match (width, speed, words.next()) {
            (Some(width), Some(speed), None) => Ok(Self { width, speed }),
            _ => Err(format!(
                "{text:?} is not a rate; write a width (1X, 2X, 4X, 8X, 12X) and a speed (SDR, DDR, QDR, FDR10, FDR, \
                 EDR, HDR, NDR), such as \"4X EDR\""
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_parsed_as_it_is_shown() {
        for (width, _) in WIDTHS {
            for (speed, _) in SPEEDS {
                let rate: Rate = format!("{width} {speed}").parse().expect("a rate");
                assert!(rate.to_string().ends_with(&format!("Gb/sec ({width} {speed})")), "{rate}");
            }
        }
        assert_eq!("1x sdr".parse::<Rate>().expect("a rate").to_string(), "2.5 Gb/sec (1X SDR)");
        for text in ["", "4X", "EDR", "4X EDR 1", "3X EDR"] {
            assert!(text.parse::<Rate>().expect_err(text).contains("4X EDR"), "{text}");
        }
    }

    #[test]
    fn ethernet_links_have_the_rates_that_linux_gives_them() {
        for (mbps, rate) in [
            (0, "100 Gb/sec (4X EDR)"),
            (100, "2.5 Gb/sec (1X SDR)"),
            (1_000, "2.5 Gb/sec (1X SDR)"),
            (10_000, "10 Gb/sec (1X FDR10)"),
            (25_000, "25 Gb/sec (1X EDR)"),
            (40_000, "40 Gb/sec (4X FDR10)"),
            (100_000, "100 Gb/sec (4X EDR)"),
            (200_000, "200 Gb/sec (4X HDR)"),
            (400_000, "400 Gb/sec (4X NDR)"),
        ] {
            assert_eq!(Rate::of_ethernet(mbps).to_string(), rate, "{mbps} Mb/s");
        }
    }
}
