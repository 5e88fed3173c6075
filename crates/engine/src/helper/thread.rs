//! The thread itself: its rounds of work, its sleep, and the pushes of the agent. Adds to
//! [`Engine`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::layout::Record;
use abi::private::{Push, push};
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec};
use shm::denied::named;

use super::{BEAT, UNSURE};
use crate::engine::Engine;
use crate::error::{Result, by_system};
use crate::idle::{IdlePolicy, QUIET};
use crate::qp::Lane;
use crate::stall::{SHARED_FOR, StallDetector};
use crate::tsc;
use crate::watchdog::GAP;

/// A thread that always has work looks for the agent's pushes once in so many rounds: a look is a
/// system call.
const ROUNDS_PER_LOOK: u32 = 256;

impl Engine {
    /// The program is about to sleep on an event of that CQ: the thread must handle new packets.
    pub(crate) fn hand_over(&self, who: u32) {
        self.pollers.clear(who);
        if self.waker.hand_over() {
            self.poll_each_time(false);
        }
    }

    /// Starts the thread.
    pub(crate) fn start_helper(self: &Arc<Self>) -> Result<()> {
        let mut thread = self.waker.thread.lock();
        if thread.is_none() {
            let engine = Arc::clone(self);
            let started = std::thread::Builder::new().name("softhca".into()).stack_size(256 * 1024).spawn(move || {
                // A panic is a bug. Without this thread, the program would wait for ever.
                let helped = catch_unwind(AssertUnwindSafe(|| {
                    engine.agent.control.enter();
                    Arc::clone(&engine).help();
                }));
                if helped.is_err() {
                    engine.die("the engine's own thread panicked, which is a bug in softhca");
                }
            });
            *thread = Some(started.map_err(named("pthread_create")).map_err(by_system)?);
        }
        Ok(())
    }

    fn help(self: Arc<Self>) {
        crate::usermem::block_other_signals();
        let waker = &self.waker;
        waker.thread_number.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        waker.goes_to_work();
        let mut told = true;
        let mut rounds = 0u32;
        let mut stalls = StallDetector::default();
        let mut idle = IdlePolicy::default();
        while !waker.stop.load(Ordering::Relaxed) {
            if std::mem::take(&mut told) {
                self.listen();
            }
            self.do_pending_work();
            if waker.watching.load(Ordering::Relaxed) {
                self.end_fencing(&mut idle);
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
                rounds = rounds.wrapping_add(1);
                told = rounds.is_multiple_of(ROUNDS_PER_LOOK);
                if idle.worked() {
                    self.end_fencing(&mut idle);
                }
                continue;
            }
            if !waker.progress_mode.is_on() && idle.keeps_checking(waker.watchdog.ticks() / u64::from(GAP)) {
                std::hint::spin_loop();
                continue;
            }
            let sound = self.arm_to_rest(&mut idle);
            if !self.check_before_sleep() && !waker.stop.load(Ordering::Relaxed) {
                told = self.sleep(&mut idle, sound);
            }
            waker.wake_word.disarm();
            waker.goes_to_work();
            idle.woke(tsc::now());
        }
    }

    /// Sleeps until there is work or a timer is due. Returns whether the agent has sent pushes.
    /// `sound` is as for [`Engine::longest_sleep`].
    fn sleep(&self, idle: &mut IdlePolicy, sound: bool) -> bool {
        let waker = &self.waker;
        let bulky = !idle.gave_back && self.lanes.list().iter().any(|lane| lane.is_bulky());
        let limit = self.longest_sleep(sound, bulky);
        let quiet = bulky.then(|| idle.quiet_since());
        let streams = self.net.streams.ready();
        let told = match self.net.inbox().filter(|inbox| inbox.lease.as_ref().is_some_and(|c| c.is_ours(self))) {
            None => waker.sleep_on(streams, &mut std::iter::empty(), limit),
            Some(inbox) => {
                let limit = Some(limit.unwrap_or(BEAT).min(BEAT));
                inbox.with_sockets(|sockets| waker.sleep_on(streams, sockets, limit))
            }
        };
        if quiet.is_some_and(|since| since.elapsed() >= QUIET) {
            self.give_back();
            idle.gave_back = true;
        }
        told
    }

    /// The longest time to sleep. `sound`: peers certainly see the wake word. `bulky`: lanes have
    /// memory to give back.
    fn longest_sleep(&self, sound: bool, bulky: bool) -> Option<Duration> {
        let next = [self.timers.next(), self.helper_work.violations.due()].into_iter().flatten().min();
        let deadline = next.map(|at| Duration::from_nanos(at.0.saturating_sub(self.now().0)));
        let lease = self.net.inbox().and_then(|inbox| inbox.lease.as_ref());
        // The agent does not wake the thread when it grants the lease.
        let awaits_lease = lease.is_some_and(|lease| lease.is_awaited(self));
        let limits = [(!sound, UNSURE), (bulky, QUIET), (awaits_lease, BEAT)];
        limits.into_iter().filter(|(applies, _)| *applies).map(|(_, limit)| limit).chain(deadline).min()
    }

