//! The command line: its options and their help.
//!
//! The principal type is [`Arguments`]. This module only parses; other modules carry out the
//! commands.

mod help;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::agent_command::Agent;
use crate::link_layer::LinkLayer;
use crate::transport::Transport;

/// A software RDMA device for programs that were written for libibverbs: no hardware, no kernel
/// module, no root.
#[derive(Debug, Parser)]
#[command(name = "softhca", version, after_help = help::SOFTHCA, max_term_width = 80)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Act as a separate virtual host with this IP address (for example 127.0.0.2). May be repeated
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) address: Vec<IpAddr>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program on softhca; an agent is started if none answers
    Run(Run),
    /// Start, configure or stop the agent, which owns the devices
    Agent(Agent),
    /// List the devices and their ports, as ibv_devinfo does
    Devices {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Print every GID and every limit
        #[arg(short, long)]
        verbose: bool,
    },
    /// Show the objects of every program, as `rdma resource show` does
    #[command(after_help = help::SHOW)]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Say why something failed: refused calls, failed requests and dropped packets of each
        /// program, also of those that ended lately
        #[arg(long, conflicts_with = "kind")]
        errors: bool,
        /// Below the queue pairs, show the switches on the path of each connection, or where its
        /// packets end
        #[arg(long, conflicts_with_all = ["errors", "json"])]
        paths: bool,
        /// Which objects. Without it: how many there are of each kind
        kind: Option<Kind>,
    },
    /// Capture the packets of every program, also over shared memory
    Capture(Capture),
    /// Inject faults: lose packets, fail commands, take ports down
    #[command(subcommand, after_help = crate::fault::grammar())]
    Fault(crate::fault::Fault),
    /// Show a port, or change it while programs run, as a subnet manager does
    #[command(after_help = crate::port::EXAMPLES)]
    Port(crate::port::PortCommand),
    /// Show the switches of `softhca agent --topology`, cut and mend cables
    #[command(after_help = crate::subnet::EXAMPLES)]
    Subnet(crate::subnet::Subnet),
    /// Run a subnet manager on a port of an InfiniBand subnet
    #[command(after_help = crate::sm::EXAMPLES)]
    Sm(crate::sm::Sm),
    /// Make a network interface over RDMA (IPoIB), for programs that use sockets
    #[command(after_help = crate::ipoib::EXAMPLES)]
    Ipoib(crate::ipoib::Ipoib),
    /// Measure latency, bandwidth and rate, on this host or between two
    Bench(crate::bench::options::Options),
    /// Check this machine, and a program: can it run on softhca?
    #[command(after_help = help::DOCTOR)]
    Doctor {
        /// Print JSON (docs/json.md)
        #[arg(long)]
        json: bool,
        /// A program to check; its arguments are ignored
        #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
        program: Vec<OsString>,
    },
    /// Write the man pages and the shell completions, for packages
    #[command(hide = true)]
    Pages {
        /// The folder that they are written below, as /usr/share
        folder: PathBuf,
        /// The date that the pages carry, as 2026-01-31
        date: String,
    },
}

/// Shells complete the words after `softhca run --` as a program and its own arguments.
const PROGRAM: ValueHint = ValueHint::CommandWithArguments;

