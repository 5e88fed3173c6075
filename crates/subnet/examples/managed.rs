//! What a sweep of a subnet manager costs in managed fabrics of 1,000 and 5,000 adapters: `cargo
//! run --release -p softhca-subnet --example managed`. With sizes as arguments, it measures these;
//! the memory is right for the first one of a process only, because the next ones reuse it. The
//! fabric is a tree of leaf and spine switches, and the manager is the small one of the tests. Not
//! a test: it prints.
#![allow(clippy::disallowed_methods, reason = "the measure needs a clock, the model has none")]
#![allow(clippy::unwrap_used, reason = "the fabric is the example's own")]

#[allow(dead_code, reason = "tests use more of it")]
#[path = "../tests/managed/manager.rs"]
mod manager;

use mad::topology::Topology;
use manager::Manager;
use softhca_subnet::End;
use softhca_subnet::fabric::TRAINING;
use softhca_subnet::managed::Managed;
use std::fmt::Write;
use std::time::Instant;

const PER_LEAF: usize = 32;
const SPINES: usize = 4;

fn main() {
    println!(
        "adapters | switches | build s | MiB | KiB/node | train s | sweep s | SMPs | us/SMP | MiB after | idle ns"
    );
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1_000, 5_000] } else { sizes };
    sizes.into_iter().for_each(measure);
}

fn measure(adapters: usize) {
    let topology = Topology::from_text(&text(adapters)).unwrap();
    let before = resident();
    let start = Instant::now();
    let mut net = Managed::new(&topology).unwrap();
    let (built, memory) = (start.elapsed(), resident() - before);
    let nodes = net.fabric().len();
    let start = Instant::now();
    net.advance(2 * TRAINING);
    let trained = start.elapsed();

    let from = End { node: net.id("H0").unwrap(), port: 1 };
    let mut manager = Manager::new(&mut net, from);
    let start = Instant::now();
    manager.discover(&mut net);
    manager.configure(&mut net);
    let swept = start.elapsed();
    assert_eq!(manager.found.len(), nodes);
    let (far, after, smps) = (manager.found.last().unwrap().lid, resident() - before, manager.requests);
    assert!(net.resolve(from, far, 0).is_ok());

    let start = Instant::now();
    let now = net.now();
    (1..=1000).for_each(|step| assert!(net.advance(now + step).is_empty()));
    let idle = start.elapsed().as_nanos() / 1000;
    println!(
        "{adapters:8} | {:8} | {:7.2} | {:3} | {:8.1} | {:7.2} | {:7.2} | {smps:6} | {:6.1} | {:9} | {idle:7}",
        nodes - adapters,
        built.as_secs_f64(),
        memory / 1024,
        memory as f64 / nodes as f64,
        trained.as_secs_f64(),
        swept.as_secs_f64(),
        swept.as_micros() as f64 / smps as f64,
        after / 1024,
    );
}

/// Leaves of 32 adapters and four links up; spines that reach all leaves.
fn text(adapters: usize) -> String {
    let mut text = String::new();
    let leaves = adapters.div_ceil(PER_LEAF);
    assert!(leaves <= 254, "more leaves than a spine reaches");
    for leaf in 0..leaves {
        writeln!(text, "Switch 36 \"L{leaf}\"").unwrap();
        for at in (0..PER_LEAF).filter(|at| leaf * PER_LEAF + at < adapters) {
            writeln!(text, "[{}] \"H{}\"[1]", at + 1, leaf * PER_LEAF + at).unwrap();
        }
        for spine in 0..SPINES {
            writeln!(text, "[{}] \"P{spine}\"[{}]", PER_LEAF + spine + 1, leaf + 1).unwrap();
        }
        text.push('\n');
    }
    (0..SPINES).for_each(|spine| writeln!(text, "Switch {leaves} \"P{spine}\"\n").unwrap());
    (0..adapters).for_each(|adapter| writeln!(text, "Hca 1 \"H{adapter}\"\n").unwrap());
    text
}

/// KiB of memory that the process uses.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default()
}
