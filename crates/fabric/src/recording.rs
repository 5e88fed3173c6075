//! A capture of a whole fabric, written to a file while its programs run. Principal type:
//! [`Recording`].

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use capture::{PcapNg, Session, Wanted};

use crate::Fabric;
use crate::host::Host;

/// The interval at which copies are collected.
const ROUND: Duration = Duration::from_millis(2);

/// A capture that runs until it is finished or dropped.
#[derive(Debug)]
#[must_use = "a recording that is dropped at once has nothing in it"]
pub struct Recording {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Host {
    /// Begins to capture the packets of every program of this host, for a caller that looks at them
    /// one by one.
    ///
    /// # Errors
    /// The agent refuses, because there are too many captures.
    pub fn capture(&self, wanted: Wanted) -> Result<Session, capture::Error> {
        Session::begin(self.agent().admin()?, wanted)
    }
}

impl Fabric {
    /// Writes every packet of every host to `file`, for Wireshark. Packets over lanes appear once,
    /// and packets between hosts appear as they leave and as they arrive.
    ///
    /// # Errors
    /// The file cannot be written, or the agents refuse.
    pub fn capture(&self, file: impl AsRef<Path>) -> io::Result<Recording> {
        let begin = |host: &Host| host.capture(Wanted::default()).map_err(io::Error::other);
        let mut sessions = self.hosts().iter().map(begin).collect::<io::Result<Vec<Session>>>()?;
        let ports = sessions.first().map(|session| session.ports().to_vec()).unwrap_or_default();
        let mut to = PcapNg::begin(BufWriter::new(File::create(file)?), &ports, 0)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let record = move || {
            let mut seen = 0;
            loop {
                let stops = told.load(Ordering::Relaxed);
                let mut packets = Vec::new();
                for session in &mut sessions {
                    // A host that has ended has no more packets.
                    packets.extend(if stops { session.finish() } else { session.take().unwrap_or_default() });
                }
                packets.sort_by_key(|packet| packet.time);
                for packet in &packets {
                    seen += u64::from(to.write(packet)?);
                }
                if stops {
                    break;
                }
                std::thread::sleep(ROUND);
            }
            let lost = sessions.iter().map(Session::lost).sum();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
            to.end(now, seen, lost)?;
            Ok(seen)
        };
        let thread = Some(std::thread::Builder::new().name("capture".into()).spawn(record)?);
        Ok(Recording { stop, thread })
    }
}

impl Recording {
    /// Ends the capture, with everything that was sent so far. Returns the number of packets.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.end()
    }

    fn end(&mut self) -> io::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(0) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes has panicked")))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // `finish` reports write errors; a drop cannot.
        let _ = self.end();
    }
}
