//! `cargo xtask interop`: runs unmodified programs between softhca and a software driver of Linux,
//! in both directions: rdma_rxe (RoCE), or siw (iWARP).
//!
//! The other side is a virtual machine that the script `interop/linux-vm` builds, or any Linux host
//! with the driver, rdma-core's programs and perftest. A prefix of words, such as `ssh HOST`, must
//! run a shell command on it. docs/interop.md says what that host needs, and contains the tables of
//! the last runs. The principal type is [`Options`]. The programs are in [`cases`] and [`siw`]. The
//! other side is [`peer::Peer`].

mod cases;
mod peer;
mod report;
mod side;
mod siw;
mod terminates;

use std::path::PathBuf;
use std::process::Command;

use harness::{Dist, Room, cprogram};

use crate::workspace::Workspace;
use crate::{debian, dist};
use cases::{Case, Family};
use peer::Peer;
use report::{InteropReport, Line};
use side::{Lab, Own, Serves};

/// Where the other side is, and what to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// iWARP with Linux's siw driver instead of RoCE with rdma_rxe
    #[arg(long)]
    siw: bool,
    /// A script that runs a virtual machine with the driver (docs/interop.md); it replaces the
    /// options about the peer. Without it and without --peer-exec, the script is $SOFTHCA_RXE_VM or
    /// xtask/src/interop/linux-vm
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

/// A virtual machine that runs as long as this value lives.
struct VirtualMachine<'a> {
    script: &'a PathBuf,
    device: &'static str,
}

impl VirtualMachine<'_> {
    fn start<'a>(script: &'a PathBuf, options: &Options) -> Result<VirtualMachine<'a>, String> {
        if !script.is_file() {
            return Err(format!("{} is no file; docs/interop.md says what the script does", script.display()));
        }
        let machine = VirtualMachine { script, device: options.driver().device() };
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
        let Self { script, device } = self;
        let status = Command::new(script).args(words).env("RXE_MTU", "4500").env("VM_DEVICE", device).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{} {}: {status}", script.display(), words.join(" "))),
            Err(error) => Err(format!("{}: {error}", script.display())),
        }
    }
}

impl Drop for VirtualMachine<'_> {
    fn drop(&mut self) {
        if let Err(why) = self.run(&["down"]) {
            eprintln!("{why}");
        }
    }
}

/// The driver on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Rxe,
    Siw,
}

impl Driver {
    fn device(self) -> &'static str {
        match self {
            Driver::Rxe => "rxe",
            Driver::Siw => "siw",
        }
    }

    fn cases(self) -> Vec<Case> {
        match self {
            Driver::Rxe => cases::all(),
            Driver::Siw => siw::all(),
        }
    }

    /// The programs of the suite that run on both sides.
    fn programs(self, room: &Room) -> Result<Vec<Own>, String> {
        let (names, libraries): (&[&'static str], &[&str]) = match self {
            Driver::Rxe => (&["everyopcode"], &[]),
            Driver::Siw => (&["refusals", "terminates"], &["-lrdmacm"]),
        };
        let build = |name: &&'static str| Ok(Own { name, here: cprogram::build_with(room, name, libraries)? });
        names.iter().map(build).collect()
    }
}

impl Options {
    fn driver(&self) -> Driver {
        if self.siw { Driver::Siw } else { Driver::Rxe }
    }
}

/// Runs all cases in both directions, and prints the results.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let own = || workspace.root().join("xtask/src/interop/linux-vm");
    let script = || std::env::var_os("SOFTHCA_RXE_VM").map_or_else(own, PathBuf::from);
    let vm = options.peer_exec.is_none().then(|| options.vm.clone().unwrap_or_else(script));
    let (peer_words, here_words) = match (&vm, &options.peer_exec) {
        (None, Some(words)) => (words.clone(), options.here_exec.clone()),
        (script, _) => {
            let script = script.as_ref().map_or_else(String::new, |script| script.display().to_string());
            (format!("{script} exec 1"), format!("{script} ns"))
        }
    };
    debian::require(debian::SUITE)?;
    let dist = match &options.dist {
        Some(folder) => Dist::at(folder.clone()),
        None => dist::run(workspace)?,
    };
    let _machine = vm.as_ref().map(|script| VirtualMachine::start(script, options)).transpose()?;
    let driver = options.driver();
    let cases: Vec<(usize, Case)> =
        driver.cases().into_iter().enumerate().filter(|(_, case)| wanted(options, case)).collect();
    let mut report = InteropReport::new(driver);
    for group in cases.chunk_by(|(_, one), (_, other)| one.start_up == other.start_up) {
        let here: Vec<&str> = here_words.split_whitespace().collect();
        let room = Room::with(dist.clone())?.entered_by(&here);
        run_group(options, (room, &peer_words), group, &mut report)?;
    }
    if let Some(path) = &options.json {
        std::fs::write(path, report.json()?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if options.write {
        report.write(&workspace.root().join("docs/interop.md"))?;
    }
    report.verdict()
}

/// Runs cases whose connections begin in the same way.
fn run_group(
    options: &Options,
    (mut room, peer_words): (Room, &str),
    cases: &[(usize, Case)],
    report: &mut InteropReport,
) -> Result<(), String> {
    let driver = options.driver();
    let start_up = cases.first().and_then(|(_, case)| case.start_up);
    match start_up {
        Some(start_up) => room = start_up.agent(room)?,
        None => drop(room.start_agent()?),
    }
    let peer = Peer::meet(&room, peer_words, [&options.peer, &options.peer6], driver == Driver::Rxe)?;
    if let Some(start_up) = start_up {
        peer.ask(&room, &start_up.on_peer())?;
    }
    let programs = driver.programs(&room)?;
    for program in &programs {
        peer.put(&room, &program.here, &program.on_peer())?;
    }
    let lab = Lab::new(&room, &peer, [&options.address, &options.address6], &programs)?;
    report.kernel = peer.kernel(&room)?;
    for (number, case) in cases {
        let both = Serves::ALL.map(|serves| case.is_possible(serves).then(|| lab.run(case, serves, *number)));
        let line = Line::new(case, both);
        println!("{line}");
        report.add(line);
    }
    Ok(())
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
