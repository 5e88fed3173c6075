//! What every queue pair is made of, connected or not: posting, ending, and the memory that is under way. Principal type: [`QpInner`].

use std::mem::ManuallyDrop;
use std::sync::Arc;

use abi::errno::Errno;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{ModifyQp, attr, state};
use engine::{RecvWr, SendWr};
use parking_lot::Mutex;

use crate::completion::Operation;
use crate::cq::CqInner;
use crate::endpoint::{DatagramEndpoint, Endpoint};
use crate::error::{Error, Rejected, Result};
use crate::gid::Gid;
use crate::message::{Message, Part, Parts};
use crate::pd::PdInner;
use crate::pending::{Held, Pending, Queues};
use crate::remote::RemoteRegion;
use crate::srq::SrqInner;

/// A queue pair of any kind.
pub(crate) struct QpInner {
    pub(crate) qp: Arc<engine::Qp>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) send_cq: Arc<CqInner>,
    pub(crate) receive_cq: Arc<CqInner>,
    /// Kept while the QP may take from it.
    pub(crate) _srq: Option<Arc<SrqInner>>,
    pub(crate) pd: Arc<PdInner>,
    pub(crate) cookie: u64,
    /// Multicast groups that it has joined.
    pub(crate) groups: Mutex<Vec<Gid>>,
}

/// A send request, but for its memory.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    pub(crate) remote: Option<RemoteRegion>,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) to: Option<(&'a engine::Ah, DatagramEndpoint)>,
}

impl Request<'_> {
    pub(crate) fn new(operation: Operation, remote: Option<RemoteRegion>) -> Self {
        Self { operation, remote, compare_add: 0, swap: 0, to: None }
    }

    /// Whether the memory at the peer is as long as what is to be done there.
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

/// What goes along with a send request's memory.
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
}

/// The scatter/gather elements of a request, which mostly is one.
struct Sges {
    one: [Sge; 1],
    many: Vec<Sge>,
    none: bool,
}

impl Sges {
    fn of(parts: &Parts) -> Self {
        let mut sges = Self { one: [Sge::new(0, 0, 0)], many: Vec::new(), none: false };
        match parts.as_slice() {
            [] => sges.none = true,
            [part] => sges.one = [part.sge()],
            parts => sges.many = parts.iter().map(Part::sge).collect(),
        }
        sges
    }

    fn as_slice(&self) -> &[Sge] {
        match self {
            Self { none: true, .. } => &[],
            Self { many, .. } if !many.is_empty() => many,
            _ => &self.one,
        }
    }
}

impl QpInner {
    /// Posts a send request that takes its memory along.
    pub(crate) fn send(&self, id: u64, message: Message, request: Request<'_>) -> Result<(), Rejected> {
        let flags = Flags::of(&message);
        let parts = message.parts;
        if let Err(error) = request.check(parts.total()) {
            return Err(Rejected { error, buffers: parts.into_buffers() });
        }
        let sges = Sges::of(&parts);
        self.post(id, request, flags, sges.as_slice(), Held::Parts(parts))
    }

    /// Posts a send request whose bytes are copied at once.
    pub(crate) fn inline(&self, id: u64, bytes: &[u8], request: Request<'_>, immediate: Option<u32>) -> Result<()> {
        request.check(bytes.len() as u64)?;
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let sge = [Sge::new(bytes.as_ptr().expose_provenance() as u64, length, 0)];
        let flags = Flags { immediate, bits: send_flags::INLINE };
        Ok(self.post(id, request, flags, &sge, Held::Parts(Parts::None))?)
    }

