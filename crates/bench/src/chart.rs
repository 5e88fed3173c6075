//! Prints results on a terminal: a table, and a bar for each size. The principal functions are
//! [`table`] and [`bars`].

use crate::figures::Case;
use crate::plan::{Measure, Plan, Size};

/// Width of the longest bar in characters.
const WIDTH: f64 = 40.0;
/// Eighths of a character.
const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// The main figure of a measurement, and its unit.
#[must_use]
pub fn principal(measure: Measure, case: &Case) -> (f64, &'static str) {
    match measure {
        Measure::Lat => (case.latency_usec.map_or(f64::NAN, |latency| latency.p50), "µs"),
        Measure::Bw => (case.mib_per_second, "MiB/s"),
        Measure::Rate => (case.million_per_second, "million/s"),
    }
}

/// A table with one line for each size.
#[must_use]
pub fn table(plan: &Plan, cases: &[Case]) -> String {
    let mut text = if plan.measure == Measure::Lat {
        format!(
            "{:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
            "size", "operations", "min µs", "p50", "p90", "p99", "p99.9", "max", "mean"
        )
    } else {
        format!("{:>10} {:>12} {:>9} {:>12} {:>12}\n", "size", "operations", "seconds", "MiB/s", "million/s")
    };
    for case in cases {
        let size = Size(case.size).to_string();
        text += &match case.latency_usec {
            Some(latency) => format!(
                "{size:>10} {:>10} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3}\n",
                case.operations,
                latency.min,
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                latency.max,
                latency.mean
            ),
            None => format!(
                "{size:>10} {:>12} {:>9.3} {:>12.1} {:>12.4}\n",
                case.operations, case.seconds, case.mib_per_second, case.million_per_second
            ),
        };
    }
    text
}

/// A bar for each size. For the latencies of a single size, a bar for each percentile.
#[must_use]
pub fn bars(plan: &Plan, cases: &[Case]) -> String {
    let rows: Vec<(String, f64, &str)> = match cases {
        [Case { latency_usec: Some(latency), .. }] => {
            let l = latency;
            [("min", l.min), ("p50", l.p50), ("p90", l.p90), ("p99", l.p99), ("p99.9", l.p999), ("max", l.max)]
                .map(|(name, value)| (name.to_owned(), value, "µs"))
                .to_vec()
        }
        _ => cases
            .iter()
            .map(|case| {
                let (value, unit) = principal(plan.measure, case);
                (Size(case.size).to_string(), value, unit)
            })
            .collect(),
    };
    let most = rows.iter().map(|row| row.1).fold(0.0, f64::max);
    rows.iter().map(|(name, value, unit)| format!("{name:>10} {} {value:.3} {unit}\n", bar(*value, most))).collect()
}

/// A bar for `value`. Every value above 0 is visible.
fn bar(value: f64, most: f64) -> String {
    let eighths = if value > 0.0 { (value / most * WIDTH * 8.0).round().max(1.0) as usize } else { 0 };
    let mut text = "█".repeat(eighths / 8);
    if eighths % 8 > 0 {
        text.push(PARTS[eighths % 8]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{bars, table};
    use crate::{Case, Measure, Operation, Plan};

    fn case(size: usize, mib: f64) -> Case {
        Case { size, operations: 5, seconds: 1.0, latency_usec: None, mib_per_second: mib, million_per_second: 0.5 }
    }

    #[test]
    fn the_longest_bar_is_the_most() {
        let plan = Plan::new(Operation::Write, Measure::Bw);
        let text = bars(&plan, &[case(4096, 100.0), case(1 << 20, 400.0)]);
        let lengths: Vec<usize> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [10, 40], "{text}");
        assert!(text.contains("4 KiB") && text.contains("400.000 MiB/s"), "{text}");
        assert_eq!(table(&plan, &[case(8, 1.0), case(9, 1.0)]).lines().count(), 3);
    }

    #[test]
    fn a_small_value_has_a_bar_and_no_value_has_none() {
        let text = bars(&Plan::new(Operation::Write, Measure::Bw), &[case(1, 1.0), case(2, 0.0), case(3, 1e6)]);
        let lengths: Vec<usize> = text.lines().map(|line| line.matches(['▏', '█']).count()).collect();
        assert_eq!(lengths, [1, 0, 40], "{text}");
    }
}
