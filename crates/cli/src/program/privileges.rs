//! Programs that get rights from their file: setuid, setgid and file capabilities. The dynamic
//! linker ignores `LD_LIBRARY_PATH` and `LD_PRELOAD` for them, so they never load softhca.
//!
//! This module decides as the kernel does (`AT_SECURE`): a right that the caller has already makes
//! no difference. It changes no rights. The principal function is [`check`].

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getgid, getuid};

use super::WHAT;
use crate::finding::Finding;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// The facts about the file and its caller.
#[derive(Debug, Clone, Copy)]
struct Start {
    mode: u32,
    uid: u32,
    gid: u32,
    capabilities: bool,
    /// Real user and group of the caller.
    user: (u32, u32),
    /// The kernel ignores the file's rights: the mount has nosuid, or the process has no_new_privs.
    ignored: bool,
}

/// A finding if the program at `path` gets rights that its caller does not have.
pub(super) fn check(path: &Path) -> Option<Finding> {
    let meta = fs::metadata(path).ok()?;
    let nosuid = statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID));
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let no_new = status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|value| value.trim() == "1"));
    let start = Start {
        mode: meta.mode(),
        uid: meta.uid(),
        gid: meta.gid(),
        capabilities: getxattr(path, c"security.capability", &mut [0_u8; 64]).is_ok_and(|length| length > 0),
        user: (getuid().as_raw(), getgid().as_raw()),
        ignored: nosuid || no_new,
    };
    let (kind, next) = right(&start)?;
    let found = format!(
        "{} {kind}: the dynamic linker ignores LD_LIBRARY_PATH and LD_PRELOAD for it, so it does not load softhca",
        path.display()
    );
    Some(Finding::fail(WHAT, found, format!("run a copy without this right ({next})")))
}

/// The right that the program gets, and how a copy of the file loses it.
fn right(start: &Start) -> Option<(&'static str, &'static str)> {
    let Start { mode, uid, gid, capabilities, user, ignored } = *start;
    if ignored {
        return None;
    }
    if mode & SETUID != 0 && uid != user.0 {
        return Some(("is setuid", "cp does not keep the bit"));
    }
    // Without the group's x bit, the setgid bit means mandatory locking.
    if mode & SETGID != 0 && mode & GROUP_EXECUTES != 0 && gid != user.1 {
        return Some(("is setgid", "cp does not keep the bit"));
    }
    // Root already has all capabilities.
    (capabilities && user.0 != 0)
        .then_some(("has file capabilities", "cp does not keep them; `setcap -r` removes them"))
}

#[cfg(test)]
mod tests {
    use super::{Start, right};

    #[test]
    fn only_rights_that_the_caller_does_not_have_count() {
        let plain = Start { mode: 0o755, uid: 0, gid: 0, capabilities: false, user: (1000, 1000), ignored: false };
        let root = Start { user: (0, 0), ..plain };
        for (start, expected) in [
            (plain, None),
            (Start { mode: 0o4755, ..plain }, Some("is setuid")),
            (Start { mode: 0o4755, ..root }, None),
            (Start { mode: 0o4755, uid: 65_534, ..root }, Some("is setuid")),
            (Start { mode: 0o2755, ..plain }, Some("is setgid")),
            (Start { mode: 0o2745, ..plain }, None),
            (Start { mode: 0o2755, gid: 1000, ..plain }, None),
            (Start { capabilities: true, ..plain }, Some("has file capabilities")),
            (Start { capabilities: true, ..root }, None),
            (Start { mode: 0o6755, capabilities: true, ignored: true, ..plain }, None),
        ] {
            assert_eq!(right(&start).map(|(kind, _)| kind), expected, "{start:?}");
        }
    }
}
