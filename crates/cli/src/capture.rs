//! `softhca capture`: writes the packets of all programs, on lanes and on the wire, to a pcapng
//! file, a pipe or the terminal.
//!
//! Options and words are those of tcpdump where tcpdump has them. The agent and the engines decide
//! which packets a user may see, and the crate `capture` reads these packets. This module filters,
//! counts and writes them. The principal function is [`run`].

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use capture::{Filter, Packet, PcapNg, Port, Session, Wanted, words};
use shm::Socket;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::arguments::Capture;
use crate::failure::{self, Failure};
use crate::place::Host;
use crate::start;
use engine::reason::say;

/// The longest wait for packets before the next check whether to stop.
const ROUND: Duration = Duration::from_millis(2);
/// The longest headers of a packet before its payload. Without payloads only these bytes are kept.
const HEADERS: usize = wire::MAX_LEN;
/// Bytes of a frame before the BTH, over IPv6. `-s` counts from the Ethernet header on, as in
/// tcpdump.
const BEFORE: usize = 14 + 40 + 8;

/// Captures until a signal, a limit or the end of the reader stops it.
pub(crate) fn run(wanted: &Capture, host: &Host) -> Result<String, Failure> {
    let filter = Filter::parse(&wanted.filter)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let run_dir = host.run_dir();
    // Programs may start later. The agent does not exit while a capture is connected to it.
    drop(start::ensure(host, &run_dir, start::Wanted::default())?);
    let socket = Socket::connect(&engine::rundir::admin(&run_dir))?;
    let session = Session::begin(socket, Wanted { room: wanted.buffer.saturating_mul(1024), most: most(wanted) })?;
    if let Some(device) = &wanted.interface
        && !session.devices().contains(device)
    {
        return Err(format!("unknown device {device}; the devices are {}", session.devices().join(", ")).into());
    }
    let output = Output::open(wanted, session.ports())?;
    if !wanted.quiet {
        let whose = if session.sees_everything() { "all programs" } else { "your own programs" };
        let devices = session.devices().join(", ");
        failure::tell(&format!("listening on {devices} of {}, {whose}; press ^C to stop\n", run_dir.display()));
    }
    let said = session.complaints();
    said.iter().for_each(|complaint| say(format_args!("{complaint}")));
    let mut capturing = Capturing { wanted, filter, output, said, seen: 0, taken: 0, is_over: false };
    let end = wanted.duration.map(|time| Instant::now() + time);
    capturing.go(session, &|| stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end))
}

/// The most bytes of a packet from its BTH on, 0 for all.
fn most(wanted: &Capture) -> usize {
    match (wanted.no_payload, wanted.snaplen) {
        (true, _) => HEADERS,
        (false, 0) => 0,
        (false, frame) => frame.saturating_sub(BEFORE).max(1),
    }
}

struct Capturing<'a> {
    wanted: &'a Capture,
    filter: Filter,
    output: Output,
    /// The complaints that the user has seen already.
    said: Vec<String>,
    /// Packets that have arrived. `taken` counts those of them that passed the filter.
    seen: u64,
    taken: u64,
    /// The requested number of packets has been written, or the reader has gone.
    is_over: bool,
}

impl Capturing<'_> {
    fn go(&mut self, mut session: Session, stops: &dyn Fn() -> bool) -> Result<String, Failure> {
        let mut lost = None;
        while !self.is_over && !stops() {
            let came = match session.take() {
                Ok(packets) => packets,
                Err(error) => {
                    lost = Some(error);
                    break;
                }
            };
            let idle = came.is_empty();
            self.show(came)?;
            if idle {
                thread::sleep(ROUND);
            }
        }
        if !self.is_over {
            self.show(session.finish())?;
        }
        let missing = session.lost();
        self.output.end(self.taken, missing).or_else(|error| self.fail(error))?;
        for complaint in session.complaints().iter().filter(|complaint| !self.said.contains(complaint)) {
            say(format_args!("{complaint}"));
        }
        if !self.wanted.quiet {
            failure::tell(&format!(
                "{} packets captured\n{} packets received by filter\n{missing} packets dropped by the capture\n",
                self.taken, self.seen
            ));
        }
        match lost {
            None => Ok(String::new()),
            Some(error) => Err(error.into()),
        }
    }

    /// Writes the wanted packets and flushes the output, so that a reader sees them at once.
    fn show(&mut self, packets: Vec<Packet>) -> Result<(), Failure> {
        if packets.is_empty() {
            return Ok(());
        }
        for mut packet in packets {
            self.seen += u64::from(packet.is_there());
            let here = self.wanted.interface.as_ref().is_none_or(|wanted| packet.device.as_deref() == Some(wanted));
            if !here || !self.filter.wants(&packet) {
                continue;
            }
            if self.wanted.no_payload {
                packet.strip();
            }
            match self.output.write(&packet) {
                Ok(true) => self.taken += 1,
                Ok(false) => {}
                Err(error) => return self.fail(error),
            }
            if self.wanted.count.is_some_and(|count| self.taken >= count) {
                self.is_over = true;
                break;
            }
        }
        self.output.flush().or_else(|error| self.fail(error))
    }

    /// A broken pipe is not a failure: the reader, such as Wireshark, was closed.
    fn fail(&mut self, error: io::Error) -> Result<(), Failure> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.is_over = true;
            return Ok(());
        }
        Err(unwritten(self.wanted, &error))
    }
}

