//! Extended reliable connections (XRC): domains, their shared receive queues, and the two ends of a
//! connection.
//!
//! An initiator is a QP without a receive queue. A target is a QP that only receives. Its messages
//! go to the SRQ that each request names, if the SRQ belongs to the target's domain. Keys are
//! looked up on that SRQ's PD, and receives complete on the SRQ's CQ. Several handles may hold a
//! target; each of them gets its events. Principal types: [`Xrcd`] and [`Hold`].
//!
//! Processes can share a domain that a file names. Requests of a target for an SRQ of another
//! engine go there (`remote_srq/requests.rs`). If another engine serves a target, this engine may
//! have to take it over (`target.rs`).

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::errno::Errno;
use abi::qp::{CreateQp, CreateQpAnswer, DestroyQp, DestroyQpAnswer, kind as qp_type};
use abi::queue::{QpOut, SrqOut};
use abi::srq::CreateSrqAnswer;
use abi::xrc::{CloseXrcd, CreateXsrq, OpenQp, OpenXrcd, OpenXrcdAnswer, XrcdOut};
use parking_lot::Mutex;
use protocol::{Nak, Service, Step};

use crate::cell::Packet;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::error::{Result, refusal};
use crate::event::{Events, Object, ReadCounts};
use crate::memory::View;
use crate::pd::Pd;
use crate::qp::{Caps, Inner, Parts, Qp};
use crate::request;
use crate::srq::{Srq, SrqSpec};

/// A handle of an XRC domain.
pub struct Xrcd {
    engine: Arc<Engine>,
    handle: u32,
    domain: u32,
    /// The domain's secret, which only engines that have opened the domain know; 0 for a private
    /// domain.
    token: u64,
}

/// The parameters of `create_initiator`.
pub struct InitiatorSpec<'a> {
    /// The CQ for its sends.
    pub send_cq: &'a Arc<Cq>,
    /// The minimum sizes; the sizes for receiving are ignored.
    pub caps: Caps,
    /// Every send gives a completion.
    pub sq_sig_all: bool,
    /// Returned with its events.
    pub cookie: u64,
}

/// The additional state of an SRQ in a domain.
pub(crate) struct Membership {
    pub(crate) domain: u32,
    /// The domain's secret.
    pub(crate) token: u64,
    /// The CQ for its receives.
    pub(crate) cq: Arc<Cq>,
    /// Its CQ was overrun, so the SRQ takes no messages any more.
    failed: AtomicBool,
}

/// The additional state of a target QP.
pub(crate) struct XrcTarget {
    domain: u32,
    /// The domain's secret; 0 for a private domain, whose targets no other engine holds.
    pub(crate) token: u64,
    holders: Mutex<Vec<Weak<Hold>>>,
}

/// One handle of a target QP: its creator's, or one from opening it.
pub struct Hold {
    qp: Arc<Qp>,
    handle: u32,
    cookie: u64,
    read: ReadCounts,
}

impl Engine {
    /// Opens a domain: the one that `file` names, or a new private one.
    ///
    /// # Errors
    /// EAGAIN if the file names none and `oflags` has no `O_CREAT`; EINVAL if it names one and
    /// `oflags` has `O_EXCL`.
    pub fn open_xrcd(self: &Arc<Self>, file: Option<BorrowedFd<'_>>, oflags: u32) -> Result<Arc<Xrcd>> {
        let body = OpenXrcd { response: 1, fd: if file.is_some() { 0 } else { -1 }, oflags };
        let fixed = size_of::<OpenXrcdAnswer>();
        let request = request::legacy(command::OPEN_XRCD, &body, fixed + size_of::<XrcdOut>());
        let answer = self.call_with(&request, file.as_slice())?;
        let OpenXrcdAnswer { xrcd_handle } = answer.get(0)?;
        let XrcdOut { number, token, .. } = answer.get(fixed)?;
        Ok(Arc::new(Xrcd { engine: Arc::clone(self), handle: xrcd_handle, domain: number, token }))
    }

