//! The page that `cargo xtask bench --peers` writes: goals with their ratios, every figure, and
//! plots. It writes only the text between two marks in docs/performance.md, and the plots beside
//! the page. The principal function is [`write`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plot::{Bytes, Heading, Line};

use super::goals::{self, Goal, Want};
use super::probes::{Group, LATENCIES, TRANSPORTS, TUNED, Tuned, ucx_name};
use super::{Figures, middle};
use crate::workspace::Workspace;

/// Digits of a printed figure.
const DIGITS: usize = 3;
const PAGE: &str = "docs/performance.md";
const BEGIN: &str = "<!-- beside its peers: written by `cargo xtask bench --peers` -->";
const END: &str = "<!-- the end of what is written by `cargo xtask bench --peers` -->";

/// Writes the section and the plots from the figures in `raw`, and prints the goals.
pub(super) fn write(workspace: &Workspace, raw: &Path) -> Result<(), String> {
    let mut all = Figures::default();
    let mut runs = Vec::new();
    for group in Group::MEASURED {
        let Ok(text) = fs::read_to_string(raw.join(format!("{}.json", group.name()))) else { continue };
        let figures: Figures = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", group.name()))?;
        runs.extend(figures.series.values().map(Vec::len));
        all = Figures { series: all.series.into_iter().chain(figures.series).collect(), ..figures };
    }
    if all.series.is_empty() {
        return Err(format!("there are no figures in {}", raw.display()));
    }
    let section = section(&all, runs.iter().min().copied().unwrap_or(0));
    let page = workspace.root().join(PAGE);
    let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    fs::write(&page, placed(&text, &section)).map_err(|error| format!("{}: {error}", page.display()))?;
    for (file, svg) in plots(&all.series) {
        let file = workspace.root().join("docs").join(file);
        fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    println!("{}", table(&all.series));
    println!("written to {}", page.display());
    Ok(())
}

/// The page with the section in its place, or at the end.
fn placed(page: &str, section: &str) -> String {
    match (page.find(BEGIN), page.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{section}{}", &page[..begin], &page[end + END.len()..].trim_start_matches('\n'))
        }
        _ => format!("{}\n\n{section}", page.trim_end()),
    }
}

fn section(all: &Figures, runs: usize) -> String {
    let mut text = format!("{BEGIN}\n\n## Beside its peers\n\n");
    let _ = write!(
        text,
        "`cargo xtask bench --peers` measures softhca, its peers and what the machine can do at all in one run, all in turns; medians of at \
         least {runs} runs, and ratios of each run by itself, of which the middle one counts: a virtual machine's processors are near each other at \
         one time and not at another, which makes latencies differ by a factor of five, Linux {}, {} processors of a virtual machine. Both sides of each pair, softhca's and the peers', stay on a \
         processor each (`taskset`): the server on the first, the client on the last. Between hosts nothing is pinned. The settings of \
         the peers are below and in `xtask/src/bench/peers/probes.rs`, the bare programs in `suite/programs/baseline.c`; every run of every \
         program is in [performance/](performance/).\n\n",
        all.kernel, all.processors
    );
    text += &table(&all.series);
    text += "\n![bandwidth over size](performance-bandwidth.svg)\n\n![latency over size](performance-latency.svg)\n\n";
    text += "UCX is told its transport as the names say, and over shared memory (`UCX_TLS=posix,self`):\n\n";
    for Tuned { tests, size, settings, why } in TUNED {
        let words: Vec<String> = settings.iter().map(|(name, value)| format!("`{name}={value}`")).collect();
        let _ = writeln!(text, "* for {} of {}: {}: {why}.", tests.join(" and "), Bytes(*size), words.join(" "));
    }
    text += "\nEvery figure (µs for latencies, objects, wake-ups; MiB/s for bandwidths; millions in a second for rates; bytes for memory):\n\n";
    text += "| what | median | least | most |\n|---|---|---|---|\n";
    for (name, row) in &all.series {
        let rate = name.starts_with("ucx") && (name.contains("fadd") || name.contains("bw -s 8,"));
        let scale = if rate { 1e-6 } else { 1.0 };
        let ends = row.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
        let shown = [middle(row).unwrap_or(f64::NAN), ends.0, ends.1].map(|value| figure(value * scale));
        let _ = writeln!(text, "| `{name}` | {} | {} | {} |", shown[0], shown[1], shown[2]);
    }
    let _ = writeln!(text, "\n{END}");
    text
}

/// The table of goals and ratios. Goals without a measurement have no row.
pub(super) fn table(series: &BTreeMap<String, Vec<f64>>) -> String {
    let mut text = "| what | softhca | beside | ratio | goal | |\n|---|---|---|---|---|---|\n".to_owned();
    for goal in goals::all() {
        let Some(ours) = series.get(&goal.ours).and_then(|row| middle(row)) else { continue };
        let unit = if goal.unit == "Mrate" { "million/s" } else { goal.unit };
        let beside = best(&goal, series).map(|(name, theirs)| {
            let times = if goal.times == 1.0 { String::new() } else { format!("{} × ", goal.times) };
            let ratios = ratios(&goal, &series[&goal.ours], &series[name], scale(&goal, name));
            (format!("{times}`{name}`: {} {unit}", figure(theirs)), ratios)
        });
        let (wanted, holds) = match (goal.want, &beside) {
            (Want::AtMost(limit), Some((_, [_, ratio, _]))) => (format!("at most {limit}"), *ratio <= limit),
            (Want::AtLeast(limit), Some((_, [_, ratio, _]))) => (format!("at least {limit}"), *ratio >= limit),
            (Want::Within(limit), _) => (format!("at most {limit} {unit}"), ours <= limit),
            (_, None) => continue,
        };
        let (beside, ratio) = match beside {
            Some((beside, [least, ratio, most])) => (beside, format!("{ratio:.2} ({least:.2} to {most:.2})")),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let holds = if holds { "met" } else { "**not met**" };
        let _ = writeln!(text, "| {} | {} {unit} | {beside} | {ratio} | {wanted} | {holds} |", goal.what, figure(ours));
    }
    text
}

/// The best median of the others, with its name.
fn best<'a>(goal: &'a Goal, series: &BTreeMap<String, Vec<f64>>) -> Option<(&'a str, f64)> {
    let found = goal.theirs.iter().filter_map(|name| {
        let theirs = middle(series.get(name)?)?;
        Some((name.as_str(), theirs * scale(goal, name)))
    });
    match goal.want {
        Want::AtMost(_) => found.min_by(|a, b| a.1.total_cmp(&b.1)),
        Want::AtLeast(_) => found.max_by(|a, b| a.1.total_cmp(&b.1)),
        Want::Within(_) => None,
    }
}

