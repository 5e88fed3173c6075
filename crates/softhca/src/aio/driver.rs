//! Drives a CQ for tasks: waiting tasks poll for a while and then sleep, and one task of the
//! runtime owns the descriptor. Principal type: [`Drive`], a future that drives the CQ while it
//! waits for another future.
//!
//! No completion depends on the polling of an unrelated future. A task that takes completions
//! delivers each to its owner, and the runtime's task is always there to take them.
//! [`Cq::req_notify`](engine::Cq::req_notify) is called once for all sleepers.

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
use tokio::sync::Notify;

use crate::aio::tasks::Tasks;
use crate::completion::Completion;
use crate::cq::{Cq, CqInner};
use crate::error::{Error, Result};
use crate::pending::Owner;

/// Number of polls before a waiting task sleeps; other tasks run in between. They take some tens of
/// microseconds.
const LOOKS: u32 = 100;

impl Cq {
    /// Waits for the next completion of a request that was posted with an id, and lets other tasks
    /// run meanwhile (feature `tokio`). The messages of a queue pair of [`aio`](crate::aio) come
    /// from that queue pair instead. No completion is lost when the future is dropped.
    ///
    /// # Errors
    /// EINVAL outside of a runtime; EIO when the device is gone and no more completions can come.
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
    /// The CQ's state about its tasks, created if necessary: from now on tasks may wait on the CQ.
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

    /// Why no more completions can come.
    pub(crate) fn ended(&self) -> Error {
        let ended = self.tasks.get().and_then(|tasks| tasks.ended.get().cloned());
        ended.unwrap_or_else(|| Error::refused(Errno::EIO, "the queue pair was dropped"))
    }

    /// Takes the events of the channel and all completions; arms the CQ again if tasks still sleep.
    fn rung(&self, tasks: &Tasks) -> Result<()> {
        let alive = self.take_event();
        // SeqCst, here and in `Drive`: a sleeper counts itself and then checks `armed`; this side
        // clears `armed` and then checks for sleepers. At least one side sees the other's store.
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

    /// No more completions can come: wakes all waiters with the error.
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

/// Tells the waiters when the runtime's task is dropped with its runtime, even if the task has
/// never run.
struct Watching(Weak<CqInner>);

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.end(Error::refused(Errno::EIO, "the runtime to which the queue belonged has ended"));
        }
    }
}

/// The runtime's task that owns the descriptor of a CQ.
async fn watch(file: AsyncFd<OwnedFd>, watching: Watching) {
    loop {
        let Ok(mut ready) = file.readable().await else { return };
        // Later events make the descriptor ready again.
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
    /// Whether to poll again instead of going to sleep.
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
        // Completions that came before the arming give no event.
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

/// Duplicates the descriptor, for the current runtime to watch: either copy may be dropped first.
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

/// The error of a runtime that refuses.
pub(crate) fn failed(error: std::io::Error) -> Error {
    Error::refused(Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)), error.to_string())
}
