//! Completion queues: the ring of entries in queue memory, its arming, and polling. A poll also
//! drives the engine. Entries are added in `cq/adding.rs`; their format is in `memory.rs`.
//! Principal type: [`Cq`].

mod adding;
mod place;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::cq::{CreateCq, CreateCqAnswer, DestroyCq, DestroyCqAnswer, ResizeCq, Wc};
use abi::errno::Errno;
use abi::private::ResizeUndo;
use abi::queue::CqOut;
use protocol::Time;

use self::place::{check, layout, place};
use crate::channel::{Channel, Completes};
use crate::engine::Engine;
use crate::error::{Result, refusal};
use crate::event::{Object, ReadCounts};
use crate::lint::Lint;
use crate::lock::Mutex;
use crate::memory::{Cqe, FREES_RECV, FREES_SEND, View, Wheel, word};
use crate::moderation::Moderation;
use crate::parent::{Purpose, Token, lie};
use crate::pd::Pd;
use crate::pollers::Poller;
use crate::queue_use::QueueUse;
use crate::request;

/// The kind of completion for which a program has armed a CQ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Armed {
    Nothing,
    Solicited,
    Next,
}

impl Armed {
    /// Whether the CQ is armed for this completion.
    fn wants(self, entry: &Cqe) -> bool {
        self == Self::Next || self == Self::Solicited && entry.is_solicited()
    }
}

/// The parameters of `create_cq`.
pub struct CqSpec<'a> {
    /// The minimum number of entries.
    pub cqe: u32,
    /// The channel of its completion events.
    pub channel: Option<&'a Arc<Channel>>,
    /// The completion vector, below the context's number of vectors.
    pub comp_vector: u32,
    /// The CQ's events return it.
    pub cookie: u64,
}

/// How many events of an object were read. The call that destroys the object waits until all of
/// them are acknowledged.
#[derive(Clone, Copy, Default, Debug)]
pub struct EventCounts {
    /// Completion events.
    pub completion: u32,
    /// Async events.
    pub asynchronous: u32,
}

/// A completion queue.
pub struct Cq {
    engine: Arc<Engine>,
    handle: u32,
    cookie: u64,
    channel: Option<Arc<Channel>>,
    itself: Weak<Self>,
    /// Its parent domain, if any.
    domain: Option<Arc<Pd>>,
    /// Whether entries wait. A poll of an empty CQ takes no lock.
    waiting: AtomicBool,
    pub(crate) poller: Poller,
    /// Whether completions carry their arrival time.
    stamps: AtomicBool,
    /// Whether strict mode is on. A copy, so that the data path need not ask the engine.
    strict: bool,
    read: ReadCounts,
    ring: Mutex<CqRing>,
}

struct CqRing {
    view: Option<View>,
    /// The memory of the entries, and the offset of the first one.
    entries: Option<(View, usize)>,
    /// In a parent domain: held while the CQ exists.
    token: Option<Token>,
    wheel: Wheel,
    producer: u32,
    consumer: u32,
    armed: Armed,
    /// How many of the completions that wait to be polled, from the oldest on, have had an event.
    told: u32,
    moderation: Option<Moderation>,
    overrun: bool,
    /// The completion for which there was no room. It is reported as an error, after all others.
    lost: Option<Cqe>,
    /// The QP of the last polled entry, which is likely to be the QP of the next one.
    recent: Option<(u32, Arc<QueueUse>)>,
}

impl CqRing {
    fn entry(&self, index: u32) -> Option<(&View, usize)> {
        let (view, begin) = self.entries.as_ref()?;
        Some((view, begin + self.wheel.slot(index) * size_of::<Cqe>()))
    }

    fn store(&self, offset: usize, value: u32) {
        if let Some(view) = &self.view {
            view.word(offset).store(value, Ordering::Relaxed);
        }
    }

    fn publish(&self) {
        self.store(word::PRODUCER, self.producer);
        self.store(word::CONSUMER, self.consumer);
    }

    fn next(&self, index: u32) -> u32 {
        self.wheel.next(index)
    }

