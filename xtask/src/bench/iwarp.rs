//! The benchmark of iWARP between two network namespaces: compares it with iperf3 and with a TCP
//! ping-pong that spins, on the same link and in the same run. The principal function is [`run`].

use harness::port::{self, Port};
use harness::{Dist, HANG, Hosts};

use super::wire::{self, FAMILY, start_own};
use crate::udp::READY;

/// The names of the figures of [`run`].
pub(super) const NAMES: [&str; 4] =
    ["ib_write_bw -R -s 1048576, iWARP", "ib_send_lat -R -s 8, iWARP", "iperf3, TCP", "a TCP ping-pong that spins"];

/// iperf3's blocks of a stream.
pub(super) const TCP: [&str; 2] = ["-l", "1M"];
/// Messages of the ping-pongs.
const EXCHANGES: &str = "20000";

/// The two hosts of each MTU, with iWARP devices; none without root.
pub(super) fn links(dist: &Dist) -> Result<Vec<(u32, Hosts)>, String> {
    let hosts = wire::links(dist)?.into_iter();
    hosts.map(|(mtu, hosts)| Ok((mtu, hosts.with_agents(&["--transport", "iwarp"])?))).collect()
}

/// Runs each program once, and returns the figures by the names in [`NAMES`].
pub(super) fn run(hosts: &Hosts) -> Result<Vec<(&'static str, f64)>, String> {
    let perftest = |words: &str, column: &str| {
        let line = format!("{words} -R -F -p PORT");
        super::figure(&hosts.place(FAMILY).meet(&line, &format!("{line} ADDRESS"))?, column)
    };
    let figures = [
        perftest("ib_write_bw -s 1048576 -n 2000", "BW average[MB/sec]")?,
        perftest(&format!("ib_send_lat -s 8 -n {EXCHANGES}"), "t_typical[usec]")?,
        iperf3(hosts, &hosts.left.address(FAMILY).to_string(), &TCP)?,
        ping_pong(hosts)?,
    ];
    Ok(NAMES.into_iter().zip(figures).collect())
}

/// The MiB/s that iperf3 receives on the left side, at one of its addresses.
pub(super) fn iperf3(hosts: &Hosts, address: &str, options: &[&str]) -> Result<f64, String> {
    let port = Port::reserve()?;
    let number = port.number().to_string();
    let (left, right) = (hosts.left.room(), hosts.right.room());
    let mut server = left.start(left.command("iperf3", ["-s", "-1", "-p", &number]))?;
    port::wait_for_listener(server.id(), port.number(), HANG, || server.ended())?;
    let words = [&["-c", address, "-p", &number, "-t", "2", "--json"], options].concat();
    let client = right.start(right.command("iperf3", words))?.wait(HANG)?;
    server.wait(HANG)?;
    let told: serde_json::Value = serde_json::from_str(&client.output).map_err(|_| client.told())?;
    let bits = told["end"]["sum_received"]["bits_per_second"].as_f64().ok_or_else(|| client.told())?;
    Ok(bits / 8.0 / f64::from(1 << 20))
}

/// The microseconds of half an exchange over TCP.
fn ping_pong(hosts: &Hosts) -> Result<f64, String> {
    let port = Port::reserve()?;
    let (number, address) = (port.number().to_string(), hosts.left.address(FAMILY).to_string());
    let mut server = start_own(&hosts.left, &["tcp", "answer", &address, &number, EXCHANGES])?;
    server.wait_for_words(READY, HANG)?;
    let client = start_own(&hosts.right, &["tcp", "ask", &address, &number, EXCHANGES])?.wait(HANG)?;
    server.wait(HANG)?;
    client.output.trim().parse().map_err(|_| client.told())
}
