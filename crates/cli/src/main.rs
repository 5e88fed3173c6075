//! The `softhca` program: runs other programs on softhca, starts and stops the agent, and shows its
//! state.
//!
//! It decides nothing about RDMA: it asks the agent through its `admin` node and prints the
//! answers. Each command is a module with the command's name. [`arguments`] is the command line,
//! and [`place`] knows the paths. The principal type is [`Arguments`].
#![forbid(unsafe_code)]
// The print macros panic if standard error is full.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod admin;
mod agent_command;
mod agent_device;
mod arguments;
mod bench;
mod capture;
mod colour;
mod devices;
mod doctor;
mod errors;
mod failure;
mod fault;
mod fault_counts;
mod finding;
mod ipoib;
mod json;
mod link_layer;
mod log;
mod manager_options;
mod pages;
mod pair;
mod place;
mod port;
mod preload;
mod program;
mod ready;
mod reasons;
mod run;
mod shared_memory;
mod show;
mod signals;
mod sm;
mod start;
mod strict;
mod subnet;
mod table;
mod transport;
mod umad_number;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use engine::reason::say;
use failure::{Failure, NO_OPTIONS, print};
use place::Host;

fn main() -> ExitCode {
    signals::survive_file_limit();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let host = Host { addresses: arguments.address };
    let done = match arguments.command {
        Command::Run(run) => return run::run(&run, &host),
        Command::Agent(agent) => agent_command::run(&agent, &host),
        Command::Devices { json, verbose } => devices::run(&host, json, verbose),
        Command::Show { json, errors: true, .. } => errors::run(&host, json),
        Command::Show { json, kind, paths, .. } => show::run(&host, json, paths, kind),
        Command::Capture(wanted) => capture::run(&wanted, &host),
        Command::Fault(fault) => fault::run(&fault, &host),
        Command::Subnet(wanted) => subnet::run(&wanted, &host),
        Command::Port(wanted) => port::run(&wanted, &host),
        Command::Ipoib(options) => ipoib::run(&options, &host),
        Command::Sm(options) => sm::run(&options, &host),
        Command::Bench(options) => bench::run(&options, &host),
        Command::Doctor { json, program } => doctor::run(&host, json, program.first().map(OsString::as_os_str)),
        Command::Pages { folder, date } => pages::write(&folder, &date),
    };
    match done {
        Ok(text) => print(&text),
        Err(Failure { output, why, code }) => {
            print(&output);
            if !why.is_empty() {
                say(format_args!("{why}"));
            }
            ExitCode::from(code)
        }
    }
}

/// Reports a command line that does not parse, or prints the requested help. `softhca run` has its
/// own exit code for this, because other codes belong to its program.
fn refuse(error: &clap::Error) -> ExitCode {
    // The reader may have gone.
    let _ = error.print();
    match error.use_stderr() {
        false => ExitCode::SUCCESS,
        true if arguments::is_run(std::env::args_os()) => ExitCode::from(run::NOT_READY),
        true => ExitCode::from(NO_OPTIONS),
    }
}
