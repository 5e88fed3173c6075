//! What hostile bytes meet. Each [`Target`] takes any bytes, gives them to a parser or to a part of softhca that believes nobody, and
//! panics if a promise is broken: bytes that were taken apart are put together again, what is not a peer's stays as it was, and who
//! behaves is served afterwards.
//!
//! `cargo xtask fuzz` has AFL++ look for such bytes. What it has found interesting is kept in `corpus/`, a file for each, and the
//! tests of this package give them to the targets again.
#![forbid(unsafe_code)]

mod feed;
mod targets;

use feed::Feed;

/// One thing to throw bytes at.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: of its folder in `corpus/`, and for `cargo xtask fuzz --target`.
    pub name: &'static str,
    /// What it takes, and what must hold.
    pub says: &'static str,
    /// Takes bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packet",
        says: "the headers and the ICRC of a packet: what is taken apart is put together again",
        run: targets::packet::run,
    },
    Target {
        name: "message",
        says: "messages of the connection manager: what is taken apart is put together again",
        run: targets::message::run,
    },
    Target {
        name: "command",
        says: "commands of a program to its agent: what another program has stays as it was",
        run: targets::command::run,
    },
    Target {
        name: "manager",
        says: "commands of a program to the connection manager: others listen and connect all the same",
        run: targets::manager::run,
    },
    Target {
        name: "receive",
        says: "packets with a fitting ICRC to an engine: no byte outside of what was opened changes, other queue pairs go on",
        run: targets::receive::run,
    },
    Target {
        name: "datagram",
        says: "management datagrams to an agent: others connect all the same",
        run: targets::datagram::run,
    },
    Target {
        name: "rsocket",
        says: "what the peer of an rsocket sends: no more is read or written than there is room",
        run: targets::rsocket::run,
    },
    Target {
        name: "lane",
        says: "what a peer writes into the memory of a lane, or of a capture ring: nothing outside is touched, and what is broken stays so",
        run: targets::lane::run,
    },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
