//! Queue pairs: what one is made of, its control verbs, and how it changes state.
//!
//! Everything that a QP's work touches is behind its one lock, so threads with QPs of their own share none. The agent decides which
//! transitions are legal; here they take effect. Posting is in `send.rs`, what arrives in `receive.rs`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::errno::Errno;
use abi::event::kind;
use abi::post::Sge;
use abi::qp::{
    CreateQp, CreateQpAnswer, DestroyQp, DestroyQpAnswer, ModifyQp, QueryQp, QueryQpAnswer, attr, kind as qp_type,
};
use abi::queue::{QP_SQ_DRAINING, QpOut, qp as word};
use protocol::{Access, Requester, RequesterConfig, Responder, ResponderConfig, Service, State, Time};
use wire::{Psn, Qpn};

use crate::board::Place;
use crate::cell::Notice;
use crate::cq::{Cq, Cqe};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::event::Source;
use crate::lane::{LANE_MTU, Lane};
use crate::lock::{Mutex, MutexGuard};
use crate::memory::View;
use crate::pd::Pd;
use crate::request;
use crate::srq::Srq;
use crate::wqe::{Layout, RECV_HEADER, Ring, SEND_HEADER};

/// What `create_qp` is asked for.
pub struct QpSpec<'a> {
    /// RC, UC or UD.
    pub service: Service,
    /// Where its sends complete.
    pub send_cq: &'a Arc<Cq>,
    /// Where its receives complete.
    pub recv_cq: &'a Arc<Cq>,
    /// Where its receive requests come from, instead of a queue of its own.
    pub srq: Option<&'a Arc<Srq>>,
    /// Sizes, at least.
    pub caps: Caps,
    /// Every send gives a completion.
    pub sq_sig_all: bool,
    /// Comes back with its events.
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
    /// Comes back with its completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// How far the program has polled: entries before these may be used again.
#[derive(Default)]
pub(crate) struct Freed {
    pub(crate) send: AtomicU32,
    pub(crate) recv: AtomicU32,
}

/// A queue pair.
pub struct Qp {
    engine: Arc<Engine>,
    handle: u32,
    qpn: u32,
    cookie: u64,
    pub(crate) service: Service,
    pub(crate) pd: u32,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) caps: Caps,
    pub(crate) sq_sig_all: bool,
    pub(crate) freed: Freed,
    itself: Weak<Self>,
    inner: Mutex<Inner>,
}

/// How packets leave.
pub(crate) enum Route {
    /// Not looked for yet.
    Unknown,
    /// The helper thread is opening a lane; UD: for the request in this slot.
    Opening(u32),
    Lane(Arc<Lane>),
}

/// A receive request that a message is being placed into.
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) length: u32,
    pub(crate) num_sge: u32,
    /// The entry of the QP's own queue; `None` for one from the SRQ, whose elements are in [`Inner::shared`].
    pub(crate) index: Option<u32>,
}

/// What the lock guards.
pub(crate) struct Inner {
    /// `None`: destroyed.
    pub(crate) view: Option<View>,
    pub(crate) state: State,
    pub(crate) attributes: ModifyQp,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) sq: Ring,
    pub(crate) sq_tail: u32,
    pub(crate) rq: Ring,
    pub(crate) rq_head: u32,
    pub(crate) rq_tail: u32,
    pub(crate) receive: Option<Receive>,
    /// Receive completions that the program has not been shown yet, with whether they are solicited.
    pub(crate) arrived: Vec<(Cqe, bool)>,
    /// The scatter list of a request from the SRQ.
    pub(crate) shared: Vec<Sge>,
    pub(crate) route: Route,
    /// Where the peer's address is.
    pub(crate) place: Place,
    /// UD: the request for which some lane could not be opened.
    pub(crate) no_way: Option<u32>,
    /// On its lane's blocked list.
    pub(crate) blocked: bool,
    /// Where the last datagram went, for one epoch of the GID tables.
    pub(crate) last_place: Option<([u8; 16], u32, Place)>,
    /// The deadline that the timers know of.
    pub(crate) deadline: Option<Time>,
    /// The first message has come (or the QP is in RTS): no COMM_EST any more.
    pub(crate) established: bool,
    /// Draining, and whether the program wants to hear of its end.
    pub(crate) draining: Option<bool>,
}

