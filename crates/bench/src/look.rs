//! How a thread waits: by polling, or asleep until an event. In both cases it notices when the
//! measurement is over. The principal type is [`Look`].

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{Completion, Cq};

use crate::error::{Error, Result};
use crate::talk::Watch;

/// Polls between two checks of the other side.
const GLANCE: u32 = 1 << 8;
/// Polls after which other threads may have the processor for a moment.
const REST: u32 = 1 << 12;
/// Polls between two reads of the clock.
const CLOCK: u32 = 1 << 16;
/// The longest sleep between two checks of the other side.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How a thread waits.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) watch: &'a Watch,
    pub(crate) event: bool,
    /// How long nothing may complete.
    pub(crate) patience: Option<Duration>,
}

/// Counts polls without a result.
#[derive(Default)]
pub(crate) struct Vain {
    looks: u32,
    since: Option<Instant>,
}

impl Look<'_> {
    /// The next completion, which must be successful.
    pub(crate) fn next(&self, cq: &Cq) -> Result<Completion> {
        let mut vain = Vain::default();
        loop {
            if let Some(completion) = self.glance(cq)? {
                return Ok(completion);
            }
            if !self.event {
                self.again(&mut vain)?;
                continue;
            }
            cq.arm()?;
            // A completion from before the arming raises no event.
            if let Some(completion) = self.glance(cq)? {
                return Ok(completion);
            }
            self.sleep(cq, &mut vain)?;
        }
    }

    /// A completion, if there is one.
    pub(crate) fn glance(&self, cq: &Cq) -> Result<Option<Completion>> {
        Ok(cq.poll()?.map(Completion::ok).transpose()?)
    }

    /// Records another poll without a result.
    pub(crate) fn again(&self, vain: &mut Vain) -> Result<()> {
        vain.looks = vain.looks.wrapping_add(1);
        if vain.looks.is_multiple_of(GLANCE) {
            self.watch.check()?;
            if vain.looks.is_multiple_of(REST) {
                std::thread::yield_now();
            }
            if vain.looks.is_multiple_of(CLOCK) {
                self.is_patient(vain)?;
            }
        }
        std::hint::spin_loop();
        Ok(())
    }

    /// Sleeps until an event, and takes the event.
    fn sleep(&self, cq: &Cq, vain: &mut Vain) -> Result<()> {
        match poll(&mut [PollFd::from_borrowed_fd(cq.as_fd(), PollFlags::IN)], Some(&NAP)) {
            Ok(0) => {
                self.watch.check()?;
                self.is_patient(vain)?;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::Talk(error.into())),
        }
        cq.take_event()?;
        Ok(())
    }

    fn is_patient(&self, vain: &mut Vain) -> Result<()> {
        let since = *vain.since.get_or_insert_with(Instant::now);
        match self.patience {
            Some(limit) if since.elapsed() > limit => Err(Error::Stalled(limit.as_secs())),
            _ => Ok(()),
        }
    }
}
