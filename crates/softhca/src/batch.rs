//! Batches: requests that are posted with one call, of which only the last has a completion (IBA volume 1, 10.8.6:
//! unsignaled completions; `ibv_post_send(3)`, IBV_SEND_SIGNALED).
//! Principal type: [`Batch`].
//!
//! What the requests use is kept as one request keeps it, and comes back with the one completion. The CQ keeps room for one completion
//! of each request all the same, for so many come when one of them fails.

use std::fmt;
use std::marker::PhantomData;

use abi::errno::Errno;
use abi::post::send_flags;

use crate::completion::Operation;
use crate::connected::{Connected, Qp, Reliable};
use crate::datagram::{Datagram, DatagramQp, Peer};
use crate::error::{Error, Rejected, Result};
use crate::memory::Buffer;
use crate::message::{Message, Part, Parts};
use crate::pending::{Owner, Pending};
use crate::queue_pair::{Flags, QpInner, Request, Sges};
use crate::remote::RemoteRegion;

/// Requests that are to be posted together: see [`Qp::batch`].
///
/// ```no_run
/// # fn example(qp: softhca::Qp<softhca::Reliable>, cq: softhca::Cq, rows: Vec<softhca::Buffer>,
/// #     table: softhca::RemoteRegion, flag: softhca::RemoteRegion) -> softhca::Result<()> {
/// let mut batch = qp.batch();
/// for (number, row) in rows.into_iter().enumerate() {
///     batch = batch.write(row, &table.part(number * 4096..)?);
/// }
/// batch.write_inline(&1_u64.to_ne_bytes(), &flag).post(7)?; // All or none is posted.
/// let rows = cq.wait()?.ok()?.into_buffers(); // One completion, with id 7, gives all of them back.
/// # drop(rows); Ok(()) }
/// ```
///
/// It has taken the buffers, which cannot be touched until it gives them back:
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, mut row: softhca::Buffer) -> softhca::Result<()> {
/// qp.batch().send(row).send_inline(b"that was it", None).post(1)?;
/// row[0] = 1;
/// # Ok(()) }
/// ```
#[must_use = "nothing is posted before the end of the batch says so"]
pub struct Batch<'a, S> {
    qp: &'a QpInner,
    work: Vec<Work<'a>>,
    service: PhantomData<fn() -> S>,
}

/// One request of a batch.
struct Work<'a> {
    request: Request<'a>,
    flags: Flags,
    payload: Payload<'a>,
}

enum Payload<'a> {
    Kept(Parts),
    Copied(&'a [u8]),
}

impl Payload<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Self::Kept(parts) => parts.total(),
            Self::Copied(bytes) => bytes.len() as u64,
        }
    }

    fn sges(&self) -> Sges {
        match self {
            Self::Kept(parts) => Sges::of(parts),
            Self::Copied(bytes) => Sges::inline(bytes),
        }
    }
}

impl<S: Connected> Qp<S> {
    /// Begins a batch: requests that are posted with one call and completed with one completion. It costs less than posting them one by one.
    pub fn batch(&self) -> Batch<'_, S> {
        Batch::new(&self.inner)
    }
}

impl DatagramQp {
    /// Begins a batch: datagrams that are posted with one call and completed with one completion.
    pub fn batch(&self) -> Batch<'_, Datagram> {
        Batch::new(&self.inner)
    }
}

impl<'a, S> Batch<'a, S> {
    fn new(qp: &'a QpInner) -> Self {
        Self { qp, work: Vec::new(), service: PhantomData }
    }

    fn with(mut self, request: Request<'a>, message: Message) -> Self {
        let flags = Flags::of(&message);
        self.work.push(Work { request, flags, payload: Payload::Kept(message.parts) });
        self
    }

    fn with_inline(mut self, request: Request<'a>, bytes: &'a [u8], immediate: Option<u32>) -> Self {
        self.work.push(Work { request, flags: Flags::inline(immediate), payload: Payload::Copied(bytes) });
        self
    }

