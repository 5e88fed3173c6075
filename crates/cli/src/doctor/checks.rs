//! The checks of `softhca doctor`, one function each.
//!
//! They look and never change anything: a run directory is not made, an agent is not started.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent::FILES_MIN;
use rustix::event::epoll;
use rustix::process::{PidfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_open};
use rustix::thread::{MembarrierCommand, membarrier_query};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use serde_json::Value;
use shm::denied::{Denied, denied};
use shm::{Doorbell, Region, Socket};

use super::Finding;
use crate::admin::Connection;
use crate::place::{self, Host};

/// Where Debian's dynamic linker looks when no variable says otherwise, in its order.
const SYSTEM_FOLDERS: &[&str] = &[
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// Debian packages with programs to try, and a file of each.
const PROGRAMS: &[(&str, &str)] = &[("ibverbs-utils", "ibv_rc_pingpong"), ("perftest", "ib_write_bw")];

/// All checks, in the order in which a person would ask.
pub(super) fn all(host: &Host) -> Vec<Finding> {
    let run_dir = host.run_dir();
    vec![
        run_directory(&run_dir),
        agent(&run_dir),
        wire(&run_dir),
        link_layer(&run_dir),
        connections(&run_dir),
        library(),
        loaded(),
        system_calls(),
        pidfd(),
        proc(),
        open_files(),
        membarrier(),
        wait_precision(),
        processors(),
        real_devices(),
        programs(),
    ]
}

fn run_directory(dir: &Path) -> Finding {
    const WHAT: &str = "run directory";
    let named = engine::rundir::chosen().is_some();
    let why = if named { " (SOFTHCA_DIR)" } else { "" };
    let shown = format!("{}{why}", dir.display());
    // The longest name inside is a socket's, and a socket's path may have 107 bytes.
    if engine::rundir::node(dir, 15).as_os_str().len() > 107 {
        return Finding::fail(
            WHAT,
            format!("{shown}: the path is too long for sockets"),
            "set SOFTHCA_DIR to a shorter path",
        );
    }
    let meta = match fs::symlink_metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Finding::ok(WHAT, format!("{shown}, not there yet: the first `softhca run` makes it"));
        }
        Err(error) => {
            return Finding::fail(WHAT, format!("{shown}: {error}"), "set SOFTHCA_DIR to a directory of your own");
        }
    };
    if !meta.is_dir() {
        return Finding::fail(WHAT, format!("{shown} is not a directory"), "remove it, or set SOFTHCA_DIR");
    }
    let others = meta.uid() != rustix::process::geteuid().as_raw();
    if others && (named || meta.uid() == 0) && engine::rundir::is_served(&engine::rundir::admin(dir)) {
        return Finding::ok(WHAT, format!("{shown}: the agent of user {} serves us too", meta.uid()));
    }
    if others {
        return Finding::fail(
            WHAT,
            format!("{shown} belongs to user {}", meta.uid()),
            "set SOFTHCA_DIR to a directory of your own",
        );
    }
    if meta.mode() & 0o022 != 0 {
        return Finding::fail(
            WHAT,
            format!("{shown} can be written by others"),
            format!("chmod 0700 {}", dir.display()),
        );
    }
    Finding::ok(WHAT, shown)
}

fn agent(dir: &Path) -> Finding {
    const WHAT: &str = "agent";
    let Ok(connection) = Connection::open(dir) else {
        return Finding::ok(WHAT, "none runs; `softhca run` starts one when it is needed");
    };
    let pid = connection.agent_pid().map_or_else(|| "in another container".to_owned(), |pid| format!("process {pid}"));
    let own = env!("CARGO_PKG_VERSION");
    match connection.ask("status") {
        Ok(answer) => match answer.get("version").and_then(serde_json::Value::as_str) {
            Some(version) if version == own => Finding::ok(WHAT, format!("{pid}, version {version}")),
            Some(version) => {
                Finding::warn(WHAT, format!("{pid}, version {version}; this program is {own}"), "softhca agent --stop")
            }
            None => Finding::warn(WHAT, format!("{pid}, of unknown version"), "softhca agent --stop"),
        },
        Err(why) => Finding::fail(WHAT, format!("{pid}: {why}"), "end it (kill -9) and run your program again"),
    }
}

