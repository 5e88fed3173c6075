//! Calls every function that the C libraries export, with valid and with invalid arguments, under
//! valgrind. No function reads a byte before it is written or touches bytes outside its block, and
//! no memory is leaked. The programs are in `programs/`. They print the functions that they have
//! called. The lists of exported symbols say which functions exist.

use std::collections::BTreeSet;
use std::path::Path;

use harness::{Dist, Room, cprogram};

/// A library's list of symbols.
fn list(library: &str) -> String {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi").join(library).join("symbols.txt");
    std::fs::read_to_string(&list).unwrap_or_else(|error| panic!("{}: {error}", list.display()))
}

/// The names in a library's list of symbols. With `version`, only names whose version begins so.
fn symbols(library: &str, version: Option<&str>) -> BTreeSet<String> {
    let text = list(library);
    let rows = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("@@"));
    let names =
        rows.filter(|(_, of)| version.is_none_or(|version| of.starts_with(version))).map(|(name, _)| name.to_owned());
    names.collect()
}

/// Runs a program under valgrind, and returns the names of the functions that it says it has
/// called. `leaks` are the kinds of leaks that are errors.
#[track_caller]
fn called(name: &str, libraries: &[&str], leaks: &str, words: &[String]) -> BTreeSet<String> {
    let room = Room::new().expect("a room");
    let program = cprogram::build_with(&room, name, libraries).expect("it compiles");
    // Without a fair lock, a thread that polls can keep valgrind from running the helper thread.
    let mut all = vec!["valgrind", "--quiet", "--fair-sched=yes", "--leak-check=full", "--num-callers=30"];
    all.push("--error-exitcode=9");
    let (shown, counted) = (format!("--show-leak-kinds={leaks}"), format!("--errors-for-leak-kinds={leaks}"));
    all.extend([&*shown, &*counted]);
    all.push(program.to_str().expect("a plain path"));
    all.extend(words.iter().map(String::as_str));
    let outcome = room.finish_run(&all).expect("it ends").expect_success();
    assert!(!outcome.errors.contains("=="), "valgrind has nothing to say: {}", outcome.told());
    outcome.output.lines().filter_map(|line| line.strip_prefix("called ")).map(str::to_owned).collect()
}

#[test]
fn every_function_of_libibverbs_keeps_to_its_memory() {
    let mut private = vec!["-l".to_owned(), "ibv_register_driver".to_owned()];
    private.extend(symbols("libibverbs", Some("IBVERBS_PRIVATE_")));
    let mut called = called("calls", &[], "definite,indirect,possible", &private);
    // Debian 12 does not have these functions yet.
    called.extend(called_in_dist("newercalls"));
    let missing: Vec<String> = symbols("libibverbs", None).difference(&called).cloned().collect();
    assert!(missing.is_empty(), "exported, and not called: {missing:?}");
}

/// The functions that a program has called. It is linked with the library under test.
#[track_caller]
fn called_in_dist(name: &str) -> BTreeSet<String> {
    let library = Dist::locate().expect("a dist").library();
    called(name, &[library.to_str().expect("a plain path")], "definite,indirect,possible", &[])
}

/// Functions that have an older version beside the newer one.
#[test]
fn every_function_of_the_first_interface_works_and_keeps_to_its_memory() {
    let called = called_in_dist("firstcalls");
    let text = list("libibverbs");
    let old: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_suffix("@IBVERBS_1.0")).filter(|name| !name.ends_with('@')).collect();
    let missing: Vec<_> = old.iter().filter(|name| !called.contains(**name)).collect();
    assert!(old.len() == 33 && missing.is_empty(), "exported, and not called: {missing:?}");
}

/// librdmacm keeps the devices that it has used open until the process ends, as programs expect.
/// Pointers into the middle of blocks lead to the devices' tables. valgrind takes such blocks for
/// possible leaks.
#[test]
fn every_rdma_function_of_librdmacm_keeps_to_its_memory() {
    let called = called("cmcalls", &["-lrdmacm"], "definite,indirect", &[]);
    let all = symbols("librdmacm", None);
    let missing: Vec<&String> =
        all.iter().filter(|name| name.starts_with("rdma_")).filter(|name| !called.contains(*name)).collect();
    assert!(missing.is_empty(), "exported, and not called: {missing:?}");
}

/// As in the test above, rsockets use devices that stay open.
#[test]
fn every_function_of_rsockets_keeps_to_its_memory() {
    let called = called("rscalls", &["-lrdmacm"], "definite,indirect", &[]);
    let all = symbols("librdmacm", None);
    let sockets: Vec<&String> = all.iter().filter(|name| !name.starts_with("rdma_")).collect();
    let missing: Vec<_> = sockets.iter().filter(|name| !called.contains(**name)).collect();
    assert!(sockets.len() >= 30 && missing.is_empty(), "exported, and not called: {missing:?}");
}