impl Inner {
    pub(crate) fn store(&self, offset: usize, value: u32) {
        if let Some(view) = &self.view {
            view.word(offset).store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
        if let Some(view) = &self.view {
            // Release: the agent, which reads the word, finds what was written before.
            view.word(word::STATE).store(state as u32, Ordering::Release);
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.view.is_none()
    }
}

impl Engine {
    /// A queue pair, in RESET.
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
            },
            is_srq: u8::from(spec.srq.is_some()),
            reserved: 0,
        };
        let fixed = size_of::<CreateQpAnswer>();
        let ((answer, out), view) =
            self.allocate(&request::legacy(command::CREATE_QP, &body, fixed + size_of::<QpOut>()), |answer| {
                let out: QpOut = answer.get(fixed)?;
                Ok(((answer.get(0)?, out), out.mapping))
            })?;
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
        let unsound = || Error::refuse(Errno::EIO, "the agent described a QP that does not fit its memory");
        let sq = Layout { offset: out.sq_offset, count: out.sq_count, stride: out.sq_stride };
        let rq = Layout { offset: out.rq_offset, count: out.rq_count, stride: out.rq_stride };
        let sq = Ring::new(view.clone(), sq, SEND_HEADER).ok_or_else(unsound)?;
        let rq = Ring::new(view.clone(), rq, RECV_HEADER).ok_or_else(unsound)?;
        let caps = Caps {
            max_send_wr: answer.max_send_wr.min(sq.count()),
            max_recv_wr: answer.max_recv_wr.min(rq.count()),
            max_send_sge: answer.max_send_sge,
            max_recv_sge: answer.max_recv_sge,
            max_inline_data: answer.max_inline_data,
        };
        let inner = Inner {
            requester: Requester::new(spec.service, caps.max_send_wr),
            responder: Responder::new(spec.service),
            view: Some(view),
            state: State::Reset,
            attributes: ModifyQp::default(),
            sq,
            sq_tail: 0,
            rq,
            rq_head: 0,
            rq_tail: 0,
            receive: None,
            arrived: Vec::new(),
            shared: Vec::with_capacity(spec.srq.map_or(0, |srq| srq.max_sge() as usize)),
            route: Route::Unknown,
            place: Place::default(),
            no_way: None,
            blocked: false,
            last_place: None,
            deadline: None,
            established: false,
            draining: None,
        };
        let qp = Arc::new_cyclic(|itself| Qp {
            engine: Arc::clone(self),
            handle: answer.qp_handle,
            qpn: answer.qpn,
            cookie: spec.cookie,
            service: spec.service,
            pd: pd.handle(),
            send_cq: Arc::clone(spec.send_cq),
            recv_cq: Arc::clone(spec.recv_cq),
            srq: spec.srq.cloned(),
            caps,
            sq_sig_all: spec.sq_sig_all,
            freed: Freed::default(),
            itself: itself.clone(),
            inner: Mutex::new(inner),
        });
        self.qps.insert(qp.qpn, Arc::clone(&qp));
        Ok(qp)
    }
}

