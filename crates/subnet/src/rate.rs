//! Widths, speeds and MTUs of links, with the codes of the wire, and the time that bytes take. Not
//! the choice between them, which is training ([`crate::fabric`]). Principal types: [`Rate`],
//! [`Mtu`].

use std::fmt;

/// Time in picoseconds. A byte at the highest rate takes about 7 of them, and 63 bits last for 100
/// days; times beyond that are not supported.
pub type Time = u64;

/// One microsecond.
pub const MICROSECOND: Time = 1_000_000;

/// A time code of the IBA, 5 bits: 4.096 µs × 2^`code`.
#[must_use]
pub const fn coded_time(code: u8) -> Time {
    (4096 * MICROSECOND / 1000) << (code & 31)
}

/// How many lanes a link has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the number is the name")]
pub enum Width {
    X1,
    X2,
    #[default]
    X4,
    X8,
    X12,
}

/// The speed of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speed {
    /// 2.5 Gb/s.
    Sdr,
    /// 5 Gb/s.
    Ddr,
    /// 10 Gb/s.
    Qdr,
    /// 14.0625 Gb/s.
    Fdr,
    /// 25.78125 Gb/s.
    #[default]
    Edr,
    /// 53.125 Gb/s, of which FEC takes a part.
    Hdr,
    /// 106.25 Gb/s, of which FEC takes a part.
    Ndr,
}

/// Width × speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// The number of lanes.
    pub width: Width,
    /// The speed of each lane.
    pub speed: Speed,
}

/// A set of widths or of speeds: the codes of the wire, added.
pub type Codes = u8;

impl Width {
    /// All widths, narrowest first.
    pub const ALL: [Width; 5] = [Width::X1, Width::X2, Width::X4, Width::X8, Width::X12];

    /// The code of the wire: one bit, so that codes can be added.
    #[must_use]
    pub const fn code(self) -> Codes {
        match self {
            Width::X1 => 1,
            Width::X4 => 2,
            Width::X8 => 4,
            Width::X12 => 8,
            Width::X2 => 16,
        }
    }

    /// The number of lanes.
    #[must_use]
    pub const fn lanes(self) -> u64 {
        match self {
            Width::X1 => 1,
            Width::X2 => 2,
            Width::X4 => 4,
            Width::X8 => 8,
            Width::X12 => 12,
        }
    }

    /// The widest width in a set.
    #[must_use]
    pub fn widest(codes: Codes) -> Option<Width> {
        Width::ALL.into_iter().rev().find(|width| width.code() & codes != 0)
    }
}

impl Speed {
    /// All speeds, slowest first.
    pub const ALL: [Speed; 7] = [Speed::Sdr, Speed::Ddr, Speed::Qdr, Speed::Fdr, Speed::Edr, Speed::Hdr, Speed::Ndr];

    /// One bit for each speed. The low three bits are the codes of PortInfo's speed fields; the
    /// bits above are those of the extended fields, shifted by three.
    #[must_use]
    pub const fn code(self) -> Codes {
        1 << self as u8
    }

    /// The fastest speed in a set.
    #[must_use]
    pub fn fastest(codes: Codes) -> Option<Speed> {
        Speed::ALL.into_iter().rev().find(|speed| speed.code() & codes != 0)
    }

    /// Mb/s of data on one lane, without the line code: 8b/10b up to QDR, 64b/66b above. HDR and
    /// NDR count with the rates that their names promise.
    const fn data_rate(self) -> u64 {
        match self {
            Speed::Sdr => 2_000,
            Speed::Ddr => 4_000,
            Speed::Qdr => 8_000,
            Speed::Fdr => 13_636,
            Speed::Edr => 25_000,
            Speed::Hdr => 50_000,
            Speed::Ndr => 100_000,
        }
    }

    /// 1/10 Gb/s of one lane, as tools print a rate.
    const fn nominal(self) -> u64 {
        match self {
            Speed::Sdr => 25,
            Speed::Ddr => 50,
            Speed::Qdr => 100,
            Speed::Fdr => 140,
            Speed::Edr => 250,
            Speed::Hdr => 500,
            Speed::Ndr => 1000,
        }
    }
}

