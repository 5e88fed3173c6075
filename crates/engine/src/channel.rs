//! Completion channels: queues of CQs with unread events. Principal type: [`Channel`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::cq::{CreateCompChannel, CreateCompChannelAnswer};
use abi::errno::Errno;
use abi::private::ChannelDestroy;

use crate::cq::Cq;
use crate::engine::Engine;
use crate::error::{Result, refusal};
use crate::event_file::EventFile;
use crate::request;

/// A completion channel (`ibv_comp_channel`).
pub struct Channel {
    engine: Arc<Engine>,
    handle: u32,
    file: EventFile<Weak<Cq>>,
    /// The number of CQs that use it. It cannot be destroyed before them.
    users: AtomicU32,
}

impl Engine {
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
    pub(crate) fn new(engine: Arc<Engine>, handle: u32, fd: OwnedFd) -> Arc<Self> {
        let channel = Arc::new(Self { engine, handle, file: EventFile::new(fd), users: AtomicU32::new(0) });
        channel.engine.register_channel(&channel);
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

    pub(crate) fn raise(&self, cq: &Weak<Cq>) {
        self.file.push(cq.clone());
    }

    pub(crate) fn forget(&self, cq: &Cq) {
        self.file.retain(|queued| !std::ptr::eq(queued.as_ptr(), cq));
    }

    pub(crate) fn attach(&self, delta: i32) {
        self.users.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
    }

    pub(crate) fn kill(&self) {
        self.file.kill();
    }

    /// The cookie of the CQ whose event is next. Waits unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN, EINTR, or EIO when the device is gone or belongs to the parent process.
    pub fn next_event(&self) -> Result<u64, Errno> {
        self.engine.check_process().map_err(|error| error.errno)?;
        loop {
            let count = |cq: &Weak<Cq>| cq.upgrade().iter().for_each(|cq| cq.read.count_completion());
            if let Some(cq) = self.file.next(|| (None, false), count)?.upgrade() {
                cq.tell_event();
                return Ok(cq.cookie());
            }
        }
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// EBUSY while a CQ uses it.
    pub fn destroy(&self) -> Result<()> {
        self.engine.check_process()?;
        if self.users.load(Ordering::Relaxed) != 0 {
            return Err(refusal(Errno::EBUSY, format!("completion channel {} is used by CQs", self.handle)));
        }
        let body = ChannelDestroy { handle: self.handle, reserved: 0 };
        self.engine.give_up(&request::private(command::CHANNEL_DESTROY, &body, 0))
    }
}