/// UCX prints messages per second, perftest millions.
fn scale(goal: &Goal, name: &str) -> f64 {
    if goal.unit == "Mrate" && name.starts_with("ucx") { 1e-6 } else { 1.0 }
}

/// The least, the median and the greatest ratio. Each ratio is within one run, because the machine
/// changes between runs.
fn ratios(goal: &Goal, ours: &[f64], theirs: &[f64], scale: f64) -> [f64; 3] {
    let factor = goal.times * scale;
    let mut row: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / (theirs * factor)).collect();
    row.sort_by(f64::total_cmp);
    [0, row.len() / 2, row.len().saturating_sub(1)].map(|place| row.get(place).copied().unwrap_or(f64::NAN))
}

fn plots(series: &BTreeMap<String, Vec<f64>>) -> Vec<(&'static str, String)> {
    let line = |name: &str, sizes: &[usize], of: &dyn Fn(usize) -> String| Line {
        name: name.to_owned(),
        points: sizes.iter().filter_map(|size| Some((*size as f64, middle(series.get(&of(*size))?)?))).collect(),
    };
    let sizes = Group::BANDWIDTHS.map(|(_, size)| size);
    let bandwidths = [
        line("ib_write_bw", &sizes, &|size| format!("ib_write_bw -s {size}")),
        line("ib_read_bw", &sizes, &|size| format!("ib_read_bw -s {size}")),
        line("ib_send_bw", &sizes, &|size| format!("ib_send_bw -s {size}")),
        line("UCX, posix", &sizes, &|size| ucx_name(&format!("tag_bw -s {size}"), TRANSPORTS[0])),
        line("UCX, put into its memory", &sizes, &|size| ucx_name(&format!("ucp_put_bw -s {size}"), TRANSPORTS[0])),
        line("UCX, cma", &sizes, &|size| ucx_name(&format!("tag_bw -s {size}"), TRANSPORTS[1])),
        line("a bare ring", &sizes, &|size| format!("baseline ring {size}")),
    ];
    let latencies = [
        line("ib_send_lat", &LATENCIES, &|size| format!("ib_send_lat -s {size}")),
        line("UCX, posix", &LATENCIES, &|size| ucx_name(&format!("tag_lat -s {size}"), TRANSPORTS[0])),
    ];
    let title = format!("two processes, messages of {} and more", Bytes(LATENCIES[0]));
    [
        ("performance-bandwidth.svg", "bandwidth between two processes", "MiB/s", &bandwidths[..]),
        ("performance-latency.svg", &title, "µs, one way", &latencies),
    ]
    .into_iter()
    .filter_map(|(file, title, unit, lines)| {
        Some((file, plot::over_sizes(&Heading { title, caption: &[] }, unit, lines).ok()?))
    })
    .collect()
}

pub(super) fn figure(value: f64) -> String {
    plot::figure(value, DIGITS)
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, placed, table};
    use std::collections::BTreeMap;

    #[test]
    fn text_outside_the_generated_section_is_kept() {
        let section = |words: &str| format!("{BEGIN}\n\n{words}\n\n{END}\n");
        let first = placed("# Page\n\nBy hand.\n", &section("one"));
        assert_eq!(first, format!("# Page\n\nBy hand.\n\n{}", section("one")));
        let second = placed(&format!("{first}\nMore by hand.\n"), &section("two"));
        assert_eq!(second, format!("# Page\n\nBy hand.\n\n{}More by hand.\n", section("two")));
    }

    #[test]
    fn the_best_of_the_peers_counts() {
        let series: BTreeMap<String, Vec<f64>> = [
            ("ib_write_bw -s 4096", vec![100.0, 300.0, 200.0]),
            ("ucx_perftest -t tag_bw -s 4096, UCX_TLS=posix,self", vec![75.0, 200.0, 150.0]),
            ("ucx_perftest -t tag_bw -s 4096, UCX_TLS=tcp,self", vec![50.0]),
            ("ib_send_bw -s 8 -l 16", vec![2.0]),
            ("ucx_perftest -t tag_bw -s 8, UCX_TLS=posix,self", vec![4e6]),
        ]
        .into_iter()
        .map(|(name, row)| (name.to_owned(), row))
        .collect();
        let text = table(&series);
        assert!(text.contains("| 1.33 (1.33 to 1.50) | at least 1.2 | met |"), "{text}");
        assert!(text.contains("UCX_TLS=posix,self`: 150"), "{text}");
        assert!(text.contains("| 0.50 (0.50 to 0.50) | at least 1 | **not met** |"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }
}
