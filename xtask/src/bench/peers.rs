//! `cargo xtask bench --peers`: compares softhca with other ways to move bytes between two
//! processes of this machine, in one run.
//!
//! The peers are UCX and libfabric with the settings below, and programs of this project that use
//! only the hardware or the kernel (`suite/programs/baseline.c`). [`probes`] lists the
//! measurements. All probes of a group alternate, `--runs` times. Medians count; a ratio is always
//! within one run. Every figure is stored as JSON, one file for each group. [`goals`] contains the
//! goals. [`report`] writes figures and goals to docs/performance.md.
//!
//! `taskset` pins both sides of every pair, softhca's and the peers', to one processor each: the
//! server to the first, the client to the last.

mod goals;
mod probes;
mod quick;
mod report;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use harness::port::{self, Port};
use harness::{Dist, HANG, Outcome, Pair, Room, Sides, cprogram, figures};
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;
use crate::{debian, dist};
pub(crate) use probes::Group;
use probes::{Column, Probe, What};

/// The processors of the server and the client.
const SERVER: &str = "0";
const CLIENT: &str = "1";

/// All figures of a group.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Figures {
    processors: usize,
    softhca: String,
    kernel: String,
    /// The figures by probe name, one for each run.
    series: BTreeMap<String, Vec<f64>>,
}

/// Prints a few interleaved runs beside the peers, and beside `against` if it is given.
pub(crate) fn quick(
    workspace: &Workspace,
    groups: &[Group],
    runs: usize,
    folder: Option<PathBuf>,
    against: Option<PathBuf>,
) -> Result<(), String> {
    debian::require(debian::PEERS)?;
    let at = |folder: PathBuf| -> Result<Dist, String> {
        Ok(Dist::at(folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?))
    };
    let old = against.map(at).transpose()?;
    let new = folder.map_or_else(|| dist::run(workspace), at)?;
    quick::run(&new, old.as_ref(), groups, runs)
}

/// Measures these groups, stores their figures in `raw`, and writes the page from all stored
/// figures.
pub(crate) fn run(
    workspace: &Workspace,
    groups: &[Group],
    runs: usize,
    raw: Option<PathBuf>,
    folder: Option<PathBuf>,
) -> Result<(), String> {
    let raw = raw.unwrap_or_else(|| workspace.target().join("bench-peers"));
    fs::create_dir_all(&raw).map_err(|error| format!("{}: {error}", raw.display()))?;
    if !groups.contains(&Group::Report) {
        debian::require(debian::PEERS)?;
        let dist = match folder {
            Some(folder) => Dist::at(folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?),
            None => dist::run(workspace)?,
        };
        let every: Vec<Group> = if groups.is_empty() { Group::MEASURED.to_vec() } else { groups.to_vec() };
        for group in every {
            measure(&dist, group, runs, &raw)?;
        }
    }
    report::write(workspace, &raw)
}

fn measure(dist: &Dist, group: Group, runs: usize, raw: &Path) -> Result<(), String> {
    let mut figures = Figures {
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        softhca: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        series: BTreeMap::new(),
    };
    if group == Group::Wire {
        for link in super::wire::measure(dist, runs)? {
            figures.series.extend(link.series());
        }
    } else {
        let bench = Bench::new(dist)?;
        let probes = probes::of(group);
        for run in 1..=runs {
            eprintln!("{group:?}, run {run} of {runs}");
            for probe in &probes {
                let figure = bench.figure(probe).map_err(|why| format!("{}: {why}", probe.name))?;
                figures.series.entry(probe.name.clone()).or_default().push(figure);
            }
            figures.keep(group, raw)?;
        }
        if group == Group::Scale {
            bench.beside_idle_ones(runs, &mut figures.series)?;
        }
    }
    figures.keep(group, raw)
}

impl Figures {
    /// Stores the figures so far, so that a later failure does not lose them.
    fn keep(&self, group: Group, raw: &Path) -> Result<(), String> {
        let file = raw.join(format!("{}.json", group.name()));
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(&file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))
    }
}

/// A room with this project's own programs.
struct Bench {
    room: Room,
    baseline: PathBuf,
    controls: PathBuf,
    mesh: PathBuf,
}

impl Bench {
    fn new(dist: &Dist) -> Result<Self, String> {
        let room = Room::with(dist.clone())?;
        room.start_agent()?;
        let [baseline, controls, mesh] = ["baseline", "controls", "mesh"].map(|name| cprogram::build(&room, name));
        Ok(Self { room, baseline: baseline?, controls: controls?, mesh: mesh? })
    }

    fn figure(&self, probe: &Probe) -> Result<f64, String> {
        match &probe.what {
            What::Perftest { words, column } => {
                let words: Vec<&str> = words.split_whitespace().collect();
                let sides = Sides::measured(|| self.pair(&words)?.wait(HANG))?;
                super::figure(&sides, column)
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
            What::Waits { words, messages } => self.waits(words, *messages),
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

    /// Starts a pair on softhca, each side on its processor.
    fn pair(&self, words: &[&str]) -> Result<Pair, String> {
        let on = |processor: &'static str| [&["taskset", "-c", processor], words].concat();
        Pair::start_different(&self.room, &on(SERVER), &self.room, &on(CLIENT))
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

    fn ucx(&self, words: &str, transports: &str, settings: &[(&str, &str)], column: Column) -> Result<f64, String> {
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

    /// Measures the plain rate again, while pairs of connected processes are idle.
    fn beside_idle_ones(&self, runs: usize, series: &mut BTreeMap<String, Vec<f64>>) -> Result<(), String> {
        use rustix::process::Signal;
        let mut idle = Vec::new();
        for _ in 0..probes::IDLE_PAIRS {
            let words = ["ibv_rc_pingpong", "-g", "0", "-e", "-n", "100000000"];
            let mut pair = Pair::start(&self.room, &words)?;
            let client = pair.client.inner("ibv_rc_pingpong", HANG)?;
            harness::wait::until(HANG, "an idle pair to be connected", || {
                let rows = self.room.show("qp").ok()?;
                rows.as_array()?.iter().any(|row| row["pid"] == client && row["path"] != "none").then_some(())
            })?;
            harness::program::send(client, Signal::STOP);
            idle.push((pair, client));
        }
        let probes = probes::of(Group::Scale);
        let plain = probes.iter().find(|probe| probe.name == probes::PLAIN).ok_or("the plain rate")?;
        for run in 1..=runs {
            eprintln!("Scale, beside {} idle processes, run {run} of {runs}", 2 * idle.len());
            series.entry(probes::BESIDE_IDLE.to_owned()).or_default().push(self.figure(plain)?);
        }
        for (pair, client) in &mut idle {
            harness::program::send(*client, Signal::KILL);
            pair.server.signal(Signal::TERM);
        }
        drop(idle);
        // A machine's speed changes, so the same measurement follows without idle pairs.
        for _ in 0..runs {
            let figure = self.figure(plain)?;
            series.entry(probes::PLAIN.to_owned()).or_default().push(figure);
        }
        Ok(())
    }
}

/// The number that one of this project's programs has printed.
fn number(outcome: &Outcome) -> Result<f64, String> {
    let found = outcome.output.lines().last().and_then(|line| line.trim().parse().ok());
    found.filter(|_| outcome.succeeded()).ok_or_else(|| outcome.told())
}

/// The median of a series.
fn middle(row: &[f64]) -> Option<f64> {
    figures::median(&mut row.to_vec())
}
