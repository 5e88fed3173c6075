//! Tries ways outside of RDMA: private sockets, other processes' descriptors and memory, the
//! agent's own files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use shm::Socket;

use crate::{Report, ask};

pub(crate) fn try_all(report: &mut Report, run_dir: &Path, private: &Path, pids: &[u32]) {
    for node in ["admin", "uverbs0"] {
        report.attempt("a private agent's socket", Socket::connect(&private.join(node)));
    }
    report.attempt("a private run directory", fs::read_dir(private));
    for file in ["agent.log", "agent.lock", "start.lock"] {
        report.attempt("the agent's file", OpenOptions::new().write(true).open(run_dir.join(file)));
    }
    report.attempt("the agent's log", File::open(run_dir.join("agent.log")));
    report.attempt("the agent's process id", OpenOptions::new().write(true).open(run_dir.join("agent.pid")));
    report.attempt("a device's node removed", fs::remove_file(run_dir.join("uverbs0")));
    report.attempt("a file beside the nodes", File::create(run_dir.join("uverbs7")));
    report.attempt("the mirror", File::create(run_dir.join("sys/class/infiniband/softhca0/node_guid")));
    let stopped = ask(run_dir, "stop").and_then(|answer| match answer["error"].as_str() {
        Some(error) => Err(io::Error::other(error.to_owned())),
        None => Ok(()),
    });
    report.attempt("the agent stopped", stopped);
    for pid in pids {
        process(report, *pid);
    }
}

fn process(report: &mut Report, pid: u32) {
    let place = |name: &str| format!("/proc/{pid}/{name}");
    report.attempt("another's descriptors", fs::read_dir(place("fd")));
    report.attempt("another's memory", OpenOptions::new().read(true).write(true).open(place("mem")));
    for number in 0..32 {
        report.attempt("another's descriptor by its number", File::open(place(&format!("fd/{number}"))));
    }
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    report.attempt("a signal", kill_process(pid, Signal::TERM));
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        for number in 0..32 {
            report.attempt("another's descriptor by pidfd", pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()));
        }
    }
}
