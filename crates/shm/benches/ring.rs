//! The cost of a record through a lane's ring, in and out, on one thread, without a second
//! processor's cache: `cargo bench -p softhca-shm --bench ring`.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion};
use softhca_shm::{LANE_LEN, RECORD_MAX, Region, Side, ends};

/// A message of 8 bytes with its header fits in one cell; the longest record has five.
const LENGTHS: [usize; 3] = [24, 60, RECORD_MAX];

fn ring(criterion: &mut Criterion) {
    let (region, _descriptor) = Region::create("bench", LANE_LEN).expect("a region");
    let region = Arc::new(region);
    let (mut sender, _) = ends(Arc::clone(&region), Side::A);
    let (_, mut receiver) = ends(region, Side::B);
    let mut group = criterion.benchmark_group("ring");
    let mut into = [0; RECORD_MAX];
    for length in LENGTHS {
        let record = vec![7; length];
        group.bench_function(BenchmarkId::new("in and out", length), |bencher| {
            bencher.iter(|| {
                sender.ring.push(black_box(&record)).expect("room");
                let came = receiver.ring.pop(&mut into).expect("a whole ring");
                receiver.ring.publish();
                assert!(came.is_some(), "a record");
            });
        });
    }
    group.bench_function("looked at in vain", |bencher| {
        bencher.iter(|| receiver.ring.pop(black_box(&mut into)).expect("a whole ring").is_none());
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    ring(&mut criterion);
    criterion.final_summary();
}
