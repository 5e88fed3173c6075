//! What `softhca doctor` checks beyond what `softhca run` needs ([`crate::ready`]), one function each. Nothing here fails.
//!
//! They look and never change anything: a run directory is not made, an agent is not started.

use std::env;
use std::fs;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::path::PathBuf;

use agent::gids::HostAddress;
use rustix::event::epoll;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{MembarrierCommand, membarrier_query};
use serde_json::Value;

use crate::finding::Finding;
use crate::place::{self, SYSTEM_FOLDERS};
use crate::ready::Surroundings;

/// The UDP port of RoCEv2.
const WIRE_PORT: u16 = 4791;

/// Debian packages with programs to try, and a file of each.
const PROGRAMS: &[(&str, &str)] = &[("ibverbs-utils", "ibv_rc_pingpong"), ("perftest", "ib_write_bw")];

/// What is worth to know beside that.
pub(super) fn all(surroundings: &Surroundings<'_>) -> Vec<Finding> {
    vec![
        wire(surroundings),
        link_layer(surroundings),
        connections(surroundings),
        loaded(),
        pidfd(),
        proc(),
        membarrier(),
        wait_precision(),
        processors(),
        real_devices(),
        programs(),
    ]
}

/// What is said where nobody can be asked.
const UNKNOWN: &str = "unknown: no agent is running";

/// Which addresses hear other hosts, as the agent tells it.
fn wire(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "other hosts";
    let (with, without) = match devices(surroundings) {
        Some(answer) => hearing(&answer["devices"]),
        None => would_hear(&surroundings.host.addresses),
    };
    match (with.as_slice(), without.as_slice()) {
        ([], []) => Finding::ok(WHAT, "not reachable: the agent serves programs on this host only"),
        (_, []) => Finding::ok(WHAT, format!("can reach us at {}", with.join(", "))),
        (_, [(_, why), ..]) => {
            let addresses: Vec<&str> = without.iter().map(|(address, _)| address.as_str()).collect();
            Finding::warn(
                WHAT,
                format!("cannot reach us at {}: {why}", addresses.join(", ")),
                "find the program with `ss -lunp sport = 4791`; programs of the same agent are not affected",
            )
        }
    }
}

/// What the ports are, and what programs have to give there.
fn link_layer(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "link layer";
    let Some(answer) = devices(surroundings) else { return Finding::ok(WHAT, UNKNOWN) };
    let devices = answer["devices"].as_array().cloned().unwrap_or_default();
    let ports: Vec<Value> = devices.iter().filter_map(|device| device["ports"].as_array()).flatten().cloned().collect();
    match ports.iter().find(|port| port["lids"].is_string()) {
        Some(port) => Finding::ok(WHAT, format!("InfiniBand; {}", port["lids"].as_str().unwrap_or_default())),
        None => Finding::ok(
            WHAT,
            "Ethernet (RoCE): programs need a GID index; for programs without one, use `softhca agent --link-layer \
            infiniband`",
        ),
    }
}

/// Whether programs can connect by address (rdma_cm): here, and with other hosts, whose requests come to QP 1.
fn connections(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "connections";
    let Some(connection) = &surroundings.agent else { return Finding::ok(WHAT, UNKNOWN) };
    let (status, devices) = (connection.ask("status"), connection.ask("devices"));
    let (Ok(status), Ok(devices)) = (status, devices) else {
        return Finding::ok(WHAT, "unknown: the agent did not answer");
    };
    if status["manager"].is_null() {
        let found = "the agent is too old and has no connection manager: rdma_cm does not work";
        return Finding::warn(WHAT, found, "stop it with `softhca agent --stop`");
    }
    let (ids, (with, without)) = (&status["manager"]["ids"], hearing(&devices["devices"]));
    match (with.as_slice(), without.as_slice()) {
        ([], [(address, why), ..]) => Finding::warn(
            WHAT,
            format!(
                "programs of this agent can connect ({ids} ids), other hosts cannot: QP 1 of {address} is not \
                reachable: {why}"
            ),
            "end the program that uses UDP port 4791 (`ss -lunp sport = 4791`), or use another `--address`",
        ),
        ([], []) => Finding::ok(WHAT, format!("rdma_cm works between programs of this agent; {ids} ids")),
        _ => Finding::ok(
            WHAT,
            format!("rdma_cm works at every address of this host, for other hosts at {}; {ids} ids", with.join(", ")),
        ),
    }
}

/// What the agent tells of its devices.
fn devices(surroundings: &Surroundings<'_>) -> Option<Value> {
    surroundings.agent.as_ref()?.ask("devices").ok()
}

/// The addresses that an agent could have the wire at if it were started now, and those that it could not, with the reason.
fn would_hear(wanted: &[IpAddr]) -> (Vec<String>, Vec<(String, String)>) {
    let host = agent::addresses::host_addresses().unwrap_or_default();
    let all = match wanted {
        [] => {
            let (all, loopbacks) = agent::gids::by_rank(&host);
            all.into_iter().filter(|address| loopbacks || !address.is_loopback()).collect()
        }
        wanted => agent::addresses::chosen(&host, wanted).0,
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for address in all {
        match UdpSocket::bind(socket_address(&address)) {
            Ok(_) => with.push(address.ip.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                without.push((address.ip.to_string(), format!("another program uses UDP port {WIRE_PORT}")));
            }
            Err(error) => without.push((address.ip.to_string(), format!("UDP port {WIRE_PORT}: {error}"))),
        }
    }
    (with, without)
}

fn socket_address(address: &HostAddress) -> SocketAddr {
    match address.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, WIRE_PORT, 0, address.ifindex).into(),
        ip => SocketAddr::new(ip, WIRE_PORT),
    }
}

