//! Tests the limits of a device for a process whose agent is behind a socket. `crates/fabric` tests
//! the limits one by one.

use std::time::Duration;

use harness::{Room, cprogram};

/// Every command goes through a socket, and on a busy machine each command may have to wait.
const LONG: Duration = Duration::from_secs(300);

#[test]
fn sixty_thousand_queue_pairs_and_a_thousand_groups_of_one_process() {
    let room = Room::new().expect("a room");
    let program = cprogram::build(&room, "many").expect("it compiles");
    let words = [program.to_str().expect("a plain path"), "60000", "1024"];
    let outcome = room.start(room.run(&words)).expect("it starts").wait(LONG).expect("it ends");
    outcome.expect_success();
    room.wait_until_empty(LONG).expect("all of it is gone with the process");
}

#[test]
fn creates_without_free_descriptors_fail_and_leave_nothing_behind() {
    let room = Room::new().expect("a room");
    let program = cprogram::build(&room, "openfiles").expect("it compiles");
    let outcome = room.start(room.run(&[program.to_str().expect("a plain path")])).expect("it starts").wait(LONG);
    outcome.expect("it ends").expect_success();
    room.wait_until_empty(LONG).expect("all of it is gone with the process");
}
