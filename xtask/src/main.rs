//! `cargo xtask`: the project's own commands, from a first look (`demo`) to everything that must
//! hold (`test`).
//!
//! It is not part of the shipped software. Each command is a module, and [`main`] only selects one.
//! `cargo xtask --help` lists the commands.
#![forbid(unsafe_code)]

mod abi_check;
mod abi_doc;
mod bench;
mod conformance;
mod debian;
mod demo;
mod deny;
mod dist;
mod distros;
mod fuzz;
mod hugepages;
mod instructions;
mod interop;
mod package;
mod planted;
mod release;
mod report;
mod simulate;
mod slowest;
mod step;
mod tcp;
mod test;
mod tidy;
mod udp;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build softhca and show Debian's own verbs programs running on it, with their figures
    ///
    /// As root it installs ibverbs-utils and perftest if they are missing; otherwise it says what
    /// to install.
    Demo,
    /// Run everything that must hold before a change lands; the last line is "N passed, N failed"
    Test {
        /// Leave out the Debian programs: no package is installed and the integration suite does
        /// not run
        #[arg(long)]
        quick: bool,
    },
    /// Lay out target/dist, a folder that can be copied to any place: bin/softhca and the libraries
    /// in lib/softhca
    Dist,
    /// Make target/package, the packages that users install: a tarball, its debug symbols, a Debian
    /// package, on request an OCI image
    Package(package::Options),
    /// Check that a release can be made, make its packages, and print the remaining commands; it
    /// pushes and uploads nothing
    Release(release::Options),
    /// Check the sources: imports only downward, unsafe only in named modules, an opening paragraph
    /// in every file
    Tidy {
        /// Also print each package's largest cycle of imports, its widest struct, and the number of
        /// its long functions
        #[arg(long)]
        figures: bool,
    },
    /// Compare the symbols of libibverbs.so.1 and of the path redirector with the committed lists
    AbiCheck {
        /// The library to check; without it, those of a release build
        #[arg(long)]
        library: Option<PathBuf>,
        /// Write the list from the library instead of comparing
        #[arg(long)]
        bless: bool,
    },
    /// Write docs/abi.md from the command tables
    AbiDoc {
        /// Only compare; a difference is an error
        #[arg(long)]
        check: bool,
    },
    /// Write docs/conformance.md: run Debian's pyverbs tests and find the tests of behaviours
    Conformance {
        /// Only compare the part that follows from the sources; a difference is an error
        #[arg(long)]
        check: bool,
        /// Write only the part that follows from the sources, and run nothing
        #[arg(long, conflicts_with = "check")]
        sources: bool,
    },
    /// Plant bugs, one at a time, and show that each makes a test fail (takes a while)
    Planted {
        /// Only those whose description contains this text
        #[arg(long)]
        only: Option<String>,
        /// Only check that each bug can still be planted
        #[arg(long)]
        check: bool,
    },
    /// Run hosts in simulated time, where a seed decides everything that happens, and compare all
    /// results with the expected results
    Simulate(simulate::Options),
    /// Let AFL++ search for bytes that break a parser, an agent or an engine; fuzz/corpus grows
    /// (takes a while)
    Fuzz {
        /// Only this target: a folder of fuzz/corpus
        #[arg(long)]
        target: Option<String>,
        /// How long each target is fuzzed
        #[arg(long, default_value_t = 10)]
        minutes: u64,
    },
    /// Measure the speed: floors against UCX and plain UDP, or with --peers the goals of
    /// docs/performance.md
    ///
    /// Without --peers, the command prints the floors, and fails if one is not met.
    ///
    /// With --peers, it measures the goals in xtask/src/bench/peers/goals.rs, stores all figures in
    /// docs/performance/, one folder for each kind of machine, and writes the last section of
    /// docs/performance.md. Nothing else should run meanwhile. A run is all programs of a group
    /// once. A run is disturbed if other programs or the hypervisor take more than 5 % of the
    /// processors, or if a cache line or a bare ring becomes three times as slow. A disturbed run
    /// is repeated, up to twice as many runs as --runs. The page says how many of the runs were
    /// quiet.
    ///
    ///   cargo xtask bench --peers --runs 10                  all groups
    ///   cargo xtask bench --peers latency,shared --runs 10   two groups; the page keeps the others
    ///   cargo xtask bench --peers report                     only the page, from the stored figures
    ///   cargo xtask bench --peers --quick                    three runs of the most important groups
    #[command(verbatim_doc_comment)]
    Bench {
        /// Runs per figure, of which the median counts; without it 5, with --quick 3
        #[arg(long)]
        runs: Option<usize>,
        /// Where the JSON goes; without it, target/bench.json
        #[arg(long)]
        json: Option<PathBuf>,
        /// A laid out softhca to measure; without it, a fresh one is built
        #[arg(long, value_name = "FOLDER")]
        dist: Option<PathBuf>,
        /// Measure only this part
        #[arg(long)]
        only: Option<bench::Part>,
        /// Measure the goals beside UCX, libfabric and bare programs instead, with all groups or
        /// these, and write the section of docs/performance.md
        #[arg(long, value_name = "GROUP", num_args = 0.., value_delimiter = ',', conflicts_with_all = ["only", "json"])]
        peers: Option<Vec<bench::Group>>,
        /// With --peers: write the figures and a performance.md here, and leave docs/ as it is
        #[arg(long, value_name = "FOLDER", requires = "peers")]
        raw: Option<PathBuf>,
        /// With --peers: a few interleaved runs in less than ten minutes; the results are printed
        /// and not stored
        #[arg(long, requires = "peers", conflicts_with = "raw")]
        quick: bool,
        /// With --quick: another laid out softhca, which is measured in the same runs; medians that
        /// are worse by 5 % are marked
        #[arg(long, value_name = "FOLDER", requires = "quick")]
        against: Option<PathBuf>,
    },
    /// Count the instructions of a message of 8 bytes, by step and by source file, under valgrind,
    /// and measure the time of each step
    Instructions {
        /// A laid out softhca; without it, a fresh one is built
        #[arg(long, value_name = "FOLDER")]
        dist: Option<PathBuf>,
    },
    /// Run the programs of Debian 12, 13 and sid on one build, each in its own release, and write
    /// docs/distributions.md (takes a while)
    Distros(distros::Options),
    /// Run Debian's programs between softhca and Linux's Soft-RoCE driver on another host or
    /// virtual machine, both ways
    Interop(interop::Options),
    /// One side of a plain UDP measurement, for `bench`
    #[command(hide = true, subcommand)]
    Udp(udp::UdpSide),
    /// One side of a plain TCP measurement, for `bench`
    #[command(hide = true, subcommand)]
    Tcp(tcp::TcpSide),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // These commands need no workspace: they may run where cargo is not installed.
    match &arguments.command {
        Command::Udp(side) => return told(udp::run(side)),
        Command::Tcp(side) => return told(tcp::run(side)),
        _ => {}
    }
    let done = Workspace::open().and_then(|workspace| match arguments.command {
        Command::Demo => demo::run(&workspace),
        Command::Test { quick } => test::run(&workspace, quick),
        Command::Dist => dist::run(&workspace).map(|dist| println!("{}", dist.folder().display())),
        Command::Package(options) => package::run(&workspace, &options),
        Command::Release(options) => release::run(&workspace, &options),
        Command::Tidy { figures } => tidy::run(&workspace, figures),
        Command::AbiCheck { library, bless } => abi_check::run(&workspace, library, bless),
        Command::AbiDoc { check } => abi_doc::run(&workspace, check),
        Command::Conformance { check: true, .. } => conformance::check(&workspace),
        Command::Conformance { sources: true, .. } => conformance::write_behaviours(&workspace),
        Command::Conformance { .. } => conformance::run(&workspace),
        Command::Planted { check: true, .. } => planted::check(&workspace),
        Command::Planted { only, .. } => planted::run(&workspace, only.as_deref()),
        Command::Simulate(options) => simulate::run(&workspace, &options),
        Command::Fuzz { target, minutes } => fuzz::run(&workspace, target.as_deref(), minutes),
        Command::Bench { runs, dist, peers: Some(groups), quick: true, against, .. } => {
            bench::quickly_beside_peers(&workspace, &groups, runs.unwrap_or(3), dist, against)
        }
        Command::Bench { runs, dist, peers: Some(groups), raw, .. } => {
            bench::beside_peers(&workspace, &groups, runs.unwrap_or(5), raw, dist)
        }
        Command::Bench { runs, json, dist, only, .. } => bench::run(&workspace, runs.unwrap_or(5), json, dist, only),
        Command::Instructions { dist } => instructions::run(&workspace, dist),
        Command::Distros(options) => distros::run(&workspace, &options),
        Command::Interop(options) => interop::run(&workspace, &options),
        Command::Udp(_) | Command::Tcp(_) => Ok(()),
    });
    told(done)
}

fn told(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
