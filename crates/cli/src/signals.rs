//! Signals on their way through `softhca run` to the program that it runs.
//!
//! A signal that somebody sends to `softhca run` is meant for the program and is passed on. One that the terminal sends
//! (^C) reaches the whole process group, the program too, and is not passed on a second time. `SIGKILL` cannot be caught.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

const PASSED_ON: &[i32] = &[SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGUSR1, SIGUSR2, SIGWINCH];

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

    /// Passes every caught signal on to `child` as long as it lives, from a thread of its own.
    pub(crate) fn pass_on_to(mut self, child: &Child) -> io::Result<()> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let target: Arc<OwnedFd> = Arc::new(pidfd_open(pid, PidfdFlags::empty())?);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in self.signals.forever() {
                let from_terminal = matches!(origin.cause, Cause::Kernel);
                if let (false, Some(signal)) = (from_terminal, Signal::from_named_raw(origin.signal)) {
                    // A program that has just ended needs no signal.
                    let _ = pidfd_send_signal(&target, signal);
                }
            }
        })?;
        Ok(())
    }
}

/// The set of ignored signals of this process, as the kernel tells it.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}