    fn used(&self) -> u32 {
        self.wheel.between(self.consumer, self.producer)
    }

    /// How many completions wait to be polled: the entries, and the lost one behind them.
    fn waiting(&self) -> u32 {
        self.used() + u32::from(self.lost.is_some())
    }

    /// The unpolled entries, oldest first, without the first `skipped` ones.
    fn unpolled(&self, skipped: u32) -> impl Iterator<Item = Cqe> {
        let indexes = std::iter::successors(Some(self.consumer), |&index| Some(self.next(index)));
        let indexes = indexes.take(self.used() as usize).skip(skipped as usize);
        let entries = indexes.map_while(|index| self.entry(index));
        entries.map(|(view, at)| view.read(at))
    }

    /// Removes and returns all unpolled entries, oldest first.
    fn drain(&mut self) -> Vec<Cqe> {
        let entries = self.unpolled(0).collect();
        self.consumer = self.producer;
        entries
    }

    fn refill(&mut self, entries: impl Iterator<Item = Cqe>) {
        for entry in entries {
            let Some((view, at)) = self.entry(self.producer) else { return };
            view.write(at, &entry);
            self.producer = self.next(self.producer);
        }
        self.publish();
    }
}

impl Engine {
    /// Creates a completion queue.
    ///
    /// # Errors
    /// EINVAL for a size or vector that the device does not have.
    pub fn create_cq(self: &Arc<Self>, spec: &CqSpec<'_>) -> Result<Arc<Cq>> {
        self.create_cq_in(None, spec)
    }

    /// Creates a completion queue in a parent domain, which may provide its memory.
    ///
    /// # Errors
    /// As [`Engine::create_cq`]; ENOMEM when the domain has no memory for it.
    pub fn create_cq_in(self: &Arc<Self>, domain: Option<&Arc<Pd>>, spec: &CqSpec<'_>) -> Result<Arc<Cq>> {
        let body = CreateCq {
            response: 1,
            user_handle: spec.cookie,
            cqe: spec.cqe,
            comp_vector: spec.comp_vector,
            comp_channel: spec.channel.map_or(-1, |channel| channel.handle().cast_signed()),
            reserved: 0,
        };
        let fixed = size_of::<CreateCqAnswer>();
        let ((answer, out), view) = self.allocate(
            &request::legacy(command::CREATE_CQ, &body, fixed + size_of::<CqOut>()),
            |answer| {
                let out: CqOut = answer.get(fixed)?;
                Ok(((answer.get::<CreateCqAnswer>(0)?, out), out.mapping))
            },
            |(answer, _)| destroy(answer.cq_handle),
        )?;
        let made = Cq::in_domain(Arc::clone(self), answer.cq_handle, &out, view, spec, domain);
        if made.is_err() {
            let _order = self.memory.allocation.lock();
            // If the agent is gone, so is the CQ.
            let _ = self.tell(&destroy(answer.cq_handle));
        }
        made
    }
}

/// The command that destroys a CQ.
fn destroy(cq_handle: u32) -> Vec<u8> {
    let body = DestroyCq { response: 1, cq_handle, reserved: 0 };
    request::legacy(command::DESTROY_CQ, &body, size_of::<DestroyCqAnswer>())
}

impl Cq {
    pub(crate) fn new(
        engine: Arc<Engine>,
        handle: u32,
        out: &CqOut,
        view: View,
        spec: &CqSpec<'_>,
    ) -> Result<Arc<Self>> {
        Self::in_domain(engine, handle, out, view, spec, None)
    }