    /// Creates a shared receive queue that peers reach through the targets of a domain; its
    /// receives complete on `cq`.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
        spec: &SrqSpec,
    ) -> Result<Arc<Srq>> {
        let body = CreateXsrq {
            response: 1,
            user_handle: spec.cookie,
            srq_type: 1,
            pd_handle: pd.handle(),
            max_wr: spec.max_wr,
            max_sge: spec.max_sge,
            srq_limit: 0,
            max_num_tags: 0,
            xrcd_handle: xrcd.handle,
            cq_handle: cq.handle(),
        };
        let fixed = size_of::<CreateSrqAnswer>();
        let ((answer, out), view) = self.allocate(
            &request::legacy(command::CREATE_XSRQ, &body, fixed + size_of::<SrqOut>()),
            |answer| {
                let out: SrqOut = answer.get(fixed)?;
                Ok(((answer.get::<CreateSrqAnswer>(0)?, out), out.mapping))
            },
            |(answer, _)| crate::srq::destroy(answer.srq_handle),
        )?;
        self.make_member(pd, (&answer, &out, view), (xrcd.domain, xrcd.token), cq, spec.cookie)
    }

    /// Makes an SRQ of a domain from the agent's description.
    pub(crate) fn make_member(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        (answer, out, view): (&CreateSrqAnswer, &SrqOut, View),
        (domain, token): (u32, u64),
        cq: &Arc<Cq>,
        cookie: u64,
    ) -> Result<Arc<Srq>> {
        let member = Membership { domain, token, cq: Arc::clone(cq), failed: AtomicBool::new(false) };
        let srq = self.make_srq(pd, answer, out, view, cookie, Some(member))?;
        self.xrc_srqs.insert(srq.number(), Arc::clone(&srq));
        Ok(srq)
    }

    /// Creates an initiator QP, in RESET.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits.
    pub fn create_initiator(self: &Arc<Self>, pd: &Arc<Pd>, spec: &InitiatorSpec<'_>) -> Result<Arc<Qp>> {
        let parts = Parts::of_initiator(pd, spec);
        let body = CreateQp {
            pd_handle: pd.handle(),
            send_cq_handle: spec.send_cq.handle(),
            max_send_wr: spec.caps.max_send_wr,
            max_send_sge: spec.caps.max_send_sge,
            max_inline_data: spec.caps.max_inline_data,
            sq_sig_all: u8::from(spec.sq_sig_all),
            qp_type: qp_type::XRC_INI,
            ..CreateQp::default()
        };
        self.ask_for_qp(parts, body)
    }

    /// Creates a target QP, in RESET.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limits.
    pub fn create_target(self: &Arc<Self>, xrcd: &Arc<Xrcd>, cookie: u64) -> Result<Arc<Hold>> {
        let parts = Parts::of_target(XrcTarget::new(xrcd.domain, xrcd.token), cookie);
        let body = CreateQp { pd_handle: xrcd.handle, qp_type: qp_type::XRC_TGT, ..CreateQp::default() };
        let qp = self.ask_for_qp(parts, body)?;
        let handle = qp.own_handle();
        Ok(Hold::new(qp, handle, cookie))
    }

    /// Opens an existing target QP of the domain.
    ///
    /// # Errors
    /// EINVAL if the domain has no such target.
    pub fn open_target(self: &Arc<Self>, xrcd: &Arc<Xrcd>, qpn: u32, cookie: u64) -> Result<Arc<Hold>> {
        let body = OpenQp {
            response: 1,
            user_handle: cookie,
            pd_handle: xrcd.handle,
            qpn,
            qp_type: qp_type::XRC_TGT,
            reserved: [0; 7],
        };
        let request = request::legacy(command::OPEN_QP, &body, size_of::<CreateQpAnswer>());
        // Its server may end at once; then this engine must know the QP.
        let _order = self.memory.allocation.lock();
        let answer: CreateQpAnswer = self.call(&request)?.get(0)?;
        let qp = match self.qps.find(qpn) {
            Some(qp) => qp,
            None if xrcd.token != 0 => self.foreign_target(qpn, xrcd.domain, xrcd.token),
            None => return Err(refusal(Errno::EINVAL, format!("target QP {qpn:#x} is being destroyed"))),
        };
        Ok(Hold::new(qp, answer.qp_handle, cookie))
    }

    fn ask_for_qp(self: &Arc<Self>, parts: Parts, body: CreateQp) -> Result<Arc<Qp>> {
        let body = CreateQp { response: 1, user_handle: parts.cookie, ..body };
        let fixed = size_of::<CreateQpAnswer>();
        let ((answer, out), view) = self.allocate(
            &request::legacy(command::CREATE_QP, &body, fixed + size_of::<QpOut>()),
            |answer| {
                let out: QpOut = answer.get(fixed)?;
                Ok(((answer.get::<CreateQpAnswer>(0)?, out), out.mapping))
            },
            |(answer, _)| crate::qp::destroy(answer.qp_handle),
        )?;
        self.make_qp(parts, &answer, &out, view)
    }

    /// A CQ was overrun: the SRQs whose receives complete on it fail (V-54).
    pub(crate) fn fail_xrc_srqs(&self, cq: &Arc<Cq>) {
        for srq in self.xrc_srqs.all() {
            if let Some(member) = srq.xrc.as_ref().filter(|member| Arc::ptr_eq(&member.cq, cq)) {
                member.failed.store(true, Ordering::Relaxed);
                srq.report_failure();
            }
        }
    }
}

