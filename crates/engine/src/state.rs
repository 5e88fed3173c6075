//! State changes of a QP: the effect of each transition that the agent has allowed, and how a QP
//! ends.
//!
//! The agent decides which transitions and attributes are legal (`protocol::modify`). Principal
//! method: [`Qp::modify`].

use std::sync::atomic::Ordering;

use abi::command::number as command;
use abi::errno::Errno;
use abi::event::kind;
use abi::qp::{ExModifyQp, ExModifyQpAnswer, ModifyQp, attr};
use abi::queue::{QP_SQ_DRAINING, qp as word};
use protocol::{Access, Requester, RequesterConfig, Responder, ResponderConfig, Service, State};
use wire::{Psn, Qpn};

use crate::board::DevicePort;
use crate::cell::Partition;
use crate::error::{Result, refusal};
use crate::lane::LANE_MTU;
use crate::net::reply_pattern::ReplyPattern;
use crate::net::unanswered::Unanswered;
use crate::pace::RateLimit;
use crate::qp::{Inner, Migration, Qp, Route};
use crate::request;
use crate::special::Special;

/// Bytes of a READ that are requested at once from another host. Nothing else would keep the
/// response within our buffers.
pub(crate) const READ_PIECE: u32 = 32 * 1024;

/// How many of the program's timeouts one try lasts on the wire: the most that the IBA allows,
/// because processes wait for a processor and adapters do not. Losses are found long before that.
pub(crate) const PATIENCE: u8 = 4;
/// Nanoseconds of silence after which the oldest packet goes to another host again, long before the
/// program's timeout.
pub(crate) const SILENCE: u32 = 20_000_000;

/// Words of the control line that a reset sets to 0.
const RESET_WORDS: [usize; 9] = [
    word::FLAGS,
    word::LANE,
    word::PEER_ENGINE,
    word::SQ_HEAD,
    word::SQ_TAIL,
    word::RQ_HEAD,
    word::RQ_TAIL,
    word::OWED,
    word::MIGRATION,
];

/// How the agent allowed a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The agent has answered the command.
    Asked,
    /// The agent is sure to allow it, and its answer is not awaited.
    Told,
    /// The agent itself makes the change.
    Deferred,
}

impl Qp {
    /// Changes the state and the attributes that `attributes.attr_mask` names. The engine fills in
    /// the handle. A QP that the connection manager keeps frozen does not change, and the call
    /// succeeds.
    ///
    /// # Errors
    /// EINVAL for a transition, mask or value that the IBA does not allow.
    pub fn modify(&self, attributes: &ModifyQp) -> Result<()> {
        self.modify_paced(attributes, RateLimit::default())
    }

    /// As [`Qp::modify`], with a rate limit that counts if the mask names it.
    ///
    /// # Errors
    /// As [`Qp::modify`]; EINVAL for a rate beyond the device's.
    pub fn modify_paced(&self, attributes: &ModifyQp, rate: RateLimit) -> Result<()> {
        let changed = self.change(attributes, rate);
        self.finish_endings();
        changed
    }

    fn change(&self, attributes: &ModifyQp, rate: RateLimit) -> Result<()> {
        self.engine().check_process()?;
        crate::usermem::prepare_thread();
        let Some(qp) = self.arc() else { return Err(Errno::EINVAL.into()) };
        if attributes.attr_mask & (attr::MAX_QP_RD_ATOMIC | attr::MAX_DEST_RD_ATOMIC) != 0 {
            // The first call of `facts` asks the agent, which must not happen under the QP's lock.
            self.engine().facts();
        }
        if attributes.attr_mask & attr::STATE != 0 && leaves_every_state(attributes.qp_state) {
            // What the peer has acknowledged so far is complete, and is not flushed. What the peer has
            // sent so far is taken, as by an adapter that handles packets as they arrive.
            self.engine().take_arrived();
        }
        // The QP's own lock is not held while the engine asks the agent: a polling thread may wait
        // for it.
        let _change = self.changing.lock();
        let inner = self.lock();
        self.check_is_here(&inner)?;
        if inner.is_frozen() {
            return Ok(());
        }
        let Some(attr_mask) = self.counting_attributes(&inner, attributes.attr_mask) else { return Ok(()) };
        let attributes = ModifyQp { qp_handle: self.handle(), attr_mask, ..*attributes };
        let request = modify_command(attributes, rate);
        let takes_stream = self.takes_stream(&inner, &attributes);
        let (how, before) = match !takes_stream && self.can_modify_async(&inner, &attributes) {
            true => (How::Told, inner.state),
            false => (How::Asked, inner.state),
        };
        drop(inner);
        match how {
            How::Told => self.engine().tell(&request)?,
            _ => drop(self.engine().call(&request)?),
        }
        if takes_stream {
            self.take_stream()?;
        }
        let mut inner = self.lock();
        self.check_is_here(&inner)?;
        let goes = attr_mask & attr::STATE != 0;
        if inner.state != before && !(goes && leaves_every_state(attributes.qp_state)) {
            // The change took place, and then the QP failed. It stays in the error state.
            return Ok(());
        }
        self.take_over(&mut inner, &attributes, rate, how);
        // An ending program also takes its QPs out of service, so this does not count as progress.
        if !matches!(inner.state, State::Err | State::Reset) {
            crate::reason::went_on();
        }
        if let Some(lint) = self.lint() {
            lint.modified(self, &attributes);
        }
        qp.pump(&mut inner);
        let opens = matches!(inner.link.route, Route::Opening(_)) && self.service != Service::Ud;
        drop(inner);
        if opens {
            qp.open_route();
        }
        Ok(())
    }

