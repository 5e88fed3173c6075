//! Queue pairs: construction, control verbs, and the lock of each QP.
//!
//! One lock guards all state of a QP, so threads with separate QPs share no lock. The agent decides
//! which transitions are legal; `state.rs` makes them take effect. Posting is in `send.rs`,
//! received packets in `receive.rs`, the end of a QP in `qp/ending.rs`, the state under the lock in
//! `qp/inner.rs`.

mod ending;
mod inner;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::errno::Errno;
use abi::post::Sge;
use abi::qp::{CreateQp, CreateQpAnswer, DestroyQp, DestroyQpAnswer, QueryQp, QueryQpAnswer, kind as qp_type};
use abi::queue::{QpOut, RECV_WQE_HEADER, qp as word, send_header};
use abi::stream::qp_kind;
use inner::{Queues, Receiving};
use protocol::{Service, State};

use crate::access::kept::KeptRegion;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::error::{Result, by_system, refusal};
use crate::event::{Object, ReadCounts};
use crate::lint::Lint;
use crate::lock::{Mutex, MutexGuard};
use crate::memory::{Layout, Ring, View};
use crate::net::flow::{self};
use crate::parent::{Purpose, Token};
use crate::pd::Pd;
use crate::pollers::CqPair;
use crate::queue_use::QueueUse;
use crate::special::Special;
use crate::srq::Srq;
use crate::why::Why;
use crate::xrc::XrcTarget;
use crate::{lane, remote_srq, request};

pub(crate) use inner::{Inner, Migration, Receive, Route};

/// A lane whose lists hold queue pairs.
pub(crate) type Lane = lane::Lane<Qp>;
/// A flow to a host for which queue pairs wait.
pub(crate) type Flow = flow::Flow<Qp>;
/// What an XRC target keeps for requests at other engines.
pub(crate) type RemoteSrq = remote_srq::RemoteSrq<Qp>;

/// The parameters of `create_qp`.
pub struct QpSpec<'a> {
    /// RC, UC or UD. XRC QPs have calls of their own.
    pub service: Service,
    /// The CQ of its sends.
    pub send_cq: &'a Arc<Cq>,
    /// The CQ of its receives.
    pub recv_cq: &'a Arc<Cq>,
    /// The SRQ from which it takes receive requests, instead of its own queue.
    pub srq: Option<&'a Arc<Srq>>,
    /// The minimum sizes.
    pub caps: Caps,
    /// Whether every send gives a completion.
    pub sq_sig_all: bool,
    /// The QP's events return it.
    pub cookie: u64,
}

/// The sizes of a QP.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// Gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// A receive request.
#[derive(Clone, Copy)]
pub struct RecvWr<'a> {
    /// The completion returns it.
    pub wr_id: u64,
    /// The scatter list.
    pub sges: &'a [Sge],
}

/// A queue pair.
pub struct Qp {
    engine: Arc<Engine>,
    handle: u32,
    qpn: u32,
    cookie: u64,
    pub(crate) service: Service,
    pub(crate) pd: u32,
    /// None for an XRC target.
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// None for an XRC initiator or target.
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    /// XRC target: its part that replaces the CQs and the SRQ.
    pub(crate) target: Option<XrcTarget>,
    pub(crate) caps: Caps,
    pub(crate) sq_sig_all: bool,
    /// The index of its lane among the lanes to an engine, for datagrams and remote-SRQ requests.
    pub(crate) lane_index: u32,
    /// Whether strict mode is on. A copy, so that the data path need not ask the engine.
    strict: bool,
    pub(crate) queue_use: Arc<QueueUse>,
    read: ReadCounts,
    /// Why its requests failed.
    pub(crate) why: Why,
    itself: Weak<Self>,
    /// Held by a thread that changes the QP's state through the agent: one change at a time.
    pub(crate) changing: parking_lot::Mutex<()>,
    inner: Mutex<Inner>,
}

/// The parts of a QP.
pub(crate) struct Parts {
    pub(crate) service: Service,
    pub(crate) pd: u32,
    pub(crate) send_cq: Option<Arc<Cq>>,
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) sq_sig_all: bool,
    pub(crate) cookie: u64,
    pub(crate) target: Option<XrcTarget>,
    /// The PD itself, if it may be a parent domain.
    pub(crate) home: Option<Arc<Pd>>,
}

