//! `cargo xtask bench --peers --quick`: measures the goals in a few interleaved runs, and prints
//! them. It stores nothing.
//!
//! With `--against`, it measures another build in the same runs. Each figure of the new build is
//! printed beside that of the old one. This is for people who change the data path. Groups whose
//! figures need many processes or two hosts are left out. The principal function is [`run`].

use std::collections::HashSet;
use std::fmt::Write as _;

use harness::Dist;

use super::goals::{self, Want};
use super::probes::{self, Group, Probe, What};
use super::quiet::{self, Run};
use super::verdict::Series;
use super::{BenchRooms, middle, report};

/// The groups to measure. They take less than ten minutes on two processors.
const GROUPS: [Group; 8] =
    [Group::Latency, Group::Rate, Group::Shared, Group::Bw4k, Group::Bw64k, Group::Bw1m, Group::Event, Group::Scale];
/// A median that is worse than the old one by more than this part is marked.
const MARGIN: f64 = 0.05;

/// Measures `new` with its peers, and with `old` if it is given. Prints the tables.
pub(super) fn run(new: &Dist, old: Option<&Dist>, groups: &[Group], runs: usize) -> Result<(), String> {
    let groups = if groups.is_empty() { &GROUPS[..] } else { groups };
    let wanted = goals::all();
    let counts = |probe: &Probe| wanted.iter().any(|goal| goal.ours == probe.name || goal.theirs.contains(&probe.name));
    let mut names = HashSet::new();
    let all = groups.iter().flat_map(|group| probes::of(*group)).filter(counts);
    let probes: Vec<Probe> = all.filter(|probe| names.insert(probe.name.clone())).collect();
    if probes.is_empty() {
        return Err("none of these groups can be measured quickly: leave out --quick".to_owned());
    }
    let bench = BenchRooms::new(new)?;
    let beside = old.map(BenchRooms::new).transpose()?;
    let (mut ours, mut theirs) = (Series::new(), Series::new());
    let agents: Vec<u32> =
        [Some(&bench), beside.as_ref()].into_iter().flatten().filter_map(|bench| bench.room.agent()).collect();
    let (mut before, mut judged) = (bench.look(&agents)?, Vec::new());
    for run in 1..=runs {
        for (number, probe) in probes.iter().enumerate() {
            eprintln!("run {run} of {runs}, {} of {}: {}", number + 1, probes.len(), probe.name);
            add(&mut ours, &bench, probe)?;
            if let Some(beside) = beside.as_ref().filter(|_| is_softhca(probe)) {
                add(&mut theirs, beside, probe)?;
            }
        }
        let after = bench.look(&agents)?;
        judged.push(Run::between(&before, &after));
        before = after;
    }
    let seen = judged.clone();
    quiet::judge(&mut judged, &seen);
    println!("{}", report::tables(&[ours.clone()]));
    for (number, run) in judged.iter().enumerate() {
        let place = if run.near { "near each other" } else { "far from each other" };
        let quiet = if run.quiet() { "quiet".to_owned() } else { run.disturbed.join("; ") };
        println!("run {}: {quiet}; the processors are {place}", number + 1);
    }
    if old.is_some() {
        println!("{}", comparison(&ours, &theirs));
    }
    Ok(())
}

fn add(series: &mut Series, bench: &BenchRooms, probe: &Probe) -> Result<(), String> {
    let figure = bench.figure(probe).map_err(|why| format!("{}: {why}", probe.name))?;
    series.entry(probe.name.clone()).or_default().push(figure);
    Ok(())
}

/// Whether a probe runs on softhca. Only then can two builds differ.
fn is_softhca(probe: &Probe) -> bool {
    !matches!(probe.what, What::Ucx { .. } | What::Pingpong { .. } | What::Baseline { .. })
}

/// The new figures beside the old ones. A new median that is worse by more than [`MARGIN`] is
/// marked.
fn comparison(new: &Series, old: &Series) -> String {
    let mut text = "| what | old | new | new / old | |\n|---|---|---|---|---|\n".to_owned();
    for (name, before) in old {
        let (Some(before), Some(after)) = (middle(before), new.get(name).and_then(|row| middle(row))) else { continue };
        let ratio = after / before;
        let worse = if is_time(name) { ratio > 1.0 + MARGIN } else { ratio < 1.0 - MARGIN };
        let mark = if worse { "**worse**" } else { "" };
        let [before, after] = [before, after].map(report::figure);
        let _ = writeln!(text, "| `{name}` | {before} | {after} | {ratio:.2} | {mark} |");
    }
    text
}

/// Whether a smaller figure is better.
fn is_time(name: &str) -> bool {
    goals::all().iter().any(|goal| goal.ours == name && matches!(goal.want, Want::AtMost(_) | Want::Within(_)))
        || name.contains("_lat")
}

#[cfg(test)]
mod tests {
    use super::{Series, comparison, is_time};

    fn series(rows: &[(&str, &[f64])]) -> Series {
        rows.iter().map(|(name, row)| ((*name).to_owned(), row.to_vec())).collect()
    }

    #[test]
    fn a_slower_median_is_marked_and_a_faster_one_is_not() {
        let old = series(&[("ib_send_lat -s 8", &[0.2, 0.2, 9.0]), ("ib_send_bw -s 4096", &[100.0, 100.0, 1.0])]);
        let slower = series(&[("ib_send_lat -s 8", &[0.22, 0.1, 0.22]), ("ib_send_bw -s 4096", &[94.0, 94.0, 200.0])]);
        assert_eq!(comparison(&slower, &old).matches("worse").count(), 2);
        let faster = series(&[("ib_send_lat -s 8", &[0.1, 0.2, 0.205]), ("ib_send_bw -s 4096", &[99.0, 120.0, 1.0])]);
        assert_eq!(comparison(&faster, &old).matches("worse").count(), 0);
    }

    #[test]
    fn times_and_rates_are_told_apart() {
        assert!(is_time("ib_send_lat -s 256") && is_time("ib_read_lat -s 8"));
        assert!(!is_time("ib_write_bw -s 8") && !is_time("ib_atomic_bw -A FETCH_AND_ADD"));
    }
}
