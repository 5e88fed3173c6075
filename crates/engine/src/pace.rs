//! Rate limits of a QP: the program's limit (`ibv_modify_qp`, `ibv_modify_qp_rate_limit`), and the
//! static rate of a path that is slower than the port.
//!
//! A packet may be sent when the sending time of the packets before it is over, or nearly over.
//! This is a time budget without a timer of its own. A QP that must wait is checked again by the
//! timers; meanwhile it answers its peer and accepts requests. Only the send queue is limited, and
//! responses to a peer's READs are not. A retransmission leaves at once and is charged to the
//! budget: otherwise the QP could fail because of a packet that was never sent. The limit holds on
//! lanes as on the wire. A QP without a limit has no [`Pace`]. Principal type: [`Pace`].

mod sends;

use abi::ah::rate_mbps;
use abi::qp::RATE_LIMIT_MAX;
use protocol::Time;

/// The rate limit that a program sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// In kbit/s, from [`abi::qp::RATE_LIMIT_MIN`] to [`RATE_LIMIT_MAX`]; 0 means no limit.
    pub kbps: u32,
    /// The largest burst in bytes; 0 lets the engine choose.
    pub burst: u32,
}

/// Bytes around the payload of a packet on Ethernet: Ethernet header and checksum, IPv4, UDP, BTH
/// and ICRC.
const AROUND: u32 = 62;
/// The default burst in nanoseconds of sending time. A sleeping thread may wake about this late.
const SLACK: u64 = 1_000_000;

/// The time budget of a QP.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    limit: RateLimit,
    /// The rate of its path in kbit/s; 0 is the port's rate.
    path: u32,
    /// The time at which all sent packets have had their sending time.
    paid: u64,
}

impl Pace {
    /// When to try again, if nothing may leave now on a path of `path` kbit/s.
    fn wait(&self, now: Time, path: u32) -> Option<Time> {
        let kbps = slower(self.limit.kbps, path);
        let slack = match self.limit.burst {
            0 => SLACK,
            burst => cost(burst, kbps),
        };
        // Waits until half a burst may leave, because each check costs time.
        (self.paid > now.0.saturating_add(slack)).then(|| Time(self.paid - slack / 2))
    }

    /// Charges a packet with `len` bytes of payload.
    fn charge(&mut self, now: Time, len: u32, path: u32) {
        let kbps = slower(self.limit.kbps, path);
        self.paid = self.paid.max(now.0).saturating_add(cost(len.saturating_add(AROUND), kbps));
    }

    /// Changes the rates. The bytes ahead of the rate stay the same.
    fn change(&mut self, now: Time, limit: RateLimit, path: u32) {
        let (before, after) = (slower(self.limit.kbps, self.path), slower(limit.kbps, path));
        let owed = u128::from(self.paid.saturating_sub(now.0));
        let owed = if after == 0 { 0 } else { owed * u128::from(before) / u128::from(after) };
        (self.limit, self.path) = (limit, path);
        self.paid = now.0.saturating_add(u64::try_from(owed).unwrap_or(u64::MAX));
    }
}

/// The nanoseconds that `bytes` take, rounded up; 0 without a limit.
fn cost(bytes: u32, kbps: u32) -> u64 {
    if kbps == 0 { 0 } else { (u64::from(bytes) * 8_000_000).div_ceil(u64::from(kbps)) }
}

/// The slower of two rates; 0 means no limit.
fn slower(one: u32, other: u32) -> u32 {
    if one == 0 || other == 0 { one | other } else { one.min(other) }
}

