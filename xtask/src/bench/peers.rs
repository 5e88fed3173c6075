//! `cargo xtask bench --peers`: compares softhca with other ways to move bytes between two
//! processes of this machine, in one run.
//!
//! The peers are UCX and libfabric with the settings in [`probes`], and programs of this project
//! that use only the hardware or the kernel (`suite/programs/baseline.c`). A run of a group is all
//! its probes in turn. [`quiet`] judges which runs count: a disturbed run is repeated, up to twice
//! the number of runs asked for. A ratio is always within one run. Every figure is stored as JSON
//! in a folder for this [`machine`] kind, one file for each group. [`goals`] contains the goals,
//! [`verdict`] judges them, and [`report`] writes them to docs/performance.md.
//!
//! `taskset` pins both sides of every pair, softhca's and the peers', to one processor each: the
//! server to the first, the client to the last.

mod goals;
mod machine;
mod probes;
mod quick;
mod quiet;
mod report;
mod venue;
mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use harness::port::{self, Port};
use harness::{Dist, HANG, Outcome, Pair, Room, Sides, User, cprogram};
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;
use crate::{debian, dist};
use machine::Machine;
pub(crate) use probes::Group;
use probes::{Probe, UcxColumn, What};
use quiet::{Look, Run, Ticks};
use venue::Venue;
use verdict::Series;

/// The processors of the server and the client.
const SERVER: &str = "0";
const CLIENT: &str = "1";

/// How often each bare program runs between two runs of a group. The median counts.
const GLANCES: usize = 3;
/// How often a program is started to measure its start.
const STARTS: usize = 20;
/// How many times as many runs may be made, if runs are disturbed.
const TRIES: usize = 2;

/// All figures of a group.
#[derive(Debug, Serialize, Deserialize)]
struct GroupFigures {
    machine: Machine,
    /// How many runs were asked for.
    wanted: usize,
    /// All runs, also the disturbed ones.
    runs: Vec<Run>,
    /// The figures by probe name, one for each run.
    series: Series,
}

/// The figures of each group, by the folder of their kind of machine.
type Stored = BTreeMap<String, Vec<(Group, GroupFigures)>>;

/// Prints a few interleaved runs beside the peers, and beside `against` if it is given.
pub(crate) fn quick(
    workspace: &Workspace,
    groups: &[Group],
    runs: usize,
    folder: Option<PathBuf>,
    against: Option<PathBuf>,
) -> Result<(), String> {
    debian::require(debian::PEERS)?;
    let old = against.as_deref().map(at).transpose()?;
    let new = folder.map_or_else(|| dist::run(workspace), |folder| at(&folder))?;
    quick::run(&new, old.as_ref(), groups, runs)
}

/// Measures these groups, stores their figures, and writes the page from all stored figures.
/// `folder` takes the place of docs/.
pub(crate) fn run(
    workspace: &Workspace,
    groups: &[Group],
    runs: usize,
    folder: Option<PathBuf>,
    dist: Option<PathBuf>,
) -> Result<(), String> {
    let docs = folder.unwrap_or_else(|| workspace.root().join("docs"));
    let raw = docs.join("performance");
    if !groups.contains(&Group::Report) {
        debian::require(debian::PEERS)?;
        let dist = match dist {
            Some(dist) => at(&dist)?,
            None => dist::run(workspace)?,
        };
        let every: Vec<Group> = if groups.is_empty() { Group::MEASURED.to_vec() } else { groups.to_vec() };
        let mut seen = Vec::new();
        for group in every {
            measure(&dist, group, runs, &raw, &mut seen)?;
        }
    }
    report::write(&docs, &GroupFigures::stored(&raw)?)
}

fn at(folder: &Path) -> Result<Dist, String> {
    Ok(Dist::at(folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?))
}

