//! Shared receive queues: receive requests that several QPs take, in the order of posting. Receive
//! queues of one QP are in `receive.rs`. Principal type: [`Srq`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::Sge;
use abi::private::ResizeUndo;
use abi::queue::{RECV_WQE_HEADER, SrqOut, srq as word};
use abi::srq::{CreateSrq, CreateSrqAnswer, DestroySrq, DestroySrqAnswer, ModifySrq, QuerySrq, QuerySrqAnswer, attr};

use crate::control::Answer;
use crate::engine::Engine;
use crate::error::{Result, refusal};
use crate::event::{Object, ReadCounts};
use crate::lock::Mutex;
use crate::memory::{Layout, RecvEntry, Ring, View};
use crate::parent::{Purpose, Token, lie};
use crate::pd::Pd;
use crate::post_error::{PostCause, PostError, WorkQueue};
use crate::qp::RecvWr;
use crate::reason::{Note, ReasonKind, note};
use crate::request;
use crate::xrc::Membership;

/// The parameters of `create_srq`.
#[derive(Clone, Copy, Default)]
pub struct SrqSpec {
    /// The minimum number of requests.
    pub max_wr: u32,
    /// The minimum number of scatter elements per request.
    pub max_sge: u32,
    /// The SRQ's events return it.
    pub cookie: u64,
}

/// A shared receive queue.
pub struct Srq {
    engine: Arc<Engine>,
    handle: u32,
    number: u32,
    pd: Arc<Pd>,
    cookie: u64,
    max_sge: u32,
    itself: Weak<Self>,
    /// Its membership, if it belongs to an XRC domain.
    pub(crate) xrc: Option<Membership>,
    read: ReadCounts,
    queue: Mutex<SrqQueue>,
}

struct SrqQueue {
    view: Option<View>,
    ring: Ring,
    head: u32,
    tail: u32,
    limit: u32,
    max_wr: u32,
    /// On a parent domain: held while the SRQ exists.
    token: Option<Token>,
}

impl SrqQueue {
    fn waiting(&self) -> u32 {
        self.ring.used(self.head, self.tail)
    }

    fn publish(&self) {
        if let Some(view) = &self.view {
            view.word(word::HEAD).store(self.head, Ordering::Relaxed);
            view.word(word::TAIL).store(self.tail, Ordering::Relaxed);
            view.word(word::OUTSTANDING).store(self.waiting(), Ordering::Relaxed);
            view.word(word::LIMIT).store(self.limit, Ordering::Relaxed);
        }
    }
}

/// The command that destroys an SRQ.
pub(crate) fn destroy(srq_handle: u32) -> Vec<u8> {
    let body = DestroySrq { response: 1, srq_handle, reserved: 0 };
    request::legacy(command::DESTROY_SRQ, &body, size_of::<DestroySrqAnswer>())
}

impl Engine {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits.
    pub fn create_srq(self: &Arc<Self>, pd: &Arc<Pd>, spec: &SrqSpec) -> Result<Arc<Srq>> {
        let body = CreateSrq {
            response: 1,
            user_handle: spec.cookie,
            pd_handle: pd.handle(),
            max_wr: spec.max_wr,
            max_sge: spec.max_sge,
            srq_limit: 0,
        };
        let fixed = size_of::<CreateSrqAnswer>();
        let ((answer, out), view) = self.allocate(
            &request::legacy(command::CREATE_SRQ, &body, fixed + size_of::<SrqOut>()),
            |answer| {
                let out: SrqOut = answer.get(fixed)?;
                Ok(((answer.get::<CreateSrqAnswer>(0)?, out), out.mapping))
            },
            |(answer, _)| destroy(answer.srq_handle),
        )?;
        self.adopt_srq(pd, &answer, &out, view, spec.cookie)
    }

    pub(crate) fn adopt_srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        answer: &CreateSrqAnswer,
        out: &SrqOut,
        view: View,
        cookie: u64,
    ) -> Result<Arc<Srq>> {
        self.make_srq(pd, answer, out, view, cookie, None)
    }

    pub(crate) fn make_srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        answer: &CreateSrqAnswer,
        out: &SrqOut,
        view: View,
        cookie: u64,
        xrc: Option<Membership>,
    ) -> Result<Arc<Srq>> {
        let (ring, count) = match sound(pd, out, &view) {
            Ok(found) => found,
            Err(error) => {
                let _order = self.memory.allocation.lock();
                // If the agent is gone, so is the SRQ.
                let _ = self.tell(&destroy(answer.srq_handle));
                return Err(error);
            }
        };
        let max_wr = answer.max_wr.min(count);
        Ok(Arc::new_cyclic(|itself| Srq {
            engine: Arc::clone(self),
            handle: answer.srq_handle,
            number: out.number,
            pd: Arc::clone(pd),
            cookie,
            max_sge: answer.max_sge,
            itself: itself.clone(),
            xrc,
            read: ReadCounts::default(),
            queue: Mutex::new(SrqQueue {
                view: Some(view),
                ring,
                head: 0,
                tail: 0,
                limit: 0,
                max_wr,
                token: pd.is_parent().then(|| pd.token()),
            }),
        }))
    }
}