    /// Posts a send request on memory that `held` keeps.
    pub(crate) fn post(
        &self,
        id: u64,
        request: Request<'_>,
        flags: Flags,
        sges: &[Sge],
        held: Held,
    ) -> Result<(), Rejected> {
        if let Err(error) = self.send_cq.reserve() {
            return Err(Rejected { error, buffers: held.into_parts().into_buffers() });
        }
        let name = self.queues.sends.put(Pending { id, operation: request.operation, held });
        let remote = request.remote.unwrap_or(RemoteRegion { addr: 0, rkey: 0, len: 0 });
        let wr = SendWr {
            wr_id: name,
            opcode: request.opcode(flags.immediate.is_some()),
            send_flags: flags.bits,
            imm: flags.immediate.unwrap_or(0).to_be(),
            remote_addr: remote.addr,
            rkey: remote.rkey,
            compare_add: request.compare_add,
            swap: request.swap,
            ud: request.to.map(|(ah, endpoint)| (ah, endpoint.qpn, endpoint.qkey)),
            sges,
        };
        let posted = self.qp.send_batch().and_then(|mut batch| {
            batch.push(&wr)?;
            batch.finish();
            Ok(())
        });
        posted.map_err(|errno| self.rejected(errno, "post_send", &self.send_cq, self.queues.sends.take(name)))
    }

    /// Posts a receive that takes its memory along.
    pub(crate) fn receive(&self, id: u64, parts: Parts) -> Result<(), Rejected> {
        let sges = Sges::of(&parts);
        self.post_receive(id, sges.as_slice(), Held::Parts(parts))
    }

    /// Posts a receive on memory that `held` keeps.
    pub(crate) fn post_receive(&self, id: u64, sges: &[Sge], held: Held) -> Result<(), Rejected> {
        if self.queues.shared {
            let error = Error::refused(
                Errno::EINVAL,
                format!("QP {:#x} takes its receives from an SRQ: post them there", self.qp.qpn()),
            );
            return Err(Rejected { error, buffers: held.into_parts().into_buffers() });
        }
        if let Err(error) = self.receive_cq.reserve() {
            return Err(Rejected { error, buffers: held.into_parts().into_buffers() });
        }
        let name = self.queues.receives.put(Pending { id, operation: Operation::Receive, held });
        self.qp
            .post_recv(&RecvWr { wr_id: name, sges })
            .map_err(|errno| self.rejected(errno, "post_recv", &self.receive_cq, self.queues.receives.take(name)))
    }

    fn rejected(&self, errno: Errno, call: &str, cq: &CqInner, pending: Option<Pending>) -> Rejected {
        cq.release(1);
        let error = Error::explained(errno, &format!("{call} on QP {:#x}: ", self.qp.qpn()));
        let buffers = pending.map_or_else(Vec::new, |pending| pending.held.into_parts().into_buffers());
        Rejected { error, buffers }
    }

    /// Ends every request that is under way: their completions come with an error, and give the buffers back.
    pub(crate) fn flush(&self) -> Result<()> {
        let end = ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
        Ok(self.qp.modify(&end)?)
    }

    /// The QP's end. Answers the requests that were under way; `None` when it is not known that they are over.
    fn end(&self) -> Option<Vec<Pending>> {
        for gid in std::mem::take(&mut *self.groups.lock()) {
            let _ = self.qp.detach_mcast(&gid.0, 0);
        }
        if self.queues.shared {
            // What it has taken from the SRQ is to come back, and what it has completed there would be lost with it.
            let _ = self.flush();
            let _ = self.receive_cq.gather();
        }
        // When it returns nothing is copied for this QP any more, and its completions are out of the CQs.
        let over = self.qp.destroy().is_ok();
        self.pd.ctx.named.lock().remove(&self.cookie);
        self.send_cq.forget(self.qp.qpn());
        self.receive_cq.forget(self.qp.qpn());
        if !over {
            return None;
        }
        let mut pending = self.queues.sends.drain();
        self.send_cq.release(pending.len() as u32);
        if !self.queues.shared {
            let receives = self.queues.receives.drain();
            self.receive_cq.release(receives.len() as u32);
            pending.extend(receives);
        }
        Some(pending)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        if self.end().is_none() {
            // The adapter may still use what was posted: that memory stays for ever.
            let _ = ManuallyDrop::new(Arc::clone(&self.queues));
        }
    }
}

/// What both sides of a connection agree on.
pub(crate) struct Agreed {
    pub(crate) mtu: u32,
    pub(crate) reads: u8,
}

impl Agreed {
    pub(crate) fn between(own: &Endpoint, peer: &Endpoint) -> Self {
        Self { mtu: own.mtu.min(peer.mtu), reads: own.reads.min(peer.reads) }
    }
}
