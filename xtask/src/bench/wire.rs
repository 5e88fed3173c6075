//! The wire's part of the benchmark: compares RC between two network namespaces with plain UDP and
//! with UCX over TCP on the same link.
//!
//! All figures of a link come from one run on it and alternate. The measurement needs root for the
//! namespaces. The principal type is [`Link`].

use std::process::Command;

use harness::hosts::INTERFACE;
use harness::port::{self, Port};
use harness::{Dist, Family, HANG, Host, Hosts, Program, Room, User, figures};
use serde::Serialize;

use super::ratio;
use crate::udp::READY;

/// The bandwidth must be at least this part of plain UDP's.
const BANDWIDTH_FLOOR: f64 = 0.4;
/// The latency must be less than this many times that of UCX over TCP.
const LATENCY_FLOOR: f64 = 1.0;
/// The bandwidth must be more than this many times that of UCX over TCP.
const STREAM_FLOOR: f64 = 1.0;
/// The MTUs of the links: one that fits large RoCE packets, and Ethernet's default.
pub(super) const MTUS: [u32; 2] = [9000, 1500];
/// Bytes of the IPv4 and UDP headers.
const HEADERS: u32 = 28;
pub(super) const FAMILY: Family = Family::V4;

/// The figures of one link.
#[derive(Debug, Serialize)]
pub(crate) struct Link {
    mtu: u32,
    udp_mib: Vec<f64>,
    write_bw_mib: Vec<f64>,
    send_bw_mib: Vec<f64>,
    write_ratio: f64,
    send_ratio: f64,
    ucx_tcp_mib: Vec<f64>,
    stream_ratio: f64,
    send_lat_usec: Vec<f64>,
    ucx_tcp_lat_usec: Vec<f64>,
    udp_lat_usec: Vec<f64>,
    latency_ratio: f64,
}

/// Measures every link; none without root.
pub(crate) fn measure(dist: &Dist, runs: usize) -> Result<Vec<Link>, String> {
    links(dist)?.iter().map(|(mtu, hosts)| Link::measure(hosts, *mtu, runs)).collect()
}

/// A pair of hosts for each MTU; none without root.
pub(super) fn links(dist: &Dist) -> Result<Vec<(u32, Hosts)>, String> {
    let mut links = Vec::new();
    for mtu in MTUS {
        // Ordinary users run both sides, because the goals are promises to them.
        let room = || Room::for_user(User::Nobody, dist.clone());
        let Some(hosts) = Hosts::joined_rooms(mtu, [room()?, room()?])? else { break };
        links.push((mtu, hosts));
    }
    Ok(links)
}

/// The names of the figures of [`run`].
pub(super) const NAMES: [&str; 7] = [
    "ib_write_bw -s 1048576",
    "ib_send_bw -s 65536",
    "ib_send_lat -s 8",
    "ucx_perftest -t tag_lat -s 8, UCX_TLS=tcp,self",
    "ucx_perftest -t tag_bw -s 1048576, UCX_TLS=tcp,self",
    "plain UDP",
    "plain UDP that spins",
];

/// The name of a figure of [`run`] on one link.
pub(super) fn named(name: &str, mtu: u32) -> String {
    format!("{name}, MTU {mtu}")
}

/// Runs each program once, and returns the figures by the names in [`NAMES`].
pub(super) fn run(hosts: &Hosts, mtu: u32) -> Result<Vec<(&'static str, f64)>, String> {
    let bandwidth = |words: &[&str]| perftest(hosts, words, "BW average[MB/sec]");
    let write = bandwidth(&["ib_write_bw", "-s", "1048576", "-n", "2000"])?;
    let send = bandwidth(&["ib_send_bw", "-s", "65536", "-n", "20000"])?;
    let ping = perftest(hosts, &["ib_send_lat", "-s", "8", "-n", "20000"], "t_avg[usec]")?;
    let ucx_ping = ucx(hosts, &["-t", "tag_lat", "-s", "8", "-n", "20000"])?.0;
    let ucx_stream = ucx(hosts, &["-t", "tag_bw", "-s", "1048576", "-n", "2000"])?.1;
    // The agents occupy the port that plain UDP uses.
    stop_agents(hosts)?;
    let udp = udp_bandwidth(hosts, mtu - HEADERS)?;
    let udp_ping = udp_latency(hosts)?;
    hosts.left.start_agent()?;
    hosts.right.start_agent()?;
    let figures = [write, send, ping, ucx_ping, ucx_stream, udp, udp_ping];
    Ok(NAMES.into_iter().zip(figures).collect())
}

impl Link {
    fn measure(hosts: &Hosts, mtu: u32, runs: usize) -> Result<Self, String> {
        let mut rows: [Vec<f64>; 7] = std::array::from_fn(|_| Vec::new());
        for number in 1..=runs {
            eprintln!("MTU {mtu}, run {number} of {runs}");
            for (row, (_, figure)) in rows.iter_mut().zip(run(hosts, mtu)?) {
                row.push(figure);
            }
        }
        let [write_bw_mib, send_bw_mib, send_lat_usec, ucx_tcp_lat_usec, ucx_tcp_mib, udp_mib, udp_lat_usec] = rows;
        Ok(Self {
            mtu,
            write_ratio: ratio(&write_bw_mib, &udp_mib)?,
            send_ratio: ratio(&send_bw_mib, &udp_mib)?,
            stream_ratio: ratio(&write_bw_mib, &ucx_tcp_mib)?,
            latency_ratio: ratio(&send_lat_usec, &ucx_tcp_lat_usec)?,
            udp_mib,
            write_bw_mib,
            send_bw_mib,
            ucx_tcp_mib,
            send_lat_usec,
            ucx_tcp_lat_usec,
            udp_lat_usec,
        })
    }

