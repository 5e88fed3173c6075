//! How a command ends: its output, or why it failed. The principal type is [`Failure`].

use std::io::Write;
use std::process::ExitCode;

use engine::reason::say;

/// The exit code for a command line that does not parse.
pub(crate) const NO_OPTIONS: u8 = 2;

/// Why a command failed, and the output that it prints nevertheless.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) output: String,
    pub(crate) why: String,
    /// The exit code.
    pub(crate) code: u8,
}

impl Failure {
    /// A failure caused by the options alone, on any machine.
    pub(crate) fn of_options(why: impl std::fmt::Display) -> Self {
        Self { code: NO_OPTIONS, ..Self::from(why) }
    }
}

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(why: T) -> Self {
        Self { output: String::new(), why: why.to_string(), code: 1 }
    }
}

/// Writes to standard error. If standard error is full or closed, the command continues.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints a command's output. A reader that has gone (`softhca show | head`) is not a failure.
pub(crate) fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            say(format_args!("cannot write standard output: {}", shm::denied::told(&error)));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
