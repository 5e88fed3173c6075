//! The engine: one HCA context inside a process, from opening to closing.
//!
//! An [`Engine`] consists of a [`Core`] (the agent's connection, memory and keys), the lanes, the
//! wire and the tables of QPs. It has no statics. This file opens and closes it. Control calls are
//! in `core.rs`. The data path is in `send.rs`, `receive.rs` and `progress.rs`. The thread that
//! drives the engine while the program does not poll is in `helper.rs`.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

use abi::command::number as command;
use abi::device::{GetContext, GetContextAnswer};
use abi::errno::Errno;
use abi::private::{EngineHello, EngineHelloAnswer};
use abi::queue::ContextOut;
use abi::target::XrcEvent;
use parking_lot::Mutex;

use crate::board::Board;
use crate::capture::CaptureHook;
use crate::clock::{Clock, Timers};
use crate::control::{Answer, Control};
use crate::core::{Agent, Core, Fork, Identity, QueueAllocator};
use crate::cq::Cq;
use crate::direct::Direct;
use crate::drops::Drops;
use crate::error::{Result, by_system, refusal};
use crate::event::Events;
use crate::faults::Faults;
use crate::flows::Flows;
use crate::helper::Waker;
use crate::keys::Keys;
use crate::lane::Lanes;
use crate::lint::Lint;
use crate::mcast::Groups;
use crate::memory::{QueueMemory, View};
use crate::net::Net;
use crate::network::{Network, Udp};
use crate::paths::Paths;
use crate::pollers::Pollers;
use crate::qp::Qp;
use crate::reason::{Attached, Note, ReasonKind, note};
use crate::remote_srq::SrqOwners;
use crate::request;
use crate::special::{Special, SpecialWord};
use crate::srq::Srq;
use crate::table::Table;
use crate::untold::Untold;
use crate::usermem::ForkMark;

/// Work that is put off, because the thread that finds it holds locks.
pub(crate) enum Deferred {
    /// A CQ had no room for a completion.
    Overrun(Weak<Cq>),
    /// The peer at the other end of this lane has written invalid data.
    Broken(u32),
}

/// One context on one device of one agent.
pub struct Engine {
    core: Arc<Core>,
    pub(crate) qps: Table<Qp>,
    /// The SRQs of XRC domains, by number.
    pub(crate) xrc_srqs: Table<Srq>,
    /// XRC targets that other engines serve, by number.
    pub(crate) targets: Table<Qp>,
    /// The engines that own SRQs which targets of this engine serve.
    pub(crate) srq_owners: Mutex<SrqOwners>,
    pub(crate) groups: Groups,
    /// What switches let pass.
    pub(crate) paths: Paths,
    pub(crate) lanes: Lanes<Qp>,
    pub(crate) net: Net<Qp>,
    pub(crate) timers: Timers,
    /// Faults on demand.
    pub(crate) faults: Faults<Qp>,
    /// Its state of direct access.
    pub(crate) direct: Direct,
    /// The CQs that are or were moderated.
    pub(crate) moderated: Mutex<Vec<Weak<Cq>>>,
    pub(crate) deferred: Mutex<Vec<Deferred>>,
    pub(crate) has_deferred: AtomicBool,
    /// Work for the helper thread.
    pub(crate) helper_work: HelperWork,
    /// Which thread polls which lane.
    pub(crate) pollers: Pollers,
    /// Packets that were dropped, by cause, for `softhca show --errors`.
    pub(crate) drops: Drops,
    /// Datagrams by their destination, for the counters of ports.
    pub(crate) flows: Flows,
}

/// Work for which the helper thread must call the agent.
#[derive(Default)]
pub(crate) struct HelperWork {
    /// QPs that need a lane.
    pub(crate) need_lane: Mutex<Vec<Arc<Qp>>>,
    /// XRC targets for which the engine of an SRQ must be found.
    pub(crate) need_srq_engine: Mutex<Vec<Arc<Qp>>>,
    /// Events of XRC targets that must be reported to the agent.
    pub(crate) xrc_events: crate::lock::Mutex<Vec<XrcEvent>>,
    /// Packets with wrong keys that must be reported to the agent.
    pub(crate) violations: Untold,
    /// Held while lanes are opened for `need_lane`.
    pub(crate) opening: Mutex<()>,
}

impl Deref for Engine {
    type Target = Arc<Core>;

