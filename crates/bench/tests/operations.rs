//! Measures every operation between two programs of one process, with checked contents. Also tests
//! that both sides report errors.

use std::os::unix::net::UnixStream;
use std::thread;

use bench::{Amount, Case, Error, Measure, Operation, Place, Plan, Talk, answer, ask};
use fabric::Fabric;
use softhca::Context;

/// Runs a measurement. A second thread is the answering side.
fn measure(asking: &Context, answering: Context, plan: &Plan) -> Result<Vec<Case>, Error> {
    let (here, there) = UnixStream::pair().expect("sockets");
    let other = thread::spawn(move || {
        answer(&answering, &Place::default(), Talk::unix(there).expect("a talk")).map_err(|why| why.to_string())
    });
    let mut seen = Vec::new();
    let cases = ask(asking, &Place::default(), Talk::unix(here)?, plan, |number, _| seen.push(number));
    let answered = other.join().expect("no panic");
    if cases.is_ok() {
        assert_eq!(answered.as_ref(), Ok(plan));
        assert_eq!(seen, (0..plan.sizes.len()).collect::<Vec<_>>());
    }
    cases
}

fn short(operation: Operation, measure: Measure) -> Plan {
    let sizes = if operation.is_atomic() { vec![8] } else { vec![1, 8, 5000, 100_000] };
    Plan {
        sizes,
        amount: Amount::Iterations(120),
        warmup: Some(10),
        depth: 16,
        batch: if measure == Measure::Rate { 4 } else { 1 },
        verify: true,
        ..Plan::new(operation, measure)
    }
}

fn check(plan: &Plan, cases: &[Case]) {
    assert_eq!(cases.iter().map(|case| case.size).collect::<Vec<_>>(), plan.sizes);
    for case in cases {
        assert!(case.operations >= 100 && case.seconds > 0.0 && case.million_per_second > 0.0, "{plan:?}: {case:?}");
        assert_eq!(case.latency_usec.is_some(), plan.measure == Measure::Lat);
        if let Some(latency) = case.latency_usec {
            let row = [latency.min, latency.p50, latency.p90, latency.p99, latency.p999, latency.max];
            assert!(row[0] > 0.0 && row.is_sorted(), "{plan:?}: {row:?}");
        }
    }
}

fn every(operation: Operation) {
    let fabric = Fabric::start().expect("an agent");
    for kind in [Measure::Lat, Measure::Bw, Measure::Rate] {
        for event in [false, true] {
            let plan = Plan { event, ..short(operation, kind) };
            let (a, b) = (fabric.open().expect("a device"), fabric.open().expect("a device"));
            let cases = measure(&a, b, &plan).unwrap_or_else(|why| panic!("{plan:?}: {why}"));
            check(&plan, &cases);
        }
    }
}

#[test]
fn sends() {
    every(Operation::Send);
}

#[test]
fn writes() {
    every(Operation::Write);
}

#[test]
fn reads() {
    every(Operation::Read);
}

#[test]
fn atomics() {
    every(Operation::FetchAdd);
    every(Operation::CmpSwap);
}

#[test]
fn several_queue_pairs_and_threads() {
    let fabric = Fabric::start().expect("an agent");
    for operation in Operation::ALL {
        for kind in [Measure::Lat, Measure::Bw] {
            // Three threads have unequal shares of seven queue pairs. Without checks, queue pairs
            // share their buffers.
            for verify in [false, true] {
                let plan = Plan { qps: 7, threads: 3, event: true, verify, ..short(operation, kind) };
                let (a, b) = (fabric.open().expect("a device"), fabric.open().expect("a device"));
                let cases = measure(&a, b, &plan).unwrap_or_else(|why| panic!("{plan:?}: {why}"));
                check(&plan, &cases);
            }
        }
    }
}

#[test]
fn between_two_hosts() {
    let fabric = Fabric::two_hosts().expect("two agents");
    for operation in Operation::ALL {
        let plan = short(operation, Measure::Bw);
        let (a, b) = (fabric.host(0).open().expect("a device"), fabric.host(1).open().expect("a device"));
        let cases = measure(&a, b, &plan).unwrap_or_else(|why| panic!("{plan:?}: {why}"));
        check(&plan, &cases);
    }
}

#[test]
fn a_time_is_kept() {
    let fabric = Fabric::start().expect("an agent");
    for kind in [Measure::Lat, Measure::Rate] {
        let plan = Plan { amount: Amount::Seconds(0.02), ..short(Operation::Send, kind) };
        let (a, b) = (fabric.open().expect("a device"), fabric.open().expect("a device"));
        for case in measure(&a, b, &plan).expect("measured") {
            assert!(case.seconds >= 0.02 && case.operations > 0, "{case:?}");
        }
    }
}

#[test]
fn a_failure_of_one_side_is_reported_by_both() {
    let fabric = Fabric::start().expect("an agent");
    let (a, b) = (fabric.open().expect("a device"), fabric.open().expect("a device"));
    let (here, there) = UnixStream::pair().expect("sockets");
    let nowhere = Place { port: 1, gid_index: Some(63) };
    let other = thread::spawn(move || {
        answer(&b, &nowhere, Talk::unix(there).expect("a talk")).expect_err("there is no such address").to_string()
    });
    let plan = short(Operation::Send, Measure::Lat);
    let told = ask(&a, &Place::default(), Talk::unix(here).expect("a talk"), &plan, |_, _| {}).expect_err("no peer");
    assert!(matches!(&told, Error::Other(why) if why.contains("no address at index 63")), "{told}");
    assert!(other.join().expect("no panic").contains("no address at index 63"));
}

#[test]
fn an_agent_that_goes_ends_both_sides() {
    let fabric = Fabric::start().expect("an agent");
    let (a, b) = (fabric.open().expect("a device"), fabric.open().expect("a device"));
    let (here, there) = UnixStream::pair().expect("sockets");
    let other = thread::spawn(move || answer(&b, &Place::default(), Talk::unix(there).expect("a talk")).map(drop));
    let plan = Plan { sizes: vec![8; 64], ..short(Operation::Read, Measure::Lat) };
    let mut fabric = Some(fabric);
    let told = ask(&a, &Place::default(), Talk::unix(here).expect("a talk"), &plan, |_, _| drop(fabric.take()));
    told.expect_err("there is no device any more");
    other.join().expect("no panic").expect_err("there is no device any more");
}
