//! Prints the output of both sides line by line, with the side's name before each line. Standard
//! output and standard error stay separate. The principal type is [`Prefixed`].

use std::io::{BufRead, BufReader, Read, Write, stderr, stdout};
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Role;
use crate::colour::{Colour, paint, wanted};

/// How long the last lines may take after all writers have ended.
const LAST: Duration = Duration::from_secs(2);

/// The most bytes of a line. A longer line is printed in pieces.
const LONGEST: u64 = 64 << 10;

/// The output of both sides.
pub(super) struct Prefixed {
    /// Locked while a thread prints a line.
    turn: Arc<Mutex<()>>,
    /// A sender for each stream that is read. It is dropped at the stream's end.
    reads: Mutex<Option<Sender<()>>>,
    all_read: Receiver<()>,
}

#[derive(Debug, Clone, Copy)]
enum Stream {
    Output,
    Errors,
}

impl Prefixed {
    pub(super) fn new() -> Self {
        let (reads, all_read) = channel();
        Self { turn: Arc::default(), reads: Mutex::new(Some(reads)), all_read }
    }

    /// Prints what a side writes. Each stream has its own thread.
    pub(super) fn read(&self, role: Role, child: &mut Child) -> Result<(), String> {
        if let Some(output) = child.stdout.take() {
            self.follow(role, Stream::Output, output)?;
        }
        child.stderr.take().map_or(Ok(()), |errors| self.follow(role, Stream::Errors, errors))
    }

    fn follow(&self, role: Role, to: Stream, from: impl Read + Send + 'static) -> Result<(), String> {
        let colours = match to {
            Stream::Output => wanted(&stdout()),
            Stream::Errors => wanted(&stderr()),
        };
        let colour = if role == Role::Server { Colour::Cyan } else { Colour::Green };
        let prefix = paint(&format!("{}:", role.name()), colour, colours) + " ";
        let (turn, reads) = (Arc::clone(&self.turn), self.reads.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let print = move || {
            let mut from = BufReader::new(from);
            let mut line = prefix.clone().into_bytes();
            while matches!((&mut from).take(LONGEST).read_until(b'\n', &mut line), Ok(1..)) {
                if !line.ends_with(b"\n") {
                    line.push(b'\n');
                }
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                // The reader may have gone; the sides continue.
                let _ = match to {
                    Stream::Output => stdout().write_all(&line).and_then(|()| stdout().flush()),
                    Stream::Errors => stderr().write_all(&line),
                };
                line.truncate(prefix.len());
            }
            drop(reads);
        };
        let thread = std::thread::Builder::new().name("output".to_owned()).spawn(print);
        thread.map(drop).map_err(|error| format!("pthread_create: {error}"))
    }

    /// Waits until all output is printed.
    pub(super) fn finish(self) {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).take();
        // This returns an error when all senders are dropped, or when the time is over.
        let _ = self.all_read.recv_timeout(LAST);
    }
}