/// A static rate in kbit/s, if it is slower than the port.
fn slow_path(code: u8) -> u32 {
    let kbps = rate_mbps(code).unwrap_or(0).saturating_mul(1000);
    if kbps < RATE_LIMIT_MAX { kbps } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn paced(kbps: u32, burst: u32) -> Pace {
        Pace { limit: RateLimit { kbps, burst }, ..Pace::default() }
    }

    /// Sends for one second as often as allowed, with each check `late` nanoseconds late. Returns
    /// the bytes sent.
    fn second_of(pace: &mut Pace, len: u32, late: u64) -> u64 {
        let (mut now, mut bytes) = (0, 0);
        while now < 1000 * MS {
            match pace.wait(Time(now), 0) {
                None => {
                    pace.charge(Time(now), len, 0);
                    bytes += u64::from(len + AROUND);
                }
                Some(until) => {
                    assert!(until.0 > now, "it is asked again later, not at once");
                    now = until.0 + late;
                }
            }
        }
        bytes
    }

    #[test]
    fn as_many_bytes_leave_as_the_rate_allows() {
        for (kbps, len) in [(1_000, 100), (100_000, 1024), (10_000_000, 4096), (40_000_000, 32 * 1024)] {
            for late in [0, 50_000, 400_000] {
                let allowed = u64::from(kbps) * 125;
                let sent = second_of(&mut paced(kbps, 0), len, late);
                let most = allowed + allowed / 1000 + 2 * u64::from(len + AROUND);
                assert!(sent <= most, "{kbps} kbit/s, {late} ns late: {sent} of {allowed} bytes");
                assert!(sent >= allowed - allowed / 100, "{kbps} kbit/s, {late} ns late: {sent} of {allowed} bytes");
            }
        }
    }

    #[test]
    fn the_slowest_rate_lets_one_packet_through() {
        let mut pace = paced(1, 0);
        assert_eq!(pace.wait(Time(5), 0), None);
        pace.charge(Time(5), 4096, 0);
        let until = pace.wait(Time(6), 0).expect("the first takes half a minute");
        assert!(until.0 > 33_000 * MS, "{until:?}");
        assert_eq!(pace.wait(until, 0), None);
    }

    #[test]
    fn a_burst_is_as_long_as_it_may_be() {
        let mut pace = paced(8_000, 10 * (1000 + AROUND));
        let sent =
            (0..100).take_while(|_| pace.wait(Time(0), 0).is_none().then(|| pace.charge(Time(0), 1000, 0)).is_some());
        assert_eq!(sent.count(), 11, "ten, and the one with which it is full");
    }

    #[test]
    fn a_burst_delays_later_packets_by_its_duration() {
        let mut pace = paced(8_000, 0);
        (0..50).for_each(|_| pace.charge(Time(0), 1000, 0));
        let until = pace.wait(Time(0), 0).expect("50 packets take 53 ms");
        assert!((52 * MS..54 * MS).contains(&until.0), "{until:?}");
    }

    #[test]
    fn the_slower_of_limit_and_path_counts() {
        let mut pace = paced(8_000, 0);
        pace.charge(Time(0), 1000 - AROUND, 4_000);
        assert_eq!(pace.paid, 2 * MS);
        pace.charge(Time(0), 1000 - AROUND, 16_000);
        assert_eq!(pace.paid, 3 * MS);
        assert_eq!((slow_path(2), slow_path(16), slow_path(0), slow_path(255)), (2_500_000, 0, 0, 0));
    }

    #[test]
    fn another_rate_counts_from_now_on() {
        let mut pace = paced(1_000, 0);
        pace.charge(Time(0), 1000 - AROUND, 0);
        assert_eq!(pace.paid, 8 * MS);
        pace.change(Time(4 * MS), RateLimit { kbps: 4_000, burst: 0 }, 0);
        assert_eq!(pace.paid, 5 * MS, "half of it is owed, at four times the rate");
        pace.change(Time(4 * MS), RateLimit { kbps: 0, burst: 0 }, 0);
        assert_eq!(pace.wait(Time(4 * MS), 0), None);
        pace.change(Time(u64::MAX), RateLimit { kbps: 1, burst: u32::MAX }, 1);
    }
}
