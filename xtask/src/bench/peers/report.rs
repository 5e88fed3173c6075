//! The page that `cargo xtask bench --peers` writes: a table of goals for each part, how quiet the
//! runs were, and plots. It writes only the text between two marks in docs/performance.md, and the
//! plots beside the figures. The principal function is [`write`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plot::{Bytes, Heading, Line};

use super::goals::{self, Goal, Section, Want};
use super::machine::Machine;
use super::probes::{Group, LATENCIES, TRANSPORTS, TUNED, Tuned, shared_name, ucx_name};
use super::quiet::{self, Run};
use super::verdict::{Series, Verdict};
use super::{GroupFigures, Stored, middle};

/// Digits of a printed figure.
const DIGITS: usize = 3;
/// Lines of text wrap here, as in the other pages.
const COLUMNS: usize = 100;
const PAGE: &str = "performance.md";
const BEGIN: &str = "<!-- beside its peers: written by `cargo xtask bench --peers` -->";
const END: &str = "<!-- the end of what is written by `cargo xtask bench --peers` -->";
/// The cause of a missed goal for which goals.rs has none.
const UNKNOWN: &str = "The cause is not known.";

/// Writes the section and the plots from all stored figures into `docs`, and prints the tables. It
/// is an error if a missed goal has no cause.
pub(super) fn write(docs: &Path, stored: &Stored) -> Result<(), String> {
    if stored.is_empty() {
        return Err(format!("there are no figures in {}", docs.join("performance").display()));
    }
    let page = docs.join(PAGE);
    let section = section(stored);
    // A folder in place of docs/ has no page yet.
    let text = fs::read_to_string(&page).unwrap_or_default();
    fs::write(&page, placed(&text, &section)).map_err(|error| format!("{}: {error}", page.display()))?;
    for (folder, groups) in stored {
        let all: Series = groups.iter().flat_map(|(_, figures)| figures.chosen()).collect();
        for (file, svg) in plots(&all) {
            let file = docs.join("performance").join(folder).join(file);
            fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    println!("{section}\nwritten to {}", page.display());
    let goals = goals::all();
    let series: Vec<Series> = stored.values().flatten().map(|(_, figures)| figures.chosen()).collect();
    let unknown = series.iter().flat_map(|group| goals.iter().filter_map(|goal| Verdict::of(goal, group)));
    let unknown: Vec<&str> = unknown
        .filter(|verdict| !verdict.met && verdict.goal.cause.is_empty())
        .map(|verdict| verdict.goal.what.as_str())
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(format!("missed, without a cause in xtask/src/bench/peers/goals.rs: {}", unknown.join("; ")))
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

fn section(stored: &Stored) -> String {
    let mut text = format!("{BEGIN}\n\n## Beside its peers\n\n");
    text += "`cargo xtask bench --peers` writes this section. Figures are medians of the runs that count. A ratio\n\
             is within one run; the tables have the median ratio, and the lowest and the highest. All figures of\n\
             every run are in [performance/](performance/). [Quiet runs](#quiet-runs) says which runs count.\n";
    for (folder, groups) in stored {
        let machines: Vec<&Machine> = groups.iter().map(|(_, figures)| &figures.machine).collect();
        let Some(machine) = machines.first() else { continue };
        let _ = writeln!(text, "\n### {}\n\n{}\n", machine.kind(), measured(&machines));
        text += &runs(groups);
        let series: Vec<Series> = groups.iter().map(|(_, figures)| figures.chosen()).collect();
        text += &tables(&series);
        for (file, _) in plots(&series.into_iter().flatten().collect()) {
            let _ = writeln!(text, "\n![{}](performance/{folder}/{file})", file.trim_end_matches(".svg"));
        }
    }
    text += "\n### UCX's settings\n\nUCX gets its transport as the names say. Over shared memory\n\
             (`UCX_TLS=posix,self`), it also gets:\n\n";
    for Tuned { tests, size, settings, why } in TUNED {
        let words: Vec<String> = settings.iter().map(|(name, value)| format!("`{name}={value}`")).collect();
        text += &item(&format!("for {} of {}: {}: {why}.", tests.join(" and "), Bytes(*size), words.join(" ")));
    }
    let _ = writeln!(text, "\n{END}");
    text
}

/// With what, and when.
fn measured(machines: &[&Machine]) -> String {
    let all = |of: fn(&Machine) -> &String| -> String {
        let values: BTreeSet<&str> = machines.iter().map(|machine| of(machine).as_str()).collect();
        values.into_iter().collect::<Vec<_>>().join(", ")
    };
    let [softhca, kernel, date] = [all(|one| &one.softhca), all(|one| &one.kernel), all(|one| &one.date)];
    format!("softhca {softhca}, Linux {kernel}, measured on {date}.")
}

/// How quiet the runs of each group were.
fn runs(groups: &[(Group, GroupFigures)]) -> String {
    let mut text = "| group | runs that count | quiet | processors near | far | other runs, all disturbed |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    for (group, figures) in groups {
        let chosen = quiet::chosen(&figures.runs, figures.wanted);
        let count = |is_so: fn(&Run) -> bool| chosen.iter().filter(|run| is_so(&figures.runs[**run])).count();
        let (all, quiet, near) = (chosen.len(), count(Run::quiet), count(|run| run.near));
        let (far, others) = (all - near, figures.runs.len() - all);
        let _ = writeln!(text, "| {} | {all} | {quiet} | {near} | {far} | {others} |", group.name());
    }
    text
}

/// A table for each part. A goal is judged by the figures of one group. Goals without a measurement
/// have no row.
pub(super) fn tables(groups: &[Series]) -> String {
    let mut text = String::new();
    let goals = goals::all();
    for part in Section::ALL {
        let of_part = goals.iter().filter(|goal| goal.part == part);
        let verdict = |goal| groups.iter().find_map(|series| Verdict::of(goal, series));
        let verdicts: Vec<Verdict<'_>> = of_part.filter_map(verdict).collect();
        if verdicts.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n#### {}\n\n| what | softhca | compared with | ratio | goal | |", part.title());
        text += "|---|---|---|---|---|---|\n";
        verdicts.iter().for_each(|verdict| text += &row(verdict));
        text += &causes(&verdicts);
    }
    text
}

fn row(verdict: &Verdict<'_>) -> String {
    let Goal { what, unit, times, want, .. } = verdict.goal;
    let (beside, ratio) = match &verdict.beside {
        Some(beside) => {
            let times = if *times == 1.0 { String::new() } else { format!("{times} × ") };
            let [least, ratio, most] = beside.ratios;
            let ratio = format!("{ratio:.2} ({least:.2} to {most:.2})");
            (format!("{times}`{}`: {} {unit}", beside.name, figure(beside.figure)), ratio)
        }
        None => ("–".to_owned(), "–".to_owned()),
    };
    let wanted = match want {
        Want::AtMost(limit) => format!("at most {limit}"),
        Want::AtLeast(limit) => format!("at least {limit}"),
        Want::Within(limit) => format!("at most {limit} {unit}"),
        Want::Compared => "–".to_owned(),
    };
    let met = match want {
        Want::Compared => "",
        _ if verdict.met => "met",
        _ => "**not met**",
    };
    format!("| {what} | {} {unit} | {beside} | {ratio} | {wanted} | {met} |\n", figure(verdict.ours))
}

/// The causes of the missed goals, once each.
fn causes(verdicts: &[Verdict<'_>]) -> String {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for Verdict { goal, .. } in verdicts.iter().filter(|verdict| !verdict.met) {
        let cause = if goal.cause.is_empty() { UNKNOWN } else { goal.cause };
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, whats)) if whats.contains(&goal.what.as_str()) => {}
            Some((_, whats)) => whats.push(&goal.what),
            None => causes.push((cause, vec![&goal.what])),
        }
    }
    let mut text = if causes.is_empty() { String::new() } else { "\nWhy goals are not met:\n\n".to_owned() };
    for (cause, whats) in causes {
        text += &item(&format!("{}: {cause}", whats.join("; ")));
    }
    text
}

