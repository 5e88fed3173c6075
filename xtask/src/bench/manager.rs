//! The connection manager's part of the benchmark, on one host: compares connections with TCP
//! connections, and rsockets with TCP sockets.
//!
//! One program (`suite/programs/connections.c`) makes the connections, over RDMA and over TCP. For
//! streams, Debian's `rstream` over rsockets is compared with `qperf` over TCP. All measurements
//! alternate. The principal type is [`ManagerFigures`].

use std::path::Path;

use harness::port::{self, Port};
use harness::{Dist, Family, HANG, Room, cprogram, figures};
use serde::Serialize;

use super::ratio;

/// The least rate of connections, relative to TCP's.
const CONNECTIONS_FLOOR: f64 = 0.5;
/// The latency must be below this many times TCP's, and the bandwidth above this many times TCP's.
const STREAM_FLOOR: f64 = 1.0;
/// Connections in one run. TCP connections take a tenth of the time.
const COUNT: &str = "2000";
const TCP_COUNT: &str = "20000";

/// The measured figures.
#[derive(Debug, Serialize)]
pub(crate) struct ManagerFigures {
    connections_per_second: Vec<f64>,
    tcp_connections_per_second: Vec<f64>,
    connections_ratio: f64,
    rstream_lat_usec: Vec<f64>,
    tcp_lat_usec: Vec<f64>,
    stream_latency_ratio: f64,
    rstream_bw_mib: Vec<f64>,
    tcp_bw_mib: Vec<f64>,
    stream_bandwidth_ratio: f64,
}

/// Measures everything, alternating.
pub(crate) fn measure(dist: &Dist, runs: usize) -> Result<ManagerFigures, String> {
    let room = Room::with(dist.clone())?;
    room.start_agent()?;
    let program = cprogram::build_with(&room, "connections", &["-lrdmacm"])?;
    let (mut connections, mut tcp_connections) = (vec![], vec![]);
    let (mut latency, mut tcp_latency, mut bandwidth, mut tcp_bandwidth) = (vec![], vec![], vec![], vec![]);
    for run in 1..=runs {
        eprintln!("connection manager, run {run} of {runs}");
        connections.push(over_rdma(&room, &program)?);
        tcp_connections.push(over_tcp(&room, &program)?);
        let stream = room.place(Family::V4).must_meet("rstream -p PORT", "rstream -s ADDRESS -p PORT").client.output;
        latency.push(column(&stream, "64_lat", 7)?);
        bandwidth.push(column(&stream, "1m_bw", 6)? * 1e9 / 8.0 / f64::from(1 << 20));
        let (usec, mib) = qperf(&room)?;
        tcp_latency.push(usec);
        tcp_bandwidth.push(mib);
    }
    Ok(ManagerFigures {
        connections_ratio: ratio(&connections, &tcp_connections)?,
        stream_latency_ratio: ratio(&latency, &tcp_latency)?,
        stream_bandwidth_ratio: ratio(&bandwidth, &tcp_bandwidth)?,
        connections_per_second: connections,
        tcp_connections_per_second: tcp_connections,
        rstream_lat_usec: latency,
        tcp_lat_usec: tcp_latency,
        rstream_bw_mib: bandwidth,
        tcp_bw_mib: tcp_bandwidth,
    })
}

impl ManagerFigures {
    /// Whether the limits are met.
    pub(crate) fn holds(&self) -> bool {
        self.connections_ratio >= CONNECTIONS_FLOOR
            && self.stream_latency_ratio < STREAM_FLOOR
            && self.stream_bandwidth_ratio > STREAM_FLOOR
    }

    /// Prints the rows of the table.
    pub(crate) fn print(&self) {
        let middle = |row: &[f64]| figures::median(&mut row.to_vec()).unwrap_or(f64::NAN);
        println!(
            "| connections per second | {:.0} | TCP, the same loop: {:.0} | {:.2} | at least {CONNECTIONS_FLOOR} |",
            middle(&self.connections_per_second),
            middle(&self.tcp_connections_per_second),
            self.connections_ratio
        );
        println!(
            "| `rstream`, 64 bytes, one way | {:.2} µs | `qperf tcp_lat`: {:.2} µs | {:.2} | below {STREAM_FLOOR} |",
            middle(&self.rstream_lat_usec),
            middle(&self.tcp_lat_usec),
            self.stream_latency_ratio
        );
        println!(
            "| `rstream`, 1 MiB | {:.0} MiB/s | `qperf tcp_bw`: {:.0} MiB/s | {:.2} | above {STREAM_FLOOR} |",
            middle(&self.rstream_bw_mib),
            middle(&self.tcp_bw_mib),
            self.stream_bandwidth_ratio
        );
    }
}

fn over_rdma(room: &Room, program: &Path) -> Result<f64, String> {
    let line = |side: &str| format!("{} rdma {side} ADDRESS PORT {COUNT}", program.display());
    let sides = room.place(Family::V4).meet(&line("serve"), &line("call"))?;
    if !sides.server.succeeded() || !sides.client.succeeded() {
        return Err(sides.server.told() + &sides.client.told());
    }
    number(&sides.client.output)
}

fn over_tcp(room: &Room, program: &Path) -> Result<f64, String> {
    let port = Port::reserve()?;
    let at = port.number().to_string();
    let command = |side: &str| room.command(program, ["tcp", side, "127.0.0.1", &at, TCP_COUNT]);
    let mut server = room.start(command("serve"))?;
    server.wait_for_words("ready", HANG)?;
    let client = room.finish(command("call"))?;
    server.wait(HANG)?;
    if client.succeeded() { number(&client.output) } else { Err(client.told()) }
}

/// TCP's latency in microseconds and its bandwidth in MiB/s.
fn qperf(room: &Room) -> Result<(f64, f64), String> {
    let port = Port::reserve()?;
    let at = port.number().to_string();
    let mut server = room.start(room.command("qperf", ["-lp", &at]))?;
    port::wait_for_listener(server.id(), port.number(), HANG, || server.ended())?;
    let words = ["-lp", &at, "127.0.0.1", "-uu", "-t", "2", "tcp_lat", "tcp_bw", "quit"];
    let client = room.finish(room.command("qperf", words))?;
    server.wait(HANG)?;
    let figure = |name: &str| {
        let line = client.output.lines().find(|line| line.trim_start().starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(2)?.parse::<f64>().ok()).ok_or_else(|| client.told())
    };
    Ok((figure("latency")? / 1000.0, figure("bw")? / f64::from(1 << 20)))
}

/// A column, counted from 0, of a row in `rstream`'s table.
fn column(output: &str, row: &str, column: usize) -> Result<f64, String> {
    let found = output.lines().find(|line| line.split_whitespace().next() == Some(row));
    found.and_then(|line| line.split_whitespace().nth(column)?.parse().ok()).ok_or_else(|| output.to_owned())
}

fn number(output: &str) -> Result<f64, String> {
    output.split_whitespace().next().and_then(|word| word.parse().ok()).ok_or_else(|| output.to_owned())
}
