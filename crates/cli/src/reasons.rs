//! The reasons of one program run: the file that the verbs library appends to, and what is told at the end.
//!
//! A reason is one sentence per refused call or failed completion, written by the library where it is decided, in a line that begins
//! with its kind. The principal type is [`Reasons`].

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use engine::reason::Kind;

/// The variable that names the file to the library.
pub(crate) const VARIABLE: &str = engine::reason::VARIABLE;

/// How many different reasons are told.
const TOLD: usize = 6;

/// How much of the file is looked at, from its end: children of children may have written a lot.
const LOOKED_AT: u64 = 8 << 20;

/// Bytes of a sentence that is told.
const LONGEST: usize = 2000;

/// How sentences about faults on demand begin.
const FAULT: &str = "fault: ";

/// How many files of earlier runs are kept.
const KEPT: usize = 20;

/// The file of one run.
#[derive(Debug)]
pub(crate) struct Reasons {
    file: PathBuf,
}

/// Sentences that differ in numbers at most.
#[derive(Debug)]
struct Alike {
    /// The last of them.
    sentence: String,
    times: usize,
    /// When that one came.
    at: usize,
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

    /// What to print after a program: the last reasons, each once with how often it came. After one that has
    /// `succeeded`, which tries what may be refused, only those of requests that failed. Empty if there is nothing to tell.
    pub(crate) fn told(&self, succeeded: bool) -> String {
        let text = self.end().unwrap_or_default();
        let lines: Vec<(Kind, &str)> = text.lines().map(taken_apart).collect();
        let mut told = String::new();
        // What was injected explains why something took long, too.
        let is_told = |kind: Kind, sentence: &str| !succeeded || kind == Kind::Failed || sentence.starts_with(FAULT);
        let reasons = alike(lines.iter().filter(|(kind, sentence)| is_told(*kind, sentence)));
        if !reasons.is_empty() {
            let why = if succeeded { "what failed on the way" } else { "why something failed" };
            told += &format!("softhca: {}\n{}", heading(why, reasons.len(), TOLD), shown(&reasons, TOLD));
        }
        if told.is_empty() {
            return told;
        }
        told + &format!(
            "softhca: all reasons: {}; more: SOFTHCA_LOG=debug softhca run …; none of this: softhca run --quiet\n",
            self.file.display()
        )
    }

    /// The end of the file, of whole lines.
    fn end(&self) -> io::Result<String> {
        let mut file = File::open(&self.file)?;
        let skipped = file.metadata()?.len().saturating_sub(LOOKED_AT);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(LOOKED_AT).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let cut = if skipped > 0 { text.find('\n').map_or(text.len(), |end| end + 1) } else { 0 };
        Ok(text[cut..].to_owned())
    }

    /// Removes the file of a program that has nothing to tell.
    pub(crate) fn forget(self) {
        // A file that stays is only a file that stays.
        let _ = fs::remove_file(self.file);
    }
}

/// The kind of a line, and its sentence. Whoever writes a line without one is the program itself.
fn taken_apart(line: &str) -> (Kind, &str) {
    let known = line.split_once(": ").and_then(|(word, sentence)| Some((Kind::of_word(word)?, sentence)));
    known.unwrap_or((Kind::Noted, line))
}

/// Sentences that differ in numbers at most, in the order in which they came last.
fn alike<'a>(lines: impl Iterator<Item = &'a (Kind, &'a str)>) -> Vec<Alike> {
    let mut known: HashMap<String, Alike> = HashMap::new();
    for (at, (_, sentence)) in lines.enumerate() {
        let one = known.entry(form(sentence)).or_insert_with(|| Alike { sentence: String::new(), times: 0, at });
        *one = Alike { sentence: (*sentence).to_owned(), times: one.times + 1, at };
    }
    let mut all: Vec<Alike> = known.into_values().collect();
    all.sort_by_key(|one| one.at);
    all
}

/// A sentence with its numbers taken out.
fn form(sentence: &str) -> String {
    let mut form = String::with_capacity(sentence.len());
    let mut number = false;
    for letter in sentence.chars() {
        // A number goes on with what may be in hexadecimal ones.
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
        count => format!("{what}, the last {most} of {count} kinds:"),
    }
}

fn shown(all: &[Alike], most: usize) -> String {
    let line = |one: &Alike| {
        let sentence = engine::reason::clean(&one.sentence, LONGEST);
        match one.times {
            1 => format!("  {sentence}\n"),
            times => format!("  {sentence} ({times} times like this)\n"),
        }
    };
    all[all.len().saturating_sub(most)..].iter().map(line).collect()
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
    use super::{Reasons, TOLD, form};
    use std::fs;

    #[test]
    fn the_last_ones_are_told_each_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        assert_eq!(reasons.told(false), "");
        let lines = "failed: QP 0x1f, wr_id 0x2: bad\nrefused: no\nnot from here\nfailed: QP 0x20, wr_id 0x3e: bad\n";
        fs::write(reasons.file(), lines).expect("written");
        let expected =
            "softhca: why something failed:\n  no\n  not from here\n  QP 0x20, wr_id 0x3e: bad (2 times like this)\n";
        assert!(reasons.told(false).starts_with(expected), "{}", reasons.told(false));
        let many: String = ('a'..'p').map(|letter| format!("failed: {letter}\n")).collect();
        fs::write(reasons.file(), many).expect("written");
        let told = reasons.told(false);
        assert!(told.contains(&format!("the last {TOLD} of 15 kinds")) && told.contains("  o\n"), "{told}");
        assert!(!told.contains("  a\n"), "{told}");
        reasons.forget();
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_program_that_succeeded_hears_of_requests_that_failed() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        fs::write(reasons.file(), "refused: no\nflushed: 3\nnoted: x\ndropped: y\n").expect("written");
        assert_eq!(reasons.told(true), "");
        fs::write(reasons.file(), "refused: no\nfailed: bad\n").expect("written");
        let told = reasons.told(true);
        assert!(told.contains("on the way:\n  bad\n"), "{told}");
        assert!(!told.contains("no\n"), "{told}");
    }

    #[test]
    fn what_a_program_writes_there_commands_no_terminal() {
        let folder = tempfile::tempdir().expect("a folder");
        let reasons = Reasons::new(folder.path()).expect("a file");
        fs::write(reasons.file(), b"failed: \x1b[2J\x07 \xff\n").expect("written");
        let told = reasons.told(false);
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
