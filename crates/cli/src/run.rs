//! `softhca run`: runs a program on softhca as if the program itself had been started.
//!
//! It waits for the program, passes signals on, and ends with the program's exit code. It adds an
//! agent if none answers, the library path, the path redirector, the run directory, and at the end
//! the reasons for failures. It never reads the program's output. The principal function is
//! [`run`].

use std::collections::BTreeSet;
use std::env;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use crate::arguments::Run;
use crate::failure;
use crate::fault;
use crate::fault_counts::FaultCounts;
use crate::finding::Finding;
use crate::pair;
use crate::place::{self, Host};
use crate::preload::{self, Extras};
use crate::program::{Program, search_path};
use crate::ready::{self, Surroundings};
use crate::reasons::{self, ProgramEnd, Reasons};
use crate::shared_memory;
use crate::signals::{self, Caught};
use crate::start;
use crate::strict::Findings;
use engine::reason::say;
use rustix::process::{Pid, Signal, set_parent_process_death_signal};

/// The program ended with 0, and the strict mode has found something.
const FOUND: u8 = 123;
/// softhca could not do its part.
pub(crate) const NOT_READY: u8 = 125;
/// The program cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
const NOT_FOUND: u8 = 127;

/// The variable with this process's id. The path redirector ends the program when this process is
/// killed (`parent.rs` there).
const PARENT: &str = "SOFTHCA_PARENT";

/// Runs the program and returns the exit code.
pub(crate) fn run(run: &Run, host: &Host) -> ExitCode {
    match attempt(run, host) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            say(format_args!("{why}"));
            ExitCode::from(NOT_READY)
        }
    }
}

fn attempt(run: &Run, host: &Host) -> Result<u8, String> {
    if run.pair {
        return pair::run(run, host);
    }
    if let Some(parent) = run.parent {
        end_with(parent);
    }
    let program = run.command[0].to_string_lossy();
    if program.starts_with('-') {
        return Err(unknown_option(&program));
    }
    let faults = fault::of_run(&run.fault, env::var_os(abi::fault::VARIABLE).as_deref())?;
    ready::check(&Surroundings::of(host))?;
    let library = place::library_folder()?;
    let run_dir = place::run_dir_of(host, run.node.as_deref())?;
    // The connection is kept until the program has ended. While it exists, an agent does not exit
    // as idle.
    let agent = start::ensure(host, &run_dir, start::Wanted { link_layer: run.link_layer, transport: run.transport })?;
    let reasons = place::reasons(&run_dir).and_then(|folder| Reasons::new(&folder));
    let reasons = reasons.map_err(|error| format!("cannot store reasons for failures: {error}"))?;
    let findings = run.strict.then(|| place::reasons(&run_dir).and_then(|folder| Findings::new(&folder))).transpose();
    let findings = findings.map_err(|error| format!("cannot store findings: {error}"))?;
    let configured = || agent.ask("status").map(|status| status["shared_memory"] == true);
    let memory = shared_memory::wanted(run.memory(), env::var_os(shared_memory::VARIABLE).as_deref(), configured)?;
    let extras = Extras { sockets: run.sockets, shared_memory: shared_memory::is_shared(memory.as_deref()) };
    preload::check(&library, extras)?;
    let mut command = command(run, extras, &library, &run_dir, &reasons);
    command.envs(memory.map(|value| (shared_memory::VARIABLE, value)));
    command.envs(findings.as_ref().map(|findings| (engine::lint::VARIABLE, findings.file())));
    command.envs(faults.map(|faults| (abi::fault::VARIABLE, faults)));
    let file = Program::find(&run.command[0]);
    let unreached = file.unreached();
    if let Some(finding) = unreached.first().filter(|_| !run.quiet) {
        say(format_args!("{}", finding.sentence()));
    }
    let caught = Caught::new().map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let counts = (!run.quiet).then(|| FaultCounts::new(&agent));
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            reasons.forget();
            findings.map(|findings| findings.end(&BTreeSet::new()));
            return Ok(not_started(&file, &program, &error));
        }
    };
    let passing = caught.pass_on().map_err(|error| format!("cannot forward signals: {error}"))?;
    passing.add(Pid::from_child(&child));
    let status = passing.wait(&mut child).map_err(|error| format!("cannot wait for the program: {error}"))?;
    let asked = passing.asked();
    let code = exit_code(status);
    if status.code().is_some_and(|code| code != 0) && !run.quiet && unreached.is_empty() && !reasons.has_opened() {
        explain_failure(&file, extras, &library);
    }
    let opened = reasons.opened();
    let acted = counts.map(|counts| counts.told(&reasons.last().unwrap_or_default()));
    reasons.end(how_it_ended(status, asked), run.strict, run.quiet);
    failure::tell(&acted.unwrap_or_default());
    let found = findings.is_some_and(|findings| findings.end(&opened));
    Ok(if found && code == 0 { FOUND } else { code })
}

