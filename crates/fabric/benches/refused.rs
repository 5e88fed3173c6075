//! Measures the cost of a refused packet relative to an accepted one. The ratios are medians of one
//! run in which both kinds alternate.
//!
//! A stranger can send arbitrary packets, so a refused packet should cost at most twice as much as
//! a peer's packet. The fabric delivers the packets. Kernel time would make the two costs more
//! alike, so it is not included. Run it with `cargo bench -p softhca-fabric --bench refused`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use ::fabric::Faults;
use common::{Fabric, Plan, Side};
use softhca::Gid;
use wire::icrc::Envelope;
use wire::reth::Header as Reth;
use wire::{Headers, Opcode, Operation, Psn, Qpn, Transport};

/// Packets of a burst.
const BURST: u32 = 64;
/// Bursts of each kind.
const ROUNDS: usize = 400;
/// Polls after which an engine treats its program as polling.
const POLLS: u32 = 600;
const PAYLOAD: usize = 64;
const PORT: u16 = 0xc001;
const ICRC: usize = 4;
/// An address that none of these hosts has.
const STRANGER: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 77];
/// The highest allowed ratio to an accepted packet.
const LIMIT: f64 = 2.0;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    Icrc,
    Source,
    Number,
    PKey,
    Psn,
    Key,
}

const RC: [Kind; 6] = [Kind::Nothing, Kind::Icrc, Kind::Source, Kind::Number, Kind::PKey, Kind::Psn];
/// A wrong key ends a reliable connection with the first packet, so it is measured with UC.
const UC: [Kind; 2] = [Kind::Nothing, Kind::Key];

/// Returns the sender's GID and a packet of this kind for `to`.
fn packet(transport: Transport, kind: Kind, (from, to): (&Side, &Side), psn: u32) -> ([u8; 16], Vec<u8>) {
    let headers = Headers {
        opcode: Opcode::new(transport, Operation::WriteOnly),
        psn: Psn::new(if kind == Kind::Psn { psn + 1000 } else { psn } & 0xff_ffff),
        // The last number in the engine's block; no QP has it.
        dest_qp: Qpn::new(if kind == Kind::Number { to.qp.qpn() | 0xff } else { to.qp.qpn() }),
        pkey: if kind == Kind::PKey { 0x1234 } else { 0xffff },
        reth: Reth { va: to.memory.addr(0), rkey: to.mr.rkey() ^ u32::from(kind == Kind::Key), len: PAYLOAD as u32 },
        ..Headers::default()
    };
    let covered = headers.len() + PAYLOAD;
    let mut bytes = vec![0; covered + ICRC];
    headers.emit(&mut bytes).expect("room for the headers");
    bytes[headers.len()..headers.len() + 4].copy_from_slice(&psn.to_ne_bytes());
    let source = if kind == Kind::Source { STRANGER } else { from.gid() };
    let icrc = Envelope::new(&source, &to.gid(), PORT).icrc(0, &bytes[..covered]);
    bytes[covered..].copy_from_slice(&icrc);
    if kind == Kind::Icrc {
        bytes[covered - 1] ^= 0x55;
        bytes[covered + 1] ^= 0xaa;
    }
    (source, bytes)
}

fn gid(bytes: [u8; 16]) -> Gid {
    IpAddr::from(Ipv6Addr::from(bytes)).into()
}

/// Polls until the helper thread leaves all work to the program.
fn poll(side: &Side) {
    (0..POLLS).for_each(|_| assert_eq!(side.rcq.poll(&mut []).expect("it polls"), 0));
}

/// Handles all packets that have arrived; returns the nanoseconds it took.
fn take(side: &Side) -> u128 {
    let started = Instant::now();
    side.engine.catch_up();
    started.elapsed().as_nanos()
}

fn median(row: &mut [f64]) -> f64 {
    row.sort_by(f64::total_cmp);
    row[row.len() / 2]
}

/// The number of refused packets, and the bytes written last. A change shows that a packet was
/// handled.
fn state(side: &Side) -> (u64, Vec<u8>) {
    (side.engine.drops().iter().map(|record| record.count).sum(), side.memory.get(0, 4))
}

/// Returns the nanoseconds per packet, for each kind.
fn measure(transport: Transport, plan: &Plan, kinds: &[Kind]) -> Vec<f64> {
    let fabric = Fabric::hosts(["10.0.0.1", "10.0.0.2"], 1024, Faults::default());
    let (a, b) = fabric.pair(plan);
    let mut rows = vec![Vec::new(); kinds.len()];
    let (mut psn, mut sent, mut bursts) = (7, 0, 0);
    while rows.iter().any(|row| row.len() < ROUNDS) {
        for (kind, row) in kinds.iter().zip(&mut rows) {
            let packets: Vec<_> = (0..BURST).map(|number| packet(transport, *kind, (&a, &b), psn + number)).collect();
            if *kind == Kind::Nothing {
                psn += BURST;
            } else {
                sent += u64::from(BURST);
            }
            bursts += 1;
            assert!(bursts < 50 * ROUNDS * kinds.len(), "the program is never left alone with what has come");
            // Neither side sleeps, so no acknowledgement has to wake one.
            poll(&a);
            poll(&b);
            let before = state(&b);
            let idle = take(&b);
            for (source, bytes) in packets {
                assert!(fabric.switch().inject(gid(source), PORT, gid(b.gid()), &bytes), "there is such a host");
            }
            // With few processors, the helper thread may have handled the packets first.
            let is_first = state(&b) == before;
            let time = take(&b).saturating_sub(idle) as f64 / f64::from(BURST);
            if is_first && state(&b) != before {
                row.push(time);
            }
        }
    }
    take(&b);
    let refused = state(&b).0;
    // The first packet of each burst with a wrong PSN gets a NAK and does not count as dropped.
    assert!(refused <= sent && refused >= sent - sent / u64::from(BURST), "{refused} of {sent} were refused");
    rows.iter_mut().map(|row| median(row)).collect()
}

fn main() {
    let mut dear = 0;
    println!("| packet | accepted | refused | ratio |\n|---|---|---|---|");
    for (transport, plan, kinds) in [(Transport::Rc, Plan::rc(), &RC[..]), (Transport::Uc, Plan::uc(), &UC[..])] {
        let figures = measure(transport, &plan, kinds);
        for (kind, nanos) in kinds.iter().zip(&figures).skip(1) {
            let ratio = nanos / figures[0];
            dear += usize::from(ratio > LIMIT);
            println!("| {transport:?}, wrong {kind:?} | {:.0} ns | {nanos:.0} ns | {ratio:.2} |", figures[0]);
        }
    }
    if dear > 0 {
        println!("{dear} kinds cost more than {LIMIT} times an accepted packet");
        std::process::exit(1);
    }
}
