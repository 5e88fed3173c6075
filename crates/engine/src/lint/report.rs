//! Where findings go: the log at once, and the file that `softhca run` reads at the end.
//!
//! The same mistake on the same object is counted, and told once. A line of the file is all that is known of one so far: a later line
//! with the same key replaces it, so that a program that is killed has told everything but its last counts. The principal types are
//! `Report`, which writes, and [`Told`], which is what [`read`] finds.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;

use parking_lot::Mutex;

use super::finding::{Check, Finding, Place};
use super::site::Site;

/// The most mistakes that one engine tells.
const KEPT: usize = 1000;

pub(super) struct Report {
    engine: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    file: Option<File>,
    entries: HashMap<(Check, u64), Entry>,
}

struct Entry {
    number: usize,
    count: u64,
    what: String,
    place: String,
}

/// One mistake as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Process, engine and number of the mistake.
    key: String,
    /// How often.
    pub count: u64,
    /// Whether that is all; else it is the least.
    pub exact: bool,
    /// The check's name.
    pub check: String,
    /// Where in the program; empty if that is not known.
    pub place: String,
    /// The sentence.
    pub what: String,
    /// How to mend it.
    pub mend: String,
}

impl Report {
    pub(super) fn new(value: &OsStr, engine: u32) -> Self {
        let is_path = value.as_encoded_bytes().contains(&b'/');
        let file = if is_path { OpenOptions::new().append(true).create(true).open(value).ok() } else { None };
        Self { engine, inner: Mutex::new(Inner { file, entries: HashMap::new() }) }
    }

    pub(super) fn add(&self, finding: Finding) {
        let inner = &mut *self.inner.lock();
        let Finding { check, object, what, place } = finding;
        if let Some(entry) = inner.entries.get_mut(&(check, object)) {
            entry.count += 1;
            if is_round(entry.count) {
                write(&mut inner.file, self.engine, check, entry, false);
            }
            return;
        }
        if inner.entries.len() >= KEPT {
            return;
        }
        let place = match place {
            Place::Here => Site::capture().told(),
            Place::At(site) => site.told(),
            Place::Nowhere => None,
        };
        let place = place.unwrap_or_default();
        let entry = Entry { number: inner.entries.len(), count: 1, what, place };
        let at = if entry.place.is_empty() { String::new() } else { format!(" ({})", entry.place) };
        tracing::warn!(target: "softhca::strict", "{}: {}{at}; {}", check.name(), entry.what, check.mend());
        write(&mut inner.file, self.engine, check, &entry, false);
        inner.entries.insert((check, object), entry);
    }

    /// No more will come.
    pub(super) fn close(&self) {
        let inner = &mut *self.inner.lock();
        for ((check, _), entry) in &inner.entries {
            write(&mut inner.file, self.engine, *check, entry, true);
        }
        inner.file = None;
    }
}

/// A power of ten.
fn is_round(count: u64) -> bool {
    count.checked_ilog10().is_some_and(|digits| 10u64.pow(digits) == count)
}

fn write(file: &mut Option<File>, engine: u32, check: Check, entry: &Entry, exact: bool) {
    let Some(file) = file else { return };
    let key = format!("{}.{engine}.{}", std::process::id(), entry.number);
    let sign = if exact { '=' } else { '+' };
    let clean = |text: &str| text.replace(['\t', '\n'], " ");
    let (place, what, mend) = (clean(&entry.place), clean(&entry.what), check.mend());
    let line = format!("{key}\t{}\t{sign}\t{}\t{place}\t{what}\t{mend}\n", entry.count, check.name());
    // One write per line, so that the lines of several processes do not mix; a full disk loses findings, not work.
    let _ = shm::file_limit::without_signal(|| file.write_all(line.as_bytes()));
}

/// What the text of a file of findings says, in the order in which it was found. A line that was not written to its end is left out.
#[must_use]
pub fn read(text: &str) -> Vec<Told> {
    let mut all: Vec<Told> = Vec::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [key, count, sign, check, place, what, mend] = fields[..] else { continue };
        let Ok(count) = count.parse() else { continue };
        let owned = str::to_owned;
        let told = Told {
            key: owned(key),
            count,
            exact: sign == "=",
            check: owned(check),
            place: owned(place),
            what: owned(what),
            mend: owned(mend),
        };
        match all.iter_mut().find(|other| other.key == told.key) {
            Some(other) => *other = told,
            None => all.push(told),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_once_and_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("findings");
        let report = Report::new(path.as_os_str(), 7);
        let text = || read(&std::fs::read_to_string(&path).expect("written"));
        for _ in 0..12 {
            report.add(Finding::nowhere(Check::SmallCq, 3u32, "a CQ\tthat is small".to_owned()));
        }
        report.add(Finding::nowhere(Check::SmallCq, 4u32, "another".to_owned()));
        let told = text();
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].count, told[0].exact, told[0].what.as_str()), (10, false, "a CQ that is small"));
        report.close();
        assert_eq!(text().iter().map(|told| (told.count, told.exact)).collect::<Vec<_>>(), [(12, true), (1, true)]);
    }

    #[test]
    fn a_line_that_breaks_off_is_no_finding() {
        assert_eq!(read("1.1.0\t1\t+\tsmall-cq\t\twhat\tmen"), []);
        assert_eq!(read("1.1.0\t1\t+\n").len(), 0);
    }

    #[test]
    fn every_check_is_documented() {
        let page = include_str!("../../../../docs/strict.md");
        for check in Check::ALL {
            assert!(page.contains(&format!("\n| `{}` |", check.name())), "{}", check.name());
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = Check::ALL.iter().map(|check| check.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Check::ALL.len());
    }
}
