//! Batches: several requests posted with one call, of which only the last has a completion (IBA
//! volume 1, 10.8.6: unsignaled completions; `ibv_post_send(3)`, IBV_SEND_SIGNALED). Principal
//! type: [`Batch`].
//!
//! The batch keeps the memory of its requests as a single request does. The one completion gives
//! this memory back. The CQ still reserves room for one completion of each request: if a request
//! fails, all of them complete.

use std::fmt;
use std::marker::PhantomData;

use abi::errno::Errno;
use abi::post::send_flags;
use engine::{PostCause, PostError};

use crate::connected::{Connected, Qp, Reliable};
use crate::datagram::{Datagram, DatagramQp, Peer};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::message::{Message, Part, Parts};
use crate::operation::Operation;
use crate::pending::{Owner, Pending};
use crate::queue_pair::{Flags, QpInner, SendRequest, Sges};
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;

/// Requests that are posted together: see [`Qp::batch`].
///
/// ```no_run
/// # fn example(qp: softhca::Qp<softhca::Reliable>, cq: softhca::Cq, rows: Vec<softhca::Buffer>,
/// #     table: softhca::RemoteRegion, flag: softhca::RemoteRegion) -> softhca::Result<()> {
/// let mut batch = qp.batch();
/// for (number, row) in rows.into_iter().enumerate() {
///     batch = batch.write(row, &table.part(number * 4096..)?);
/// }
/// batch.write_inline(&1_u64.to_ne_bytes(), &flag).post(7)?; // Posts all requests, or none.
/// let rows = cq.wait()?.ok()?.into_buffers(); // One completion, with id 7, gives all back.
/// # drop(rows); Ok(()) }
/// ```
///
/// The batch owns the buffers. The program cannot touch them until the completion gives them back:
///
/// ```compile_fail,E0382
/// # fn example(qp: softhca::Qp<softhca::Reliable>, mut row: softhca::Buffer)
/// #     -> softhca::Result<()> {
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
    request: SendRequest<'a>,
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
    /// Begins a batch: requests that are posted with one call and complete with one completion. A
    /// batch costs less than posting its requests one by one.
    pub fn batch(&self) -> Batch<'_, S> {
        Batch::new(&self.inner)
    }
}

impl DatagramQp {
    /// Begins a batch: datagrams that are posted with one call and complete with one completion.
    pub fn batch(&self) -> Batch<'_, Datagram> {
        Batch::new(&self.inner)
    }
}

impl<'a, S> Batch<'a, S> {
    fn new(qp: &'a QpInner) -> Self {
        Self { qp, work: Vec::new(), service: PhantomData }
    }

    fn with(mut self, request: SendRequest<'a>, message: Message) -> Self {
        let flags = Flags::of(&message);
        self.work.push(Work { request, flags, payload: Payload::Kept(message.parts) });
        self
    }

    fn with_inline(mut self, request: SendRequest<'a>, bytes: &'a [u8], immediate: Option<u32>) -> Self {
        self.work.push(Work { request, flags: Flags::inline(immediate), payload: Payload::Copied(bytes) });
        self
    }

