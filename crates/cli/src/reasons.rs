//! The reasons of one program run: the file to which the verbs library appends them, and what is
//! printed at the end.
//!
//! A reason is one sentence for a refused call or a failed completion. The library writes it where
//! the failure is decided. This module decides which reasons explain how the program ended
//! ([`ProgramEnd`], [`Rank`]). The principal type is [`Reasons`].

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use engine::reason::{Line, ReasonKind};
use engine::rundir::at;

use crate::failure;
use crate::fault_counts;

/// The variable that passes the file's path to the library.
pub(crate) const VARIABLE: &str = engine::reason::VARIABLE;

/// How many different reasons are printed.
const TOLD: usize = 6;

/// How many bytes of the file are read, from its end. Children of children may have written a lot.
const LOOKED_AT: u64 = 8 << 20;

/// The most bytes of a sentence that are printed.
const LONGEST: usize = 2000;

/// The start of sentences about faults on demand.
const FAULT: &str = "fault: ";

/// How many files of earlier runs are kept.
const KEPT: usize = 20;

/// The file of one run.
#[derive(Debug)]
pub(crate) struct Reasons {
    file: PathBuf,
}

/// Sentences that differ only in numbers.
#[derive(Debug)]
struct Alike {
    /// The last of these sentences.
    sentence: String,
    times: usize,
    rank: Rank,
    /// The position of the last sentence.
    at: usize,
}

impl Reasons {
    /// Creates an empty file for this process in `folder`, and removes old files.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        // Other users may read a run directory, but the failures of a program concern its user
        // only.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(at("create", folder))?;
        forget_old(folder);
        let file = folder.join(std::process::id().to_string());
        File::create(&file).map_err(at("create", &file))?;
        Ok(Self { file })
    }

    /// The file's path, for the program's environment.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Whether a process of the run has opened a device.
    pub(crate) fn has_opened(&self) -> bool {
        !self.opened().is_empty()
    }

    /// The processes of the run that have opened a device.
    pub(crate) fn opened(&self) -> BTreeSet<u32> {
        let text = self.last().unwrap_or_default();
        text.lines().map(Line::read).filter(|(_, line)| *line == Line::Opened).map(|(pid, _)| pid).collect()
    }

    /// Prints on standard error why a program has ended as it did, unless `quiet` is set. `strict`:
    /// the program ran in strict mode.
    ///
    /// If there are reasons to print, the file is kept for `softhca show --errors`, also if `quiet`
    /// suppresses them.
    pub(crate) fn end(self, end: ProgramEnd, strict: bool, quiet: bool) {
        let (told, names_file) = self.told(end, strict);
        if !quiet {
            failure::tell(&told);
        }
        if !names_file {
            self.forget();
        }
    }

    /// What to print, empty if there is nothing to print, and whether it names the file.
    fn told(&self, end: ProgramEnd, strict: bool) -> (String, bool) {
        let text = self.last().unwrap_or_default();
        let lines: Vec<(u32, Line<'_>)> = text.lines().map(Line::read).collect();
        let ranked = ranked(&lines);
        let best = ranked.iter().map(|(rank, ..)| *rank).min();
        let failed = best.is_some_and(|best| best <= Rank::Error);
        let is_told = |&(rank, kind, _): &(Rank, ReasonKind, &str)| match end {
            // A program that succeeds may try calls that are refused. An injected fault also
            // explains why something took long.
            ProgramEnd::Succeeded => {
                rank == Rank::Error && matches!(kind, ReasonKind::Failed) || rank == Rank::Injected
            }
            // Connections that end with the program are not failures. But the program may have
            // waited for a packet that was dropped.
            ProgramEnd::Stopped if failed => rank <= Rank::Sign,
            ProgramEnd::Stopped => kind == ReasonKind::Dropped,
            ProgramEnd::Failed => rank <= Rank::Sign || best == Some(Rank::Attempt),
        };
        // `FaultCounts` prints once how often a rule acted, after the reasons.
        let is_count = |&(_, _, sentence): &(Rank, ReasonKind, &str)| fault_counts::is_step(sentence);
        let reasons = alike(ranked.iter().filter(|reason| is_told(reason) && !is_count(reason)));
        let different = reasons.len();
        let reasons = most_telling(reasons, TOLD);
        let mut told = String::new();
        if !reasons.is_empty() {
            let why = match end {
                ProgramEnd::Succeeded | ProgramEnd::Stopped => "errors during the run",
                ProgramEnd::Failed if failed => "why something failed",
                ProgramEnd::Failed => "why something may have failed",
            };
            told += &format!("softhca: {}\n{}", heading(why, different, TOLD), shown(&reasons));
            told += &format!(
                "softhca: all reasons: {}; for more, set SOFTHCA_LOG=debug; for less, use softhca run --quiet\n",
                self.file.display()
            );
        }
        let opened = lines.iter().any(|(_, line)| *line == Line::Opened);
        if end == ProgramEnd::Failed && opened && !strict && !failed {
            told += "softhca: no call or request of this program failed; `softhca run --strict -- …` finds errors \
            that a run does not reveal (docs/strict.md)\n";
        }
        (told, !reasons.is_empty())
    }

    /// The end of the file, as [`last`] returns it.
    pub(crate) fn last(&self) -> io::Result<String> {
        last(&self.file)
    }

    /// Removes the file of a program that has no reasons to print.
    pub(crate) fn forget(self) {
        // If the removal fails, the file is left over and does no harm.
        let _ = fs::remove_file(self.file);
    }
}

