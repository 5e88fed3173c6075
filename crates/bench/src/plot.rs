//! Figures over the size of messages as an SVG, both axes logarithmic. Principal function: [`lines`].

use std::fmt::Display;

use plotters::prelude::{
    ChartBuilder, Circle, Color, IntoDrawingArea, IntoLogRange, LineSeries, PathElement, RGBColor, SVGBackend, WHITE,
};
use plotters::series::PointSeries;

use crate::figures::Case;
use crate::plan::{Measure, Plan, Size};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 560;
/// Colours that people with any eyes tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// A line of the plot.
#[derive(Debug, Clone)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// Bytes, and the figure.
    pub points: Vec<(f64, f64)>,
}

/// The lines of a measurement: of latencies the median and the 99th percentile.
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

/// An SVG with these lines.
///
/// # Errors
/// There is nothing to show.
pub fn lines(title: &str, unit: &str, lines: &[Line]) -> Result<String, String> {
    let points = || lines.iter().flat_map(|line| &line.points).filter(|point| point.0 > 0.0 && point.1 > 0.0);
    let (left, right) = ends(points().map(|point| point.0)).ok_or("there is nothing to plot")?;
    let (low, high) = ends(points().map(|point| point.1)).ok_or("there is nothing to plot")?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(told)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d((left / 1.3..right * 1.3).log_scale().base(2.0), (low / 1.3..high * 1.3).log_scale())
            .map_err(told)?;
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
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                .map_err(told)?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            chart.draw_series(PointSeries::<_, _, Circle<_, _>, _>::new(points, 3, colour.filled())).map_err(told)?;
        }
        chart.configure_series_labels().background_style(WHITE).border_style(COLOURS[6]).draw().map_err(told)?;
        root.present().map_err(told)?;
    }
    Ok(svg)
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

/// A figure with so many digits that count, for people; of small ones with so many behind the point.
#[must_use]
pub fn figure(value: f64, digits: usize) -> String {
    let before = if value == 0.0 { digits } else { (value.abs().log10().floor() + 1.0).max(0.0) as usize };
    format!("{value:.*}", digits.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::{Line, figure, lines};

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