    /// Number of requests in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.work.len()
    }

    /// Whether the batch has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Posts all requests, or none. The adapter executes them in order, as if the program had
    /// posted them one by one. When all of them have completed, their one completion comes with
    /// `id`. If a request fails, the completion has its status, and the requests after it are not
    /// executed.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ has no room for all requests. EINVAL for an empty batch.
    /// Otherwise the errors that a single request can have.
    pub fn post(mut self, id: u64) -> Result<(), Rejected> {
        self.check()?;
        match self.try_post(id, Owner::Poller) {
            Ok(()) => Ok(()),
            Err((error, _)) => Err(self.rejected(error)),
        }
    }

    /// Checks everything that does not depend on the queue.
    pub(crate) fn check(&mut self) -> Result<(), Rejected> {
        let checked = self.checked();
        checked.map_err(|error| self.rejected(error))
    }

    fn checked(&self) -> Result<()> {
        let (qpn, caps) = (self.qp.qp.qpn(), self.qp.qp.caps());
        let refuse = |why: String| Err(Error::refused(Errno::EINVAL, format!("a batch on QP {qpn:#x}: {why}")));
        let not_taken = |cause| Err(PostError { queue: self.qp.send_queue(), cause }.into());
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
                    let given = parts.as_slice().len();
                    return not_taken(PostCause::TooManySges { given, most: caps.max_send_sge });
                }
                Payload::Copied(bytes) if bytes.len() > caps.max_inline_data as usize => {
                    let bytes = bytes.len() as u64;
                    return not_taken(PostCause::Inline { bytes, most: caps.max_inline_data });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Posts what [`Batch::check`] has accepted. After an error the batch is unchanged.
    pub(crate) fn try_post(&mut self, id: u64, owner: Owner) -> Result<(), (PostError, Owner)> {
        let qp = self.qp;
        let count = self.work.len() as u32;
        if let Err(error) = qp.send_cq.reserve(count, qp.send_queue()) {
            return Err((error, owner));
        }
        let mut batch = match qp.qp.send_batch() {
            Ok(batch) => batch,
            Err(error) => {
                qp.send_cq.release(count);
                return Err((error, owner));
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
            let Err(error) = batch.push(&work.request.work(name, work.flags, sges.as_slice(), bits)) else { continue };
            // There is room, so an error is about the QP's state, and the first request has it.
            batch.finish();
            if number > 0 {
                // The memory of the posted requests stays with the queue pair.
                return Err((error, Owner::Poller));
            }
            qp.send_cq.release(count);
            let pending = qp.queues.sends.take(last).expect("it was put there");
            self.distribute(pending.parts, &counts);
            return Err((error, pending.owner));
        }
        batch.finish();
        Ok(())
    }

    /// Moves the memory of all requests into one list; `counts` gets the number of parts of each
    /// request.
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

    pub(crate) fn rejected(&mut self, error: impl Into<Error>) -> Rejected {
        Rejected { error: error.into(), buffers: self.take_buffers() }
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
        self.with(SendRequest::new(Operation::Send, None), message.into())
    }

    /// Adds a message of a few bytes, which `post` copies.
    pub fn send_inline(self, bytes: &'a [u8], immediate: Option<u32>) -> Self {
        self.with_inline(SendRequest::new(Operation::Send, None), bytes, immediate)
    }

    /// Adds a write to the peer's memory: see [`Qp::write`].
    pub fn write(self, message: impl Into<Message>, to: &RemoteRegion) -> Self {
        self.with(SendRequest::new(Operation::Write, Some(*to)), message.into())
    }

    /// Adds a write of a few bytes, which `post` copies.
    pub fn write_inline(self, bytes: &'a [u8], to: &RemoteRegion) -> Self {
        self.with_inline(SendRequest::new(Operation::Write, Some(*to)), bytes, None)
    }
}

impl Batch<'_, Reliable> {
    /// Adds a read of the peer's memory: see [`Qp::read`]. The buffer that comes back has the data.
    ///
    /// ```compile_fail,E0599
    /// # fn example(qp: softhca::Qp<softhca::Unreliable>, b: softhca::Buffer,
    /// #     there: softhca::RemoteRegion)
    /// #     -> softhca::Result<()> {
    /// qp.batch().read(b, &there).post(1)?; // Only the reliable service reads.
    /// # Ok(()) }
    /// ```
    pub fn read(self, into: impl Into<Message>, from: &RemoteRegion) -> Self {
        self.with(SendRequest::new(Operation::Read, Some(*from)), into.into())
    }

    /// Adds a fetch-and-add: see [`Qp::fetch_add`]. The buffer that comes back has the previous
    /// value.
    pub fn fetch_add(self, into: impl Into<Part>, at: &RemoteRegion, value: u64) -> Self {
        let request = SendRequest { compare_add: value, ..SendRequest::new(Operation::FetchAdd, Some(*at)) };
        self.with(request, into.into().into())
    }

    /// Adds a compare-and-swap: see [`Qp::compare_swap`]. The buffer that comes back has the
    /// previous value.
    pub fn compare_swap(self, into: impl Into<Part>, at: &RemoteRegion, expected: u64, new: u64) -> Self {
        let request =
            SendRequest { compare_add: expected, swap: new, ..SendRequest::new(Operation::CompareSwap, Some(*at)) };
        self.with(request, into.into().into())
    }
}

impl<'a> Batch<'a, Datagram> {
    /// Adds a datagram: see [`DatagramQp::send`].
    pub fn send(self, message: impl Into<Message>, to: &'a Peer) -> Self {
        self.with(to.request(), message.into())
    }

    /// Adds a datagram of a few bytes, which `post` copies.
    pub fn send_inline(self, bytes: &'a [u8], to: &'a Peer, immediate: Option<u32>) -> Self {
        self.with_inline(to.request(), bytes, immediate)
    }
}

impl<S> fmt::Debug for Batch<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} requests for QP {:#x})", self.work.len(), self.qp.qp.qpn())
    }
}
