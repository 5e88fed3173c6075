//! The findings of strict mode in one program run: the file to which the verbs library appends
//! them, and what is printed at the end.
//!
//! The library finds errors; this module only sorts and prints the findings. The principal type is
//! [`Findings`].

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use engine::lint::{INCOMPLETE, Told, read, watched};
use engine::rundir::at;

use crate::failure;
use crate::reasons;

/// How many findings of one kind are printed.
const TOLD: usize = 3;

/// The most bytes of a text that are printed.
const LONGEST: usize = 2000;

/// The file of one run.
#[derive(Debug)]
pub(crate) struct Findings {
    file: PathBuf,
}

impl Findings {
    /// Creates an empty file for this process, in a folder beside the folder for reasons, and
    /// removes old files.
    pub(crate) fn new(reasons: &Path) -> io::Result<Self> {
        let folder = reasons.with_file_name("findings");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(at("create", &folder))?;
        reasons::forget_old(&folder);
        // The path is absolute, so it contains a `/`. The library recognizes a file by it.
        let file = std::path::absolute(folder)?.join(std::process::id().to_string());
        File::create(&file).map_err(at("create", &file))?;
        Ok(Self { file })
    }

    /// The file's path, for the program's environment.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Prints the findings on standard error, and why some may be missing. `opened` are the
    /// processes that opened a device. Returns whether there is a finding; the file is kept then.
    pub(crate) fn end(self, opened: &BTreeSet<u32>) -> bool {
        // A program may have written anything to its file.
        let text = fs::read(&self.file);
        let is_incomplete = fs::metadata(&self.file).is_ok_and(|file| file.mode() & INCOMPLETE != 0);
        let gap = match &text {
            Err(error) => Some(format!("cannot read {}: {error}", self.file.display())),
            Ok(_) if is_incomplete => Some(format!("cannot write {}; is the disk full?", self.file.display())),
            Ok(_) => None,
        };
        let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
        let all = read(&text);
        failure::tell(&told(&all, &self.file));
        failure::tell(&unwatched(&text, gap, opened));
        if all.is_empty() {
            // If the removal fails, the file is left over and does no harm.
            let _ = fs::remove_file(self.file);
        }
        !all.is_empty()
    }
}

/// Why findings may be missing: the causes in the file's text, and `gap`. If a process opened a
/// device and is not in the text, it could not write to the file.
fn unwatched(text: &str, gap: Option<String>, opened: &BTreeSet<u32>) -> String {
    let (processes, mut gaps) = watched(text);
    gaps.extend(gap);
    let missing = |pid: &u32| format!("process {pid} could not write the findings file");
    if gaps.is_empty() {
        gaps.extend(opened.difference(&processes).next().map(missing));
    }
    let line = |why: &String| format!("softhca: --strict could not watch everything: {}\n", shown(why));
    gaps.iter().take(TOLD).map(line).collect()
}

/// What to print: each kind with its number of findings, its first findings, and the fix. Empty if
/// there are no findings.
fn told(all: &[Told], file: &Path) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut kinds: Vec<&str> = Vec::new();
    for finding in all {
        if !kinds.contains(&finding.check.as_str()) {
            kinds.push(&finding.check);
        }
    }
    let mut told = String::from("softhca: --strict found errors that this run did not reveal:\n");
    for kind in kinds {
        let same: Vec<&Told> = all.iter().filter(|finding| finding.check == kind).collect();
        let count = same.iter().fold(0u64, |sum, finding| sum.saturating_add(finding.count));
        let often = match (count, same.iter().all(|finding| finding.exact)) {
            (1, _) => "once".to_owned(),
            (count, true) => format!("{count} times"),
            (count, false) => format!("{count} times or more"),
        };
        told += &format!("  {}, {often}:\n", shown(kind));
        for finding in same.iter().take(TOLD) {
            let place =
                if finding.place.is_empty() { String::new() } else { format!(" (in {})", shown(&finding.place)) };
            told += &format!("    {}{place}\n", shown(&finding.what));
        }
        if same.len() > TOLD {
            told += &format!("    and {} more objects\n", same.len() - TOLD);
        }
        told += &same.first().map(|finding| format!("    fix: {}\n", shown(&finding.mend))).unwrap_or_default();
    }
    told + &format!("softhca: all findings: {}; see docs/strict.md\n", file.display())
}

/// A program's text, without characters that control a terminal.
fn shown(text: &str) -> String {
    engine::reason::clean(text, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::{Findings, told, unwatched};
    use engine::lint::read;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    #[test]
    fn kinds_are_told_once_with_their_counts() {
        let line = |number: u32, count: u32, sign: char, kind: &str| {
            format!("9.1.{number}\t{count}\t{sign}\t{kind}\tmain at a.c:3\twhat {number}\tdo it {kind}\n")
        };
        let text: String = [
            line(0, 1, '+', "small-cq"),
            line(1, 1, '+', "no-retry"),
            line(0, 12, '=', "small-cq"),
            line(2, 1, '=', "small-cq"),
            line(3, 1, '=', "small-cq"),
            line(4, 10, '+', "small-cq"),
        ]
        .concat();
        let said = told(&read(&text), Path::new("/f"));
        assert!(said.contains("  small-cq, 24 times or more:\n    what 0 (in main at a.c:3)\n"), "{said}");
        assert!(said.contains("    and 1 more objects\n    fix: do it small-cq\n"), "{said}");
        assert!(said.contains("  no-retry, once:\n    what 1 (in main at a.c:3)\n"), "{said}");
        assert_eq!(said.matches("fix").count(), 2);
    }

    #[test]
    fn control_characters_of_findings_are_not_printed() {
        let said = told(&read("1.1.0\t1\t=\tsm\x1b[2Jall\tp\x07\tw\x1bhat\tm\x1bend\n"), Path::new("/f"));
        assert!(said.contains("once") && said.chars().all(|letter| letter == '\n' || !letter.is_control()), "{said:?}");
    }

    #[test]
    fn causes_of_missing_findings_are_printed() {
        let opened = BTreeSet::from([7]);
        assert_eq!(unwatched("watched\t7\n", None, &opened), "");
        let said = |why: &str| format!("softhca: --strict could not watch everything: {why}\n");
        assert_eq!(unwatched("watched\t7\nunwatched\t7\ttoo many\n", None, &opened), said("too many"));
        assert_eq!(unwatched("", None, &opened), said("process 7 could not write the findings file"));
        assert_eq!(unwatched("", Some("gone".to_owned()), &opened), said("gone"));
    }

    #[test]
    fn a_run_without_findings_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let findings = Findings::new(&folder.path().join("reasons")).expect("a file");
        let file = findings.file().to_owned();
        assert!(!findings.end(&BTreeSet::new()) && !file.exists());
        let findings = Findings::new(&folder.path().join("reasons")).expect("a file");
        fs::write(findings.file(), "1.1.0\t1\t=\tsmall-cq\t\twhat\tmend\n").expect("written");
        assert!(findings.end(&BTreeSet::new()) && file.exists());
    }
}
