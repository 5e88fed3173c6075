//! The wire thread: it reads the sockets unless an engine does, and forwards misdelivered packets.
//!
//! The thread sleeps without a timeout, except while an engine holds the lease. It never waits for
//! a client. The principal type is [`WireThread`].

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::forwarder::Forwarder;
use super::intake::Intake;
use super::lease::ReceiveLease;

/// Bytes of the longest batch that the kernel returns, and of the longest record of a lane.
pub(crate) const BUFFER: usize = 64 * 1024;
/// How long the thread leaves the sockets alone after an unexpected error of a system call.
const FAILED: Duration = Duration::from_millis(100);

/// The running thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct WireThread {
    intake: Arc<Intake>,
    thread: Option<JoinHandle<()>>,
}

impl WireThread {
    /// Starts the thread.
    pub(crate) fn start(intake: Arc<Intake>, forwarder: Arc<Forwarder>) -> io::Result<Self> {
        let shared = Arc::clone(&intake);
        let thread = std::thread::Builder::new().name("softhca-wire".into()).spawn(move || run(&shared, &forwarder));
        let thread = thread.map_err(shm::denied::named("pthread_create"))?;
        Ok(Self { intake, thread: Some(thread) })
    }
}

impl Drop for WireThread {
    fn drop(&mut self) {
        self.intake.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(intake: &Intake, forwarder: &Forwarder) {
    let mut lease = ReceiveLease::new(Arc::clone(intake.page()));
    let mut buffer = vec![0; BUFFER];
    let mut events = Vec::new();
    let mut listens = true;
    // Engines that have more records than were taken.
    let mut left: Vec<u32> = Vec::new();
    while !intake.is_stopping() {
        let timeout = if left.is_empty() { lease.pause() } else { Some(Duration::ZERO) };
        let news = match intake.wait(&mut events, timeout) {
            Ok(news) => news,
            Err(error) => {
                tracing::error!(%error, "the wire thread cannot wait: nothing comes from other hosts any more");
                return;
            }
        };
        let mut engines = std::mem::take(&mut left);
        engines.extend(news.engines.iter().copied().filter(|engine| !engines.contains(engine)).collect::<Vec<_>>());
        engines.iter().for_each(|engine| forwarder.go_on(*engine));
        // The lease holder may have written misdelivered packets without a notification yet, so its
        // lane is also read.
        engines.extend(lease.holder().filter(|holder| !engines.contains(holder)));
        left = engines.into_iter().filter(|engine| forwarder.take_records(*engine, &mut buffer)).collect();

        let mut read = Ok(());
        if news.datagrams && lease.holder().is_none() {
            read = intake.read(&mut events, &mut buffer, forwarder);
        }
        if news.to_groups {
            read = read.and(intake.read_groups(&mut events, &mut buffer, forwarder));
        }
        if let Err(error) = read {
            tracing::warn!(%error, "a receiving socket failed");
            std::thread::sleep(FAILED);
        }
        let holder = lease.holder();
        lease.look(Instant::now(), |engine| match holder {
            Some(holder) if holder == engine => forwarder.shares(engine),
            _ => forwarder.may_begin(engine),
        });
        let wanted = lease.holder().is_none();
        if wanted != listens {
            match intake.listen(wanted) {
                Ok(()) => listens = wanted,
                Err(error) => tracing::warn!(%error, "the receiving sockets cannot be watched"),
            }
        }
    }
}