/// Measures a group until enough of its runs are quiet. `seen` are the runs of all groups so far.
fn measure(dist: &Dist, group: Group, runs: usize, raw: &Path, seen: &mut Vec<Run>) -> Result<(), String> {
    let bench = BenchRooms::new(dist)?;
    let venues = Venue::of(group, dist)?;
    let probes = probes::of(group);
    if probes.is_empty() && venues.is_empty() {
        eprintln!("{}: left out, because it needs root", group.name());
        return Ok(());
    }
    let agents =
        || -> Vec<u32> { venues.iter().flat_map(Venue::rooms).chain([&bench.room]).filter_map(Room::agent).collect() };
    let mut figures = GroupFigures {
        machine: Machine::here(bench.version()?)?,
        wanted: runs,
        runs: Vec::new(),
        series: Series::new(),
    };
    let mut before = bench.look(&agents())?;
    let mut quiet = 0;
    while quiet < runs && figures.runs.len() < TRIES * runs {
        eprintln!("{}, run {}: {quiet} of {runs} are quiet", group.name(), figures.runs.len() + 1);
        for probe in &probes {
            let figure = bench.figure(probe).map_err(|why| format!("{}: {why}", probe.name))?;
            figures.series.entry(probe.name.clone()).or_default().push(figure);
        }
        for venue in &venues {
            for (name, figure) in venue.run()? {
                figures.series.entry(name).or_default().push(figure);
            }
        }
        let after = bench.look(&agents())?;
        let run = Run::between(&before, &after);
        seen.push(run.clone());
        figures.runs.push(run);
        quiet::judge(&mut figures.runs, seen);
        quiet = figures.runs.iter().filter(|run| run.quiet()).count();
        figures.keep(group, raw)?;
        before = after;
    }
    Ok(())
}

impl GroupFigures {
    /// Stores the figures so far, so that a later failure does not lose them.
    fn keep(&self, group: Group, raw: &Path) -> Result<(), String> {
        let folder = raw.join(self.machine.folder());
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let file = folder.join(format!("{}.json", group.name()));
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(&file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))
    }

    /// The figures of every group and every kind of machine, by folder and group.
    fn stored(raw: &Path) -> Result<Stored, String> {
        let mut stored = Stored::new();
        for folder in fs::read_dir(raw).into_iter().flatten().flatten() {
            for group in Group::MEASURED {
                let file = folder.path().join(format!("{}.json", group.name()));
                let Ok(text) = fs::read_to_string(&file) else { continue };
                let figures = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
                let kind = folder.file_name().to_string_lossy().into_owned();
                stored.entry(kind).or_default().push((group, figures));
            }
        }
        Ok(stored)
    }

    /// The figures of the runs that count.
    fn chosen(&self) -> Series {
        let runs = quiet::chosen(&self.runs, self.wanted);
        let of = |row: &Vec<f64>| runs.iter().filter_map(|run| row.get(*run).copied()).collect();
        self.series.iter().map(|(name, row)| (name.clone(), of(row))).collect()
    }
}

/// A room with this project's own programs.
struct BenchRooms {
    room: Room,
    /// The same agent; programs have shared memory.
    shared: Room,
    baseline: PathBuf,
    controls: PathBuf,
    mesh: PathBuf,
    all_to_all: PathBuf,
}

impl BenchRooms {
    fn new(dist: &Dist) -> Result<Self, String> {
        let room = Room::with(dist.clone())?;
        room.start_agent()?;
        let shared = room.guest(User::Me)?.with_shared_memory();
        let built = |name| cprogram::build(&room, name);
        let [baseline, controls, mesh, all_to_all] = ["baseline", "controls", "mesh", "alltoall"].map(built);
        let (baseline, controls, mesh, all_to_all) = (baseline?, controls?, mesh?, all_to_all?);
        Ok(Self { room, shared, baseline, controls, mesh, all_to_all })
    }

