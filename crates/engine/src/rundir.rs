//! Where the agent and its clients meet: the run directory.
//!
//! Not the directory's content (the agent makes that), only its name and the check that it is ours. The order is
//! `$SOFTHCA_DIR`, then `$XDG_RUNTIME_DIR/softhca…`, then `/tmp/softhca-<uid>…`. Default names end in the inode of the network
//! namespace, because unix sockets cross namespaces and agents must not.

use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The environment variable that names the run directory.
pub const VARIABLE: &str = "SOFTHCA_DIR";

/// The run directory that this process would use; it need not exist.
#[must_use]
pub fn default() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    if let Some(dir) = set(VARIABLE) {
        return PathBuf::from(dir);
    }
    let namespace = fs::metadata("/proc/self/ns/net").map(|meta| format!("-n{}", meta.ino())).unwrap_or_default();
    match set("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join(format!("softhca{namespace}")),
        None => PathBuf::from(format!("/tmp/softhca-{}{namespace}", rustix::process::getuid().as_raw())),
    }
}

/// The socket of HCA number `device` in `dir`: a program's `/dev/infiniband/uverbsN`.
#[must_use]
pub fn node(dir: &Path, device: u32) -> PathBuf {
    dir.join(format!("uverbs{device}"))
}

/// The socket for questions about the agent itself.
#[must_use]
pub fn admin(dir: &Path) -> PathBuf {
    dir.join("admin")
}

/// The mirror of `/sys` that the agent keeps.
#[must_use]
pub fn sysfs(dir: &Path) -> PathBuf {
    dir.join("sys")
}

/// Makes `dir` with mode 0700 where it does not exist, and refuses one that somebody else could have prepared.
///
/// # Errors
/// The directory cannot be made, is not a directory, or belongs to another user.
pub fn prepare(dir: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = fs::symlink_metadata(dir)?;
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", dir.display())));
    if !meta.is_dir() {
        return refuse("is not a directory");
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return refuse("belongs to another user; set SOFTHCA_DIR to a directory of yours");
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("can be written by other users; chmod it to 0700");
    }
    Ok(())
}
