//! What a sweep of the manager costs in managed fabrics of 100, 1,000 and 10,000 adapters: `cargo
//! run --release -p softhca-sm --example sweep`. With arguments it measures one size and engine:
//! `10000 ftree`. The memory is right for the first one of a process only, because the next ones
//! reuse it. The fabrics are fat trees of switches with 36 ports. Not a test: it prints.
//!
//! Most of the time goes to the fabric, whose agents answer. The column `manager s` is the time in
//! the manager alone, and `routes s` is one computation of all unicast tables.
#![allow(clippy::disallowed_methods, reason = "the measure needs a clock, the manager has none")]
#![allow(clippy::unwrap_used, reason = "the fabric is the example's own")]

use mad::topology::Topology;
use softhca_sm::config::{Engine, Routing};
use softhca_sm::{Address, Config, Manager, routing};
use std::fmt::Write;
use std::time::{Duration, Instant};
use subnet::fabric::TRAINING;
use subnet::managed::{Datagram, Managed, Output};
use subnet::{End, Time};
use wire::smp::PERMISSIVE_LID;

/// Adapters at a leaf, leaves and middle switches in a pod, and links up of each middle switch.
const HALF: usize = 18;

fn main() {
    println!(
        "engine | adapters | switches | sweep s | manager s | routes s | SMPs | us/SMP | second sweep s | SMPs | manager MiB"
    );
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let engine = match arguments.get(1).map(String::as_str) {
        Some("updn") => Engine::UpDown,
        Some("ftree") => Engine::FatTree,
        Some("dor") => Engine::DimensionOrder,
        _ => Engine::MinHop,
    };
    let size = arguments.first().and_then(|size| size.parse().ok());
    let sizes = size.map_or(vec![100, 1_000, 10_000], |size| vec![size]);
    sizes.into_iter().for_each(|adapters| measure(adapters, engine));
}

struct Net {
    managed: Managed,
    manager: Manager,
    from: End,
    sent: u64,
    /// The time in the manager.
    own: Duration,
}

fn measure(adapters: usize, engine: Engine) {
    let topology = Topology::from_text(&text(adapters)).unwrap();
    let mut managed = Managed::new(&topology).unwrap();
    managed.advance(2 * TRAINING);
    let from = End { node: managed.id("H0").unwrap(), port: 1 };
    managed.attach(from).unwrap();
    let guid = managed.node(from.node).unwrap().port(1).unwrap().guid;
    let config = Config { routing: Routing { engine, roots: Vec::new() }, ..Config::default() };
    let before = resident();
    let manager = Manager::new(config.clone(), guid, 1);
    let mut net = Net { managed, manager, from, sent: 0, own: Duration::ZERO };
    let start = Instant::now();
    net.sweep();
    let (swept, own, sent) = (start.elapsed(), net.own, net.sent);
    // The fabric keeps the tables as well: one byte for each LID and switch.
    let inventory = net.manager.inventory();
    let nodes = inventory.nodes.len();
    let tables: usize =
        inventory.nodes.values().filter_map(|node| node.switch.as_ref()).map(|switch| switch.linear.len()).sum();
    let memory = (resident() - before).saturating_sub(tables as u64 / 1024) / 1024;
    let start = Instant::now();
    let computed = routing::unicast(inventory, &config.routing);
    let routes = start.elapsed();
    assert!(computed.fallback.is_none() && computed.unreachable == 0, "{:?}", computed.fallback);
    let far = net.managed.ends().last().unwrap();
    let lid = net.managed.port_info(far).unwrap().lid;
    assert!(net.managed.resolve(from, lid, 0).is_ok_and(|path| path.end == far));
    net.manager.sweep_now();
    let start = Instant::now();
    net.sweep();
    println!(
        "{engine:?} | {adapters} | {} | {:.2} | {:.2} | {:.2} | {sent} | {:.1} | {:.2} | {} | {memory}",
        nodes - adapters,
        swept.as_secs_f64(),
        own.as_secs_f64(),
        routes.as_secs_f64(),
        swept.as_micros() as f64 / sent as f64,
        start.elapsed().as_secs_f64(),
        net.sent - sent,
    );
}

impl Net {
    /// Runs until a heavy sweep is complete.
    fn sweep(&mut self) {
        let start = Instant::now();
        self.manager.handle_timeout(clock(self.managed.now()));
        self.own += start.elapsed();
        loop {
            while let Some(transmit) = self.manager.poll_transmit() {
                self.sent += 1;
                let dlid = match transmit.to {
                    Address::Directed => PERMISSIVE_LID,
                    Address::Lid { lid, .. } => lid,
                };
                let datagram = Datagram::smp(PERMISSIVE_LID, dlid, 0, transmit.mad);
                self.managed.send(self.from, &datagram).unwrap();
            }
            while self.manager.poll_event().is_some() {}
            if self.manager.is_idle() {
                assert!(self.manager.is_up());
                return;
            }
            let next = self.managed.next_event().unwrap();
            for output in self.managed.advance(next) {
                if let Output::Datagram(delivered) = output {
                    let start = Instant::now();
                    self.manager.receive(Address::Directed, &delivered.datagram.mad, clock(next));
                    self.own += start.elapsed();
                }
            }
        }
    }
}

fn clock(time: Time) -> Duration {
    Duration::from_nanos(time / 1000)
}

/// One leaf and its roots, or pods of leaves and middle switches below the roots.
fn text(adapters: usize) -> String {
    let leaves = adapters.div_ceil(HALF);
    let pods = leaves.div_ceil(HALF);
    let mut text = String::new();
    for leaf in 0..leaves {
        writeln!(text, "Switch 36 \"L{leaf}\"").unwrap();
        for at in (0..HALF).filter(|at| leaf * HALF + at < adapters) {
            writeln!(text, "[{}] \"H{}\"[1]", at + 1, leaf * HALF + at).unwrap();
        }
        for middle in 0..HALF {
            writeln!(text, "[{}] \"M{}-{middle}\"[{}]", HALF + middle + 1, leaf / HALF, leaf % HALF + 1).unwrap();
        }
        text.push('\n');
    }
    for (pod, middle) in (0..pods).flat_map(|pod| (0..HALF).map(move |middle| (pod, middle))) {
        writeln!(text, "Switch 36 \"M{pod}-{middle}\"").unwrap();
        for root in (0..HALF).filter(|_| pods > 1) {
            writeln!(text, "[{}] \"R{middle}-{root}\"[{}]", HALF + root + 1, pod + 1).unwrap();
        }
        text.push('\n');
    }
    for root in (0..HALF * HALF).filter(|_| pods > 1) {
        writeln!(text, "Switch 36 \"R{}-{}\"\n", root / HALF, root % HALF).unwrap();
    }
    (0..adapters).for_each(|adapter| writeln!(text, "Hca 1 \"H{adapter}\"\n").unwrap());
    text
}

/// KiB of memory that the process uses.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default()
}
