//! Completion channels: queues of CQs with unread events. Principal type: [`Channel`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::cq::{CreateCompChannel, CreateCompChannelAnswer};
use abi::errno::Errno;
use abi::private::ChannelDestroy;

use crate::core::Core;
use crate::error::{Result, refusal};
use crate::event::Object;
use crate::event_file::{Closable, EventFile};
use crate::request;

/// A completion channel (`ibv_comp_channel`).
pub struct Channel {
    core: Arc<Core>,
    handle: u32,
    file: EventFile<WeakQueue>,
    /// The number of CQs that use it. It cannot be destroyed before them.
    users: AtomicU32,
}

/// A CQ, as its channel sees it.
pub(crate) trait Completes: Object {
    /// Counts a completion event that the program has read, also in the agent's count, which other
    /// libraries use.
    fn count_event(&self);
    /// The cookie that the program gave at creation.
    fn cookie(&self) -> u64;
}

/// A CQ with an unread event. It may end before the event is read.
pub(crate) type WeakQueue = Weak<dyn Completes>;

impl Closable for Channel {
    fn kill(&self) {
        self.file.kill();
    }
}

impl Core {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// EMFILE or the agent's refusal.
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<Channel>> {
        let request = request::legacy(
            command::CREATE_COMP_CHANNEL,
            &CreateCompChannel { response: 1 },
            size_of::<CreateCompChannelAnswer>(),
        );
        let answer = self.call(&request)?;
        let made: CreateCompChannelAnswer = answer.get(0)?;
        let fd = answer
            .fds
            .into_iter()
            .next()
            .ok_or_else(|| refusal(Errno::EIO, "a channel came without its descriptor"))?;
        Ok(Channel::new(Arc::clone(self), made.fd.cast_unsigned(), fd))
    }
}

impl Channel {
    pub(crate) fn new(core: Arc<Core>, handle: u32, fd: OwnedFd) -> Arc<Self> {
        let channel = Arc::new(Self { core, handle, file: EventFile::new(fd), users: AtomicU32::new(0) });
        let closable: Weak<dyn Closable> = Arc::<Self>::downgrade(&channel);
        let mut channels = channel.core.channels.lock();
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(closable);
        drop(channels);
        channel
    }

    /// The descriptor that programs poll.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn raise(&self, cq: WeakQueue) {
        self.file.push(cq);
    }

    pub(crate) fn forget(&self, cq: &dyn Completes) {
        self.file.retain(|queued| !std::ptr::addr_eq(queued.as_ptr(), cq));
    }

    pub(crate) fn attach(&self, delta: i32) {
        self.users.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
    }

    /// The cookie of the CQ whose event is next. Waits unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN, EINTR, or EIO when the device is gone or belongs to the parent process.
    pub fn next_event(&self) -> Result<u64, Errno> {
        loop {
            match self.try_event()? {
                Some(cookie) => return Ok(cookie),
                None => self.file.wait()?,
            }
        }
    }

    /// The cookie of the CQ whose event is next, if there is one.
    ///
    /// # Errors
    /// EIO when the device is gone or belongs to the parent process.
    pub fn try_event(&self) -> Result<Option<u64>, Errno> {
        self.core.check_process().map_err(|error| error.errno)?;
        let count = |cq: &WeakQueue| cq.upgrade().iter().for_each(|cq| cq.read().count_completion());
        while let Some(cq) = self.file.take(|| (None, false), count)? {
            if let Some(cq) = cq.upgrade() {
                cq.count_event();
                return Ok(Some(cq.cookie()));
            }
        }
        Ok(None)
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// EBUSY while a CQ uses it.
    pub fn destroy(&self) -> Result<()> {
        self.core.check_process()?;
        if self.users.load(Ordering::Relaxed) != 0 {
            return Err(refusal(Errno::EBUSY, format!("completion channel {} is used by CQs", self.handle)));
        }
        let body = ChannelDestroy { handle: self.handle, reserved: 0 };
        self.core.give_up(&request::private(command::CHANNEL_DESTROY, &body, 0))
    }
}
