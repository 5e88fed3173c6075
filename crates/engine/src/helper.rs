//! The helper thread and the word by which peers learn whether it sleeps.
//!
//! While the program polls its CQs, it does the engine's work itself, and the thread only looks now and then whether that is
//! still so. When the program has stopped (it sleeps on an event, or computes), the thread takes over: works while there is work,
//! then arms the wake word, looks once more, and sleeps until a peer, a timer, the agent or the program wakes it. An idle engine uses no CPU.

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

/// So long, and a pause, after the program was last seen polling the thread looks whether it still does. To look interrupts the program
/// where processors are few, so a program that polls puts that off again and again, once in each pause ([`Watchdog`]). What arrives after
/// it has stopped waits for a pause, this and [`RECENT`] at most: less than 1 ms, or where it had polled for long, than 7 ms.
///
/// Most of what a timer costs is the processor's own, which is set when the next one of the kernel's changes: when that is taken away, and
/// when one is put before it. So there are two, set in turn, each for two pauses and this: the one that is not set now is the next,
/// and the processor's is set once and not twice.
const MARGIN: Duration = Duration::from_micros(100);
/// The shortest sleep by which the unit of the ticks is measured.
const MEASURE: Duration = Duration::from_micros(200);
/// The thread looks after the lease so often at least.
const ROUND: Duration = Duration::from_millis(50);
/// A program whose last poll is longer ago has stopped.
const RECENT: Duration = Duration::from_micros(100);
const _: () = assert!(PAUSE.as_nanos() / (GAP as u128) <= RECENT.as_nanos());
/// When a program that goes on polling has polled is known to this part of [`PAUSE`], 3 µs.
const FRESH: u64 = 256;
/// A program that polls this often without arming a CQ is one that polls.
const POLLING: u32 = 256;
/// The same for one that did so before, and has armed none since.
const RESUMED: u32 = 16;
/// The longest sleep where the kernel does not offer the barrier that makes sleeping safe.
const UNSURE: Duration = Duration::from_millis(1);

/// While packets come straight out of the agent's sockets: the longest sleep, so that the agent sees that somebody looks after them.
const BEAT: Duration = Duration::from_millis(4);
/// The most sockets that the thread waits for; what arrives at others is seen at the next look.
const SOCKETS: usize = 31;

const PUSH: u64 = 0;
const KICK: u64 = 1;
const TIMER: u64 = 2;

/// What wakes the thread, and what it knows of the program.
pub(crate) struct Waker {
    pub(crate) wake_word: WakeWord,
    kick: Notifier,
    /// The first fires when the program has not polled for a pause.
    timers: [OwnedFd; 2],
    /// Which of them is set next.
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
    /// The thread sleeps, or has looked for the last time before it does. Where there is no thread, whoever takes its turns has to be told.
    resting: AtomicBool,
    /// When the program polled last, by the time stamp counter.
    pub(crate) polled_at: AtomicU64,
    /// Polls since the program last armed a CQ.
    pub(crate) polls: AtomicU32,
    pub(crate) progress_mode: ProgressMode,
}

/// How watching has ended.
struct Watched {
    /// The agent has something to tell.
    told: bool,
    /// The program has stopped polling, after so long.
    stopped: Option<Duration>,
}

impl Waker {
    /// The waker, and the wake word's descriptor for the agent.
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
            // Edge-triggered, and never read: to set it anew makes it ready to fire again.
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

    /// Wakes the thread: there is something to do that it cannot see by itself.
    pub(crate) fn kick(&self) {
        self.kick.notify();
    }

    /// Somebody was blocked, or there is a nearer deadline. While the program polls, it finds out itself when it is time; else the
    /// thread has to know, unless it is at work and looks before it sleeps.
    pub(crate) fn attend(&self) {
        // Pairs with the fences in `watch` and `going_to_rest`: either we see that the thread does not watch any more, or rests, or it sees what we
        // have done.
        fence(Ordering::SeqCst);
        if !self.watching.load(Ordering::Relaxed) && self.resting.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    /// The thread is about to look for the last time.
    pub(crate) fn going_to_rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
        // Pairs with the fence in `attend`.
        fence(Ordering::SeqCst);
    }

    /// The thread rests no more: it looks before it does so again.
    pub(crate) fn goes_to_work(&self) {
        self.resting.store(false, Ordering::Relaxed);
    }

    /// The program's thread, or another, has been copying for a while: one that polls has not stopped polling meanwhile.
    #[cold]
    pub(crate) fn copied(&self) {
        if self.watching.load(Ordering::Relaxed) {
            let now = tsc::now();
            self.polled_at.store(now, Ordering::Relaxed);
            self.put_look_off(now, false);
        }
    }

    /// The program polls. Says whether the end of the poll matters as well.
    pub(crate) fn polled(&self) -> bool {
        if self.watching.load(Ordering::Relaxed) {
            let now = tsc::now();
            // Not an atomic exchange: what several pollers leave is some time of one of them. Not with each poll: several would fight for the word.
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
        // Not an atomic increment: of several pollers some may not count.
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

    /// The program has sent something to another host, and has nothing to do until the answer comes, maybe.
    pub(crate) fn sent(&self) {
        if self.watching.load(Ordering::Relaxed) {
            self.put_look_off(tsc::now(), true);
        }
    }

    /// The thread need not look for some time, if it was not told so just now.
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
        // The unit of the ticks is measured while sleeping.
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
            // Maybe it only lost its processor: then the thread should not take from it what it polls for.
            self.polls.store(POLLING - RESUMED, Ordering::Relaxed);
            // Pairs with the fence in `attend`.
            fence(Ordering::SeqCst);
        }
        Watched { told, stopped: has_stopped.then_some(slept) }
    }

