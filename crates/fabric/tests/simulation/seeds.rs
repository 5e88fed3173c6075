//! Runs some of the seeds of `cargo xtask simulate`, and checks that a seed determines its whole
//! story.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first seeds of a sweep, which always run.
const SEEDS: u64 = 600;

#[test]
fn every_seed_ends_as_it_must() {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let run = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    return;
                }
                let told = crate::simulated::tell(seed, false).unwrap_or_else(|why| panic!("{why}"));
                // A connection that has failed or died posts no more requests.
                let enough = told.requests >= 200 || told.failed > 0;
                assert!(enough, "seed {seed}: only {} requests", told.requests);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
        (0..threads).for_each(|_| drop(scope.spawn(run)));
    });
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in 1000..1016 {
        let (first, second) = (crate::simulated::tell(seed, false), crate::simulated::tell(seed, false));
        assert!(first.is_ok(), "{first:?}");
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.map(|told| told.digest), crate::simulated::tell(seed + 1, false).map(|told| told.digest));
    }
}
