//! `cargo xtask interop`: runs unmodified programs between softhca and Linux's Soft-RoCE driver, in
//! both directions.
//!
//! The other side is any Linux host or virtual machine with rdma_rxe, rdma-core's programs and
//! perftest. A prefix of words, such as `ssh HOST`, must run a shell command on it. docs/interop.md
//! says what that host needs, and contains the table of the last run. The principal type is
//! [`Options`]. The programs are in [`cases`]. The other side is [`peer::Peer`].

mod cases;
mod peer;
mod report;
mod side;

use std::path::PathBuf;
use std::process::Command;

use suite::{Dist, Room, cprogram};

use crate::workspace::Workspace;
use crate::{debian, dist};
use cases::{Case, Family};
use peer::Peer;
use report::{Line, Report};
use side::{Lab, Serves};

/// Where the other side is, and what to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A script that runs a virtual machine with rdma_rxe (docs/interop.md); it replaces the
    /// options about the peer. Without it and without --peer-exec, the script is $SOFTHCA_RXE_VM
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["peer_exec", "here_exec"])]
    vm: Option<PathBuf>,
    /// The words that run a shell command on the peer, for example "ssh root@lab2"
    #[arg(long, value_name = "WORDS")]
    peer_exec: Option<String>,
    /// The peer's IPv4 address on the link
    #[arg(long, value_name = "ADDRESS", default_value = "10.77.0.11")]
    peer: String,
    /// The peer's IPv6 address on the link
    #[arg(long, value_name = "ADDRESS", default_value = "fd77::11")]
    peer6: String,
    /// Our IPv4 address on the link
    #[arg(long, value_name = "ADDRESS", default_value = "10.77.0.1")]
    address: String,
    /// Our IPv6 address on the link
    #[arg(long, value_name = "ADDRESS", default_value = "fd77::1")]
    address6: String,
    /// The words that run a command on our side of the link, for example "ip netns exec lab"
    #[arg(long, value_name = "WORDS", default_value = "")]
    here_exec: String,
    /// Only the cases whose line contains this text
    #[arg(long)]
    only: Option<String>,
    /// A laid out softhca to use; without it, a fresh one is built
    #[arg(long, value_name = "FOLDER")]
    dist: Option<PathBuf>,
    /// Where the JSON goes
    #[arg(long)]
    json: Option<PathBuf>,
    /// Put the table into docs/interop.md
    #[arg(long)]
    write: bool,
}

/// The message for users who name no other side.
const NEEDED: &str = "interop needs a host with Linux's Soft-RoCE driver: either --peer-exec \"ssh root@HOST\" with --peer, --peer6, --address and \
    --address6, or --vm SCRIPT; docs/interop.md says what each of them has to offer";

/// A virtual machine that runs as long as this value lives.
struct Machine<'a>(&'a PathBuf);

impl Machine<'_> {
    fn start<'a>(script: &'a PathBuf, options: &Options) -> Result<Machine<'a>, String> {
        if !script.is_file() {
            return Err(format!("{} is no file; {NEEDED}", script.display()));
        }
        let machine = Machine(script);
        // On a busy processor, an emulated machine may find its clock broken while it starts.
        machine
            .run(&["start", "1"])
            .or_else(|_| machine.run(&["start", "1"]))
            .or_else(|_| machine.run(&["start", "1"]))?;
        // This side's interface of the link may have no IPv6 address.
        let Options { address, address6, .. } = options;
        let add = format!(
            "device=$(ip -o -4 address show | grep -F ' {address}/' | awk '{{print $2; exit}}'); \
             echo 0 >/proc/sys/net/ipv6/conf/$device/disable_ipv6; ip -6 address replace {address6}/64 dev $device nodad"
        );
        machine.run(&["ns", "sh", "-c", &add])?;
        Ok(machine)
    }

    fn run(&self, words: &[&str]) -> Result<(), String> {
        let status = Command::new(self.0).args(words).env("RXE_MTU", "4500").status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{} {}: {status}", self.0.display(), words.join(" "))),
            Err(error) => Err(format!("{}: {error}", self.0.display())),
        }
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if let Err(why) = self.run(&["down"]) {
            eprintln!("{why}");
        }
    }
}

/// Runs all cases in both directions, and prints the results.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let named = std::env::var_os("SOFTHCA_RXE_VM").filter(|_| options.peer_exec.is_none()).map(PathBuf::from);
    let vm = options.vm.clone().or(named);
    let (peer_words, here_words) = match (&vm, &options.peer_exec) {
        (Some(script), _) => (format!("{} exec 1", script.display()), format!("{} ns", script.display())),
        (None, Some(words)) => (words.clone(), options.here_exec.clone()),
        (None, None) => return Err(NEEDED.to_owned()),
    };
    debian::require(debian::SUITE)?;
    let dist = match &options.dist {
        Some(folder) => Dist::at(folder.clone()),
        None => dist::run(workspace)?,
    };
    let _machine = vm.as_ref().map(|script| Machine::start(script, options)).transpose()?;
    let here: Vec<&str> = here_words.split_whitespace().collect();
    let room = Room::with(dist)?.entered_by(&here);
    room.start_agent()?;
    let peer = Peer::meet(&room, &peer_words, [&options.peer, &options.peer6])?;
    let program = cprogram::build(&room, "everyopcode")?;
    peer.put(&room, &program, cases::ON_PEER)?;
    let lab = Lab::new(&room, &peer, [&options.address, &options.address6], &program)?;
    let mut report = Report::new(peer.kernel(&room)?);
    for (number, case) in cases::all().iter().enumerate().filter(|(_, case)| wanted(options, case)) {
        let both = [Serves::Here, Serves::Peer].map(|serves| lab.run(case, serves, number));
        let line = Line::new(case, both);
        println!("{line}");
        report.add(line);
    }
    if let Some(path) = &options.json {
        std::fs::write(path, report.json()?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if options.write {
        report.write(&workspace.root().join("docs/interop.md"))?;
    }
    report.verdict()
}

fn wanted(options: &Options, case: &Case) -> bool {
    options.only.as_ref().is_none_or(|text| case.title().contains(text.as_str()))
}

impl Family {
    /// The index of this family's address in a pair.
    fn index(self) -> usize {
        match self {
            Family::V4 => 0,
            Family::V6 => 1,
        }
    }
}
