//! The engine: one HCA context inside a process, from opening to closing.
//!
//! An [`Engine`] is a value without statics: one connection to an agent, its queue memory and
//! lanes, and the tables of the program's objects. This file opens and closes the engine and makes
//! its control calls. The data path is in `send.rs`, `receive.rs` and `progress.rs`. The thread
//! that works while the program does not poll is in `helper.rs`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

use abi::command::number as command;
use abi::device::{
    ExQueryDevice, ExQueryDeviceAnswer, GetContext, GetContextAnswer, QueryDevice, QueryDeviceAnswer, QueryPkey,
    QueryPkeyAnswer, QueryPort, QueryPortAnswer, cap,
};
use abi::errno::Errno;
use abi::private::{EngineHello, EngineHelloAnswer, GidEntry, GidEntryAnswer};
use abi::queue::{ContextOut, Mapping};
use abi::target::XrcEvent;
use parking_lot::Mutex;
use protocol::Time;

use crate::board::Board;
use crate::capture::CaptureHook;
use crate::channel::Channel;
use crate::clock::Clock;
use crate::control::{Answer, Control, gone};
use crate::cq::Cq;
use crate::direct::Direct;
use crate::drops::Drops;
use crate::error::{Error, Result, by_system, refusal};
use crate::event::Events;
use crate::extent::Extent;
use crate::faults::Faults;
use crate::helper::Waker;
use crate::lane::Lanes;
use crate::lint::Lint;
use crate::mcast::Groups;
use crate::memory::{QueueMemory, View};
use crate::mw::Mw;
use crate::net::Net;
use crate::network::Udp;
use crate::pollers::{Poller, Pollers};
use crate::qp::Qp;
use crate::reason::{Attached, Kind, Note, note};
use crate::remote_srq::Ways;
use crate::request;
use crate::srq::Srq;
use crate::table::Table;
use crate::timers::Timers;
use crate::usermem::ForkMark;

/// A program whose CQ is never empty drives the engine at every 16th poll: the bits of the poll
/// count that are then 0.
const SELDOM: u32 = 15;

/// Work that its finder must not do under its locks.
pub(crate) enum Deferred {
    /// A completion found its CQ full.
    Overrun(Weak<Cq>),
    /// The peer at the far end of this lane broke the lane's rules.
    Broken(u32),
}

/// One context on one device of one agent.
pub struct Engine {
    pub(crate) control: Box<dyn Control>,
    mark: ForkMark,
    /// The descriptor by which other contexts import this one.
    pub(crate) shared: OwnedFd,
    memory: QueueMemory,
    /// Held while queue memory is allocated or freed, so that both sides count its users alike.
    pub(crate) allocation: Mutex<()>,
    pub(crate) qps: Table<Qp>,
    /// The SRQs of XRC domains, by number.
    pub(crate) xrc_srqs: Table<Srq>,
    /// XRC targets that other engines serve, by number.
    pub(crate) targets: Table<Qp>,
    /// The engines that own SRQs which targets of this engine serve.
    pub(crate) ways: Mutex<Ways>,
    pub(crate) extents: Table<Extent>,
    /// Memory windows, bound or not, by the index of their keys.
    pub(crate) windows: Table<Mw>,
    pub(crate) groups: Groups,
    pub(crate) lanes: Lanes,
    pub(crate) net: Net,
    pub(crate) board: Board,
    pub(crate) events: Events,
    pub(crate) timers: Timers,
    /// Faults on demand.
    pub(crate) faults: Faults,
    /// The memory that it has granted to initiators, and the memory that was granted to it.
    pub(crate) direct: Direct,
    /// The CQs that are or were moderated.
    pub(crate) moderated: Mutex<Vec<Weak<Cq>>>,
    pub(crate) waker: Waker,
    channels: Mutex<Vec<Weak<Channel>>>,
    deferred: Mutex<Vec<Deferred>>,
    has_deferred: AtomicBool,
    /// QPs for which the helper thread must open a lane.
    pub(crate) unrouted: Mutex<Vec<Arc<Qp>>>,
    /// XRC targets for which the helper thread must find the engine of an SRQ.
    pub(crate) unlocated: Mutex<Vec<Arc<Qp>>>,
    /// Events of XRC targets that the helper thread must report to the agent.
    pub(crate) untold: crate::lock::Mutex<Vec<XrcEvent>>,
    /// Held while lanes are opened for them.
    pub(crate) opening: Mutex<()>,
    /// Which thread polls which lane.
    pub(crate) pollers: Pollers,
    /// The bits of a CQ's poll count that must be 0 to drive the engine after a poll with
    /// completions: [`SELDOM`], or 0 for every poll.
    seldom: AtomicU32,
    /// The page for its reasons.
    pub(crate) reasons: Attached,
    /// Packets that were dropped, by cause, for `softhca show --errors`.
    pub(crate) drops: Drops,
    /// Where copies of packets go, and whether a capture runs.
    pub(crate) capture_hook: Arc<CaptureHook>,
    pub(crate) is_capturing: AtomicBool,
    /// Bytes of requests in the RNR grace queues.
    pub(crate) waiting_bytes: Arc<AtomicUsize>,
    is_gone: AtomicBool,
    /// Whether a child process has been told that it cannot use this engine.
    told_of_fork: AtomicBool,
    number: u32,
    device: u32,
    comp_vectors: u32,
    facts: OnceLock<QueryDeviceAnswer>,
    pub(crate) clock: Clock,
    /// The strict mode's checks, if the environment asks for them.
    lint: Option<Box<Lint>>,
}

