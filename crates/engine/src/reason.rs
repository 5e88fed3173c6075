//! Reasons of failures: one sentence per failure, which names the objects.
//!
//! Each refused call, failed request and dropped packet notes one sentence here, where the failure
//! is decided and nowhere else. The sentences go to four places: the log; a short ring that a
//! program can read ([`last`]); the memory after the context page of an open device, where the
//! agent finds them for `softhca show --errors`; and the file that `softhca run` names in
//! `SOFTHCA_REASONS`, whose lines ([`Line`]) it prints at the end. Without failures, nothing is
//! formatted and nothing allocated. Principal type: [`Note`].

mod line;

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::queue::{REASON_LEN, REASONS, context_page};
pub use abi::reason::{ReasonKind, clean};
use abi::reason::{ReasonRecord, SENTENCE_MAX};
use parking_lot::Mutex;
use shm::cancellation::without_cancellation;
use shm::file_limit::without_signal;

pub use self::line::Line;
use crate::memory::View;

/// The environment variable that names the file to which reasons are appended.
pub const VARIABLE: &str = "SOFTHCA_REASONS";

/// How many sentences [`last`] can return.
const KEPT: usize = 256;

/// The most sentences that one process appends to the file, so that a program that fails in a loop
/// does not fill the disk.
const WRITTEN: u32 = 10_000;

/// Bytes of the longest sentence.
const LONGEST: usize = 2000;

/// The subject of a sentence.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// The kind of reason.
    pub kind: ReasonKind,
    /// The QP; 0 for none.
    pub qpn: u32,
    /// The request, if any.
    pub wr_id: Option<u64>,
    /// The status with which it ended.
    pub status: u32,
    /// The context page that gets the sentence; 0 for the page of the device that the program
    /// opened first.
    pub(crate) page: u64,
}

impl Note {
    /// A note without QP and request.
    #[must_use]
    pub fn new(kind: ReasonKind) -> Self {
        Self { kind, qpn: 0, wr_id: None, status: 0, page: 0 }
    }
}

/// The memory for sentences after one context page.
struct Page {
    name: u64,
    /// The process that owns it. Children do not write here.
    pid: u32,
    /// Whether its engine belongs to this process's own program, and not to a client whose engine
    /// runs here.
    is_home: bool,
    view: View,
    written: u32,
    /// The last sentence, and how often it was noted in a row.
    last: String,
    last_kind: ReasonKind,
    count: u32,
}

/// Whether a call was refused and the program has not succeeded with another one since.
static REFUSED: AtomicBool = AtomicBool::new(false);

struct Log {
    kept: VecDeque<(Note, String)>,
    file: Option<File>,
    written: u32,
    pages: Vec<Page>,
}

fn log() -> &'static Mutex<Log> {
    static LOG: OnceLock<Mutex<Log>> = OnceLock::new();
    LOG.get_or_init(|| Mutex::new(Log { kept: VecDeque::new(), file: file(), written: 0, pages: Vec::new() }))
}

/// Registers the memory after an engine's context page, until this value is dropped.
pub(crate) struct Attached(u64);

impl Attached {
    /// Writes the sentences of one engine after its context page from now on. With `is_home` the
    /// page is the program's own: it also gets sentences without an engine, and at once those from
    /// before any device was open.
    pub(crate) fn new(view: View, is_home: bool) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(1);
        let name = NAMES.fetch_add(1, Ordering::Relaxed);
        if view.len() < abi::queue::CONTEXT_LEN {
            // The agent does not show reasons.
            return Self(name);
        }
        let mut log = log().lock();
        let is_first = !log.pages.iter().any(|page| page.is_home);
        let mut page = Page {
            name,
            pid: std::process::id(),
            is_home,
            view,
            written: 0,
            last: String::new(),
            last_kind: ReasonKind::Noted,
            count: 0,
        };
        if is_home && is_first {
            let homeless = log.kept.iter().filter(|(note, _)| note.page == 0 && note.kind != ReasonKind::Dropped);
            homeless.for_each(|(note, sentence)| page.write(note, sentence));
        }
        log.pages.push(page);
        Self(name)
    }

    /// A note about an object of this engine.
    pub(crate) fn note(&self, kind: ReasonKind) -> Note {
        Note { page: self.0, ..Note::new(kind) }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        log().lock().pages.retain(|page| page.name != self.0);
    }
}

