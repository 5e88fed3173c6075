//! Tests programs that access a peer's shared memory directly. The access stops when the peer ends
//! or withdraws the grant. A program of another user never gets access. The program is
//! `programs/direct.c`.

use harness::{HANG, Pair, Room, User, cprogram};

fn built(room: &Room) -> String {
    cprogram::build(room, "direct").expect("it compiles").to_str().expect("a plain path").to_owned()
}

/// Whether the initiator says that it has a grant.
#[track_caller]
fn granted(there: &Room, here: &Room, words: &[&str]) -> bool {
    let sides = Pair::start_different(there, words, here, words).and_then(|mut pair| pair.wait(HANG));
    let sides = sides.expect("both end");
    assert!(sides.server.succeeded() && sides.client.succeeded(), "{}\n{}", sides.server.told(), sides.client.told());
    !sides.client.everything().contains("not granted")
}

#[test]
fn a_target_that_is_killed_in_a_stream_is_not_written_to_once_that_is_known() {
    let room = Room::new().expect("a room");
    assert!(granted(&room, &room, &[&built(&room), "-m", "killed"]));
}

#[test]
fn a_fork_of_the_target_ends_nothing_and_deregistering_ends_it() {
    let room = Room::new().expect("a room");
    assert!(granted(&room, &room, &[&built(&room), "-m", "fork"]));
}

#[test]
fn another_user_is_granted_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: other users need root");
        return;
    }
    let machine = Room::system("addresses = ['127.0.0.1']\n").expect("an agent for everybody");
    let users = [64_001, 64_002].map(|number| machine.guest(User::Number(number)).expect("a room"));
    let program = built(&machine);
    let words = [program.as_str(), "-m", "ask"];
    assert!(granted(&users[0], &users[0], &words), "one user's own");
    assert!(!granted(&users[0], &users[1], &words));
    // Even root gets no grant, although root could read the memory anyway.
    assert!(!granted(&users[0], &machine, &words));
}
