//! The report of `cargo xtask test`: headings during the run, and the closing lines.
//!
//! It only prints. The principal type is [`Report`].

use std::time::{Duration, Instant};

use crate::slowest::Took;
use crate::step::Count;

/// Steps that have run, with their counts.
#[derive(Debug)]
pub(crate) struct Report {
    started: Instant,
    rows: Vec<(String, Count, Duration)>,
    slowest: Vec<Took>,
    /// The steps that did not run, each with the reason.
    left_out: Vec<(String, String)>,
}

impl Report {
    /// An empty report. The clock starts now.
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), rows: Vec::new(), slowest: Vec::new(), left_out: Vec::new() }
    }

    /// Runs one step under a heading.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Count) {
        println!("\n== {name}");
        let started = Instant::now();
        let count = work();
        self.rows.push((name.to_owned(), count, started.elapsed()));
    }

    /// Runs one step that either holds or fails.
    pub(crate) fn check(&mut self, name: &str, work: impl FnOnce() -> Result<(), String>) {
        self.step(name, || match work() {
            Ok(()) => Count { passed: 1, failed: 0 },
            Err(why) => {
                eprintln!("{why}");
                Count { passed: 0, failed: 1 }
            }
        });
    }

    /// Records that a step does not run.
    pub(crate) fn leave_out(&mut self, name: &str, why: &str) {
        self.left_out.push((name.to_owned(), why.to_owned()));
    }

    /// Adds the slowest tests to the report.
    pub(crate) fn name_slowest(&mut self, slowest: Vec<Took>) {
        self.slowest = slowest;
    }

    /// Prints the report. The last line is "N passed, N failed".
    pub(crate) fn close(self) -> Result<(), String> {
        println!("\n== account");
        for (name, count, took) in &self.rows {
            let mark = if count.failed == 0 { "ok  " } else { "FAIL" };
            println!(
                "{mark} {name:<44} {:>5} passed {:>4} failed {:>6.1} s",
                count.passed,
                count.failed,
                took.as_secs_f64()
            );
        }
        for (name, why) in &self.left_out {
            println!("left out: {name}: {why}");
        }
        if !self.slowest.is_empty() {
            println!("slowest tests:");
            for (took, name) in &self.slowest {
                println!("{took:>8.1} s  {name}");
            }
        }
        let passed: u64 = self.rows.iter().map(|row| row.1.passed).sum();
        let failed: u64 = self.rows.iter().map(|row| row.1.failed).sum();
        println!("in {} s", self.started.elapsed().as_secs());
        println!("{passed} passed, {failed} failed");
        if failed == 0 { Ok(()) } else { Err("not everything holds".to_owned()) }
    }
}