/// Passes a sentence to another library of the process. Returns whether that library notes it.
pub type Forward = fn(ReasonKind, &str) -> bool;

static FORWARD: OnceLock<Forward> = OnceLock::new();

/// Makes another library of this process, which has the engine, note all sentences. For a library
/// that has no device open.
pub fn forward(to: Forward) {
    // The first call counts.
    let _ = FORWARD.set(to);
}

/// Notes one sentence.
pub fn note(about: Note, sentence: fmt::Arguments<'_>) {
    // The data path notes its failures, too: see `entry.rs` of the C libraries.
    without_cancellation(|| noted(about, sentence));
}

fn noted(about: Note, sentence: fmt::Arguments<'_>) {
    // The sentence may contain names that other parties choose.
    let sentence = clean(&sentence.to_string(), LONGEST);
    if FORWARD.get().is_some_and(|forward| forward(about.kind, &sentence)) {
        return;
    }
    match about.kind {
        ReasonKind::Flushed => tracing::debug!(target: "softhca::reason", "{sentence}"),
        _ => tracing::warn!(target: "softhca::reason", "{sentence}"),
    }
    let mut log = log().lock();
    log.append(Line::Reason(about.kind, &sentence));
    if about.kind == ReasonKind::Refused {
        REFUSED.store(true, Ordering::Relaxed);
    }
    // Dropped packets have a table of their own there, so that other hosts cannot displace
    // sentences.
    let is_its = |page: &&mut Page| if about.page == 0 { page.is_home } else { page.name == about.page };
    if about.kind != ReasonKind::Dropped
        && let Some(page) = log.pages.iter_mut().find(is_its)
    {
        page.write(&about, &sentence);
    }
    let is_again = |note: &Note| note.kind == ReasonKind::Flushed && note.qpn == about.qpn;
    let again = about.kind == ReasonKind::Flushed && log.kept.back().is_some_and(|(note, _)| is_again(note));
    if again {
        log.kept.pop_back();
    } else if log.kept.len() == KEPT {
        log.kept.pop_front();
    }
    log.kept.push_back((about, sentence));
}

/// The program has made or changed an object. An earlier refusal was only an attempt, and does not
/// explain how the program ends.
pub(crate) fn went_on() {
    if REFUSED.load(Ordering::Relaxed) && REFUSED.swap(false, Ordering::Relaxed) {
        without_cancellation(|| log().lock().append(Line::WentOn));
    }
}

/// The program has opened a device. Before that, its failures do not concern softhca. The file is
/// not kept open for this: a program without failures needs its descriptors for other things.
pub(crate) fn opened() {
    if let Some(mut file) = file() {
        let _ = without_signal(|| file.write_all(Line::Opened.written(std::process::id()).as_bytes()));
    }
}

fn file() -> Option<File> {
    OpenOptions::new().append(true).open(std::env::var_os(VARIABLE)?).ok()
}

/// Prints a message on standard error. A full or closed standard error does not end the process,
/// which may be any program.
pub fn say(what: fmt::Arguments<'_>) {
    let _ = without_signal(|| std::io::stderr().write_all(format!("softhca: {what}\n").as_bytes()));
}

/// The last `n` sentences of this process, oldest first.
#[must_use]
pub fn last(n: usize) -> Vec<String> {
    let log = log().lock();
    log.kept.iter().skip(log.kept.len().saturating_sub(n)).map(|(_, sentence)| sentence.clone()).collect()
}

impl Log {
    fn append(&mut self, line: Line<'_>) {
        if self.written < WRITTEN
            && let Some(file) = &mut self.file
        {
            self.written += 1;
            // One write per line, so that the lines of several processes do not mix. On a full disk
            // reasons are lost, but work goes on.
            let _ = without_signal(|| file.write_all(line.written(std::process::id()).as_bytes()));
        }
    }
}

