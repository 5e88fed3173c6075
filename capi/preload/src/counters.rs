//! The counters of ports in sysfs. Before a program opens one, this library asks the agent to bring
//! them up to date in the mirror.

use std::ffi::c_int;

use libc::AT_FDCWD;
use rustix::fs::{CWD, readlinkat_raw};
use rustix::path::DecInt;

use crate::connection::Connection;
use crate::entry::{Place, Refusal, Room, Text};
use crate::packet::{self, Memory};
use crate::paths::{Official, before_official};

/// The agent's node for such requests.
const NODE: &str = "admin";

/// Asks for the counters of the port, if the path is one of them. Without an answer, the program
/// reads older ones.
pub(crate) fn refresh(place: &Place<'_>) {
    if let Some((device, port)) = place.official.counter() {
        let _ = ask(device, port);
    }
}

/// The same for a path that is relative to `from`: a program may have changed into the mirror, or
/// have a folder of it open.
#[inline]
pub(crate) fn refresh_within(from: c_int, path: Text) {
    if BEGINNINGS.iter().any(|beginning| last_name(&path).starts_with(beginning)) {
        find(from, path.bytes());
    }
}

/// How the names of counters begin. Other names are not looked at more closely.
const BEGINNINGS: [&[u8]; 15] = [
    b"VL15_",
    b"duplicate_",
    b"excessive_",
    b"implied_",
    b"link_",
    b"local_",
    b"multicast_",
    b"np_",
    b"out_of_",
    b"packet_",
    b"port_",
    b"rnr_",
    b"rp_",
    b"symbol_",
    b"unicast_",
];

/// The last name of a relative path; nothing for an absolute one.
#[inline]
fn last_name(path: &Text) -> &[u8] {
    if path.begins(b"/") {
        return &[];
    }
    path.bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Not inlined, so that only such names use the stack for the paths.
#[cold]
#[inline(never)]
fn find(from: c_int, path: &[u8]) {
    let (mut link, mut whole, mut folder) = (Room::new(), Room::new(), [0; libc::PATH_MAX as usize]);
    let number = DecInt::new(from);
    let name = if from == AT_FDCWD { &b"cwd"[..] } else { number.as_bytes() };
    let parent = if from == AT_FDCWD { &b"/proc/self/"[..] } else { b"/proc/self/fd/" };
    let Ok(link) = link.hold(parent.iter().chain(name).copied()) else { return };
    let Ok(length) = readlinkat_raw(CWD, link, &mut folder[..]) else { return };
    let folder = folder.get(..length).unwrap_or_default();
    let Ok(whole) = whole.hold(folder.iter().chain(b"/").chain(path).copied()) else { return };
    let official = before_official(whole.to_bytes()).and_then(|(_, start)| whole.to_bytes().get(start..));
    if let Some((device, port)) = official.and_then(Official::read).and_then(|official| official.counter()) {
        let _ = ask(device, port);
    }
}

fn ask(device: &[u8], port: &[u8]) -> Result<(), Refusal> {
    let connection = Connection::to(NODE, Refusal(libc::ENXIO))?;
    let parts = [br#"{"request":"counters","device":""#, device, br#"","port":"#, port, b"}"];
    let mut room = Room::new();
    let question = room.hold(parts.into_iter().flatten().copied())?;
    packet::send(connection.fd(), question.to_bytes(), Memory::NOTHING)?;
    packet::receive(connection.fd(), &mut [0; 64], Memory::NOTHING).map(drop)
}