    /// The program is about to sleep on an event. Says whether it shared the work until now.
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
        // By the kernel's number: to ask Rust who the caller is would leave something behind in threads that Rust has not started.
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

    /// Whether the program has not polled lately, as far as the unit of the ticks is known.
    fn has_stopped(&self) -> bool {
        let recent = self.watchdog.ticks() / u64::from(GAP);
        tsc::now().saturating_sub(self.polled_at.load(Ordering::Relaxed)) > recent
    }

    /// Sleeps until something happens or `limit` is over; says whether the agent has something to tell.
    fn sleep(&self, limit: Option<Duration>) -> bool {
        self.sleep_on(&mut std::iter::empty(), limit)
    }

    /// The same, until one of `sockets` can be read as well.
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
        // A counter at its end would wake nobody; emptied, it takes every write.
        self.kick.drain();
        let is_there = |kind| events[..count].iter().any(|event| event.data.u64() == kind);
        if is_there(TIMER) && self.progress_mode.fired(self.has_stopped()) {
            self.guard();
        }
        is_there(PUSH)
    }
}

impl Engine {
    /// The program is about to sleep on an event of that CQ: from now on the thread has to see what arrives.
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

    /// What only the thread may do, for it waits for the agent.
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

    /// Gives back what lanes do not need while nothing goes over them.
    fn give_back(&self) {
        self.lanes.list().iter().for_each(|lane| lane.rest());
    }

    /// Has peers ring from now on, if the program does not see to that; says whether they will for sure.
    fn arm_to_rest(&self, idle: &mut IdlePolicy) -> bool {
        let waker = &self.waker;
        let now = tsc::now();
        // A thread that sleeps again after a moment is likely to do so again.
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

    /// The thread does not sleep again and again any more: posters are spared their fences.
    fn settle_down(&self, idle: &mut IdlePolicy) {
        if idle.restless && !self.waker.progress_mode.is_on() {
            idle.restless = false;
            self.waker.wake_word.set_restless(false);
        }
    }

    /// The program polls only now and then: it and the thread see to what comes by turns, for a while.
    fn share_work(&self, idle: &mut IdlePolicy) {
        self.waker.wake_word.set_restless(true);
        idle.restless = shm::sleeper_barrier();
        if idle.restless {
            let pause = self.waker.watchdog.ticks();
            self.waker.progress_mode.begin(tsc::now().saturating_add(pause.saturating_mul(SHARED_FOR)));
            self.poll_each_time(true);
        }
    }

    /// The last look before sleeping. It waits for locks, so that nobody else's half-done look hides something.
    fn looks_once_more(self: &Arc<Self>) -> bool {
        self.progress(true)
            || !self.unrouted.lock().is_empty()
            || !self.unlocated.lock().is_empty()
            || !self.untold.lock().is_empty()
            || self.direct.has_asks()
    }

    /// One turn of what the thread does, for whoever does it instead (see [`Engine::step`]): false if there was nothing to do, and
    /// peers ring from now on.
    pub(crate) fn take_turn(self: &Arc<Self>) -> bool {
        self.waker.kick.drain();
        self.waker.wake_word.disarm();
        self.listen();
        self.do_pending_work();
        if self.progress(false) {
            return true;
        }
        // No barrier: whoever posts does so on this same thread.
        self.give_back();
        self.waker.wake_word.arm();
        let worked = self.looks_once_more();
        if worked {
            self.waker.wake_word.disarm();
        }
        worked
    }

    /// Whether something has happened for which the thread would wake.
    pub(crate) fn is_woken(&self) -> bool {
        let push = self.waker.push.lock();
        let kick = PollFd::from_borrowed_fd(self.waker.kick.as_fd(), PollFlags::IN);
        let told = push.as_ref().map(|push| PollFd::from_borrowed_fd(push.as_fd(), PollFlags::IN));
        let mut both = [kick.clone(), told.unwrap_or(kick)];
        rustix::event::poll(&mut both, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Follows the agent's sockets, and gives them back when nothing comes any more.
    fn look_after_inbox(self: &Arc<Self>) {
        self.renew_sockets();
        self.return_idle_lease();
    }

    /// Hears what the agent pushes: new lanes, dead peers, its own end.
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
        // The socket is at its end and would wake us for ever.
        if let Some(socket) = self.waker.push.lock().take() {
            let _ = epoll::delete(&self.waker.epoll, socket.as_fd());
        }
        if !self.waker.stop.load(Ordering::Relaxed) {
            self.die("the softhca agent is gone");
        }
    }

    fn heed(self: &Arc<Self>, message: &Push, fds: Vec<OwnedFd>) {
        match message.kind {
            // Both ends of a lane to itself were taken by the one who opened it.
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