impl Rate {
    /// The time of a symbol: a byte on one lane. IBA 16.1.3.2 counts ticks in it.
    #[must_use]
    pub const fn symbol(self) -> Time {
        8_000_000 / self.speed.data_rate()
    }

    /// Mb/s of data.
    #[must_use]
    pub const fn megabits(self) -> u64 {
        self.width.lanes() * self.speed.data_rate()
    }

    /// How long these bytes take on the link.
    #[must_use]
    pub const fn time_of(self, bytes: usize) -> Time {
        (bytes as u64 * 8 * 1_000_000).div_ceil(self.megabits())
    }

    /// The longest time between two flow-control packets of one VL: 65,536 symbol times. A symbol
    /// carries one byte of a lane.
    #[must_use]
    pub const fn refresh(self) -> Time {
        65_536 * 8 * 1_000_000 / self.speed.data_rate()
    }

    /// The number of tenths of Gb/s that tools print.
    #[must_use]
    pub const fn tenths(self) -> u64 {
        self.width.lanes() * self.speed.nominal()
    }

    /// The rate code of path records and address vectors.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self.tenths() {
            25 => 2,
            50 => 5,
            100 => 3,
            140 => 11,
            200 => 6,
            250 => 15,
            280 => 19,
            300 => 4,
            400 => 7,
            500 => 20,
            560 => 12,
            600 => 8,
            800 => 9,
            1000 => 16,
            1120 => 13,
            1200 => 10,
            1680 => 14,
            2000 => 17,
            3000 => 18,
            4000 => 21,
            6000 => 22,
            8000 => 23,
            12000 => 24,
            _ => 0,
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenth) = (self.tenths() / 10, self.tenths() % 10);
        write!(f, "{whole}")?;
        if tenth != 0 {
            write!(f, ".{tenth}")?;
        }
        let speed = ["SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR"][self.speed as usize];
        write!(f, " Gb/sec ({}X {speed})", self.width.lanes())
    }
}

/// The longest payload of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the number is the name")]
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    B1024 = 3,
    B2048 = 4,
    #[default]
    B4096 = 5,
}

impl Mtu {
    /// The MTU with this code of the wire.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Mtu> {
        Some(match code {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return None,
        })
    }

    /// Bytes of payload.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// Bytes of the longest packet, from its LRH to its ICRC: 124 bytes of headers and the ICRC
    /// may come in addition to the payload.
    #[must_use]
    pub const fn longest_packet(self) -> usize {
        self.bytes() + 124
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l05_rates_are_width_times_speed() {
        let rate = |width, speed| Rate { width, speed };
        assert_eq!(rate(Width::X1, Speed::Sdr).to_string(), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(Width::X4, Speed::Fdr).to_string(), "56 Gb/sec (4X FDR)");
        assert_eq!(rate(Width::X12, Speed::Qdr).to_string(), "120 Gb/sec (12X QDR)");
        assert_eq!(rate(Width::X4, Speed::Edr).to_string(), "100 Gb/sec (4X EDR)");
        for width in Width::ALL {
            for speed in Speed::ALL {
                assert!(Rate { width, speed }.code() != 0, "every rate has a code of path records");
            }
        }
    }

    #[test]
    fn l05_bytes_take_the_time_of_the_rate() {
        let edr = Rate::default();
        assert_eq!(edr.time_of(1), 80);
        assert_eq!(edr.time_of(4096), 4096 * 80);
        assert_eq!(Rate { width: Width::X1, speed: Speed::Sdr }.time_of(1), 4_000);
        assert_eq!(Rate { width: Width::X1, speed: Speed::Sdr }.refresh(), 65_536 * 4_000);
    }

    #[test]
    fn the_best_of_a_set_is_found() {
        assert_eq!(Width::widest(1 | 2 | 16), Some(Width::X4));
        assert_eq!(Width::widest(0), None);
        assert_eq!(Speed::fastest(7), Some(Speed::Qdr));
        assert_eq!(Speed::fastest(Speed::Fdr.code() | 1), Some(Speed::Fdr));
    }

    #[test]
    fn codes_of_mtus_are_those_of_the_wire() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(Mtu::from_code(code).map(Mtu::bytes), Some(bytes));
        }
        assert_eq!([Mtu::from_code(0), Mtu::from_code(6)], [None; 2]);
        assert_eq!(coded_time(1), 8_192_000);
    }
}
