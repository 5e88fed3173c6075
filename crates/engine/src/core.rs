//! The part of an engine that does not depend on queues: the connection to the agent, the clock,
//! the tables of keys, the agent's board, and the event files.
//!
//! Protection domains, memory regions, address handles and completion channels need only this. A
//! [`Core`] knows no queue pair and no lane. [`crate::Engine`] has one and dereferences to it.
//! Principal type: [`Core`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use abi::command::number as command;
use abi::device::{
    ExQueryDevice, ExQueryDeviceAnswer, QueryDevice, QueryDeviceAnswer, QueryPkey, QueryPkeyAnswer, QueryPort,
    QueryPortAnswer, cap,
};
use abi::errno::Errno;
use abi::private::{GidEntry, GidEntryAnswer, ResizeUndo};
use abi::queue::Mapping;
use parking_lot::Mutex;
use protocol::Time;

use crate::board::Board;
use crate::capture::CaptureHook;
use crate::clock::Clock;
use crate::control::{Answer, Control, gone};
use crate::error::{Error, Result, refusal};
use crate::event::{AsyncEvent, Events};
use crate::event_file::Closable;
use crate::helper::Waker;
use crate::kept::KeptBytes;
use crate::keys::Keys;
use crate::lint::Lint;
use crate::memory::{QueueMemory, View};
use crate::queue_use::QueueUse;
use crate::reason::Attached;
use crate::request;
use crate::special::{Special, SpecialWord};
use crate::table::Table;
use crate::usermem::ForkMark;

/// The part of an [`crate::Engine`] that knows no queues.
pub struct Core {
    pub(crate) agent: Agent,
    pub(crate) identity: Identity,
    pub(crate) fork: Fork,
    /// The descriptor by which other contexts import this one.
    pub(crate) shared: OwnedFd,
    pub(crate) memory: QueueAllocator,
    pub(crate) keys: Keys,
    /// What is used of the queues of each QP, by QPN.
    pub(crate) queue_uses: Table<QueueUse>,
    pub(crate) board: Board,
    pub(crate) events: Events,
    /// The completion channels.
    pub(crate) channels: Mutex<Vec<Weak<dyn Closable>>>,
    pub(crate) waker: Waker,
    /// The page for its reasons.
    pub(crate) reasons: Attached,
    pub(crate) capture: Arc<CaptureHook>,
    /// Why packets of this engine cannot take every path.
    pub(crate) special: SpecialWord,
    /// Bytes of packets that are kept for later.
    pub(crate) kept_bytes: Arc<KeptBytes>,
    pub(crate) clock: Clock,
    /// The strict mode's checks, if the environment asks for them.
    pub(crate) lint: Option<Box<Lint>>,
    /// The engine, for what must be received before a region or window ends.
    pub(crate) arrivals: OnceLock<Weak<dyn Arrivals>>,
}

/// Packets that have arrived and are not handled yet.
pub(crate) trait Arrivals: Send + Sync {
    /// Handles them. Bounded, because peers may go on sending.
    fn take_arrived(self: Arc<Self>);
}

/// The connection to the agent.
pub(crate) struct Agent {
    pub(crate) control: Box<dyn Control>,
    pub(crate) is_gone: AtomicBool,
    /// Whether a fault rule may make a command fail that cannot fail otherwise.
    pub(crate) may_refuse: AtomicBool,
}

/// What the agent reported about this engine and its device.
pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) device: u32,
    pub(crate) comp_vectors: u32,
    pub(crate) facts: OnceLock<QueryDeviceAnswer>,
}

/// The process that opened the engine.
pub(crate) struct Fork {
    pub(crate) mark: ForkMark,
    /// Whether a child process has been told that it cannot use this engine.
    pub(crate) told: AtomicBool,
}

/// Queue memory.
pub(crate) struct QueueAllocator {
    pub(crate) queues: QueueMemory,
    /// Held while queue memory is allocated or freed, so that both sides count its users alike.
    pub(crate) allocation: Mutex<()>,
}

