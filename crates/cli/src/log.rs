//! The agent's log. It is a file of limited length, with one older file beside it. No user can
//! crowd out the lines that other users cause.
//!
//! Lines about the work of one user ([`agent::account`]) are limited by [`Rates`]. Suppressed lines
//! are counted, and the next line that is allowed reports the count. The principal type is [`Log`].

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// At this length, a log file becomes the older file.
const LIMIT: u64 = 16 << 20;
/// How many lines about one user may come at once, and the time after which one more line may come.
const BURST: u32 = 200;
const PAUSE: Duration = Duration::from_secs(1);
/// How many users are counted separately. All other users are counted together.
const USERS: usize = 4096;

/// The path of the older log.
fn older(log: &Path) -> PathBuf {
    log.with_extension("log.old")
}

/// Opens a log to append to it. A log that is too long becomes the older one first.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > LIMIT) {
        fs::rename(path, older(path))?;
    }
    begin(path)
}

fn begin(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The destination of the agent's log lines.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Writer>>);

struct Writer {
    began: Instant,
    /// The rates, if users are limited.
    rates: Option<Rates>,
    file: Option<Rotating>,
}

/// Standard error, as a file that is rotated.
struct Rotating {
    path: PathBuf,
    written: u64,
    limit: u64,
    /// Makes a new file standard error.
    replace: fn(&File) -> io::Result<()>,
}

impl Log {
    /// A log on standard error; `path` is its file, if it is a file. `many`: the agent serves many
    /// users, so users are limited.
    pub(crate) fn new(path: Option<PathBuf>, many: bool) -> Self {
        let file = path.map(|path| Rotating {
            written: fs::metadata(&path).map_or(0, |meta| meta.len()),
            path,
            limit: LIMIT,
            replace: shm::inherit::become_standard_error,
        });
        Self(Arc::new(Mutex::new(Writer { began: Instant::now(), rates: many.then(Rates::default), file })))
    }
}

impl Write for Log {
    /// Writes one whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Ok(mut writer) = self.0.lock() {
            // A line for which a full disk has no room is lost without an error, and the agent
            // continues.
            let _ = writer.line(line, agent::account::current(), &mut io::stderr());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Writer {
    fn line(&mut self, line: &[u8], user: Option<u32>, out: &mut impl Write) -> io::Result<()> {
        let now = self.began.elapsed();
        let (told, admitted) = match &mut self.rates {
            Some(rates) => (rates.left_out(now), rates.admit(now, user)),
            None => (Vec::new(), true),
        };
        for (user, count) in told {
            let of = user.map_or("no specific user".to_owned(), |uid| format!("user {uid}"));
            self.put(format!("{count} lines about {of} were suppressed here\n").as_bytes(), out)?;
        }
        if admitted { self.put(line, out) } else { Ok(()) }
    }

    fn put(&mut self, line: &[u8], out: &mut impl Write) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.make_room(line.len() as u64)?;
        }
        out.write_all(line)
    }
}

impl Rotating {
    fn make_room(&mut self, len: u64) -> io::Result<()> {
        self.written += len;
        if self.written > self.limit {
            // If this fails, the next try comes after another `limit` bytes: the agent keeps its
            // log.
            self.written = len;
            fs::rename(&self.path, older(&self.path))?;
            (self.replace)(&begin(&self.path)?)?;
        }
        Ok(())
    }
}

/// How many lines each user may still write. Time is an argument.
#[derive(Debug, Default)]
struct Rates {
    users: HashMap<Option<u32>, Rate>,
}

#[derive(Debug)]
struct Rate {
    /// Lines that may come now, as of `since`.
    lines: u32,
    since: Duration,
    left_out: u64,
}

impl Rates {
    /// Whether a line about `user` may come. A line that may not come is counted.
    fn admit(&mut self, now: Duration, user: Option<u32>) -> bool {
        // A user whose allowance is full again can be forgotten.
        if self.users.len() >= USERS && !self.users.contains_key(&user) {
            self.users.retain(|_, rate| {
                rate.catch_up(now);
                rate.lines < BURST || rate.left_out > 0
            });
        }
        let user = if self.users.len() >= USERS && !self.users.contains_key(&user) { None } else { user };
        let rate = self.users.entry(user).or_insert(Rate { lines: BURST, since: now, left_out: 0 });
        rate.catch_up(now);
        let left = rate.lines.checked_sub(1);
        rate.lines = left.unwrap_or(0);
        rate.left_out += u64::from(left.is_none());
        left.is_some()
    }

