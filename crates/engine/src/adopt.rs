//! Objects that another process has requested: the agent makes an engine for a client that has none
//! of its own (the proxy engine).
//!
//! Each call takes the answer that the client got, and makes the objects that the client's own
//! engine would have made from it. `forget` destroys the object here without a call to the agent,
//! which has already destroyed its part. Principal method: [`Engine::adopt_pair`].

use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::cq::CreateCqAnswer;
use abi::errno::Errno;
use abi::layout::Record;
use abi::mr::{RegMr, RegMrAnswer};
use abi::qp::{CreateQpAnswer, ModifyQp};
use abi::queue::{CqOut, QpOut, SrqOut};
use abi::srq::CreateSrqAnswer;
use shm::region::Region;

use crate::channel::Channel;
use crate::cq::{Cq, CqSpec};
use crate::engine::Engine;
use crate::error::{Result, by_system, refusal};
use crate::extent::MemoryKind;
use crate::mr::Mr;
use crate::pace::RateLimit;
use crate::pd::Pd;
use crate::qp::{Parts, Qp, QpSpec};
use crate::srq::Srq;
use crate::xrc::InitiatorSpec;

pub(crate) fn part<T: Record>(answer: &[u8], offset: usize) -> Result<T> {
    answer.get(offset..).and_then(T::read).ok_or_else(|| refusal(Errno::EIO, "an answer to adopt is too short"))
}

impl Engine {
    /// A completion channel from its handle and (a copy of) its eventfd.
    pub fn adopt_channel(self: &Arc<Self>, handle: u32, fd: OwnedFd) -> Arc<Channel> {
        Channel::new(Arc::clone(self), handle, fd)
    }

    /// A CQ from the answer to CREATE_CQ.
    ///
    /// # Errors
    /// The answer does not describe a CQ.
    pub fn adopt_cq(self: &Arc<Self>, spec: &CqSpec<'_>, answer: &[u8], fds: Vec<OwnedFd>) -> Result<Arc<Cq>> {
        let fixed: CreateCqAnswer = part(answer, 0)?;
        let out: CqOut = part(answer, size_of::<CreateCqAnswer>())?;
        let view = self.view(&out.mapping, fds)?;
        Cq::new(Arc::clone(self), fixed.cq_handle, &out, view, spec)
    }

    /// An SRQ from the answer to CREATE_SRQ. `member` is for an SRQ of an XRC domain: the domain's
    /// number and token, and the CQ of the SRQ's receives.
    ///
    /// # Errors
    /// The answer does not describe an SRQ.
    pub fn adopt_shared(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        member: Option<((u32, u64), &Arc<Cq>)>,
        cookie: u64,
        answer: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<Srq>> {
        let fixed: CreateSrqAnswer = part(answer, 0)?;
        let out: SrqOut = part(answer, size_of::<CreateSrqAnswer>())?;
        let view = self.view(&out.mapping, fds)?;
        match member {
            None => self.adopt_srq(pd, &fixed, &out, view, cookie),
            Some((domain, cq)) => self.make_member(pd, (&fixed, &out, view), domain, cq, cookie),
        }
    }

    /// A QP from the answer to CREATE_QP.
    ///
    /// # Errors
    /// The answer does not describe a QP.
    pub fn adopt_pair(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        spec: &QpSpec<'_>,
        answer: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<Qp>> {
        let fixed: CreateQpAnswer = part(answer, 0)?;
        let out: QpOut = part(answer, size_of::<CreateQpAnswer>())?;
        let view = self.view(&out.mapping, fds)?;
        self.adopt_qp(pd, spec, &fixed, &out, view)
    }

    /// An XRC initiator from the answer to CREATE_QP.
    ///
    /// # Errors
    /// The answer does not describe an XRC initiator.
    pub fn adopt_initiator(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        spec: &InitiatorSpec<'_>,
        answer: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Arc<Qp>> {
        let (fixed, out): (CreateQpAnswer, QpOut) = (part(answer, 0)?, part(answer, size_of::<CreateQpAnswer>())?);
        let view = self.view(&out.mapping, fds)?;
        self.make_qp(Parts::of_initiator(pd, spec), &fixed, &out, view)
    }

    /// A client's memory region, which begins at `offset` in `region`, from the request and answer
    /// of REG_MR.
    ///
    /// # Errors
    /// EFAULT when `region` is too short.
    pub fn adopt_mr(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        body: &RegMr,
        answer: &RegMrAnswer,
        region: Arc<Region>,
    ) -> Result<Arc<Mr>> {
        let place = usize::try_from(body.length).ok().and_then(|len| region.pointer(0, len));
        let host = place
            .ok_or_else(|| refusal(Errno::EFAULT, "the memory of the region is shorter than what is registered"))?;
        crate::usermem::install().map_err(by_system)?;
        Ok(Mr::adopt(pd, answer, host.as_ptr().expose_provenance() as u64, body, MemoryKind::Program, Some(region)))
    }
}

impl Qp {
    /// Applies a MODIFY_QP that the agent has allowed. `kbps` applies only if the mask includes the
    /// rate.
    pub fn adopt_modify(self: &Arc<Self>, attributes: &ModifyQp, kbps: u32) {
        let mut inner = self.lock();
        if !inner.is_dead() {
            self.apply_deferred(&mut inner, attributes, RateLimit { kbps, burst: 0 });
            self.pump(&mut inner);
        }
    }

    /// The agent has destroyed the QP.
    pub fn forget(&self) {
        self.leave();
    }
}

impl Mr {
    /// The agent has ended the registration. Waits for copies under way.
    pub fn forget(&self) {
        self.withdraw();
    }
}

impl Cq {
    /// The agent has destroyed the CQ.
    pub fn forget(&self) {
        self.leave();
    }
}

impl Srq {
    /// The agent has destroyed the SRQ.
    pub fn forget(&self) {
        self.leave();
    }
}
