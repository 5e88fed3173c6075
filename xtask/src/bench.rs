//! `cargo xtask bench`: measures whether softhca is fast enough. Every result is a ratio within one
//! run on one machine. On one host, the comparison is UCX's shared-memory transport. Between hosts,
//! it is plain UDP and UCX over TCP. For the connection manager, it is TCP.
//!
//! Figures of different machines cannot be compared, but ratios of one run can. The two sides
//! alternate, so that a machine that becomes slower slows both. Medians count. The command also
//! measures the cost of an idle connection. [`wire`] measures between hosts.

mod crowd;
mod ipoib;
mod iwarp;
mod manager;
mod peers;
mod subnet;
mod wire;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::port::{self, Port};
use harness::{Dist, HANG, Pair, Room, Sides, figures, process, wait};
use serde::Serialize;

use crate::workspace::Workspace;
use crate::{debian, dist};

/// The latency may be at most this many times UCX's latency.
const LATENCY_FLOOR: f64 = 5.0;
/// The bandwidth must be at least this part of UCX's bandwidth.
const BANDWIDTH_FLOOR: f64 = 0.7;
/// How long the idle pair is measured.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
struct HostFigures {
    processors: usize,
    runs: usize,
    send_lat_usec: Vec<f64>,
    ucx_tag_lat_usec: Vec<f64>,
    latency_ratio: f64,
    write_bw_mib: Vec<f64>,
    ucx_tag_bw_mib: Vec<f64>,
    bandwidth_ratio: f64,
    idle_seconds: u64,
    idle_cpu_ms_server: u128,
    idle_cpu_ms_client: u128,
    idle_cpu_ms_agent: u128,
}

/// The content of the JSON file.
#[derive(Debug, Default, Serialize)]
struct BenchFile {
    #[serde(flatten)]
    host: Option<HostFigures>,
    wire: Vec<wire::Link>,
    crowd: Option<crowd::Crowd>,
    manager: Option<manager::ManagerFigures>,
}

pub(crate) use peers::{Group, quick as quickly_beside_peers, run as beside_peers};

/// The parts of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Processes of one host
    Host,
    /// Two network namespaces; needs root
    Wire,
    /// Many queue pairs between two network namespaces; needs root
    Crowd,
    /// Connections and rsockets of one host
    Manager,
}

/// Measures, prints the table and writes the JSON file. A missed limit is an error.
pub(crate) fn run(
    workspace: &Workspace,
    runs: usize,
    json: Option<PathBuf>,
    folder: Option<PathBuf>,
    only: Option<Part>,
) -> Result<(), String> {
    debian::require(debian::BENCH)?;
    let dist = match folder {
        // Programs run in other folders, so the path must be absolute.
        Some(folder) => Dist::at(folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?),
        None => dist::run(workspace)?,
    };
    let mut bench = BenchFile::default();
    let wanted = |part| only.is_none_or(|only| only == part);
    if wanted(Part::Host) {
        let room = Room::with(dist.clone())?;
        room.start_agent()?;
        bench.host = Some(measure(&room, runs)?);
    }
    if wanted(Part::Wire) {
        bench.wire = wire::measure(&dist, runs)?;
    }
    if wanted(Part::Crowd) {
        bench.crowd = crowd::measure(&dist, runs)?;
    }
    if wanted(Part::Manager) {
        bench.manager = Some(manager::measure(&dist, runs)?);
    }
    let path = json.unwrap_or_else(|| workspace.target().join("bench.json"));
    let text = serde_json::to_string_pretty(&bench).map_err(|error| error.to_string())?;
    std::fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))?;
    println!("| what | softhca | compared with | ratio | floor |");
    println!("|---|---|---|---|---|");
    bench.host.iter().for_each(print_rows);
    bench.wire.iter().for_each(wire::Link::print);
    bench.crowd.iter().for_each(crowd::Crowd::print);
    bench.manager.iter().for_each(manager::ManagerFigures::print);
    println!("\nwritten to {}", path.display());
    let manager =
        bench.manager.iter().all(manager::ManagerFigures::holds) && bench.crowd.iter().all(crowd::Crowd::holds);
    if bench.host.iter().all(holds) && bench.wire.iter().all(wire::Link::holds) && manager {
        Ok(())
    } else {
        Err("a floor is not met".to_owned())
    }
}

/// Whether the limits for one host are met.
fn holds(figures: &HostFigures) -> bool {
    let idle = figures.idle_cpu_ms_server + figures.idle_cpu_ms_client + figures.idle_cpu_ms_agent;
    figures.latency_ratio <= LATENCY_FLOOR && figures.bandwidth_ratio >= BANDWIDTH_FLOOR && idle == 0
}

fn measure(room: &Room, runs: usize) -> Result<HostFigures, String> {
    let (mut latency, mut ucx_latency, mut bandwidth, mut ucx_bandwidth) = (vec![], vec![], vec![], vec![]);
    for run in 1..=runs {
        eprintln!("run {run} of {runs}");
        latency.push(perftest(room, &["ib_send_lat", "-s", "8", "-n", "100000"], "t_avg[usec]")?);
        ucx_latency.push(ucx(room, &["-t", "tag_lat", "-s", "8", "-n", "1000000"])?.0);
        bandwidth.push(perftest(room, &["ib_write_bw", "-s", "1048576", "-n", "5000"], "BW average[MB/sec]")?);
        ucx_bandwidth.push(ucx(room, &["-t", "tag_bw", "-s", "1048576", "-n", "5000"])?.1);
    }
    let [server, client, agent] = idle(room)?;
    Ok(HostFigures {
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        runs,
        latency_ratio: ratio(&latency, &ucx_latency)?,
        bandwidth_ratio: ratio(&bandwidth, &ucx_bandwidth)?,
        send_lat_usec: latency,
        ucx_tag_lat_usec: ucx_latency,
        write_bw_mib: bandwidth,
        ucx_tag_bw_mib: ucx_bandwidth,
        idle_seconds: IDLE.as_secs(),
        idle_cpu_ms_server: server,
        idle_cpu_ms_client: client,
        idle_cpu_ms_agent: agent,
    })
}

