//! Signals on their way through `softhca run` to the program that it runs.
//!
//! A signal that somebody sends to `softhca run` is meant for the program and is passed on. One that the terminal sends
//! (^C) reaches the whole process group, the program too, and is not passed on a second time. `SIGKILL` cannot be caught.

use std::fs;
use std::io;
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

/// Whether a signal asks a program to end in order.
pub(crate) fn asks_to_end(signal: i32) -> bool {
    matches!(signal, SIGHUP | SIGINT | SIGTERM)
}

/// A file that gets longer than this process may write (`ulimit -f`) is an error from now on, and not the end. Programs that are started from
/// here get the signal as ever: what is caught, and not ignored, is as it was after an `execve`.
pub(crate) fn survive_file_limit() {
    if ignored() & (1 << (SIGXFSZ - 1)) == 0 {
        // Where it fails the signal ends this process, as it ends others.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// Signals that are caught from now on, to be passed on later.
pub(crate) struct Caught {
    signals: SignalsInfo<WithOrigin>,
}

impl Caught {
    /// Catches them. What this process was told to ignore (`nohup`) stays ignored, for the program as well.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = PASSED_ON.iter().filter(|signal| ignored & (1 << (**signal - 1)) == 0);
        Ok(Self { signals: SignalsInfo::new(wanted)? })
    }

    /// Passes every caught signal on to the programs that are added, from a thread of its own.
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

/// Signals that are being passed on to programs.
#[derive(Default)]
pub(crate) struct Passing {
    targets: Arc<Mutex<Targets>>,
    asked: Arc<AtomicBool>,
}

/// Who gets signals.
#[derive(Default)]
struct Targets {
    /// Programs that have not ended: the number of one that has may be another's. By number and not by pidfd, which a sandbox may forbid.
    programs: Vec<Pid>,
    /// Signals that came before there was a program.
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
    /// From now on `pid` gets the signals, too.
    pub(crate) fn add(&self, pid: Pid) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.programs.push(pid);
        for signal in std::mem::take(&mut targets.early) {
            targets.send(signal);
        }
    }

    /// Waits for a program, and says how it has ended.
    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = Pid::from_child(child);
        // It keeps its number until `Child::wait` has taken its status.
        retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT))?;
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).programs.retain(|target| *target != pid);
        child.wait()
    }

    /// Whether somebody has asked the programs to end.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The set of ignored signals of this process, as the kernel tells it.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}
