//! Plots the results of a measurement: lines over the message size. For the latencies of a single
//! size, plots its percentiles. The principal function is [`of_run`].

use plot::{Heading, Line, over_percentiles, over_sizes};

use crate::figures::{Case, Latency};
use crate::plan::{Measure, Plan};

/// The lines of a measurement. For latencies, these are the median and the 99th percentile.
fn of(plan: &Plan, cases: &[Case]) -> Vec<Line> {
    let line = |name: &str, value: fn(&Case) -> Option<f64>| Line {
        name: name.to_owned(),
        points: cases.iter().filter_map(|case| Some((case.size as f64, value(case)?))).collect(),
    };
    match plan.measure {
        Measure::Lat => {
            vec![line("p50", |case| Some(case.latency_usec?.p50)), line("p99", |case| Some(case.latency_usec?.p99))]
        }
        Measure::Bw => vec![line("bandwidth", |case| Some(case.mib_per_second))],
        Measure::Rate => vec![line("rate", |case| Some(case.million_per_second))],
    }
}

/// The unit of a measurement's plot.
fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Lat => "µs",
        Measure::Bw => "MiB/s",
        Measure::Rate => "million messages/s",
    }
}

/// An SVG of a measurement: lines over the sizes. For the latencies of a single size, a point for
/// each percentile.
///
/// # Errors
/// When there is nothing to plot.
pub fn of_run(heading: &Heading<'_>, plan: &Plan, cases: &[Case]) -> Result<String, String> {
    match cases {
        [Case { size, latency_usec: Some(latency), .. }] => over_percentiles(heading, *size, &percentiles(latency)),
        _ => over_sizes(heading, unit(plan.measure), &of(plan, cases)),
    }
}

fn percentiles(l: &Latency) -> [(&'static str, f64); 6] {
    [("min", l.min), ("p50", l.p50), ("p90", l.p90), ("p99", l.p99), ("p99.9", l.p999), ("max", l.max)]
}

#[cfg(test)]
mod tests {
    use plot::Heading;

    use super::of_run;
    use crate::{Case, Latency, Measure, Operation, Plan};

    fn svg(measure: Measure, sizes: &[usize]) -> String {
        let latency_usec = (measure == Measure::Lat).then_some(Latency {
            min: 0.6,
            p50: 0.7,
            p90: 0.8,
            p99: 1.5,
            p999: 12.0,
            max: 345.0,
            mean: 0.9,
        });
        let case = |size: &usize| Case {
            size: *size,
            operations: 5,
            seconds: 1.0,
            latency_usec,
            mib_per_second: 4567.8 * *size as f64,
            million_per_second: 0.5,
        };
        let cases: Vec<Case> = sizes.iter().map(case).collect();
        let caption = ["host <here>, 2026-01-31 12:00 UTC".to_owned(), "4 queue pairs, depth 16".to_owned()];
        let plan = Plan::new(Operation::Write, measure);
        of_run(&Heading { title: "write", caption: &caption }, &plan, &cases).expect("a plot")
    }

    #[test]
    fn a_plot_says_where_when_and_how_it_was_made() {
        for (measure, sizes) in [(Measure::Bw, &[64, 4096][..]), (Measure::Bw, &[64]), (Measure::Lat, &[64])] {
            let svg = svg(measure, sizes);
            for word in ["host &lt;here&gt;", "2026-01-31 12:00 UTC", "4 queue pairs, depth 16"] {
                assert!(svg.contains(word), "{word} is not in {svg}");
            }
        }
    }

    #[test]
    fn a_plot_of_one_size_has_its_figures() {
        let latency = svg(Measure::Lat, &[64]);
        for word in ["min", "p50", "p99.9", "max", "0.600 µs", "1.50 µs", "345 µs", "64 B"] {
            assert!(latency.contains(word), "{word} is not in {latency}");
        }
        let bandwidth = svg(Measure::Bw, &[1]);
        for word in ["4568 MiB/s", "1 B", "4 B"] {
            assert!(bandwidth.contains(word), "{word} is not in {bandwidth}");
        }
        assert!(!svg(Measure::Bw, &[1, 64]).contains("4568 MiB/s"));
    }
}
