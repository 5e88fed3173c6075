//! The programs that make packages. Each runs once, to its end. An error names the program and
//! contains its output.
//!
//! The programs run with the locale C and the time zone UTC, so packages do not depend on the
//! person who makes them. The principal type is [`Tool`].

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program with its arguments.
pub(crate) struct Tool {
    command: Command,
}

impl Tool {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        Self { command }
    }

    /// Sets the folder in which the program runs.
    pub(crate) fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command.args(words);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the program and ignores its output.
    pub(crate) fn run(self) -> Result<(), String> {
        self.output().map(drop)
    }

    /// Runs the program and returns its output.
    pub(crate) fn output(mut self) -> Result<String, String> {
        let name = self.command.get_program().display().to_string();
        let output = self.command.output().map_err(|error| format!("cannot run {name}: {error}; is it installed?"))?;
        if !output.status.success() {
            return Err(format!(
                "{name} failed ({}): {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            ));
        }
        String::from_utf8(output.stdout).map_err(|_| format!("{name} printed bytes that are not text"))
    }
}
