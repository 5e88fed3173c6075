//! Judges which runs of a group were quiet. A run is all probes of the group, once each.
//!
//! Two bare programs run before and after each run, and the kernel's counters are read. A run is
//! disturbed if other programs or the hypervisor took processor time, or if the bare figures
//! changed. The two processors of a virtual machine are near each other at times and far from each
//! other at other times. Both are quiet; only a change within a run is a disturbance. The principal
//! type is [`Run`].

use std::collections::BTreeMap;
use std::fs;

use harness::process;
use serde::{Deserialize, Serialize};

/// Other programs may use this part of all processor time, and the hypervisor as well.
const FOREIGN: f64 = 0.05;
/// Bare figures of a quiet run differ by at most this factor, within the run and from the best.
const CHANGE: f64 = 3.0;
/// Microseconds for a cache line. Below it, the processors are near each other.
const NEAR: f64 = 0.07;

/// What surrounded one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Microseconds of `baseline bounce`, before and after the run.
    bounce: [f64; 2],
    /// MiB/s of `baseline ring 65536`, before and after the run.
    ring: [f64; 2],
    /// The part of all processor time that other programs used.
    foreign: f64,
    /// The part of all processor time that the hypervisor used for others.
    steal: f64,
    /// Whether the processors were near each other.
    pub(super) near: bool,
    /// What disturbed the run; empty if it was quiet.
    pub(super) disturbed: Vec<String>,
}

/// The bare figures and the kernel's counters at one time.
pub(super) struct Look {
    pub(super) bounce: f64,
    pub(super) ring: f64,
    pub(super) ticks: Ticks,
}

/// Processor time since the start of the machine, in clock ticks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Ticks {
    all: u64,
    busy: u64,
    steal: u64,
    /// The time of this program and of its children that have ended.
    own: u64,
    /// The time of each process that works for this program and is not its child.
    helpers: BTreeMap<u32, u64>,
}

impl Run {
    /// A run between two looks, not judged yet.
    pub(super) fn between(before: &Look, after: &Look) -> Self {
        let bounce = [before.bounce, after.bounce];
        let [foreign, steal] = after.ticks.since(&before.ticks);
        let near = bounce.iter().sum::<f64>() < 2.0 * NEAR;
        Self { bounce, ring: [before.ring, after.ring], foreign, steal, near, disturbed: Vec::new() }
    }

    pub(super) fn quiet(&self) -> bool {
        self.disturbed.is_empty()
    }

    /// What disturbed this run. `seen` are all runs of this bench; those with near processors are
    /// compared with each other, and so are the others.
    fn disturbances(&self, seen: &[Self]) -> Vec<String> {
        let alike = || seen.iter().filter(|other| other.near == self.near);
        let quickest = alike().flat_map(|run| run.bounce).fold(f64::MAX, f64::min);
        let most = alike().flat_map(|run| run.ring).fold(0.0, f64::max);
        let differ = |figures: [f64; 2]| figures[0].max(figures[1]) > CHANGE * figures[0].min(figures[1]);
        let found = [
            (self.foreign > FOREIGN, format!("other programs used {:.0} % of the processors", self.foreign * 100.0)),
            (self.steal > FOREIGN, format!("the hypervisor used {:.0} % of the processors", self.steal * 100.0)),
            (differ(self.bounce), "the time of a cache line changed".to_owned()),
            (differ(self.ring), "the bandwidth of a bare ring changed".to_owned()),
            (
                self.bounce[0].max(self.bounce[1]) > CHANGE * quickest,
                "a cache line took longer than in other runs".to_owned(),
            ),
            (self.ring[0].min(self.ring[1]) * CHANGE < most, "a bare ring was slower than in other runs".to_owned()),
        ];
        found.into_iter().filter_map(|(is_so, why)| is_so.then_some(why)).collect()
    }
}

/// Judges the runs of a group again, with the best bare figures of all runs of this bench.
pub(super) fn judge(runs: &mut [Run], seen: &[Run]) {
    for run in runs {
        run.disturbed = run.disturbances(seen);
    }
}

/// The runs that count: the first `wanted` quiet ones. If there are fewer, the least disturbed ones
/// as well.
pub(super) fn chosen(runs: &[Run], wanted: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|a, b| {
        let [a, b] = [&runs[*a], &runs[*b]];
        let taken = |run: &Run| run.foreign + run.steal;
        let by_time = || if a.quiet() { std::cmp::Ordering::Equal } else { taken(a).total_cmp(&taken(b)) };
        a.disturbed.len().cmp(&b.disturbed.len()).then_with(by_time)
    });
    order.truncate(wanted);
    order.sort_unstable();
    order
}

impl Ticks {
    /// The counters now. The agents work for this program and are not its children. So do the
    /// kernel's threads that carry packets.
    pub(super) fn now(agents: &[u32]) -> Result<Self, String> {
        let stat = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
        let own = fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
        let mut ticks = Self::parse(&stat, &own).ok_or("/proc/stat has another format")?;
        // A clock tick is 10 ms.
        let used = |pid| Some((pid, u64::try_from(process::cpu_time(pid)?.as_millis() / 10).ok()?));
        ticks.helpers = agents.iter().copied().chain(packet_threads()).filter_map(used).collect();
        Ok(ticks)
    }