#[derive(Debug, Args)]
#[command(after_help = help::RUN)]
pub(crate) struct Run {
    /// Do not print reasons after the program
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Find errors of the program that a run does not reveal, such as a buffer that it uses before
    /// the completion. Print each with its fix at the end. The program runs slower (docs/strict.md)
    #[arg(long)]
    pub(crate) strict: bool,
    /// Inject a fault into this program (softhca fault add --help). May be repeated
    #[arg(long, value_name = "RULE")]
    pub(crate) fault: Vec<String>,
    /// Link layer of all ports, if an agent is started [default: ethernet]
    #[arg(long, value_name = "LAYER")]
    pub(crate) link_layer: Option<LinkLayer>,
    /// Transport of all devices, if an agent is started: infiniband, which includes RoCE, or iwarp
    #[arg(long, value_name = "TRANSPORT")]
    pub(crate) transport: Option<Transport>,
    /// Run the program on this node of the agent's topology (softhca agent --topology)
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Send the program's TCP and UDP traffic over RDMA (rsocket(7)). Both sides need it
    #[arg(short, long)]
    pub(crate) sockets: bool,
    /// Make the program's large memory shared, so that WRITE, READ and atomics of the same user's
    /// programs access it directly. Fork gets slower (docs/shared-memory.md)
    #[arg(long, overrides_with = "private_memory")]
    pub(crate) shared_memory: bool,
    /// Leave the program's memory private, also if SOFTHCA_SHARED_MEMORY or the agent's
    /// configuration asks for shared memory
    #[arg(long, overrides_with = "shared_memory")]
    pub(crate) private_memory: bool,
    /// Run a server and a client: softhca run --pair -- SERVER ARGS -- CLIENT ARGS
    #[arg(long)]
    pub(crate) pair: bool,
    /// The process whose pair this is a side of
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) parent: Option<u32>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND", value_hint = PROGRAM)]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// Whether the options ask for shared memory, or for private memory.
    pub(crate) fn memory(&self) -> Option<bool> {
        (self.shared_memory || self.private_memory).then_some(self.shared_memory)
    }
}

#[derive(Debug, Args)]
#[command(after_help = help::CAPTURE)]
pub(crate) struct Capture {
    /// Write pcapng to this file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Capture on this device only, for example softhca0
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) interface: Option<String>,
    /// Stop after N packets
    #[arg(short, long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Keep BYTES bytes of each packet, from the Ethernet header on; 0 keeps all
    #[arg(short, long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) snaplen: usize,
    /// Keep the headers only
    #[arg(long)]
    pub(crate) no_payload: bool,
    /// Stop after this time
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Also print the packets that are written to a file
    #[arg(long)]
    pub(crate) print: bool,
    /// Print several lines for each packet; -vv prints the payload too
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print one JSON object per line and packet
    #[arg(long, conflicts_with = "verbose")]
    pub(crate) json: bool,
    /// Per-program buffer size in KiB
    #[arg(short = 'B', long, value_name = "KIB", default_value_t = 4096)]
    pub(crate) buffer: usize,
    /// Print no heading, and no counts at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Which packets [default: all]
    #[arg(trailing_var_arg = true, value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Open devices: one line per process and device
    Contexts,
    /// Protection domains
    Pd,
    /// Completion queues
    Cq,
    /// Queue pairs and their paths
    Qp,
    /// Shared receive queues
    Srq,
    /// Memory regions
    Mr,
    /// Address handles
    Ah,
    /// Completion channels
    Channel,
    /// The connection manager's ids: listeners and connections
    Cm,
}

/// A time, as 5 or 0.5.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| *time <= LONGEST)
        .ok_or_else(|| format!("the time must be between 0 and {} seconds", LONGEST.as_secs()))
}

