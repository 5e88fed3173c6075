//! Two processes with one device, by a small C program: what one has made the other imports, and is killed.

use softhca_suite::{HANG, Room, User, cprogram};

#[test]
fn imported_by_another_process() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let program = cprogram::build(&room, "imports").expect("it compiles");
        room.finish_run(&[program.to_str().expect("a plain path")]).expect("it ends").expect_success();
        room.wait_until_empty(HANG).expect("nothing is left over");
    }
}
