//! Sends messages of 8 bytes between two programs in simulated time, on one thread, so that the
//! same instructions are executed each time: what `suite/tests/instructions.rs` counts. Each step
//! is a function of its own, by whose name it is counted.
#![forbid(unsafe_code)]

use fabric::simulation::Simulation;
use softhca::{Buffer, Completion, Cq, Qp, Reliable};

/// Messages that are not counted by themselves: everything has its size then.
const ROUNDS: u64 = 400;

#[inline(never)]
fn counted_post(qp: &Qp<Reliable>, number: u64, message: Buffer) {
    qp.send(number, message).expect("posted");
}

#[inline(never)]
fn counted_receive(qp: &Qp<Reliable>, number: u64, into: Buffer) {
    qp.receive(number, into).expect("posted");
}

/// Takes the message from the lane, completes the receive and answers.
#[inline(never)]
fn counted_take(cq: &Cq) -> Option<Completion> {
    cq.poll().expect("a device")
}

/// Takes the answer from the lane, and completes the send.
#[inline(never)]
fn counted_reap(cq: &Cq) -> Option<Completion> {
    cq.poll().expect("a device")
}

/// Looks in vain.
#[inline(never)]
fn counted_look(cq: &Cq) -> Option<Completion> {
    cq.poll().expect("a device")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut simulation = Simulation::new(1);
    let host = simulation.host("10.0.0.1")?;
    let (here, there) = (simulation.open(host)?, simulation.open(host)?);
    let (a, b) = (here.cq(16)?, there.cq(16)?);
    let (pd_a, pd_b) = (here.pd()?, there.pd()?);
    let (left, right) = (pd_a.reliable(&a).build()?, pd_b.reliable(&b).build()?);
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
    let (mut message, mut into) = (pd_a.buffer(8)?, pd_b.buffer(8)?);
    let mut taken = 0;
    for number in 0..ROUNDS {
        message.copy_from_slice(&number.to_ne_bytes());
        counted_receive(&right, number, into);
        counted_post(&left, number, message);
        let mut came = counted_take(&b);
        while came.is_none() {
            // The lane is made by turns of the engines, once.
            simulation.step().ok_or("nothing happens, and nothing came")?;
            came = counted_take(&b);
            taken += 1;
        }
        let came = came.ok_or("a message")?.ok()?;
        assert_eq!(came.data(), number.to_ne_bytes());
        into = came.into_buffer();
        let mut sent = counted_reap(&a);
        while sent.is_none() {
            simulation.step().ok_or("nothing happens, and nothing was answered")?;
            sent = counted_reap(&a);
            taken += 1;
        }
        message = sent.ok_or("an answer")?.ok()?.into_buffer();
        assert!(counted_look(&a).is_none());
    }
    println!("{ROUNDS} messages, {taken} looks in vain");
    Ok(())
}