impl Engine {
    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits, or for objects that do not belong together.
    pub fn create_qp(self: &Arc<Self>, pd: &Arc<Pd>, spec: &QpSpec<'_>) -> Result<Arc<Qp>> {
        let body = CreateQp {
            response: 1,
            user_handle: spec.cookie,
            pd_handle: pd.handle(),
            send_cq_handle: spec.send_cq.handle(),
            recv_cq_handle: spec.recv_cq.handle(),
            srq_handle: spec.srq.map_or(0, |srq| srq.handle()),
            max_send_wr: spec.caps.max_send_wr,
            max_recv_wr: spec.caps.max_recv_wr,
            max_send_sge: spec.caps.max_send_sge,
            max_recv_sge: spec.caps.max_recv_sge,
            max_inline_data: spec.caps.max_inline_data,
            sq_sig_all: u8::from(spec.sq_sig_all),
            qp_type: match spec.service {
                Service::Rc => qp_type::RC,
                Service::Uc => qp_type::UC,
                Service::Ud => qp_type::UD,
                Service::XrcIni | Service::XrcTgt => {
                    return Err(refusal(Errno::EINVAL, "the attributes do not fit an XRC QP"));
                }
            },
            is_srq: u8::from(spec.srq.is_some()),
            reserved: 0,
        };
        let fixed = size_of::<CreateQpAnswer>();
        let ((answer, out), view) = self.allocate(
            &request::legacy(command::CREATE_QP, &body, fixed + size_of::<QpOut>()),
            |answer| {
                let out: QpOut = answer.get(fixed)?;
                Ok(((answer.get::<CreateQpAnswer>(0)?, out), out.mapping))
            },
            |(answer, _)| destroy(answer.qp_handle),
        )?;
        self.adopt_qp(pd, spec, &answer, &out, view)
    }

    pub(crate) fn adopt_qp(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        spec: &QpSpec<'_>,
        answer: &CreateQpAnswer,
        out: &QpOut,
        view: View,
    ) -> Result<Arc<Qp>> {
        self.open_inbox();
        let parts = Parts {
            service: spec.service,
            pd: pd.handle(),
            send_cq: Some(Arc::clone(spec.send_cq)),
            recv_cq: Some(Arc::clone(spec.recv_cq)),
            srq: spec.srq.cloned(),
            sq_sig_all: spec.sq_sig_all,
            cookie: spec.cookie,
            target: None,
            home: Some(Arc::clone(pd)),
        };
        self.make_qp(parts, answer, out, view)
    }

    pub(crate) fn make_qp(
        self: &Arc<Self>,
        parts: Parts,
        answer: &CreateQpAnswer,
        out: &QpOut,
        view: View,
    ) -> Result<Arc<Qp>> {
        self.open_inbox();
        // A send may copy inline data from unregistered memory, so the fault handler must be
        // installed now.
        crate::usermem::install().map_err(by_system)?;
        let unsound = || refusal(Errno::EIO, "the agent described a QP that does not fit its memory");
        let sq = Layout { offset: out.sq_offset, count: out.sq_count, stride: out.sq_stride };
        let rq = Layout { offset: out.rq_offset, count: out.rq_count, stride: out.rq_stride };
        let home = parts.home.as_ref().filter(|pd| pd.is_parent());
        let settled =
            home.map(|pd| Ok((pd.place_queue(&view, sq, Purpose::Qp)?, pd.place_queue(&view, rq, Purpose::Qp)?)));
        let ((sq_view, sq), (rq_view, rq)) =
            match settled.unwrap_or_else(|| Ok(((view.clone(), sq), (view.clone(), rq)))) {
                Ok(settled) => settled,
                Err(error) => {
                    self.give_back_qp(answer.qp_handle);
                    return Err(error);
                }
            };
        let token = home.map(|pd| pd.token());
        let sq = Ring::new(sq_view, sq, send_header(parts.service == Service::Ud)).ok_or_else(unsound)?;
        let rq = Ring::new(rq_view, rq, RECV_WQE_HEADER).ok_or_else(unsound)?;
        let caps = Caps {
            max_send_wr: answer.max_send_wr.min(sq.count()),
            max_recv_wr: answer.max_recv_wr.min(rq.count()),
            max_send_sge: answer.max_send_sge,
            max_recv_sge: answer.max_recv_sge,
            max_inline_data: answer.max_inline_data,
        };
        let qp = self.assemble_with(parts, answer, caps, Some(view), (sq, rq), token);
        if out.kind == qp_kind::STREAM {
            qp.lock().link.stream = Some(Box::default());
        }
        self.queue_uses.insert(qp.qpn, Arc::clone(&qp.queue_use));
        self.qps.insert(qp.qpn, Arc::clone(&qp));
        Ok(qp)
    }

    /// Makes a QP without queues and memory. It is not in the table of QPs.
    pub(crate) fn assemble(self: &Arc<Self>, parts: Parts, answer: &CreateQpAnswer, view: Option<View>) -> Arc<Qp> {
        self.assemble_with(parts, answer, Caps::default(), view, (Ring::empty(), Ring::empty()), None)
    }