/// Which addresses hear other hosts, as the agent tells it.
fn wire(dir: &Path) -> Finding {
    const WHAT: &str = "other hosts";
    let Some(answer) = Connection::open(dir).ok().and_then(|connection| connection.ask("devices").ok()) else {
        return Finding::ok(WHAT, "no agent runs that could tell");
    };
    let (with, without) = hearing(&answer["devices"]);
    match (with.as_slice(), without.as_slice()) {
        ([], []) => Finding::ok(WHAT, "not reached: the agent serves programs of this host only"),
        (_, []) => Finding::ok(WHAT, format!("reach us at {}", with.join(", "))),
        (_, [(_, why), ..]) => {
            let addresses: Vec<&str> = without.iter().map(|(address, _)| address.as_str()).collect();
            Finding::warn(
                WHAT,
                format!("do not reach us at {}: {why}", addresses.join(", ")),
                "programs of one agent reach each other all the same; `--address 127.0.0.2` makes a host of its own",
            )
        }
    }
}

/// What the ports are, and what programs have to give there.
fn link_layer(dir: &Path) -> Finding {
    const WHAT: &str = "link layer";
    let Some(answer) = Connection::open(dir).ok().and_then(|connection| connection.ask("devices").ok()) else {
        return Finding::ok(WHAT, "no agent runs that could tell");
    };
    let devices = answer["devices"].as_array().cloned().unwrap_or_default();
    let ports: Vec<Value> = devices.iter().filter_map(|device| device["ports"].as_array()).flatten().cloned().collect();
    match ports.iter().find(|port| port["lids"].is_string()) {
        Some(port) => Finding::ok(WHAT, format!("InfiniBand; {}", port["lids"].as_str().unwrap_or_default())),
        None => Finding::ok(
            WHAT,
            "Ethernet (RoCE): programs give a GID index; for those that cannot, `softhca agent --link-layer infiniband`",
        ),
    }
}

