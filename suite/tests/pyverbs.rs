//! Runs the pyverbs tests that Debian ships with rdma-core, all tests that are for every device.
//!
//! A test that the device does not support skips itself, as it does on hardware. A failure, an
//! error, or more skipped tests than expected fail this test. docs/conformance.md lists the skipped
//! tests and the reasons.

use harness::Room;
use harness::pyverbs::{Pyverbs, Verdict};

/// At least this many of 170 tests pass. Three more pass on machines with huge pages.
const PASS: usize = 141;

#[test]
fn the_pyverbs_tests_of_debian() {
    let room = Room::new().expect("a room");
    let pyverbs = Pyverbs::unpack(&room).expect("the tests");
    let mut cases = Vec::new();
    for module in pyverbs.modules().expect("modules") {
        cases.extend(pyverbs.run(&module).unwrap_or_else(|told| panic!("{module}: {told}")));
    }
    let failed: Vec<_> = cases.iter().filter(|case| case.verdict == Verdict::Failed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let passed = cases.iter().filter(|case| case.verdict == Verdict::Passed).count();
    assert!(passed >= PASS, "{passed} of {} passed", cases.len());
}