impl Xrcd {
    /// The agent's handle of the domain.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Closes the handle; the domain ends with its last handle.
    ///
    /// # Errors
    /// EBUSY while an SRQ or a QP exists that was created or opened with it.
    pub fn close(&self) -> Result<()> {
        self.engine.give_up(&request::legacy(command::CLOSE_XRCD, &CloseXrcd { xrcd_handle: self.handle }, 0))
    }
}

impl Hold {
    fn new(qp: Arc<Qp>, handle: u32, cookie: u64) -> Arc<Self> {
        let hold = Arc::new(Self { qp, handle, cookie, read: ReadCounts::default() });
        if let Some(target) = &hold.qp.target {
            target.holders.lock().push(Arc::downgrade(&hold));
        }
        hold
    }

    /// The QP that is held.
    #[must_use]
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The agent's handle of this hold.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Releases the QP, which is destroyed with its last holder. Returns how many of this handle's
    /// events were read.
    ///
    /// # Errors
    /// EIO if the agent is gone.
    pub fn destroy(&self) -> Result<u32> {
        let engine = self.qp.engine();
        engine.check_process()?;
        engine.take_arrived();
        let _order = engine.memory.allocation.lock();
        let body = DestroyQp { response: 1, qp_handle: self.handle, reserved: 0 };
        let request = request::legacy(command::DESTROY_QP, &body, size_of::<DestroyQpAnswer>());
        // From here on, another engine may serve the QP. The lock makes packets wait until the
        // agent has decided.
        let mut inner = self.qp.lock();
        self.qp.record_progress(&mut inner);
        match engine.call_under_lock(&request) {
            Err(error) if !engine.has_lost(&error) => return Err(error),
            _ => {}
        }
        let is_last = self.qp.target.as_ref().is_some_and(|target| {
            let mut holders = target.holders.lock();
            holders.retain(|hold| hold.strong_count() > 0 && !std::ptr::eq(hold.as_ptr(), self));
            holders.is_empty()
        });
        // A QP that stands in for another engine's target may still be needed for that engine's
        // requests.
        let is_ours = !inner.is_dead();
        if is_last && is_ours {
            engine.forget_qp(self.qp.qpn());
            self.qp.let_go(&mut inner);
        }
        drop(inner);
        if is_last && is_ours {
            self.qp.left();
        }
        engine.events.forget(self);
        Ok(self.read.asynchronous())
    }
}

