//! `softhca sm`: a subnet manager on one port of the agent, with subnet administration.
//!
//! The crate `sm` decides everything. This module has the rest: options, the port, the clock, the
//! file of LIDs, and what is printed. The principal function is [`run`].
#![allow(clippy::disallowed_methods, reason = "the manager needs real time")]

mod link;
mod options;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::kept_lids::keep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use sm::{Event, Manager, Service};
use wire::smp::SmState;

use engine::reason::say;

use crate::failure::Failure;
use crate::place::{self, Host};
use crate::{signals, start};

use link::{Incoming, MadPort};
pub(crate) use options::{EXAMPLES, Sm};

/// Manages the subnet until a signal ends it.
pub(crate) fn run(options: &Sm, host: &Host) -> Result<String, Failure> {
    let stop = signals::stop()?;
    let settings = options.settings();
    let bad = |error: sm::BadSettings| Failure::of_options(error.to_string());
    let config = settings.config(sm::Config::default(), |path| fs::read_to_string(path)).map_err(bad)?;
    let lids = settings.kept_lids(|path| fs::read_to_string(path)).map_err(bad)?;
    let run_dir = place::run_dir_of(host, options.node.as_deref())?;
    let agent = match options.node {
        Some(_) => None,
        None => Some(start::answering(&run_dir)?.ok_or("no agent runs here; start one: softhca agent --topology")?),
    };
    let is_alone = agent.as_ref().is_some_and(|agent| agent.ask_for(&json!({ "request": "subnet" })).is_err());
    if is_alone {
        say(format_args!(
            "this agent has no topology: the port has no neighbour, and the manager manages this port alone; \
             `softhca agent --topology FILE` makes a subnet"
        ));
    }
    let link = MadPort::open(&run_dir, options.port)?;
    let guid = link.guid().ok_or("the port has no GUID")?;
    let mut manager = Manager::new(config, guid, u64::from(random()? >> 1));
    manager.set_lids(lids);
    let kept = settings.lids;
    RunningManager { options, kept, link, service: Service::new(manager), start: Instant::now(), sent: 0, is_alone }
        .serve(&stop)
}

/// A number that no peer can guess.
fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

struct RunningManager<'a> {
    options: &'a Sm,
    /// The file of LIDs.
    kept: Option<PathBuf>,
    link: MadPort,
    service: Service,
    start: Instant,
    sent: u64,
    /// The port has no neighbour, which is no error then.
    is_alone: bool,
}

impl RunningManager<'_> {
    fn serve(mut self, stop: &OwnedFd) -> Result<String, Failure> {
        self.service.handle_timeout(self.start.elapsed());
        loop {
            while let Some(outgoing) = self.service.poll_transmit() {
                self.sent += 1;
                // What cannot be sent is lost, and is sent again.
                let _ = self.link.send(&outgoing);
            }
            while let Some(event) = self.service.poll_event() {
                self.tell(&event)?;
                match &event {
                    Event::Up(up) if self.options.once && up.errors != 0 && !self.is_alone => {
                        return Err(String::new().into());
                    }
                    // Another manager has brought the subnet up.
                    Event::Up(_) | Event::State(SmState::Standby) if self.options.once => return Ok(String::new()),
                    _ => {}
                }
            }
            if self.wait(stop)? {
                return Ok(String::new());
            }
            while let Some(incoming) = self.link.next()? {
                let now = self.start.elapsed();
                match incoming {
                    Incoming::Management(from, mad) => self.service.receive_management(from, &mad, now),
                    Incoming::Administration(from, mad) => self.service.receive_administration(from, &mad, now),
                }
            }
            let now = self.start.elapsed();
            if self.service.next_timeout().is_some_and(|next| next <= now) {
                self.service.handle_timeout(now);
            }
        }
    }

    /// Waits for a datagram, the next timeout or the end. Returns whether it is the end.
    fn wait(&self, stop: &OwnedFd) -> io::Result<bool> {
        let left = self.service.next_timeout().map(|next| next.saturating_sub(self.start.elapsed()));
        let left = left.unwrap_or(Duration::from_secs(1));
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut files = [PollFd::new(stop, PollFlags::IN), PollFd::new(&self.link, PollFlags::IN)];
        match poll(&mut files, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!files[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    fn tell(&self, event: &Event) -> Result<(), Failure> {
        let (text, object) = match event {
            Event::Up(up) => {
                let ms = up.took.as_secs_f64() * 1e3;
                (
                    format!("{up}, {ms:.1} ms, {} datagrams", self.sent),
                    json!({ "event": "up", "switches": up.switches, "adapters": up.adapters, "errors": up.errors,
                        "sweeps": up.sweeps, "ms": ms, "datagrams": self.sent }),
                )
            }
            Event::State(state) => {
                let state = format!("{state:?}").to_lowercase();
                (state.clone(), json!({ "event": "state", "state": state }))
            }
            Event::Problem(problem) => {
                (format!("problem: {problem}"), json!({ "event": "problem", "problem": problem.to_string() }))
            }
            Event::Violation(violation) => (
                violation.to_string(),
                json!({ "event": "violation", "trap": violation.number, "port_guid": format!("{:#018x}", violation.guid),
                    "source_lid": violation.sender, "traps": violation.traps }),
            ),
            Event::Lids(map) => {
                return match &self.kept {
                    Some(path) => keep(path, map).map_err(|error| format!("{}: {error}", path.display()).into()),
                    None => Ok(()),
                };
            }
            Event::Changed | Event::Notice(_) => return Ok(()),
        };
        let line = if self.options.json { crate::json::line(object) } else { text };
        let mut output = io::stdout().lock();
        Ok(writeln!(output, "{line}").and_then(|()| output.flush())?)
    }
}
