//! The helper thread, and the wake word that tells peers whether it sleeps. Principal type:
//! [`Waker`].
//!
//! While the program polls its CQs, it does the engine's work itself, and the thread only checks
//! now and then whether it still polls. When the program sleeps on an event or computes, the thread
//! takes over. It works, arms the wake word, checks once more, and sleeps until a peer, a timer,
//! the agent or the program wakes it. An idle engine uses no CPU.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::layout::Record;
use abi::private::{Push, push};
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use shm::denied::{denied, named};
use shm::{Notifier, Socket, WakeWord};

use crate::engine::Engine;
use crate::error::Result;
use crate::idle::{IdlePolicy, QUIET};
use crate::lane::Lane;
use crate::progress_mode::ProgressMode;
use crate::stall::{SHARED_FOR, StallDetector};
use crate::tsc;
use crate::watchdog::{GAP, PAUSE, Set, Watchdog};

/// The thread checks whether the program still polls a pause and this after its last known poll.
/// The check interrupts the program where processors are few, so a polling program postpones it,
/// once in each pause ([`Watchdog`]). After the program has stopped, a packet waits at most for a
/// pause, this and [`RECENT`]: less than 1 ms, or 7 ms after long polling.
///
/// Setting the processor's timer is expensive: the kernel does it when its next timer is removed,
/// or an earlier one added. So two timers are set in turn, each for two pauses and this. The one
/// not being set fires next, so the processor's timer is set once and not twice.
const MARGIN: Duration = Duration::from_micros(100);
/// The shortest sleep that is used to measure the tick rate.
const MEASURE: Duration = Duration::from_micros(200);
/// The longest time between two checks of the lease while the program polls.
const ROUND: Duration = Duration::from_millis(50);
/// A program whose last poll is longer ago has stopped.
const RECENT: Duration = Duration::from_micros(100);
const _: () = assert!(PAUSE.as_nanos() / (GAP as u128) <= RECENT.as_nanos());
/// The time of a polling program's last poll is known to this part of [`PAUSE`], 3 µs.
const FRESH: u64 = 256;
/// A program polls if it makes this many polls without arming a CQ.
const POLLING: u32 = 256;
/// The number for a program that has polled before and armed no CQ since.
const RESUMED: u32 = 16;
/// The longest sleep on a kernel without the barrier that makes sleeping safe.
const UNSURE: Duration = Duration::from_millis(1);

