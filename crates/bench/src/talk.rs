//! The control messages between the two sides: lines of JSON over a socket, and a thread that
//! notices the other side's end at once.
//!
//! The principal types are [`Talk`], which waits for the other side's messages, and [`Watch`],
//! which tells every thread of a side that the measurement is over.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::plan::Plan;

/// The longest line. Measurements with many queue pairs have long lines.
const LONGEST: u64 = 8 << 20;
/// The greeting in the first message. Both sides must have the same one.
const GREETING: &str = concat!("softhca-bench ", env!("CARGO_PKG_VERSION"));

/// A message from one side to the other.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The asking side begins.
    Plan { greeting: String, plan: Plan },
    /// The endpoints of the queue pairs, and the address of each thread's memory, as text.
    Ends { ends: Vec<String>, windows: Vec<String> },
    /// The queue pairs are connected, or the threads are at work.
    Ready,
    /// Begins a size, by its number.
    Begin(usize),
    /// All operations of a size have completed, with the number for each queue pair.
    Done(Vec<u64>),
    /// This side has failed.
    Failed(String),
    /// The measurement is complete.
    Bye,
}

impl Word {
    /// The first message.
    pub(crate) fn plan(plan: &Plan) -> Self {
        Self::Plan { greeting: GREETING.to_owned(), plan: plan.clone() }
    }

    /// The other side's plan, if both sides use the same protocol.
    pub(crate) fn into_plan(self) -> Result<Plan> {
        match self {
            Self::Plan { greeting, plan } if greeting == GREETING => plan.check().map(|()| plan),
            Self::Plan { greeting, .. } => Err(Error::Language(format!("{greeting:?} instead of {GREETING:?}"))),
            other => Err(Error::Language(format!("{other:?} at the beginning"))),
        }
    }
}

/// Whether the measurement is over, for all threads of a side.
#[derive(Default)]
pub(crate) struct Watch {
    over: AtomicBool,
    why: Mutex<Option<Error>>,
}

impl Watch {
    /// Ends the measurement. The first reason is kept.
    pub(crate) fn end(&self, why: Error) {
        self.why.lock().get_or_insert(why);
        self.over.store(true, Ordering::Release);
    }

    /// Ends the measurement. The caller reports the reason itself.
    pub(crate) fn halt(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Returns an error as soon as the measurement is over. Only the first caller gets the reason.
    pub(crate) fn check(&self) -> Result<()> {
        if self.over.load(Ordering::Acquire) { Err(self.take()) } else { Ok(()) }
    }

    pub(crate) fn take(&self) -> Error {
        self.why.lock().take().unwrap_or(Error::Gone)
    }
}

/// The socket between the two sides.
pub struct Talk {
    out: Box<dyn Write + Send>,
    words: Receiver<Word>,
    pub(crate) watch: Arc<Watch>,
    shut: Box<dyn Fn() + Send>,
}

impl Talk {
    /// A connection over TCP, to another host or namespace. If the other host disappears silently,
    /// this side notices after some seconds.
    ///
    /// # Errors
    /// The socket's error.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        use rustix::net::sockopt;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(2))?;
        sockopt::set_tcp_keepcnt(&stream, 5)?;
        let (own, input) = (stream.try_clone()?, stream.try_clone()?);
        Self::over(stream, input, move || drop(own.shutdown(std::net::Shutdown::Both)))
    }

    /// A connection over a unix socket, to another process or thread.
    ///
    /// # Errors
    /// The socket's error.
    pub fn unix(stream: UnixStream) -> io::Result<Self> {
        let (own, input) = (stream.try_clone()?, stream.try_clone()?);
        Self::over(stream, input, move || drop(own.shutdown(std::net::Shutdown::Both)))
    }

    fn over(
        out: impl Write + Send + 'static,
        input: impl Read + Send + 'static,
        shut: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let (told, words) = mpsc::channel();
        let seen = Arc::clone(&watch);
        std::thread::Builder::new().name("bench-talk".to_owned()).spawn(move || {
            let mut input = BufReader::new(input);
            let why = loop {
                match next(&mut input) {
                    Ok(Some(Word::Failed(why))) => break Error::Other(why),
                    Ok(Some(word)) => drop(told.send(word)),
                    Ok(None) => break Error::Gone,
                    Err(error) => break error,
                }
            };
            seen.end(why);
        })?;
        Ok(Self { out: Box::new(out), words, watch, shut: Box::new(shut) })
    }

    pub(crate) fn say(&mut self, word: &Word) -> Result<()> {
        let mut line = serde_json::to_vec(word).map_err(io::Error::other)?;
        line.push(b'\n');
        let said = self.out.write_all(&line).and_then(|()| self.out.flush());
        // The other side may have sent a reason before it ended.
        said.map_err(|error| match (self.watch.check(), error) {
            (Err(why), _) => why,
            (Ok(()), error) if error.kind() == io::ErrorKind::BrokenPipe => Error::Gone,
            (Ok(()), error) => Error::Talk(error),
        })
    }

    /// The next message of the other side.
    pub(crate) fn hear(&mut self) -> Result<Word> {
        self.words.recv().map_err(|_| self.watch.take())
    }

    /// The reason of the other side's end, if it ends within this time.
    pub(crate) fn end_within(&mut self, time: Duration) -> Option<Error> {
        let end = std::time::Instant::now() + time;
        loop {
            match self.words.recv_timeout(end.saturating_duration_since(std::time::Instant::now())) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return Some(self.watch.take()),
            }
        }
    }

    pub(crate) fn hear_ready(&mut self) -> Result<()> {
        match self.hear()? {
            Word::Ready => Ok(()),
            other => Err(Error::Language(format!("{other:?} where it should be ready"))),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // This ends the listening thread.
        (self.shut)();
    }
}

fn next(input: &mut impl BufRead) -> Result<Option<Word>> {
    let mut line = Vec::new();
    input.take(LONGEST).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => {
            serde_json::from_slice(&line).map(Some).map_err(|error| Error::Language(format!("{error} in what it says")))
        }
        Some(_) if line.len() as u64 >= LONGEST => Err(Error::Language("a line without an end".to_owned())),
        // An incomplete line counts as no line.
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::{Talk, Word};
    use crate::{Error, Measure, Operation, Plan};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nonsense_and_other_versions_are_told() {
        for (line, word) in [("what?\n", "in what it says"), ("\"Bye\"\n", "at the beginning")] {
            let (mut there, here) = UnixStream::pair().expect("sockets");
            let mut talk = Talk::unix(here).expect("a talk");
            there.write_all(line.as_bytes()).expect("written");
            let told = talk.hear().and_then(Word::into_plan).expect_err("no plan").to_string();
            assert!(told.contains(word) && told.contains("another version of softhca bench"), "{told}");
        }
        let Word::Plan { plan, .. } = Word::plan(&Plan::new(Operation::Send, Measure::Lat)) else { panic!("no plan") };
        let old = Word::Plan { greeting: "softhca-bench 0.0.1".to_owned(), plan };
        assert!(matches!(old.into_plan(), Err(Error::Language(_))));
    }

    #[test]
    fn a_closed_connection_returns_gone() {
        let (there, here) = UnixStream::pair().expect("sockets");
        let mut talk = Talk::unix(here).expect("a talk");
        drop(there);
        assert!(matches!(talk.hear(), Err(Error::Gone)));
    }
}
