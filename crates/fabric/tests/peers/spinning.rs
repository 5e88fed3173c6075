//! Tests programs that spin on their memory, and poll only for completions of their own requests. A
//! peer's WRITEs must arrive meanwhile, whichever thread does the work.

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side};
use abi::post::opcode;
use engine::SendWr;

/// Enough rounds that helper threads stop leaving the work to programs like these. This takes a few
/// milliseconds.
const ROUNDS: u64 = 5000;

/// Where the peer writes, and the source of its WRITEs.
const HERE: usize = 0;
const FROM: usize = 64;

/// Writes a number to the other side's memory. With `polls`, waits for the completion.
fn write(from: &Side, to: &Side, number: u64, polls: bool) {
    from.memory.put_word(FROM, number);
    let remote = SendWr { remote_addr: to.memory.addr(HERE), rkey: to.mr.rkey(), ..SendWr::default() };
    from.post(&SendWr { opcode: opcode::RDMA_WRITE, sges: &from.sge(FROM, 8), ..remote });
    if polls {
        assert_eq!(from.sent().status, 0, "{number}: {:?}", engine::reason::last(3));
    }
}

fn await_word(side: &Side, number: u64) {
    until("the peer's number", || (side.memory.word(HERE) == number).then_some(()));
}

#[test]
fn two_that_answer_writes_with_writes() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..=ROUNDS).for_each(|number| {
                await_word(&b, number);
                write(&b, &a, number, true);
            });
        });
        (1..=ROUNDS).for_each(|number| {
            write(&a, &b, number, true);
            await_word(&a, number);
        });
    });
}

#[test]
fn one_that_polls_once_and_does_not_wait_for_what_it_posts() {
    let fabric = Fabric::start();
    let (a, b) = fabric.pair(&Plan::rc());
    let drain = |side: &Side| {
        // Polls the available completions, possibly none. The program then returns to its memory.
        let mut wcs = [abi::cq::Wc::default(); 4];
        let count = side.scq.poll(&mut wcs).expect("the CQ polls");
        assert!(wcs[..count].iter().all(|wc| wc.status == 0), "{:?}", engine::reason::last(3));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..=ROUNDS / 10).for_each(|number| {
                await_word(&b, number);
                write(&b, &a, number, false);
                (0..2).for_each(|_| drain(&b));
            });
        });
        (1..=ROUNDS / 10).for_each(|number| {
            write(&a, &b, number, true);
            await_word(&a, number);
        });
    });
}