    fn assemble_with(
        self: &Arc<Self>,
        parts: Parts,
        answer: &CreateQpAnswer,
        caps: Caps,
        view: Option<View>,
        (sq, rq): (Ring, Ring),
        token: Option<Token>,
    ) -> Arc<Qp> {
        let srq_sges = parts.srq.as_ref().map_or(0, |srq| srq.max_sge());
        let queues = Queues { sq, sq_tail: 0, rq, rq_head: 0, rq_tail: 0, source: KeptRegion::default(), token };
        let incoming = Receiving::new(&self.kept_bytes, srq_sges);
        let inner = Inner::new(parts.service, caps.max_send_wr, view, queues, incoming);
        let queue_use = Arc::new(QueueUse { srq: parts.srq.as_ref().map(|srq| srq.handle()), ..QueueUse::default() });
        let is_connected = matches!(parts.service, Service::Rc | Service::Uc);
        Arc::new_cyclic(|itself| Qp {
            lane_index: if is_connected { 0 } else { self.lanes.next_lane_index(0) },
            engine: Arc::clone(self),
            handle: answer.qp_handle,
            qpn: answer.qpn,
            cookie: parts.cookie,
            service: parts.service,
            pd: parts.pd,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: parts.srq,
            target: parts.target,
            caps,
            sq_sig_all: parts.sq_sig_all,
            strict: self.lint().is_some(),
            queue_use,
            read: ReadCounts::default(),
            why: Why::default(),
            itself: itself.clone(),
            changing: parking_lot::Mutex::new(()),
            inner: Mutex::new(inner),
        })
    }

    /// Destroys a QP at the agent, because its queues got no memory.
    fn give_back_qp(&self, qp_handle: u32) {
        let _order = self.memory.allocation.lock();
        // If the agent is gone, so is the QP.
        let _ = self.tell(&destroy(qp_handle));
    }
}

/// The command that destroys a QP.
pub(crate) fn destroy(qp_handle: u32) -> Vec<u8> {
    let body = DestroyQp { response: 1, qp_handle, reserved: 0 };
    request::legacy(command::DESTROY_QP, &body, size_of::<DestroyQpAnswer>())
}

impl Qp {
    /// The agent's handle of the QP; for an XRC target, one of its handles.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.target.as_ref().and_then(XrcTarget::handle).unwrap_or(self.handle)
    }

    /// The handle from its creation.
    pub(crate) fn own_handle(&self) -> u32 {
        self.handle
    }

    /// The QP number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The sizes that the QP got.
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Its current state (IBV numbering).
    #[must_use]
    pub fn state(&self) -> u32 {
        self.lock().state as u32
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Why packets of this QP cannot take every path.
    #[inline]
    pub(crate) fn special(&self, inner: &Inner) -> Special {
        inner.link.special.and(self.engine.special.get())
    }

    /// The strict mode's checks.
    #[inline]
    pub(crate) fn lint(&self) -> Option<&Lint> {
        if self.strict { self.engine.lint() } else { None }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn raise(&self, event: u32) {
        match &self.target {
            None => self.engine.events.raise(event, self.cookie, Some(self.itself.clone())),
            Some(target) => {
                target.raise(&self.engine.events, event);
                self.announce(event);
            }
        }
    }

    pub(crate) fn arc(&self) -> Option<Arc<Self>> {
        self.itself.upgrade()
    }

    /// A weak reference to the QP, for waiting lists that must not keep it alive.
    pub(crate) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.itself)
    }

    /// The agent's attributes of the QP, with the current state.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn query(&self, mask: u32) -> Result<QueryQpAnswer> {
        let body = QueryQp { response: 1, qp_handle: self.handle(), attr_mask: mask };
        let mut answer: QueryQpAnswer =
            self.engine.call(&request::legacy(command::QUERY_QP, &body, size_of::<QueryQpAnswer>()))?.get(0)?;
        let inner = self.lock();
        // The agent knows the state of a target that another engine serves.
        if !inner.is_dead() || self.target.is_none() {
            // iWARP has one idle state, which all adapters show as INIT.
            let is_idle = inner.link.stream.is_some() && inner.state == State::Reset;
            let state = if is_idle { State::Init } else { inner.state };
            answer.qp_state = state as u8;
            answer.cur_qp_state = state as u8;
        }
        Ok(answer)
    }

    /// The CQs of its packets.
    #[inline]
    pub(crate) fn cqs(&self) -> CqPair {
        let number = |cq: &Option<Arc<Cq>>| cq.as_ref().map(|cq| cq.poller.cq);
        CqPair::new(number(&self.send_cq), number(&self.recv_cq))
    }

    /// Polls for room: the program has posted, and the lane is full.
    pub(crate) fn make_room(&self) {
        if let Some(cq) = &self.send_cq {
            self.engine.poll_posting(&cq.poller);
        }
    }

    /// Whether its completions go to this CQ.
    pub(crate) fn uses(&self, cq: &Arc<Cq>) -> bool {
        self.send_cq.iter().chain(&self.recv_cq).any(|own| Arc::ptr_eq(own, cq))
    }
}

impl Object for Qp {
    fn read(&self) -> &ReadCounts {
        &self.read
    }

    fn count_async(&self) {
        if let Some(view) = &self.lock().view {
            view.word(word::EVENTS_REPORTED).fetch_add(1, Ordering::Relaxed);
        }
    }
}
