//! The part of the benchmark for many queue pairs between two hosts: how fairly they share the
//! link, and how their total bandwidth compares with that of one queue pair.
//!
//! One program (`suite/programs/crowd.c`) measures both in one run: one queue pair alone, all at
//! once, one alone again. The measurement needs root for the namespaces. The principal type is
//! [`Crowd`].

use harness::{Dist, Family, HANG, Hosts, Room, User, cprogram, figures};
use serde::Serialize;

/// Number of simultaneous queue pairs.
const COUNT: &str = "256";
/// The least value of Jain's fairness index, over the bytes of each queue pair in the same second.
/// 1 means equal shares.
const FAIRNESS_FLOOR: f64 = 0.9;
/// The least total bandwidth, relative to the bandwidth of one queue pair.
const TOTAL_FLOOR: f64 = 0.8;
const MTU: u32 = 1500;

/// The measured figures.
#[derive(Debug, Serialize)]
pub(crate) struct Crowd {
    one_mib: Vec<f64>,
    all_mib: Vec<f64>,
    fairness: Vec<f64>,
    total_ratio: f64,
}

/// Measures; `None` without root.
pub(crate) fn measure(dist: &Dist, runs: usize) -> Result<Option<Crowd>, String> {
    let room = || Room::for_user(User::Nobody, dist.clone());
    let Some(hosts) = Hosts::joined_rooms(MTU, [room()?, room()?])? else { return Ok(None) };
    let program = cprogram::build(hosts.left.room(), "crowd")?.display().to_string();
    let (mut one_mib, mut all_mib, mut fairness) = (vec![], vec![], vec![]);
    for run in 1..=runs {
        eprintln!("{COUNT} queue pairs, run {run} of {runs}");
        let sides = hosts.start(Family::V4, &[&program, COUNT])?.wait(HANG)?;
        if !sides.server.succeeded() || !sides.client.succeeded() {
            return Err(sides.server.told() + &sides.client.told());
        }
        let numbers = sides.client.output.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let [one, all, fair, ..] = numbers.collect::<Vec<_>>()[..] else { return Err(sides.client.told()) };
        one_mib.push(one);
        all_mib.push(all);
        fairness.push(fair);
    }
    // Ratios within each run: figures of different runs differ by more.
    let mut ratios: Vec<f64> = all_mib.iter().zip(&one_mib).map(|(all, one)| all / one).collect();
    let total_ratio = figures::median(&mut ratios).ok_or("no runs")?;
    Ok(Some(Crowd { one_mib, all_mib, fairness, total_ratio }))
}

impl Crowd {
    /// Whether the limits are met. Fairness counts in every run.
    pub(crate) fn holds(&self) -> bool {
        self.total_ratio >= TOTAL_FLOOR && self.least() > FAIRNESS_FLOOR
    }

    fn least(&self) -> f64 {
        self.fairness.iter().copied().fold(1.0, f64::min)
    }

    /// Prints the rows of the table.
    pub(crate) fn print(&self) {
        let middle = |row: &[f64]| figures::median(&mut row.to_vec()).unwrap_or(f64::NAN);
        println!(
            "| {COUNT} queue pairs together, MTU {MTU} | {:.0} MiB/s | one alone: {:.0} MiB/s | {:.2} | at least {TOTAL_FLOOR} |",
            middle(&self.all_mib),
            middle(&self.one_mib),
            self.total_ratio
        );
        println!(
            "| {COUNT} queue pairs, fairness (Jain), the worst run | {:.3} | equal parts: 1 | – | above {FAIRNESS_FLOOR} |",
            self.least()
        );
    }
}
