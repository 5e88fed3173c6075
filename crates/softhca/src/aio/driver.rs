//! What drives a CQ for tasks: those that wait look for a while and then sleep, and one task of the runtime has the descriptor.
//! Principal types: [`Tasks`], what a CQ knows of its tasks, and [`Drive`], a future that drives the CQ while it waits for another.
//!
//! Nobody's completion depends on somebody else's future being polled: who takes completions hands each to whom it belongs, and the
//! runtime's task is always there to take them. [`Cq::req_notify`](engine::Cq::req_notify) is done once for all sleepers.

use std::future::Future;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use abi::errno::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use crate::aio::Inbox;
use crate::completion::Completion;
use crate::cq::{Cq, CqInner};
use crate::error::{Error, Result};
use crate::pending::Owner;

/// Looks before a waiting task goes to sleep, each with a turn for the others: some tens of microseconds.
const LOOKS: u32 = 100;

/// What a CQ knows of the tasks that wait on it.
pub(crate) struct Tasks {
    /// Completions were taken: there is room in queues.
    pub(crate) room: Notify,
    /// There are completions for those who poll.
    stashed: Notify,
    /// Tasks that sleep, or are about to: they want the CQ to be armed.
    sleepers: AtomicUsize,
    /// The CQ is armed, or is being armed by somebody who looks at it afterwards.
    armed: AtomicBool,
    /// One of the tasks is looking.
    looking: AtomicBool,
    /// Nothing more comes, and why.
    ended: OnceLock<Error>,
    /// The task that has the descriptor.
    driver: AbortHandle,
}

/// Somebody who is to hear of a completion.
pub(crate) enum Told {
    Task(oneshot::Sender<Completion>, Completion),
    Inbox(Arc<Inbox>),
}

impl Told {
    /// Wakes whom it concerns. A task that has given up leaves the completion, and its buffers are freed here.
    pub(crate) fn tell(self) {
        match self {
            Self::Task(task, completion) => drop(task.send(completion)),
            Self::Inbox(inbox) => inbox.tell(),
        }
    }
}

impl Tasks {
    /// So many completions were taken, of which some are kept for those who poll.
    pub(crate) fn gathered(&self, taken: usize, kept: usize) {
        if taken > 0 {
            self.room.notify_waiters();
        }
        for _ in 0..kept {
            self.stashed.notify_one();
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Cq {
    /// Waits for the next completion of a request that was posted with an id, and lets other tasks run meanwhile (feature `tokio`).
    /// Messages of a queue pair of [`aio`](crate::aio) come out of that queue pair. No completion is lost when the future is dropped.
    ///
    /// # Errors
    /// EINVAL outside of a runtime; EIO when the device is gone and nothing more will come.
    ///
    /// # Panics
    /// In a runtime without `enable_io`.
    pub async fn next(&self) -> Result<Completion> {
        let tasks = self.inner.tasks()?;
        loop {
            let stashed = tasks.stashed.notified();
            if let Some(completion) = self.inner.poll()? {
                return Ok(completion);
            }
            self.inner.drive(stashed).await?;
        }
    }
}

impl CqInner {
    /// What it knows of its tasks: from now on they may wait on it.
    pub(crate) fn tasks(self: &Arc<Self>) -> Result<&Tasks> {
        if let Some(tasks) = self.tasks.get() {
            return Ok(tasks);
        }
        let file = watched(self.channel.fd())?;
        Ok(self.tasks.get_or_init(|| Tasks {
            room: Notify::new(),
            stashed: Notify::new(),
            sleepers: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            ended: OnceLock::new(),
            driver: tokio::spawn(watch(file, Watching(Arc::downgrade(self)))).abort_handle(),
        }))
    }

    /// Waits for `wanted`, which completions make ready, and drives the CQ meanwhile.
    pub(crate) async fn drive<F: Future>(self: &Arc<Self>, wanted: F) -> Result<F::Output> {
        let tasks = self.tasks()?;
        let wanted = std::pin::pin!(wanted);
        Drive { cq: self, tasks, wanted, looks: LOOKS, looking: false, asleep: false }.await
    }

    /// Why nothing more comes.
    pub(crate) fn ended(&self) -> Error {
        let ended = self.tasks.get().and_then(|tasks| tasks.ended.get().cloned());
        ended.unwrap_or_else(|| Error::refused(Errno::EIO, "the queue pair was dropped"))
    }

    /// Takes the events of the channel, and every completion there is; arms it again for those who still sleep.
    fn rung(&self, tasks: &Tasks) -> Result<()> {
        let alive = self.take_event();
        // SeqCst, here and in `Drive`: a sleeper counts itself and then looks whether the CQ is armed; this side takes the mark
        // away and then looks for sleepers. One of the two sees the other.
        tasks.armed.store(false, Ordering::SeqCst);
        self.gather()?;
        if tasks.sleepers.load(Ordering::SeqCst) > 0 {
            self.arm(tasks)?;
            self.gather()?;
        }
        alive.map(drop)
    }

    fn arm(&self, tasks: &Tasks) -> Result<()> {
        if !tasks.armed.swap(true, Ordering::SeqCst) {
            self.cq.req_notify(false)?;
        }
        Ok(())
    }

    /// Nothing more comes: wakes everybody to be told so.
    fn end(&self, error: Error) {
        let Some(tasks) = self.tasks.get() else { return };
        let _ = tasks.ended.set(error);
        let queues: Vec<_> = self.queues.read().values().map(Arc::clone).collect();
        for queues in queues {
            let tasks: Vec<Owner> = queues.sends.disown();
            drop(tasks);
            if let Some(inbox) = queues.inbox.get() {
                inbox.tell_all();
            }
        }
        tasks.room.notify_waiters();
        tasks.stashed.notify_waiters();
    }
}

/// Tells who waits when the task is dropped, with its runtime; also one that has never run.
struct Watching(Weak<CqInner>);

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.end(Error::refused(Errno::EIO, "the runtime to which the queue belonged has ended"));
        }
    }
}