    /// Work that waits for the agent, so only the thread may do it.
    fn do_pending_work(self: &Arc<Self>) {
        if !self.helper_work.need_lane.lock().is_empty() {
            self.open_routes();
        }
        if !self.helper_work.need_srq_engine.lock().is_empty() {
            self.locate_srqs();
        }
        self.tell_holders();
        self.tell_violations();
        self.report_stream_ends();
        if self.direct.has_asks() {
            self.ask_agent();
        }
        self.look_after_inbox();
    }

    /// Gives back memory that lanes do not need while nothing is sent over them.
    fn give_back(&self) {
        self.lanes.list().iter().for_each(|lane| lane.rest());
    }

    /// Arms the wake word, unless the program does this. Returns whether peers certainly see it.
    fn arm_to_rest(&self, idle: &mut IdlePolicy) -> bool {
        let waker = &self.waker;
        let now = tsc::now();
        // A thread that sleeps again after a short time will probably do so again.
        let soon = idle.rest(now) < waker.watchdog.ticks() / u64::from(GAP);
        waker.going_to_rest();
        if waker.progress_mode.is_on() && idle.fenced {
            if !waker.progress_mode.is_polling() {
                waker.wake_word.arm();
            }
            shm::sleeper_fence();
            return true;
        }
        waker.wake_word.arm();
        if soon && idle.fenced {
            shm::sleeper_fence();
            return true;
        }
        waker.wake_word.set_fenced(soon);
        let sound = shm::sleeper_barrier();
        idle.fenced = soon && sound;
        sound
    }

    /// The thread no longer sleeps often, so posters need no fences any more.
    fn end_fencing(&self, idle: &mut IdlePolicy) {
        if idle.fenced && !self.waker.progress_mode.is_on() {
            idle.fenced = false;
            self.waker.wake_word.set_fenced(false);
        }
    }

    /// The program polls too rarely: for a while, program and thread share the work.
    fn share_work(&self, idle: &mut IdlePolicy) {
        self.waker.wake_word.set_fenced(true);
        idle.fenced = shm::sleeper_barrier();
        if idle.fenced {
            let pause = self.waker.watchdog.ticks();
            self.waker.progress_mode.begin(tsc::now().saturating_add(pause.saturating_mul(SHARED_FOR)));
            self.poll_each_time(true);
        }
    }

    /// The last check before sleeping. It waits for locks, so that no thread's unfinished work
    /// hides new work.
    fn check_before_sleep(self: &Arc<Self>) -> bool {
        self.progress(true)
            || !self.helper_work.need_lane.lock().is_empty()
            || !self.helper_work.need_srq_engine.lock().is_empty()
            || !self.helper_work.xrc_events.lock().is_empty()
            || self.helper_work.violations.due().is_some_and(|due| due <= self.now())
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
        let worked = self.check_before_sleep();
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

    /// Adds the descriptors of those events to an epoll set, edge-triggered, with this number.
    pub(crate) fn add_wakeups(&self, epoll: BorrowedFd<'_>, number: u64) -> std::io::Result<()> {
        let (data, edge) = (epoll::EventData::new_u64(number), epoll::EventFlags::IN | epoll::EventFlags::ET);
        epoll::add(epoll, self.waker.kick.as_fd(), data, edge)?;
        if let Some(push) = &*self.waker.push.lock() {
            epoll::add(epoll, push.as_fd(), data, edge)?;
        }
        Ok(())
    }

    /// Fetches the agent's sockets if they have changed, and returns the lease if no packets come
    /// any more.
    fn look_after_inbox(self: &Arc<Self>) {
        self.renew_sockets();
        self.return_idle_lease();
    }

    /// Handles the agent's pushes, and the end of the agent.
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
                        self.handle_push(&message, received.fds);
                    }
                }
            }
        }
        // The socket is closed and would wake the thread for ever.
        if let Some(socket) = self.waker.push.lock().take() {
            let _ = epoll::delete(&self.waker.epoll, socket.as_fd());
        }
        if !self.waker.stop.load(Ordering::Relaxed) {
            self.die("the softhca agent is gone");
        }
    }

    fn handle_push(self: &Arc<Self>, message: &Push, fds: Vec<OwnedFd>) {
        match message.kind {
            // A lane of this engine to itself: `open_lane` adds both ends.
            push::LANE if message.lane.engine != self.number() => match Lane::new(&message.lane, fds) {
                Ok(lane) => drop(self.lanes.add(lane, true)),
                Err(error) => tracing::error!("lane {} could not be taken: {error}", message.lane.lane),
            },
            push::LANE_GONE => {
                self.lanes.engine_ended(message.lane.engine);
                self.keys.engine_ended(message.lane.engine);
                self.lose_lane(message.lane.lane);
            }
            push::TARGET => self.adopt_target(message.lane.lane),
            push::PORTS => self.ports_changed(),
            push::PATHS => self.paths_changed(),
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
