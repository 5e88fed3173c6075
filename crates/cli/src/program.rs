//! Whether a program can run on softhca: found, executable, for this machine, dynamically linked,
//! without privileges, and with matching libraries.
//!
//! This module reads files and starts nothing. `softhca doctor -- PROGRAM` prints all findings.
//! `softhca run` prints what is known before the program starts ([`Program::obstacles`]), and what
//! explains that it did not start ([`Program::libraries`]). The principal type is [`Program`].

mod blocks;
mod cache;
mod elf;
mod find;
mod libraries;
mod privileges;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::finding::Finding;
use crate::place;
use elf::{Image, Object};
use find::Found;

const WHAT: &str = "program";

/// A function of the verbs API. A program defines it itself if libibverbs was linked into it. Some
/// programs define it to load [`LIBRARY`] at the first call, as those with Rust's rdma-mummy-sys.
const OWN_VERBS: &str = "ibv_get_device_list";
/// The library of the verbs API.
const LIBRARY: &str = "libibverbs.so.1";

/// A program that was looked up, and the file that would be started for it.
#[derive(Debug)]
pub(crate) struct Program {
    /// The program's file, or the interpreter at the end of its `#!` lines. If there is no file,
    /// the reason.
    file: Result<Found, Finding>,
}

impl Program {
    /// Looks for a program as `softhca run` starts it: in `PATH`, unless its name has a slash.
    pub(crate) fn find(name: &OsStr) -> Self {
        Self { file: find::program(name) }
    }

    /// What prevents the program from using softhca, as far as its file and the file's header show.
    /// Empty if nothing does.
    pub(crate) fn obstacles(&self) -> Vec<Finding> {
        match &self.file {
            Err(why) => vec![why.clone()],
            Ok(found) => match elf::read(&found.path) {
                Ok(image) => of_image(&found.path, &image),
                Err(why) => vec![not_read(&found.path, &why)],
            },
        }
    }

    /// Why the program does not use softhca although it starts. Empty if it uses softhca or does
    /// not start.
    pub(crate) fn unreached(&self) -> Vec<Finding> {
        let Ok(found) = &self.file else { return Vec::new() };
        match elf::read(&found.path) {
            Ok(image @ (Image::Static { .. } | Image::Dynamic(_))) => {
                of_image(&found.path, &image).into_iter().filter(Finding::is_failure).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What is wrong with the libraries that the program loads under `softhca run`, with
    /// `preloaded` before all others.
    pub(crate) fn libraries(&self, folder: &Path, preloaded: &[PathBuf]) -> Vec<Finding> {
        let Ok(found) = &self.file else { return Vec::new() };
        match elf::read(&found.path) {
            Ok(Image::Dynamic(object)) => libraries::check(&object, folder, preloaded),
            _ => Vec::new(),
        }
    }

    /// All findings about the program; at least one.
    pub(crate) fn told(&self, folder: &Path, preloaded: &[PathBuf]) -> Vec<Finding> {
        let mut findings = self.obstacles();
        findings.extend(self.libraries(folder, preloaded));
        if !findings.is_empty() {
            return findings;
        }
        let Ok(found) = &self.file else { return findings };
        let script = found.script.as_ref().map(|script| format!("{} is a script; ", script.display()));
        let loads = match elf::read(&found.path) {
            Ok(Image::Dynamic(object)) if libraries::uses(&object, folder, place::LIBRARY) => {
                format!("loads {}", folder.join(place::LIBRARY).display())
            }
            _ => "does not link libibverbs; programs that it starts, and libraries that it loads later, use softhca"
                .to_owned(),
        };
        let found = format!("{}{} {loads}", script.unwrap_or_default(), found.path.display());
        vec![Finding::ok(WHAT, found)]
    }
}

/// What prevents the library itself from being loaded on this machine.
pub(crate) fn library(path: &Path, folder: &Path) -> Vec<Finding> {
    match elf::read(path) {
        Ok(Image::Dynamic(object)) => libraries::check(&object, folder, &[]),
        Ok(_) => vec![Finding::fail(WHAT, format!("{} is not a library", path.display()), "reinstall softhca")],
        Err(why) => vec![not_read(path, &why)],
    }
}

fn not_read(path: &Path, why: &str) -> Finding {
    Finding::fail(
        WHAT,
        format!("cannot read {}: {why}", path.display()),
        "give the path of a program that you can read",
    )
}

fn of_image(path: &Path, image: &Image) -> Vec<Finding> {
    let shown = path.display();
    let fail = |found: String, next: &str| vec![Finding::fail(WHAT, found, next)];
    let mut findings = match image {
        Image::Other => fail(
            format!("{shown} is neither an ELF program nor a script with a #! line"),
            "give it a first line such as #!/bin/sh, or name its interpreter: softhca run -- sh FILE",
        ),
        Image::Foreign(kind) => fail(
            format!("{shown} is {kind}; softhca's libraries are for 64-bit x86 only"),
            "build the program for x86-64",
        ),
        Image::Static { go: true } => fail(
            format!(
                "{shown} is a statically linked Go program: it loads no libibverbs.so.1, and softhca cannot reach it"
            ),
            "build it with CGO_ENABLED=1 and link libibverbs dynamically",
        ),
        Image::Static { go: false } => fail(
            format!("{shown} is statically linked: it loads no libibverbs.so.1, and softhca cannot reach it"),
            "link it dynamically (without -static)",
        ),
        Image::Dynamic(object) => of_object(path, object),
    };
    findings.extend(privileges::check(path));
    findings
}

fn of_object(path: &Path, object: &Object) -> Vec<Finding> {
    let shown = path.display();
    let mut findings = Vec::new();
    if let Some(loader) = object.interpreter.as_deref() {
        let musl = loader.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-musl"));
        if musl {
            let found = format!(
                "{shown} was built for musl (its loader is {}); softhca's libraries need glibc",
                loader.display()
            );
            findings.push(Finding::fail(WHAT, found, "build it on a system with glibc 2.34 or newer"));
        } else if !loader.exists() {
            let found = format!("{shown} needs the loader {}, which does not exist", loader.display());
            findings.push(Finding::fail(
                WHAT,
                found,
                "build the program on this system, or install the C library that provides it",
            ));
        }
    }
    if object.defines_function(OWN_VERBS) && !object.has_constant(LIBRARY) {
        let found = format!(
            "{shown} has libibverbs linked in statically (it defines {OWN_VERBS}), and softhca cannot replace it"
        );
        findings.push(Finding::fail(WHAT, found, "link libibverbs dynamically (-libverbs, without libibverbs.a)"));
    } else if object.go {
        let found =
            format!("{shown} is a Go program: its C code uses softhca, but its Go code sees the host's /sys and /dev");
        findings.push(Finding::warn(
            WHAT,
            found,
            "nothing to do if it finds devices through libibverbs (docs/paths.md)",
        ));
    }
    findings
}

/// `LD_LIBRARY_PATH` as `softhca run` sets it: the library's folder, then the folders that were
/// searched before.
pub(crate) fn search_path(folder: &Path, before: Option<OsString>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}
