//! The results of a measurement. The principal type is [`Case`].

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest distinguishable time: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// Significant digits.
const DIGITS: u8 = 3;

/// The results of one size.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// Bytes of a message.
    pub size: usize,
    /// Operations that were measured.
    pub operations: u64,
    /// The duration of these operations.
    pub seconds: f64,
    /// Microseconds of one operation. For SEND and WRITE, one way: half of a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_usec: Option<Latency>,
    /// Bandwidth.
    pub mib_per_second: f64,
    /// Millions of messages per second.
    pub million_per_second: f64,
}

/// Latencies by percentile, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
#[allow(missing_docs, reason = "their names say what they are")]
pub struct Latency {
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub mean: f64,
}

/// The measurements of one thread.
pub(crate) struct Tally {
    pub(crate) operations: u64,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    /// Nanoseconds.
    pub(crate) times: Option<Histogram<u64>>,
}

impl Tally {
    /// Starts now, with no operations.
    pub(crate) fn new(with_times: bool) -> Self {
        let now = Instant::now();
        let times = with_times.then(|| Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("bounds that fit"));
        Self { operations: 0, started: now, ended: now, times }
    }

    /// Counts one operation of this duration.
    pub(crate) fn record(&mut self, time: Duration) {
        self.operations += 1;
        if let Some(times) = &mut self.times {
            times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST).max(1));
        }
    }
}

impl Case {
    /// Combines all threads. `halves`: the measured times are round trips.
    pub(crate) fn of(size: usize, tallies: Vec<Tally>, halves: bool) -> Self {
        let operations: u64 = tallies.iter().map(|tally| tally.operations).sum();
        let started = tallies.iter().map(|tally| tally.started).min();
        let ended = tallies.iter().map(|tally| tally.ended).max();
        let seconds = match (started, ended) {
            (Some(started), Some(ended)) => ended.saturating_duration_since(started).as_secs_f64().max(1e-9),
            _ => 1e-9,
        };
        let mut all: Option<Histogram<u64>> = None;
        for times in tallies.into_iter().filter_map(|tally| tally.times) {
            match &mut all {
                None => all = Some(times),
                // Both histograms have the same bounds.
                Some(all) => drop(all.add(times)),
            }
        }
        // A round trip is two messages.
        let messages = operations as f64 * if halves { 2.0 } else { 1.0 };
        Self {
            size,
            operations,
            seconds,
            latency_usec: all.map(|times| Latency::of(&times, if halves { 2.0 } else { 1.0 })),
            mib_per_second: messages * size as f64 / seconds / f64::from(1 << 20),
            million_per_second: messages / seconds / 1e6,
        }
    }
}

impl Latency {
    fn of(times: &Histogram<u64>, parts: f64) -> Self {
        let usec = |nanos: f64| nanos / 1e3 / parts;
        let at = |quantile| usec(times.value_at_quantile(quantile) as f64);
        Self {
            min: usec(times.min() as f64),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: usec(times.max() as f64),
            mean: usec(times.mean()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, Tally};
    use std::time::Duration;

    #[test]
    fn threads_add_up() {
        let mut tallies = vec![Tally::new(true), Tally::new(true)];
        for micros in 1..=1000 {
            tallies[micros as usize % 2].record(Duration::from_micros(micros));
        }
        let started = tallies[0].started;
        tallies[0].ended = started + Duration::from_secs(2);
        tallies[1].started = started;
        let case = Case::of(1 << 20, tallies, false);
        assert_eq!((case.operations, case.seconds), (1000, 2.0));
        assert!((case.mib_per_second - 500.0).abs() < 1e-6 && (case.million_per_second - 0.0005).abs() < 1e-9);
        let latency = case.latency_usec.expect("latencies");
        for (value, expected) in [
            (latency.min, 1.0),
            (latency.p50, 500.0),
            (latency.p90, 900.0),
            (latency.p999, 999.0),
            (latency.max, 1000.0),
        ] {
            assert!((value - expected).abs() < expected / 500.0, "{value} instead of {expected}");
        }
    }

    #[test]
    fn one_way_is_half_of_there_and_back() {
        let mut tally = Tally::new(true);
        tally.record(Duration::from_micros(10));
        tally.ended = tally.started + Duration::from_micros(10);
        let case = Case::of(1, vec![tally], true);
        assert!((case.latency_usec.expect("latencies").p50 - 5.0).abs() < 0.02);
        assert!((case.million_per_second - 0.2).abs() < 1e-6);
    }
}
