//! The report of findings: to the log at once, and to the file that `softhca run` reads at the end.
//!
//! The same mistake on the same object is reported once and counted. A line of the file states
//! everything known about one mistake so far. A later line with the same key replaces it. So if a
//! program is killed, the file lacks only the last counts. Principal types: `Report`, which writes,
//! and [`Told`], which [`read`] returns.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::finding::{Check, Finding, FindingPlace};
use super::site::Site;

/// The first word of a line that names a watched process.
const WATCHED: &str = "watched";
/// The first word of a line that says why a mistake may be missing.
const UNWATCHED: &str = "unwatched";

/// The permission bit of the findings file that says that a line could not be written. Setting it
/// needs no space on the disk.
pub const INCOMPLETE: u32 = 0o100;

/// The most findings that one engine reports.
const KEPT: usize = 1000;

pub(super) struct Report {
    engine: u32,
    /// The findings file; `None`: the findings go to the log only.
    path: Option<PathBuf>,
    inner: Mutex<ReportState>,
}

struct ReportState {
    file: Option<File>,
    entries: HashMap<(Check, u64), ReportEntry>,
    /// The first reason why a mistake may be missing, until it is in the file.
    gap: Option<String>,
    /// Whether the file has a reason. One line per engine is enough.
    has_told_gap: bool,
}

struct ReportEntry {
    number: usize,
    count: u64,
    what: String,
    place: String,
}

/// One mistake, as read from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Process, engine and number of the mistake.
    key: String,
    /// How often it was found.
    pub count: u64,
    /// Whether `count` is exact; otherwise it is a lower bound.
    pub exact: bool,
    /// The check's name.
    pub check: String,
    /// The place in the program; empty if unknown.
    pub place: String,
    /// The sentence.
    pub what: String,
    /// How to correct it.
    pub mend: String,
}

impl Report {
    pub(super) fn new(value: &OsStr, engine: u32) -> Self {
        let path = value.as_encoded_bytes().contains(&b'/').then(|| PathBuf::from(value));
        let mut inner = ReportState { file: None, entries: HashMap::new(), gap: None, has_told_gap: false };
        if let Some(path) = &path {
            match OpenOptions::new().append(true).create(true).open(path) {
                Ok(file) => inner.file = Some(file),
                Err(error) => inner.miss(&format!("cannot open {}: {error}", path.display())),
            }
            inner.line(&format!("{WATCHED}\t{}\n", std::process::id()));
        }
        Self { engine, path, inner: Mutex::new(inner) }
    }

    /// The checks skipped something for this reason, so a mistake may be missing.
    #[cold]
    pub(super) fn miss(&self, why: &str) {
        self.inner.lock().miss(why);
    }

    pub(super) fn add(&self, finding: Finding) {
        let inner = &mut *self.inner.lock();
        let Finding { check, object, what, place } = finding;
        if let Some(entry) = inner.entries.get_mut(&(check, object)) {
            entry.count += 1;
            if is_round(entry.count) {
                let line = line(self.engine, check, entry, false);
                inner.line(&line);
            }
            return;
        }
        if inner.entries.len() >= KEPT {
            inner.miss(&format!("an open device has more than {KEPT} different findings"));
            return;
        }
        let place = match place {
            FindingPlace::Here => Site::capture().told(),
            FindingPlace::At(site) => site.told(),
            FindingPlace::Nowhere => None,
        };
        let place = place.unwrap_or_default();
        let entry = ReportEntry { number: inner.entries.len(), count: 1, what, place };
        let at = if entry.place.is_empty() { String::new() } else { format!(" ({})", entry.place) };
        tracing::warn!(target: "softhca::strict", "{}: {}{at}; {}", check.name(), entry.what, check.mend());
        inner.line(&line(self.engine, check, &entry, false));
        inner.entries.insert((check, object), entry);
    }

    /// Writes the final counts; no more findings will come.
    pub(super) fn close(&self) {
        let inner = &mut *self.inner.lock();
        // Opening failed earlier, perhaps because the program had too many open files. Now it may
        // succeed.
        if let (None, Some(path)) = (&inner.file, &self.path) {
            inner.file = OpenOptions::new().append(true).open(path).ok();
        }
        let entries = std::mem::take(&mut inner.entries);
        for ((check, _), entry) in &entries {
            inner.line(&line(self.engine, *check, entry, true));
        }
        inner.entries = entries;
        inner.tell_gap();
        inner.file = None;
    }
}

