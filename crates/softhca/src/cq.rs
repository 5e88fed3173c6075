//! Completion queues: they report the end of requests and give the buffers back. Principal type:
//! [`Cq`].
//!
//! A CQ never overruns. The number of requests in progress on it is limited by its size, and
//! posting one more request fails. The requests of shared receive queues are not counted: they
//! belong to no CQ until a message comes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use abi::cq::Wc;
use abi::errno::Errno;
use engine::{Channel, CqSpec, PostCause, PostError, WorkQueue};
use parking_lot::{Mutex, RwLock};

use crate::about::About;
#[cfg(feature = "tokio")]
use crate::aio::tasks::{Tasks, Told};
use crate::completion::Completion;
use crate::context::{Context, ContextInner};
use crate::error::{Error, Result};
use crate::pending::{Owner, Queues, is_receive};
use crate::wait::readable;

/// Number of completions taken from the adapter at once.
const BATCH: usize = 16;
/// Number of polls before a waiting thread sleeps. They take some tens of microseconds, because a
/// wake-up takes longer.
const LOOKS: u32 = 400;

/// A completion queue. Clones refer to the same queue.
///
/// Polling the queue drives the device. While nobody polls, a thread of the library drives it.
#[derive(Clone)]
pub struct Cq {
    pub(crate) inner: Arc<CqInner>,
}

pub(crate) struct CqInner {
    pub(crate) ctx: Arc<ContextInner>,
    pub(crate) cq: Arc<engine::Cq>,
    pub(crate) channel: Arc<Channel>,
    cookie: u64,
    capacity: u32,
    under_way: AtomicU32,
    /// The queue pairs that complete on this CQ, by QPN.
    pub(crate) queues: RwLock<HashMap<u32, Arc<Queues>>>,
    /// Completions that a caller took while it looked for others, oldest first.
    stash: Mutex<VecDeque<Completion>>,
    has_stash: AtomicBool,
    /// One thread sleeps on the descriptor; the other threads wait for this lock.
    sleeping: Mutex<()>,
    /// Tasks of a runtime that wait for completions of this CQ.
    #[cfg(feature = "tokio")]
    pub(crate) tasks: std::sync::OnceLock<Tasks>,
}

/// What becomes of a completion of the adapter.
enum Ended {
    /// The next poll returns the completion.
    Polled(Completion),
    /// A task is told of the completion.
    #[cfg(feature = "tokio")]
    Told(Told),
    /// A scope was told of the completion, or its queue pair is gone.
    Over,
}

impl Cq {
    fn new(ctx: &Arc<ContextInner>, completions: u32) -> Result<Self> {
        let channel = ctx.engine.create_channel()?;
        let flags = rustix::fs::fcntl_getfl(channel.fd())?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        let cookie = ctx.cookie();
        let cq = ctx.engine.create_cq(&CqSpec { cqe: completions, channel: Some(&channel), comp_vector: 0, cookie })?;
        ctx.named.lock().insert(cookie, About::Cq(cq.handle()));
        let inner = CqInner {
            ctx: Arc::clone(ctx),
            capacity: cq.entries(),
            cq,
            channel,
            cookie,
            under_way: AtomicU32::new(0),
            queues: RwLock::new(HashMap::new()),
            stash: Mutex::new(VecDeque::new()),
            has_stash: AtomicBool::new(false),
            sleeping: Mutex::new(()),
            #[cfg(feature = "tokio")]
            tasks: std::sync::OnceLock::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The number of the queue in async events.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.cq.handle()
    }

    /// Maximum number of requests in progress on this queue.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.inner.capacity
    }

    /// Returns the next completion, if there is one.
    ///
    /// # Errors
    /// EIO in a process that inherited the queue over a fork.
    pub fn poll(&self) -> Result<Option<Completion>> {
        self.inner.poll()
    }

    /// Waits for the next completion: polls for some tens of microseconds, then sleeps.
    ///
    /// # Errors
    /// EIO when the device is gone and no more completions can come. EBUSY for a queue that tasks
    /// wait on (feature `tokio`): they take its events.
    pub fn wait(&self) -> Result<Completion> {
        loop {
            if let Some(completion) = self.wait_for(Duration::MAX)? {
                return Ok(completion);
            }
        }
    }