/// Where packets go: a file, the terminal, or both.
struct Output {
    file: Option<PcapNg<Box<dyn Write>>>,
    printed: Option<(Words, BufWriter<io::Stdout>)>,
}

#[derive(Clone, Copy)]
enum Words {
    Line,
    Lines { payload: bool },
    Json,
}

/// The failure for packets that cannot be written to their destination.
fn unwritten(wanted: &Capture, error: &io::Error) -> Failure {
    let to = wanted.write.as_ref().filter(|path| path.as_os_str() != "-");
    let to = to.map_or("standard output".to_owned(), |path| path.display().to_string());
    format!("cannot write {to}: {}", shm::denied::told(error)).into()
}

impl Output {
    fn open(wanted: &Capture, ports: &[Port]) -> Result<Self, Failure> {
        let to_stdout = wanted.write.as_deref().is_some_and(|path| path.as_os_str() == "-");
        let prints = wanted.print || wanted.write.is_none();
        if to_stdout && prints {
            return Err("-w - and --print both write to standard output; choose one".into());
        }
        let to: Option<Box<dyn Write>> = match &wanted.write {
            None => None,
            Some(_) if to_stdout => Some(Box::new(BufWriter::new(io::stdout()))),
            Some(path) => {
                let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Some(Box::new(BufWriter::new(file)))
            }
        };
        let file = to.map(|to| PcapNg::begin(to, ports, wanted.snaplen as u32)).transpose();
        let file = file.map_err(|error| unwritten(wanted, &error))?;
        let how = match (wanted.json, wanted.verbose) {
            (true, _) => Words::Json,
            (false, 0) => Words::Line,
            (false, verbose) => Words::Lines { payload: verbose > 1 },
        };
        let mut output = Self { file, printed: prints.then(|| (how, BufWriter::new(io::stdout()))) };
        // A reader sees the file's header at once.
        output.flush().map_err(|error| unwritten(wanted, &error))?;
        Ok(output)
    }

    /// Writes a packet, and returns whether there was one to write.
    fn write(&mut self, packet: &Packet) -> io::Result<bool> {
        let mut written = false;
        if let Some(file) = &mut self.file {
            written = file.write(packet)?;
        }
        if let Some((how, to)) = &mut self.printed {
            written |= !packet.bytes.is_empty();
            match how {
                Words::Line => writeln!(to, "{}", words::line(packet))?,
                Words::Lines { payload } => write!(to, "{}", words::lines(packet, *payload))?,
                Words::Json => writeln!(to, "{}", crate::json::line(words::json(packet)))?,
            }
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.flush()?;
        }
        self.printed.as_mut().map_or(Ok(()), |(_, to)| to.flush())
    }

    fn end(&mut self, seen: u64, lost: u64) -> io::Result<()> {
        self.flush()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        self.file.take().map_or(Ok(()), |file| file.end(now, seen, lost).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::most;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    fn wanted(words: &[&str]) -> super::Capture {
        let all = [&["softhca", "capture"], words].concat();
        let Command::Capture(capture) = Arguments::parse_from(all).command else { panic!("another command") };
        capture
    }

    #[test]
    fn words_behind_the_options_are_the_filter() {
        let capture = wanted(&["-c", "3", "-w", "-", "host", "10.0.0.1", "and", "(qp", "0x11", "or", "cm)"]);
        assert_eq!((capture.count, capture.filter.len()), (Some(3), 7));
        assert!(capture::Filter::parse(&capture.filter).is_ok());
    }

    #[test]
    fn the_snap_length_counts_from_the_bth() {
        assert_eq!(most(&wanted(&[])), 0);
        assert_eq!(most(&wanted(&["-s", "128"])), 128 - 62);
        assert_eq!(most(&wanted(&["-s", "10"])), 1);
        assert_eq!(most(&wanted(&["--no-payload"])), wire::MAX_LEN);
    }
}