    /// The suppressed lines of users who may have lines again. Each count is returned once.
    fn left_out(&mut self, now: Duration) -> Vec<(Option<u32>, u64)> {
        let mut told = Vec::new();
        for (user, rate) in self.users.iter_mut().filter(|(_, rate)| rate.left_out > 0) {
            rate.catch_up(now);
            if rate.lines > 0 {
                rate.lines -= 1;
                told.push((*user, std::mem::take(&mut rate.left_out)));
            }
        }
        told
    }
}

impl Rate {
    fn catch_up(&mut self, now: Duration) {
        let pauses = u32::try_from(now.saturating_sub(self.since).as_nanos() / PAUSE.as_nanos()).unwrap_or(u32::MAX);
        self.since += PAUSE.saturating_mul(pauses);
        self.lines = self.lines.saturating_add(pauses).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Option<u32> = Some(1);
    const BOB: Option<u32> = Some(2);

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn a_user_who_causes_many_lines_is_limited_and_others_are_not() {
        let mut rates = Rates::default();
        let admitted = (0..10_000).filter(|_| rates.admit(second(0), ALICE)).count();
        assert_eq!(admitted, BURST as usize);
        assert!(rates.admit(second(0), BOB) && rates.admit(second(0), None));
        assert!(rates.left_out(second(0)).is_empty(), "there is no room for it yet");
        assert_eq!(rates.left_out(second(2)), [(ALICE, 10_000 - u64::from(BURST))]);
        assert!(rates.left_out(second(2)).is_empty(), "once");
        assert!(rates.admit(second(2), ALICE) && !rates.admit(second(2), ALICE));
        let later = second(2 + 2 * u64::from(BURST));
        assert_eq!(rates.left_out(later), [(ALICE, 1)]);
        assert_eq!((0..1_000).filter(|_| rates.admit(later, ALICE)).count(), BURST as usize - 1);
    }

    #[test]
    fn many_users_do_not_fill_the_memory() {
        let mut rates = Rates::default();
        for user in 0..3 * USERS as u32 {
            rates.admit(second(0), Some(user));
        }
        assert!(rates.users.len() <= USERS + 1);
        assert!(rates.admit(second(10_000), Some(u32::MAX)));
        assert!(rates.users.len() <= 2, "who was quiet is forgotten");
    }

    #[test]
    fn a_log_that_is_full_becomes_the_older_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.log");
        fs::write(&path, "from before\n").expect("written");
        let file = Rotating { path: path.clone(), written: 12, limit: 100, replace: |_| Ok(()) };
        let mut writer = Writer { began: Instant::now(), rates: Some(Rates::default()), file: Some(file) };
        for number in 0..1_000 {
            // This buffer stands for the agent's standard error.
            let mut out = Vec::new();
            writer.line(format!("{number:09}\n").as_bytes(), ALICE, &mut out).expect("written");
            begin(&path).and_then(|mut log| log.write_all(&out)).expect("written");
        }
        writer.line(b"of bob\n", BOB, &mut begin(&path).expect("open")).expect("written");
        let (log, old) = (fs::read_to_string(&path).expect("read"), fs::read_to_string(older(&path)).expect("read"));
        assert!(log.ends_with("of bob\n") && log.len() <= 110 && old.len() <= 110, "{log}{old}");
        assert!(old.contains("0000001") && fs::read_dir(folder.path()).expect("read").count() == 2, "{old}");
    }

    #[test]
    fn a_long_log_is_put_aside_when_an_agent_starts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.log");
        File::create(&path).and_then(|file| file.set_len(LIMIT + 1)).expect("made");
        assert_eq!(open(&path).and_then(|log| log.metadata()).expect("opened").len(), 0);
        assert_eq!(fs::metadata(older(&path)).expect("there").len(), LIMIT + 1);
        open(&path).and_then(|mut log| log.write_all(b"on")).expect("written");
        assert_eq!(open(&path).and_then(|log| log.metadata()).expect("opened").len(), 2, "it goes on");
    }
}
