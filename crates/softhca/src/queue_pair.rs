//! The parts that every queue pair has, connected or not: posting, ending, and the memory of
//! requests in progress. Principal type: [`QpInner`].

use std::mem::ManuallyDrop;
use std::sync::Arc;

use abi::errno::Errno;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{ModifyQp, attr, state};
use engine::{PostCause, PostError, RecvWr, SendWr, WorkQueue};
use parking_lot::Mutex;

use crate::cq::CqInner;
use crate::endpoint::{DatagramEndpoint, Endpoint};
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::message::{Message, Part, Parts};
use crate::mtu::Mtu;
use crate::operation::Operation;
use crate::pd::PdInner;
use crate::pending::{Owner, Pending, Queues};
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;
use crate::srq::SrqInner;

/// A queue pair of any kind.
pub(crate) struct QpInner {
    pub(crate) qp: Arc<engine::Qp>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) send_cq: Arc<CqInner>,
    pub(crate) receive_cq: Arc<CqInner>,
    /// Kept while the QP may take receives from it.
    pub(crate) _srq: Option<Arc<SrqInner>>,
    pub(crate) pd: Arc<PdInner>,
    pub(crate) cookie: u64,
    /// Multicast groups that the queue pair has joined.
    pub(crate) groups: Mutex<Vec<Gid>>,
    /// Makes tasks send one after the other, in the order in which they came, also while they wait
    /// for room.
    #[cfg(feature = "tokio")]
    pub(crate) turn: tokio::sync::Mutex<()>,
}

/// A send request without its memory.
#[derive(Clone, Copy)]
pub(crate) struct SendRequest<'a> {
    pub(crate) operation: Operation,
    pub(crate) remote: Option<RemoteRegion>,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) to: Option<(&'a engine::Ah, DatagramEndpoint)>,
}

impl SendRequest<'_> {
    pub(crate) fn new(operation: Operation, remote: Option<RemoteRegion>) -> Self {
        Self { operation, remote, compare_add: 0, swap: 0, to: None }
    }

    /// Checks that the memory at the peer is long enough for the operation.
    pub(crate) fn check(&self, bytes: u64) -> Result<()> {
        let (wanted, what) = match self.operation {
            Operation::FetchAdd | Operation::CompareSwap => (8, "an atomic works on 8"),
            _ => (bytes, "the message is longer"),
        };
        match self.remote {
            Some(remote) if wanted > remote.len => Err(Error::refused(
                Errno::EINVAL,
                format!("the remote region has {} bytes, {what} ({wanted})", remote.len),
            )),
            _ if wanted > bytes => Err(Error::refused(Errno::EINVAL, format!("a buffer of {bytes} bytes: {what}"))),
            _ => Ok(()),
        }
    }

    /// The work request with this name.
    pub(crate) fn work<'s>(&'s self, name: u64, flags: Flags, sges: &'s [Sge], bits: u32) -> SendWr<'s> {
        let remote = self.remote.unwrap_or(RemoteRegion { addr: 0, rkey: 0, len: 0 });
        SendWr {
            wr_id: name,
            opcode: self.opcode(flags.immediate.is_some()),
            send_flags: flags.bits | bits,
            imm: flags.immediate.unwrap_or(0).to_be(),
            remote_addr: remote.addr,
            rkey: remote.rkey,
            compare_add: self.compare_add,
            swap: self.swap,
            ud: self.to.map(|(ah, endpoint)| (ah, endpoint.qpn, endpoint.qkey)),
            bind: None,
            sges,
            ..SendWr::default()
        }
    }

    fn opcode(&self, immediate: bool) -> u32 {
        match self.operation {
            Operation::Write if immediate => opcode::RDMA_WRITE_WITH_IMM,
            Operation::Write => opcode::RDMA_WRITE,
            Operation::Read => opcode::RDMA_READ,
            Operation::FetchAdd => opcode::ATOMIC_FETCH_AND_ADD,
            Operation::CompareSwap => opcode::ATOMIC_CMP_AND_SWP,
            _ if immediate => opcode::SEND_WITH_IMM,
            _ => opcode::SEND,
        }
    }
}

