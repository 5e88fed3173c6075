//! A hostile program that tries to reach the data of other users of the same agent.
//!
//! `tests/users.rs` starts it as `intruder PRIVATE-DIRECTORY PIDS…`, with `SOFTHCA_DIR` naming the
//! agent's run directory. Each module tries one way. For each refused attempt the program prints a
//! line `refused`. If an attempt is not refused, the program ends with 1. The program knows the
//! agent's ABI and the layout of lanes. It uses no library that could prevent an attempt.
#![forbid(unsafe_code)]

mod client;
mod handles;
mod lanes;
mod outside;
mod shares;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use shm::Socket;

/// Counts the attempts and their results.
#[derive(Default)]
pub(crate) struct Report {
    refused: u32,
    granted: u32,
}

impl Report {
    /// Records an attempt that must be refused.
    pub(crate) fn attempt<T, E: std::fmt::Display>(&mut self, what: &str, outcome: Result<T, E>) {
        match outcome {
            Err(why) => {
                self.refused += 1;
                // The first attempts of many of one kind are enough to read.
                if self.refused < 200 {
                    println!("refused: {what}: {why}");
                }
            }
            Ok(_) => self.fail(what),
        }
    }

    /// Records a result that must not occur.
    pub(crate) fn fail(&mut self, what: &str) {
        self.granted += 1;
        println!("GRANTED: {what}");
    }

    /// Checks a condition that must hold.
    pub(crate) fn require(&mut self, what: &str, holds: bool) {
        if !holds {
            self.fail(what);
        }
    }
}

/// Another user's context, as far as the agent shows it.
pub(crate) struct Victim {
    pub(crate) engine: u32,
    /// The context's QPs, each with the QP to which it is connected.
    pub(crate) qps: Vec<(u32, u32)>,
}

/// Sends a request to the agent's admin node and returns the answer.
pub(crate) fn ask(run_dir: &std::path::Path, request: &str) -> std::io::Result<Value> {
    let socket = Socket::connect(&engine::rundir::admin(run_dir))?;
    socket.send(json!({ "request": request }).to_string().as_bytes(), &[])?;
    let mut buffer = vec![0; 64 * 1024];
    let received = socket.recv(&mut buffer)?;
    serde_json::from_slice(&buffer[..received.len]).map_err(std::io::Error::other)
}

fn victims(report: &mut Report, run_dir: &std::path::Path) -> Vec<Victim> {
    let me = rustix::process::geteuid().as_raw();
    let shown = ask(run_dir, "show").unwrap_or_default();
    let mut victims = Vec::new();
    for context in shown["contexts"].as_array().into_iter().flatten().filter(|context| context["uid"] != me) {
        let list = |name: &str| context[name].as_array().cloned().unwrap_or_default();
        let number = |value: &Value| u32::try_from(value.as_u64().unwrap_or_default()).unwrap_or_default();
        report.require("another user's keys are not shown", list("mrs").iter().all(|mr| mr["rkey"].is_null()));
        let qps = list("qps").iter().map(|qp| (number(&qp["qpn"]), number(&qp["dest_qpn"]))).collect();
        victims.push(Victim { engine: number(&context["context"]), qps });
    }
    victims
}

fn main() -> ExitCode {
    let run_dir = engine::rundir::default();
    let mut words = std::env::args().skip(1);
    let private = PathBuf::from(words.next().unwrap_or_default());
    let pids: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
    let mut report = Report::default();
    let victims = victims(&mut report, &run_dir);
    report.require("there are victims with connected QPs", victims.iter().any(|victim| !victim.qps.is_empty()));
    outside::try_all(&mut report, &run_dir, &private, &pids);
    handles::try_all(&mut report, &run_dir);
    lanes::try_all(&mut report, &run_dir, &victims);
    shares::try_all(&mut report, &run_dir);
    println!("{} attempts were refused, {} were not", report.refused, report.granted);
    if report.granted == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