impl Srq {
    /// The agent's handle of the SRQ.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The SRQ number, which XRC peers name.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it belongs to an XRC domain.
    #[must_use]
    pub fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    /// The maximum number of requests.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.queue.lock().max_wr
    }

    /// The maximum number of scatter elements of a request.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn pd(&self) -> u32 {
        self.pd.handle()
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// ENOMEM when the queue is full; EINVAL for too many elements.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.engine.check_process().is_err() {
            return Err(PostError { queue: WorkQueue::Shared(self.handle), cause: PostCause::Inherited });
        }
        let mut queue = self.queue.lock();
        if queue.view.is_none() {
            return Err(self.refused(PostCause::Destroyed));
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(self.refused(PostCause::TooManySges { given: wr.sges.len(), most: self.max_sge }));
        }
        if queue.waiting() >= queue.max_wr {
            return Err(self.refused(PostCause::QueueFull { depth: queue.max_wr }));
        }
        let tail = queue.tail;
        write_recv(&queue.ring, tail, wr);
        queue.tail = queue.ring.advance(tail);
        queue.publish();
        if let Some(lint) = self.engine.lint() {
            lint.posted_shared(&self.engine, self.handle, wr);
        }
        Ok(())
    }

    /// Notes that a request was refused.
    #[cold]
    fn refused(&self, cause: PostCause) -> PostError {
        let error = PostError { queue: WorkQueue::Shared(self.handle), cause };
        note(Note::new(ReasonKind::Refused), format_args!("{error}"));
        error
    }

    /// Takes the oldest request and copies its scatter list to `into`.
    pub(crate) fn take(&self, into: &mut Vec<Sge>) -> Option<RecvEntry> {
        let mut queue = self.queue.lock();
        if queue.view.is_none() || queue.head == queue.tail {
            return None;
        }
        let head = queue.head;
        let entry: RecvEntry = queue.ring.read(head);
        into.clear();
        into.extend(queue.ring.elements(head, entry.num_sge.min(self.max_sge) as usize));
        queue.head = queue.ring.advance(head);
        if let Some(lint) = self.engine.lint() {
            lint.taken(self.handle);
        }
        self.check_limit(&mut queue);
        queue.publish();
        Some(entry)
    }

    /// When fewer requests wait than the limit says: raises one event and disarms the limit (V-51).
    fn check_limit(&self, queue: &mut SrqQueue) {
        if queue.limit != 0 && queue.waiting() < queue.limit {
            queue.limit = 0;
            self.raise(queue, kind::SRQ_LIMIT_REACHED);
        }
    }

    /// Raises `SRQ_ERR`: the SRQ can serve no more messages.
    pub(crate) fn report_failure(&self) {
        self.raise(&self.queue.lock(), kind::SRQ_ERR);
    }

    /// Raises an event, unless the SRQ is destroyed. A destroyed SRQ must leave no event behind.
    fn raise(&self, queue: &SrqQueue, event: u32) {
        if queue.view.is_some() {
            self.engine.events.raise(event, self.cookie, Some(self.itself.clone()));
        }
    }

    /// Changes the limit, the size, or both at once.
    ///
    /// # Errors
    /// EINVAL for a limit above the size, or a size below the number of waiting requests. Then
    /// nothing changes.
    pub fn modify(&self, mask: u32, max_wr: u32, srq_limit: u32) -> Result<()> {
        let body = ModifySrq { srq_handle: self.handle, attr_mask: mask, max_wr, srq_limit };
        if mask & attr::MAX_WR != 0 {
            return self.resize(&body);
        }
        self.engine.call(&request::legacy(command::MODIFY_SRQ, &body, 0))?;
        if mask & attr::LIMIT != 0 {
            self.arm(&mut self.queue.lock(), srq_limit);
        }
        Ok(())
    }

    fn arm(&self, queue: &mut SrqQueue, limit: u32) {
        queue.limit = limit;
        self.check_limit(queue);
        queue.publish();
    }

    /// Moves the queue to new memory. The waiting requests keep their order.
    fn resize(&self, body: &ModifySrq) -> Result<()> {
        let _order = self.engine.memory.allocation.lock();
        let most = self.engine.facts().map_or(u32::MAX, |facts| facts.max_srq_wr);
        // The queue's lock is not held while the engine asks the agent, so receivers still take
        // requests. Requests that are posted during the call must fit the old queue and the new
        // one.
        let (old_max, stride) = {
            let mut queue = self.queue.lock();
            let old_max = queue.max_wr;
            queue.max_wr = old_max.min(body.max_wr);
            (old_max, queue.ring.stride())
        };
        let moved = self.move_to(body, most, stride);
        if moved.is_err() {
            self.queue.lock().max_wr = old_max;
        }
        moved
    }

    fn move_to(&self, body: &ModifySrq, most: u32, stride: usize) -> Result<()> {
        let lent = self.pd.lend_ahead((body.max_wr, most), stride, Purpose::Srq)?;
        let request = request::legacy(command::MODIFY_SRQ, body, size_of::<SrqOut>());
        let read = |answer: &Answer| {
            let out: SrqOut = answer.get(0)?;
            Ok((out, out.mapping))
        };
        let (out, view) = self.engine.move_queue(&request, read, ResizeUndo { handle: self.handle, is_srq: 1 })?;
        let (mut ring, count) = ring(lie(lent, &view, layout(&out)), &out)?;
        let mut queue = self.queue.lock();
        let queue = &mut *queue;
        let mut at = queue.head;
        let mut tail = 0;
        while at != queue.tail {
            let entry: RecvEntry = queue.ring.read(at);
            ring.write(tail, &entry);
            let elements = queue.ring.elements(at, entry.num_sge.min(self.max_sge) as usize);
            elements.enumerate().for_each(|(number, sge)| ring.set_element(tail, number, &sge));
            (at, tail) = (queue.ring.advance(at), ring.advance(tail));
        }
        let read = queue.view.as_ref().map_or(0, |old| old.word(word::EVENTS_REPORTED).load(Ordering::Relaxed));
        view.word(word::EVENTS_REPORTED).store(read, Ordering::Relaxed);
        std::mem::swap(&mut queue.ring, &mut ring);
        (queue.view, queue.head, queue.tail, queue.max_wr) = (Some(view), 0, tail, count);
        let limit = if body.attr_mask & attr::LIMIT != 0 { body.srq_limit } else { queue.limit };
        self.arm(queue, limit);
        Ok(())
    }

    /// The size, the number of elements and the armed limit.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn query(&self) -> Result<QuerySrqAnswer> {
        let body = QuerySrq { response: 1, srq_handle: self.handle, reserved: 0 };
        let mut answer: QuerySrqAnswer =
            self.engine.call(&request::legacy(command::QUERY_SRQ, &body, size_of::<QuerySrqAnswer>()))?.get(0)?;
        answer.srq_limit = self.queue.lock().limit;
        Ok(answer)
    }

    /// Destroys the queue. Returns how many of its events were read.
    ///
    /// # Errors
    /// EBUSY while a QP uses it.
    pub fn destroy(&self) -> Result<u32> {
        self.engine.check_process()?;
        let _order = self.engine.memory.allocation.lock();
        self.engine.give_up(&destroy(self.handle))?;
        self.leave();
        Ok(self.read.asynchronous())
    }

    /// Removes the queue from all tables.
    pub(crate) fn leave(&self) {
        if self.xrc.is_some() {
            self.engine.xrc_srqs.remove(self.number);
        }
        {
            let mut queue = self.queue.lock();
            queue.view = None;
            queue.ring.forget();
            queue.token = None;
        }
        // Last: after this nothing raises an event of the SRQ.
        self.engine.events.forget(self);
        if let Some(lint) = self.engine.lint() {
            lint.emptied_shared(self.handle);
        }
    }
}