    fn in_domain(
        engine: Arc<Engine>,
        handle: u32,
        out: &CqOut,
        view: View,
        spec: &CqSpec<'_>,
        domain: Option<&Arc<Pd>>,
    ) -> Result<Arc<Self>> {
        let capacity = check(out, &view)?;
        let entries = place(domain, &view, capacity)?;
        if let Some(channel) = spec.channel {
            channel.attach(1);
        }
        let ring = CqRing {
            view: Some(view),
            entries: Some(entries),
            token: domain.map(|pd| pd.token()),
            wheel: Wheel::new(capacity),
            producer: 0,
            consumer: 0,
            armed: Armed::Nothing,
            told: 0,
            moderation: None,
            overrun: false,
            lost: None,
            recent: None,
        };
        let strict = engine.lint().is_some();
        let poller = engine.pollers.add();
        Ok(Arc::new_cyclic(|itself| Self {
            engine,
            strict,
            handle,
            cookie: spec.cookie,
            channel: spec.channel.cloned(),
            itself: itself.clone(),
            domain: domain.cloned(),
            waiting: AtomicBool::new(false),
            poller,
            stamps: AtomicBool::new(false),
            read: ReadCounts::default(),
            ring: Mutex::new(ring),
        }))
    }

    /// The strict mode's checks.
    #[inline]
    fn lint(&self) -> Option<&Lint> {
        if self.strict { self.engine.lint() } else { None }
    }