    fn figure(&self, probe: &Probe) -> Result<f64, String> {
        match &probe.what {
            What::Perftest { words, column, shared } => {
                let room = if *shared { &self.shared } else { &self.room };
                perftest(room, words, column)
            }
            What::Ucx { words, transports, settings, column } => self.ucx(words, transports, settings, *column),
            What::Pingpong { words } => self.pingpong(words),
            What::Baseline { words } => {
                let words = words.split_whitespace();
                number(&self.room.finish(self.room.command(&self.baseline, words))?)
            }
            What::Controls { words } => {
                let agent = self.room.agent().ok_or("the agent is gone")?.to_string();
                let words = words.replace("AGENT", &agent);
                let mut all = vec!["taskset", "-c", CLIENT, self.controls.to_str().ok_or("a plain path")?];
                all.extend(words.split_whitespace());
                number(&self.room.finish_run(&all)?)
            }
            What::Threads { words } => self.own(&[], &self.controls, words),
            What::Mesh { words } => self.own(&[], &self.mesh, words),
            What::AllToAll { words } => self.own(&[], &self.all_to_all, words),
            What::Waits { words, messages } => self.waits(words, *messages),
            What::BesideIdle { words, column } => self.beside_idle_ones(words, column),
            What::Startup => self.startup(),
        }
    }

    /// Runs one of this project's programs on all processors, and returns the number that it
    /// prints.
    fn own(&self, before: &[&str], program: &Path, words: &str) -> Result<f64, String> {
        let words = words.replace("AGENT", &self.room.agent().ok_or("the agent is gone")?.to_string());
        let program = program.to_str().ok_or("a plain path")?;
        let all: Vec<&str> = before.iter().copied().chain([program]).chain(words.split_whitespace()).collect();
        number(&self.room.finish_run(&all)?)
    }

    /// How often threads sleep for a lock, per thousand messages. strace counts this. It traces
    /// only these system calls, so code without system calls is not slowed down. At the beginning
    /// and the end each thread waits once for each other thread.
    fn waits(&self, words: &str, messages: f64) -> Result<f64, String> {
        let file = self.room.folder().join("futex");
        let told = file.to_str().ok_or("a plain path")?;
        self.own(&["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=futex", "-o", told], &self.controls, words)?;
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(text.lines().filter(|line| line.contains("futex(") && line.contains("FUTEX_WAIT")).count() as f64 / messages
            * 1e3)
    }

    /// Runs a pair without softhca, on the same processors.
    fn peers(&self, words: &str, environment: &[(&str, &str)]) -> Result<Outcome, String> {
        let port = Port::reserve()?;
        let number = port.number().to_string();
        let side = |processor: &str, more: &[&str]| {
            let words = words.replace("PORT", &number);
            let mut command = self.room.command("taskset", ["-c", processor]);
            command.args(words.split_whitespace()).args(more).env_remove("LD_LIBRARY_PATH");
            command.envs(environment.iter().copied());
            self.room.start(command)
        };
        let mut server = side(SERVER, &[])?;
        port::wait_for_listener(server.id(), port.number(), HANG, || server.ended())?;
        let client = if words.starts_with("fi_") {
            let words = words.replace("-B PORT", &format!("-P {number}"));
            let mut command = self.room.command("taskset", ["-c", CLIENT]);
            command.args(words.split_whitespace()).arg("127.0.0.1").env_remove("LD_LIBRARY_PATH");
            self.room.start(command)?.wait(HANG)?
        } else {
            side(CLIENT, &["127.0.0.1", "-f"])?.wait(HANG)?
        };
        server.wait(HANG)?;
        if client.succeeded() { Ok(client) } else { Err(client.told()) }
    }

    fn ucx(&self, words: &str, transports: &str, settings: &[(&str, &str)], column: UcxColumn) -> Result<f64, String> {
        let mut environment = [probes::UCX_SETTINGS, settings].concat();
        environment.push(("UCX_TLS", transports));
        let client = self.peers(&format!("ucx_perftest -p PORT {words}"), &environment)?;
        let row = client.output.lines().rev().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        let figure = row.and_then(|row| row.split_whitespace().nth(column.place())?.parse().ok());
        figure.ok_or_else(|| client.told())
    }

    /// libfabric's ping-pong already prints the time of one way, so this figure is not halved.
    fn pingpong(&self, words: &str) -> Result<f64, String> {
        let client = self.peers(&format!("fi_pingpong -B PORT {words}"), &[])?;
        let row = client.output.lines().rev().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        // The columns: bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec.
        let figure = row.and_then(|row| row.split_whitespace().rev().nth(1)?.parse().ok());
        figure.ok_or_else(|| client.told())
    }

