//! XRC targets that several engines hold. An engine that holds a target but does not serve it has a
//! QP for it that is not in the table of QPNs; it may have to take over the target.
//!
//! The engine that serves a target records its progress in queue memory before it sends anything to
//! a peer. When it releases the target or ends, the agent offers the target and this record to
//! another holder. That holder's QP then gets the number and continues. The record's format is in
//! `abi::target`. Adds to [`Engine`] and [`Qp`].

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use abi::command::number as command;
use abi::qp::{CreateQpAnswer, ModifyQp, attr};
use abi::queue::QpOut;
use abi::target::{
    TARGET_ANSWERS, TARGET_KNOWN, TARGET_LEN, TARGET_STATES, TargetAnswer, TargetState, XrcAdopt, XrcAdoptAnswer,
    XrcEvent, target_word,
};
use protocol::{Carried, KEPT, Kept, Open, Outcome, Responder, Standing, State};
use wire::Psn;

use crate::adopt::part;
use crate::control::Answer;
use crate::engine::Engine;
use crate::error::Result;
use crate::memory::View;
use crate::pace::RateLimit;
use crate::qp::{Inner, Parts, Qp};
use crate::request;
use crate::xrc::XrcTarget;

const _: () = assert!(TARGET_ANSWERS == KEPT);
/// The bit position of the state's place in [`target_word::EXPECTED`].
const PLACE: u32 = 24;

impl Engine {
    /// The QP that stands in for a target which another engine serves.
    pub(crate) fn foreign_target(self: &Arc<Self>, qpn: u32, domain: u32, token: u64) -> Arc<Qp> {
        let known =
            self.targets.find(qpn).filter(|qp| qp.target.as_ref().is_some_and(|target| target.is(domain, token)));
        known.unwrap_or_else(|| {
            let parts = Parts::of_target(XrcTarget::new(domain, token), 0);
            let qp = self.assemble(parts, &CreateQpAnswer { qpn, ..CreateQpAnswer::default() }, None);
            self.targets.insert(qpn, Arc::clone(&qp));
            qp
        })
    }

    /// Adopts a target, given the answer of CREATE_QP and the domain's number and token.
    ///
    /// # Errors
    /// The answer does not describe a target.
    pub fn adopt_made_target(
        self: &Arc<Self>,
        (domain, token): (u32, u64),
        cookie: u64,
        answer: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<()> {
        let (fixed, out): (CreateQpAnswer, QpOut) = (part(answer, 0)?, part(answer, size_of::<CreateQpAnswer>())?);
        let view = self.view(&out.mapping, fds)?;
        self.make_qp(Parts::of_target(XrcTarget::new(domain, token), cookie), &fixed, &out, view).map(drop)
    }

    /// A target that another engine serves was opened.
    pub fn adopt_opened(self: &Arc<Self>, qpn: u32, (domain, token): (u32, u64)) {
        if token != 0 && self.qps.find(qpn).is_none() {
            self.foreign_target(qpn, domain, token);
        }
    }

    /// A target was modified.
    pub fn adopt_modified(&self, qpn: u32, attributes: &ModifyQp) {
        if let Some(qp) = self.qps.find(qpn) {
            qp.adopt_modify(attributes, 0);
        }
    }

    /// Removes all targets except these.
    pub fn adopt_left(&self, targets: &[u32]) {
        for qp in self.qps.all().iter().filter(|qp| qp.target.is_some() && !targets.contains(&qp.qpn())) {
            qp.leave();
        }
    }

    /// The server of a target that this engine holds does not serve it any more.
    pub(crate) fn adopt_target(self: &Arc<Self>, qpn: u32) {
        if let Err(error) = self.try_adopt(qpn) {
            crate::reason!("target QP {qpn:#x} cannot be served by this process: {}", error.reason);
        }
    }

    fn try_adopt(self: &Arc<Self>, qpn: u32) -> Result<()> {
        self.open_inbox();
        // Targets are opened under this lock, too, so an opened target has its QP here.
        let _order = self.memory.allocation.lock();
        let Some(qp) = self.targets.find(qpn) else { return Ok(()) };
        let body = XrcAdopt { qpn, reserved: 0 };
        let request = request::private(command::XRC_ADOPT, &body, size_of::<XrcAdoptAnswer>());
        let read = |answer: &Answer| {
            let told: XrcAdoptAnswer = answer.get(0)?;
            Ok((told, told.out.mapping))
        };
        let (told, view) = self.allocate_in_turn(&request, read, |_| None)?;
        let mut inner = qp.lock();
        qp.begin_serving(&mut inner, &told.attributes, &told.out, view);
        self.qps.insert(qpn, Arc::clone(&qp));
        self.targets.remove(qpn);
        tracing::info!("QP {qpn:#x}, an XRC target, is served by this process now");
        qp.pump(&mut inner);
        Ok(())
    }
}

impl Qp {
    /// The secret of this target's domain; 0 if no other engine can hold the target.
    pub(crate) fn token(&self) -> u64 {
        self.target.as_ref().map_or(0, |target| target.token)
    }