/// The end of a file of reasons, in whole lines.
pub(crate) fn last(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let skipped = file.metadata()?.len().saturating_sub(LOOKED_AT);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(LOOKED_AT).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let cut = if skipped > 0 { text.find('\n').map_or(text.len(), |end| end + 1) } else { 0 };
    Ok(text[cut..].to_owned())
}

/// How a program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    /// With exit code 0.
    Succeeded,
    /// A signal asked it to end (SIGTERM, SIGINT, SIGHUP), and it did.
    Stopped,
    /// With another exit code, or by another signal.
    Failed,
}

/// How likely a reason explains the program's end. The most likely rank comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A fault on demand.
    Injected,
    /// The program saw it as an error: a completion, an event, or a refused call after which the
    /// program did not go on.
    Error,
    /// The program saw nothing of it.
    Sign,
    /// The program tried a call and went on without it. Or requests were flushed, which has a cause
    /// of its own.
    Attempt,
}

/// The reasons with their ranks, in the order in which they were written.
fn ranked<'a>(lines: &[(u32, Line<'a>)]) -> Vec<(Rank, ReasonKind, &'a str)> {
    // Read from the end: if a process went on, it can do without the calls that were refused
    // before.
    let mut went_on = HashSet::new();
    let mut ranked = Vec::new();
    for (pid, line) in lines.iter().rev() {
        match line {
            Line::Opened => {}
            Line::WentOn => {
                went_on.insert(*pid);
            }
            Line::Reason(kind, sentence) => {
                let rank = match kind {
                    _ if sentence.starts_with(FAULT) => Rank::Injected,
                    ReasonKind::Refused if went_on.contains(pid) => Rank::Attempt,
                    ReasonKind::Failed | ReasonKind::Event | ReasonKind::Refused => Rank::Error,
                    ReasonKind::Noted | ReasonKind::Dropped => Rank::Sign,
                    ReasonKind::Flushed => Rank::Attempt,
                };
                ranked.push((rank, *kind, *sentence));
            }
        }
    }
    ranked.reverse();
    ranked
}

/// Groups sentences that differ only in numbers.
fn alike<'a>(reasons: impl Iterator<Item = &'a (Rank, ReasonKind, &'a str)>) -> Vec<Alike> {
    let mut known: HashMap<String, Alike> = HashMap::new();
    for (at, (rank, _, sentence)) in reasons.enumerate() {
        let new = || Alike { sentence: String::new(), times: 0, rank: *rank, at };
        let one = known.entry(form(sentence)).or_insert_with(new);
        *one = Alike { sentence: (*sentence).to_owned(), times: one.times + 1, rank: one.rank.min(*rank), at };
    }
    known.into_values().collect()
}

