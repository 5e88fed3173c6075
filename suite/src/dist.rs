//! Where the programs under test lie: the folder that `cargo xtask dist` lays out.
//!
//! `SOFTHCA_DIST` names it; without that it is `target/dist` of this workspace. The suite never builds it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A laid out softhca: `bin/softhca`, and in `lib/softhca` the libraries of C programs, the path redirector and `librspreload.so`.
#[derive(Debug, Clone)]
pub struct Dist {
    folder: PathBuf,
}

impl Dist {
    /// A dist at a known place.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The dist that the tests are to use.
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

    /// The verbs library as programs load it.
    pub fn library(&self) -> PathBuf {
        self.folder.join("lib/softhca/libibverbs.so.1")
    }

    /// The connection manager's library as programs load it.
    pub fn rdmacm(&self) -> PathBuf {
        self.folder.join("lib/softhca/librdmacm.so.1")
    }

    /// Sockets over RDMA for unmodified programs.
    pub fn sockets(&self) -> PathBuf {
        self.folder.join("lib/softhca/rsocket/librspreload.so")
    }

    /// The path redirector.
    pub fn redirector(&self) -> PathBuf {
        self.folder.join("lib/softhca/libsofthca_preload.so")
    }

    /// Copies the folder to another place, which must not exist yet. That a copy works is itself a promise.
    pub fn copy_to(&self, place: &Path) -> io::Result<Self> {
        copy(&self.folder, place)?;
        Ok(Self::at(place))
    }
}

/// Copies a file or a folder by a process of its own. A program that this one had open for writing could not be started
/// while another thread's child has it open still ("text file busy").
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").args(["-R", "--preserve=mode"]).args([from, to]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{} cannot be copied", from.display()))) }
}

fn workspace_target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
    }
}
