//! Where the mirror is: `$SOFTHCA_DIR/sys`, from the environment at the start of the process.
//!
//! This library keeps its own copy of the name, because programs overwrite their environment. The
//! copy is written once, or a few times with the same bytes by callers that come before the
//! constructor. No caller waits for another. This module decides nothing else: without a run
//! directory there is no mirror, and paths in it do not exist.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::entry;

/// Longer names are ignored: sockets in a run directory need names of at most a hundred bytes.
const LONGEST: usize = 1024;

/// The name of the mirror in the run directory.
const SYS: &[u8] = b"/sys";

/// The value of [`LENGTH`] before the first look-up.
const UNKNOWN: usize = usize::MAX;

static BYTES: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];
static LENGTH: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// The bytes of the mirror's path without a final slash, or `None` if this process has no mirror.
pub(crate) fn path() -> Option<impl Iterator<Item = u8>> {
    // Pairs with the store in `learn`: if the length is visible, the bytes are visible too.
    let mut length = LENGTH.load(Ordering::Acquire);
    if length == UNKNOWN {
        length = learn();
    }
    (length != 0).then(|| BYTES.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)))
}

/// The bytes of the run directory's path, or `None` if this process has none.
pub(crate) fn run_directory() -> Option<impl Iterator<Item = u8>> {
    let mirror = path()?;
    // The length is known now.
    let length = LENGTH.load(Ordering::Relaxed).saturating_sub(SYS.len());
    Some(mirror.take(length))
}

/// Reads the environment. Returns the length of the path, or 0 without a mirror.
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