/// Whether programs can connect by address (rdma_cm): here, and with other hosts, whose requests come to QP 1.
fn connections(dir: &Path) -> Finding {
    const WHAT: &str = "connections";
    let Ok(connection) = Connection::open(dir) else { return Finding::ok(WHAT, "no agent runs that could tell") };
    let (status, devices) = (connection.ask("status"), connection.ask("devices"));
    let (Ok(status), Ok(devices)) = (status, devices) else { return Finding::ok(WHAT, "the agent does not tell") };
    if status["manager"].is_null() {
        let found = "the agent is an older one, without a connection manager: rdma_cm finds nobody";
        return Finding::warn(WHAT, found, "softhca agent --stop");
    }
    let (ids, (with, without)) = (&status["manager"]["ids"], hearing(&devices["devices"]));
    match (with.as_slice(), without.as_slice()) {
        ([], [(address, why), ..]) => Finding::warn(
            WHAT,
            format!(
                "programs of this agent connect ({ids} ids), other hosts do not: QP 1 of {address} cannot be reached: {why}"
            ),
            "end the program that has UDP port 4791 (`ss -lunp sport = 4791`), or use another `--address`",
        ),
        ([], []) => Finding::ok(WHAT, format!("programs of this agent connect; {ids} ids")),
        _ => Finding::ok(
            WHAT,
            format!("rdma_cm at any address of this host, for other hosts at {}; {ids} ids", with.join(", ")),
        ),
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

fn library() -> Finding {
    const WHAT: &str = "verbs library";
    match place::library_folder() {
        Ok(folder) => Finding::ok(WHAT, format!("`softhca run` loads {}", folder.join(place::LIBRARY).display())),
        Err(why) => Finding::fail(WHAT, why, "run `cargo xtask dist` and use target/dist/bin/softhca"),
    }
}

/// Which library a program loads that is started without `softhca run`.
fn loaded() -> Finding {
    const WHAT: &str = "without run";
    let variable = env::var_os(place::LIBRARY_PATH).unwrap_or_default();
    let folders = env::split_paths(&variable).chain(SYSTEM_FOLDERS.iter().map(PathBuf::from));
    let found = folders.map(|folder| folder.join(place::LIBRARY)).find(|path| path.exists());
    let ours = place::library_folder().ok().and_then(|folder| folder.join(place::LIBRARY).canonicalize().ok());
    match found {
        None => Finding::ok(WHAT, "no libibverbs.so.1 on this machine: verbs programs start only under `softhca run`"),
        Some(path) if path.canonicalize().ok() == ours => {
            Finding::ok(WHAT, format!("programs load softhca too ({})", path.display()))
        }
        Some(path) => Finding::ok(WHAT, format!("programs load {} and see no softhca device", path.display())),
    }
}

/// Calls that softhca cannot do without, of which seccomp profiles forbid some. Each is tried; the first that is refused is told.
fn system_calls() -> Finding {
    const WHAT: &str = "system calls";
    let epoll = || epoll::create(epoll::CreateFlags::CLOEXEC).map(drop);
    let timer = || timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map(drop);
    let tried = Region::create("softhca-doctor", 4096)
        .map(drop)
        .and_then(|()| Region::create_published("softhca-doctor", 4096).map(drop))
        .and_then(|()| Doorbell::new().map(drop))
        .and_then(|()| epoll().map_err(denied("epoll_create1")))
        .and_then(|()| timer().map_err(denied("timerfd_create")))
        .and_then(|()| Socket::check());
    match tried {
        Ok(()) => Finding::ok(WHAT, "all that softhca needs are allowed, and shared memory can be sealed"),
        Err(error) => match error.get_ref().and_then(|error| error.downcast_ref::<Denied>()) {
            Some(denied) => Finding::fail(
                WHAT,
                format!("{}: {}", denied.call, denied.errno),
                denied.advice().unwrap_or_else(|| "programs will not work here".to_owned()),
            ),
            None => Finding::fail(WHAT, error.to_string(), "programs will not work here"),
        },
    }
}

fn pidfd() -> Finding {
    const WHAT: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok(WHAT, "the death of a program is seen at once"),
        Err(errno) => Finding::warn(
            WHAT,
            format!("pidfd_open: {errno}: the death of a program is seen when its connection to the agent ends"),
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
            format!("/proc/self/maps: {error}: networks are not told apart, and some sentences are shorter"),
            "mount -t proc proc /proc",
        ),
    }
}

/// How many files a process may have open: an agent needs some for each program, and a program some for each device.
fn open_files() -> Finding {
    const WHAT: &str = "open files";
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    match maximum {
        Some(limit) if limit < FILES_MIN => Finding::fail(
            WHAT,
            format!("a process may have {limit} only; an agent needs {FILES_MIN} or more"),
            format!("ulimit -Hn {FILES_MIN}"),
        ),
        Some(limit) => Finding::ok(WHAT, format!("a process may have {limit}")),
        None => Finding::ok(WHAT, "a process may have any number"),
    }
}

fn membarrier() -> Finding {
    const WHAT: &str = "membarrier";
    if membarrier_query().contains_command(MembarrierCommand::RegisterGlobalExpedited) {
        Finding::ok(WHAT, "posting needs no fence")
    } else {
        Finding::warn(
            WHAT,
            "not available: each post has a fence, some nanoseconds slower",
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
        Ok(_) => Finding::ok(WHAT, "waits are exact to microseconds"),
        Err(errno) => {
            Finding::warn(WHAT, format!("{errno}: waits are exact to milliseconds"), "a kernel of Linux 5.11 or newer")
        }
    }
}

fn processors() -> Finding {
    const WHAT: &str = "processors";
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count > 1 {
        return Finding::ok(WHAT, format!("{count}"));
    }
    Finding::warn(WHAT, "1: programs that poll take turns", "use event-driven modes (-e) where programs have them")
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
        Finding::ok(WHAT, "ibverbs-utils and perftest are there to try")
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
