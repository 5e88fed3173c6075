//! Plots figures over the message size, or over percentiles, as an SVG with logarithmic axes.
//!
//! It knows no measurement: the caller gives lines and points. The principal functions are
//! [`over_sizes`] and [`over_percentiles`].
#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, EmptyElement, IntoDrawingArea, IntoFont, IntoLogRange, LineSeries,
    PathElement, RGBColor, SVGBackend, Text, WHITE,
};
use plotters::series::PointSeries;

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

/// An SVG of lines over the message size. If there is only one size, its points have labels.
///
/// # Errors
/// When there is nothing to plot.
pub fn over_sizes(heading: &Heading<'_>, unit: &str, lines: &[Line]) -> Result<String, String> {
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
            .x_label_formatter(&|bytes| Bytes(bytes.round() as usize).to_string())
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

/// An SVG of the latencies of messages of one size in microseconds: each percentile with its name.
///
/// # Errors
/// When there is nothing to plot.
pub fn over_percentiles(heading: &Heading<'_>, size: usize, rows: &[(&str, f64)]) -> Result<String, String> {
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
            .x_desc(format!("percentile, of messages with {}", Bytes(size)))
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

/// A number of bytes as people write it: `8 B`, `4 KiB`, `1 MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} B"),
        }
    }
}

/// A figure with this many significant digits. A figure below 1 has this many decimals.
#[must_use]
pub fn figure(value: f64, digits: usize) -> String {
    let before = if value == 0.0 { digits } else { (value.abs().log10().floor() + 1.0).max(0.0) as usize };
    format!("{value:.*}", digits.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::{Heading, Line, figure, over_sizes};

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
        let lines = |title: &str, unit: &str, lines: &[Line]| over_sizes(&Heading { title, caption: &[] }, unit, lines);
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
