//! Acknowledgements: how many events of an object the program has acknowledged. Destroying an
//! object waits until every event that was read is acknowledged (V-90), so that no handler keeps a
//! dangling pointer. The principal type is [`Acks`]; reading events is not here.

use engine::lint::Lint;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// Counts of acknowledged events. They wrap, as the counts of read events do.
#[derive(Default)]
pub(crate) struct Acks {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    completion: u32,
    asynchronous: u32,
}

impl Acks {
    /// Acknowledges `count` completion events, and returns the total.
    pub(crate) fn completion(&self, count: u32) -> u32 {
        let mut counts = self.counts.lock();
        counts.completion = counts.completion.wrapping_add(count);
        self.changed.notify_all();
        counts.completion
    }

    /// Acknowledges one asynchronous event, and returns the total.
    pub(crate) fn asynchronous(&self) -> u32 {
        let mut counts = self.counts.lock();
        counts.asynchronous = counts.asynchronous.wrapping_add(1);
        self.changed.notify_all();
        counts.asynchronous
    }

    /// Waits until at least as many events are acknowledged as were read. The count may be higher,
    /// because another thread may read and acknowledge an event after the caller took the number.
    pub(crate) fn wait(&self, completion: u32, asynchronous: u32) {
        let mut counts = self.counts.lock();
        while missing(counts.completion, completion) || missing(counts.asynchronous, asynchronous) {
            self.changed.wait(&mut counts);
        }
    }
}

/// How long a destroying thread waits before strict mode reports it. A program that acknowledges
/// events on another thread does so sooner.
const LONG: Duration = Duration::from_secs(1);

impl Acks {
    /// As [`Acks::wait`], for `call`. In strict mode, a long wait is reported.
    pub(crate) fn wait_for(&self, lint: Option<&Lint>, call: &'static str, completion: u32, asynchronous: u32) {
        if let Some(lint) = lint {
            let mut counts = self.counts.lock();
            let lacking = |counts: &mut Counts| {
                missing(counts.completion, completion) || missing(counts.asynchronous, asynchronous)
            };
            if self.changed.wait_while_for(&mut counts, lacking, LONG).timed_out() {
                let more = |done: u32, read: u32| if missing(done, read) { read.wrapping_sub(done) } else { 0 };
                let count = more(counts.completion, completion) + more(counts.asynchronous, asynchronous);
                drop(counts);
                lint.unacknowledged(call, count);
            }
        }
        self.wait(completion, asynchronous);
    }
}

/// Whether fewer events are acknowledged than were read. Both counts wrap.
fn missing(acknowledged: u32, read: u32) -> bool {
    read.wrapping_sub(acknowledged).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_destroyer_waits_for_the_last_acknowledgement() {
        let acks = Arc::new(Acks::default());
        let destroyer = {
            let acks = Arc::clone(&acks);
            std::thread::spawn(move || acks.wait(3, 1))
        };
        acks.completion(2);
        acks.asynchronous();
        assert!(!destroyer.is_finished());
        acks.completion(1);
        destroyer.join().unwrap();
    }

    #[test]
    fn more_acknowledged_than_counted_is_nothing_to_wait_for() {
        let acks = Acks::default();
        acks.asynchronous();
        acks.wait(0, 0);
        assert!(missing(u32::MAX, 0) && !missing(0, u32::MAX));
    }

    #[test]
    fn nothing_read_is_nothing_to_wait_for() {
        Acks::default().wait(0, 0);
    }
}
