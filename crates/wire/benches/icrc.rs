//! The cost of a packet's ICRC, by its length: `cargo bench -p softhca-wire --bench icrc`.

use criterion::{BenchmarkId, Criterion, Throughput};
use softhca_wire::icrc::Envelope;
use std::hint::black_box;

/// Covered bytes: an acknowledgement, a small message, and packets with MTUs of 1024 and 4096 with
/// their headers.
const LENGTHS: [usize; 4] = [16, 12 + 64, 28 + 1024, 28 + 4096];
/// The GIDs of two IPv4 hosts.
const HOSTS: [[u8; 16]; 2] =
    [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]];

fn icrc(criterion: &mut Criterion) {
    let envelope = Envelope::new(&HOSTS[0], &HOSTS[1], 0xc001);
    let mut group = criterion.benchmark_group("icrc");
    for length in LENGTHS {
        let packet: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        let measured = envelope.of_length(length);
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(BenchmarkId::new("of any length", length), |bencher| {
            bencher.iter(|| envelope.icrc(7, black_box(&packet)));
        });
        group.bench_function(BenchmarkId::new("of one length", length), |bencher| {
            bencher.iter(|| measured.icrc(7, black_box(&packet)));
        });
        let mut whole = packet.clone();
        whole.extend(envelope.icrc(7, &packet));
        assert_eq!(envelope.check(&whole, 7), Some(7), "a good packet is good");
        group.bench_function(BenchmarkId::new("looked at", length), |bencher| {
            bencher.iter(|| envelope.check(black_box(&whole), 7));
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    icrc(&mut criterion);
    criterion.final_summary();
}
