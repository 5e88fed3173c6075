//! QP changes that the agent is sure to allow: the engine sends them without waiting for the
//! answer.
//!
//! The agent decides which changes are legal, also in these cases. For the steps to RTS and to the
//! error state, the engine knows everything that the agent checks: the transition table, the
//! device's limits, and the board with ports and GIDs. All unusual changes wait for the agent's
//! answer. If an address is removed at that time, the agent refuses the change. The QP then has no
//! route, as if the address had been removed after the change. Principal method:
//! [`Qp::can_modify_async`].

use abi::ah::{SL_MAX, can_meet, rate_mbps};
use abi::mr::access;
use abi::qp::{ModifyQp, attr};
use protocol::State;
use protocol::modify::{Attributes, check};

use crate::qp::{Inner, Qp};

/// The attributes that each step may carry here.
const INIT: u32 = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS | attr::QKEY;
const RTR: u32 = attr::STATE
    | attr::AV
    | attr::PATH_MTU
    | attr::DEST_QPN
    | attr::RQ_PSN
    | attr::MAX_DEST_RD_ATOMIC
    | attr::MIN_RNR_TIMER
    | attr::ACCESS_FLAGS
    | attr::PKEY_INDEX;
const RTS: u32 = attr::STATE
    | attr::SQ_PSN
    | attr::TIMEOUT
    | attr::RETRY_CNT
    | attr::RNR_RETRY
    | attr::MAX_QP_RD_ATOMIC
    | attr::MIN_RNR_TIMER
    | attr::ACCESS_FLAGS;
const RIGHTS: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | access::FLUSH_GLOBAL;

impl Qp {
    /// Whether the agent is sure to allow a change.
    pub(crate) fn can_modify_async(&self, inner: &Inner, new: &ModifyQp) -> bool {
        let mask = new.attr_mask;
        let Some(next) = State::from_u32(u32::from(new.qp_state)).filter(|_| mask & attr::STATE != 0) else {
            return false;
        };
        let judged = match (inner.state, next) {
            (_, State::Err) => attr::STATE,
            (State::Reset, State::Init) => INIT,
            (State::Init, State::Rtr) => RTR,
            (State::Rtr, State::Rts) => RTS,
            _ => return false,
        };
        mask & !judged == 0
            && check(self.service, inner.state, next, Attributes(mask)).is_ok()
            && self.values_are_good(inner, new)
    }

    /// Whether the values are valid for the device and its port.
    fn values_are_good(&self, inner: &Inner, new: &ModifyQp) -> bool {
        let given = |bit: u32| new.attr_mask & bit != 0;
        let (engine, device) = (self.engine(), self.engine().device());
        let port = u32::from(if given(attr::PORT) { new.port_num } else { inner.attributes.port_num });
        let depths = given(attr::MAX_QP_RD_ATOMIC | attr::MAX_DEST_RD_ATOMIC);
        let deep_enough = || {
            engine.depths().is_some_and(|(initiator, responder)| {
                (!given(attr::MAX_QP_RD_ATOMIC) || u32::from(new.max_rd_atomic) <= initiator)
                    && (!given(attr::MAX_DEST_RD_ATOMIC) || u32::from(new.max_dest_rd_atomic) <= responder)
            })
        };
        let leads = || {
            let index = u32::from(new.dest.sgid_index);
            u32::from(new.dest.port_num) == port
                && new.dest.is_global != 0
                && new.dest.sl <= SL_MAX
                && new.dest.src_path_bits == 0
                && rate_mbps(new.dest.static_rate).is_some()
                && engine
                    .board
                    .gid(device, port, index)
                    .is_some_and(|gid| gid != [0; 16] && can_meet(&gid, &new.dest.dgid))
        };
        (!given(attr::PORT | attr::PATH_MTU | attr::AV) || engine.board.is_up(device, port))
            && (!given(attr::PKEY_INDEX) || engine.board.pkey(device, port, new.pkey_index.into()).is_some())
            && (!given(attr::ACCESS_FLAGS) || new.qp_access_flags & !RIGHTS == 0)
            && (!given(attr::TIMEOUT) || new.timeout <= 31)
            && (!given(attr::RETRY_CNT) || new.retry_cnt <= 7)
            && (!given(attr::RNR_RETRY) || new.rnr_retry <= 7)
            && (!given(attr::MIN_RNR_TIMER) || new.min_rnr_timer <= 31)
            && (!given(attr::PATH_MTU) || abi::device::mtu_bytes(new.path_mtu).is_some())
            && (!given(attr::AV) || leads())
            && (!depths || deep_enough())
    }
}