    /// Measures a figure while pairs of connected processes are idle.
    fn beside_idle_ones(&self, words: &str, column: &str) -> Result<f64, String> {
        use rustix::process::Signal;
        let mut idle = Vec::new();
        for _ in 0..probes::IDLE_PAIRS {
            let mut pair = Pair::start(&self.room, &["ibv_rc_pingpong", "-g", "0", "-e", "-n", "100000000"])?;
            let client = pair.client.inner("ibv_rc_pingpong", HANG)?;
            harness::wait::until(HANG, "an idle pair to be connected", || {
                let rows = self.room.show("qp").ok()?;
                rows.as_array()?.iter().any(|row| row["pid"] == client && row["path"] != "none").then_some(())
            })?;
            harness::program::send(client, Signal::STOP);
            idle.push((pair, client));
        }
        let figure = perftest(&self.room, words, column);
        for (pair, client) in &idle {
            harness::program::send(*client, Signal::KILL);
            pair.server.signal(Signal::TERM);
        }
        figure
    }

    /// How many milliseconds more a program takes under `softhca run`: the difference of the
    /// medians of two programs that alternate.
    fn startup(&self) -> Result<f64, String> {
        let timed = |mut command: Command| -> Result<f64, String> {
            let started = Instant::now();
            let status = command.stdin(Stdio::null()).status().map_err(|error| format!("{command:?}: {error}"))?;
            let spent = started.elapsed();
            if status.success() { Ok(spent.as_secs_f64() * 1e3) } else { Err(format!("{command:?}: {status}")) }
        };
        let (mut bare, mut run) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            bare.push(timed(self.room.command("/bin/true", [""; 0]))?);
            run.push(timed(self.room.run(&["/bin/true"]))?);
        }
        Ok(middle(&run).unwrap_or(f64::NAN) - middle(&bare).unwrap_or(f64::NAN))
    }

    /// The version of the measured softhca.
    fn version(&self) -> Result<String, String> {
        let outcome = self.room.finish(self.room.softhca(&["--version"]))?;
        Ok(outcome.output.trim().trim_start_matches("softhca ").to_owned())
    }

    /// Measures what the machine can do at this time.
    fn look(&self, agents: &[u32]) -> Result<Look, String> {
        let bare = |words: &str| -> Result<f64, String> {
            let mut row = Vec::new();
            for _ in 0..GLANCES {
                row.push(number(&self.room.finish(self.room.command(&self.baseline, words.split_whitespace()))?)?);
            }
            middle(&row).ok_or_else(|| "no figure".to_owned())
        };
        Ok(Look { bounce: bare("bounce")?, ring: bare("ring 65536")?, ticks: Ticks::now(agents)? })
    }
}

/// Runs perftest in a room, each side on its processor.
fn perftest(room: &Room, words: &str, column: &str) -> Result<f64, String> {
    let on =
        |processor| -> Vec<&str> { ["taskset", "-c", processor].into_iter().chain(words.split_whitespace()).collect() };
    let start = || Pair::start_different(room, &on(SERVER), room, &on(CLIENT));
    super::figure(&Sides::measured(|| start()?.wait(HANG))?, column)
}

/// The number that one of this project's programs has printed.
fn number(outcome: &Outcome) -> Result<f64, String> {
    let found = outcome.output.lines().last().and_then(|line| line.trim().parse().ok());
    found.filter(|_| outcome.succeeded()).ok_or_else(|| outcome.told())
}

/// The median of a series.
fn middle(row: &[f64]) -> Option<f64> {
    let mut row = row.to_vec();
    row.sort_by(f64::total_cmp);
    let (low, high) = (row.get(row.len().checked_sub(1)? / 2)?, row.get(row.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::middle;

    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert_eq!(middle(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(middle(&[4.0, 1.0, 9.0]), Some(4.0));
        assert_eq!(middle(&[]), None);
    }
}