    fn deref(&self) -> &Self::Target {
        &self.core
    }
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
        let flags = if is_home { Faults::<Qp>::ask(&page)? } else { 0 };
        let (waker, hello, board) = introduce(&*control, flags)?;
        let network = control.network().unwrap_or_else(|| Arc::new(Udp));
        let simulated = control.simulated();
        let core = Core {
            agent: Agent { control, is_gone: AtomicBool::new(false), may_refuse: AtomicBool::new(false) },
            identity: Identity {
                number: hello.engine,
                device: hello.device,
                comp_vectors: fixed.num_comp_vectors,
                facts: OnceLock::new(),
            },
            fork: Fork { mark: ForkMark::new(), told: AtomicBool::new(false) },
            shared,
            memory: QueueAllocator { queues: memory, allocation: Mutex::new(()) },
            keys: Keys::new(),
            queue_uses: Table::new(),
            board: Board::map(&board)?,
            events: Events::new(async_fd, page.clone()),
            channels: Mutex::default(),
            waker,
            reasons: Attached::new(page.clone(), is_home),
            capture: CaptureHook::new(),
            special: SpecialWord::default(),
            kept_bytes: Arc::default(),
            clock: Clock::new(simulated),
            lint: Lint::from_environment(hello.engine),
            arrivals: OnceLock::new(),
        };
        let engine = Arc::new(Self::over(Arc::new(core), network, page));
        let itself: Weak<Self> = Arc::downgrade(&engine);
        let _ = engine.core.arrivals.set(itself);
        // Handles the pushes that the agent has already sent.
        engine.listen();
        engine.take_faults();
        if is_home {
            crate::reason::went_on();
            crate::reason::opened();
        }
        // Started at once: a program may do nothing but wait for async events, and then no other
        // thread would detect the end of the agent.
        if engine.clock.simulated().is_none() {
            engine.start_helper()?;
        }
        Ok(engine)
    }

    /// An engine without queues.
    fn over(core: Arc<Core>, network: Arc<dyn Network>, page: View) -> Self {
        core.special.set(Special::STRICT, core.lint.is_some());
        Self {
            qps: Table::new(),
            xrc_srqs: Table::new(),
            targets: Table::new(),
            srq_owners: Mutex::default(),
            groups: Groups::new(),
            paths: Paths::default(),
            lanes: Lanes::new(),
            net: Net::new(network, Arc::clone(&core.capture)),
            timers: Timers::new(),
            faults: Faults::new(page.clone()),
            direct: Direct::new(core.clock.simulated().is_some()),
            moderated: Mutex::default(),
            deferred: Mutex::default(),
            has_deferred: AtomicBool::new(false),
            helper_work: HelperWork::default(),
            pollers: Pollers::default(),
            drops: Drops::new(page.clone()),
            flows: Flows::new(page),
            core,
        }
    }

    /// Removes a QP from the tables.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        self.qps.remove(qpn);
        self.queue_uses.remove(qpn);
    }

    pub(crate) fn defer(&self, work: Deferred) {
        self.deferred.lock().push(work);
        self.has_deferred.store(true, Ordering::Release);
        self.waker.kick();
    }

    /// Wakes the helper thread: a deadline may be earlier than the one for which it sleeps.
    pub(crate) fn timers_changed(&self) {
        self.waker.kick();
    }

    /// Sets whether each poll drives the engine, also a poll that finds completions.
    #[cold]
    pub(crate) fn poll_each_time(&self, each: bool) {
        self.pollers.set_each(each);
    }

    /// The agent and the device are gone: every QP fails, and every waiter wakes.
    pub(crate) fn die(self: &Arc<Self>, why: &str) {
        if self.agent.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        note(Note::new(ReasonKind::Event), format_args!("{why}: the device is lost (IBV_EVENT_DEVICE_FATAL)"));
        for lane in self.lanes.list().iter() {
            lane.kill();
        }
        for qp in self.qps.all() {
            qp.fail("the device is lost");
        }
        self.net.end(self.number());
        self.events.device_fatal();
        for channel in self.channels.lock().iter().filter_map(Weak::upgrade) {
            channel.kill();
        }
    }

    /// Closes the context: the helper thread ends, the agent cleans up, and all objects of this
    /// engine stop working.
    pub fn close(self: &Arc<Self>) {
        if !self.fork.mark.made_here() {
            return;
        }
        if let Some(lint) = self.lint() {
            lint.closed(self.qps.all().len(), &self.keys.extents);
        }
        self.agent.is_gone.store(true, Ordering::Relaxed);
        // Before the agent notices the close and other engines serve the targets: from here on the
        // targets send nothing (`Qp::is_served_here`).
        fence(Ordering::SeqCst);
        let qps = self.qps.all();
        // The agent ends connections whose process has ended. What they have to send goes out before.
        qps.iter().for_each(|qp| qp.drop_stream(&mut qp.lock()));
        qps.iter().for_each(|qp| qp.finish_endings());
        // Early, so that the helper thread does not wait for an agent that does not answer.
        self.agent.control.close();
        self.waker.stop();
        self.lanes.clear();
        self.net.end(self.number());
        self.helper_work.need_lane.lock().clear();
        self.helper_work.need_srq_engine.lock().clear();
        self.helper_work.xrc_events.lock().clear();
        self.deferred.lock().clear();
        self.forget_delayed_packets();
        for qp in &qps {
            self.forget_qp(qp.qpn());
            qp.abandon();
            qp.purge();
        }
        // Drops the objects that hold the engine. Otherwise neither side would ever be freed.
        self.net.forget_qps();
        for srq in self.xrc_srqs.all() {
            self.xrc_srqs.remove(srq.number());
        }
    }
}

/// Sends ENGINE_HELLO. Returns the waker of the new engine, the agent's answer and the board.
fn introduce(control: &dyn Control, flags: u32) -> Result<(Waker, EngineHelloAnswer, OwnedFd)> {
    let (waker, wake_word) = Waker::new().map_err(by_system)?;
    let hello = EngineHello { pid: std::process::id(), flags };
    let hello = request::private(command::ENGINE_HELLO, &hello, size_of::<EngineHelloAnswer>());
    let answer = control.call(&hello, &[wake_word.as_fd(), waker.kick_fd()])?;
    let hello: EngineHelloAnswer = answer.get(0)?;
    let [board, push] = <[OwnedFd; 2]>::try_from(answer.fds)
        .map_err(|_| refusal(Errno::EIO, "ENGINE_HELLO came without its descriptors"))?;
    waker.set_push(push);
    Ok((waker, hello, board))
}

/// A copy of the descriptor of a context's page, which is the first descriptor of its mapping.
fn copy_of_page(fds: &[OwnedFd]) -> Result<OwnedFd> {
    let lacks = || refusal(Errno::EIO, "GET_CONTEXT came without the region of its page");
    fds.first().ok_or_else(lacks)?.as_fd().try_clone_to_owned().map_err(by_system)
}
