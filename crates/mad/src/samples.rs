//! The sampling of a node: how much some counters of one port grow in an interval. IBA 16.1.3.2 and
//! 16.1.3.3. Not the counters ([`crate::counters`]). Principal type: [`Samples`].
//!
//! A node has one sampling mechanism. While it works, a Set changes nothing; its answer has the tag
//! of the one that began. The owner calls [`Samples::advance`] at [`Samples::deadline`], with
//! counters that are up to date. If it comes later, the interval is longer.

use crate::counters::{Counter, Counters};
use std::time::Duration;
use wire::perf::{PortSamplesControl, PortSamplesResult, SAMPLED};
use wire::smp::PortLink;

/// The code of counters with 32 bits.
const WIDTH: u8 = 4;
/// In the masks of the counters: it can be any of [`QUANTITIES`].
const MANDATORY: u8 = 1;
/// The quantities that every port has, by their number.
const QUANTITIES: [(u16, Counter); 5] = [
    (1, Counter::XmitData),
    (2, Counter::ReceiveData),
    (3, Counter::XmitPackets),
    (4, Counter::ReceivePackets),
    (5, Counter::XmitWait),
];

/// `SampleStatus` of PortSamplesControl and PortSamplesResult.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    /// The counters of the last interval are there.
    #[default]
    Done,
    /// The interval has not begun.
    Started,
    /// It has.
    Running,
}

/// The sampling mechanism of a node.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// What the last Set that began an interval asked for.
    control: PortSamplesControl,
    status: Status,
    begins: Duration,
    ends: Duration,
    /// The counters when the interval began, and how much they have grown in the last one.
    values: [u64; SAMPLED],
}

impl Samples {
    /// PortSamplesControl as it is now.
    #[must_use]
    pub fn control(&self) -> PortSamplesControl {
        PortSamplesControl {
            counter_width: WIDTH,
            first_masks: [MANDATORY; 10],
            last_masks: [MANDATORY; 5],
            status: self.status as u8,
            ..self.control
        }
    }

    /// PortSamplesResult as it is now. While an interval is not over, the counters are 0.
    #[must_use]
    pub fn result(&self) -> PortSamplesResult {
        let stop = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let counters = if self.status == Status::Done { self.values.map(stop) } else { [0; SAMPLED] };
        PortSamplesResult { tag: self.control.tag, status: self.status as u8, counters }
    }

    /// Begins what a Set asks for. `tick` is the time of a symbol at its port. Returns false if the
    /// port does not have a selected quantity. 0 selects nothing.
    pub fn begin(&mut self, asked: &PortSamplesControl, tick: Picoseconds, now: Duration) -> bool {
        if asked.counter_select.iter().any(|number| *number != 0 && quantity(*number).is_none()) {
            return false;
        }
        if self.status == Status::Done {
            let PortSamplesControl { port, start, interval, tag, counter_select, .. } = *asked;
            self.control = PortSamplesControl { port, start, interval, tag, counter_select, ..self.control };
            self.begins = now.saturating_add(tick.times(start));
            self.ends = self.begins.saturating_add(tick.times(interval));
            self.status = Status::Started;
        }
        true
    }

    /// When the owner calls [`Samples::advance`] next.
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        match self.status {
            Status::Done => None,
            Status::Started => Some(self.begins),
            Status::Running => Some(self.ends),
        }
    }

    /// The port that is sampled.
    #[must_use]
    pub const fn port(&self) -> u8 {
        self.control.port
    }

    /// Does what is due. `counters` are those of the port.
    pub fn advance(&mut self, counters: &Counters, now: Duration) {
        let values = self.control.counter_select.map(|number| quantity(number).map_or(0, |it| counters.value(it)));
        match self.status {
            Status::Started if self.begins <= now => {
                self.values = values;
                // An interval that begins late is not shorter.
                self.ends = self.ends.saturating_add(now.saturating_sub(self.begins));
                self.status = Status::Running;
            }
            Status::Running if self.ends <= now => {
                // Someone may have cleared a counter meanwhile.
                let before = self.values;
                self.values = std::array::from_fn(|nth| values[nth].saturating_sub(before[nth]));
                self.status = Status::Done;
            }
            _ => {}
        }
    }
}

fn quantity(number: u16) -> Option<Counter> {
    QUANTITIES.iter().find(|(known, _)| *known == number).map(|(_, counter)| *counter)
}

/// A time in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picoseconds(u64);

impl Picoseconds {
    /// The time of a symbol, which is a byte on one lane of a link: tick 0 of PortSamplesControl. IBA
    /// 16.1.3.2.
    #[must_use]
    pub const fn of_symbol(link: &PortLink) -> Self {
        Self(match (link.extended_active, link.speed_active) {
            (1, _) => 587,
            (2, _) => 320,
            (4, _) => 160,
            (8, _) => 80,
            (_, 2) => 2000,
            (_, 4) => 1000,
            _ => 4000,
        })
    }

    fn times(self, count: u32) -> Duration {
        Duration::from_nanos(self.0 * u64::from(count) / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDR: Picoseconds = Picoseconds(4000);

    fn asked(tag: u16, start: u32, interval: u32) -> PortSamplesControl {
        let mut counter_select = [0; SAMPLED];
        counter_select[..3].copy_from_slice(&[3, 1, 3]);
        PortSamplesControl { port: 2, start, interval, tag, counter_select, ..PortSamplesControl::default() }
    }

    #[test]
    fn an_interval_counts_what_is_counted_in_it() {
        let (mut samples, mut counters) = (Samples::default(), Counters::default());
        counters.add(Counter::XmitPackets, 1000);
        let at = Duration::from_micros;
        assert!(samples.begin(&asked(7, 250, 1000), SDR, at(10)));
        assert_eq!((samples.deadline(), samples.port(), samples.control().status), (Some(at(11)), 2, 1));
        samples.advance(&counters, at(10));
        assert_eq!(samples.control().status, 1, "it has not begun");
        samples.advance(&counters, at(13));
        assert_eq!((samples.deadline(), samples.control().status), (Some(at(17)), 2), "two microseconds late");
        counters.add(Counter::XmitPackets, 5);
        counters.add(Counter::XmitData, 1 << 40);
        assert!(samples.begin(&asked(8, 0, 0), SDR, at(14)), "it changes nothing");
        assert_eq!(samples.result(), PortSamplesResult { tag: 7, status: 2, counters: [0; SAMPLED] });
        samples.advance(&counters, at(17));
        counters.add(Counter::XmitPackets, 100);
        let result = samples.result();
        assert_eq!((result.tag, result.status, samples.deadline()), (7, 0, None));
        assert_eq!(result.counters[..4], [5, u32::MAX, 5, 0]);
        assert!(samples.begin(&asked(8, 0, 0), SDR, at(20)));
        assert_eq!(samples.control().tag, 8);
    }

    #[test]
    fn quantities_that_the_port_does_not_have_are_refused() {
        let mut samples = Samples::default();
        let mut control = asked(7, 0, 0);
        control.counter_select[14] = 6;
        assert!(!samples.begin(&control, SDR, Duration::ZERO));
        assert_eq!((samples.deadline(), samples.result().tag), (None, 0));
    }

    #[test]
    fn the_longest_interval_is_a_time() {
        let mut samples = Samples::default();
        assert!(samples.begin(&asked(7, u32::MAX, u32::MAX), SDR, Duration::MAX));
        assert_eq!(samples.deadline(), Some(Duration::MAX));
        assert_eq!(SDR.times(u32::MAX).as_secs(), 17);
    }
}
