//! A lossy link between two hosts: the program `programs/relay.c`, which loses, holds back,
//! duplicates and corrupts RoCE packets at random.
//!
//! The relay runs in a process of its own and does not parse RoCE. The principal type is
//! [`LossyLink`].

use rustix::process::Signal;

use crate::hosts::Hosts;
use crate::program::Program;
use crate::{HANG, cprogram};

/// The UDP port of RoCEv2.
const ROCE: &str = "4791";

/// What the link does to packets, in percent of all packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Harm {
    /// Packets that are lost.
    pub lost: f64,
    /// Packets that are held back until others have passed.
    pub held: f64,
    /// Packets that are delivered twice.
    pub twice: f64,
    /// Packets with flipped bits. Of every three, two have a matching UDP checksum or no UDP
    /// checksum.
    pub spoilt: f64,
}

/// How many packets the link has carried, and how many it has harmed, by kind of harm.
#[derive(Debug, Clone, Default)]
pub struct Count(Vec<(String, u64)>);

/// A link in use.
#[derive(Debug)]
pub struct LossyLink(Program);

impl LossyLink {
    /// Starts the link between hosts that are not connected yet ([`Hosts::apart`]).
    pub fn lay(hosts: &Hosts, seed: u64, harm: Harm) -> Result<Self, String> {
        hosts.cut_packets()?;
        let room = hosts.left.room();
        let relay = cprogram::build(room, "relay")?;
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", hosts.middle().name()]).arg(relay).args(["left", "right", "-u", ROCE, "-s"]);
        command.arg(seed.to_string());
        for (option, percent) in [("-l", harm.lost), ("-r", harm.held), ("-d", harm.twice), ("-c", harm.spoilt)] {
            command.arg(option).arg(percent.to_string());
        }
        let mut program = room.start(command)?;
        program.wait_for_words("ready", HANG)?;
        Ok(Self(program))
    }

    /// Ends the link and returns its counts.
    pub fn take_away(mut self) -> Result<Count, String> {
        self.0.signal(Signal::TERM);
        let outcome = self.0.wait(HANG)?;
        let last = outcome.output.lines().last().filter(|_| outcome.succeeded());
        let words: Vec<&str> = last.ok_or_else(|| outcome.told())?.split_whitespace().collect();
        let pairs = words.chunks_exact(2).map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?)));
        pairs.collect::<Option<_>>().map(Count).ok_or_else(|| outcome.told())
    }
}

impl Count {
    /// The count with this name: `carried`, `lost`, `held`, `twice`, `spoilt`, `refitted` …
    ///
    /// # Panics
    /// When the relay has no count with this name.
    pub fn of(&self, what: &str) -> u64 {
        self.0.iter().find(|(name, _)| name == what).unwrap_or_else(|| panic!("no {what} in {self:?}")).1
    }
}