    /// How many requests are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.work.len()
    }

    /// Whether there is none yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Posts them, all or none. They are carried out in their order, as if they had been posted one by one; `id` comes back with
    /// their one completion, when all of them are over. If one fails, its status is the completion's, and those after it are
    /// not carried out.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ has no room for all of them; EINVAL for an empty batch, and for whatever a request alone would
    /// be refused for.
    pub fn post(mut self, id: u64) -> Result<(), Rejected> {
        self.check()?;
        match self.try_post(id, Owner::Poller) {
            Ok(()) => Ok(()),
            Err((error, _)) => Err(self.rejected(error)),
        }
    }

    /// What can be said without looking at the queue.
    pub(crate) fn check(&mut self) -> Result<(), Rejected> {
        let checked = self.checked();
        checked.map_err(|error| self.rejected(error))
    }

    fn checked(&self) -> Result<()> {
        let (qpn, caps) = (self.qp.qp.qpn(), self.qp.qp.caps());
        let refuse = |why: String| Err(Error::refused(Errno::EINVAL, format!("a batch on QP {qpn:#x}: {why}")));
        if self.work.is_empty() {
            return refuse("there is no request in it".into());
        }
        let most = caps.max_send_wr.min(self.qp.send_cq.capacity());
        if self.work.len() > most as usize {
            return refuse(format!("{} requests, the queue and its CQ take {most}", self.work.len()));
        }
        for work in &self.work {
            work.request.check(work.payload.bytes())?;
            match &work.payload {
                Payload::Kept(parts) if parts.as_slice().len() > caps.max_send_sge as usize => {
                    return refuse(format!("{} parts, the QP takes {}", parts.as_slice().len(), caps.max_send_sge));
                }
                Payload::Copied(bytes) if bytes.len() > caps.max_inline_data as usize => {
                    return refuse(format!("{} bytes inline, the QP takes {}", bytes.len(), caps.max_inline_data));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Posts what [`Batch::check`] has accepted. When it is refused the batch is as before.
    pub(crate) fn try_post(&mut self, id: u64, owner: Owner) -> Result<(), (Error, Owner)> {
        let qp = self.qp;
        let count = self.work.len() as u32;
        if let Err(error) = qp.send_cq.reserve(count) {
            return Err((error, owner));
        }
        let refused = |errno: Errno| Error::explained(errno, &format!("post_send on QP {:#x}: ", qp.qp.qpn()));
        let mut batch = match qp.qp.send_batch() {
            Ok(batch) => batch,
            Err(errno) => {
                qp.send_cq.release(count);
                return Err((refused(errno), owner));
            }
        };
        if batch.room() < count {
            drop(batch);
            qp.send_cq.release(count);
            return Err((qp.full(count), owner));
        }
        let sges: Vec<Sges> = self.work.iter().map(|work| work.payload.sges()).collect();
        let mut counts = Vec::new();
        let parts = self.collect(&mut counts);
        let pending = Pending { weight: count, ..Pending::new(id, Operation::Batch, parts, owner) };
        let (earlier, last) = match count {
            1 => (0, qp.queues.sends.put(pending)),
            _ => qp.queues.sends.put_batch(pending),
        };
        for (number, (work, sges)) in self.work.iter().zip(&sges).enumerate() {
            let (name, bits) = match number + 1 == count as usize {
                true => (last, send_flags::SIGNALED),
                false => (earlier, 0),
            };
            let Err(errno) = batch.push(&work.request.work(name, work.flags, sges.as_slice(), bits)) else { continue };
            // There is room, so what is refused is the state, and that at the first request.
            batch.finish();
            if number > 0 {
                // Their memory stays with the queue pair.
                return Err((refused(errno), Owner::Poller));
            }
            qp.send_cq.release(count);
            let pending = qp.queues.sends.take(last).expect("it was put there");
            self.distribute(pending.parts, &counts);
            return Err((refused(errno), pending.owner));
        }
        batch.finish();
        Ok(())
    }

    /// The memory of all requests as one list; `counts` says how many each had.
    fn collect(&mut self, counts: &mut Vec<usize>) -> Parts {
        let mut all = Vec::with_capacity(self.work.len());
        for work in &mut self.work {
            let before = all.len();
            if let Payload::Kept(parts) = &mut work.payload {
                std::mem::take(parts).move_to(&mut all);
            }
            counts.push(all.len() - before);
        }
        Parts::Many(all)
    }

    /// Gives each request its memory back.
    fn distribute(&mut self, parts: Parts, counts: &[usize]) {
        let mut all = Vec::new();
        parts.move_to(&mut all);
        let mut all = all.into_iter();
        for (work, count) in self.work.iter_mut().zip(counts) {
            if let Payload::Kept(parts) = &mut work.payload {
                *parts = Parts::Many(all.by_ref().take(*count).collect());
            }
        }
    }

    pub(crate) fn rejected(&mut self, error: Error) -> Rejected {
        Rejected { error, buffers: self.take_buffers() }
    }

    fn take_buffers(&mut self) -> Vec<Buffer> {
        self.collect(&mut Vec::new()).into_buffers()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn qp(&self) -> &'a QpInner {
        self.qp
    }
}

impl<'a, S: Connected> Batch<'a, S> {
    /// Adds a message: see [`Qp::send`].
    pub fn send(self, message: impl Into<Message>) -> Self {
        self.with(Request::new(Operation::Send, None), message.into())
    }

    /// Adds a message of a few bytes, which are copied when the batch is posted.
    pub fn send_inline(self, bytes: &'a [u8], immediate: Option<u32>) -> Self {
        self.with_inline(Request::new(Operation::Send, None), bytes, immediate)
    }

    /// Adds a write to the peer's memory: see [`Qp::write`].
    pub fn write(self, message: impl Into<Message>, to: &RemoteRegion) -> Self {
        self.with(Request::new(Operation::Write, Some(*to)), message.into())
    }

    /// Adds a write of a few bytes, which are copied when the batch is posted.
    pub fn write_inline(self, bytes: &'a [u8], to: &RemoteRegion) -> Self {
        self.with_inline(Request::new(Operation::Write, Some(*to)), bytes, None)
    }
}

impl Batch<'_, Reliable> {
    /// Adds a read of the peer's memory: see [`Qp::read`]. What was read is in the buffer that comes back.
    ///
    /// ```compile_fail,E0599
    /// # fn example(qp: softhca::Qp<softhca::Unreliable>, b: softhca::Buffer, there: softhca::RemoteRegion) -> softhca::Result<()> {
    /// qp.batch().read(b, &there).post(1)?; // Only the reliable service reads.
    /// # Ok(()) }
    /// ```
    pub fn read(self, into: impl Into<Message>, from: &RemoteRegion) -> Self {
        self.with(Request::new(Operation::Read, Some(*from)), into.into())
    }

    /// Adds an addition at the peer: see [`Qp::fetch_add`]. What stood there before is in the buffer that comes back.
    pub fn fetch_add(self, into: impl Into<Part>, at: &RemoteRegion, value: u64) -> Self {
        let request = Request { compare_add: value, ..Request::new(Operation::FetchAdd, Some(*at)) };
        self.with(request, into.into().into())
    }

    /// Adds an exchange at the peer: see [`Qp::compare_swap`]. What stood there before is in the buffer that comes back.
    pub fn compare_swap(self, into: impl Into<Part>, at: &RemoteRegion, expected: u64, new: u64) -> Self {
        let request = Request { compare_add: expected, swap: new, ..Request::new(Operation::CompareSwap, Some(*at)) };
        self.with(request, into.into().into())
    }
}

impl<'a> Batch<'a, Datagram> {
    /// Adds a datagram: see [`DatagramQp::send`].
    pub fn send(self, message: impl Into<Message>, to: &'a Peer) -> Self {
        self.with(to.request(), message.into())
    }

    /// Adds a datagram of a few bytes, which are copied when the batch is posted.
    pub fn send_inline(self, bytes: &'a [u8], to: &'a Peer, immediate: Option<u32>) -> Self {
        self.with_inline(to.request(), bytes, immediate)
    }
}

impl<S> fmt::Debug for Batch<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} requests for QP {:#x})", self.work.len(), self.qp.qp.qpn())
    }
}
