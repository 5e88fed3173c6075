//! Finds the file that a name stands for, as `execvp` does, and follows `#!` lines to the program
//! that reads the script.
//!
//! This module does not parse the program's file; [`super::elf`] does. The principal type is
//! [`Found`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::WHAT;
use crate::finding::Finding;

/// The folders that `execvp` searches without `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// How many `#!` lines the kernel follows.
const DEPTH: usize = 5;

/// The bytes at the start of a file in which the kernel looks for a `#!` line.
const LINE: u64 = 256;

/// An executable file that is not a script.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// The script whose interpreter the file is.
    pub(crate) script: Option<PathBuf>,
}

/// The program of this name, or the interpreter of the script of this name.
pub(super) fn program(name: &OsStr) -> Result<Found, Finding> {
    let mut path = in_path(name)?;
    let mut script = None;
    for _ in 0..=DEPTH {
        let Some(line) = first_line(&path) else { return Ok(Found { path, script }) };
        let next = interpreter(&path, &line)?;
        script.get_or_insert(path);
        path = next;
    }
    let script = script.unwrap_or(path);
    let found =
        format!("{}: more than {DEPTH} scripts in a row name another script in their #! line", script.display());
    Err(Finding::fail(WHAT, found, "name a program in the first line, not another script"))
}

/// The file that a name stands for: the path itself if it has a slash, else the first executable
/// file of this name in `PATH`.
fn in_path(name: &OsStr) -> Result<PathBuf, Finding> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        executable(&path)?;
        return Ok(path);
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut refused = None;
    for folder in env::split_paths(&folders) {
        // An empty entry stands for the current folder.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let path = folder.join(name);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(why) if path.is_file() => refused = refused.or(Some(why)),
            Err(_) => {}
        }
    }
    let shown = name.to_string_lossy();
    Err(refused.unwrap_or_else(|| {
        let here = if Path::new(name).is_file() {
            format!("give its path: ./{shown}")
        } else {
            "install it, or give its path".to_owned()
        };
        Finding::fail(WHAT, format!("{shown} was not found in PATH ({})", folders.to_string_lossy()), here)
    }))
}

/// Whether `execve` accepts this file.
fn executable(path: &Path) -> Result<(), Finding> {
    let shown = path.display();
    let meta =
        fs::metadata(path).map_err(|error| Finding::fail(WHAT, format!("{shown}: {error}"), "check the path"))?;
    if meta.is_dir() {
        return Err(Finding::fail(WHAT, format!("{shown} is a directory"), "name a program in it"));
    }
    if !meta.is_file() {
        return Err(Finding::fail(WHAT, format!("{shown} is not a regular file"), "name a program"));
    }
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).map_err(|errno| {
        Finding::fail(WHAT, format!("{shown} cannot be executed: {errno}"), format!("chmod +x {shown}"))
    })
}

/// The first line of a script, without `#!`.
fn first_line(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LINE).read_to_end(&mut bytes).ok()?;
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    Some(line.to_vec())
}

/// The program that a script's first line names. If this is `env`, the program that `env` looks up.
fn interpreter(script: &Path, line: &[u8]) -> Result<PathBuf, Finding> {
    let shown = script.display();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let of = |word: &[u8]| OsString::from_vec(word.to_vec());
    let Some(first) = words.next().map(of) else {
        let found = format!("{shown}: its #! line names no interpreter");
        return Err(Finding::fail(WHAT, found, format!("give {shown} a first line such as #!/bin/sh")));
    };
    if line.ends_with(b"\r") {
        let found = format!("{shown}: its #! line ends in CR LF, and the kernel treats the CR as part of the name");
        return Err(Finding::fail(WHAT, found, format!("sed -i 's/\\r$//' {shown}")));
    }
    let correct = |why: Finding| {
        let found = format!("{shown} is a script, and its interpreter cannot be executed: {}", why.found);
        Finding::fail(WHAT, found, format!("install the interpreter, or correct the first line of {shown}"))
    };
    let path = PathBuf::from(&first);
    executable(&path).map_err(correct)?;
    let is_env = path.file_name().is_some_and(|name| name == "env");
    let is_name = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    match words.find(is_name).filter(|_| is_env) {
        Some(name) => in_path(&of(name)).map_err(correct),
        None => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::program;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn script(path: &Path, text: &str) {
        fs::write(path, text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("changed");
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script");
        for (line, expected) in [
            ("#!/bin/sh", Ok("/bin/sh")),
            ("#! /bin/sh -e", Ok("/bin/sh")),
            ("#!/usr/bin/env sh", Ok("/sh")),
            ("#!/usr/bin/env -S A=1 sh -e", Ok("/sh")),
            ("#!/no/such/sh", Err("/no/such/sh")),
            ("#!/usr/bin/env no-such-sh", Err("no-such-sh")),
            ("#!/bin/sh\r", Err("CR LF")),
            ("#!  ", Err("names no interpreter")),
        ] {
            script(&path, &format!("{line}\nexit 0\n"));
            match (program(path.as_os_str()), expected) {
                (Ok(found), Ok(end)) => {
                    assert!(found.path.to_string_lossy().ends_with(end), "{line}: {found:?}");
                    assert_eq!(found.script.as_deref(), Some(path.as_path()));
                }
                (Err(why), Err(word)) => assert!(why.found.contains(word), "{line}: {why:?}"),
                (found, _) => panic!("{line}: {found:?}"),
            }
        }
        // A script that is its own interpreter would be followed for ever.
        script(&path, &format!("#!{}\n", path.display()));
        assert!(program(path.as_os_str()).expect_err("endless").found.contains("#! line"));
    }

    #[test]
    fn errors_of_the_program_search_name_the_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("plain");
        fs::write(&plain, "x").expect("written");
        for (name, word, next) in [
            (folder.path().to_owned(), "is a directory", "name a program"),
            (folder.path().join("none"), "No such file", "check"),
            (plain, "cannot be executed", "chmod +x"),
            ("no-such-program-anywhere".into(), "was not found in PATH", "install"),
        ] {
            let why = program(OsStr::new(&name)).expect_err("refused");
            assert!(why.found.contains(word) && why.found.contains(name.to_str().expect("plain")), "{why:?}");
            assert!(why.next.as_deref().is_some_and(|said| said.contains(next)), "{why:?}");
        }
    }
}
