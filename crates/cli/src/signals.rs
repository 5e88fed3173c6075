//! Passes signals that `softhca run` gets on to the program that it runs.
//!
//! A signal that a process sends to `softhca run` is meant for the program and is passed on. A
//! signal of the terminal (^C) reaches the whole process group, also the program, so it is not
//! passed on. `SIGKILL` cannot be caught. The principal types are [`Caught`] and [`Passing`].

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

const PASSED_ON: &[i32] = &[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Whether a signal asks a program to end in an orderly way.
pub(crate) fn asks_to_end(signal: i32) -> bool {
    matches!(signal, SIGHUP | SIGINT | SIGTERM)
}

/// Readable after a signal that asks this program to end.
pub(crate) fn stop() -> io::Result<OwnedFd> {
    let (stop, raised) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, raised.try_clone()?)?;
    }
    Ok(stop.into())
}

/// From now on, a write beyond the file size limit (`ulimit -f`) is an error and does not end this
/// process. Programs started from here still get the signal, because `execve` resets a caught
/// signal (an ignored one would stay ignored).
pub(crate) fn survive_file_limit() {
    if ignored() & (1 << (SIGXFSZ - 1)) == 0 {
        // If this fails, the signal ends this process as usual.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// Signals that are caught from now on and passed on later.
pub(crate) struct Caught {
    signals: SignalsInfo<WithOrigin>,
}

impl Caught {
    /// Starts to catch the signals. A signal that this process ignores (`nohup`) stays ignored,
    /// also in the program.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = PASSED_ON.iter().filter(|signal| ignored & (1 << (**signal - 1)) == 0);
        Ok(Self { signals: SignalsInfo::new(wanted)? })
    }

    /// Starts a thread that passes each caught signal on to the added programs.
    pub(crate) fn pass_on(mut self) -> io::Result<Passing> {
        let passing = Passing::default();
        let (targets, asked) = (Arc::clone(&passing.targets), Arc::clone(&passing.asked));
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for origin in self.signals.forever() {
                    if asks_to_end(origin.signal) {
                        asked.store(true, Ordering::Relaxed);
                    }
                    let from_terminal = matches!(origin.cause, Cause::Kernel);
                    let Some(signal) = Signal::from_named_raw(origin.signal).filter(|_| !from_terminal) else {
                        continue;
                    };
                    targets.lock().unwrap_or_else(PoisonError::into_inner).send(signal);
                }
            })
            .map_err(shm::denied::named("pthread_create"))?;
        Ok(passing)
    }
}

/// Passes signals on to programs.
#[derive(Default)]
pub(crate) struct Passing {
    targets: Arc<Mutex<Targets>>,
    asked: Arc<AtomicBool>,
}

/// The programs that get signals.
#[derive(Default)]
struct Targets {
    /// Programs that have not ended. The process id of an ended program may belong to another
    /// process. Ids are used instead of pidfds, because a sandbox may forbid pidfds.
    programs: Vec<Pid>,
    /// Signals that arrived before there was a program.
    early: Vec<Signal>,
}

impl Targets {
    fn send(&mut self, signal: Signal) {
        if self.programs.is_empty() {
            self.early.push(signal);
        }
        for pid in &self.programs {
            // A program that has just ended needs no signal.
            let _ = kill_process(*pid, signal);
        }
    }
}

impl Passing {
    /// Adds a program. It gets all signals from now on, and those that arrived before the first
    /// program.
    pub(crate) fn add(&self, pid: Pid) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.programs.push(pid);
        for signal in std::mem::take(&mut targets.early) {
            targets.send(signal);
        }
    }

    /// Waits for a program and returns its exit status.
    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(child);
        // The program keeps its process id until `Child::wait` has taken its status.
        retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT))?;
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).programs.retain(|target| *target != pid);
        child.wait()
    }

    /// Whether a signal has asked the programs to end.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The set of signals that this process ignores, from the kernel.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}
