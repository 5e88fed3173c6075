//! Lossy lanes: a connection over a lossy lane behaves as over a wire, with timers and with packets
//! of its path MTU.
//!
//! A connection is lossy only if a rule may concern it, at either end ([`super::Losses`]). Timers
//! run from the moment when the rules come, or when the connection gets a peer that rules concern.
//! The packet size can change only between messages, when nothing is under way. Each record states
//! it, and the peer's responder adopts it with the first packet of the next expected message. A
//! lossy connection stays lossy until it is reset, because its peer's state is unknown. Adds to
//! [`Qp`].

use protocol::State;

use crate::cell::Packet;
use crate::lane::LANE_MTU;
use crate::qp::{Inner, Qp, Route};
use crate::special::Special;
use crate::state::{PATIENCE, READ_PIECE, SILENCE};

/// Packets under way on a lossy lane, at most: after a loss, all packets behind it are
/// retransmitted.
const WINDOW: u32 = 64;

impl Qp {
    /// Rules have come, or the connection has a new peer. If rules may concern the connection,
    /// timers start, also for requests under way.
    pub(crate) fn look_for_losses(&self, inner: &mut Inner) {
        // Connections that are not ready to send yet are checked when they are.
        if inner.link.is_lossy() || !matches!(inner.state, State::Rts | State::Sqd) || !self.may_lose(inner) {
            return;
        }
        inner.link.special.set(Special::LOSSY, true);
        let now = self.engine().now();
        inner.requester.set_lossy(now, PATIENCE, SILENCE);
        inner.requester.set_window(WINDOW);
        let deadline = inner.requester.poll_timeout();
        inner.deadline = deadline;
        if let Some(at) = deadline {
            self.look_again(inner, at);
        }
    }

    /// Whether a narrow link, or a rule of this engine or of the engine that owns the peer's QPN,
    /// may make this connection lose packets.
    fn may_lose(&self, inner: &Inner) -> bool {
        if inner.link.on_wire() || !self.service.is_reliable() && self.service != protocol::Service::Uc {
            return false;
        }
        if inner.link.special.has(Special::NARROW) {
            return true;
        }
        let engine = self.engine();
        let peer = inner.attributes.dest_qp_num;
        let (owner, ends) = (engine.board.owner(peer), [self.qpn(), peer]);
        engine.faults.losses.load().concern(&engine.board, owner, ends, inner.link.links.both_ways)
    }

    /// Sets the initial state of a connection over a lane: whether it is lossy, and its MTU.
    pub(crate) fn begin_lossy(&self, inner: &mut Inner) {
        let is_lossy = self.may_lose(inner);
        inner.link.special.set(Special::LOSSY, is_lossy);
        inner.link.lane_mtu = if is_lossy && self.has_mtu_of_its_own() { inner.attributes.path_mtu } else { 0 };
    }

    /// Whether the connection runs timers over its lane, because a rule may concern it.
    #[doc(hidden)]
    #[must_use]
    pub fn expects_losses(&self) -> bool {
        self.lock().link.is_lossy()
    }

    /// Sets the initial window of a lossy connection.
    pub(crate) fn narrow(&self, inner: &mut Inner) {
        if inner.link.is_lossy() {
            inner.requester.set_window(WINDOW);
        }
    }

    /// Changes the packet size to the path MTU as soon as nothing is under way.
    #[cold]
    pub(crate) fn adopt_mtu(&self, inner: &mut Inner) {
        let code = inner.attributes.path_mtu;
        let wants = inner.link.is_lossy() && inner.link.lane_mtu == 0 && self.has_mtu_of_its_own();
        if wants && matches!(inner.link.route, Route::Lane(_)) && inner.requester.is_between_messages() {
            let Some(bytes) = abi::device::mtu_bytes(code) else { return };
            inner.link.lane_mtu = code;
            inner.requester.set_mtu(bytes, (READ_PIECE / bytes).max(1));
        }
    }

    /// A packet over a lane has another MTU than the last one. Returns false if the packet is an
    /// old one and must not be taken.
    #[cold]
    pub(crate) fn follow_mtu(&self, inner: &mut Inner, packet: &Packet) -> bool {
        let (opcode, psn) = (packet.headers.opcode, packet.headers.psn);
        if opcode.is_response() || !self.has_mtu_of_its_own() {
            return true;
        }
        let expected = inner.responder.expected_psn();
        let is_reliable = self.service.is_reliable();
        if opcode.place().begins() && (!is_reliable || psn == expected) {
            inner.link.peer_mtu = packet.path.mtu;
            inner.responder.set_mtu(abi::device::mtu_bytes(packet.path.mtu).unwrap_or(LANE_MTU));
            return true;
        }
        // An old READ cannot be answered again: its response packets would have to be counted with
        // the old size.
        !(is_reliable && opcode.operation == wire::Operation::ReadRequest && psn.is_before(expected))
    }

    /// Another engine may carry out requests to an XRC target, so the size of their packets stays
    /// as it is.
    fn has_mtu_of_its_own(&self) -> bool {
        matches!(self.service, protocol::Service::Rc | protocol::Service::Uc)
    }
}