/// The longest sleep of a lease holder: the agent sees that it is alive.
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
    /// The kernel's number of the thread, once it runs.
    thread_number: AtomicI32,
    stop: AtomicBool,
    /// The program polls, and the thread only watches.
    watching: AtomicBool,
    /// The thread sleeps, or makes its last check before it does. Also set without a thread: the
    /// caller of `take_turn` has to be told.
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
    pub(crate) fn new() -> Result<(Self, OwnedFd)> {
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

    /// A QP was blocked, or there is an earlier deadline. A polling program notices it by itself.
    /// Otherwise the thread must know, unless it works and checks before it sleeps.
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

    /// A thread has been copying for a while; a polling program has not stopped meanwhile.
    #[cold]
    pub(crate) fn copied(&self) {
        if self.watching.load(Ordering::Relaxed) {
            let now = tsc::now();
            self.polled_at.store(now, Ordering::Relaxed);
            self.put_look_off(now, false);
        }
    }

    /// The program polls. Returns whether `Engine::end_poll` must be told how the poll ends.
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
            self.put_look_off(now, false);
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
            self.put_look_off(tsc::now(), true);
        }
    }

    /// Postpones the thread's check, if that was not done a short time ago.
    #[inline]
    fn put_look_off(&self, now: u64, early: bool) {
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
        self.sleep_on(&mut std::iter::empty(), limit)
    }

    /// Like `sleep`; one of `sockets` that becomes readable also ends it.
    fn sleep_on(&self, sockets: &mut dyn Iterator<Item = BorrowedFd<'_>>, limit: Option<Duration>) -> bool {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut ready: [PollFd<'_>; 1 + SOCKETS] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN));
        let mut count = 1;
        for (place, socket) in ready[1..].iter_mut().zip(sockets) {
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

impl Engine {
    /// The program is about to sleep on an event of that CQ: the thread must handle new packets.
    pub(crate) fn hand_over(&self, who: u32) {
        self.pollers.rise(who);
        if self.waker.hand_over() {
            self.poll_each_time(false);
        }
    }

    /// Starts the thread.
    pub(crate) fn start_helper(self: &Arc<Self>) -> Result<()> {
        let mut thread = self.waker.thread.lock();
        if thread.is_none() {
            let engine = Arc::clone(self);
            *thread = Some(
                std::thread::Builder::new()
                    .name("softhca".into())
                    .stack_size(256 * 1024)
                    .spawn(move || {
                        engine.control.enter();
                        engine.help();
                    })
                    .map_err(named("pthread_create"))?,
            );
        }
        Ok(())
    }

    fn help(self: Arc<Self>) {
        crate::usermem::block_other_signals();
        let waker = &self.waker;
        waker.thread_number.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        waker.goes_to_work();
        let mut told = true;
        let mut stalls = StallDetector::default();
        let mut idle = IdlePolicy::default();
        while !waker.stop.load(Ordering::Relaxed) {
            if std::mem::take(&mut told) {
                self.listen();
            }
            self.do_pending_work();
            if waker.watching.load(Ordering::Relaxed) {
                self.settle_down(&mut idle);
                let watched = waker.watch();
                told = watched.told;
                idle.watched(tsc::now());
                if let Some(after) = watched.stopped {
                    let waited = self.progress(false);
                    if stalls.took_over(after, waited) {
                        self.share_work(&mut idle);
                    }
                }
                continue;
            }
            if self.progress(false) {
                if idle.worked() {
                    self.settle_down(&mut idle);
                }
                continue;
            }
            if !waker.progress_mode.is_on() && idle.looks_on(waker.watchdog.ticks() / u64::from(GAP)) {
                std::hint::spin_loop();
                continue;
            }
            let sound = self.arm_to_rest(&mut idle);
            if !self.looks_once_more() && !waker.stop.load(Ordering::Relaxed) {
                let deadline = self.timers.next().map(|at| Duration::from_nanos(at.0.saturating_sub(self.now().0)));
                let limit = if sound { deadline } else { Some(deadline.unwrap_or(UNSURE).min(UNSURE)) };
                let bulky = !idle.gave_back && self.lanes.list().iter().any(|lane| lane.is_bulky());
                let limit = if bulky { Some(limit.unwrap_or(QUIET).min(QUIET)) } else { limit };
                let quiet = bulky.then(|| idle.quiet_since());
                told = match self.net.inbox().filter(|inbox| inbox.lease.as_ref().is_some_and(|c| c.is_ours(&self))) {
                    None => waker.sleep(limit),
                    Some(inbox) => {
                        let limit = Some(limit.unwrap_or(BEAT).min(BEAT));
                        inbox.with_sockets(|sockets| waker.sleep_on(sockets, limit))
                    }
                };
                if quiet.is_some_and(|since| since.elapsed() >= QUIET) {
                    self.give_back();
                    idle.gave_back = true;
                }
            }
            waker.wake_word.disarm();
            waker.goes_to_work();
            idle.woke(tsc::now());
        }
    }

    /// Work that waits for the agent, so only the thread may do it.
    fn do_pending_work(self: &Arc<Self>) {
        if !self.unrouted.lock().is_empty() {
            self.open_routes();
        }
        if !self.unlocated.lock().is_empty() {
            self.locate_srqs();
        }
        self.tell_holders();
        if self.direct.has_asks() {
            self.ask_agent();
        }
        self.look_after_inbox();
    }

    /// Gives back memory that lanes do not need while nothing is sent over them.
    fn give_back(&self) {
        self.lanes.list().iter().for_each(|lane| lane.rest());
    }

    /// Arms the wake word unless the program handles it; returns whether peers certainly see it.
    fn arm_to_rest(&self, idle: &mut IdlePolicy) -> bool {
        let waker = &self.waker;
        let now = tsc::now();
        // A thread that sleeps again after a short time will probably do so again.
        let soon = idle.rest(now) < waker.watchdog.ticks() / u64::from(GAP);
        waker.going_to_rest();
        if waker.progress_mode.is_on() && idle.restless {
            if !waker.progress_mode.is_polling() {
                waker.wake_word.arm();
            }
            shm::sleeper_fence();
            return true;
        }
        waker.wake_word.arm();
        if soon && idle.restless {
            shm::sleeper_fence();
            return true;
        }
        waker.wake_word.set_restless(soon);
        let sound = shm::sleeper_barrier();
        idle.restless = soon && sound;
        sound
    }

    /// The thread no longer sleeps often, so posters need no fences any more.
    fn settle_down(&self, idle: &mut IdlePolicy) {
        if idle.restless && !self.waker.progress_mode.is_on() {
            idle.restless = false;
            self.waker.wake_word.set_restless(false);
        }
    }

    /// The program polls only now and then: for a while, it and the thread share the work.
    fn share_work(&self, idle: &mut IdlePolicy) {
        self.waker.wake_word.set_restless(true);
        idle.restless = shm::sleeper_barrier();
        if idle.restless {
            let pause = self.waker.watchdog.ticks();
            self.waker.progress_mode.begin(tsc::now().saturating_add(pause.saturating_mul(SHARED_FOR)));
            self.poll_each_time(true);
        }
    }

    /// The last check before sleeping. It waits for locks, so that no thread's unfinished work
    /// hides new work.
    fn looks_once_more(self: &Arc<Self>) -> bool {
        self.progress(true)
            || !self.unrouted.lock().is_empty()
            || !self.unlocated.lock().is_empty()
            || !self.untold.lock().is_empty()
            || self.direct.has_asks()
    }

    /// One round of the thread's work, in another thread (see [`Engine::step`]). Returns false if
    /// there was none; then the wake word is armed.
    pub(crate) fn take_turn(self: &Arc<Self>) -> bool {
        self.waker.kick.drain();
        self.waker.wake_word.disarm();
        self.listen();
        self.do_pending_work();
        if self.progress(false) {
            return true;
        }
        // No barrier: requests are posted on this same thread.
        self.give_back();
        self.waker.wake_word.arm();
        let worked = self.looks_once_more();
        if worked {
            self.waker.wake_word.disarm();
        }
        worked
    }

    /// Whether an event has occurred that would wake the thread.
    pub(crate) fn is_woken(&self) -> bool {
        let push = self.waker.push.lock();
        let kick = PollFd::from_borrowed_fd(self.waker.kick.as_fd(), PollFlags::IN);
        let told = push.as_ref().map(|push| PollFd::from_borrowed_fd(push.as_fd(), PollFlags::IN));
        let mut both = [kick.clone(), told.unwrap_or(kick)];
        rustix::event::poll(&mut both, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Follows the agent's sockets, and returns the lease when no packets come any more.
    fn look_after_inbox(self: &Arc<Self>) {
        self.renew_sockets();
        self.return_idle_lease();
    }

    /// Handles the agent's pushes: new lanes, dead peers, its own end.
    pub(crate) fn listen(self: &Arc<Self>) {
        let mut bytes = [0u8; size_of::<Push>()];
        loop {
            let received = match &*self.waker.push.lock() {
                Some(socket) => socket.try_recv(&mut bytes),
                None => return,
            };
            match received {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => break,
                Ok(received) if received.len == 0 => break,
                Ok(received) => {
                    if let Some(message) = Push::read(&bytes[..received.len]) {
                        self.heed(&message, received.fds);
                    }
                }
            }
        }
        // The socket has ended and would wake the thread for ever.
        if let Some(socket) = self.waker.push.lock().take() {
            let _ = epoll::delete(&self.waker.epoll, socket.as_fd());
        }
        if !self.waker.stop.load(Ordering::Relaxed) {
            self.die("the softhca agent is gone");
        }
    }

    fn heed(self: &Arc<Self>, message: &Push, fds: Vec<OwnedFd>) {
        match message.kind {
            // The opener of a lane to its own engine has taken both ends.
            push::LANE if message.lane.engine != self.number() => match Lane::new(&message.lane, fds) {
                Ok(lane) => drop(self.lanes.add(lane, true)),
                Err(error) => tracing::error!("lane {} could not be taken: {error}", message.lane.lane),
            },
            push::LANE_GONE => {
                self.lanes.bury(message.lane.engine);
                self.lose_lane(message.lane.lane);
            }
            push::TARGET => self.adopt_target(message.lane.lane),
            push::PORTS => self.ports_changed(),
            push::CAPTURE => self.begin_capture(&message.lane, &fds),
            push::CAPTURE_END => self.end_capture(message.lane.lane),
            push::FAULTS => self.take_faults(),
            push::DIRECT_ASK => self.grant(&message.lane),
            push::DIRECT => self.take_way(&message.lane, fds),
            push::REMOVED => self.die("fault: the device was removed"),
            _ => {}
        }
    }
}