    /// Refuses a change of a QP that is destroyed, or that another process serves.
    fn check_is_here(&self, inner: &Inner) -> Result<()> {
        if !inner.is_dead() {
            return Ok(());
        }
        if self.token() != 0 {
            let text = format!("target QP {:#x} is served by another process, which alone can modify it", self.qpn());
            return Err(refusal(Errno::EOPNOTSUPP, text));
        }
        Err(refusal(Errno::EINVAL, format!("QP {:#x} is destroyed", self.qpn())))
    }

    /// Applies a change for the agent. The helper thread opens the lane.
    pub(crate) fn apply_deferred(&self, inner: &mut Inner, new: &ModifyQp, rate: RateLimit) {
        self.take_over(inner, new, rate, How::Deferred);
    }

    fn complete_primary_path(&self, inner: &mut Inner) {
        let mut dest = inner.attributes.dest;
        self.complete_path(inner, &mut dest);
        inner.attributes.dest = dest;
    }

    /// The program moves the QP to the error state.
    fn enter_error(&self, inner: &mut Inner) {
        self.abandon_remote_srq(inner);
        self.say_gone(inner);
        self.send_delayed_ack(inner);
        self.flushes(inner, format_args!("the program moved it there"));
        inner.set_state(State::Err);
        inner.requester.flush();
        self.uncount(inner);
        self.complete_sends(inner);
        self.flush_receives(inner);
    }

    /// The QP has a new peer, or a new path to it.
    fn change_route(&self, inner: &mut Inner, how: How) {
        self.uncount(inner);
        inner.link.route = Route::Unknown;
        if how == How::Deferred {
            self.find_route(inner);
        } else {
            // The caller opens a missing lane, without the QP's lock.
            self.look_for_route(inner);
        }
    }

    /// Applies a change that the agent has allowed, or is sure to allow.
    fn take_over(&self, inner: &mut Inner, new: &ModifyQp, rate: RateLimit, how: How) {
        let mask = new.attr_mask;
        merge(&mut inner.attributes, new);
        if mask & attr::AV != 0 && inner.link.stream.is_none() {
            self.complete_primary_path(inner);
        }
        let before = inner.state;
        let next =
            if mask & attr::STATE == 0 { before } else { State::from_u32(u32::from(new.qp_state)).unwrap_or(before) };
        match (before, next) {
            (_, State::Reset) => {
                self.send_delayed_ack(inner);
                return self.reset(inner);
            }
            (State::Err, State::Err) => return,
            _ if inner.link.stream.is_some() => return self.change_stream(inner, new, next),
            (_, State::Err) => return self.enter_error(inner),
            (State::Init, State::Rtr) => {
                let dgid = &inner.attributes.dest.dgid;
                let on_wire = self.service != Service::Ud && self.engine().board.find(dgid).is_none();
                inner.link.special.set(Special::WIRE, on_wire);
                self.ready_to_receive(inner);
            }
            (State::Rtr, State::Rts) => self.ready_to_send(inner),
            (State::Rts, State::Sqd) => self.drain(inner, new),
            (State::Sqd, State::Rts) => {
                inner.requester.resume();
                inner.draining = None;
                inner.store(word::FLAGS, 0);
            }
            (State::Sqe, State::Rts) => {
                inner.requester.recover();
                self.recovered();
            }
            _ => {}
        }
        if before == next || before == State::Sqd || before == State::Sqe || next == State::Rts {
            self.adjust(inner, mask);
        }
        self.repace(inner, mask, rate);
        if mask & (attr::ALT_PATH | attr::PATH_MIG_STATE) != 0 {
            self.change_paths(inner, new);
        }
        if mask & (attr::AV | attr::DEST_QPN) != 0 && next as u32 >= State::Rtr as u32 {
            self.change_route(inner, how);
        }
        self.look_for_rules(inner);
        match how {
            // The agent moves the state word when it handles the command. It moves the word from
            // its current value, so the word must not change here.
            How::Told => inner.state = next,
            How::Asked | How::Deferred => inner.set_state(next),
        }
    }

