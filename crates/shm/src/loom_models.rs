//! Exhaustive interleavings of everything in this crate that two parties do concurrently. This is
//! not a load test: each model takes a few steps, in every order and with every value that the
//! memory model allows. Principal type: [`Model`], shared memory in which loom also detects when
//! two parties access the same cell or line at once.
//!
//! See the crate's documentation for the command.
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::memory::{CELL_DATA, Memory};
use crate::ring::{
    BULK, BULK_HEAD, CELL, CELLS, CELLS_AT, Consumer, Producer, PushError, RECORD_MAX, RING_HEAD, WAITING,
    said_waiting, say_waiting,
};
use crate::wake_word::{WakeWord, WakeWordView};
use crate::{bulk, ring};

const CONTROL: [usize; 3] = [RING_HEAD, BULK_HEAD, WAITING];
const LINES: usize = BULK / CELL;

/// One direction of a lane, and the lines of its bulk ring. The first control word doubles as a
/// wake word.
#[derive(Clone)]
struct Model(Arc<Parts>);

struct Parts {
    control: Vec<AtomicU32>,
    commits: Vec<AtomicU32>,
    cells: Vec<UnsafeCell<[u8; CELL_DATA]>>,
    lines: Vec<UnsafeCell<u8>>,
}

impl Model {
    fn new() -> Self {
        let zeros = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect();
        Self(Arc::new(Parts {
            control: zeros(CONTROL.len()),
            commits: zeros(CELLS as usize),
            cells: (0..CELLS).map(|_| UnsafeCell::new([0; CELL_DATA])).collect(),
            lines: (0..LINES).map(|_| UnsafeCell::new(0)).collect(),
        }))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        match CONTROL.iter().position(|&control| control == at) {
            Some(i) => &self.0.control[i],
            None => &self.0.commits[(at - CELLS_AT) / CELL],
        }
    }

    fn cell(&self, at: usize) -> &UnsafeCell<[u8; CELL_DATA]> {
        &self.0.cells[(at - CELLS_AT) / CELL]
    }

    fn write_lines(&self, offset: u32, len: usize, value: u8) {
        for line in &self.0.lines[offset as usize / CELL..][..len.div_ceil(CELL)] {
            // SAFETY: loom fails the model when any other party accesses the line.
            line.with_mut(|line| unsafe { *line = value });
        }
    }

    fn read_lines(&self, offset: u32, len: usize) -> Vec<u8> {
        let lines = &self.0.lines[offset as usize / CELL..][..len.div_ceil(CELL)];
        // SAFETY: loom fails the model when any party writes the line.
        lines.iter().map(|line| line.with(|line| unsafe { *line })).collect()
    }
}

impl Memory for Model {
    fn load(&self, at: usize, order: Ordering) -> u32 {
        self.word(at).load(order)
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        self.word(at).store(value, order);
    }

    fn update(&self, at: usize, change: impl Fn(u32) -> u32) -> u32 {
        let old = self.word(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(change(old)));
        change(old.unwrap())
    }

    fn read_cell(&self, at: usize, into: &mut [u8; CELL_DATA]) {
        // SAFETY: loom fails the model when any party writes the cell.
        self.cell(at).with(|cell| unsafe { *into = *cell });
    }