    /// How often this target was connected.
    pub(crate) fn connection(&self, inner: &Inner) -> u32 {
        inner.view.as_ref().map_or(0, |view| view.word(target_word::CONNECTION).load(Ordering::Relaxed))
    }

    /// A target is being connected: counts the connection, so that other engines ignore what they
    /// remember of the earlier ones.
    pub(crate) fn count_connection(&self, inner: &Inner) {
        if self.token() != 0
            && let Some(view) = &inner.view
        {
            view.word(target_word::CONNECTION).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes over a target where its last server left it.
    fn begin_serving(&self, inner: &mut Inner, told: &ModifyQp, _out: &QpOut, view: View) {
        let written = read(&view);
        let connection = view.word(target_word::CONNECTION).load(Ordering::Relaxed);
        inner.view = Some(view);
        inner.state = State::Reset;
        inner.responder = Responder::new(self.service);
        let to = |state: State, mask: u32| ModifyQp { qp_state: state as u8, attr_mask: attr::STATE | mask, ..*told };
        let init = to(State::Init, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS);
        let rtr =
            attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        let rtr = to(State::Rtr, rtr);
        let rts = to(State::Rts, attr::TIMEOUT | attr::SQ_PSN);
        let steps = match State::from_u32(u32::from(told.qp_state)).unwrap_or(State::Err) {
            State::Reset => vec![],
            State::Init => vec![init],
            State::Rtr => vec![init, rtr],
            State::Rts | State::Sqd | State::Sqe => vec![init, rtr, rts],
            State::Err => vec![init, to(State::Err, 0)],
        };
        for step in &steps {
            self.apply_deferred(inner, step, RateLimit::default());
        }
        inner.store(target_word::CONNECTION, connection);
        if let Some(standing) = written.filter(|_| inner.state.serves()) {
            inner.responder.resume(&standing);
            inner.established = true;
        }
    }

    /// The result that this engine reported last to the earlier server of the target, if `psn` is
    /// that request again.
    pub(crate) fn done_before(&self, inner: &mut Inner, psn: Psn) -> Option<(Outcome, Option<protocol::Status>)> {
        let connection = self.connection(inner);
        let done = inner.xrc.remote_srq.as_mut()?.done.take()?;
        ((done.psn, done.connection) == (psn, connection)).then_some((done.reply.outcome, done.reply.status))
    }

    /// Records the progress of a target that others may have to take over.
    pub(crate) fn record_progress(&self, inner: &mut Inner) {
        if self.token() == 0 {
            return;
        }
        let Some(view) = &inner.view else { return };
        let expected = inner.responder.expected_psn();
        let Some(remote) = &mut inner.xrc.remote_srq else {
            // No other engine has executed requests, so the expected PSN and the MSN suffice.
            view.word(target_word::MSN).store(inner.responder.msn(), Ordering::Relaxed);
            view.word(target_word::EXPECTED).store(TARGET_KNOWN | expected.value(), Ordering::Release);
            return;
        };
        let standing = inner.responder.standing();
        let place = match remote.written {
            Some((written, _)) if written == standing => return,
            Some((_, 1)) => 2,
            _ => 1,
        };
        remote.written = Some((standing, place));
        view.write(TARGET_STATES + (place as usize - 1) * size_of::<TargetState>(), &state_of(&standing));
        view.word(target_word::MSN).store(standing.msn, Ordering::Relaxed);
        // Release: an engine that reads the word also finds the state that it names.
        view.word(target_word::EXPECTED).store(TARGET_KNOWN | place << PLACE | expected.value(), Ordering::Release);
    }

    /// Whether another engine would still continue from this QP's record. After this engine ends,
    /// or the number belongs to another engine, the record may be older than this QP, and answers
    /// from this QP would be wrong.
    pub(crate) fn is_served_here(&self) -> bool {
        // Pairs with the fence in `Engine::close`: if this engine ends, either the agent finds what
        // was written before, or the end is seen here. The number goes to another engine only some
        // time after the agent has read the record.
        fence(Ordering::SeqCst);
        let engine = self.engine();
        !engine.is_gone() && engine.board.owner(self.qpn()) == engine.number()
    }

    /// Reports an event of this target to the other holders, through the helper thread and the
    /// agent; the caller may hold locks.
    pub(crate) fn announce(&self, event: u32) {
        if self.token() != 0 {
            self.engine().helper_work.xrc_events.lock().push(XrcEvent { qp_handle: self.handle(), event });
            self.engine().waker.kick();
        }
    }
}

fn state_of(standing: &Standing) -> TargetState {
    let (message, va, rkey, total, done) = match standing.open {
        Open::None => (0, 0, 0, 0, 0),
        Open::Send { done } => (1, 0, 0, 0, done),
        Open::Write { va, rkey, total, done } => (2, va, rkey, total, done),
    };
    let answers = standing.answers.map(|kept| {
        kept.map_or_else(TargetAnswer::default, |kept| {
            let (kind, value) = match kept.what {
                Carried::Read { len } => (0, len.into()),
                Carried::Atomic { value } => (1, value),
                Carried::Written => (2, 0),
                Carried::Flushed => (3, 0),
            };
            TargetAnswer {
                first: kept.first.value(),
                packets: kept.packets,
                va: kept.va,
                rkey: kept.rkey,
                xrc_srq: kept.xrc_srq,
                msn: kept.msn,
                kind,
                value,
                answered: kept.answered.into(),
                reserved: 0,
            }
        })
    });
    let (expected, msn) = (standing.expected.value(), standing.msn);
    TargetState { expected, msn, message, done, total, rkey, va, reserved: 0, answers }
}

/// The record in a target's memory. It is untrusted, because the last server wrote it.
fn read(view: &View) -> Option<Standing> {
    if view.len() < TARGET_LEN {
        return None;
    }
    let word = view.word(target_word::EXPECTED).load(Ordering::Acquire);
    if word & TARGET_KNOWN == 0 {
        return None;
    }
    let expected = Psn::new(word & 0x00ff_ffff);
    let msn = view.word(target_word::MSN).load(Ordering::Relaxed);
    let short = Standing { expected, msn, ..Standing::default() };
    let state: TargetState = match word >> PLACE & 3 {
        place @ 1..=2 => view.read(TARGET_STATES + (place as usize - 1) * size_of::<TargetState>()),
        _ => return Some(short),
    };
    if state.expected != expected.value() {
        return Some(short);
    }
    let open = match state.message {
        1 if state.done <= protocol::MAX_MESSAGE => Open::Send { done: state.done },
        2 if state.done <= state.total && state.total <= protocol::MAX_MESSAGE => {
            Open::Write { va: state.va, rkey: state.rkey, total: state.total, done: state.done }
        }
        _ => Open::None,
    };
    let answers = state.answers.map(|answer| {
        (answer.packets > 0).then(|| Kept {
            first: Psn::new(answer.first & 0x00ff_ffff),
            packets: answer.packets,
            va: answer.va,
            rkey: answer.rkey,
            xrc_srq: answer.xrc_srq,
            msn: answer.msn,
            what: match answer.kind {
                1 => Carried::Atomic { value: answer.value },
                2 => Carried::Written,
                3 => Carried::Flushed,
                _ => Carried::Read { len: answer.value as u32 },
            },
            answered: answer.answered != 0,
        })
    });
    Some(Standing { expected, msn, open, answers })
}

impl Engine {
    /// Reports events of XRC targets to the agent. Waits for the agent, so it runs on the helper
    /// thread.
    pub(crate) fn tell_holders(&self) {
        // Not in the head of the loop, where the lock would be held until the loop ends.
        let xrc_events = std::mem::take(&mut *self.helper_work.xrc_events.lock());
        for event in xrc_events {
            // Without an agent, the other holders cannot be notified.
            let _ = self.tell(&request::private(command::XRC_EVENT, &event, 0));
        }
    }
}
