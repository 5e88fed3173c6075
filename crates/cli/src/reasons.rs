//! The reasons of one program run: the file that the verbs library appends to, and what is told at the end.
//!
//! A reason is one sentence per refused call or failed completion, written by the library where it is decided. The
//! principal type is [`Reasons`].

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The variable that names the file to the library.
pub(crate) const VARIABLE: &str = engine::reason::VARIABLE;

/// How many reasons are told.
const TOLD: usize = 3;

/// How many files of earlier runs are kept.
const KEPT: usize = 20;

/// The file of one run.
#[derive(Debug)]
pub(crate) struct Reasons {
    file: PathBuf,
}

impl Reasons {
    /// An empty file for this process in `folder`; those of long ago go.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        // A run directory may be open to others; what went wrong in a program is its user's business.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        forget_old(folder);
        let file = folder.join(std::process::id().to_string());
        File::create(&file)?;
        Ok(Self { file })
    }

    /// The file, for the program's environment.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// What to print after a program that failed: its last reasons and where all of them are. Empty if there are none.
    pub(crate) fn told(&self) -> String {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        let last = &all[all.len().saturating_sub(TOLD)..];
        if last.is_empty() {
            return String::new();
        }
        let heading = match all.len() {
            1 => "why it failed:".to_owned(),
            count if count <= TOLD => "why something failed:".to_owned(),
            count => format!("why something failed, the last {TOLD} of {count}:"),
        };
        let mut told = format!("softhca: {heading}\n");
        for reason in last {
            told += &format!("  {reason}\n");
        }
        told + &format!(
            "softhca: all reasons: {}; more: SOFTHCA_LOG=debug softhca run …; none of this: softhca run --quiet\n",
            self.file.display()
        )
    }

    /// Removes the file of a program that has nothing to tell.
    pub(crate) fn forget(self) {
        // A file that stays is only a file that stays.
        let _ = fs::remove_file(self.file);
    }
}

/// Removes what is too old of a folder with a file for each run.
pub(crate) fn forget_old(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let aged = entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())));
    let mut files: Vec<_> = aged.collect();
    files.sort();
    let surplus = files.len().saturating_sub(KEPT);
    for (_, file) in &files[..surplus] {
        let running = file.file_name().is_some_and(|pid| Path::new("/proc").join(pid).exists());
        if !running {
            let _ = fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reasons;
    use std::fs;

    #[test]
    fn the_last_three_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        assert_eq!(reasons.told(), "");
        fs::write(reasons.file(), "one\ntwo\nthree\nfour\n").expect("written");
        let told = reasons.told();
        assert!(
            told.contains("the last 3 of 4") && told.contains("  two\n  three\n  four\n") && !told.contains("  one\n")
        );
        reasons.forget();
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
    }

    #[test]
    fn files_of_long_ago_go() {
        let folder = tempfile::tempdir().expect("a folder");
        for run in 0..40 {
            fs::write(folder.path().join(format!("old-{run}")), "").expect("written");
        }
        Reasons::new(folder.path()).expect("a file");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 21);
    }
}