impl Page {
    /// Writes a sentence to the next record, or increments the count of the last record.
    fn write(&mut self, note: &Note, sentence: &str) {
        if self.pid != std::process::id() {
            return;
        }
        // Every connection that ends notes flushed requests. All such notes in a row share one
        // record.
        let flushed = note.kind == ReasonKind::Flushed;
        let again = self.last == sentence || (flushed && self.last_kind == ReasonKind::Flushed);
        self.last_kind = note.kind;
        if self.count > 0 && again {
            self.count += 1;
            self.written = self.written.wrapping_sub(1);
        } else {
            self.count = 1;
        }
        sentence.clone_into(&mut self.last);
        let at = context_page::REASONS + (self.written % REASONS) as usize * REASON_LEN;
        let text = clean(sentence, SENTENCE_MAX);
        let version = self.view.word(at);
        let odd = version.load(Ordering::Relaxed) | 1;
        // The agent sees the odd version before the record changes, and the even one after the
        // record is complete. The fence and the release store pair with the agent's acquire loads.
        version.store(odd, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        let record = ReasonRecord {
            version: odd,
            kind: note.kind as u32,
            time: crate::clock::since_1970(),
            qpn: note.qpn,
            count: self.count,
            wr_id: note.wr_id.unwrap_or_default(),
            has_wr_id: note.wr_id.is_some().into(),
            status: note.status,
            len: text.len() as u32,
            reserved: 0,
        };
        self.view.write(at, &record);
        self.view.write_bytes(at + size_of::<ReasonRecord>(), text.as_bytes());
        version.store(odd.wrapping_add(1), Ordering::Release);
        self.written = self.written.wrapping_add(1);
        self.view.word(context_page::REASONS_HEAD).store(self.written, Ordering::Release);
    }
}

/// Notes a reason without QP and request, with the arguments of `format!`.
#[macro_export]
macro_rules! reason {
    ($($arg:tt)*) => {
        $crate::reason::note($crate::reason::Note::new($crate::reason::ReasonKind::Noted), format_args!($($arg)*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::region::Region;

    fn page() -> (Region, Attached) {
        let (ours, fd) = Region::create("softhca-test", abi::queue::CONTEXT_LEN).expect("memory");
        let theirs = Region::map(std::os::fd::AsFd::as_fd(&fd), abi::queue::CONTEXT_LEN).expect("mapped");
        (ours, Attached::new(View::whole(theirs), false))
    }

    fn records(page: &Region) -> Vec<(ReasonRecord, String)> {
        let head = page.word(context_page::REASONS_HEAD).load(Ordering::Acquire);
        (0..head.min(REASONS))
            .map(|number| {
                let at = context_page::REASONS + number as usize * REASON_LEN;
                let record: ReasonRecord = page.read(at);
                let mut text = vec![0; record.len as usize];
                page.copy_out(at + size_of::<ReasonRecord>(), &mut text);
                (record, String::from_utf8(text).expect("text"))
            })
            .collect()
    }

    #[test]
    fn a_sentence_goes_behind_the_page_of_its_engine() {
        let ((one, first), (two, second)) = (page(), page());
        for round in [1, 1, 2] {
            let about = Note { qpn: 0x11, wr_id: Some(7), status: 12, ..first.note(ReasonKind::Failed) };
            note(about, format_args!("failed \x1b[1m in round {round}"));
        }
        note(Note { qpn: 0x12, ..second.note(ReasonKind::Refused) }, format_args!("{}", "long ".repeat(1000)));
        let seen = records(&one);
        let mine: Vec<_> = seen.iter().filter(|(record, _)| record.qpn == 0x11).collect();
        assert_eq!(mine.len(), 2, "{seen:?}");
        assert_eq!((mine[0].0.count, mine[0].1.as_str()), (2, "failed \u{fffd}[1m in round 1"));
        assert_eq!((mine[1].0.count, mine[1].0.wr_id, mine[1].0.has_wr_id, mine[1].0.status), (1, 7, 1, 12));
        assert_eq!((mine[1].0.kind, mine[1].0.version % 2), (ReasonKind::Failed as u32, 0));
        let long = records(&two);
        assert!(long.iter().any(|(record, text)| record.qpn == 0x12 && text.len() <= SENTENCE_MAX), "{long:?}");
        let late = first.note(ReasonKind::Failed);
        drop(first);
        note(late, format_args!("too late"));
        assert_eq!(records(&one).len(), seen.len());
    }

    #[test]
    fn the_ring_goes_round() {
        let (memory, attached) = page();
        for number in 0..3 * REASONS {
            note(attached.note(ReasonKind::Refused), format_args!("refusal {number}"));
        }
        let seen = records(&memory);
        assert_eq!(seen.len(), REASONS as usize);
        assert!(seen.iter().all(|(_, text)| text.len() > 8) && seen.iter().any(|(_, text)| text == "refusal 191"));
    }
}
