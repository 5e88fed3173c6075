//! The helper thread, and the wake word that shows peers whether it sleeps. Principal type:
//! [`Waker`].
//!
//! While the program polls its CQs, it does the engine's work itself, and the thread only checks
//! from time to time whether the program still polls. When the program sleeps on an event or
//! computes, the thread takes over. It works, arms the wake word, checks once more, and sleeps
//! until a peer, a timer, the agent or the program wakes it. An idle engine uses no CPU.

mod thread;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use shm::denied::denied;
use shm::{Notifier, Socket, WakeWord};

use crate::progress_mode::ProgressMode;
use crate::tsc;
use crate::watchdog::{GAP, PAUSE, Set, Watchdog};

/// The thread checks whether the program still polls when a pause and this margin have passed since
/// the program's last known poll. If processors are few, the check interrupts the program. So a
/// polling program postpones it, once in each pause ([`Watchdog`]). After the program has stopped,
/// a packet waits at most for a pause, this margin and [`RECENT`]: less than 1 ms, or 7 ms after
/// long polling.
///
/// Setting the processor's timer is expensive: the kernel does it when its next timer is removed,
/// or an earlier one added. So two timers are set in turn, each for two pauses and this margin. The
/// other timer fires next, so the kernel sets the processor's timer once and not twice.
const MARGIN: Duration = Duration::from_micros(100);
/// The shortest sleep that is used to measure the tick rate.
const MEASURE: Duration = Duration::from_micros(200);
/// The longest time between two checks of the lease while the program polls.
const ROUND: Duration = Duration::from_millis(50);
/// A program whose last poll is longer ago than this has stopped.
const RECENT: Duration = Duration::from_micros(100);
const _: () = assert!(PAUSE.as_nanos() / (GAP as u128) <= RECENT.as_nanos());
/// The precision with which a polling program's last poll is known: this part of [`PAUSE`], 3 µs.
const FRESH: u64 = 256;
/// A program polls if it makes this many polls without arming a CQ.
const POLLING: u32 = 256;
/// The number of polls after which a program that stopped polling, without arming a CQ, counts as
/// polling again.
const RESUMED: u32 = 16;
/// The longest sleep on a kernel without the barrier that makes sleeping safe.
const UNSURE: Duration = Duration::from_millis(1);

/// The longest sleep of a lease holder, so that the agent sees that it is alive.
const BEAT: Duration = Duration::from_millis(4);
/// The most sockets to wait for; the thread reads the others at its next check.
const SOCKETS: usize = 31;

const PUSH: u64 = 0;
const KICK: u64 = 1;
const TIMER: u64 = 2;

/// Wakes the thread; records what the program does.
pub(crate) struct Waker {
    pub(crate) wake_word: WakeWord,
    kick: Notifier,
    /// The first one fires when the program has not polled for a pause.
    timers: [OwnedFd; 2],
    /// The timer to set next.
    turn: AtomicUsize,
    pub(crate) watchdog: Watchdog,
    epoll: OwnedFd,
    push: Mutex<Option<Socket>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread's kernel id, once it runs.
    thread_number: AtomicI32,
    stop: AtomicBool,
    /// The program polls, and the thread only watches.
    watching: AtomicBool,
    /// The thread sleeps, or makes its last check before it does. Also set if there is no thread:
    /// then the caller of `take_turn` must be woken.
    resting: AtomicBool,
    /// The program's last poll, in ticks of the time stamp counter.
    pub(crate) polled_at: AtomicU64,
    /// Polls since the program last armed a CQ.
    pub(crate) polls: AtomicU32,
    pub(crate) progress_mode: ProgressMode,
}

/// How a watch has ended.
struct Watched {
    /// The agent has sent a push.
    told: bool,
    /// How long the watch lasted, if the program has stopped polling.
    stopped: Option<Duration>,
}

