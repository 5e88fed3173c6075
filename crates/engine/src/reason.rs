//! Why something failed: one sentence per failure, naming the objects.
//!
//! Every refused call and every completion with an error notes a sentence here, where the failure is decided and nowhere else.
//! The sentences go to the log, to a short ring that a program can read, and to the file that `softhca run` names in
//! `SOFTHCA_REASONS`, from which it prints the last ones. Nothing is formatted while nothing fails.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// The environment variable that names the file to which reasons are appended.
pub const VARIABLE: &str = "SOFTHCA_REASONS";

/// How many sentences are kept for [`last`].
const KEPT: usize = 64;

/// The most that one process appends to the file: a program that fails in a loop does not fill the disk.
const WRITTEN: u32 = 10_000;

struct Log {
    kept: VecDeque<String>,
    file: Option<File>,
    written: u32,
}

fn log() -> &'static Mutex<Log> {
    static LOG: OnceLock<Mutex<Log>> = OnceLock::new();
    LOG.get_or_init(|| {
        let file = std::env::var_os(VARIABLE).and_then(|path| OpenOptions::new().append(true).open(path).ok());
        Mutex::new(Log { kept: VecDeque::with_capacity(KEPT), file, written: 0 })
    })
}

/// Notes one sentence.
pub fn note(sentence: fmt::Arguments<'_>) {
    let sentence = sentence.to_string();
    tracing::warn!(target: "softhca::reason", "{sentence}");
    let mut log = log().lock();
    if log.written < WRITTEN {
        log.written += 1;
        if let Some(file) = &mut log.file {
            // One write per line, so that the lines of several processes do not mix; a full disk loses reasons, not work.
            let _ = file.write_all(format!("{sentence}\n").as_bytes());
        }
    }
    if log.kept.len() == KEPT {
        log.kept.pop_front();
    }
    log.kept.push_back(sentence);
}

/// The last `n` sentences of this process, oldest first.
#[must_use]
pub fn last(n: usize) -> Vec<String> {
    let log = log().lock();
    log.kept.iter().skip(log.kept.len().saturating_sub(n)).cloned().collect()
}

/// Notes a reason, as `format!` would write it.
#[macro_export]
macro_rules! reason {
    ($($arg:tt)*) => { $crate::reason::note(format_args!($($arg)*)) };
}