    /// From /proc/stat and /proc/self/stat. Interrupts are not in the busy time, because packets
    /// cause them.
    fn parse(stat: &str, own: &str) -> Option<Self> {
        let row: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, _idle, _iowait, _irq, _softirq, steal, ..] = row[..] else { return None };
        let (_, fields) = own.rsplit_once(") ")?;
        // utime, stime, cutime and cstime of proc(5).
        let own = fields.split_whitespace().skip(11).take(4).map_while(|word| word.parse::<u64>().ok()).sum();
        // The time of guests, in the last two columns, is in user and nice already.
        let all = row.iter().take(8).sum();
        Some(Self { all, busy: user + nice + system, steal, own, helpers: BTreeMap::new() })
    }

    /// The parts of all processor time that other programs and the hypervisor used since `before`.
    fn since(&self, before: &Self) -> [f64; 2] {
        let helped: u64 = self
            .helpers
            .iter()
            .map(|(pid, used)| used.saturating_sub(before.helpers.get(pid).copied().unwrap_or(0)))
            .sum();
        let own = self.own - before.own + helped;
        let foreign = (self.busy - before.busy).saturating_sub(own);
        let all = (self.all - before.all).max(1) as f64;
        [foreign as f64 / all, (self.steal - before.steal) as f64 / all]
    }
}

/// The kernel's threads that carry packets when interrupts are too many.
fn packet_threads() -> impl Iterator<Item = u32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| process::name(*pid).starts_with("ksoftirqd/"))
}

#[cfg(test)]
mod tests {
    use super::{Run, Ticks, chosen, judge};

    /// A run that nothing but these bare figures can disturb.
    fn run(bounce: [f64; 2], ring: [f64; 2]) -> Run {
        let near = bounce[0] < 0.07;
        Run { bounce, ring, foreign: 0.0, steal: 0.0, near, disturbed: Vec::new() }
    }

    fn judged(mut runs: Vec<Run>) -> Vec<Run> {
        let seen = runs.clone();
        judge(&mut runs, &seen);
        runs
    }

    fn near() -> Run {
        run([0.03, 0.035], [50_000.0, 45_000.0])
    }

    fn far() -> Run {
        run([0.13, 0.18], [16_000.0, 14_000.0])
    }

    #[test]
    fn near_and_far_runs_are_both_quiet() {
        assert!(judged(vec![near(), far(), near(), far()]).iter().all(Run::quiet));
    }

    #[test]
    fn a_change_within_a_run_disturbs_it() {
        let runs =
            judged(vec![near(), run([0.03, 0.13], [50_000.0, 40_000.0]), run([0.03, 0.03], [50_000.0, 15_000.0])]);
        assert!(runs[0].quiet());
        assert!(runs[1].disturbed[0].contains("a cache line changed"), "{:?}", runs[1].disturbed);
        assert!(runs[2].disturbed[0].contains("a bare ring changed"), "{:?}", runs[2].disturbed);
    }

    #[test]
    fn a_run_that_is_slower_than_others_of_its_kind_is_disturbed() {
        let slow = run([0.03, 0.03], [15_000.0, 16_000.0]);
        let jammed = run([0.6, 0.61], [12_000.0, 12_000.0]);
        let runs = judged(vec![near(), far(), slow, jammed]);
        let quiet: Vec<bool> = runs.iter().map(Run::quiet).collect();
        assert_eq!(quiet, [true, true, false, false]);
    }

    #[test]
    fn foreign_and_stolen_time_disturb_a_run() {
        let runs = judged(vec![
            Run { foreign: 0.06, ..near() },
            Run { steal: 0.06, ..near() },
            Run { foreign: 0.04, steal: 0.04, ..near() },
        ]);
        assert_eq!(runs[0].disturbed, ["other programs used 6 % of the processors"]);
        assert_eq!(runs[1].disturbed, ["the hypervisor used 6 % of the processors"]);
        assert!(runs[2].quiet());
    }

    #[test]
    fn quiet_runs_count_first_and_the_least_disturbed_follow() {
        let busy = |foreign| Run { foreign, ..near() };
        let runs = judged(vec![busy(0.5), near(), busy(0.1), busy(0.3), near()]);
        assert_eq!(chosen(&runs, 2), [1, 4]);
        assert_eq!(chosen(&runs, 3), [1, 2, 4]);
        assert_eq!(chosen(&runs, 9), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn only_time_of_other_programs_is_foreign() {
        let own = |used: u64| format!("7 (cargo ) xtask) S 1 7 7 0 -1 0 0 0 0 0 {used} 10 20 5 39 19");
        let stat = |user: u64, steal: u64, idle: u64| format!("cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 2\n");
        let before = Ticks::parse(&stat(1000, 10, 1000), &own(100)).unwrap();
        let mut after = Ticks::parse(&stat(1100, 30, 1080), &own(160)).unwrap();
        assert_eq!(after.since(&before), [0.2, 0.1]);
        after.helpers.insert(9, 30);
        assert_eq!(after.since(&before), [0.05, 0.1]);
        assert_eq!(Ticks::parse("cpu  1 2\n", &own(1)), None);
    }
}