/// The flags and immediate data of a send request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    pub(crate) immediate: Option<u32>,
    pub(crate) bits: u32,
}

impl Flags {
    pub(crate) fn of(message: &Message) -> Self {
        let solicited = if message.solicited { send_flags::SOLICITED } else { 0 };
        let fenced = if message.fenced { send_flags::FENCE } else { 0 };
        Self { immediate: message.immediate, bits: solicited | fenced }
    }

    /// Flags for bytes that are copied when the request is posted.
    pub(crate) fn inline(immediate: Option<u32>) -> Self {
        Self { immediate, bits: send_flags::INLINE }
    }
}

/// Why a request was not posted, with the request.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    pub(crate) pending: Box<Pending>,
}

impl Refusal {
    fn new(error: impl Into<Error>, pending: Pending) -> Self {
        Self { error: error.into(), pending: Box::new(pending) }
    }
}

impl From<Refusal> for Rejected {
    fn from(refusal: Refusal) -> Self {
        Self { error: refusal.error, buffers: refusal.pending.parts.into_buffers() }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

/// The scatter/gather elements of a request; usually one.
pub(crate) struct Sges {
    one: [Sge; 1],
    many: Vec<Sge>,
    none: bool,
}

impl Sges {
    pub(crate) fn of(parts: &Parts) -> Self {
        let mut sges = Self { one: [Sge::new(0, 0, 0)], many: Vec::new(), none: false };
        match parts.as_slice() {
            [] => sges.none = true,
            [part] => sges.one = [part.sge()],
            parts => sges.many = parts.iter().map(Part::sge).collect(),
        }
        sges
    }

    /// Inline bytes, which are copied when the request is posted.
    pub(crate) fn inline(bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let sge = Sge::new(bytes.as_ptr().expose_provenance() as u64, length, 0);
        Self { one: [sge], many: Vec::new(), none: false }
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            Self { none: true, .. } => &[],
            Self { many, .. } if !many.is_empty() => many,
            _ => &self.one,
        }
    }
}

impl QpInner {
    /// Posts a send request that owns its memory.
    pub(crate) fn send(&self, id: u64, message: Message, request: SendRequest<'_>) -> Result<(), Rejected> {
        let flags = Flags::of(&message);
        let parts = message.parts;
        if let Err(error) = request.check(parts.total()) {
            return Err(Rejected { error, buffers: parts.into_buffers() });
        }
        let sges = Sges::of(&parts);
        let pending = Pending::new(id, request.operation, parts, Owner::Poller);
        Ok(self.post(request, flags, sges.as_slice(), pending)?)
    }

    /// Posts a send request whose bytes are copied at once.
    pub(crate) fn inline(&self, id: u64, bytes: &[u8], request: SendRequest<'_>, immediate: Option<u32>) -> Result<()> {
        request.check(bytes.len() as u64)?;
        let pending = Pending::new(id, request.operation, Parts::None, Owner::Poller);
        Ok(self.post(request, Flags::inline(immediate), Sges::inline(bytes).as_slice(), pending)?)
    }

    /// Posts a send request on memory that `pending` keeps.
    pub(crate) fn post(
        &self,
        request: SendRequest<'_>,
        flags: Flags,
        sges: &[Sge],
        pending: Pending,
    ) -> Result<(), Refusal> {
        if let Err(error) = self.send_cq.reserve(1, self.send_queue()) {
            return Err(Refusal::new(error, pending));
        }
        let mut batch = match self.qp.send_batch() {
            Ok(batch) => batch,
            Err(error) => return Err(refusal(error, &self.send_cq, pending)),
        };
        // A task that waits for room does not need the sentence of each refusal.
        #[cfg(feature = "tokio")]
        if matches!(pending.owner, Owner::Task(_)) && batch.room() == 0 {
            drop(batch);
            self.send_cq.release(1);
            return Err(Refusal::new(self.full(1), pending));
        }
        let name = self.queues.sends.put(pending);
        if let Err(error) = batch.push(&request.work(name, flags, sges, send_flags::SIGNALED)) {
            drop(batch);
            let pending = self.queues.sends.take(name).expect("it was put there");
            return Err(refusal(error, &self.send_cq, pending));
        }
        batch.finish();
        Ok(())
    }