impl Qp {
    /// The agent's name for it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Its number, by which peers send to it.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The sizes that it got.
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Its state, as it is now (IBV numbering).
    #[must_use]
    pub fn state(&self) -> u32 {
        self.lock().state as u32
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn raise(&self, event: u32) {
        self.engine.events.raise(event, self.cookie, Source::Qp(self.itself.clone()));
    }

    pub(crate) fn arc(&self) -> Option<Arc<Self>> {
        self.itself.upgrade()
    }

    pub(crate) fn count_async(&self) {
        if let Some(view) = &self.lock().view {
            view.word(word::EVENTS_REPORTED).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Changes state and attributes, as `attributes.attr_mask` says (the handle is filled in here).
    ///
    /// # Errors
    /// EINVAL for a transition, mask or value that the IBA does not allow.
    pub fn modify(&self, attributes: &ModifyQp) -> Result<()> {
        self.engine.check_process()?;
        crate::usermem::prepare_thread();
        let Some(qp) = self.arc() else { return Err(Errno::EINVAL.into()) };
        let mut inner = self.lock();
        if inner.is_dead() {
            return Err(Error::refuse(Errno::EINVAL, format!("QP {:#x} is destroyed", self.qpn)));
        }
        let attributes = ModifyQp { qp_handle: self.handle, ..*attributes };
        self.engine.call(&request::legacy(command::MODIFY_QP, &attributes, 0))?;
        self.apply(&mut inner, &attributes);
        qp.pump(&mut inner);
        Ok(())
    }

    /// Takes over what the agent has allowed, where the caller may wait for the agent.
    fn apply(&self, inner: &mut Inner, new: &ModifyQp) {
        self.take_over(inner, new, true);
    }

    /// The same where the caller is the agent: a lane is opened by the helper thread.
    pub(crate) fn apply_deferred(&self, inner: &mut Inner, new: &ModifyQp) {
        self.take_over(inner, new, false);
    }

    fn take_over(&self, inner: &mut Inner, new: &ModifyQp, may_wait: bool) {
        let mask = new.attr_mask;
        merge(&mut inner.attributes, new);
        let before = inner.state;
        let next =
            if mask & attr::STATE == 0 { before } else { State::from_u32(u32::from(new.qp_state)).unwrap_or(before) };
        match (before, next) {
            (_, State::Reset) => return self.reset(inner),
            (State::Err, State::Err) => return,
            (_, State::Err) => {
                self.say_gone(inner);
                inner.set_state(State::Err);
                inner.requester.flush();
                self.complete_sends(inner);
                self.flush_receives(inner);
                return;
            }
            (State::Init, State::Rtr) => self.ready_to_receive(inner),
            (State::Rtr, State::Rts) => self.ready_to_send(inner),
            (State::Rts, State::Sqd) => {
                inner.requester.drain();
                inner.draining = Some(mask & attr::EN_SQD_ASYNC_NOTIFY != 0 && new.en_sqd_async_notify != 0);
                inner.store(word::FLAGS, QP_SQ_DRAINING);
            }
            (State::Sqd, State::Rts) => {
                inner.requester.resume();
                inner.draining = None;
                inner.store(word::FLAGS, 0);
            }
            (State::Sqe, State::Rts) => drop(inner.requester.recover()),
            _ => {}
        }
        if before == next || before == State::Sqd || before == State::Sqe || next == State::Rts {
            self.adjust(inner, mask);
        }
        if mask & (attr::AV | attr::DEST_QPN) != 0 && next as u32 >= State::Rtr as u32 {
            inner.route = Route::Unknown;
            self.find_route(inner, may_wait);
        }
        inner.set_state(next);
    }

    fn ready_to_receive(&self, inner: &mut Inner) {
        let a = inner.attributes;
        inner.responder.configure(ResponderConfig {
            mtu: self.mtu(a.port_num),
            dest_qp: Qpn::new(a.dest_qp_num),
            pkey: 0xffff,
            rq_psn: Psn::new(a.rq_psn),
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            access: Access(a.qp_access_flags),
            qkey: a.qkey,
        });
    }

    fn ready_to_send(&self, inner: &mut Inner) {
        let a = inner.attributes;
        inner.established = true;
        inner.requester.configure(RequesterConfig {
            mtu: self.mtu(a.port_num),
            src_qp: Qpn::new(self.qpn),
            dest_qp: Qpn::new(a.dest_qp_num),
            pkey: 0xffff,
            sq_psn: Psn::new(a.sq_psn),
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
            lossless: true,
        });
    }

    /// Attributes that may change while the QP works.
    fn adjust(&self, inner: &mut Inner, mask: u32) {
        let a = inner.attributes;
        let has = |bit: u32| mask & bit != 0;
        if has(attr::ACCESS_FLAGS) {
            inner.responder.set_access(Access(a.qp_access_flags));
        }
        if has(attr::MIN_RNR_TIMER) {
            inner.responder.set_min_rnr_timer(a.min_rnr_timer);
        }
        if has(attr::MAX_DEST_RD_ATOMIC) {
            inner.responder.set_max_dest_rd_atomic(a.max_dest_rd_atomic);
        }
        if has(attr::QKEY) {
            inner.responder.set_qkey(a.qkey);
        }
        if has(attr::TIMEOUT) {
            inner.requester.set_timeout(a.timeout);
        }
        if has(attr::RETRY_CNT) {
            inner.requester.set_retry_cnt(a.retry_cnt);
        }
        if has(attr::RNR_RETRY) {
            inner.requester.set_rnr_retry(a.rnr_retry);
        }
        if has(attr::MAX_QP_RD_ATOMIC) {
            inner.requester.set_max_rd_atomic(a.max_rd_atomic);
        }
    }

    /// How much of a message one packet carries. Datagrams obey the port's MTU, lanes or not.
    fn mtu(&self, port: u8) -> u32 {
        if self.service == Service::Ud {
            self.engine.board.mtu(self.engine.device(), u32::from(port))
        } else {
            LANE_MTU
        }
    }

    /// Back to the beginning: requests are dropped without completions, those in the CQs are taken out.
    fn reset(&self, inner: &mut Inner) {
        self.say_gone(inner);
        inner.requester = Requester::new(self.service, self.caps.max_send_wr);
        inner.responder = Responder::new(self.service);
        (inner.sq_tail, inner.rq_head, inner.rq_tail) = (0, 0, 0);
        self.freed.send.store(0, Ordering::Relaxed);
        self.freed.recv.store(0, Ordering::Relaxed);
        inner.receive = None;
        inner.arrived.clear();
        inner.route = Route::Unknown;
        // It may still be on a lane's list; that does it no harm.
        (inner.blocked, inner.no_way) = (false, None);
        inner.attributes = ModifyQp::default();
        (inner.established, inner.draining, inner.deadline) = (false, None, None);
        for offset in
            [word::FLAGS, word::LANE, word::PEER_ENGINE, word::SQ_HEAD, word::SQ_TAIL, word::RQ_HEAD, word::RQ_TAIL]
        {
            inner.store(offset, 0);
        }
        inner.set_state(State::Reset);
        self.send_cq.purge(self.qpn);
        self.recv_cq.purge(self.qpn);
    }

    /// The QP answers no more. What its peer has asked is as good as lost, and on a lane nothing else would tell it.
    fn say_gone(&self, inner: &Inner) {
        if let (Service::Rc, Route::Lane(lane)) = (self.service, &inner.route)
            && !lane.is_dead()
        {
            let (from, to) = (Qpn::new(self.qpn), Qpn::new(inner.attributes.dest_qp_num));
            self.engine.send_notice(lane, Notice { from, to, psn: inner.responder.expected_psn() });
        }
    }

    /// Moves the QP to the error state because of something that is not a completion's own failure.
    pub(crate) fn fail(&self, why: &str) {
        let mut inner = self.lock();
        if inner.is_dead() || matches!(inner.state, State::Reset | State::Err) {
            return;
        }
        tracing::info!("QP {:#x} goes to the error state: {why}", self.qpn);
        self.say_gone(&inner);
        inner.set_state(State::Err);
        inner.requester.flush();
        self.complete_sends(&mut inner);
        self.flush_receives(&mut inner);
        self.show_arrived(&mut inner);
    }

    /// The CQ of this QP was overrun.
    pub(crate) fn overrun(&self) {
        self.fail("its CQ was overrun");
        self.raise(kind::QP_FATAL);
    }

    /// What the agent knows of the QP, with the state as it is.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn query(&self, mask: u32) -> Result<QueryQpAnswer> {
        let body = QueryQp { response: 1, qp_handle: self.handle, attr_mask: mask };
        let mut answer: QueryQpAnswer =
            self.engine.call(&request::legacy(command::QUERY_QP, &body, size_of::<QueryQpAnswer>()))?.get(0)?;
        let inner = self.lock();
        answer.qp_state = inner.state as u8;
        answer.cur_qp_state = inner.state as u8;
        Ok(answer)
    }

    /// Destroys the QP: its requests end without completions. Answers how many of its events were read.
    ///
    /// # Errors
    /// EBUSY while it is in a multicast group.
    pub fn destroy(&self) -> Result<u32> {
        self.engine.check_process()?;
        let _order = self.engine.allocation.lock();
        let body = DestroyQp { response: 1, qp_handle: self.handle, reserved: 0 };
        let answer = self.engine.call(&request::legacy(command::DESTROY_QP, &body, size_of::<DestroyQpAnswer>()));
        let reported = match answer {
            Ok(answer) => answer.get::<DestroyQpAnswer>(0)?.events_reported,
            Err(_) if self.engine.is_gone() => {
                self.lock().view.as_ref().map_or(0, |view| view.word(word::EVENTS_REPORTED).load(Ordering::Relaxed))
            }
            Err(error) => return Err(error),
        };
        self.leave();
        Ok(reported)
    }

    /// Takes the QP out of everything that knows it.
    pub(crate) fn leave(&self) {
        self.engine.qps.remove(self.qpn);
        self.abandon();
        self.send_cq.purge(self.qpn);
        self.recv_cq.purge(self.qpn);
        self.engine.groups.forget(self.qpn);
        self.engine.forget_events(|source| matches!(source, Source::Qp(qp) if std::ptr::eq(qp.as_ptr(), self)));
    }

    /// Lets go of everything: nothing reaches the QP any more.
    pub(crate) fn abandon(&self) {
        let mut inner = self.lock();
        self.say_gone(&inner);
        inner.view = None;
        inner.route = Route::Unknown;
        inner.sq.forget();
        inner.rq.forget();
    }
}

/// Takes over the attributes that the mask names.
fn merge(old: &mut ModifyQp, new: &ModifyQp) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)*) => { $(if new.attr_mask & attr::$bit != 0 { $(old.$field = new.$field;)+ })* };
    }
    take! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: dest;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        ALT_PATH: alt_dest, alt_pkey_index, alt_port_num, alt_timeout;
        MIN_RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state;
        DEST_QPN: dest_qp_num;
    }
}