impl Engine {
    /// Opens a context through `control`.
    ///
    /// # Errors
    /// The agent's refusal, or a failure to map what it gave.
    pub fn open(control: Box<dyn Control>) -> Result<Arc<Self>> {
        let len = size_of::<GetContextAnswer>() + size_of::<ContextOut>();
        let answer = control.call(&request::legacy(command::GET_CONTEXT, &GetContext { response: 1 }, len), &[])?;
        Self::build(control, answer, true)
    }

    /// Makes the engine of a context that another process has opened with GET_CONTEXT.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn attach(control: Box<dyn Control>, context: Answer) -> Result<Arc<Self>> {
        Self::build(control, context, false)
    }

    fn build(control: Box<dyn Control>, context: Answer, is_home: bool) -> Result<Arc<Self>> {
        let fixed: GetContextAnswer = context.get(0)?;
        let out: ContextOut = context.get(size_of::<GetContextAnswer>())?;
        let mut fds = context.fds.into_iter();
        let async_fd = fds.next().ok_or_else(|| refusal(Errno::EIO, "GET_CONTEXT came without the event file"))?;
        let memory = QueueMemory::new();
        let shared = copy_of_page(fds.as_slice())?;
        let page = memory.view(&out.page, &mut fds)?;

        shm::register_barrier();
        let (waker, wake_word) = Waker::new().map_err(by_system)?;
        let flags = if is_home { Faults::ask(&page)? } else { 0 };
        let hello = EngineHello { pid: std::process::id(), flags };
        let request = request::private(command::ENGINE_HELLO, &hello, size_of::<EngineHelloAnswer>());
        let answer = control.call(&request, &[wake_word.as_fd(), waker.kick_fd()])?;
        let hello: EngineHelloAnswer = answer.get(0)?;
        let [board, push] = <[OwnedFd; 2]>::try_from(answer.fds)
            .map_err(|_| refusal(Errno::EIO, "ENGINE_HELLO came without its descriptors"))?;
        waker.set_push(push);
        let network = control.network().unwrap_or_else(|| Arc::new(Udp));
        let clock = Clock::new(control.simulated());
        let capture_hook = CaptureHook::new();
        let engine = Arc::new(Self {
            control,
            mark: ForkMark::new(),
            shared,
            memory,
            allocation: Mutex::new(()),
            qps: Table::new(),
            xrc_srqs: Table::new(),
            targets: Table::new(),
            ways: Mutex::default(),
            extents: Table::new(),
            windows: Table::new(),
            groups: Groups::new(),
            lanes: Lanes::new(),
            net: Net::new(network, Arc::clone(&capture_hook)),
            board: Board::map(&board)?,
            events: Events::new(async_fd, page.clone()),
            timers: Timers::new(),
            faults: Faults::new(page.clone()),
            direct: Direct::new(clock.simulated().is_some()),
            moderated: Mutex::default(),
            waker,
            channels: Mutex::new(Vec::new()),
            deferred: Mutex::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
            unrouted: Mutex::new(Vec::new()),
            unlocated: Mutex::new(Vec::new()),
            untold: crate::lock::Mutex::default(),
            opening: Mutex::new(()),
            pollers: Pollers::default(),
            seldom: AtomicU32::new(SELDOM),
            reasons: Attached::new(page.clone(), is_home),
            drops: Drops::new(page),
            capture_hook,
            is_capturing: AtomicBool::new(false),
            waiting_bytes: Arc::default(),
            is_gone: AtomicBool::new(false),
            told_of_fork: AtomicBool::new(false),
            number: hello.engine,
            device: hello.device,
            comp_vectors: fixed.num_comp_vectors,
            facts: OnceLock::new(),
            clock,
            lint: Lint::from_environment(hello.engine),
        });
        // Handles the pushes that the agent has already sent.
        engine.listen();
        engine.take_faults();
        if is_home {
            crate::reason::went_on();
            crate::reason::opened();
        }
        // Started at once: a program may only wait for async events, and then no other thread would
        // see the agent end.
        if engine.clock.simulated().is_none() {
            engine.start_helper()?;
        }
        Ok(engine)
    }

    /// The agent's number for this engine.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The index of the device on the agent's board.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The number of completion vectors.
    #[must_use]
    pub fn comp_vectors(&self) -> u32 {
        self.comp_vectors
    }

    /// The strict mode's checks; None unless the environment asks for them (see
    /// [`crate::lint::VARIABLE`]).
    #[inline]
    #[must_use]
    pub fn lint(&self) -> Option<&Lint> {
        self.lint.as_deref()
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
        if self.mark.made_here() { Ok(()) } else { self.inherited() }
    }

    #[cold]
    #[inline(never)]
    fn inherited(&self) -> Result<()> {
        let reason = crate::post_error::INHERITED;
        if !self.told_of_fork.swap(true, Ordering::Relaxed) {
            // Noted only once: a child may ask in a loop. The memory of this flag is the child's
            // own.
            return Err(refusal(Errno::EIO, reason));
        }
        Err(Error::new(Errno::EIO, reason))
    }

    /// Whether the agent, and with it the device, is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Whether a command failed because the agent is gone. The command may notice this before the
    /// helper thread does.
    #[must_use]
    pub fn has_lost(&self, error: &Error) -> bool {
        // In a process that inherited the engine over a fork every command fails with EIO, but the
        // agent still serves the parent.
        self.is_gone() || (error.errno == Errno::EIO && self.mark.made_here())
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
        let answer = self.control.call(request, fds)?;
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
        if self.faults.watches_commands() {
            return self.control.call(request, &[]).map(drop);
        }
        self.control.tell(request)
    }

    /// The device's attributes. The agent is asked once.
    pub(crate) fn facts(&self) -> Option<&QueryDeviceAnswer> {
        match self.facts.get() {
            None => self.query_device().ok().map(|facts| self.facts.get_or_init(|| facts)),
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

    /// A call whose answer names queue memory. Maps this memory before the next allocation is
    /// answered.
    pub(crate) fn allocate<T>(
        &self,
        request: &[u8],
        read: impl FnOnce(&Answer) -> Result<(T, Mapping)>,
    ) -> Result<(T, View)> {
        let _order = self.allocation.lock();
        self.allocate_in_turn(request, read)
    }

    /// As [`Engine::allocate`], for a caller that holds [`Engine::allocation`]. That lock comes
    /// before the lock of every queue.
    pub(crate) fn allocate_in_turn<T>(
        &self,
        request: &[u8],
        read: impl FnOnce(&Answer) -> Result<(T, Mapping)>,
    ) -> Result<(T, View)> {
        let answer = self.call(request)?;
        let (out, mapping) = read(&answer)?;
        let view = self.memory.view(&mapping, &mut answer.fds.into_iter())?;
        Ok((out, view))
    }

    /// Maps the memory that the answer to another process names.
    pub(crate) fn view(&self, mapping: &Mapping, fds: Vec<OwnedFd>) -> Result<View> {
        self.memory.view(mapping, &mut fds.into_iter())
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

    /// As [`Engine::query_device`], with the extended attributes.
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
        self.board.gid(self.device, u32::from(port), index).ok_or_else(empty)
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

    pub(crate) fn register_channel(&self, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock();
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Arc::downgrade(channel));
    }

    pub(crate) fn defer(&self, work: Deferred) {
        self.deferred.lock().push(work);
        self.has_deferred.store(true, Ordering::Release);
        self.waker.kick();
    }

    /// Wakes the helper thread: a deadline may be nearer than it knows.
    pub(crate) fn timers_changed(&self) {
        self.waker.kick();
    }

    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        // Acquire: pairs with the release in `defer`.
        self.has_deferred.load(Ordering::Acquire)
    }

    pub(crate) fn deferred(&self) -> Vec<Deferred> {
        self.has_deferred.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.deferred.lock())
    }

    /// Whether to drive the engine although the poll found completions.
    pub(crate) fn due(&self, poller: &Poller) -> bool {
        poller.is_due(self.seldom.load(Ordering::Relaxed))
    }

    /// Sets whether each poll drives the engine, also a poll that finds completions.
    #[cold]
    pub(crate) fn poll_each_time(&self, each: bool) {
        self.seldom.store(if each { 0 } else { SELDOM }, Ordering::Relaxed);
    }

    /// The agent and the device are gone: every QP fails, and every waiter wakes.
    pub(crate) fn die(self: &Arc<Self>, why: &str) {
        if self.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        note(Note::new(Kind::Event), format_args!("{why}: the device is lost (IBV_EVENT_DEVICE_FATAL)"));
        for lane in self.lanes.list().iter() {
            lane.kill();
        }
        for qp in self.qps.all() {
            qp.fail("the device is lost");
        }
        self.net.end(self.number);
        self.events.device_fatal();
        for channel in self.channels.lock().iter().filter_map(Weak::upgrade) {
            channel.kill();
        }
    }

    /// Closes the context: the helper thread ends, the agent cleans up, and all objects of this
    /// engine stop working.
    pub fn close(self: &Arc<Self>) {
        if !self.mark.made_here() {
            return;
        }
        if let Some(lint) = self.lint() {
            lint.closed(self.qps.all().len(), &self.extents);
        }
        self.is_gone.store(true, Ordering::Relaxed);
        // Before the agent notices the close and other engines serve the targets: from here on the
        // targets send nothing (`Qp::is_served_here`).
        fence(Ordering::SeqCst);
        // First, so that the helper thread does not wait for an agent that does not answer.
        self.control.close();
        self.waker.stop();
        self.lanes.clear();
        self.net.end(self.number);
        self.unrouted.lock().clear();
        self.unlocated.lock().clear();
        self.untold.lock().clear();
        self.deferred.lock().clear();
        self.forget_delayed_packets();
        for qp in self.qps.all() {
            self.qps.remove(qp.qpn());
            qp.abandon();
            qp.purge();
        }
        // Drops the objects that hold the engine. Otherwise neither side would ever be freed.
        self.net.forget_qps();
        for srq in self.xrc_srqs.all() {
            self.xrc_srqs.remove(srq.number());
        }
        for window in self.windows.all() {
            self.windows.remove(window.number() >> 8);
        }
    }
}

/// A copy of the descriptor of a context's page, which is the first descriptor of its mapping.
fn copy_of_page(fds: &[OwnedFd]) -> Result<OwnedFd> {
    let lacks = || refusal(Errno::EIO, "GET_CONTEXT came without the region of its page");
    fds.first().ok_or_else(lacks)?.as_fd().try_clone_to_owned().map_err(by_system)
}