    /// Waits for the next completion, at most for `limit`.
    ///
    /// # Errors
    /// The errors of [`Cq::wait`].
    pub fn wait_for(&self, limit: Duration) -> Result<Option<Completion>> {
        let inner = &*self.inner;
        for _ in 0..LOOKS {
            if let Some(completion) = inner.poll()? {
                return Ok(Some(completion));
            }
            std::hint::spin_loop();
        }
        #[cfg(feature = "tokio")]
        if inner.tasks.get().is_some() {
            let reason = format!("tasks wait on CQ {}: await its next completion instead", self.number());
            return Err(Error::refused(Errno::EBUSY, reason));
        }
        let end = Instant::now().checked_add(limit);
        let _turn = match end {
            None => inner.sleeping.lock(),
            Some(end) => match inner.sleeping.try_lock_until(end) {
                Some(turn) => turn,
                None => return inner.poll(),
            },
        };
        loop {
            let alive = self.take_event();
            self.arm()?;
            // Completions that came before the arming give no event, so poll again.
            if let Some(completion) = inner.poll()? {
                return Ok(Some(completion));
            }
            alive?;
            if !readable(inner.channel.fd(), end)? {
                return inner.poll();
            }
        }
    }

    /// Asks that the descriptor becomes readable at the next completion. Each call is good for one
    /// event. Poll after arming, because completions that came earlier give no event.
    ///
    /// # Errors
    /// EIO in a process that inherited the queue over a fork.
    pub fn arm(&self) -> Result<()> {
        Ok(self.inner.cq.req_notify(false)?)
    }

    /// As [`Cq::arm`], for the next completion that its sender marked as solicited, or that is an
    /// error.
    ///
    /// # Errors
    /// The errors of [`Cq::arm`].
    pub fn arm_solicited(&self) -> Result<()> {
        Ok(self.inner.cq.req_notify(true)?)
    }

    /// Takes the events that made the descriptor readable. Returns whether there were any.
    ///
    /// # Errors
    /// EIO when the device is gone.
    pub fn take_event(&self) -> Result<bool> {
        self.inner.take_event()
    }
}

/// Readable when there is an event that [`Cq::arm`] asked for: for `poll`, `epoll`, or an async
/// runtime.
impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.channel.fd()
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cq({}, {} of {} requests under way)",
            self.number(),
            self.inner.under_way.load(Ordering::Relaxed),
            self.capacity()
        )
    }
}

impl Context {
    /// Creates a completion queue with room for at least this many completions.
    ///
    /// # Errors
    /// EINVAL for a size beyond the device's limit.
    pub fn cq(&self, completions: u32) -> Result<Cq> {
        Cq::new(&self.inner, completions)
    }
}

impl CqInner {
    pub(crate) fn poll(&self) -> Result<Option<Completion>> {
        // Completions for tasks stay in order only if one thread at a time takes them.
        #[cfg(feature = "tokio")]
        if self.tasks.get().is_some() {
            self.gather()?;
            return Ok(self.unstash());
        }
        if let Some(completion) = self.unstash() {
            return Ok(Some(completion));
        }
        loop {
            let mut wc = [Wc::default()];
            if self.cq.poll(&mut wc)? == 0 {
                return Ok(None);
            }
            match self.finish(&wc[0]) {
                Ended::Polled(completion) => return Ok(Some(completion)),
                #[cfg(feature = "tokio")]
                Ended::Told(told) => told.tell(),
                Ended::Over => {}
            }
        }
    }

    /// The oldest stashed completion.
    pub(crate) fn unstash(&self) -> Option<Completion> {
        if !self.has_stash.load(Ordering::Acquire) {
            return None;
        }
        let mut stash = self.stash.lock();
        let completion = stash.pop_front();
        self.has_stash.store(!stash.is_empty(), Ordering::Release);
        completion
    }