/// An item of a list, wrapped.
fn item(words: &str) -> String {
    let mut text = "*".to_owned();
    let mut column = text.len();
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if column + 1 + width > COLUMNS {
            text.push_str("\n ");
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + width;
    }
    text + "\n"
}

const BANDWIDTH: &str = "bandwidth.svg";
const LATENCY: &str = "latency.svg";

/// A line of a plot: its name, and the series of each size.
type Plotted = (&'static str, Vec<(usize, String)>);

/// The lines of both plots.
fn lines() -> [Vec<Plotted>; 2] {
    let over = |sizes: &[usize], of: &dyn Fn(usize) -> String| sizes.iter().map(|size| (*size, of(*size))).collect();
    let sizes = Group::BANDWIDTHS.map(|(_, size)| size);
    let perftest = |program: &'static str| (program, over(&sizes, &|size| format!("{program} -s {size}")));
    let ucx = |test: &str, transports| over(&sizes, &|size| ucx_name(&format!("{test} -s {size}"), transports));
    let shared = over(&sizes, &|size| shared_name(&format!("ib_write_bw -s {size}")));
    let bandwidths = vec![
        perftest("ib_write_bw"),
        perftest("ib_read_bw"),
        perftest("ib_send_bw"),
        ("ib_write_bw, shared memory", shared),
        ("UCX, posix", ucx("tag_bw", TRANSPORTS[0])),
        ("UCX, put into its memory", ucx("ucp_put_bw", TRANSPORTS[0])),
        ("UCX, cma", ucx("tag_bw", TRANSPORTS[1])),
        ("a bare ring", over(&sizes, &|size| format!("baseline ring {size}"))),
    ];
    let latencies = vec![
        ("ib_send_lat", over(&LATENCIES, &|size| format!("ib_send_lat -s {size}"))),
        ("UCX, posix", over(&LATENCIES, &|size| ucx_name(&format!("tag_lat -s {size}"), TRANSPORTS[0]))),
    ];
    [bandwidths, latencies]
}

/// The names of the series in the plots.
#[cfg(test)]
pub(super) fn plotted() -> BTreeSet<String> {
    lines().into_iter().flatten().flat_map(|(_, points)| points).map(|(_, name)| name).collect()
}

fn plots(series: &Series) -> Vec<(&'static str, String)> {
    let [bandwidths, latencies] = lines().map(|lines| -> Vec<Line> {
        let point = |(size, name): (usize, String)| Some((size as f64, middle(series.get(&name)?)?));
        let line = |(name, points): Plotted| Line {
            name: name.to_owned(),
            points: points.into_iter().filter_map(point).collect(),
        };
        lines.into_iter().map(line).collect()
    });
    let title = format!("two processes, messages of {} and more", Bytes(LATENCIES[0]));
    [
        (BANDWIDTH, "bandwidth between two processes", "MiB/s", bandwidths),
        (LATENCY, title.as_str(), "µs, one way", latencies),
    ]
    .into_iter()
    .filter_map(|(file, title, unit, lines)| {
        Some((file, plot::over_sizes(&Heading { title, caption: &[] }, unit, &lines).ok()?))
    })
    .collect()
}

pub(super) fn figure(value: f64) -> String {
    plot::figure(value, DIGITS)
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, Series, item, placed, tables};

    #[test]
    fn text_outside_the_generated_section_is_kept() {
        let section = |words: &str| format!("{BEGIN}\n\n{words}\n\n{END}\n");
        let first = placed("# Page\n\nBy hand.\n", &section("one"));
        assert_eq!(first, format!("# Page\n\nBy hand.\n\n{}", section("one")));
        let second = placed(&format!("{first}\nMore by hand.\n"), &section("two"));
        assert_eq!(second, format!("# Page\n\nBy hand.\n\n{}More by hand.\n", section("two")));
    }

    fn series(rows: &[(&str, &[f64])]) -> Series {
        rows.iter().map(|(name, row)| ((*name).to_owned(), row.to_vec())).collect()
    }

    #[test]
    fn a_missed_goal_has_its_cause_below_the_table() {
        let rate =
            series(&[("ib_send_bw -s 8 -l 16", &[2.0]), ("ucx_perftest -t tag_bw -s 8, UCX_TLS=posix,self", &[4e6])]);
        let control = series(&[("controls pages", &[0.0]), ("softhca run", &[9.0])]);
        let text = tables(&[rate, control]);
        assert!(
            text.contains("| 2.00 million/s | `ucx_perftest -t tag_bw -s 8, UCX_TLS=posix,self`: 4.00 million/s |"),
            "{text}"
        );
        assert!(text.contains("| 0.50 (0.50 to 0.50) | at least 1 | **not met** |"), "{text}");
        assert!(text.contains("* `ib_send_bw -s 8 -l 16`: A message takes"), "{text}");
        assert!(text.contains("| – | – | at most 0 pages | met |"), "{text}");
        assert_eq!(text.matches("####").count(), 2, "{text}");
    }

    #[test]
    fn a_bandwidth_without_a_goal_is_neither_met_nor_missed() {
        let figures = [("iperf3, TCP over IPoIB, connected", &[300.0][..]), ("iperf3, TCP without IPoIB", &[1200.0])];
        let text = tables(&[series(&figures)]);
        assert!(text.contains("1200 MiB/s | 0.25 (0.25 to 0.25) | – |  |\n"), "{text}");
        assert!(!text.contains("met"), "{text}");
    }

    #[test]
    fn items_wrap_at_100_columns() {
        let text = item(&["`ib_write_bw`"; 20].join(" "));
        assert!(
            text.starts_with("* `ib_write_bw` ") && text.lines().skip(1).all(|line| line.starts_with("  `")),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 100) && text.lines().count() == 3, "{text}");
    }

    #[test]
    fn figures_of_another_group_are_not_compared() {
        let ours = series(&[("ib_write_lat -s 8", &[9.0])]);
        let theirs = series(&[("baseline futex", &[9.0])]);
        assert_eq!(tables(&[ours, theirs]), "");
    }
}
