//! The command line: what may be typed, and the help that teaches it.
//!
//! The principal type is [`Arguments`]. Nothing is done here.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  softhca run -- ibv_devinfo                       one program on a software RDMA device
  softhca run -- ibv_rc_pingpong -g 0 &            a server …
  softhca run -- ibv_rc_pingpong -g 0 127.0.0.1    … and a client that talks to it
  softhca show qp                                  the queue pairs of every program, and the path each one takes
  softhca show --errors                            why something failed, in programs that run or ended lately
  softhca capture -w all.pcapng                    every packet, also those that never leave this machine, for Wireshark
  softhca bench write bw --all                     how fast it is: a table and a chart
  softhca doctor                                   what works on this machine, and what to do where something does not

Environment:
  SOFTHCA_DIR    the run directory; programs and agents with the same one see each other
                 (default: $XDG_RUNTIME_DIR/softhca-…, else /tmp/softhca-…, one per user and network namespace;
                 where no agent serves that one, the system's /run/softhca-… if an agent serves it)
  SOFTHCA_FAULTS faults for the programs that have it: rules, separated by semicolons, or a TOML file (docs/faults.md)
  SOFTHCA_LOG    what programs and the agent log on standard error: error, warn, info, debug, trace";

/// A software RDMA device for programs that were written for libibverbs: no hardware, no kernel module, no root.
#[derive(Debug, Parser)]
#[command(name = "softhca", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Be, or ask, a host of its own with this address only, as 127.0.0.2; may be given several times
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
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Why something failed: the last refused calls, completions with errors and dropped packets of each program, also of those that
        /// ended lately
        #[arg(long, conflicts_with = "kind")]
        errors: bool,
        /// Which objects; without it, how many there are of each
        kind: Option<Kind>,
    },
    /// Capture the packets of every program, over shared memory too, for Wireshark or to be read here
    Capture(Capture),
    /// Lose packets, fail commands, take ports down: faults on demand, for tests (docs/faults.md)
    #[command(subcommand, after_help = crate::fault::grammar())]
    Fault(crate::fault::Fault),
    /// Measure how fast softhca is here, or between two hosts: latency, bandwidth, rate of every operation
    Bench(crate::bench::Options),
    /// Check this machine, and a program: can it run on softhca?
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor {
        /// Print JSON (docs/json.md)
        #[arg(long)]
        json: bool,
        /// A program to check; its arguments are ignored
        #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
        program: Vec<OsString>,
    },
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  softhca doctor                    what works on this machine
  softhca doctor -- ./my-server     and whether this program can use softhca

Each line is ok, warn or FAIL; a line with an arrow says what to do. The doctor
starts nothing. It fails where `softhca run` would refuse to start the program,
and where the program would start without softhca.

Exit code: 0 if nothing fails, 1 if something fails, 2 for unknown options.";

const RUN_EXAMPLES: &str = "\
Examples:
  softhca run -- ibv_devinfo
  softhca run --pair -- ib_write_bw -- ib_write_bw 127.0.0.1
      A server and a client: the client starts when the server listens.
  softhca run --quiet -- ./my-tests
  softhca run --strict -- ./my-tests
      Also finds errors that do not show here (docs/strict.md).
  softhca run --pair --sockets -- iperf3 -s -1 -- iperf3 -c 127.0.0.1
      Sockets over RDMA, for programs that know nothing of it.
  softhca run --link-layer infiniband -- ibv_rc_pingpong
      A port with a LID: the program needs no GID index.
  softhca run --address 127.0.0.2 -- ./server
  softhca run --address 127.0.0.3 -- ./client 127.0.0.2
      Two virtual hosts, which speak RoCEv2 to each other.
  softhca run --fault 'loss 5% seed 7' -- ./my-tests
      With packet loss (docs/faults.md).
  SOFTHCA_LOG=debug softhca run -- ./my-server

--pair: the words up to the next -- are the server, all others the client. A
server that needs a -- of its own goes into a script. The client starts when the
server, or a program that it has started, listens with TCP or rdma_cm; after
10 s it starts in any case. Each line of output begins with server: or client:.
When one side ends, the other has 5 s to end too, then it gets SIGTERM, and 3 s
later SIGKILL, with all that it has started. Signals go to both. Standard input
is the client's. The exit code is that of the side that failed first, else 0.

Exit code: the program's, or 128 + the signal that ended it.
  123  --strict found something, and the program ended with 0
  125  softhca could not do its part, or does not know an option
  126  the program cannot be executed
  127  the program was not found

When the program fails, the reasons follow on standard error, those of its
children too. When it ends with 0, only those of failed requests follow.";

#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// Do not print reasons after the program
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Find what the program does wrong although it seems to work, such as buffers that it uses too early, and print
    /// each at the end, with how to mend it. The program runs slower. docs/strict.md lists what is looked for
    #[arg(long)]
    pub(crate) strict: bool,
    /// A fault on demand for this program, as `softhca fault add --help` tells them; may be given several times
    #[arg(long, value_name = "RULE")]
    pub(crate) fault: Vec<String>,
    /// Start the agent with ports of this link layer, if none answers; ethernet without it
    #[arg(long, value_name = "LAYER")]
    pub(crate) link_layer: Option<LinkLayer>,
    /// Let the program's internet sockets be rsockets (rsocket(7)): what they send goes by RDMA. Needed on both sides
    #[arg(short, long)]
    pub(crate) sockets: bool,
    /// Run a server and a client: softhca run --pair -- SERVER ARGS -- CLIENT ARGS
    #[arg(long)]
    pub(crate) pair: bool,
    /// The process whose pair this is a side of
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) parent: Option<u32>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

