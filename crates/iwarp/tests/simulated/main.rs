//! Two hosts with several queue pairs, over byte streams with faults, in simulated time. A seed
//! decides everything. Each work request completes exactly once, with a status that fits, and the
//! data is right if the status says so. Principal type: [`world::World`].
//!
//! `SOFTHCA_SEEDS` is the number of seeds, if it is set.

#[path = "../common/mod.rs"]
mod common;
mod connection;
mod plan;
mod wire;
mod world;

use world::{Trouble, World};

const SEEDS: u64 = 400;

fn run(trouble: Trouble) {
    let seeds = std::env::var("SOFTHCA_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number of seeds"));
    for seed in 0..seeds {
        let mut world = World::new(seed, trouble);
        world.run();
        world.check();
    }
}

#[test]
fn all_work_succeeds_on_connections_that_split_merge_and_delay() {
    run(Trouble::Delays);
}

#[test]
fn each_work_request_ends_once_on_connections_that_corrupt_reset_and_fall_silent() {
    run(Trouble::Harm);
}

#[test]
fn each_work_request_ends_once_if_some_are_wrong() {
    run(Trouble::Mistakes);
}

#[test]
fn each_work_request_ends_once_if_the_receive_requests_run_out() {
    run(Trouble::NoReceives);
}

#[test]
fn each_work_request_ends_once_with_all_of_these() {
    run(Trouble::All);
}
