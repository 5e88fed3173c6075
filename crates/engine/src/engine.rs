//! The engine: one HCA context inside a process, from opening to closing.
//!
//! An [`Engine`] is a value without statics: one connection to an agent, the queue memory and lanes that came with it, and the
//! tables of what the program has made. Here are its birth, its control calls, its queries and its end; the data path is in
//! `send.rs`, `receive.rs` and `progress.rs`, and the thread that works while the program does not is `helper.rs`.

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
use crate::error::{Error, Result};
use crate::event::Events;
use crate::faults::Faults;
use crate::helper::Waker;
use crate::lane::Lanes;
use crate::lint::Lint;
use crate::mcast::Groups;
use crate::memory::{QueueMemory, View};
use crate::moderation::Moderated;
use crate::mr::Extent;
use crate::mw::Mw;
use crate::net::Net;
use crate::network::Udp;
use crate::pd::Pd;
use crate::pollers::{Poller, Pollers};
use crate::qp::Qp;
use crate::reason::{Attached, Kind, Note, note};
use crate::remote_srq::Ways;
use crate::request;
use crate::srq::Srq;
use crate::table::Table;
use crate::timers::Timers;
use crate::usermem::ForkMark;

/// A program whose CQ is never empty drives the engine with each sixteenth poll: bits of a count that are zero then.
const SELDOM: u32 = 15;

/// Work that must not be done under the locks of the one who found it.
pub(crate) enum Deferred {
    /// A CQ was full when a completion came.
    Overrun(Weak<Cq>),
    /// The peer at the far end of this lane broke the rules.
    Broken(u32),
}

/// One context on one device of one agent.
pub struct Engine {
    pub(crate) control: Box<dyn Control>,
    mark: ForkMark,
    /// By which other contexts import this one.
    pub(crate) shared: OwnedFd,
    memory: QueueMemory,
    /// Held while queue memory is allocated or given back, so that both sides count its users alike.
    pub(crate) allocation: Mutex<()>,
    pub(crate) qps: Table<Qp>,
    /// The SRQs of XRC domains, by their numbers.
    pub(crate) xrc_srqs: Table<Srq>,
    /// XRC targets that other engines serve, by their numbers.
    pub(crate) targets: Table<Qp>,
    /// Which engines have SRQs that targets of this one serve.
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
    /// What it has granted to initiators, and what it has been granted.
    pub(crate) direct: Direct,
    pub(crate) moderated: Moderated,
    pub(crate) waker: Waker,
    channels: Mutex<Vec<Weak<Channel>>>,
    deferred: Mutex<Vec<Deferred>>,
    has_deferred: AtomicBool,
    /// QPs whose lane the helper thread has to open.
    pub(crate) unrouted: Mutex<Vec<Arc<Qp>>>,
    /// XRC targets for which the helper thread has to find an SRQ's engine.
    pub(crate) unlocated: Mutex<Vec<Arc<Qp>>>,
    /// Events of XRC targets that the helper thread has to tell the agent.
    pub(crate) untold: Mutex<Vec<XrcEvent>>,
    /// Held while lanes are being opened for them.
    pub(crate) opening: Mutex<()>,
    /// Which thread sees to which lane.
    pub(crate) pollers: Pollers,
    /// The bits of the count of a CQ's polls that have to be zero where it had something: [`SELDOM`], or none where each poll drives the engine.
    seldom: AtomicU32,
    /// Where its reasons go.
    pub(crate) reasons: Attached,
    /// Packets that were not accepted, by cause: for `softhca show --errors`.
    pub(crate) drops: Drops,
    /// Where copies of packets go, and whether there is anybody who wants them.
    pub(crate) capture_hook: Arc<CaptureHook>,
    pub(crate) is_capturing: AtomicBool,
    /// Bytes of requests that wait for receive requests.
    pub(crate) waiting_bytes: Arc<AtomicUsize>,
    is_gone: AtomicBool,
    /// A child process has been told that this engine is none of its own.
    told_of_fork: AtomicBool,
    number: u32,
    device: u32,
    comp_vectors: u32,
    facts: OnceLock<QueryDeviceAnswer>,
    pub(crate) clock: Clock,
    /// Looks for mistakes of the program, where it is asked to.
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

    /// Makes the engine of a context that GET_CONTEXT has made for somebody else.
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
        let async_fd =
            fds.next().ok_or_else(|| Error::refuse(Errno::EIO, "GET_CONTEXT came without the event file"))?;
        let memory = QueueMemory::new();
        let shared = crate::import::copy(fds.as_slice())?;
        let page = memory.view(&out.page, &mut fds)?;

        shm::register_barrier();
        let (waker, wake_word) = Waker::new()?;
        let flags = if is_home { Faults::ask(&page)? } else { 0 };
        let hello = EngineHello { pid: std::process::id(), flags };
        let request = request::private(command::ENGINE_HELLO, &hello, size_of::<EngineHelloAnswer>());
        let answer = control.call(&request, &[wake_word.as_fd(), waker.kick_fd()])?;
        let hello: EngineHelloAnswer = answer.get(0)?;
        let [board, push] = <[OwnedFd; 2]>::try_from(answer.fds)
            .map_err(|_| Error::refuse(Errno::EIO, "ENGINE_HELLO came without its descriptors"))?;
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
            moderated: Moderated::default(),
            waker,
            channels: Mutex::new(Vec::new()),
            deferred: Mutex::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
            unrouted: Mutex::new(Vec::new()),
            unlocated: Mutex::new(Vec::new()),
            untold: Mutex::new(Vec::new()),
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
        // What the agent wants from the beginning on.
        engine.listen();
        // From the beginning, for a program may only wait for async events, and then nobody else would see the agent end.
        engine.take_faults();
        if is_home {
            crate::reason::went_on();
            crate::reason::opened();
        }
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

