//! The benchmark of IP over InfiniBand between two network namespaces: compares iperf3 over
//! `softhca ipoib` with iperf3 on the same link without it, in the same run. The principal function
//! is [`run`].

use harness::{Dist, HANG, Hosts, Program, Room};
use rustix::process::Signal;

use super::iwarp::{TCP, iperf3};
use super::wire::FAMILY;

/// The MTU of the link.
const MTU: u32 = 9000;
/// The addresses of the two interfaces.
const ADDRESSES: [&str; 2] = ["10.1.0.1", "10.1.0.2"];
/// Datagrams that fit into one of InfiniBand, as fast as they go.
const UDP: [&str; 5] = ["-u", "-b", "0", "-l", "1960"];

/// The names of the figures of [`run`].
pub(super) const NAMES: [&str; 5] = [
    "iperf3, TCP over IPoIB, datagrams",
    "iperf3, UDP over IPoIB, datagrams",
    "iperf3, TCP over IPoIB, connected",
    "iperf3, TCP without IPoIB",
    "iperf3, UDP without IPoIB",
];

/// The two hosts, with InfiniBand ports; none without root.
pub(super) fn hosts(dist: &Dist) -> Result<Option<Hosts>, String> {
    let room = || Room::with(dist.clone());
    let hosts = Hosts::joined_rooms(MTU, [room()?, room()?])?;
    hosts.map(|hosts| hosts.with_agents(&["--link-layer", "infiniband"])).transpose()
}

/// Runs each program once, and returns the figures by the names in [`NAMES`].
pub(super) fn run(hosts: &Hosts) -> Result<Vec<(&'static str, f64)>, String> {
    let plain = hosts.left.address(FAMILY).to_string();
    let datagrams = interfaces(hosts, &[])?;
    let (stream, packets) = (iperf3(hosts, ADDRESSES[0], &TCP)?, iperf3(hosts, ADDRESSES[0], &UDP)?);
    end(datagrams)?;
    let connected = interfaces(hosts, &["--connected"])?;
    let connected_stream = iperf3(hosts, ADDRESSES[0], &TCP)?;
    end(connected)?;
    let figures = [stream, packets, connected_stream, iperf3(hosts, &plain, &TCP)?, iperf3(hosts, &plain, &UDP)?];
    Ok(NAMES.into_iter().zip(figures).collect())
}

/// An interface on each host.
fn interfaces(hosts: &Hosts, options: &[&str]) -> Result<[Program; 2], String> {
    let start = |room: &Room, address: &str| {
        let address = format!("{address}/24");
        let mut program = room.start(room.softhca(&[&["ipoib", "--ip", &address], options].concat()))?;
        program.wait_for_words("ib0 is up", HANG)?;
        Ok::<_, String>(program)
    };
    Ok([start(hosts.left.room(), ADDRESSES[0])?, start(hosts.right.room(), ADDRESSES[1])?])
}

fn end(programs: [Program; 2]) -> Result<(), String> {
    for mut program in programs {
        program.signal(Signal::INT);
        program.wait(HANG)?;
    }
    Ok(())
}