    /// The error for a send queue that has no room for this many more requests.
    pub(crate) fn full(&self, wanted: u32) -> PostError {
        let cause = PostCause::NoRoom { wanted, depth: self.qp.caps().max_send_wr };
        PostError { queue: self.send_queue(), cause }
    }

    pub(crate) fn send_queue(&self) -> WorkQueue {
        WorkQueue::Send(self.qp.qpn())
    }

    /// Posts a receive that owns its memory.
    pub(crate) fn receive(&self, id: u64, parts: Parts) -> Result<(), Rejected> {
        let sges = Sges::of(&parts);
        let pending = Pending::new(id, Operation::Receive, parts, Owner::Poller);
        Ok(self.post_receive(sges.as_slice(), pending)?)
    }

    /// Posts a receive on memory that `pending` keeps.
    pub(crate) fn post_receive(&self, sges: &[Sge], pending: Pending) -> Result<(), Refusal> {
        if self.queues.shared {
            let error = Error::refused(
                Errno::EINVAL,
                format!("QP {:#x} takes its receives from an SRQ: post them there", self.qp.qpn()),
            );
            return Err(Refusal::new(error, pending));
        }
        if let Err(error) = self.receive_cq.reserve(1, WorkQueue::Receive(self.qp.qpn())) {
            return Err(Refusal::new(error, pending));
        }
        let name = self.queues.receives.put(pending);
        self.qp.post_recv(&RecvWr { wr_id: name, sges }).map_err(|error| {
            let pending = self.queues.receives.take(name).expect("it was put there");
            refusal(error, &self.receive_cq, pending)
        })
    }

    /// Flushes every request in progress: their completions come with an error and give the buffers
    /// back.
    pub(crate) fn flush(&self) -> Result<()> {
        let end = ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
        Ok(self.qp.modify(&end)?)
    }

    /// Destroys the QP. Returns the requests that were in progress, or `None` if they may still be
    /// in progress.
    fn end(&self) -> Option<Vec<Pending>> {
        for gid in std::mem::take(&mut *self.groups.lock()) {
            let _ = self.qp.detach_mcast(&gid.0, 0);
        }
        if self.queues.shared {
            // The flush brings back the receives taken from the SRQ. Without it their completions
            // would be lost with the QP.
            let _ = self.flush();
            let _ = self.receive_cq.gather();
        }
        // When `destroy` returns, the adapter copies nothing more for this QP, and its completions
        // are out of the CQs.
        let over = self.qp.destroy().is_ok();
        self.pd.ctx.named.lock().remove(&self.cookie);
        self.send_cq.forget(self.qp.qpn());
        self.receive_cq.forget(self.qp.qpn());
        if !over {
            return None;
        }
        let mut pending = self.queues.sends.drain();
        self.send_cq.release(pending.iter().map(|pending| pending.weight).sum());
        if !self.queues.shared {
            let receives = self.queues.receives.drain();
            self.receive_cq.release(receives.len() as u32);
            pending.extend(receives);
        }
        Some(pending)
    }
}

fn refusal(error: PostError, cq: &CqInner, pending: Pending) -> Refusal {
    cq.release(pending.weight);
    Refusal::new(error, pending)
}

impl Drop for QpInner {
    fn drop(&mut self) {
        if self.end().is_none() {
            // The adapter may still use what was posted, so that memory stays for ever.
            let _ = ManuallyDrop::new(Arc::clone(&self.queues));
        }
    }
}

/// Values that both sides of a connection agree on.
pub(crate) struct Agreed {
    pub(crate) mtu: Mtu,
    pub(crate) reads: u8,
}

impl Agreed {
    pub(crate) fn between(own: &Endpoint, peer: &Endpoint) -> Self {
        Self { mtu: own.mtu.min(peer.mtu), reads: own.reads.min(peer.reads) }
    }
}
