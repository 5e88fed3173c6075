//! Runs seeds of the simulation; `cargo xtask simulate` starts it. The scenarios are in
//! `tests/simulated`.

#[path = "../tests/simulated/mod.rs"]
mod simulated;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The arguments.
const USAGE: &str = "simulate FROM COUNT | simulate --seed SEED";

/// The state that all threads share.
#[derive(Default)]
struct Sweep {
    next: AtomicU64,
    done: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
    simulated: AtomicU64,
    wrong: Mutex<Option<String>>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().ok();
    match arguments.as_slice() {
        [flag, seed] if flag == "--seed" => match number(seed) {
            Some(seed) => one(seed),
            None => usage(),
        },
        [from, count] => match (number(from), number(count)) {
            (Some(from), Some(count)) => sweep(from, count),
            _ => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}

/// Runs one seed and prints its events.
fn one(seed: u64) -> ExitCode {
    match simulated::tell(seed, true) {
        Ok(told) => {
            println!("seed {seed}: {told:?}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs many seeds on all processors; stops at the first that fails.
fn sweep(from: u64, count: u64) -> ExitCode {
    // Each scenario needs some hundred descriptors, and each processor runs one at a time.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let (sweep, began) = (Sweep::default(), Instant::now());
    sweep.next.store(from, Ordering::Relaxed);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| sweep.run(from + count, began));
        }
    });
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let took = began.elapsed();
    println!(
        "{} seeds in {took:.1?}: {} work requests, {} connections cut off for good, {:.1?} of simulated time; {:.1?} for each seed and processor",
        read(&sweep.done),
        read(&sweep.requests),
        read(&sweep.failed),
        Duration::from_nanos(read(&sweep.simulated)),
        took * threads as u32 / u32::try_from(read(&sweep.done).max(1)).unwrap_or(u32::MAX),
    );
    match &*sweep.wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
        None => ExitCode::SUCCESS,
        Some(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

impl Sweep {
    fn run(&self, end: u64, began: Instant) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            // A panic is a failure, too.
            let told = std::panic::catch_unwind(|| simulated::tell(seed, false));
            let told = told.unwrap_or_else(|_| Err(format!("seed {seed}: it panics")));
            match told {
                Ok(told) => {
                    self.requests.fetch_add(told.requests, Ordering::Relaxed);
                    self.failed.fetch_add(told.failed.into(), Ordering::Relaxed);
                    self.simulated.fetch_add(told.time.as_nanos() as u64, Ordering::Relaxed);
                }
                Err(why) => {
                    self.next.store(end, Ordering::Relaxed);
                    let mut wrong = self.wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    // If two seeds fail at once, the first one is reported.
                    wrong.get_or_insert_with(|| {
                        format!("{why}\nto run it again and print each step: cargo xtask simulate --seed {seed}")
                    });
                    return;
                }
            }
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(1000) {
                eprintln!("{done} seeds, {:.0?}", began.elapsed());
            }
        }
    }
}
