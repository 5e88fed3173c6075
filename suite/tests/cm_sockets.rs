//! Runs socket programs that know nothing of RDMA on rsockets: iperf3, nc, and curl with a small
//! HTTP server. Also compares datagram rsockets with the kernel's UDP sockets.
//!
//! The tests check that data goes over RDMA and not over TCP: no TCP socket listens at the
//! programs' port.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use harness::{Family, Hosts, Place, Room, User, cprogram};

const MEBIBYTE: usize = 1 << 20;

/// Makes a file of this many mebibytes, no two of which are equal.
fn file(folder: &Path, mebibytes: u64) -> PathBuf {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..MEBIBYTE / 8).flat_map(|_| next()).collect();
    let path = folder.join("file");
    let mut file = File::create(&path).expect("made");
    for number in 0..mebibytes {
        for page in bytes.chunks_mut(4096) {
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        file.write_all(&bytes).expect("written");
    }
    path
}

/// Compares two files piece by piece.
#[track_caller]
fn must_be_the_same(one: &Path, other: &Path) {
    let [mut left, mut right] = [one, other].map(|path| File::open(path).expect("there"));
    let lengths = [&left, &right].map(|file| file.metadata().expect("a file").len());
    assert_eq!(lengths[0], lengths[1], "the lengths of {} and {}", one.display(), other.display());
    let (mut ours, mut theirs) = (vec![0; MEBIBYTE], vec![0; MEBIBYTE]);
    for start in (0..lengths[0]).step_by(MEBIBYTE) {
        let length = (lengths[0] - start).min(MEBIBYTE as u64) as usize;
        left.read_exact(&mut ours[..length]).expect("read");
        right.read_exact(&mut theirs[..length]).expect("read");
        assert!(ours == theirs, "{} and {} differ after {start} bytes", one.display(), other.display());
    }
}

fn iperf(place: Place<'_>) {
    for more in ["-n 32M", "-n 32M -R", "-n 16M -P 2"] {
        let client = format!("env LD_PRELOAD=SOCKETS iperf3 -c ADDRESS -p PORT {more}");
        let sides = place.must_meet("env LD_PRELOAD=SOCKETS iperf3 -s -1 -B ADDRESS -p PORT", &client);
        assert!(sides.client.output.contains("iperf Done"), "{}", sides.client.told());
    }
}

#[test]
fn iperf3_on_one_host() {
    iperf(Room::of(User::Nobody).expect("a room").place(Family::V4));
}

#[test]
fn iperf3_between_namespaces() {
    for family in [Family::V4, Family::V6] {
        let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
        iperf(hosts.place(family));
    }
}

/// nc reads one file and writes received data to another file. A script contains the redirections.
fn netcat(place: Place<'_>, from: &Room, to: &Room) {
    let source = file(from.folder(), 16);
    let target = to.own_dir().join("received");
    let script = |name: &str, words: String| {
        let path = from.folder().join(name);
        fs::write(&path, words).expect("written");
        path.display().to_string()
    };
    let serve = script("serve", format!("exec nc -l \"$1\" \"$2\" >{}", target.display()));
    let call = script("call", format!("exec nc -N \"$1\" \"$2\" <{}", source.display()));
    place.must_meet(
        &format!("env LD_PRELOAD=SOCKETS sh {serve} ADDRESS PORT"),
        &format!("env LD_PRELOAD=SOCKETS sh {call} ADDRESS PORT"),
    );
    must_be_the_same(&source, &target);
}

#[test]
fn nc_on_one_host() {
    for family in [Family::V4, Family::V6] {
        let room = Room::of(User::Nobody).expect("a room");
        netcat(room.place(family), &room, &room);
    }
}

#[test]
fn nc_between_addresses() {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    netcat(hosts.place(Family::V4), hosts.right.room(), hosts.left.room());
}

/// curl fetches a file from a small HTTP server.
fn fetch(place: Place<'_>, from: &Room, to: &Room, mebibytes: u64) {
    let source = file(from.folder(), mebibytes);
    let target = to.own_dir().join("fetched");
    let folder = from.folder().display();
    let server =
        format!("env LD_PRELOAD=SOCKETS /usr/bin/python3 -m http.server --bind ADDRESS --directory {folder} PORT");
    let client =
        format!("env LD_PRELOAD=SOCKETS curl --silent --show-error -o {} http://ADDRESS:PORT/file", target.display());
    place.must_meet(&server, &client);
    must_be_the_same(&source, &target);
}

#[test]
fn curl_on_one_host() {
    let room = Room::of(User::Nobody).expect("a room");
    fetch(room.place(Family::V4), &room, &room, 1024);
}

#[test]
fn curl_between_namespaces() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    fetch(hosts.place(Family::V4), hosts.left.room(), hosts.right.room(), 64);
}

/// Sockets of either family and of both at once. The program compares rsockets with UDP sockets.
#[test]
fn datagram_sockets_on_the_wildcard_address_show_what_udp_sockets_show() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let program = cprogram::build_with(&room, "wildcards", &["-lrdmacm"]).expect("it compiles");
        let words = [program.to_str().expect("a plain path")];
        room.finish_run(&words).expect("it ends").expect_success();
    }
}
