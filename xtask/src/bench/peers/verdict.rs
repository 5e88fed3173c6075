//! Judges a goal by figures. It measures nothing. The principal type is [`Verdict`].

use std::collections::BTreeMap;

use super::goals::{Goal, Want};
use super::middle;

/// Figures by probe name, one for each run.
pub(super) type Series = BTreeMap<String, Vec<f64>>;

/// Whether a goal is met, and by how much.
pub(super) struct Verdict<'a> {
    pub(super) goal: &'a Goal,
    /// softhca's median.
    pub(super) ours: f64,
    /// The best of the others; `None` for a figure without a comparison.
    pub(super) beside: Option<Beside<'a>>,
    pub(super) met: bool,
}

/// The program that softhca is compared with.
pub(super) struct Beside<'a> {
    pub(super) name: &'a str,
    /// Its median.
    pub(super) figure: f64,
    /// The least, the median and the greatest ratio. Each ratio is within one run, because the
    /// machine changes between runs.
    pub(super) ratios: [f64; 3],
}

impl<'a> Verdict<'a> {
    /// `None` if the goal was not measured.
    pub(super) fn of(goal: &'a Goal, series: &Series) -> Option<Self> {
        let row = series.get(&goal.ours)?;
        let ours = middle(row)?;
        let beside = best(goal, series).map(|(name, figure)| {
            let ratios = ratios(goal, row, &series[name], scale(goal, name));
            Beside { name, figure, ratios }
        });
        let met = match (goal.want, &beside) {
            (Want::AtMost(limit), Some(beside)) => beside.ratios[1] <= limit,
            (Want::AtLeast(limit), Some(beside)) => beside.ratios[1] >= limit,
            (Want::Within(limit), _) => ours <= limit,
            (Want::Compared, Some(_)) => true,
            (_, None) => return None,
        };
        Some(Self { goal, ours, beside, met })
    }
}

/// The best median of the others, with its name.
fn best<'a>(goal: &'a Goal, series: &Series) -> Option<(&'a str, f64)> {
    let found = goal.theirs.iter().filter_map(|name| {
        let theirs = middle(series.get(name)?)?;
        Some((name.as_str(), theirs * scale(goal, name)))
    });
    match goal.want {
        Want::AtMost(_) => found.min_by(|a, b| a.1.total_cmp(&b.1)),
        Want::AtLeast(_) | Want::Compared => found.max_by(|a, b| a.1.total_cmp(&b.1)),
        Want::Within(_) => None,
    }
}

/// UCX prints messages per second, perftest millions.
fn scale(goal: &Goal, name: &str) -> f64 {
    if goal.unit == "million/s" && name.starts_with("ucx") { 1e-6 } else { 1.0 }
}

fn ratios(goal: &Goal, ours: &[f64], theirs: &[f64], scale: f64) -> [f64; 3] {
    let factor = goal.times * scale;
    let row: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / (theirs * factor)).collect();
    let ends = row.iter().fold((f64::MAX, f64::MIN), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
    [ends.0, middle(&row).unwrap_or(f64::NAN), ends.1]
}

#[cfg(test)]
mod tests {
    use super::super::goals::{Goal, Section, Want};
    use super::{Series, Verdict};

    fn goal(unit: &'static str, want: Want, theirs: &[&str]) -> Goal {
        let theirs = theirs.iter().map(|name| (*name).to_owned()).collect();
        Goal::new(Section::OneHost, "ours", unit, want, theirs, "")
    }

    fn series(rows: &[(&str, &[f64])]) -> Series {
        rows.iter().map(|(name, row)| ((*name).to_owned(), row.to_vec())).collect()
    }

    #[test]
    fn the_best_of_the_others_counts() {
        let figures = series(&[("ours", &[100.0, 300.0, 200.0]), ("a", &[75.0, 200.0, 150.0]), ("b", &[50.0])]);
        let goal = goal("MiB/s", Want::AtLeast(1.2), &["b", "a", "absent"]);
        let verdict = Verdict::of(&goal, &figures).unwrap();
        let beside = verdict.beside.unwrap();
        assert_eq!((beside.name, beside.figure, verdict.met), ("a", 150.0, true));
        assert_eq!(beside.ratios.map(|ratio| (ratio * 100.0).round()), [133.0, 133.0, 150.0]);
    }

    #[test]
    fn the_median_ratio_decides() {
        let figures = series(&[("ours", &[1.0, 2.0, 9.0, 3.0]), ("a", &[1.0, 1.0, 1.0, 1.0])]);
        let met = |want| Verdict::of(&goal("µs", want, &["a"]), &figures).unwrap().met;
        assert!(met(Want::AtMost(2.5)) && !met(Want::AtMost(2.4)));
        assert!(met(Want::AtLeast(2.5)) && !met(Want::AtLeast(2.6)));
        assert!(met(Want::Within(2.5)) && !met(Want::Within(2.4)));
    }

    #[test]
    fn ucx_rates_are_not_in_millions() {
        let figures = series(&[("ours", &[2.0]), ("ucx_perftest", &[4e6])]);
        let goal = goal("million/s", Want::AtLeast(1.0), &["ucx_perftest"]);
        let verdict = Verdict::of(&goal, &figures).unwrap();
        assert!(!verdict.met && verdict.beside.unwrap().ratios[1] == 0.5);
    }

    #[test]
    fn a_goal_without_figures_has_no_verdict() {
        let unmeasured = goal("µs", Want::AtMost(1.0), &["a"]);
        assert!(Verdict::of(&unmeasured, &series(&[("a", &[1.0])])).is_none());
        assert!(Verdict::of(&unmeasured, &series(&[("ours", &[1.0])])).is_none());
    }
}