    /// The send queue drains: the requests that have begun end.
    pub(crate) fn drain(&self, inner: &mut Inner, new: &ModifyQp) {
        inner.requester.drain();
        let tells = new.attr_mask & attr::EN_SQD_ASYNC_NOTIFY != 0 && new.en_sqd_async_notify != 0;
        inner.draining = Some(tells);
        inner.store(word::FLAGS, QP_SQ_DRAINING);
    }

    fn ready_to_receive(&self, inner: &mut Inner) {
        self.count_connection(inner);
        let a = inner.attributes;
        let pkey = self.table_pkey(&a);
        inner.link.partition = Partition::of(pkey);
        inner.responder.configure(ResponderConfig {
            mtu: self.mtu(inner),
            dest_qp: Qpn::new(a.dest_qp_num),
            pkey,
            rq_psn: Psn::new(a.rq_psn),
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            access: Access(a.qp_access_flags),
            qkey: a.qkey,
            service: self.service,
            migrated: inner.link.migration.is_migrated(),
        });
        if self.service == Service::Rc {
            inner.responder.keep_out_of_order();
        }
    }

    fn ready_to_send(&self, inner: &mut Inner) {
        let a = inner.attributes;
        inner.established = true;
        self.begin_lossy(inner);
        let loses = inner.link.special.has(Special::WIRE.and(Special::LOSSY));
        let mtu = abi::device::mtu_bytes(inner.link.lane_mtu).unwrap_or_else(|| self.mtu(inner));
        inner.requester.configure(RequesterConfig {
            mtu,
            src_qp: Qpn::new(self.qpn()),
            dest_qp: Qpn::new(a.dest_qp_num),
            pkey: self.table_pkey(&a),
            sq_psn: Psn::new(a.sq_psn),
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
            lossless: !loses,
            read_piece: if loses { (READ_PIECE / mtu).max(1) } else { 0 },
            patience: if loses { PATIENCE } else { 1 },
            probe_after: if loses { SILENCE } else { 0 },
            migrated: inner.link.migration.is_migrated(),
            ..RequesterConfig::default()
        });
        inner.store(word::SQ_PSN, inner.requester.sq_psn().value());
        if self.service == Service::Rc {
            inner.requester.keep_out_of_order();
        }
        self.narrow(inner);
    }