/// At most `most` groups: those with the best ranks, and within a rank the latest. The result is in
/// the order of the ranks, and within a rank in the order of time.
fn most_telling(mut all: Vec<Alike>, most: usize) -> Vec<Alike> {
    all.sort_by_key(|one| (one.rank, Reverse(one.at)));
    all.truncate(most);
    all.sort_by_key(|one| (one.rank, one.at));
    all
}

/// A sentence with its numbers replaced.
fn form(sentence: &str) -> String {
    let mut form = String::with_capacity(sentence.len());
    let mut number = false;
    for letter in sentence.chars() {
        // Once a number has begun, it continues with the characters of hexadecimal numbers.
        number = letter.is_ascii_digit() || number && (letter.is_ascii_hexdigit() || letter == 'x');
        form.push(if number { '0' } else { letter });
        if number && form.ends_with("00") {
            form.pop();
        }
    }
    form
}

fn heading(what: &str, different: usize, most: usize) -> String {
    match different {
        count if count <= most => format!("{what}:"),
        count => format!("{what}, {most} of {count} kinds:"),
    }
}

fn shown(all: &[Alike]) -> String {
    let line = |one: &Alike| {
        let sentence = engine::reason::clean(&one.sentence, LONGEST);
        match one.times {
            1 => format!("  {sentence}\n"),
            times => format!("  {sentence} ({times} times)\n"),
        }
    };
    all.iter().map(line).collect()
}

