//! The pyverbs tests that Debian ships with rdma-core, as far as they are about what this stack has.
//!
//! A test that the device does not support skips itself, as it does on hardware; here a failure or an error counts. The
//! modules that are left out need what is not there yet: memory windows, XRC, raw packets.

use softhca_suite::Room;

const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// Modules and classes of the suite that concern RC, UC and UD on shared memory, and connections.
const MODULES: &[&str] = &[
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_fork",
    "test_mr",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_rdmacm",
    "test_relaxed_ordering",
];

/// Unpacks the tests, which Debian ships compressed, into the room. Machines that leave out documentation when they install
/// packages do not have them: then they come out of the package itself.
fn unpack(room: &Room) -> String {
    let place = room.folder().join("pyverbs");
    let script = format!(
        "set -e; mkdir -p {0}/tests; cd {0}; from={TESTS}; \
         if ! [ -e $from/run_tests.py ]; then apt-get -qq download python3-pyverbs && dpkg-deb -x python3-pyverbs_*.deb deb; from=deb{TESTS}; fi; \
         cp $from/* {0}/tests/; gunzip -f {0}/tests/*.gz 2>/dev/null || true; chmod -R a+rX {0}",
        place.display()
    );
    let status = std::process::Command::new("sh").args(["-c", &script]).status().expect("a shell");
    assert!(status.success(), "the tests of package rdma-core cannot be unpacked");
    place.display().to_string()
}

#[test]
fn the_pyverbs_tests_of_debian() {
    let room = Room::new().expect("a room");
    let place = unpack(&room);
    let runner = format!("{place}/tests/run_tests.py");
    for module in MODULES {
        let name = format!("tests.{module}");
        let outcome = room.finish_run(&["/usr/bin/python3", &runner, "-v", &name]).expect("it ends");
        assert!(outcome.succeeded(), "{}", outcome.told());
        assert!(!outcome.everything().contains("Ran 0 tests"), "{}", outcome.told());
    }
}