/// The longest time that an option accepts: one year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whether a command line that does not parse has the command `run`.
pub(crate) fn is_run(words: impl Iterator<Item = OsString>) -> bool {
    let mut words = words.skip(1);
    let mut next = words.next();
    while next.as_ref().is_some_and(|word| word.to_string_lossy().starts_with('-')) {
        if next.is_some_and(|word| word == "--address") {
            words.next();
        }
        next = words.next();
    }
    next.is_some_and(|word| word == "run")
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Arguments, Command, LinkLayer};

    #[test]
    fn the_definition_holds_together() {
        Arguments::command().debug_assert();
    }

    /// Collects the help of a command and of its subcommands.
    fn all(command: &mut clap::Command, name: &str, found: &mut Vec<(String, String, String)>) {
        let behind = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let long = command.clone().render_long_help().to_string();
        let short = command.clone().render_help().to_string();
        found.push((name.to_owned(), behind, long + &short));
        for below in command.get_subcommands_mut() {
            let name = format!("{name} {}", below.get_name());
            all(below, &name, found);
        }
    }

    #[test]
    fn every_help_fits_80_columns() {
        let mut found = Vec::new();
        let mut command = Arguments::command();
        command.build();
        all(&mut command, "softhca", &mut found);
        assert!(found.len() > 12, "{found:?}");
        for (name, behind, help) in found {
            // The text after the options is laid out by hand. It must not be wrapped.
            for line in behind.lines().chain(help.lines()) {
                assert!(line.chars().count() <= 80, "{name} --help: {line}");
            }
        }
    }

    #[test]
    fn the_command_of_a_wrong_line_is_known() {
        for (line, expected) in [
            ("softhca run", true),
            ("softhca --address ::1 run --fault", true),
            ("softhca --address=run --address 127.0.0.2 run", true),
            ("softhca bench run", false),
            ("softhca --address run", false),
            ("softhca --bogus", false),
            ("softhca", false),
        ] {
            assert_eq!(super::is_run(line.split(' ').map(Into::into)), expected, "{line}");
        }
    }

    #[test]
    fn times_that_cannot_pass_are_refused() {
        for wrong in ["-1", "nan", "inf", "1e30", "x", ""] {
            let line = format!("--duration={wrong}");
            let told = Arguments::try_parse_from(["softhca", "capture", &line]).expect_err(wrong).to_string();
            assert!(told.contains("between 0 and") && told.contains("--duration"), "{told}");
        }
        assert!(Arguments::try_parse_from(["softhca", "capture", "-d", "0.5"]).is_ok());
    }

    #[test]
    fn addresses_belong_to_every_command_and_not_to_the_program() {
        for words in [["agent", "--stop"], ["devices", "-v"], ["run", "true"]] {
            let all = ["softhca", words[0], "--address", "127.0.0.2", "--address", "::1", words[1]];
            let parsed = Arguments::try_parse_from(all).expect("understood");
            assert_eq!(parsed.address.len(), 2, "{words:?}");
        }
        let parsed = Arguments::parse_from(["softhca", "run", "prog", "--address", "x"]);
        assert!(parsed.address.is_empty());
    }

    #[test]
    fn errors_are_shown_of_all_objects() {
        let parsed = Arguments::parse_from(["softhca", "show", "--errors", "--json"]);
        assert!(matches!(parsed.command, Command::Show { json: true, errors: true, kind: None, .. }));
        assert!(Arguments::try_parse_from(["softhca", "show", "--errors", "qp"]).is_err());
    }

    #[test]
    fn link_layers_have_two_names() {
        for layer in [LinkLayer::Ethernet, LinkLayer::Infiniband] {
            let parsed = Arguments::parse_from(["softhca", "agent", &layer.option()]);
            let Command::Agent(agent) = parsed.command else { panic!("parsed as something else") };
            assert_eq!(agent.link_layer, Some(layer));
        }
        let parsed =
            Arguments::parse_from(["softhca", "run", "--link-layer", "infiniband", "prog", "--link-layer", "x"]);
        let Command::Run(run) = parsed.command else { panic!("parsed as something else") };
        assert_eq!(run.link_layer, Some(LinkLayer::Infiniband));
        assert!(Arguments::try_parse_from(["softhca", "agent", "--link-layer", "token-ring"]).is_err());
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        let parsed = Arguments::parse_from(["softhca", "run", "--quiet", "--", "prog", "--quiet", "-g", "0"]);
        let Command::Run(run) = parsed.command else { panic!("parsed as something else") };
        assert!(run.quiet);
        assert_eq!(run.command, ["prog", "--quiet", "-g", "0"]);
        let parsed = Arguments::parse_from(["softhca", "run", "prog", "-g", "0"]);
        let Command::Run(run) = parsed.command else { panic!("parsed as something else") };
        assert_eq!(run.command, ["prog", "-g", "0"]);
    }
}