impl Waker {
    /// Makes a waker, and the wake word's descriptor for the agent.
    pub(crate) fn new() -> std::io::Result<(Self, OwnedFd)> {
        let (wake_word, fd) = WakeWord::create()?;
        let kick = Notifier::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(denied("epoll_create1"))?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, kick.as_fd(), epoll::EventData::new_u64(KICK), edge)?;
        let timer = || timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        let [one, other] = [timer(), timer()].map(|timer| timer.map_err(denied("timerfd_create")));
        let timers = [one?, other?];
        for timer in &timers {
            // Edge-triggered, and never read: setting a timer again makes it ready to fire again.
            epoll::add(&epoll, timer, epoll::EventData::new_u64(TIMER), edge)?;
        }
        let waker = Self {
            wake_word,
            kick,
            timers,
            turn: AtomicUsize::new(0),
            watchdog: Watchdog::new(),
            epoll,
            push: Mutex::new(None),
            thread: Mutex::new(None),
            thread_number: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            watching: AtomicBool::new(false),
            resting: AtomicBool::new(true),
            polled_at: AtomicU64::new(0),
            polls: AtomicU32::new(0),
            progress_mode: ProgressMode::default(),
        };
        Ok((waker, fd))
    }

    pub(crate) fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Takes the socket on which the agent pushes.
    pub(crate) fn set_push(&self, socket: OwnedFd) {
        let added = epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(PUSH), epoll::EventFlags::IN);
        debug_assert!(added.is_ok(), "a fresh descriptor can be watched");
        *self.push.lock() = Some(Socket::from(socket));
    }

    /// Wakes the thread for work that it cannot see by itself.
    pub(crate) fn kick(&self) {
        self.kick.notify();
    }

    /// A QP was blocked, or there is an earlier deadline. A polling program notices this by itself.
    /// Otherwise this wakes the thread, unless the thread works: then it checks again before it
    /// sleeps.
    pub(crate) fn attend(&self) {
        // Pairs with the fences in `watch` and `going_to_rest`: either this thread sees that the
        // helper thread no longer watches, or rests; or that thread sees this one's work.
        fence(Ordering::SeqCst);
        if !self.watching.load(Ordering::Relaxed) && self.resting.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    /// The thread is about to check for the last time before it sleeps.
    pub(crate) fn going_to_rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
        // Pairs with the fence in `attend`.
        fence(Ordering::SeqCst);
    }

    /// The thread works: it checks again before it sleeps.
    pub(crate) fn goes_to_work(&self) {
        self.resting.store(false, Ordering::Relaxed);
    }

    /// A thread of the program has copied for a long time. If the program was polling, it has not
    /// stopped.
    #[cold]
    pub(crate) fn copied(&self) {
        if self.watching.load(Ordering::Relaxed) {
            let now = tsc::now();
            self.polled_at.store(now, Ordering::Relaxed);
            self.postpone_check(now, false);
        }
    }

    /// The program polls. Returns the flag `shares` of `Engine::poll`: whether the shared
    /// progress mode is on.
    pub(crate) fn polled(&self) -> bool {
        if self.watching.load(Ordering::Relaxed) {
            let now = tsc::now();
            // Not an exchange: any poller's time suffices. Not with each poll: the word is
            // contended.
            let before = self.polled_at.load(Ordering::Relaxed);
            if now.abs_diff(before) > self.watchdog.ticks() / FRESH {
                self.polled_at.store(now, Ordering::Relaxed);
                self.watchdog.polled(before, now);
            }
            self.postpone_check(now, false);
            return false;
        }
        if self.progress_mode.is_on() {
            return true;
        }
        // Not an atomic increment: polls of concurrent threads may be lost.
        let polls = self.polls.load(Ordering::Relaxed) + 1;
        self.polls.store(polls, Ordering::Relaxed);
        if polls >= POLLING {
            let now = tsc::now();
            self.polled_at.store(now, Ordering::Relaxed);
            self.watchdog.begin(now);
            if !self.watching.swap(true, Ordering::Relaxed) {
                self.polls.store(0, Ordering::Relaxed);
                self.kick();
            }
        }
        false
    }

    /// The program has sent a packet to another host, and may have nothing to do until the answer.
    pub(crate) fn sent(&self) {
        if self.watching.load(Ordering::Relaxed) {
            self.postpone_check(tsc::now(), true);
        }
    }

    /// Postpones the thread's check, if that was not done a short time ago.
    #[inline]
    fn postpone_check(&self, now: u64, early: bool) {
        match self.watchdog.put_off(now, early) {
            None => {}
            Some(Set::One(time)) => {
                let turn = self.turn.load(Ordering::Relaxed) % 2;
                self.turn.store(1 - turn, Ordering::Relaxed);
                self.set_timer(turn, time + MARGIN);
            }
            Some(Set::Both(pause)) => self.set_both(pause),
        }
    }

    fn set_both(&self, pause: Duration) {
        self.turn.store(0, Ordering::Relaxed);
        self.set_timer(0, pause + MARGIN);
        self.set_timer(1, 2 * pause + MARGIN);
    }

    /// Wakes the thread after a pause.
    pub(crate) fn guard(&self) {
        self.set_timer(0, PAUSE + MARGIN);
    }

    fn set_timer(&self, which: usize, after: Duration) {
        let value = Timespec { tv_sec: 0, tv_nsec: i64::from(after.subsec_nanos()) };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A valid timer and a valid time: it cannot fail.
        let _ = timerfd_settime(
            &self.timers[which],
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: never, it_value: value },
        );
    }

    /// Sleeps until the program has not polled for a pause.
    fn watch(&self) -> Watched {
        let (ticks, clock) = (tsc::now(), Instant::now());
        self.set_both(self.watchdog.restart(ticks));
        let told = self.sleep(Some(ROUND));
        let now = tsc::now();
        // The tick rate is measured during the sleep.
        let slept = clock.elapsed();
        let in_ticks =
            |time: Duration| u128::from(now.saturating_sub(ticks)) * time.as_nanos() / slept.as_nanos().max(1);
        if slept > MEASURE {
            self.watchdog.measured(u64::try_from(in_ticks(PAUSE)).unwrap_or(u64::MAX));
        }
        let recent = in_ticks(RECENT);
        let has_stopped = u128::from(now.saturating_sub(self.polled_at.load(Ordering::Relaxed))) > recent;
        if has_stopped {
            self.watching.store(false, Ordering::Relaxed);
            // The program may only have lost its processor; then it soon counts as polling again.
            self.polls.store(POLLING - RESUMED, Ordering::Relaxed);
            // Pairs with the fence in `attend`.
            fence(Ordering::SeqCst);
        }
        Watched { told, stopped: has_stopped.then_some(slept) }
    }

    /// The program is about to sleep on an event. Returns whether it shared the work until now.
    pub(crate) fn hand_over(&self) -> bool {
        self.polls.store(0, Ordering::Relaxed);
        let watched = self.watching.load(Ordering::Relaxed) && self.watching.swap(false, Ordering::Relaxed);
        let shared = self.progress_mode.end();
        if watched || shared {
            self.kick();
        }
        shared
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.kick();
        // By the kernel's id: `thread::current` would leave data behind in foreign threads.
        let caller = rustix::thread::gettid().as_raw_nonzero().get();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| self.thread_number.load(Ordering::Relaxed) != caller) {
            let _ = thread.join();
        }
        *self.push.lock() = None;
    }

    /// Whether the program polls, and the thread only watches.
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// Whether the program has not polled lately, as far as the tick rate is known.
    fn has_stopped(&self) -> bool {
        let recent = self.watchdog.ticks() / u64::from(GAP);
        tsc::now().saturating_sub(self.polled_at.load(Ordering::Relaxed)) > recent
    }

    /// Sleeps until an event or for `limit`; returns whether the agent has sent a push.
    fn sleep(&self, limit: Option<Duration>) -> bool {
        self.sleep_on(None, &mut std::iter::empty(), limit)
    }

    /// Like `sleep`; `streams` or one of `sockets` that becomes readable also ends it.
    fn sleep_on(
        &self,
        streams: Option<BorrowedFd<'_>>,
        sockets: &mut dyn Iterator<Item = BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> bool {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready: [PollFd<'_>; 2 + SOCKETS] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN));
        let mut count = 1;
        if let Some(streams) = streams {
            ready[1] = PollFd::from_borrowed_fd(streams, PollFlags::IN);
            count += 1;
        }
        for (place, socket) in ready[count..].iter_mut().zip(sockets) {
            *place = PollFd::from_borrowed_fd(socket, PollFlags::IN);
            count += 1;
        }
        // ppoll, because its timeout is in nanoseconds on every kernel.
        if rustix::event::poll(&mut ready[..count], limit.as_ref()) == Ok(0) {
            return false;
        }
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        let count = epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(0);
        // A full counter would wake no thread; an empty one takes every write.
        self.kick.drain();
        let is_there = |kind| events[..count].iter().any(|event| event.data.u64() == kind);
        if is_there(TIMER) && self.progress_mode.fired(self.has_stopped()) {
            self.guard();
        }
        is_there(PUSH)
    }
}
