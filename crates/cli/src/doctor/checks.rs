//! The checks of `softhca doctor` beyond the needs of `softhca run` ([`crate::ready`]), one
//! function each. None of them fails.
//!
//! The checks change nothing: they create no run directory and start no agent. The principal
//! function is [`all`].

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

/// Debian packages with programs to try, and a program of each.
const PROGRAMS: [(&str, &str); 2] = [("ibverbs-utils", "ibv_rc_pingpong"), ("perftest", "ib_write_bw")];

/// The findings of these checks.
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

/// The finding if no agent can be asked.
const UNKNOWN: &str = "unknown: no agent is running";

/// The addresses that receive from other hosts, as the agent reports them.
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

/// The link layers of the ports, and what programs need on them.
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

/// Whether programs can connect by address (rdma_cm), on this host and with other hosts. Requests
/// of other hosts come to QP 1.
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

/// The agent's answer about its devices.
fn devices(surroundings: &Surroundings<'_>) -> Option<Value> {
    surroundings.agent.as_ref()?.ask("devices").ok()
}

/// The addresses that would have the wire if an agent started now, and the addresses that would
/// not, each with the reason.
fn would_hear(wanted: &[IpAddr]) -> (Vec<String>, Vec<(String, String)>) {
    let host = agent::addresses::HostAddresses::read().unwrap_or_default().usable;
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

/// The addresses that have the wire, and the addresses that do not, each with the reason.
fn hearing(devices: &Value) -> (Vec<String>, Vec<(String, String)>) {
    let list = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for port in devices.as_array().into_iter().flatten().flat_map(|device| list(device, "ports")) {
        // Index 0 is not an address of the host. It reaches only the programs of its own agent.
        for gid in list(&port, "gids").iter().filter(|gid| gid["index"] != 0) {
            let address = gid["address"].as_str().unwrap_or_default();
            let address = address.strip_prefix("::ffff:").unwrap_or(address).to_owned();
            match (gid["wire"].as_bool(), gid["why"].as_str()) {
                (Some(true), _) if !with.contains(&address) => with.push(address),
                (Some(false), Some(why)) => without.push((address, why.to_owned())),
                _ => {}
            }
        }
        // Each program on an iWARP port has its own TCP sockets.
        for address in list(&port, "addresses") {
            let address = address["address"].as_str().unwrap_or_default().to_owned();
            if !with.contains(&address) {
                with.push(address);
            }
        }
    }
    (with, without)
}

/// The library that a program loads if it is started without `softhca run`.
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
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| env::split_paths(&path).any(|folder| folder.join(program).is_file());
    // os-release(5): the second file is for systems without the first.
    let system = ["/etc/os-release", "/usr/lib/os-release"].iter().find_map(|file| fs::read_to_string(file).ok());
    programs_to_try(is_there, &system.unwrap_or_default())
}

/// The installed programs to try. Only systems like Debian have packages with Debian's names.
fn programs_to_try(is_there: impl Fn(&str) -> bool, system: &str) -> Finding {
    const WHAT: &str = "verbs programs";
    let missing = PROGRAMS.iter().filter(|(_, program)| !is_there(program));
    let (packages, programs): (Vec<&str>, Vec<&str>) = missing.copied().unzip();
    if programs.is_empty() {
        let names = PROGRAMS.map(|(_, program)| program).join(" and ");
        return Finding::ok(WHAT, format!("{names} are installed"));
    }
    let next = if is_like_debian(system) {
        format!("apt-get install {}", packages.join(" "))
    } else {
        "install the packages of your distribution that have them".to_owned()
    };
    Finding::warn(WHAT, format!("not installed: {}", programs.join(", ")), next)
}

/// Whether a text as in /etc/os-release is that of Debian or of a system made from it.
fn is_like_debian(system: &str) -> bool {
    let values = system.lines().filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")));
    values.flat_map(|value| value.trim_matches(['"', '\'']).split(' ')).any(|name| name == "debian")
}

#[cfg(test)]
mod tests {
    use super::{hearing, is_like_debian, programs_to_try};
    use crate::finding::Verdict;
    use serde_json::json;

    #[test]
    fn systems_made_from_debian_say_so() {
        for (text, expected) in [
            ("NAME=\"Debian GNU/Linux\"\nID=debian\n", true),
            ("ID=ubuntu\nID_LIKE=debian\n", true),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", true),
            ("ID='debian'\n", true),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", false),
            ("ID=fedora\nVARIANT_ID=debian\nHOME_URL=https://debian.org\n", false),
            ("", false),
        ] {
            assert_eq!(is_like_debian(text), expected, "{text}");
        }
    }

    #[test]
    fn only_systems_like_debian_are_told_names_of_packages() {
        let next = |is_there: fn(&str) -> bool, system| {
            let finding = programs_to_try(is_there, system);
            (finding.verdict, finding.found, finding.next.unwrap_or_default())
        };
        let nothing = next(|_| false, "ID=debian\n");
        assert_eq!((nothing.0, nothing.2.as_str()), (Verdict::Warn, "apt-get install ibverbs-utils perftest"));
        let one = next(|program| program == "ibv_rc_pingpong", "ID=debian\n");
        assert_eq!((one.1.as_str(), one.2.as_str()), ("not installed: ib_write_bw", "apt-get install perftest"));
        let (verdict, found, advice) = next(|_| false, "ID=fedora\n");
        assert_eq!((verdict, found.as_str()), (Verdict::Warn, "not installed: ibv_rc_pingpong, ib_write_bw"));
        assert!(!advice.contains("apt") && !advice.contains("ibverbs-utils"), "{advice}");
        assert_eq!(next(|_| true, "").0, Verdict::Ok);
    }

    #[test]
    fn addresses_with_and_without_the_wire() {
        let gid = |index: u32, address: &str, why: Option<&str>| json!({"index": index, "address": address, "wire": why.is_none(), "why": why});
        let gids =
            [gid(0, "fe80::1", Some("no address")), gid(1, "::ffff:10.0.0.1", None), gid(2, "fd00::1", Some("taken"))];
        let rnic = json!({"gids": [{"index": 0, "wire": null}], "addresses": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]});
        let ports = json!([{"gids": gids}, {"gids": [gids[1]]}, rnic]);
        let (with, without) = hearing(&json!([{ "ports": ports }]));
        assert_eq!(with, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(without, [("fd00::1".to_owned(), "taken".to_owned())]);
    }
}
