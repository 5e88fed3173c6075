//! Makes one RDMA WRITE of 8 bytes between two programs in simulated time, on one thread: what
//! `suite/tests/walk.rs` follows from file to file. The argument `lane` or `wire` says whether both
//! programs are on one host. Each step of the WRITE is a function of its own, by whose name it is
//! found. The WRITEs before it are not followed: they open the lane, and give everything its size.
#![forbid(unsafe_code)]

use std::hint::black_box;

use fabric::simulation::Simulation;
use softhca::{Access, Buffer, Completion, Cq, Exposed, Qp, Reliable};

/// WRITEs before the one that is followed.
const ROUNDS: u64 = 50;

/// Polls after each event of the simulation: with one of them the engine looks for packets of other
/// hosts. So the program takes the packet, and not the engine's own turn.
const POLLS: u32 = 64;

type Failed = Box<dyn std::error::Error>;

type Poll = fn(&Cq) -> Option<Completion>;

/// Two connected programs.
struct Pair {
    simulation: Simulation,
    left: Qp<Reliable>,
    cq: Cq,
    there: Cq,
    target: Exposed,
    /// Its connection must live.
    _right: Qp<Reliable>,
}

impl Pair {
    fn new(on_wire: bool) -> Result<(Self, Buffer), Failed> {
        let mut simulation = Simulation::new(1);
        let here = simulation.host("10.0.0.1")?;
        let there = if on_wire { simulation.host("10.0.0.2")? } else { here };
        let (here, there) = (simulation.open(here)?, simulation.open(there)?);
        let (a, b) = (here.cq(16)?, there.cq(16)?);
        let (pd_a, pd_b) = (here.pd()?, there.pd()?);
        let (left, right) = (pd_a.reliable(&a).build()?, pd_b.reliable(&b).build()?);
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
        let target = pd_b.expose(8, Access::WRITE)?;
        let pair = Self { simulation, left, cq: a, there: b, target, _right: right };
        Ok((pair, pd_a.buffer(8)?))
    }

    /// The target polls until its memory has changed.
    fn take(&mut self, number: u64, poll: Poll) {
        loop {
            for _ in 0..POLLS {
                assert!(poll(&self.there).is_none(), "a WRITE completes nothing at its target");
                if self.target.to_vec(..) == number.to_ne_bytes() {
                    return;
                }
            }
            self.simulation.step().expect("the WRITE arrives");
        }
    }

    /// The initiator polls until the WRITE has completed.
    fn reap(&mut self, poll: Poll) -> Completion {
        loop {
            for _ in 0..POLLS {
                if let Some(completion) = poll(&self.cq) {
                    return completion;
                }
            }
            self.simulation.step().expect("the WRITE is acknowledged");
        }
    }
}

fn post(pair: &Pair, number: u64, mut message: Buffer) {
    message.copy_from_slice(&number.to_ne_bytes());
    pair.left.write(number, message, &pair.target.token()).expect("posted");
}

fn poll(cq: &Cq) -> Option<Completion> {
    cq.poll().expect("a device")
}

// What comes after each call keeps it from being a jump, which valgrind would not see as a call.

#[inline(never)]
fn walk_post(pair: &Pair, message: Buffer) {
    post(pair, ROUNDS, message);
    black_box(());
}

#[inline(never)]
fn walk_take(cq: &Cq) -> Option<Completion> {
    black_box(poll(cq))
}

#[inline(never)]
fn walk_reap(cq: &Cq) -> Option<Completion> {
    black_box(poll(cq))
}

fn main() -> Result<(), Failed> {
    let on_wire = std::env::args().nth(1).is_some_and(|path| path == "wire");
    let (mut pair, mut message) = Pair::new(on_wire)?;
    for number in 1..ROUNDS {
        post(&pair, number, message);
        pair.take(number, poll);
        message = pair.reap(poll).ok()?.into_buffer();
    }
    walk_post(&pair, message);
    pair.take(ROUNDS, walk_take);
    pair.reap(walk_reap).ok()?;
    Ok(())
}
