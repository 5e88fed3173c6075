//! The fuzz targets. Each [`Target`] takes arbitrary bytes and gives them to a parser, or to a part
//! of softhca that handles untrusted data. It panics if a promise is broken: parsed bytes must be
//! emitted again unchanged, data of others must stay unchanged, and well-behaved users must be
//! served afterwards.
//!
//! `cargo xtask fuzz` runs AFL++ on them. `corpus/` has a file for each interesting input that it
//! found, and the tests of this package run the targets on these files.
#![forbid(unsafe_code)]

mod feed;
mod targets;

use feed::Feed;

/// One fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, for `cargo xtask fuzz --target`; also the name of its folder in `corpus/`.
    pub name: &'static str,
    /// Its input, and the property that it checks.
    pub says: &'static str,
    /// Runs it on an input.
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