    fn write_cell(&self, at: usize, from: &[u8; CELL_DATA]) {
        // SAFETY: loom fails the model when any other party accesses the cell.
        self.cell(at).with_mut(|cell| unsafe { *cell = *from });
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn poster_fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn sleeper_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A record of `cells` cells, filled with its number.
fn record(number: u8, cells: usize) -> Vec<u8> {
    vec![number; cells * CELL_DATA]
}

/// Pops until the ring is empty, checks that each record is intact, and appends the records'
/// numbers.
fn drain(consumer: &mut Consumer<Model>, into: &mut Vec<u8>) {
    let mut buf = [0; RECORD_MAX];
    while let Some(len) = consumer.pop(&mut buf).expect("an honest peer breaks nothing") {
        assert!(buf[..len].iter().all(|&byte| byte == buf[0]), "a record arrived in pieces");
        into.push(buf[0]);
    }
    consumer.publish();
}

/// Every pushed record comes out once, whole and in order, at any start index.
fn publish_consume(start: u32) {
    let (mut producer, mut consumer) = ring::used_until(Model::new(), start);
    let poster = thread::spawn(move || {
        for (number, cells) in [(1, 1), (2, 2), (3, 1), (4, 3)] {
            producer.push(&record(number, cells)).expect("there is room for them all");
        }
    });
    let mut seen = Vec::new();
    drain(&mut consumer, &mut seen);
    drain(&mut consumer, &mut seen);
    drain(&mut consumer, &mut seen);
    poster.join().unwrap();
    drain(&mut consumer, &mut seen);
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[test]
fn ring_publish_consume() {
    loom::model(|| publish_consume(0));
}

#[test]
fn ring_index_wraps() {
    // The lap counter of the commit words wraps between the first record and the second, the 32-bit
    // counters likewise.
    loom::model(|| publish_consume((1 << 28) - CELLS - 1));
    loom::model(|| publish_consume(u32::MAX));
}

#[test]
fn ring_full() {
    // One cell is left when the two parties start: a cell may be written again only after the
    // consumer published it.
    loom::model(|| {
        let (mut producer, mut consumer) = ring::used_until(Model::new(), 3);
        let mut pushed = vec![1, 2];
        producer.push(&record(1, 5)).unwrap();
        producer.push(&record(2, 2)).unwrap();
        let poster = thread::spawn(move || {
            for (number, cells) in [(3, 3), (4, 1), (5, 2), (6, 5), (7, 1)] {
                match producer.push(&record(number, cells)) {
                    Ok(()) => pushed.push(number),
                    Err(PushError::Full) => {}
                    Err(PushError::Broken(broken)) => panic!("{broken}"),
                }
            }
            pushed
        });
        let mut seen = Vec::new();
        drain(&mut consumer, &mut seen);
        drain(&mut consumer, &mut seen);
        drain(&mut consumer, &mut seen);
        let pushed = poster.join().unwrap();
        drain(&mut consumer, &mut seen);
        assert_eq!(seen, pushed);
    });
}

#[test]
fn bulk_pieces() {
    // A lap and a half through the four lines of a bulk ring that are in use at first: the bytes of
    // a piece are read only after they were written (ordered by the cell), and written again only
    // after they were released.
    loom::model(|| {
        let memory = Model::new();
        let (mut ring, mut consumer) = ring::used_until(memory.clone(), 0);
        let (mut reservations, mut releases) = bulk::used_until(memory.clone(), 0);
        let theirs = memory.clone();
        let poster = thread::spawn(move || {
            let mut posted = Vec::new();
            for (number, len) in [(1, 128), (2, 64), (3, 100), (4, 60)] {
                if let Some(reservation) = reservations.reserve(len).expect("an honest peer breaks nothing") {
                    theirs.write_lines(reservation.offset, len, number);
                    ring.push(&[number, reservation.offset as u8, len as u8]).expect("the cells suffice");
                    posted.push(number);
                }
            }
            posted
        });
        let mut seen = Vec::new();
        let mut take = |seen: &mut Vec<u8>| {
            let mut cell = [0; RECORD_MAX];
            while consumer.pop(&mut cell).expect("an honest peer breaks nothing").is_some() {
                let [number, offset, len, ..] = cell;
                let lines = memory.read_lines(u32::from(offset), usize::from(len));
                assert!(lines.iter().all(|&line| line == number), "a piece was overwritten");
                releases.release(u32::from(offset), u32::from(len));
                seen.push(number);
            }
        };
        take(&mut seen);
        take(&mut seen);
        let posted = poster.join().unwrap();
        take(&mut seen);
        assert_eq!(seen, posted);
    });
}

#[test]
fn wait_for_space() {
    // A producer that finds the ring full twice, and therefore sleeps, is woken when there is
    // space.
    loom::model(|| {
        let memory = Model::new();
        let (mut producer, mut consumer) = ring::used_until(memory.clone(), 0);
        producer.push(&record(1, 5)).unwrap();
        producer.push(&record(2, 3)).unwrap();
        let rung = Arc::new(AtomicBool::new(false));
        let theirs = memory.clone();
        let poster = thread::spawn(move || {
            let mut sleeps = producer.push(&record(3, 1)).is_err();
            if sleeps {
                say_waiting(&theirs, true);
                sleeps = producer.push(&record(3, 1)).is_err();
            }
            sleeps
        });
        let mut seen = Vec::new();
        drain(&mut consumer, &mut seen);
        if said_waiting(&memory) {
            memory.store(WAITING, 0, Ordering::Relaxed);
            rung.store(true, Ordering::Relaxed);
        }
        let sleeps = poster.join().unwrap();
        assert!(!sleeps || rung.load(Ordering::Relaxed), "the producer sleeps, there is space, and nobody rang");
    });
}

/// The sleeper's engine: rings that a poller must lock, and a count of the polls.
struct Engine {
    rings: Mutex<Vec<Consumer<Model>>>,
    seen: AtomicU32,
    epoch: AtomicU32,
}

impl Engine {
    fn poll(&self) -> bool {
        let mut seen = Vec::new();
        for ring in self.rings.lock().unwrap().iter_mut() {
            drain(ring, &mut seen);
        }
        // A plain count; the join at the end orders it.
        self.seen.fetch_add(seen.len() as u32, Ordering::Relaxed);
        !seen.is_empty()
    }
}

/// The poster's three steps; membarrier(2) is a fence on both sides by definition.
fn post(ring: &mut Producer<Model>, wake_word: &WakeWordView<Model>, notifier: &AtomicBool) {
    ring.push(&record(1, 1)).unwrap();
    fence(Ordering::SeqCst);
    if wake_word.armed().is_some() {
        notifier.store(true, Ordering::Relaxed);
    }
}

/// The sleeper's steps up to the sleep itself; true when it has gone to sleep.
fn go_to_sleep(engine: &Engine, wake_word: &WakeWord<Model>) -> bool {
    wake_word.arm();
    fence(Ordering::SeqCst);
    if engine.poll() {
        wake_word.disarm();
        return false;
    }
    true
}

/// Posters with one lane each, a sleeper, and optionally an application that polls sometimes. In
/// every order, either every record has been seen at the end, or the notifier was notified.
fn wake(posts: &[usize], application_polls: bool) {
    let lanes = posts.iter().map(|_| ring::used_until(Model::new(), 0));
    let memory = Model::new();
    let wake_word = WakeWord::in_memory(memory.clone());
    let notifier = Arc::new(AtomicBool::new(false));
    let (producers, consumers): (Vec<_>, Vec<_>) = lanes.unzip();
    let engine = Arc::new(Engine { rings: Mutex::new(consumers), seen: AtomicU32::new(0), epoch: AtomicU32::new(0) });
    let mut threads = Vec::new();
    for (mut ring, posts) in producers.into_iter().zip(posts.to_vec()) {
        let (view, notifier) = (WakeWordView::of_memory(memory.clone()), notifier.clone());
        threads.push(thread::spawn(move || (0..posts).for_each(|_| post(&mut ring, &view, &notifier))));
    }
    if application_polls {
        // One last poll. It leaves the wake word unchanged: only the sleeper disarms it.
        let engine = engine.clone();
        threads.push(thread::spawn(move || {
            engine.epoch.fetch_add(1, Ordering::Relaxed);
            engine.poll();
        }));
    }
    // While the application polls, the sleeper sleeps with a timeout, and takes over when the epoch
    // has not changed.
    let mut epoch = engine.epoch.load(Ordering::Relaxed);
    loop {
        thread::yield_now();
        let now = engine.epoch.load(Ordering::Relaxed);
        if std::mem::replace(&mut epoch, now) == now && go_to_sleep(&engine, &wake_word) {
            break;
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let all_seen = engine.seen.load(Ordering::Relaxed) as usize == posts.iter().sum();
    assert!(all_seen || notifier.load(Ordering::Relaxed), "a record waits, the sleeper sleeps, and nobody rang");
}

#[test]
fn wake_one_poster() {
    loom::model(|| wake(&[2], false));
}

#[test]
fn wake_two_posters() {
    loom::model(|| wake(&[1, 1], false));
}

#[test]
fn wake_after_the_last_poll() {
    loom::model(|| wake(&[1], true));
}

/// What the program of a sleeper with a fenced word does while its helper thread goes to sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    /// The program leaves all polling to the helper thread.
    Away,
    /// The program polls at first, finds a record, and arms the wake word.
    Finds,
    /// The program polls at first. It loses its processor before it disarms the wake word, so the
    /// helper thread takes over after its timer.
    IsLate,
}

/// Models a sleeper with a fenced word: its posters execute only their own fence.
fn attend(posts: usize, does: Program) {
    let (mut ring, consumer) = ring::used_until(Model::new(), 0);
    let memory = Model::new();
    let wake_word = Arc::new(WakeWord::in_memory(memory.clone()));
    // Every poster has seen the bit, because a barrier has followed it.
    wake_word.set_fenced(true);
    let notifier = Arc::new(AtomicBool::new(false));
    let attending = Arc::new(AtomicBool::new(does != Program::Away));
    let engine =
        Arc::new(Engine { rings: Mutex::new(vec![consumer]), seen: AtomicU32::new(0), epoch: AtomicU32::new(0) });
    let poster = {
        let (view, notifier) = (WakeWordView::of_memory(memory), notifier.clone());
        thread::spawn(move || {
            for _ in 0..posts {
                ring.push(&record(1, 1)).unwrap();
                if view.armed().is_some() {
                    notifier.store(true, Ordering::Relaxed);
                }
            }
        })
    };
    let (its_engine, its_wake_word, attends) = (engine.clone(), wake_word.clone(), attending.clone());
    let program = match does {
        Program::Away => None,
        Program::Finds => Some(thread::spawn(move || {
            // The program has found its record, and may not poll any more.
            attends.store(false, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            its_wake_word.arm();
            fence(Ordering::SeqCst);
            its_engine.poll();
        })),
        Program::IsLate => {
            let kick = notifier.clone();
            Some(thread::spawn(move || {
                if its_wake_word.is_armed() {
                    its_wake_word.disarm();
                    fence(Ordering::SeqCst);
                    if !attends.load(Ordering::Relaxed) {
                        kick.store(true, Ordering::Relaxed);
                    }
                }
            }))
        }
    };
    // The helper thread, which has just been working: it arms the wake word (unless the program
    // must do that), checks the rings, and sleeps.
    let rest = || {
        wake_word.disarm();
        fence(Ordering::SeqCst);
        if !attending.load(Ordering::Relaxed) {
            wake_word.arm();
        }
        fence(Ordering::SeqCst);
        engine.poll()
    };
    if does == Program::IsLate {
        attending.store(false, Ordering::Relaxed);
    }
    // If the last check found a record, the helper thread tries once more to sleep.
    let _ = rest() && rest();
    poster.join().unwrap();
    if let Some(program) = program {
        program.join().unwrap();
    }
    let all_seen = engine.seen.load(Ordering::Relaxed) as usize == posts;
    assert!(all_seen || notifier.load(Ordering::Relaxed), "a record waits, the sleeper sleeps, and nobody rang");
}

#[test]
fn wake_a_restless_sleeper() {
    loom::model(|| attend(2, Program::Away));
}

/// There are three parties with one or two fences each. All orders would take hours. The orders
/// with at most three preemptions take seconds.
fn attend_with_few_preemptions(does: Program) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || attend(1, does));
}

#[test]
fn wake_after_the_program_has_found_something() {
    attend_with_few_preemptions(Program::Finds);
}

#[test]
fn wake_after_the_program_was_late_to_disarm_the_wake_word() {
    attend_with_few_preemptions(Program::IsLate);
}

/// A thread goes to sleep while another thread gives it work that the wake word does not announce:
/// a blocked queue, or an earlier deadline.
#[test]
fn wake_for_what_no_wake_word_tells() {
    loom::model(|| {
        let [left, resting, kicked] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let (to_leave, rests, kick) = (left.clone(), resting.clone(), kicked.clone());
        let other = thread::spawn(move || {
            to_leave.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if rests.load(Ordering::Relaxed) {
                kick.store(true, Ordering::Relaxed);
            }
        });
        resting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = left.load(Ordering::Relaxed);
        other.join().unwrap();
        assert!(seen || kicked.load(Ordering::Relaxed), "something is left, the thread rests, and nobody kicked it");
    });
}