impl ReportState {
    /// A mistake may be missing for the reason `why`. Only the first reason is kept.
    fn miss(&mut self, why: &str) {
        if self.has_told_gap || self.gap.is_some() {
            return;
        }
        tracing::warn!(target: "softhca::strict", "could not watch everything: {why}");
        self.gap = Some(why.to_owned());
        self.tell_gap();
    }

    fn tell_gap(&mut self) {
        let (Some(file), Some(why)) = (&mut self.file, &self.gap) else { return };
        let line = format!("{UNWATCHED}\t{}\t{}\n", std::process::id(), why.replace(['\t', '\n'], " "));
        write(file, &line);
        self.gap = None;
        self.has_told_gap = true;
    }

    fn line(&mut self, line: &str) {
        if let Some(file) = &mut self.file {
            write(file, line);
        }
    }
}

/// Writes a line with one call, so that the lines of several processes do not mix. A full disk
/// loses findings and marks the file [`INCOMPLETE`].
fn write(file: &mut File, line: &str) {
    let Err(error) = shm::file_limit::without_signal(|| file.write_all(line.as_bytes())) else { return };
    let Ok(mode) = file.metadata().map(|known| known.permissions().mode()) else { return };
    if mode & INCOMPLETE == 0 {
        tracing::warn!(target: "softhca::strict", "cannot write the findings file: {error}");
        // Only the file's owner and root may do that. For other users the warning in the log
        // remains.
        let _ = file.set_permissions(Permissions::from_mode(mode | INCOMPLETE));
    }
}

/// A power of ten.
fn is_round(count: u64) -> bool {
    count.checked_ilog10().is_some_and(|digits| 10u64.pow(digits) == count)
}

fn line(engine: u32, check: Check, entry: &ReportEntry, exact: bool) -> String {
    let key = format!("{}.{engine}.{}", std::process::id(), entry.number);
    let sign = if exact { '=' } else { '+' };
    let clean = |text: &str| text.replace(['\t', '\n'], " ");
    let (place, what, mend) = (clean(&entry.place), clean(&entry.what), check.mend());
    format!("{key}\t{}\t{sign}\t{}\t{place}\t{what}\t{mend}\n", entry.count, check.name())
}

/// The watched processes, and the reasons why something was not watched, each once.
#[must_use]
pub fn watched(text: &str) -> (BTreeSet<u32>, BTreeSet<String>) {
    let (mut processes, mut gaps) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [WATCHED, pid] => processes.extend(pid.parse::<u32>()),
            [UNWATCHED, _, why] => {
                gaps.insert(why.to_owned());
            }
            _ => {}
        }
    }
    (processes, gaps)
}

/// Parses the findings file, in the order of the findings. Ignores a line without its end.
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
    fn each_engine_tells_one_cause_of_missing_findings() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("findings");
        let report = Report::new(path.as_os_str(), 7);
        for object in 0..KEPT as u32 + 2 {
            report.add(Finding::nowhere(Check::SmallCq, object, "a CQ".to_owned()));
        }
        report.miss("another cause");
        report.close();
        let text = std::fs::read_to_string(&path).expect("written");
        assert_eq!(text.matches("unwatched\t").count(), 1);
        let (processes, gaps) = watched(&text);
        assert_eq!(processes, [std::process::id()].into());
        assert_eq!(gaps, ["an open device has more than 1000 different findings".to_owned()].into());
        assert_eq!(read(&text).len(), KEPT);
    }

    #[test]
    fn a_line_that_cannot_be_written_marks_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mode = || file.as_file().metadata().expect("it exists").permissions().mode() & INCOMPLETE;
        write(&mut File::options().append(true).open(file.path()).expect("opened"), "a line\n");
        assert_eq!(mode(), 0);
        write(&mut File::open(file.path()).expect("opened"), "a line\n");
        assert_eq!(mode(), INCOMPLETE);
    }

    #[test]
    fn a_file_that_opens_late_has_the_findings_and_the_cause() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("later/findings");
        let report = Report::new(path.as_os_str(), 7);
        report.add(Finding::nowhere(Check::SmallCq, 3u32, "a CQ".to_owned()));
        std::fs::create_dir(folder.path().join("later")).expect("made");
        std::fs::write(&path, "").expect("written");
        report.close();
        let text = std::fs::read_to_string(&path).expect("written");
        assert_eq!((read(&text).len(), watched(&text).1.len()), (1, 1), "{text}");
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