/// The runtime's task that has the descriptor of a CQ.
async fn watch(file: AsyncFd<OwnedFd>, watching: Watching) {
    loop {
        let Ok(mut ready) = file.readable().await else { return };
        // What comes from here on makes it ready again.
        ready.clear_ready();
        let Some(inner) = watching.0.upgrade() else { return };
        let Some(tasks) = inner.tasks.get() else { continue };
        if let Err(error) = inner.rung(tasks) {
            inner.end(error);
            return;
        }
    }
}

/// Waits for another future, and drives the CQ meanwhile.
struct Drive<'a, F> {
    cq: &'a CqInner,
    tasks: &'a Tasks,
    wanted: Pin<&'a mut F>,
    looks: u32,
    looking: bool,
    asleep: bool,
}

impl<F> Drive<'_, F> {
    /// Whether it is to look again, instead of going to sleep.
    fn looks_again(&mut self) -> bool {
        let may = self.looks > 0 && (self.looking || !self.tasks.looking.swap(true, Ordering::Relaxed));
        if may {
            self.looks -= 1;
            self.looking = true;
        } else {
            self.looks = 0;
            self.stop_looking();
        }
        may
    }

    fn stop_looking(&mut self) {
        if std::mem::take(&mut self.looking) {
            self.tasks.looking.store(false, Ordering::Relaxed);
        }
    }
}

impl<F: Future> Future for Drive<'_, F> {
    type Output = Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(value) = this.wanted.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        this.cq.gather()?;
        if let Poll::Ready(value) = this.wanted.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        if this.tasks.ended.get().is_none() && this.looks_again() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !std::mem::replace(&mut this.asleep, true) {
            this.tasks.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        this.cq.arm(this.tasks)?;
        // What came before the arming gives no event.
        this.cq.gather()?;
        if let Poll::Ready(value) = this.wanted.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        match this.tasks.ended.get() {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Drive<'_, F> {
    fn drop(&mut self) {
        self.stop_looking();
        if self.asleep {
            self.tasks.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Another descriptor of the same file, which the current runtime watches: it may be dropped after the first.
#[allow(
    deprecated,
    reason = "what replaces it is unsafe, for types whose descriptor may change; that of an OwnedFd, which nobody takes out, does not"
)]
pub(crate) fn watched(fd: BorrowedFd<'_>) -> Result<AsyncFd<OwnedFd>> {
    Handle::try_current()
        .map_err(|_| Error::refused(Errno::EINVAL, "there is no tokio runtime here: this is for code that one runs"))?;
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
    AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)
}

/// What a runtime refuses.
pub(crate) fn failed(error: std::io::Error) -> Error {
    Error::refused(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), error.to_string())
}