    /// The agent's handle of the CQ.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The cookie that the program gave at creation.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The number of entries that it can hold.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.ring.lock().wheel.size()
    }

    /// Takes up to `wcs.len()` completions. Drives the engine if there are fewer.
    ///
    /// # Errors
    /// EIO in a process that inherited the CQ over a fork.
    pub fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Errno> {
        self.engine.check_process().map_err(|error| error.errno)?;
        let taken = self.take(wcs);
        // A program that has completions to handle gets them at once. A check that finds no more
        // packets costs as much as a message.
        if taken > 0 && !self.engine.due(&self.poller) {
            return Ok(taken);
        }
        let shares = self.engine.poll(taken > 0, &self.poller);
        let taken = taken + self.take(&mut wcs[taken..]);
        if shares {
            self.engine.end_shared_poll(taken > 0);
        }
        Ok(taken)
    }

    /// Makes completions carry their arrival time from now on.
    pub fn stamp(&self) {
        self.stamps.store(true, Ordering::Relaxed);
    }

    /// Takes one completion, with its arrival time (see [`crate::Core::raw_clock`]; 0 on a CQ
    /// without timestamps).
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn poll_one(&self) -> Result<Option<(Wc, u64)>, Errno> {
        self.engine.check_process().map_err(|error| error.errno)?;
        let (mut wc, mut stamp) = ([Wc::default()], 0);
        let mut take = || self.take_each(&mut wc, |at| stamp = at);
        let mut taken = take();
        if taken == 0 || self.engine.due(&self.poller) {
            let shares = self.engine.poll(taken > 0, &self.poller);
            if taken == 0 {
                taken = take();
            }
            if shares {
                self.engine.end_shared_poll(taken > 0);
            }
        }
        Ok((taken > 0).then_some((wc[0], stamp)))
    }

    fn take(&self, wcs: &mut [Wc]) -> usize {
        self.take_each(wcs, |_| {})
    }

    /// Takes entries, with the time of each.
    #[inline]
    fn take_each(&self, wcs: &mut [Wc], mut stamp: impl FnMut(u64)) -> usize {
        // Acquire: pairs with the release in `push`. The entry of that push is then visible under
        // the lock.
        if !self.waiting.load(Ordering::Acquire) {
            return 0;
        }
        let mut ring = self.ring.lock();
        if (ring.producer == ring.consumer && ring.lost.is_none()) || ring.view.is_none() {
            return 0;
        }
        let lint = self.lint();
        let mut taken = 0;
        for wc in wcs {
            let (time, freed, flags) = if ring.consumer != ring.producer {
                let Some((view, at)) = ring.entry(ring.consumer) else { break };
                view.read_to(at, wc);
                let [time, rest]: [u64; 2] = view.read(at + size_of::<Wc>());
                ring.consumer = ring.next(ring.consumer);
                // In memory the index comes first.
                (time, rest as u32, (rest >> 32) as u32)
            } else {
                let Some(lost) = ring.lost.take() else { break };
                *wc = lost.wc;
                (lost.timestamp, lost.freed, lost.flags)
            };
            ring.told = ring.told.saturating_sub(1);
            stamp(time);
            taken += 1;
            if let Some(lint) = lint {
                lint.polled(self.handle, wc);
            }
            if flags & (FREES_SEND | FREES_RECV) != 0 {
                self.set_free(&mut ring, wc.qp_num, freed, flags);
            }
        }
        self.waiting.store(ring.consumer != ring.producer || ring.lost.is_some(), Ordering::Release);
        ring.publish();
        taken
    }

    /// Frees the entries of the work queue up to this request (V-61, V-63).
    #[inline]
    fn set_free(&self, ring: &mut CqRing, qpn: u32, freed: u32, flags: u32) {
        if ring.recent.as_ref().is_none_or(|(of, _)| *of != qpn) {
            ring.recent = self.engine.queue_uses.find(qpn).map(|queue_use| (qpn, queue_use));
        }
        if let Some((_, queue_use)) = &ring.recent {
            let queue = if flags & FREES_SEND != 0 { &queue_use.freed_send } else { &queue_use.freed_recv };
            queue.store(freed, Ordering::Release);
        }
    }

    /// Sets how events are moderated from now on. A pending event is sent.
    pub(crate) fn set_moderation(&self, moderation: Option<Moderation>) {
        let mut ring = self.ring.lock();
        let before = std::mem::replace(&mut ring.moderation, moderation);
        if before.is_some_and(|before| before.waits_until().is_some()) && ring.armed != Armed::Nothing {
            self.tell(&mut ring);
        }
    }

    /// Sends the pending event if its moderation period is over.
    pub(crate) fn end_period(&self, now: Time) {
        let mut ring = self.ring.lock();
        let Some(at) = ring.moderation.as_ref().and_then(Moderation::waits_until) else { return };
        if at > now {
            return self.engine.end_period_at(at);
        }
        if let Some(moderation) = &mut ring.moderation {
            moderation.release();
        }
        if ring.armed != Armed::Nothing {
            self.tell(&mut ring);
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Asks for an event at the next completion, or at the next solicited one. One-shot; never
    /// weakens an earlier request (V-44).
    ///
    /// If such a completion waits to be polled, and has had no event, the event comes at once, as
    /// from ConnectX adapters: programs such as UCX arm and sleep without another poll. It counts
    /// for this completion and earlier ones only. So a program that arms between the event and the
    /// poll, such as perftest, gets no second event for one completion.
    ///
    /// # Errors
    /// EIO in a process that inherited the CQ over a fork.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), Errno> {
        self.engine.check_process().map_err(|error| error.errno)?;
        {
            let mut ring = self.ring.lock();
            ring.armed = ring.armed.max(if solicited_only { Armed::Solicited } else { Armed::Next });
            ring.store(word::ARMED, ring.armed as u32);
            self.tell_of_unpolled(&mut ring);
        }
        // The program is about to sleep, so the helper thread must watch for packets.
        self.engine.hand_over(self.poller.cq);
        Ok(())
    }

    /// Raises `CQ_ERR`, unless the CQ is destroyed. A destroyed CQ must leave no event behind.
    pub(crate) fn report_overrun(&self) {
        let ring = self.ring.lock();
        if ring.view.is_none() {
            return;
        }
        self.engine.events.raise(abi::event::kind::CQ_ERR, self.cookie, Some(self.itself.clone()));
    }

    /// Counts an event in the agent's count `word`.
    fn count(&self, word: usize) {
        if let Some(view) = &self.ring.lock().view {
            view.word(word).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the completions of a QP that was reset or destroyed.
    pub(crate) fn purge(&self, qpn: u32) {
        let mut ring = self.ring.lock();
        ring.recent = None;
        if let Some(lint) = self.lint() {
            lint.purged(self.handle, qpn);
        }
        let stays = |entry: &Cqe| entry.wc.qp_num != qpn;
        let told = ring.unpolled(0).chain(ring.lost).take(ring.told as usize).filter(stays).count();
        ring.told = told as u32;
        ring.lost = ring.lost.filter(stays);
        if ring.producer != ring.consumer {
            let entries = ring.drain();
            ring.refill(entries.into_iter().filter(stays));
        }
    }

    /// Makes room for at least `cqe` entries. Waiting entries stay.
    ///
    /// # Errors
    /// EINVAL when more entries wait than would fit, or the size is beyond the device's limits.
    pub fn resize(&self, cqe: u32) -> Result<u32> {
        self.engine.check_process()?;
        // First handles requests that were posted before the call, also those that wait for a lane.
        self.engine.open_routes();
        self.engine.poll(false, &self.poller);
        // Lock order: before the ring. A thread that destroys a QP holds this lock when it purges
        // the CQ.
        let _order = self.engine.memory.allocation.lock();
        let waiting = self.ring.lock().used();
        if waiting > cqe {
            let handle = self.handle;
            let text = format!("CQ {handle} cannot shrink to {cqe} entries while {waiting} wait");
            return Err(refusal(Errno::EINVAL, text));
        }
        let most = self.engine.facts().map_or(u32::MAX, |facts| facts.max_cqe);
        let ahead = |pd: &Arc<Pd>| pd.lend_ahead((cqe, most), size_of::<Cqe>(), Purpose::Cq);
        let lent = self.domain.as_ref().map(ahead).transpose()?.flatten();
        let body = ResizeCq { response: 1, cq_handle: self.handle, cqe };
        let (out, view) = self.engine.move_queue(
            &request::legacy(command::RESIZE_CQ, &body, 8 + size_of::<CqOut>()),
            |answer| {
                let out: CqOut = answer.get(8)?;
                Ok((out, out.mapping))
            },
            ResizeUndo { handle: self.handle, is_srq: 0 },
        )?;
        let capacity = check(&out, &view)?;
        // Taken only now: a thread that adds completions must not wait for the agent.
        let mut ring = self.ring.lock();
        let (room, layout) = lie(lent, &view, layout(capacity));
        let place = (room, layout.offset as usize);
        let mut entries = ring.drain().into_iter();
        for count in [word::COMP_EVENTS, word::ASYNC_EVENTS] {
            let read = ring.view.as_ref().map_or(0, |old| old.word(count).load(Ordering::Relaxed));
            view.word(count).store(read, Ordering::Relaxed);
        }
        view.word(word::ARMED).store(ring.armed as u32, Ordering::Relaxed);
        (ring.view, ring.entries) = (Some(view), Some(place));
        (ring.wheel, ring.producer, ring.consumer) = (Wheel::new(capacity), 0, 0);
        ring.refill(entries.by_ref().take(capacity as usize));
        if ring.overrun {
            ring.store(word::OVERRUN, 1);
        } else if let Some(entry) = entries.next() {
            // More entries have come meanwhile than the smaller queue can hold.
            self.overrun(&mut ring, &entry);
        }
        Ok(capacity)
    }

    /// Destroys the CQ and its unread events.
    ///
    /// # Errors
    /// EBUSY while a QP or SRQ uses it.
    pub fn destroy(&self) -> Result<EventCounts> {
        self.engine.check_process()?;
        let _order = self.engine.memory.allocation.lock();
        self.engine.give_up(&destroy(self.handle))?;
        self.leave();
        Ok(EventCounts { completion: self.read.completion(), asynchronous: self.read.asynchronous() })
    }
}

impl Object for Cq {
    fn read(&self) -> &ReadCounts {
        &self.read
    }

    fn count_async(&self) {
        self.count(word::ASYNC_EVENTS);
    }
}

impl Completes for Cq {
    fn count_event(&self) {
        self.count(word::COMP_EVENTS);
    }

    fn cookie(&self) -> u64 {
        self.cookie
    }
}

impl Cq {
    /// Removes the CQ from all tables.
    pub(crate) fn leave(&self) {
        if let Some(channel) = &self.channel {
            channel.forget(self);
            channel.attach(-1);
        }
        {
            let mut ring = self.ring.lock();
            (ring.view, ring.entries, ring.recent, ring.token) = (None, None, None, None);
        }
        // Last: after this nothing raises an event of the CQ.
        self.engine.events.forget(self);
        if let Some(lint) = self.lint() {
            lint.forgotten(self.handle);
        }
    }
}
