//! Lanes that lose packets: a connection over one behaves as over a wire, with timers and packets as long as its path MTU.
//!
//! Only connections that a rule may concern, at either end, are lossy ([`super::Losses`]). Timers run from the moment at which rules come,
//! or the connection gets a peer that rules touch. How long packets are can only change between messages, when nothing is under way; each
//! record says it, and the peer's responder follows with the first packet of a message that it awaits. A connection that has come to reckon
//! with losses does so until it is reset, for what its peer knows nobody can be sure of. Adds to [`Qp`].

use protocol::State;

use crate::cell::Packet;
use crate::lane::LANE_MTU;
use crate::qp::{Inner, Qp, Route};
use crate::state::{PATIENCE, READ_PIECE, SILENCE};

/// Packets under way at a time on a lane that loses some: each loss has all behind it sent again.
const WINDOW: u32 = 64;

impl Qp {
    /// Rules have come, or the connection has a new peer. If rules may concern it the timers run, for what is under way too.
    pub(crate) fn look_for_losses(&self, inner: &mut Inner) {
        // Those that are not connected yet look when they are.
        if inner.lossy || !matches!(inner.state, State::Rts | State::Sqd) || !self.may_lose(inner) {
            return;
        }
        inner.lossy = true;
        let now = self.engine().now();
        inner.requester.doubt(now, PATIENCE, SILENCE);
        inner.requester.set_window(WINDOW);
        let deadline = inner.requester.poll_timeout();
        inner.deadline = deadline;
        if let Some(at) = deadline {
            self.look_again(inner, at);
        }
    }

    /// Whether a rule may have this connection lose packets: one of this engine, or one of the engine that has the peer's number.
    fn may_lose(&self, inner: &Inner) -> bool {
        if inner.on_wire || !self.service.is_reliable() && self.service != protocol::Service::Uc {
            return false;
        }
        let engine = self.engine();
        let peer = inner.attributes.dest_qp_num;
        engine.faults.losses.load().concern(engine, engine.board.owner(peer), [self.qpn(), peer])
    }

    /// What a connection over a lossy lane begins with.
    pub(crate) fn begin_lossy(&self, inner: &mut Inner) {
        inner.lossy = self.may_lose(inner);
        inner.lane_mtu = if inner.lossy && self.has_mtu_of_its_own() { inner.attributes.path_mtu } else { 0 };
    }

    /// Whether the connection runs timers over its lane, because a rule may concern it.
    #[doc(hidden)]
    #[must_use]
    pub fn expects_losses(&self) -> bool {
        self.lock().lossy
    }

    /// The same, of its window.
    pub(crate) fn narrow(&self, inner: &mut Inner) {
        if inner.lossy {
            inner.requester.set_window(WINDOW);
        }
    }

    /// Packets become as long as the path MTU says, as soon as nothing is under way.
    #[cold]
    pub(crate) fn adopt_mtu(&self, inner: &mut Inner) {
        let code = inner.attributes.path_mtu;
        let wants = inner.lossy && inner.lane_mtu == 0 && self.has_mtu_of_its_own();
        if wants && matches!(inner.route, Route::Lane(_)) && inner.requester.is_between_messages() {
            let Some(bytes) = abi::device::mtu_bytes(code) else { return };
            inner.lane_mtu = code;
            inner.requester.set_mtu(bytes, (READ_PIECE / bytes).max(1));
        }
    }

    /// A packet over a lane is of another MTU than the last. False: it is of before, and must not be taken.
    #[cold]
    pub(crate) fn follow_mtu(&self, inner: &mut Inner, packet: &Packet) -> bool {
        let (opcode, psn) = (packet.headers.opcode, packet.headers.psn);
        if opcode.is_response() || !self.has_mtu_of_its_own() {
            return true;
        }
        let expected = inner.responder.expected_psn();
        let is_reliable = self.service.is_reliable();
        if opcode.place().begins() && (!is_reliable || psn == expected) {
            inner.peer_mtu = packet.path.mtu;
            inner.responder.set_mtu(abi::device::mtu_bytes(packet.path.mtu).unwrap_or(LANE_MTU));
            return true;
        }
        // To answer a READ once more its packets would have to be counted as they were.
        !(is_reliable && opcode.operation == wire::Operation::ReadRequest && psn.is_before(expected))
    }

    /// Requests to an XRC target may be carried out elsewhere: their packets stay as they are.
    fn has_mtu_of_its_own(&self) -> bool {
        matches!(self.service, protocol::Service::Rc | protocol::Service::Uc)
    }
}