fn perftest(room: &Room, words: &[&str], column: &str) -> Result<f64, String> {
    figure(&Pair::start(room, words)?.wait(HANG)?, column)
}

/// One figure of a pair. Both sides must have succeeded.
fn figure(sides: &Sides, column: &str) -> Result<f64, String> {
    if !sides.client.succeeded() || !sides.server.succeeded() {
        return Err(sides.server.told() + &sides.client.told());
    }
    figures::perftest(&sides.client.output, column).ok_or_else(|| sides.client.told())
}

/// The median of the ratios of each run. Each ratio is from one run, because the machine changes
/// between runs.
fn ratio(ours: &[f64], theirs: &[f64]) -> Result<f64, String> {
    let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    figures::median(&mut ratios).ok_or_else(|| "no runs".to_owned())
}

/// Runs one pair of ucx_perftest over its shared-memory transport, without softhca.
fn ucx(room: &Room, words: &[&str]) -> Result<(f64, f64), String> {
    let port = Port::reserve()?;
    let number = port.number().to_string();
    let command = |more: &[&str]| -> Command {
        let mut command = room.command("ucx_perftest", ["-p", &number]);
        command.args(words).args(more).env("UCX_TLS", "posix,self").env_remove("LD_LIBRARY_PATH");
        command
    };
    let mut server = room.start(command(&[]))?;
    port::wait_for_listener(server.id(), port.number(), HANG, || server.ended())?;
    let client = room.start(command(&["127.0.0.1", "-f"]))?.wait(HANG)?;
    server.wait(HANG)?;
    figures::ucx(&client.output).ok_or_else(|| client.told())
}

/// CPU milliseconds of server, client and agent while a connected pair is idle.
///
/// The pair is a long event-driven pingpong. First the client is stopped: the server waits for a
/// completion. Then the client runs again and the server is stopped, and the client is measured.
fn idle(room: &Room) -> Result<[u128; 3], String> {
    use rustix::process::Signal;
    let mut pair = Pair::start(room, &["ibv_rc_pingpong", "-g", "0", "-e", "-n", "100000000"])?;
    let server = pair.server.inner("ibv_rc_pingpong", HANG)?;
    let client = pair.client.inner("ibv_rc_pingpong", HANG)?;
    wait::until(HANG, "the pair to be connected", || {
        let rows = room.show("qp").ok()?;
        (rows.as_array()?.iter().filter(|row| row["path"] != "none").count() == 2).then_some(())
    })?;
    let agent = room.agent().ok_or("the agent is gone")?;
    let agent_before = process::cpu_time(agent);
    let mut spent = [0, 0, 0];
    for (place, (stopped, watched)) in [(client, server), (server, client)].into_iter().enumerate() {
        harness::program::send(stopped, Signal::STOP);
        settle(watched)?;
        let before = process::cpu_time(watched);
        std::thread::sleep(IDLE);
        spent[place] = difference(before, process::cpu_time(watched));
        harness::program::send(stopped, Signal::CONT);
    }
    spent[2] = difference(agent_before, process::cpu_time(agent));
    Ok(spent)
}

/// Waits until a process has used no CPU for a second.
fn settle(pid: u32) -> Result<(), String> {
    let mut seen = (process::cpu_time(pid), Instant::now());
    wait::until(HANG, "the process to become idle", || {
        let now = process::cpu_time(pid);
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        (seen.1.elapsed() > Duration::from_secs(1)).then_some(())
    })
}

fn difference(before: Option<Duration>, after: Option<Duration>) -> u128 {
    after.unwrap_or_default().saturating_sub(before.unwrap_or_default()).as_millis()
}

fn print_rows(figures: &HostFigures) {
    let middle = |row: &[f64]| figures::median(&mut row.to_vec()).unwrap_or(f64::NAN);
    println!(
        "| `ib_send_lat -s 8`, one way | {:.2} µs | UCX over shared memory: {:.2} µs | {:.2} | at most {LATENCY_FLOOR} |",
        middle(&figures.send_lat_usec),
        middle(&figures.ucx_tag_lat_usec),
        figures.latency_ratio
    );
    println!(
        "| `ib_write_bw -s 1048576` | {:.0} MiB/s | UCX over shared memory: {:.0} MiB/s | {:.2} | at least {BANDWIDTH_FLOOR} |",
        middle(&figures.write_bw_mib),
        middle(&figures.ucx_tag_bw_mib),
        figures.bandwidth_ratio
    );
    println!(
        "| CPU of an idle connection in {} s: server, client, agent | {}, {}, {} ms | – | – | 0 |",
        figures.idle_seconds, figures.idle_cpu_ms_server, figures.idle_cpu_ms_client, figures.idle_cpu_ms_agent
    );
}
