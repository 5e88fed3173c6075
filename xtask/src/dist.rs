//! `cargo xtask dist`: makes the folder that users copy. Nothing in it depends on its place.
//!
//! `target/dist/bin/softhca` finds `../lib/softhca/` relative to itself. This folder contains the
//! three C libraries, the two preloaded libraries, and `rsocket/librspreload.so`. The command makes
//! the new folder beside the old one and then replaces the old one in one step, so that running
//! programs never see half of it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use harness::Dist;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::workspace::Workspace;

/// For each C library: the name that cargo uses, the real name, and the name that programs are
/// linked with. The other two names are links to the real one. Programs that load the library
/// themselves (NCCL, brpc, MVAPICH2) try the first name first, and the system may have it, too.
const LIBRARIES: &[(&str, &str, &str)] = &[
    ("libibverbs.so", "libibverbs.so.1.18.0", "libibverbs.so.1"),
    ("librdmacm.so", "librdmacm.so.1.5.0", "librdmacm.so.1"),
    ("libibumad.so", "libibumad.so.3.2.0", "libibumad.so.3"),
];

/// The path redirector, and the library for shared memory, which `softhca run` loads by these
/// names.
const PRELOADED: &[&str] = &["libsofthca_preload.so", "libsofthca_shared.so"];

/// Sockets over RDMA for unmodified programs. It has a folder of its own, as in Debian's packages.
const SOCKETS: &str = "librspreload.so";

/// The packages to build for the folder.
const PACKAGES: &[&str] = &[
    "softhca-cli",
    "libibverbs",
    "librdmacm",
    "libibumad",
    "softhca-preload",
    "softhca-shared-memory",
    "softhca-rspreload",
];

/// Builds in release mode and fills the folder.
pub(crate) fn run(workspace: &Workspace) -> Result<Dist, String> {
    Build { cargo: start_cargo(workspace, Stdio::inherit())?, log: None }.finish(workspace)
}

/// A release build that runs while the caller does other work.
pub(crate) struct Build {
    cargo: Child,
    /// Where its messages are. `None` if the user sees them.
    log: Option<PathBuf>,
}

impl Build {
    /// Starts the build. Link-time optimisation uses one processor for minutes, so other builds may
    /// run beside it.
    pub(crate) fn start(workspace: &Workspace) -> Result<Self, String> {
        let log = workspace.target().join("dist.log");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        Ok(Self { cargo: start_cargo(workspace, file.into())?, log: Some(log) })
    }

    /// Waits for the build, and fills the folder.
    pub(crate) fn finish(mut self, workspace: &Workspace) -> Result<Dist, String> {
        let status = self.cargo.wait().map_err(|error| format!("cargo build: {error}"))?;
        if !status.success() {
            let messages = self.log.and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default();
            return Err(format!("{messages}the release build failed"));
        }
        let folder = workspace.target().join("dist");
        lay_out(workspace, &folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Dist::at(folder))
    }
}

fn start_cargo(workspace: &Workspace, messages: Stdio) -> Result<Child, String> {
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let mut cargo = workspace.cargo(&["build", "--release"]);
    cargo.args(packages).stdin(Stdio::null()).stderr(messages);
    cargo.spawn().map_err(|error| format!("cargo build: {error}"))
}

fn lay_out(workspace: &Workspace, folder: &Path) -> io::Result<()> {
    let release = workspace.target().join("release");
    let fresh = workspace.target().join(format!("dist.{}", std::process::id()));
    let library = fresh.join("lib/softhca");
    fs::create_dir_all(fresh.join("bin"))?;
    fs::create_dir_all(library.join("rsocket"))?;
    fs::copy(release.join("softhca"), fresh.join("bin/softhca"))?;
    for (built, real, asked) in LIBRARIES {
        fs::copy(release.join(built), library.join(real))?;
        symlink(real, library.join(asked))?;
        symlink(real, library.join(built))?;
    }
    for name in PRELOADED {
        fs::copy(release.join(name), library.join(name))?;
    }
    fs::copy(release.join(SOCKETS), library.join("rsocket").join(SOCKETS))?;
    if folder.exists() {
        renameat_with(CWD, &fresh, CWD, folder, RenameFlags::EXCHANGE)?;
        fs::remove_dir_all(&fresh)
    } else {
        match fs::rename(&fresh, folder) {
            // Another run has made the folder meanwhile, from the same build.
            Err(_) if folder.exists() => fs::remove_dir_all(&fresh),
            done => done,
        }
    }
}
