//! `cargo xtask dist`: the folder that a user copies, with nothing in it that depends on where it lies.
//!
//! `target/dist/bin/softhca` finds `../lib/softhca/libibverbs.so.1` and the path redirector relative to itself. The folder is made beside the old
//! one and takes its place at once, so that programs that run from it never see half of it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use suite::Dist;

use crate::workspace::Workspace;

/// The library's real name; programs ask for `libibverbs.so.1`, which links to it.
const LIBRARY: &str = "libibverbs.so.1.14.0";

/// The path redirector, which `softhca run` loads by this name.
const REDIRECTOR: &str = "libsofthca_preload.so";

/// What is built for the folder.
const PACKAGES: &[&str] = &["softhca-cli", "libibverbs", "softhca-preload"];

/// Builds in release mode and lays out the folder.
pub(crate) fn run(workspace: &Workspace) -> Result<Dist, String> {
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let status = workspace
        .cargo(&["build", "--release"])
        .args(packages)
        .status()
        .map_err(|error| format!("cargo build: {error}"))?;
    if !status.success() {
        return Err("the release build failed".to_owned());
    }
    let folder = workspace.target().join("dist");
    lay_out(workspace, &folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(Dist::at(folder))
}

fn lay_out(workspace: &Workspace, folder: &Path) -> io::Result<()> {
    let release = workspace.target().join("release");
    let fresh = workspace.target().join(format!("dist.{}", std::process::id()));
    let library = fresh.join("lib/softhca");
    fs::create_dir_all(fresh.join("bin"))?;
    fs::create_dir_all(&library)?;
    fs::copy(release.join("softhca"), fresh.join("bin/softhca"))?;
    fs::copy(release.join("libibverbs.so"), library.join(LIBRARY))?;
    symlink(LIBRARY, library.join("libibverbs.so.1"))?;
    fs::copy(release.join(REDIRECTOR), library.join(REDIRECTOR))?;
    if folder.exists() {
        renameat_with(CWD, &fresh, CWD, folder, RenameFlags::EXCHANGE)?;
        fs::remove_dir_all(&fresh)
    } else {
        match fs::rename(&fresh, folder) {
            // Another run has laid it out meanwhile, from the same build.
            Err(_) if folder.exists() => fs::remove_dir_all(&fresh),
            done => done,
        }
    }
}
