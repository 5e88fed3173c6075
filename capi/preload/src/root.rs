//! Where the mirror lies: `$SOFTHCA_DIR/sys`, as the environment said when the process began.
//!
//! The name is kept in memory of this library, because programs write over their environment. It is written once, or a few
//! times with the same bytes by callers that come before the constructor; nobody waits for anybody. It decides nothing: with no
//! run directory there is no mirror, and what is looked up there does not exist.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::entry;

/// Longer names are no names: the sockets in a run directory need ones of a hundred bytes.
const LONGEST: usize = 1024;

/// What the mirror is called in the run directory.
const SYS: &[u8] = b"/sys";

/// What [`LENGTH`] says before anybody has looked.
const UNKNOWN: usize = usize::MAX;

static BYTES: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
static LENGTH: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// The bytes of the mirror's path without a final slash; `None` when this process has none.
pub(crate) fn path() -> Option<impl Iterator<Item = u8>> {
    // Pairs with the store in `learn`, so that the bytes are there when their number is.
    let mut length = LENGTH.load(Ordering::Acquire);
    if length == UNKNOWN {
        length = learn();
    }
    (length != 0).then(|| BYTES.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)))
}

/// The bytes of the run directory's path; `None` when this process has none.
pub(crate) fn run_directory() -> Option<impl Iterator<Item = u8>> {
    let mirror = path()?;
    // Known now.
    let length = LENGTH.load(Ordering::Relaxed).saturating_sub(SYS.len());
    Some(mirror.take(length))
}

/// Reads the environment; gives the length of the path, 0 for none.
pub(crate) fn learn() -> usize {
    let length = entry::environment(c"SOFTHCA_DIR", |run_directory| keep(run_directory.unwrap_or_default()));
    // Pairs with the load in `path`.
    LENGTH.store(length, Ordering::Release);
    length
}

fn keep(run_directory: &[u8]) -> usize {
    let fits = run_directory.len().saturating_add(SYS.len()) <= LONGEST;
    if run_directory.first() != Some(&b'/') || !fits {
        return 0;
    }
    let path = run_directory.iter().chain(SYS);
    BYTES.iter().zip(path).map(|(kept, byte)| kept.store(*byte, Ordering::Relaxed)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_absolute_name_of_sane_length_is_kept() {
        assert_eq!(keep(b""), 0);
        assert_eq!(keep(b"run"), 0);
        assert_eq!(keep(&[b'/'; LONGEST]), 0);
        assert_eq!(keep(b"/tmp/a"), 10);
        LENGTH.store(10, Ordering::Release);
        assert_eq!(path().unwrap().collect::<Vec<_>>(), b"/tmp/a/sys");
        assert_eq!(run_directory().unwrap().collect::<Vec<_>>(), b"/tmp/a");
    }
}