impl Core {
    /// The agent's number for this engine.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.identity.number
    }

    /// The index of the device on the agent's board.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.identity.device
    }

    /// The number of completion vectors.
    #[must_use]
    pub fn comp_vectors(&self) -> u32 {
        self.identity.comp_vectors
    }

    /// The strict mode's checks; None unless the environment asks for them (see
    /// [`crate::lint::VARIABLE`]).
    #[inline]
    #[must_use]
    pub fn lint(&self) -> Option<&Lint> {
        self.lint.as_deref()
    }

    /// Handles all packets that have arrived so far. An adapter has handled and acknowledged them
    /// long before the program withdraws the memory that they name.
    pub(crate) fn take_arrived(&self) {
        if let Some(engine) = self.arrivals.get().and_then(Weak::upgrade) {
            engine.take_arrived();
        }
    }

    /// Whether a capture runs.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.special.get().has(Special::CAPTURED)
    }

    /// The state machines' time: nanoseconds since the engine was opened.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The device's clock in nanoseconds, used for completion timestamps. All processes of the host
    /// share it.
    #[must_use]
    pub fn raw_clock(&self) -> u64 {
        self.clock.raw()
    }

    /// The time of day at device time `raw`, in nanoseconds since 1970, from the current difference
    /// of both clocks.
    #[must_use]
    pub fn wall_clock(&self, raw: u64) -> u64 {
        raw.wrapping_add(self.clock.wall_ahead())
    }

    /// The time now or a recent reading, for uses where a microsecond does not matter.
    pub(crate) fn about_now(&self) -> Time {
        self.clock.about()
    }

    /// Refuses a call in a process that inherited the engine over a fork.
    ///
    /// # Errors
    /// EIO.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        if self.fork.mark.made_here() { Ok(()) } else { self.inherited() }
    }

    #[cold]
    #[inline(never)]
    fn inherited(&self) -> Result<()> {
        let reason = crate::post_error::INHERITED;
        if !self.fork.told.swap(true, Ordering::Relaxed) {
            // Noted only once: a child may ask in a loop. The memory of this flag is the child's
            // own.
            return Err(refusal(Errno::EIO, reason));
        }
        Err(Error::new(Errno::EIO, reason))
    }

    /// Whether the agent, and with it the device, is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.agent.is_gone.load(Ordering::Relaxed)
    }

    /// Whether a command failed because the agent is gone. The command may notice this before the
    /// helper thread does.
    #[must_use]
    pub fn has_lost(&self, error: &Error) -> bool {
        // In a process that inherited the engine over a fork every command fails with EIO, but the
        // agent still serves the parent.
        self.is_gone() || (error.errno == Errno::EIO && self.fork.mark.made_here())
    }

    pub(crate) fn call(&self, request: &[u8]) -> Result<Answer> {
        self.call_with(request, &[])
    }

    /// A call that frees an object. It succeeds if the agent is gone, because the object is gone as
    /// well.
    pub(crate) fn give_up(&self, request: &[u8]) -> Result<()> {
        match self.call(request) {
            Err(error) if !self.has_lost(&error) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn call_with(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        crate::lock::assert_none_held();
        self.send(request, fds)
    }

    /// A call by a thread that holds the lock of an XRC target. The target's packets must wait
    /// until the agent has decided which process serves the target. All other calls are made
    /// without locks.
    pub(crate) fn call_under_lock(&self, request: &[u8]) -> Result<Answer> {
        self.send(request, &[])
    }

    fn send(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        self.check_process()?;
        if self.is_gone() {
            return Err(gone());
        }
        let answer = self.agent.control.call(request, fds)?;
        if request::makes(request) {
            crate::reason::went_on();
        }
        Ok(answer)
    }

    /// Sends a command whose answer is not needed. The agent executes commands in order; this call
    /// does not wait.
    pub(crate) fn tell(&self, request: &[u8]) -> Result<()> {
        self.check_process()?;
        if self.is_gone() {
            return Err(gone());
        }
        crate::lock::assert_none_held();
        if self.agent.may_refuse.load(Ordering::Relaxed) {
            return self.agent.control.call(request, &[]).map(drop);
        }
        self.agent.control.tell(request)
    }

    /// The device's attributes. The agent is asked once.
    pub(crate) fn facts(&self) -> Option<&QueryDeviceAnswer> {
        match self.identity.facts.get() {
            None => self.query_device().ok().map(|facts| self.identity.facts.get_or_init(|| facts)),
            known => known,
        }
    }

    /// The most READs and atomics that a QP may have outstanding, as requester and as responder.
    pub(crate) fn depths(&self) -> Option<(u32, u32)> {
        self.facts().map(|facts| (facts.max_qp_init_rd_atom, facts.max_qp_rd_atom))
    }

    /// Whether windows of type 2 are bound to a QP number only (2A), or also to its PD (2B).
    pub(crate) fn binds_to_number(&self) -> bool {
        self.facts().is_some_and(|facts| u64::from(facts.device_cap_flags) & cap::MW_TYPE_2A != 0)
    }

    /// A call that makes an object, and whose answer names its queue memory. Maps this memory
    /// before the next allocation is answered. If that fails, `undo` gives the command that
    /// destroys the object at the agent: otherwise nobody could destroy it, and the agent would
    /// place other objects in memory that is not mapped here.
    pub(crate) fn allocate<T>(
        &self,
        request: &[u8],
        read: impl FnOnce(&Answer) -> Result<(T, Mapping)>,
        undo: impl FnOnce(&T) -> Vec<u8>,
    ) -> Result<(T, View)> {
        let _order = self.memory.allocation.lock();
        self.allocate_in_turn(request, read, |out| Some(undo(out)))
    }

    /// As [`Core::allocate`], for an object that exists, and for a caller that holds
    /// [`QueueAllocator::allocation`]. That lock comes before the lock of every queue.
    pub(crate) fn allocate_in_turn<T>(
        &self,
        request: &[u8],
        read: impl FnOnce(&Answer) -> Result<(T, Mapping)>,
        undo: impl FnOnce(&T) -> Option<Vec<u8>>,
    ) -> Result<(T, View)> {
        let answer = self.call(request)?;
        let (out, mapping) = read(&answer)?;
        match self.memory.queues.view(&mapping, &mut answer.fds.into_iter()) {
            Ok(view) => Ok((out, view)),
            Err(error) => {
                // If the agent is gone, so is the object.
                if let Some(undo) = undo(&out) {
                    let _ = self.tell(&undo);
                }
                Err(error)
            }
        }
    }

    /// As [`Core::allocate_in_turn`], for a queue that gets other memory. If this memory cannot be
    /// mapped, the queue stays in the memory that it has, also at the agent.
    pub(crate) fn move_queue<T>(
        &self,
        request: &[u8],
        read: impl FnOnce(&Answer) -> Result<(T, Mapping)>,
        undo: ResizeUndo,
    ) -> Result<(T, View)> {
        self.allocate_in_turn(request, read, |_| Some(request::private(command::RESIZE_UNDO, &undo, 0)))
    }

    /// Maps the memory that the answer to another process names.
    pub(crate) fn view(&self, mapping: &Mapping, fds: Vec<OwnedFd>) -> Result<View> {
        self.memory.queues.view(mapping, &mut fds.into_iter())
    }

    /// The device's limits and names.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn query_device(&self) -> Result<QueryDeviceAnswer> {
        self.call(&request::legacy(
            command::QUERY_DEVICE,
            &QueryDevice { response: 1 },
            size_of::<QueryDeviceAnswer>(),
        ))?
        .get(0)
    }

    /// As [`Core::query_device`], with the extended attributes.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn query_device_ex(&self) -> Result<ExQueryDeviceAnswer> {
        let body = ExQueryDevice::default();
        self.call(&request::private(command::EX_QUERY_DEVICE, &body, size_of::<ExQueryDeviceAnswer>()))?.get(0)
    }

    /// A port's state.
    ///
    /// # Errors
    /// EINVAL for a port that the device does not have.
    pub fn query_port(&self, port: u8) -> Result<QueryPortAnswer> {
        let body = QueryPort { response: 1, port_num: port, ..Default::default() };
        self.call(&request::legacy(command::QUERY_PORT, &body, size_of::<QueryPortAnswer>()))?.get(0)
    }

    /// One GID; all zeros for an empty entry.
    ///
    /// # Errors
    /// EINVAL for an index beyond the table.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<[u8; 16]> {
        self.check_process()?;
        let empty = || refusal(Errno::EINVAL, format!("port {port} has no GID index {index}"));
        if self.is_gone() {
            return Err(gone());
        }
        self.board.gid(self.identity.device, u32::from(port), index).ok_or_else(empty)
    }

    /// One GID with its type and interface.
    ///
    /// # Errors
    /// ENODATA for an empty entry; EINVAL for an index beyond the table.
    pub fn gid_entry(&self, port: u32, index: u32) -> Result<GidEntryAnswer> {
        self.call(&request::private(command::GID_ENTRY, &GidEntry { port, index }, size_of::<GidEntryAnswer>()))?.get(0)
    }

    /// One P_Key, in host order.
    ///
    /// # Errors
    /// EINVAL for an index beyond the table.
    pub fn query_pkey(&self, port: u8, index: u32) -> Result<u16> {
        let body = QueryPkey { response: 1, pkey_index: index, port_num: port, ..Default::default() };
        let answer: QueryPkeyAnswer =
            self.call(&request::legacy(command::QUERY_PKEY, &body, size_of::<QueryPkeyAnswer>()))?.get(0)?;
        Ok(answer.pkey)
    }

    /// The descriptor that is readable when an async event waits.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The next async event. Waits unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN, EINTR; EIO when the device is gone and all events are read, or after a fork.
    pub fn async_event(&self) -> Result<AsyncEvent, Errno> {
        loop {
            match self.try_async_event()? {
                Some(event) => return Ok(event),
                None => self.events.wait()?,
            }
        }
    }

    /// The next async event, if there is one.
    ///
    /// # Errors
    /// EIO when the device is gone and all events are read, or after a fork.
    pub fn try_async_event(&self) -> Result<Option<AsyncEvent>, Errno> {
        self.check_process().map_err(|error| error.errno)?;
        self.events.take()
    }
}