/// Removes the oldest files from a folder that has one file for each run.
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
    use super::{ProgramEnd, Reasons, TOLD, form};
    use std::fs;

    const HINT: &str = "softhca run --strict";

    /// What is printed for a program that wrote `lines` and ended with `end`.
    fn told(lines: &str, end: ProgramEnd) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        fs::write(reasons.file(), lines).expect("written");
        let (told, names_file) = reasons.told(end, false);
        assert_eq!(names_file, told.contains(reasons.file().to_str().expect("text")), "{told}");
        told
    }

    #[test]
    fn the_last_ones_are_told_each_once() {
        assert_eq!(told("", ProgramEnd::Failed), "");
        let lines =
            "failed 7: QP 0x1f, wr_id 0x2: bad\nrefused 7: no\nnot from here\nfailed 7: QP 0x20, wr_id 0x3e: bad\n";
        let expected = "softhca: why something failed:\n  no\n  QP 0x20, wr_id 0x3e: bad (2 times)\n  not from here\n";
        assert!(told(lines, ProgramEnd::Failed).starts_with(expected), "{}", told(lines, ProgramEnd::Failed));
        let many: String = ('a'..'p').map(|letter| format!("failed 7: {letter}\n")).collect();
        let told = told(&many, ProgramEnd::Failed);
        assert!(told.contains(&format!("{TOLD} of 15 kinds")) && told.contains("  o\n"), "{told}");
        assert!(!told.contains("  a\n"), "{told}");
    }

    #[test]
    fn a_run_without_reasons_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        fs::write(reasons.file(), "opened 7: a device\nrefused 7: no\n").expect("written");
        reasons.end(ProgramEnd::Succeeded, false, false);
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_quiet_run_that_failed_leaves_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        fs::write(reasons.file(), "failed 7: bad\n").expect("written");
        reasons.end(ProgramEnd::Failed, false, true);
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1);
    }

    #[test]
    fn a_program_that_succeeded_hears_of_requests_that_failed() {
        assert_eq!(
            told("refused 7: no\nflushed 7: 3\nnoted 7: x\ndropped 7: y\nevent 7: z\n", ProgramEnd::Succeeded),
            ""
        );
        let told = told("refused 7: no\nfailed 7: bad\n", ProgramEnd::Succeeded);
        assert!(told.contains("during the run:\n  bad\n"), "{told}");
        assert!(!told.contains("no\n"), "{told}");
    }

    /// perftest and UCX create QPs with more and more inline data until one is refused.
    #[test]
    fn a_refusal_after_which_the_program_went_on_explains_nothing() {
        let tried = "opened 7: a device\nrefused 7: max_inline_data 258\nwent-on 7: after refused calls\n";
        let lines = format!("{tried}dropped 7: QP in state INIT\nfailed 7: bad rkey\nflushed 7: 3 requests\n");
        let said = told(&lines, ProgramEnd::Failed);
        let expected = "softhca: why something failed:\n  bad rkey\n  QP in state INIT\nsofthca: all";
        assert!(said.starts_with(expected) && !said.contains(HINT), "{said}");
        // Another process has gone on, and this one has not.
        let said = told("went-on 8: after\nrefused 7: no such thing\nwent-on 8: after\n", ProgramEnd::Failed);
        assert!(said.starts_with("softhca: why something failed:\n  no such thing\n"), "{said}");
        // The reason is printed if there is no other.
        let said = told(tried, ProgramEnd::Failed);
        assert!(said.starts_with("softhca: why something may have failed:\n  max_inline_data 258\n"), "{said}");
        assert!(said.contains(HINT), "{said}");
    }

    #[test]
    fn failures_that_the_program_saw_are_listed_first() {
        let drops: String = ('a'..'p').map(|letter| format!("dropped 7: drop {letter}\n")).collect();
        let said = told(&format!("failed 7: bad\nevent 7: lost\n{drops}"), ProgramEnd::Failed);
        assert!(said.contains("kinds:\n  bad\n  lost\n  drop l\n"), "{said}");
    }

    #[test]
    fn counts_of_fault_rules_are_no_reasons() {
        let step = "noted 7: fault: by rule 1 (loss 5%) 10 packets were lost; the last: x of QP 0x1\n";
        for end in [ProgramEnd::Succeeded, ProgramEnd::Stopped, ProgramEnd::Failed] {
            assert_eq!(told(&format!("opened 7: a device\n{step}"), end), "");
        }
        let said = told(
            &format!("{step}failed 7: retries\nrefused 7: fault: create_qp fails by rule 2 (x)\n"),
            ProgramEnd::Failed,
        );
        assert!(said.contains("failed:\n  fault: create_qp fails by rule 2 (x)\n  retries\nsofthca"), "{said}");
    }

    #[test]
    fn an_orderly_end_is_no_failure() {
        let teardown = "opened 7: a device\nnoted 7: has lost its peer\nflushed 7: 3 requests\n";
        assert_eq!(told(teardown, ProgramEnd::Stopped), "");
        // A user may have stopped the program because it waited for this packet.
        let said = told(&format!("{teardown}dropped 7: another Q_Key\n"), ProgramEnd::Stopped);
        assert!(said.starts_with("softhca: errors during the run:\n  another Q_Key\n"), "{said}");
        let said = told(&format!("{teardown}dropped 7: another Q_Key\nfailed 7: bad\n"), ProgramEnd::Stopped);
        assert!(said.starts_with("softhca: errors during the run:\n  bad\n  has lost its peer\n  another"), "{said}");
    }

    #[test]
    fn a_failure_without_an_adapter_error_points_to_the_strict_mode() {
        let said = told("opened 7: a device\n", ProgramEnd::Failed);
        assert!(said.contains(HINT) && said.lines().count() == 1, "{said}");
        let said = told("opened 7: a device\nnoted 7: has lost its peer\n", ProgramEnd::Failed);
        assert!(said.contains("may have failed:\n  has lost its peer\n") && said.contains(HINT), "{said}");
        for (lines, end) in [
            ("", ProgramEnd::Failed),
            ("opened 7: a device\nfailed 7: bad\n", ProgramEnd::Failed),
            ("opened 7: a device\nrefused 7: no\n", ProgramEnd::Failed),
            ("opened 7: a device\n", ProgramEnd::Stopped),
            ("opened 7: a device\n", ProgramEnd::Succeeded),
        ] {
            assert!(!told(lines, end).contains(HINT), "{lines} {end:?}");
        }
    }

    #[test]
    fn control_characters_of_reasons_are_not_printed() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        fs::write(reasons.file(), b"failed 7: \x1b[2J\x07 \xff\n").expect("written");
        let (told, _) = reasons.told(ProgramEnd::Failed, false);
        assert!(told.chars().all(|letter| letter == '\n' || !letter.is_control()), "{told:?}");
    }

    #[test]
    fn numbers_make_no_difference() {
        assert_eq!(form("QP 0x1f, wr_id 12: 7 bytes at 0xdead"), form("QP 0x200, wr_id 0xab: 4096 bytes at 0x1"));
        assert_ne!(form("QP 0x1f: bad"), form("QP 0x1f: worse"));
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