    /// Whether the limits for the wire are met.
    pub(crate) fn holds(&self) -> bool {
        let as_udp = self.write_ratio.min(self.send_ratio) >= BANDWIDTH_FLOOR;
        as_udp && self.stream_ratio > STREAM_FLOOR && self.latency_ratio < LATENCY_FLOOR
    }

    /// Prints the rows of the table.
    pub(crate) fn print(&self) {
        let middle = |row: &[f64]| figures::median(&mut row.to_vec()).unwrap_or(f64::NAN);
        let (mtu, udp) = (self.mtu, middle(&self.udp_mib));
        for (what, bandwidth, ratio) in [
            ("ib_write_bw -s 1048576", &self.write_bw_mib, self.write_ratio),
            ("ib_send_bw -s 65536", &self.send_bw_mib, self.send_ratio),
        ] {
            let bandwidth = middle(bandwidth);
            println!(
                "| `{what}`, MTU {mtu} | {bandwidth:.0} MiB/s | plain UDP: {udp:.0} MiB/s | {ratio:.2} | at least {BANDWIDTH_FLOOR} |"
            );
        }
        println!(
            "| `ib_write_bw -s 1048576`, MTU {mtu} | {:.0} MiB/s | UCX over TCP: {:.0} MiB/s | {:.2} | above {STREAM_FLOOR} |",
            middle(&self.write_bw_mib),
            middle(&self.ucx_tcp_mib),
            self.stream_ratio
        );
        println!(
            "| `ib_send_lat -s 8`, one way, MTU {mtu} | {:.2} µs | UCX over TCP: {:.2} µs | {:.2} | below {LATENCY_FLOOR} |",
            middle(&self.send_lat_usec),
            middle(&self.ucx_tcp_lat_usec),
            self.latency_ratio
        );
        println!("| plain UDP that spins, one way, MTU {mtu} | – | {:.2} µs | – | – |", middle(&self.udp_lat_usec));
    }
}

fn perftest(hosts: &Hosts, words: &[&str], column: &str) -> Result<f64, String> {
    super::figure(&hosts.start(FAMILY, words)?.wait(HANG)?, column)
}

/// Runs one of UCX's tests over TCP on the link. Returns microseconds one way, and MiB/s.
fn ucx(hosts: &Hosts, words: &[&str]) -> Result<(f64, f64), String> {
    let port = Port::reserve()?;
    let number = port.number().to_string();
    let command = |room: &Room, more: &[&str]| -> Command {
        let mut command = room.command("ucx_perftest", ["-p", &number]);
        command
            .args(words)
            .args(more)
            .env("UCX_TLS", "tcp,self")
            .env("UCX_NET_DEVICES", INTERFACE)
            .env_remove("LD_LIBRARY_PATH");
        command
    };
    let (left, right) = (hosts.left.room(), hosts.right.room());
    let mut server = left.start(command(left, &[]))?;
    port::wait_for_listener(server.id(), port.number(), HANG, || server.ended())?;
    let client = right.start(command(right, &[&hosts.left.rendezvous(), "-f"]))?.wait(HANG)?;
    server.wait(HANG)?;
    figures::ucx(&client.output).ok_or_else(|| client.told())
}

fn stop_agents(hosts: &Hosts) -> Result<(), String> {
    for room in [hosts.left.room(), hosts.right.room()] {
        let outcome = room.finish(room.softhca(&["agent", "--stop"]))?;
        if !outcome.succeeded() {
            return Err(outcome.told());
        }
    }
    Ok(())
}

/// The MiB/s that a plain UDP receiver gets from a plain UDP sender.
fn udp_bandwidth(hosts: &Hosts, segment: u32) -> Result<f64, String> {
    let [own, peer] = addresses(hosts);
    let (told, _) = udp(hosts, &["receive", &own], &["send", &peer, &own, &segment.to_string(), "1"])?;
    let words: Vec<f64> = told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match words[..] {
        [bytes, seconds] => Ok(bytes / seconds / f64::from(1 << 20)),
        _ => Err(told),
    }
}

/// Microseconds of half an exchange of plain UDP datagrams.
fn udp_latency(hosts: &Hosts) -> Result<f64, String> {
    let [own, peer] = addresses(hosts);
    let (_, told) = udp(hosts, &["answer", &own, &peer, "20000"], &["ask", &peer, &own, "20000"])?;
    told.trim().parse().map_err(|_| told)
}

fn addresses(hosts: &Hosts) -> [String; 2] {
    [&hosts.left, &hosts.right].map(|host| host.address(FAMILY).to_string())
}

/// Starts this program on a host. Starts a copy, because this program may be in a folder that an
/// ordinary user cannot enter.
pub(super) fn start_own(host: &Host, words: &[&str]) -> Result<Program, String> {
    let room = host.room();
    let program = room.folder().join("xtask");
    let copied = std::env::current_exe().and_then(|own| std::fs::copy(own, &program));
    copied.map_err(|error| format!("{}: {error}", program.display()))?;
    room.start(room.command(&program, words))
}

/// Runs the two sides of [`crate::udp`], the left side first. Returns their output.
fn udp(hosts: &Hosts, left: &[&str], right: &[&str]) -> Result<(String, String), String> {
    let start = |host: &Host, words: &[&str]| start_own(host, &[&["udp"], words].concat());
    let mut first = start(&hosts.left, left)?;
    first.wait_for_words(READY, HANG)?;
    let second = start(&hosts.right, right)?.wait(HANG)?;
    let first = first.wait(HANG)?;
    if first.succeeded() && second.succeeded() {
        Ok((first.output, second.output))
    } else {
        Err(first.told() + &second.told())
    }
}