/// The addresses that have the wire, and those that have not, with the reason.
fn hearing(devices: &Value) -> (Vec<String>, Vec<(String, String)>) {
    let list = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for port in devices.as_array().into_iter().flatten().flat_map(|device| list(device, "ports")) {
        // Index 0 is no address of the host, and reaches the programs of its own agent only.
        for gid in list(&port, "gids").iter().filter(|gid| gid["index"] != 0) {
            let address = gid["address"].as_str().unwrap_or_default();
            let address = address.strip_prefix("::ffff:").unwrap_or(address).to_owned();
            match (gid["wire"].as_bool(), gid["why"].as_str()) {
                (Some(true), _) if !with.contains(&address) => with.push(address),
                (Some(false), Some(why)) => without.push((address, why.to_owned())),
                _ => {}
            }
        }
    }
    (with, without)
}

/// Which library a program loads that is started without `softhca run`.
fn loaded() -> Finding {
    const WHAT: &str = "without run";
    let variable = env::var_os(place::LIBRARY_PATH).unwrap_or_default();
    let folders = env::split_paths(&variable).chain(SYSTEM_FOLDERS.iter().map(PathBuf::from));
    let found = folders.map(|folder| folder.join(place::LIBRARY)).find(|path| path.exists());
    let ours = place::library_folder().ok().and_then(|folder| folder.join(place::LIBRARY).canonicalize().ok());
    match found {
        None => Finding::ok(WHAT, "no libibverbs.so.1 is installed: verbs programs start only with `softhca run`"),
        Some(path) if path.canonicalize().ok() == ours => {
            Finding::ok(WHAT, format!("programs load softhca too ({})", path.display()))
        }
        Some(path) => Finding::ok(WHAT, format!("programs load {}, and see no softhca device", path.display())),
    }
}

fn pidfd() -> Finding {
    const WHAT: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok(WHAT, "the agent notices at once when a program ends"),
        Err(errno) => Finding::warn(
            WHAT,
            format!("pidfd_open: {errno}: the agent notices the end of a program only when its connection closes"),
            "allow pidfd_open in the seccomp profile of the container or sandbox",
        ),
    }
}

fn proc() -> Finding {
    const WHAT: &str = "/proc";
    match fs::metadata("/proc/self/maps") {
        Ok(_) => Finding::ok(WHAT, "is mounted"),
        Err(error) => Finding::warn(
            WHAT,
            format!(
                "/proc/self/maps: {error}: network namespaces are not distinguished, and some messages are shorter"
            ),
            "mount -t proc proc /proc",
        ),
    }
}

fn membarrier() -> Finding {
    const WHAT: &str = "membarrier";
    if membarrier_query().contains_command(MembarrierCommand::RegisterGlobalExpedited) {
        Finding::ok(WHAT, "available; posting needs no memory fence")
    } else {
        Finding::warn(
            WHAT,
            "not available: each post needs a memory fence and takes a few nanoseconds more",
            "allow membarrier(2) in the sandbox",
        )
    }
}

fn wait_precision() -> Finding {
    const WHAT: &str = "epoll_pwait2";
    let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000 };
    let waited = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|epoll| {
        let mut events = Vec::with_capacity(1);
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&moment))
    });
    match waited {
        Ok(_) => Finding::ok(WHAT, "timers are accurate to microseconds"),
        Err(errno) => {
            Finding::warn(WHAT, format!("{errno}: timers are accurate to milliseconds"), "use Linux 5.11 or newer")
        }
    }
}

fn processors() -> Finding {
    const WHAT: &str = "processors";
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count > 1 {
        return Finding::ok(WHAT, format!("{count}"));
    }
    Finding::warn(WHAT, "1: programs that poll take turns", "use event-driven modes (-e) where programs support them")
}

fn real_devices() -> Finding {
    const WHAT: &str = "real devices";
    let names: Vec<String> = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if names.is_empty() {
        Finding::ok(WHAT, "none")
    } else {
        Finding::ok(WHAT, format!("{} (programs under `softhca run` do not see them)", names.join(", ")))
    }
}

fn programs() -> Finding {
    const WHAT: &str = "Debian programs";
    let path = env::var_os("PATH").unwrap_or_default();
    let there = |program: &str| env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(_, program)| !there(program)).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        Finding::ok(WHAT, "ibverbs-utils and perftest are installed")
    } else {
        let names = missing.join(" ");
        Finding::warn(WHAT, format!("not installed: {names}"), format!("apt-get install {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::hearing;
    use serde_json::json;

    #[test]
    fn addresses_with_and_without_the_wire() {
        let gid = |index: u32, address: &str, why: Option<&str>| json!({"index": index, "address": address, "wire": why.is_none(), "why": why});
        let gids =
            [gid(0, "fe80::1", Some("no address")), gid(1, "::ffff:10.0.0.1", None), gid(2, "fd00::1", Some("taken"))];
        let ports = json!([{"gids": gids}, {"gids": [gids[1]]}]);
        let (with, without) = hearing(&json!([{ "ports": ports }]));
        assert_eq!((with, without), (vec!["10.0.0.1".to_owned()], vec![("fd00::1".to_owned(), "taken".to_owned())]));
    }
}
