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
        says: "headers and ICRC of a packet: a parsed packet is emitted unchanged",
        run: targets::packet::run,
    },
    Target {
        name: "message",
        says: "messages of the connection manager: a parsed message is emitted unchanged",
        run: targets::message::run,
    },
    Target {
        name: "command",
        says: "commands to an agent: the objects of another program stay unchanged",
        run: targets::command::run,
    },
    Target {
        name: "manager",
        says: "commands to the connection manager: other programs can still connect",
        run: targets::manager::run,
    },
    Target {
        name: "receive",
        says: "packets with a valid ICRC to an engine: memory without rights stays unchanged, and other queue pairs work",
        run: targets::receive::run,
    },
    Target {
        name: "datagram",
        says: "management datagrams to an agent: other programs can still connect",
        run: targets::datagram::run,
    },
    Target {
        name: "rsocket",
        says: "messages of an rsocket's peer: no access outside of the buffers",
        run: targets::rsocket::run,
    },
    Target {
        name: "lane",
        says: "memory of a lane or a capture ring as a peer writes it: no access outside, and a broken ring stays broken",
        run: targets::lane::run,
    },
    Target {
        name: "management",
        says: "management datagrams to the agents and machines of a port: a manager with the key is served",
        run: targets::management::run,
    },
    Target {
        name: "topology",
        says: "files that describe a subnet: a parsed file is written and parsed again unchanged",
        run: targets::topology::run,
    },
    Target {
        name: "client",
        says: "management datagrams to a client with RMPP: what it keeps is bounded, and a new message passes",
        run: targets::client::run,
    },
    Target {
        name: "subnet",
        says: "management datagrams into a subnet, and cables that are cut: every port still answers itself",
        run: targets::subnet::run,
    },
    Target {
        name: "administration",
        says: "datagrams to a subnet manager: it sweeps, and subnet administration answers",
        run: targets::administration::run,
    },
    Target {
        name: "ipoib",
        says: "packets to an interface of IP over InfiniBand: what it keeps is bounded, and neighbours are answered",
        run: targets::ipoib::run,
    },
    Target {
        name: "iwarp",
        says: "a peer of iWARP: no access outside of what it may, each work request completes once, and output is bounded",
        run: targets::iwarp::run,
    },
    Target {
        name: "tunnel",
        says: "datagrams of a link between agents: a parsed one is emitted unchanged, and the real peer finds the link",
        run: targets::tunnel::run,
    },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
