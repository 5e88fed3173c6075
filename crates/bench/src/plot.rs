//! Plots results over the message size as an SVG with logarithmic axes. For the latencies of a
//! single size, plots its percentiles.
//!
//! The principal functions are [`of_run`] for a measurement and [`lines`] for figures of any
//! origin.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, EmptyElement, IntoDrawingArea, IntoFont, IntoLogRange, LineSeries,
    PathElement, RGBColor, SVGBackend, Text, WHITE,
};
use plotters::series::PointSeries;

use crate::figures::{Case, Latency};
use crate::plan::{Measure, Plan, Size};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 560;
/// Colours that colour-blind people can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// The position of a point's label, in pixels from the point.
const BESIDE: (i32, i32) = (8, -16);
/// The position of a label where a line rises to the right.
const BELOW: (i32, i32) = (8, 6);
/// The font of a point's label.
const FONT: (&str, i32) = ("sans-serif", 14);
/// The colour of captions.
const GREY: RGBColor = RGBColor(80, 80, 80);

/// The heading of a plot.
#[derive(Debug, Clone, Copy)]
pub struct Heading<'a> {
    /// What was measured.
    pub title: &'a str,
    /// Where, when and how, one line each.
    pub caption: &'a [String],
}

/// A line of the plot.
#[derive(Debug, Clone)]
pub struct Line {
    /// The line's name.
    pub name: String,
    /// Points: bytes, and the figure.
    pub points: Vec<(f64, f64)>,
}

/// The lines of a measurement. For latencies, these are the median and the 99th percentile.
#[must_use]
pub fn of(plan: &Plan, cases: &[Case]) -> Vec<Line> {
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
#[must_use]
pub fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Lat => "µs",
        Measure::Bw => "MiB/s",
        Measure::Rate => "million messages/s",
    }
}

/// An SVG with these lines, for figures of any origin.
///
/// # Errors
/// When there is nothing to plot.
pub fn lines(title: &str, unit: &str, lines: &[Line]) -> Result<String, String> {
    over_sizes(&Heading { title, caption: &[] }, unit, lines)
}

/// An SVG of a measurement: lines over the sizes. For the latencies of a single size, a point for
/// each percentile.
///
/// # Errors
/// When there is nothing to plot.
pub fn of_run(heading: &Heading<'_>, plan: &Plan, cases: &[Case]) -> Result<String, String> {
    match cases {
        [Case { size, latency_usec: Some(latency), .. }] => over_percentiles(heading, *size, latency),
        _ => over_sizes(heading, unit(plan.measure), &of(plan, cases)),
    }
}

fn over_sizes(heading: &Heading<'_>, unit: &str, lines: &[Line]) -> Result<String, String> {
    let points = || lines.iter().flat_map(|line| &line.points).filter(|point| point.0 > 0.0 && point.1 > 0.0);
    let (left, right) = ends(points().map(|point| point.0)).ok_or("there is nothing to plot")?;
    let (low, high) = ends(points().map(|point| point.1)).ok_or("there is nothing to plot")?;
    // If there is only one size, the points have labels and need space around them.
    let is_one_size = left == right;
    let (aside, above) = if is_one_size { (4.0, 4.0) } else { (1.3, 1.3) };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let area = heading.draw(&root)?;
        let across = (left / aside..right * aside).log_scale().base(2.0);
        let mut chart =
            builder(&area).build_cartesian_2d(across, (low / above..high * above).log_scale()).map_err(told)?;
        chart
            .configure_mesh()
            .x_desc("bytes of a message")
            .y_desc(unit)
            .x_label_formatter(&|bytes| Size(bytes.round() as usize).to_string())
            .y_label_formatter(&|value| figure(*value, 2))
            .light_line_style(WHITE)
            .draw()
            .map_err(told)?;
        for (number, line) in lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points: Vec<(f64, f64)> = line.points.iter().copied().filter(|point| point.1 > 0.0).collect();
            let labelled = if is_one_size { points.clone() } else { Vec::new() };
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                .map_err(told)?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            chart.draw_series(PointSeries::<_, _, Circle<_, _>, _>::new(points, 3, colour.filled())).map_err(told)?;
            let label =
                |at: (f64, f64)| EmptyElement::at(at) + Text::new(format!("{} {unit}", figure(at.1, 3)), BESIDE, FONT);
            chart.draw_series(labelled.into_iter().map(label)).map_err(told)?;
        }
        chart.configure_series_labels().background_style(WHITE).border_style(COLOURS[6]).draw().map_err(told)?;
        root.present().map_err(told)?;
    }
    Ok(svg)
}

