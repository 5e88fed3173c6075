//! The programs under test: the folder that `cargo xtask dist` fills.
//!
//! `SOFTHCA_DIST` names the folder. Without this variable it is `target/dist` of this workspace.
//! The suite never builds the programs. The principal type is [`Dist`].

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A complete softhca: `bin/softhca`, and in `lib/softhca` the C libraries, and the
/// libraries that programs preload.
#[derive(Debug, Clone)]
pub struct Dist {
    folder: PathBuf,
}

impl Dist {
    /// The dist at a known place.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The dist that the tests use.
    pub fn locate() -> Result<Self, String> {
        let folder = match std::env::var_os("SOFTHCA_DIST") {
            Some(folder) => PathBuf::from(folder),
            None => workspace_target().join("dist"),
        };
        let dist = Self::at(folder);
        if dist.softhca().is_file() && dist.library().is_file() {
            Ok(dist)
        } else {
            Err(format!("{} holds no softhca: run `cargo xtask dist` first", dist.folder.display()))
        }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The `softhca` program.
    pub fn softhca(&self) -> PathBuf {
        self.folder.join("bin/softhca")
    }

    /// The verbs library that programs load.
    pub fn library(&self) -> PathBuf {
        self.folder.join("lib/softhca/libibverbs.so.1")
    }

    /// The connection manager's library that programs load.
    pub fn rdmacm(&self) -> PathBuf {
        self.folder.join("lib/softhca/librdmacm.so.1")
    }

    /// The library that gives unmodified programs sockets over RDMA.
    pub fn sockets(&self) -> PathBuf {
        self.folder.join("lib/softhca/rsocket/librspreload.so")
    }

    /// The path redirector.
    pub fn redirector(&self) -> PathBuf {
        self.folder.join("lib/softhca/libsofthca_preload.so")
    }

    /// The library that makes programs' large memory shared.
    pub fn shared_memory(&self) -> PathBuf {
        self.folder.join("lib/softhca/libsofthca_shared.so")
    }

    /// This folder, if every user can enter it. Otherwise a copy at another place, which must not
    /// exist yet. The build tree may be in a home directory that other users cannot enter.
    pub fn for_every_user(&self, place: &Path) -> io::Result<Self> {
        let is_open = |folder: &Path| folder.metadata().is_ok_and(|data| data.permissions().mode() & 0o001 != 0);
        if self.folder.canonicalize()?.ancestors().all(is_open) { Ok(self.clone()) } else { self.copy_to(place) }
    }

    /// Copies the folder to another place, which must not exist yet. That a copied softhca works is
    /// also a promise to users.
    pub fn copy_to(&self, place: &Path) -> io::Result<Self> {
        copy(&self.folder, place)?;
        Ok(Self::at(place))
    }
}

/// Copies a file or a folder in a separate process. If this process wrote a program file itself, a
/// child that another thread forks could keep the file open, and then the program could not be
/// started ("text file busy").
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").args(["-R", "--preserve=mode"]).args([from, to]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{} cannot be copied", from.display()))) }
}

fn workspace_target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}