impl Object for Srq {
    fn read(&self) -> &ReadCounts {
        &self.read
    }

    fn count_async(&self) {
        if let Some(view) = &self.queue.lock().view {
            view.word(word::EVENTS_REPORTED).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Checks the layout from the agent. Returns the ring and its number of entries.
fn sound(pd: &Pd, out: &SrqOut, view: &View) -> Result<(Ring, u32)> {
    ring(pd.place_queue(view, layout(out), Purpose::Srq)?, out)
}

fn layout(out: &SrqOut) -> Layout {
    Layout { offset: out.offset, count: out.count, stride: out.stride }
}

fn ring((view, layout): (View, Layout), out: &SrqOut) -> Result<(Ring, u32)> {
    let ring = Ring::new(view, layout, RECV_WQE_HEADER).filter(|ring| ring.count() > 0);
    let ring = ring.ok_or_else(|| refusal(Errno::EIO, "the agent described an SRQ that does not fit its memory"))?;
    Ok((ring, out.count))
}

/// Writes a receive request to entry `index`.
pub(crate) fn write_recv(ring: &Ring, index: u32, wr: &RecvWr<'_>) {
    let length = wr.sges.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.length));
    ring.write(index, &RecvEntry { wr_id: wr.wr_id, num_sge: wr.sges.len() as u32, length });
    for (number, sge) in wr.sges.iter().enumerate() {
        ring.set_element(index, number, sge);
    }
}