impl Object for Hold {
    fn read(&self) -> &ReadCounts {
        &self.read
    }

    fn count_async(&self) {
        self.qp.count_async();
    }
}

impl Parts {
    pub(crate) fn of_initiator(pd: &Arc<Pd>, spec: &InitiatorSpec<'_>) -> Self {
        Self {
            service: Service::XrcIni,
            pd: pd.handle(),
            send_cq: Some(Arc::clone(spec.send_cq)),
            recv_cq: None,
            srq: None,
            sq_sig_all: spec.sq_sig_all,
            cookie: spec.cookie,
            target: None,
            home: Some(Arc::clone(pd)),
        }
    }

    pub(crate) fn of_target(target: XrcTarget, cookie: u64) -> Self {
        Self {
            service: Service::XrcTgt,
            pd: 0,
            send_cq: None,
            recv_cq: None,
            srq: None,
            sq_sig_all: false,
            cookie,
            target: Some(target),
            home: None,
        }
    }
}

impl XrcTarget {
    pub(crate) fn new(domain: u32, token: u64) -> Self {
        Self { domain, token, holders: Mutex::default() }
    }

    /// Whether the target belongs to that domain.
    pub(crate) fn is(&self, domain: u32, token: u64) -> bool {
        (self.domain, self.token) == (domain, token)
    }

    /// A handle of the target.
    pub(crate) fn handle(&self) -> Option<u32> {
        self.holders.lock().iter().find_map(|hold| hold.upgrade().map(|hold| hold.handle))
    }

    /// Raises the event for each holder.
    pub(crate) fn raise(&self, events: &Events, event: u32) {
        for hold in self.holders.lock().iter() {
            if let Some(cookie) = hold.upgrade().map(|hold| hold.cookie) {
                events.raise(event, cookie, Some(hold.clone()));
            }
        }
    }
}

impl Qp {
    /// Finds the SRQ that a request names: its PD is for the keys, and its queue for the message.
    /// `Ok(None)`: another engine may have the SRQ.
    #[inline(never)]
    pub(crate) fn enter_domain(
        &self,
        inner: &mut Inner,
        target: &XrcTarget,
        packet: &Packet,
        step: &Step,
    ) -> std::result::Result<Option<u32>, Nak> {
        let number = packet.headers.xrc_srq;
        let found = self.engine().xrc_srqs.find(number);
        if found.is_none() && target.token != 0 {
            return Ok(None);
        }
        let Some((srq, member)) = found
            .as_ref()
            .and_then(|srq| Some((srq, srq.xrc.as_ref()?)))
            .filter(|(_, xrc)| xrc.domain == target.domain)
        else {
            let (opcode, domain) = (packet.headers.opcode, target.domain);
            self.happened(format_args!(
                "refused {opcode}, which names SRQ {number}: it is none of this process in XRC domain {domain}"
            ));
            return Err(Nak::InvalidRd);
        };
        if member.failed.load(Ordering::Relaxed) {
            self.happened(format_args!(
                "refused a message for SRQ {number}, which is in error because its CQ was overrun"
            ));
            return Err(Nak::RemoteOperational);
        }
        if let Step::Receive { first: false, .. } = step
            && inner.xrc.named.as_ref().is_none_or(|named| named.number() != number)
        {
            self.happened(format_args!("refused a message for SRQ {number} whose first packet named another SRQ"));
            return Err(Nak::InvalidRequest);
        }
        let pd = srq.pd();
        inner.xrc.named = Some(Arc::clone(srq));
        Ok(Some(pd))
    }

    /// The PD for the key of a READ that is being answered.
    pub(crate) fn pd_of_answer(&self, xrc_srq: u32) -> u32 {
        match &self.target {
            None => self.pd,
            // 0 is no PD: the SRQ is gone, so the key is invalid.
            Some(_) => self.engine().xrc_srqs.find(xrc_srq).map_or(0, |srq| srq.pd()),
        }
    }
}