    /// Index of the device on the agent's board.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// How many completion vectors there are.
    #[must_use]
    pub fn comp_vectors(&self) -> u32 {
        self.comp_vectors
    }

    /// The strict mode's checks; None unless the environment asks for them (see [`crate::lint::VARIABLE`]).
    #[inline]
    #[must_use]
    pub fn lint(&self) -> Option<&Lint> {
        self.lint.as_deref()
    }

    /// Nanoseconds since the engine was opened: the state machines' time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The device's clock: nanoseconds, which completions are stamped with. The same for every process of the host.
    #[must_use]
    pub fn raw_clock(&self) -> u64 {
        self.clock.raw()
    }

    /// The time of day at which the device's clock said `raw`: nanoseconds since 1970, by what both clocks say now.
    #[must_use]
    pub fn wall_clock(&self, raw: u64) -> u64 {
        raw.wrapping_add(self.clock.wall_ahead())
    }

    /// The same where a microsecond does not matter.
    pub(crate) fn about_now(&self) -> Time {
        self.clock.about()
    }

    /// Refuses in a process that inherited the engine over a fork.
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
            // Once: a child may ask in a loop. The memory of the word is this process's own.
            return Err(Error::refuse(Errno::EIO, reason));
        }
        Err(Error { errno: Errno::EIO, reason: reason.into() })
    }

    /// Whether the agent, and with it the device, is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Whether a command failed because the agent is gone: the command may know it before the helper thread does.
    #[must_use]
    pub fn has_lost(&self, error: &Error) -> bool {
        // In a process that inherited the engine over a fork every command fails so, and the agent is the parent's.
        self.is_gone() || (error.errno == Errno::EIO && self.mark.made_here())
    }

    pub(crate) fn call(&self, request: &[u8]) -> Result<Answer> {
        self.call_with(request, &[])
    }

    /// A call that gives something back. What a lost agent had is gone, so that this has succeeded then.
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

    /// A call by a thread that keeps the lock of an XRC target. The target's packets must wait until
    /// the agent has decided which process serves it. Every other call is made without locks.
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

    /// A command whose answer says nothing new: it is carried out in its turn, and not waited for.
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

    /// What the device is; the agent is asked once.
    pub(crate) fn facts(&self) -> Option<&QueryDeviceAnswer> {
        match self.facts.get() {
            None => self.query_device().ok().map(|facts| self.facts.get_or_init(|| facts)),
            known => known,
        }
    }

    /// READs and atomics that a QP may have under way, and may answer at a time.
    pub(crate) fn depths(&self) -> Option<(u32, u32)> {
        self.facts().map(|facts| (facts.max_qp_init_rd_atom, facts.max_qp_rd_atom))
    }

    /// Whether windows of type 2 are bound to a QP's number alone (2A), and not to its PD as well (2B).
    pub(crate) fn binds_to_number(&self) -> bool {
        self.facts().is_some_and(|facts| u64::from(facts.device_cap_flags) & cap::MW_TYPE_2A != 0)
    }

    /// A call whose answer names queue memory: maps it before any other allocation is answered.
    pub(crate) fn allocate<T>(
        &self,
        request: &[u8],
        read: impl FnOnce(&Answer) -> Result<(T, Mapping)>,
    ) -> Result<(T, View)> {
        let _order = self.allocation.lock();
        self.allocate_in_turn(request, read)
    }

    /// The same where the caller holds [`Engine::allocation`]: it comes before every queue's own lock.
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

    /// Maps what an answer that somebody else got names.
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

    /// The same, with what came later.
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

    /// One GID, all zeros for an empty place.
    ///
    /// # Errors
    /// EINVAL for an index beyond the table.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<[u8; 16]> {
        self.check_process()?;
        let empty = || Error::refuse(Errno::EINVAL, format!("port {port} has no GID index {index}"));
        if self.is_gone() {
            return Err(gone());
        }
        self.board.gid(self.device, u32::from(port), index).ok_or_else(empty)
    }

    /// One GID with its type and interface.
    ///
    /// # Errors
    /// ENODATA for an empty place, EINVAL for an index beyond the table.
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

    /// A protection domain.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        Pd::alloc(self)
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

    /// A deadline may have become nearer than the helper thread knows.
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

    /// Whether it is time to drive the engine although the program's CQ had enough for it.
    pub(crate) fn due(&self, poller: &Poller) -> bool {
        poller.is_due(self.seldom.load(Ordering::Relaxed))
    }

    /// Whether each poll drives the engine, also one that finds something.
    #[cold]
    pub(crate) fn poll_each_time(&self, each: bool) {
        self.seldom.store(if each { 0 } else { SELDOM }, Ordering::Relaxed);
    }

    /// The agent has gone: the device with it. Every QP ends, every waiter wakes.
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

    /// Closes the context: the thread ends, the agent cleans up, nothing of this engine works any more.
    pub fn close(self: &Arc<Self>) {
        if !self.mark.made_here() {
            return;
        }
        if let Some(lint) = self.lint() {
            lint.closed(self);
        }
        self.is_gone.store(true, Ordering::Relaxed);
        // Before the agent hears of it, and has others go on with targets: from here on they say nothing (`Qp::is_served_here`).
        fence(Ordering::SeqCst);
        // First, so that the thread does not wait for an agent that does not answer.
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
        // What knows the engine is let go by it, or neither would ever end.
        self.net.forget_qps();
        for srq in self.xrc_srqs.all() {
            self.xrc_srqs.remove(srq.number());
        }
        for window in self.windows.all() {
            self.windows.remove(window.number() >> 8);
        }
    }
}
