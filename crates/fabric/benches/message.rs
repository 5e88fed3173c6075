//! Measures each step of an 8-byte message: the post, an empty poll, and the polls that take the
//! message from the lane and the acknowledgement. Run it with `cargo bench -p softhca-fabric
//! --bench message`. The cost of using two processors is not included.
//!
//! Both programs run on one thread, in simulated time, so no helper thread and no kernel work is
//! included. A batch of messages is posted, then received, then its completions are polled; only
//! the step of the figure is timed. `refused.rs` measures packets between hosts.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use fabric::simulation::Simulation;
use softhca::{Buffer, Completion, Context, Cq, Pd, Qp, Reliable};

/// Messages of a batch.
const LOT: usize = 16;

/// The steps of a batch.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Post,
    Receive,
    Take,
    Reap,
    Look,
}

/// Two connected programs.
struct Both {
    simulation: Simulation,
    _contexts: [Context; 2],
    _pds: [Pd; 2],
    cqs: [Cq; 2],
    left: Qp<Reliable>,
    right: Qp<Reliable>,
    messages: Vec<Buffer>,
    rooms: Vec<Buffer>,
}

impl Both {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let mut simulation = Simulation::new(1);
        let host = simulation.host("10.0.0.1")?;
        let contexts = [simulation.open(host)?, simulation.open(host)?];
        let cqs = [contexts[0].cq(2 * LOT as u32)?, contexts[1].cq(2 * LOT as u32)?];
        let pds = [contexts[0].pd()?, contexts[1].pd()?];
        let (left, right) = (pds[0].reliable(&cqs[0]).build()?, pds[1].reliable(&cqs[1]).build()?);
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
        let buffers = |pd: &Pd| (0..LOT).map(|_| pd.buffer(8)).collect::<Result<Vec<_>, _>>();
        let (messages, rooms) = (buffers(&pds[0])?, buffers(&pds[1])?);
        Ok(Self { simulation, _contexts: contexts, _pds: pds, cqs, left, right, messages, rooms })
    }

    /// Sends a batch from left to right; returns the time of one step.
    fn lot(&mut self, timed: Step) -> Duration {
        let mut time = Duration::ZERO;
        let mut step = |step: Step, work: &mut dyn FnMut()| {
            let started = Instant::now();
            work();
            if step == timed {
                time = started.elapsed();
            }
        };
        let (left, right) = (&self.left, &self.right);
        let (messages, rooms) = (&mut self.messages, &mut self.rooms);
        step(Step::Receive, &mut || {
            rooms.drain(..).for_each(|room| right.receive(1, room).expect("posted"));
        });
        step(Step::Post, &mut || messages.drain(..).for_each(|message| left.send(2, message).expect("posted")));
        let mut came: Vec<Completion> = Vec::with_capacity(LOT);
        for (kind, cq, buffers) in [(Step::Take, &self.cqs[1], rooms), (Step::Reap, &self.cqs[0], messages)] {
            // The first poll only opens the lane: the engines need steps of their own for that.
            let first = loop {
                let started = Instant::now();
                if let Some(first) = cq.poll().expect("a device") {
                    if kind == timed {
                        time = started.elapsed();
                    }
                    break first;
                }
                self.simulation.step().expect("something happens");
            };
            came.push(first);
            let started = Instant::now();
            while came.len() < LOT {
                came.extend(cq.poll().expect("a device"));
            }
            if kind == timed {
                time += started.elapsed();
            }
            buffers.extend(came.drain(..).map(|done| done.ok().expect("it succeeded").into_buffer()));
        }
        let cq = &self.cqs[0];
        let started = Instant::now();
        for _ in 0..LOT {
            assert!(black_box(cq.poll().expect("a device")).is_none());
        }
        if timed == Step::Look {
            time = started.elapsed();
        }
        time
    }
}

fn message(criterion: &mut Criterion) {
    let mut both = Both::new().expect("two programs");
    let mut group = criterion.benchmark_group("message of 8 bytes");
    let steps = [
        ("post a send", Step::Post),
        ("post a receive", Step::Receive),
        ("poll: take it from the lane, complete, answer", Step::Take),
        ("poll: take the answer, complete", Step::Reap),
        ("poll in vain", Step::Look),
    ];
    for (name, step) in steps {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                let lots = times.div_ceil(LOT as u64);
                let time: Duration = (0..lots).map(|_| both.lot(step)).sum();
                time.mul_f64(times as f64 / (lots * LOT as u64) as f64)
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    message(&mut criterion);
    criterion.final_summary();
}