    /// Takes all completions from the adapter and stashes them for later polls.
    pub(crate) fn gather(&self) -> Result<()> {
        loop {
            let mut wcs = [Wc::default(); BATCH];
            #[cfg(feature = "tokio")]
            let mut telling = Vec::new();
            // The lock is held while polling, so that completions stay in order.
            let mut stash = self.stash.lock();
            let taken = self.cq.poll(&mut wcs)?;
            #[cfg(feature = "tokio")]
            let before = stash.len();
            for wc in &wcs[..taken] {
                match self.finish(wc) {
                    Ended::Polled(completion) => stash.push_back(completion),
                    #[cfg(feature = "tokio")]
                    Ended::Told(told) => telling.push(told),
                    Ended::Over => {}
                }
            }
            #[cfg(feature = "tokio")]
            let kept = stash.len() - before;
            self.has_stash.store(!stash.is_empty(), Ordering::Release);
            drop(stash);
            // The wakers run without the lock: they may call this CQ again.
            #[cfg(feature = "tokio")]
            if let Some(tasks) = self.tasks.get() {
                telling.into_iter().for_each(Told::tell);
                tasks.gathered(taken, kept);
            }
            if taken < BATCH {
                return Ok(());
            }
        }
    }

    /// Calls `take` with each stashed completion, and keeps those that `take` returns.
    #[cfg(feature = "tokio")]
    pub(crate) fn sift(&self, take: impl FnMut(Completion) -> Option<Completion>) {
        let mut stash = self.stash.lock();
        *stash = std::mem::take(&mut *stash).into_iter().filter_map(take).collect();
        self.has_stash.store(!stash.is_empty(), Ordering::Release);
    }

    /// Ends the request of a completion of the adapter.
    fn finish(&self, wc: &Wc) -> Ended {
        let Some(queues) = self.queues.read().get(&wc.qp_num).map(Arc::clone) else { return Ended::Over };
        let Some((mut pending, wc)) = queues.end(wc) else { return Ended::Over };
        if !(queues.shared && is_receive(wc.wr_id)) {
            self.release(pending.weight);
        }
        match std::mem::replace(&mut pending.owner, Owner::Poller) {
            #[cfg(feature = "tokio")]
            Owner::Poller if is_receive(wc.wr_id) && queues.inbox.get().is_some() => {
                let inbox = queues.inbox.get().map(Arc::clone);
                let completion = Completion::new(&wc, pending.posted(), queues.datagrams, &self.ctx.engine);
                inbox.map_or(Ended::Over, |inbox| {
                    inbox.put(completion);
                    Ended::Told(Told::Inbox(inbox))
                })
            }
            Owner::Poller => Ended::Polled(Completion::new(&wc, pending.posted(), queues.datagrams, &self.ctx.engine)),
            Owner::Scope(tally) => {
                tally.done(&wc, pending.id, &self.ctx.engine);
                Ended::Over
            }
            #[cfg(feature = "tokio")]
            Owner::Task(task) => {
                let completion = Completion::new(&wc, pending.posted(), queues.datagrams, &self.ctx.engine);
                Ended::Told(Told::Task(task, completion))
            }
        }
    }

    pub(crate) fn take_event(&self) -> Result<bool> {
        let mut some = false;
        loop {
            match self.channel.next_event() {
                Ok(_) => some = true,
                Err(Errno::EAGAIN) => return Ok(some),
                Err(Errno::EIO) => return Err(Error::refused(Errno::EIO, "the device is gone, with its agent")),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Reserves room for this many more completions of requests that are posted to `queue`.
    pub(crate) fn reserve(&self, wanted: u32, queue: WorkQueue) -> Result<(), PostError> {
        let more = |count: u32| count.checked_add(wanted).filter(|count| *count <= self.capacity);
        match self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(outstanding) => {
                let cause = PostCause::CqFull { cq: self.cq.handle(), capacity: self.capacity, outstanding };
                Err(PostError { queue, cause })
            }
        }
    }

    pub(crate) fn release(&self, count: u32) {
        self.under_way.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn know(&self, qpn: u32, queues: &Arc<Queues>) {
        self.queues.write().insert(qpn, Arc::clone(queues));
    }

    pub(crate) fn forget(&self, qpn: u32) {
        self.queues.write().remove(&qpn);
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // Fails only when the agent is gone, or in a child process, which does not own the object.
        let _ = self.cq.destroy();
        let _ = self.channel.destroy();
        self.ctx.named.lock().remove(&self.cookie);
    }
}