    /// Applies attributes that may change while the QP works.
    fn adjust(&self, inner: &mut Inner, mask: u32) {
        let a = inner.attributes;
        let has = |bit: u32| mask & bit != 0;
        if has(attr::ACCESS_FLAGS | attr::MAX_DEST_RD_ATOMIC) {
            inner.direct.withdraw();
        }
        if has(attr::ACCESS_FLAGS) {
            inner.responder.set_access(Access(a.qp_access_flags));
        }
        if has(attr::MIN_RNR_TIMER) {
            inner.responder.set_min_rnr_timer(a.min_rnr_timer);
        }
        if has(attr::MAX_DEST_RD_ATOMIC) {
            inner.responder.set_max_dest_rd_atomic(a.max_dest_rd_atomic);
        }
        if has(attr::PKEY_INDEX) {
            self.follow_partition(inner);
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

    /// Payload bytes per packet. Datagrams obey the port's MTU, also over lanes.
    pub(crate) fn mtu(&self, inner: &Inner) -> u32 {
        let a = &inner.attributes;
        if self.service == Service::Ud {
            self.engine().board.mtu(self.engine().device(), u32::from(a.port_num))
        } else if inner.link.on_wire() {
            abi::device::mtu_bytes(self.wire_mtu(a)).unwrap_or(1024)
        } else {
            LANE_MTU
        }
    }

    /// The path's MTU code. On a port with LIDs it is at most the MTU of the interface, and the
    /// same in the whole subnet.
    fn wire_mtu(&self, a: &ModifyQp) -> u8 {
        let board = &self.engine().board;
        let place = DevicePort { device: self.engine().device(), port: u32::from(a.port_num) };
        match board.gid_wire(place.device, place.port, u32::from(a.dest.sgid_index)) {
            carried @ 1..=5 if board.lid(place) != 0 => a.path_mtu.min(carried as u8),
            _ => a.path_mtu,
        }
    }

    /// Resets the QP: drops its requests without completions, and removes its completions from the
    /// CQs.
    fn reset(&self, inner: &mut Inner) {
        self.abandon_remote_srq(inner);
        if let Some(lint) = self.lint() {
            lint.emptied(self);
        }
        self.say_gone(inner);
        self.drop_stream(inner);
        self.forget_why();
        inner.requester = Requester::new(self.service, self.caps.max_send_wr);
        inner.responder = Responder::new(self.service);
        (inner.queues.sq_tail, inner.queues.rq_head, inner.queues.rq_tail) = (0, 0, 0);
        self.queue_use.freed_send.store(0, Ordering::Relaxed);
        self.queue_use.freed_recv.store(0, Ordering::Relaxed);
        inner.incoming.receive = None;
        inner.incoming.arrived.clear();
        inner.xrc.arrived_at.clear();
        inner.xrc.named = None;
        self.uncount(inner);
        (inner.ud.last_flow, inner.wire.losses, inner.complained) = (None, 0, false);
        (inner.link.lane_mtu, inner.link.peer_mtu) = (0, 0);
        inner.wire.reply_pattern = ReplyPattern::default();
        inner.incoming.unanswered = Unanswered::default();
        inner.link.migration = Migration::default();
        inner.link.route = Route::Unknown;
        // The QP may still be on a lane's list, which does no harm.
        (inner.link.blocked, inner.ud.unreachable, inner.ud.missing) = (false, None, None);
        inner.xrc.remote_srq = None;
        inner.direct.forget();
        inner.attributes = ModifyQp::default();
        (inner.established, inner.draining, inner.deadline, inner.pace) = (false, None, None, None);
        inner.link.special = Special::default();
        for offset in RESET_WORDS {
            inner.store(offset, 0);
        }
        inner.set_state(State::Reset);
        self.purge();
    }

    /// The QP answers no more. The peer's open requests are lost; on a lane only this message tells
    /// the peer.
    pub(crate) fn say_gone(&self, inner: &Inner) {
        // A peer that has sent no request loses nothing. Its packets under way will be refused when
        // they arrive.
        let asked =
            inner.responder.expected_psn() != Psn::new(inner.attributes.rq_psn) || !inner.incoming.rnr_grace.is_empty();
        if self.service.is_reliable() && asked {
            self.tell_peer_of_loss(inner);
        }
    }

    /// Moves the QP to the error state for a reason that no completion of its own explains.
    pub(crate) fn fail(&self, why: &str) {
        let mut inner = self.lock();
        if inner.is_dead() || matches!(inner.state, State::Reset | State::Err) {
            return;
        }
        tracing::info!("QP {:#x} goes to the error state: {why}", self.qpn());
        self.abandon_remote_srq(&mut inner);
        self.say_gone(&inner);
        self.end_stream(&mut inner);
        self.flushes(&inner, format_args!("{why}"));
        inner.set_state(State::Err);
        inner.requester.flush();
        self.complete_sends(&mut inner);
        self.flush_receives(&mut inner);
        self.show_arrived(&mut inner);
    }

    /// Handles an overrun of the QP's CQ.
    pub(crate) fn overrun(&self) {
        self.fail("its CQ was overrun");
        // A QP that is destroyed meanwhile must leave no event behind.
        let inner = self.lock();
        if !inner.is_dead() {
            self.raise(kind::QP_FATAL);
        }
    }
}

/// The command that changes a QP: the extended one only if the mask names the rate limit.
fn modify_command(attributes: ModifyQp, rate: RateLimit) -> Vec<u8> {
    if attributes.attr_mask & attr::RATE_LIMIT == 0 {
        return request::legacy(command::MODIFY_QP, &attributes, 0);
    }
    let body = ExModifyQp { base: attributes, rate_limit: rate.kbps, reserved: 0 };
    abi::command::extended(command::EX_MODIFY_QP, &body, size_of::<ExModifyQpAnswer>(), 0)
}

/// Whether a QP may go to this state from every state, including the error states.
fn leaves_every_state(state: u8) -> bool {
    matches!(State::from_u32(u32::from(state)), Some(State::Reset | State::Err))
}

/// Copies the attributes that the mask names.
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
        DEST_QPN: dest_qp_num;
    }
}
