//! The run directory: it has the sockets on which an agent serves its clients.
//!
//! This file decides the name of the directory and whether it can be trusted. The agent makes the
//! content. [`default`] has the order of the search. Default names end in the inode of the network
//! namespace, because unix sockets cross namespaces and agents must not. A directory that no one
//! named explicitly is trusted only if it belongs to root or to this user and no other user can
//! write it: in `/tmp` any user could have prepared it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;

/// The environment variable that names the run directory.
pub const VARIABLE: &str = "SOFTHCA_DIR";

/// The run directory that this process uses; it need not exist. The order: `$SOFTHCA_DIR`; the
/// user's own directory, if an agent serves it; the system's directory, if an agent serves it; the
/// user's own directory, where an agent must then be started.
#[must_use]
pub fn default() -> PathBuf {
    if let Some(dir) = chosen() {
        return dir;
    }
    let (own, everybodys) = (private(&[]), system());
    let answers = |dir: &Path| is_trusted(dir) && is_served(&admin(dir));
    if !answers(&own) && answers(&everybodys) { everybodys } else { own }
}

/// The run directory that the environment names. It may belong to any user. A relative path is
/// resolved against the current directory of this process, because other processes have other ones.
#[must_use]
pub fn chosen() -> Option<PathBuf> {
    set(VARIABLE).map(PathBuf::from).map(|dir| std::path::absolute(&dir).unwrap_or(dir))
}

/// The user's own run directory: `$XDG_RUNTIME_DIR/softhca…`, else `/tmp/softhca-<uid>…`. An agent
/// with its own addresses is a host of its own, so the addresses are part of the name.
#[must_use]
pub fn private(addresses: &[IpAddr]) -> PathBuf {
    let addresses: String = addresses.iter().map(|address| format!("-{address}")).collect();
    let name = namespace() + &addresses;
    // The XDG Base Directory Specification says to ignore relative paths.
    match set("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join(format!("softhca{name}")),
        None => PathBuf::from(format!("/tmp/softhca-{}{name}", rustix::process::getuid().as_raw())),
    }
}

/// The run directory of the agent that serves every user of this machine.
#[must_use]
pub fn system() -> PathBuf {
    PathBuf::from(format!("/run/softhca{}", namespace()))
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn namespace() -> String {
    fs::metadata("/proc/self/ns/net").map(|meta| format!("-n{}", meta.ino())).unwrap_or_default()
}

/// The socket of HCA number `device` in `dir`: a program's `/dev/infiniband/uverbsN`.
#[must_use]
pub fn node(dir: &Path, device: u32) -> PathBuf {
    dir.join(format!("uverbs{device}"))
}

/// The socket for requests to the agent itself.
#[must_use]
pub fn admin(dir: &Path) -> PathBuf {
    dir.join("admin")
}

/// The agent's mirror of `/sys`.
#[must_use]
pub fn sysfs(dir: &Path) -> PathBuf {
    dir.join("sys")
}

/// Whether a process listens at `node`, without a connection to it. A stream socket gets EPROTOTYPE
/// from a living listener of another type, and ECONNREFUSED if the listener has gone.
#[must_use]
pub fn is_served(node: &Path) -> bool {
    match UnixStream::connect(node) {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => true,
        // The path is too long for a socket address, so this cannot be known here. The open call
        // reports it.
        Err(error) => error.kind() == ErrorKind::InvalidInput,
    }
}

/// Whether a default run directory may be used: it belongs to root or to this user, and no other
/// user can write it.
#[must_use]
pub fn is_trusted(dir: &Path) -> bool {
    let safe = |meta: fs::Metadata| {
        let ours = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
        meta.is_dir() && ours && meta.mode() & 0o022 == 0
    };
    fs::symlink_metadata(dir).is_ok_and(safe)
}

/// Adds the failed action, the path and, if known, the next step to an error.
pub fn at(action: &str, path: &Path) -> impl FnOnce(io::Error) -> io::Error + use<> {
    let what = format!("cannot {action} {}", path.display());
    move |error| {
        let next = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "; free some space there, or set SOFTHCA_DIR to a directory on another file system"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "; set SOFTHCA_DIR to a directory that you can write to"
            }
            _ => "",
        };
        io::Error::new(error.kind(), format!("{what}: {}{next}", shm::denied::told(&error)))
    }
}

/// Creates `dir` with mode 0700 if it does not exist. Refuses a directory that another user could
/// have prepared.
///
/// # Errors
/// The directory cannot be made, is not a directory, or belongs to another user.
pub fn prepare(dir: &Path) -> io::Result<()> {
    prepare_with(dir, 0o700)
}

/// As [`prepare`], for an agent that serves every user: all users may enter, and only its own user
/// may write.
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_for_everybody(dir: &Path) -> io::Result<()> {
    prepare_with(dir, 0o755)?;
    // The mode of a new directory depends on the umask, and an existing directory may have been
    // private.
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(at("chmod", dir))
}

fn prepare_with(dir: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().recursive(true).mode(mode).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at("create", dir)(error)),
        _ => {}
    }
    let meta = fs::symlink_metadata(dir).map_err(at("access", dir))?;
    let refuse = |why: &str| Err(io::Error::new(ErrorKind::PermissionDenied, format!("{} {why}", dir.display())));
    if !meta.is_dir() {
        return refuse("is not a directory");
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return refuse("belongs to another user; set SOFTHCA_DIR to a directory that you own");
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("is writable by other users; run chmod 0700 on it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn each_address_is_a_host_of_its_own() {
        let address = |last| IpAddr::from([127, 0, 0, last]);
        let (all, one, two) = (private(&[]), private(&[address(2)]), private(&[address(2), address(3)]));
        assert_eq!(one.as_os_str().to_str(), Some(format!("{}-127.0.0.2", all.display()).as_str()));
        assert_eq!(two.as_os_str().to_str(), Some(format!("{}-127.0.0.3", one.display()).as_str()));
        assert!(system().starts_with("/run"));
    }

    #[test]
    fn a_directory_that_others_can_replace_is_not_trusted() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let dir = scratch.path().join("run");
        assert!(!is_trusted(&dir), "it is not there");
        prepare_for_everybody(&dir).expect("ready");
        assert_eq!(fs::metadata(&dir).expect("made").mode() & 0o777, 0o755);
        assert!(is_trusted(&dir));
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).expect("linked");
        assert!(!is_trusted(&link), "anybody could have made a link to a directory of ours");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).expect("opened");
        assert!(!is_trusted(&dir));
        assert!(prepare(&dir).expect_err("refused").to_string().contains("other users"));
    }

    #[test]
    fn an_error_names_the_path_and_what_to_do() {
        for (errno, words) in [
            (Errno::NOSPC, "free some space"),
            (Errno::DQUOT, "free some space"),
            (Errno::ACCESS, "that you can write to"),
            (Errno::ROFS, "that you can write to"),
            (Errno::MFILE, "ulimit -n"),
        ] {
            let text = at("write", Path::new("/x/y"))(errno.into()).to_string();
            assert!(text.starts_with("cannot write /x/y: ") && text.contains(words), "{text}");
        }
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join("file");
        fs::write(&file, "").expect("written");
        let text = prepare(&file.join("run")).expect_err("a file is no directory").to_string();
        assert!(text.starts_with(&format!("cannot create {}", file.join("run").display())), "{text}");
    }

    #[test]
    fn a_dead_socket_serves_nobody() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let node = node(scratch.path(), 0);
        assert!(!is_served(&node));
        let listener = UnixListener::bind(&node).expect("bound");
        assert!(is_served(&node));
        drop(listener);
        assert!(!is_served(&node));
    }
}
