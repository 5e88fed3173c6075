//! Tests two processes that share one device, with a small C program: one process imports the
//! other's objects and is then killed.

use harness::{HANG, Room, User, cprogram};

#[test]
fn imported_by_another_process() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let program = cprogram::build(&room, "imports").expect("it compiles");
        room.finish_run(&[program.to_str().expect("a plain path")]).expect("it ends").expect_success();
        room.wait_until_empty(HANG).expect("nothing is left over");
    }
}
