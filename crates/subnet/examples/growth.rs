//! What an event costs in fabrics of 100, 1,000 and 10,000 end nodes: `cargo run --release -p
//! softhca-subnet --example growth`. With sizes as arguments, it measures these; the memory is
//! right for the first one of a process only, because the next ones reuse it. The fabric is a tree
//! of leaf and spine switches; each end node of a small and constant number sends packets to
//! another leaf, so what happens does not grow with the fabric. A step should therefore cost about
//! the same in each row. Not a test: it prints.
#![allow(clippy::disallowed_methods, reason = "the measure needs a clock, the model has none")]
#![allow(clippy::unwrap_used, reason = "the fabric is the example's own")]

use softhca_subnet::fabric::TRAINING;
use softhca_subnet::state::Event;
use softhca_subnet::{End, Fabric, Frame, NodeId};
use std::time::Instant;
use wire::lrh;

const PER_LEAF: usize = 32;
const SPINES: usize = 4;
const SENDERS: usize = 64;
const PACKETS: usize = 2000;

fn main() {
    println!("end nodes | switches | MiB | KiB/node | build s | train events | send events | ns/event | idle step ns");
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![100, 1_000, 10_000] } else { sizes };
    sizes.into_iter().for_each(measure);
}

fn measure(nodes: usize) {
    let before = resident();
    let start = Instant::now();
    let mut fabric = Fabric::new();
    let leaves = nodes.div_ceil(PER_LEAF);
    // A spine has at most 254 ports. So the leaves of a large fabric have two rows of spines, which
    // are joined spine by spine.
    let hcas: Vec<NodeId> = (0..nodes).map(|at| fabric.add_hca(0x1_0000 + at as u64 * 2, 1)).collect();
    let leaf: Vec<NodeId> = (0..leaves).map(|at| fabric.add_switch(0x100_0000 + at as u64 * 512, 36)).collect();
    let spine: Vec<NodeId> = (0..SPINES).map(|at| fabric.add_switch(0x200_0000 + at as u64 * 512, 254)).collect();
    let groups = leaves.div_ceil(250);
    assert!(groups <= 2, "more leaves than two rows of spines reach");
    let more: Vec<NodeId> =
        (1..groups).flat_map(|_| 0..SPINES).map(|at| fabric.add_switch(0x300_0000 + at as u64 * 512, 254)).collect();
    let rows = [spine, more];
    let end = |node, port| End { node, port };
    for (at, hca) in hcas.iter().enumerate() {
        fabric.settings_mut(end(*hca, 1)).unwrap().identity.lid = at as u16 + 1;
        fabric.connect(end(*hca, 1), end(leaf[at / PER_LEAF], (at % PER_LEAF) as u8 + 1), 10_000).unwrap();
    }
    for (at, leaf) in leaf.iter().enumerate() {
        for (number, spine) in rows[at / 250].iter().enumerate() {
            let port = (PER_LEAF + number + 1) as u8;
            fabric.connect(end(*leaf, port), end(*spine, (at % 250) as u8 + 1), 10_000).unwrap();
        }
    }
    for (below, above) in rows[0].iter().zip(&rows[1]) {
        fabric.connect(end(*below, 254), end(*above, 254), 10_000).unwrap();
    }
    for lid in 1..=nodes {
        let (home, port) = ((lid - 1) / PER_LEAF, ((lid - 1) % PER_LEAF) as u8 + 1);
        for (at, leaf) in leaf.iter().enumerate() {
            let up = (PER_LEAF + lid % SPINES + 1) as u8;
            fabric.switch_mut(*leaf).unwrap().set_route(lid as u16, if at == home { port } else { up });
        }
        for (row, spines) in rows.iter().enumerate() {
            for spine in spines {
                let down = if home / 250 == row { (home % 250) as u8 + 1 } else { 254 };
                fabric.switch_mut(*spine).unwrap().set_route(lid as u16, down);
            }
        }
    }
    fabric.advance(2 * TRAINING);
    let trained = fabric.processed();
    for node in 0..fabric.len() as u32 {
        for port in 1..=fabric.node(NodeId(node)).unwrap().ports() {
            let _ = fabric.set_state(end(NodeId(node), port), Event::SetArmed);
            let _ = fabric.set_state(end(NodeId(node), port), Event::SetActive);
        }
    }
    let built = start.elapsed();
    let memory = resident() - before;

    let senders: Vec<usize> = (0..SENDERS).map(|at| at * nodes / SENDERS).collect();
    for &from in &senders {
        let to = (from + nodes / 2) % nodes;
        let lrh = lrh::Header { dlid: to as u16 + 1, slid: from as u16 + 1, ..lrh::Header::default() };
        let frame = Frame::new(lrh, vec![0xff; 2048 + 16]).unwrap();
        (0..PACKETS).for_each(|_| fabric.inject(end(hcas[from], 1), frame.clone()).unwrap());
    }
    let start = Instant::now();
    let delivered = fabric.advance(u64::MAX / 2).len();
    let took = start.elapsed();
    assert_eq!(delivered, SENDERS * PACKETS);
    let events = fabric.processed() - trained;

    let start = Instant::now();
    (1..=1000).for_each(|step| assert!(fabric.advance(u64::MAX / 2 + step).is_empty()));
    let idle = start.elapsed().as_nanos() / 1000;
    println!(
        "{nodes:9} | {:8} | {:3} | {:8.1} | {:7.2} | {trained:12} | {events:11} | {:8} | {idle:12}",
        fabric.len() - nodes,
        memory / 1024,
        memory as f64 / nodes as f64,
        built.as_secs_f64(),
        took.as_nanos() / u128::from(events),
    );
}

/// KiB of memory that the process uses.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default()
}
