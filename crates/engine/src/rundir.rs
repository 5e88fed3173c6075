//! Where the agent and its clients meet: the run directory.
//!
//! Not the directory's content (the agent makes that), only its name and whether it may be believed. [`default`] tells the
//! order in which one is looked for. Default names end in the inode of the network namespace, because unix sockets cross
//! namespaces and agents must not. What nobody named explicitly is believed only if it belongs to root or to this user and
//! nobody else can write it: in `/tmp` anybody could have prepared it.

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

/// The run directory that this process uses; it need not exist. The order: `$SOFTHCA_DIR`; the user's own, if an agent
/// serves it; the system's, if an agent serves it; the user's own, where an agent has to be started.
#[must_use]
pub fn default() -> PathBuf {
    if let Some(dir) = chosen() {
        return dir;
    }
    let (own, everybodys) = (private(&[]), system());
    let answers = |dir: &Path| is_trusted(dir) && is_served(&admin(dir));
    if !answers(&own) && answers(&everybodys) { everybodys } else { own }
}

/// The run directory that somebody named for this process; such a one may belong to anybody. A relative path is meant from where
/// this process stands now: others stand elsewhere.
#[must_use]
pub fn chosen() -> Option<PathBuf> {
    set(VARIABLE).map(PathBuf::from).map(|dir| std::path::absolute(&dir).unwrap_or(dir))
}

/// The user's own run directory: `$XDG_RUNTIME_DIR/softhca…`, else `/tmp/softhca-<uid>…`. An agent with addresses of its own
/// is a host of its own, and so they are part of the name.
#[must_use]
pub fn private(addresses: &[IpAddr]) -> PathBuf {
    let addresses: String = addresses.iter().map(|address| format!("-{address}")).collect();
    let name = namespace() + &addresses;
    // The XDG Base Directory Specification has relative paths ignored.
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

/// Whether somebody listens at `node`, without connecting: a stream socket is told EPROTOTYPE by a living listener of another
/// type, and ECONNREFUSED by the name of a dead one.
#[must_use]
pub fn is_served(node: &Path) -> bool {
    match UnixStream::connect(node) {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => true,
        // Too long for a socket address: not known here; opening says.
        Err(error) => error.kind() == ErrorKind::InvalidInput,
    }
}

/// Whether a run directory may be used that nobody named: it is root's or ours, and nobody else can write it.
#[must_use]
pub fn is_trusted(dir: &Path) -> bool {
    let safe = |meta: fs::Metadata| {
        let ours = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
        meta.is_dir() && ours && meta.mode() & 0o022 == 0
    };
    fs::symlink_metadata(dir).is_ok_and(safe)
}

/// Names what failed on which path, and what to do next where that can be known.
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

/// Makes `dir` with mode 0700 where it does not exist, and refuses one that somebody else could have prepared.
///
/// # Errors
/// The directory cannot be made, is not a directory, or belongs to another user.
pub fn prepare(dir: &Path) -> io::Result<()> {
    prepare_with(dir, 0o700)
}

/// As [`prepare`], for an agent that serves everybody: all may enter, and only its user may write.
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_for_everybody(dir: &Path) -> io::Result<()> {
    prepare_with(dir, 0o755)?;
    // The mode of a new directory depends on the umask, and one that is there may have been a private one.
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
    fn what_others_can_write_is_not_believed() {
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