const CAPTURE_EXAMPLES: &str = "\
Examples:
  softhca capture                                  one line for each packet, until ^C
  softhca capture -v -c 10                         ten packets, header by header; -vv shows payloads as well
  softhca capture -w all.pcapng                    a file for Wireshark, which has a comment with the path of each packet
  softhca capture -w - | wireshark -k -i -         live
  softhca capture -w - | tshark -r - -Y infiniband.aeth.syndrome.opcode==3
  softhca capture --no-payload -w headers.pcapng   headers only: small, and fast enough for more
  softhca capture qp 0x11                          one queue pair, as sender or receiver
  softhca capture host 10.0.0.2 and not ack        what goes to one host and comes from it, but for acknowledgements
  softhca capture 'cm or nak or dropped'           connections being made, refusals, and what was dropped and why
  softhca capture opcode rdma-read and lane        READs between programs of this machine
  softhca capture --json --duration 5 | jq .opcode for a script

Filter words: [src|dst] host ADDRESS, [src|dst] qp N, [src|dst] pid N, device NAME, opcode NAME, lane [N], wire, in, out,
cm, ack, nak, dropped, fault; joined by and, or, not and parentheses.

All packets of all programs of the agent are seen, each once per path: on a lane (shared memory) as the RoCEv2 packet
that it stands for, on the wire as it was sent or received. With an agent for every user (softhca agent --system) a user
sees own programs only. Programs run slower while somebody captures, and never wait for the capture: what there is no
room for is counted and missing. docs/capture.md says more.

The exit code is 0 when the capture has ended as it was told to, 1 when it could not be made or the agent ended, and 2 for
options that are none.";

#[derive(Debug, Args)]
#[command(after_help = CAPTURE_EXAMPLES)]
pub(crate) struct Capture {
    /// Write pcapng to this file; - is standard output, to be piped into Wireshark
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Capture on this device only, as softhca0
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) interface: Option<String>,
    /// End after so many packets
    #[arg(short, long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Keep so many bytes of each packet, counted from its Ethernet header on; 0 keeps all
    #[arg(short, long, value_name = "BYTES", default_value_t = 0)]
    pub(crate) snaplen: usize,
    /// Keep the headers only
    #[arg(long)]
    pub(crate) no_payload: bool,
    /// End after so many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Print packets although they are written to a file, too
    #[arg(long)]
    pub(crate) print: bool,
    /// Print several lines for each packet; twice: its payload as well
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print one JSON object in a line for each packet
    #[arg(long, conflicts_with = "verbose")]
    pub(crate) json: bool,
    /// Room for packets that are not written yet, for each program, in KiB
    #[arg(short = 'B', long, value_name = "KIB", default_value_t = 4096)]
    pub(crate) buffer: usize,
    /// Print neither what is listened to nor the counts at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Which packets; all without it
    #[arg(trailing_var_arg = true, value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
}

const AGENT_EXAMPLES: &str = "\
Examples:
  softhca agent                             start it in the background
  softhca agent --config devices.toml       with devices, ports and limits of your own (docs/configuration.md)
  softhca agent --address 127.0.0.2         a second host on this machine, with this address only
  softhca agent --link-layer infiniband     ports with LIDs, for programs that give no GID index
  softhca agent --system                    for every user of this machine, kept apart from each other (as root)
  softhca agent --foreground                stay in the terminal and log there; ^C ends it
  softhca agent --stop                      end it; programs get IBV_EVENT_DEVICE_FATAL";

#[derive(Debug, Args)]
#[command(after_help = AGENT_EXAMPLES)]
pub(crate) struct Agent {
    /// A TOML file with devices, ports, GUIDs and limits
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What all ports are: ethernet (RoCE), or infiniband, with LIDs, for programs that give no GID index
    #[arg(long, value_name = "LAYER")]
    pub(crate) link_layer: Option<LinkLayer>,
    /// Serve every user of this machine, in /run/softhca-… unless SOFTHCA_DIR names another place
    #[arg(long)]
    pub(crate) system: bool,
    /// Stay in the foreground and log on standard error
    #[arg(long)]
    pub(crate) foreground: bool,
    /// End after so many seconds without a program
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,
    /// End the agent: the user's own, with --system the system's, with --address that of the address
    #[arg(long, conflicts_with_all = ["config", "foreground", "idle_exit", "link_layer"])]
    pub(crate) stop: bool,
    /// The background process itself, started by this program
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// How ports address others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkLayer {
    /// RoCE: by GID
    Ethernet,
    /// By LID within a subnet, and by GID
    Infiniband,
}

impl LinkLayer {
    /// The option that says so.
    pub(crate) fn option(self) -> String {
        format!("--link-layer={}", self.name().to_lowercase())
    }

    /// As ports tell it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Infiniband => "InfiniBand",
        }
    }
}

const SHOW_EXAMPLES: &str = "\
Examples:
  softhca show                 how many objects of each kind
  softhca show qp              one line per queue pair: program, state, peer, path
  softhca show --json mr       memory regions for a script
  softhca show --errors        why something failed, program by program (docs/why.md)
  softhca show --errors --json the same for a script, with times, QPs, wr_ids and counts";

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
    /// The connection manager's ids: listeners and connections
    Cm,
}

/// A time, as 5 or 0.5.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| *time <= LONGEST)
        .ok_or_else(|| format!("between 0 and {} seconds are possible", LONGEST.as_secs()))
}

/// A year, which nobody waits for.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whether the command of a command line that could not be understood is `run`.
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
        assert!(matches!(parsed.command, Command::Show { json: true, errors: true, kind: None }));
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
