//! Tests unusual surroundings: a network namespace with nothing but loopback, a library and an
//! agent of different versions, and a process that fills its lanes with random bytes.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use harness::{HANG, Namespace, Pair, Room, User, process, wait};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send, socket_with,
};

#[test]
fn loopback_is_enough() {
    for user in [User::Me, User::Nobody] {
        let Some(namespace) = Namespace::new().expect("a namespace") else { return };
        let room = Room::of(user).expect("a room").entered_by(&namespace.entrance());
        room.finish_run(&["ibv_devinfo"]).expect("it ends").expect_success();
        for words in [
            &["ibv_rc_pingpong", "-g", "0", "-c"][..],
            &["ibv_ud_pingpong", "-g", "0", "-c", "-e"],
            &["ib_write_bw"],
            &["ib_send_lat", "-c", "UD"],
        ] {
            Pair::must_succeed(&room, words);
        }
        drop(room);
    }
}

/// A socket that says that it is an agent of another version.
fn impostor(run_dir: &Path) -> OwnedFd {
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&listener, &SocketAddrUnix::new(run_dir.join("uverbs0")).expect("short enough")).expect("bound");
    listen(&listener, 8).expect("listening");
    listener
}

#[test]
fn another_version_is_told_in_one_sentence() {
    const VERSION: u16 = 99;
    const EPROTONOSUPPORT: i32 = 93;
    let room = Room::new().expect("a room");
    room.finish(room.softhca(&["agent"])).expect("it ends").expect_success();
    std::fs::remove_file(room.run_dir().join("uverbs0")).expect("removed");
    let listener = impostor(&room.run_dir());
    let answering = std::thread::spawn(move || {
        // Serves any number of clients. The thread ends with the process.
        while let Ok(client) = accept(&listener) {
            let mut open = [0_u8; 64];
            let Ok((16, _)) = recv(&client, &mut open[..], rustix::net::RecvFlags::empty()) else { continue };
            let mut answer = open[..16].to_vec();
            answer[4..6].copy_from_slice(&VERSION.to_le_bytes());
            answer[8..12].copy_from_slice(&(-EPROTONOSUPPORT).to_le_bytes());
            let _ = send(&client, &answer, rustix::net::SendFlags::NOSIGNAL);
        }
    });
    let outcome = room.finish_run(&["ibv_devinfo"]).expect("it ends");
    drop(answering);
    assert!(!outcome.succeeded(), "{}", outcome.told());
    let first = outcome.errors.lines().next().unwrap_or_default();
    assert!(first.contains("99") && first.contains("softhca agent --stop"), "{}", outcome.told());
}

/// Fills all mappings of a process whose name contains `part` with random bytes. Returns the number
/// of mappings.
fn scribble(pid: u32, part: &str) -> usize {
    let mut memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).expect("root may write it");
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let ranges = process::mappings(pid, part);
    for (from, to) in &ranges {
        let length = usize::try_from(to - from).expect("it fits");
        let mut bytes = vec![0_u8; length];
        for byte in &mut bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed.to_le_bytes()[3];
        }
        memory.seek(SeekFrom::Start(*from)).expect("an address");
        // Read-only mappings (other processes' pages) must refuse the write.
        let _ = memory.write_all(&bytes);
    }
    ranges.len()
}

#[test]
fn a_process_that_scribbles_over_its_lane_harms_only_its_own_connections() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let room = Room::new().expect("a room");
    let agent = room.start_agent().expect("an agent");
    let mut steady =
        Pair::start(&room, &["ibv_rc_pingpong", "-g", "0", "-c", "-e", "-n", "50000"]).expect("both start");
    let mut pair = Pair::start(&room, &["ib_write_bw", "-D", "120"]).expect("both start");
    let client = pair.client.inner("ib_write_bw", HANG).expect("a client");
    wait::until(HANG, "a lane", || (!process::mappings(client, "lane").is_empty()).then_some(())).expect("a lane");
    wait::until(HANG, "traffic", || (process::cpu_time(client)? > Duration::from_secs(1)).then_some(()))
        .expect("traffic");
    assert!(scribble(client, "lane") > 0);
    let ended = pair.client.wait(HANG).expect("the client ends");
    assert!(!ended.succeeded(), "{}", ended.told());
    pair.server.wait(HANG).expect("the server ends");
    let sides = steady.wait(HANG).expect("the others end");
    sides.client.expect_success();
    sides.server.expect_success();
    assert_eq!(room.agent(), Some(agent), "the agent is another one");
    Pair::must_succeed(&room, &["ib_write_bw"]);
}