fn unknown_option(word: &str) -> String {
    format!(
        "unknown option {word}; see `softhca run --help`; to run a program whose name begins with -, give its path: \
        ./{word}"
    )
}

/// Says why the program did not start; returns the exit code.
fn not_started(file: &Program, program: &str, error: &io::Error) -> u8 {
    match file.obstacles().into_iter().find(Finding::is_failure) {
        Some(finding) => say(format_args!("{}", finding.sentence())),
        None => say(format_args!("{program}: {error}")),
    }
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// The program failed, and never reached softhca: says why, if its file or its libraries show it.
fn explain_failure(file: &Program, extras: Extras, library: &Path) {
    let libraries = file.libraries(library, &preload::libraries(library, extras));
    if let Some(finding) = file.obstacles().into_iter().chain(libraries).find(Finding::is_failure) {
        say(format_args!("{}", finding.sentence()));
    }
}

/// Makes this process, which is one side of a pair, end with the process `parent` that started both
/// sides.
fn end_with(parent: u32) {
    // If the kernel does not support this, and the pair's process is killed with SIGKILL, this side
    // continues.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    if rustix::process::getppid().map(Pid::as_raw_nonzero).is_none_or(|pid| pid.get().cast_unsigned() != parent) {
        // The parent has ended already.
        std::process::exit(NOT_READY.into());
    }
}

fn command(run: &Run, extras: Extras, library: &Path, run_dir: &Path, reasons: &Reasons) -> Command {
    let mut command = Command::new(&run.command[0]);
    command.args(&run.command[1..]);
    command.env(place::LIBRARY_PATH, search_path(library, env::var_os(place::LIBRARY_PATH)));
    preload::add(&mut command, library, extras, |name| env::var_os(name));
    // The path is absolute, because the program and its children may change their directory.
    command.env(engine::rundir::VARIABLE, std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.to_owned()));
    command.env(reasons::VARIABLE, reasons.file());
    command.env(PARENT, std::process::id().to_string());
    command
}

/// How a program has ended. `asked`: a signal has asked it to end.
fn how_it_ended(status: ExitStatus, asked: bool) -> ProgramEnd {
    match (status.code(), status.signal()) {
        (Some(0), _) => ProgramEnd::Succeeded,
        (None, Some(signal)) if signals::asks_to_end(signal) => ProgramEnd::Stopped,
        // A shell reports a program that was ended by a signal in this way.
        (Some(code), _) if asked || signals::asks_to_end(code - 128) => ProgramEnd::Stopped,
        _ => ProgramEnd::Failed,
    }
}

/// The exit code that reports how a program has ended.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::{exit_code, how_it_ended, search_path};
    use crate::reasons::ProgramEnd;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::ExitStatus;

    #[test]
    fn the_exit_code_is_the_programs() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
    }

    #[test]
    fn a_program_that_is_asked_to_end_has_not_failed() {
        for (status, asked, end) in [
            (0, false, ProgramEnd::Succeeded),
            (0, true, ProgramEnd::Succeeded),
            (1 << 8, false, ProgramEnd::Failed),
            (1 << 8, true, ProgramEnd::Stopped),
            (143 << 8, false, ProgramEnd::Stopped),
            (15, false, ProgramEnd::Stopped),
            (2, false, ProgramEnd::Stopped),
            (6, true, ProgramEnd::Failed),
            (9, false, ProgramEnd::Failed),
            (137 << 8, false, ProgramEnd::Failed),
        ] {
            assert_eq!(how_it_ended(ExitStatus::from_raw(status), asked), end, "{status} {asked}");
        }
    }

    #[test]
    fn our_library_comes_first() {
        assert_eq!(search_path(Path::new("/a"), None), "/a");
        assert_eq!(search_path(Path::new("/a"), Some("".into())), "/a");
        assert_eq!(search_path(Path::new("/a"), Some("/b:/c".into())), "/a:/b:/c");
    }
}