fn over_percentiles(heading: &Heading<'_>, size: usize, latency: &Latency) -> Result<String, String> {
    let l = latency;
    let rows = [("min", l.min), ("p50", l.p50), ("p90", l.p90), ("p99", l.p99), ("p99.9", l.p999), ("max", l.max)];
    let values: Vec<(f64, f64)> =
        rows.iter().enumerate().map(|(place, row)| (place as f64, row.1)).filter(|point| point.1 > 0.0).collect();
    let (low, high) = ends(values.iter().map(|point| point.1)).ok_or("there is nothing to plot")?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let area = heading.draw(&root)?;
        let mut chart = builder(&area)
            .build_cartesian_2d(-0.5..rows.len() as f64 - 0.2, (low / 2.0..high * 2.0).log_scale())
            .map_err(told)?;
        let name = |place: &f64| rows.get(place.round() as usize).map_or("", |row| row.0).to_owned();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc(format!("percentile, of messages with {}", Size(size)))
            .y_desc("µs")
            .x_labels(rows.len())
            .x_label_formatter(&name)
            .y_label_formatter(&|value| figure(*value, 2))
            .light_line_style(WHITE)
            .draw()
            .map_err(told)?;
        let colour = COLOURS[0];
        chart.draw_series(LineSeries::new(values.iter().copied(), colour.stroke_width(2))).map_err(told)?;
        let points = PointSeries::<_, _, Circle<_, _>, _>::new(values.iter().copied(), 4, colour.filled());
        chart.draw_series(points).map_err(told)?;
        let label = |at: (f64, f64)| EmptyElement::at(at) + Text::new(format!("{} µs", figure(at.1, 3)), BELOW, FONT);
        chart.draw_series(values.into_iter().map(label)).map_err(told)?;
        root.present().map_err(told)?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).margin_right(28).x_label_area_size(40).y_label_area_size(70);
    builder
}

impl Heading<'_> {
    /// Fills `root` with white, draws the heading, and returns the area below it.
    fn draw<'a>(&self, root: &Area<'a>) -> Result<Area<'a>, String> {
        root.fill(&WHITE).map_err(told)?;
        let mut area = root.titled(self.title, ("sans-serif", 20)).map_err(told)?;
        for line in self.caption {
            area = area.titled(line, ("sans-serif", 13).into_font().color(&GREY)).map_err(told)?;
        }
        Ok(area)
    }
}

fn told(error: impl Display) -> String {
    format!("the plot cannot be drawn: {error}")
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, value| match ends {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

/// A figure with this many significant digits. A figure below 1 has this many decimals.
#[must_use]
pub fn figure(value: f64, digits: usize) -> String {
    let before = if value == 0.0 { digits } else { (value.abs().log10().floor() + 1.0).max(0.0) as usize };
    format!("{value:.*}", digits.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::{Heading, Line, figure, lines, of_run};
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

    #[test]
    fn few_digits_count() {
        let told = |digits| [0.0, 0.05, 0.45, 1.5, 45.04, 458.94, 12912.2].map(|value| figure(value, digits));
        assert_eq!(told(2), ["0", "0.05", "0.45", "1.5", "45", "459", "12912"]);
        assert_eq!(told(3), ["0", "0.050", "0.450", "1.50", "45.0", "459", "12912"]);
    }

    #[test]
    fn a_plot_names_its_lines() {
        let line = |name: &str, factor: f64| Line {
            name: name.to_owned(),
            points: (3..20).map(|power| f64::from(1 << power)).map(|size| (size, size * factor)).collect(),
        };
        let svg = lines("a title", "MiB/s", &[line("ours", 2.0), line("theirs", 1.0)]).expect("a plot");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for word in ["a title", "MiB/s", "ours", "theirs", "KiB", "<polyline"] {
            assert!(svg.contains(word), "{word} is not in {svg}");
        }
        assert!(lines("none", "µs", &[]).is_err());
        // One point only.
        lines("one", "µs", &[Line { name: "x".to_owned(), points: vec![(8.0, 0.5)] }]).expect("a plot");
    }
}
