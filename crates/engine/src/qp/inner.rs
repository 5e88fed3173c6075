//! The state of a queue pair that its lock guards. Principal type: [`Inner`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::post::Sge;
use abi::qp::{ModifyQp, migration};
use abi::queue::qp as word;
use protocol::{Requester, Responder, Service, State, Time};

use super::{Flow, Lane, Qp, RemoteSrq};
use crate::access::kept::KeptRegion;
use crate::board::DevicePort;
use crate::cell::Partition;
use crate::cq::Cq;
use crate::direct::DirectState;
use crate::kept::KeptBytes;
use crate::lane::Lanes;
use crate::mcast::Missing;
use crate::memory::{Cqe, Ring, View};
use crate::net::flow::Vector;
use crate::net::reply_pattern::ReplyPattern;
use crate::net::scheduler::SendQuantum;
use crate::net::unanswered::Unanswered;
use crate::pace::Pace;
use crate::parent::Token;
use crate::paths::{Passage, RuledLinks, Way};
use crate::progress_mode::Wake;
use crate::rnr_grace::RnrGraceQueue;
use crate::special::Special;
use crate::srq::Srq;
use crate::stream::part::StreamPart;
use crate::traffic::Traffic;

/// The path of outgoing packets.
pub(crate) enum Route {
    /// Not yet looked for.
    Unknown,
    /// The helper thread opens a lane. UD: for the request in this slot.
    Opening(u32),
    Lane(Arc<Lane>),
    Wire(Arc<Flow>),
}

/// A receive request into which a message is being placed.
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) length: u32,
    pub(crate) num_sge: u32,
    /// The entry of the QP's own queue. `None` for an entry of the SRQ, whose elements are in
    /// [`Receiving::shared`].
    pub(crate) index: Option<u32>,
}

/// The state that the lock guards.
pub(crate) struct Inner {
    /// `None` after the QP is destroyed.
    pub(crate) view: Option<View>,
    pub(crate) state: State,
    pub(crate) attributes: ModifyQp,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) queues: Queues,
    pub(crate) incoming: Receiving,
    pub(crate) xrc: XrcPart,
    pub(crate) link: Link,
    pub(crate) ud: UdPart,
    pub(crate) traffic: Traffic,
    pub(crate) wire: WirePart,
    /// Whether the missing path has been reported.
    pub(crate) complained: bool,
    /// The next deadline, if any.
    pub(crate) deadline: Option<Time>,
    /// When the timers will next look at this QP.
    pub(crate) alarm: Option<Time>,
    /// Whether the first message has come (or the QP is in RTS): no further COMM_EST.
    pub(crate) established: bool,
    /// `Some` while the send queue drains; `true` if the program wants an event at the end.
    pub(crate) draining: Option<bool>,
    /// The rate limit, if any.
    pub(crate) pace: Option<Box<Pace>>,
    pub(crate) direct: DirectState,
    /// When to wake a peer that asks to be woken.
    pub(crate) wake: Wake,
}

/// The work queues.
pub(crate) struct Queues {
    pub(crate) sq: Ring,
    pub(crate) sq_tail: u32,
    pub(crate) rq: Ring,
    pub(crate) rq_head: u32,
    pub(crate) rq_tail: u32,
    /// The region that requests send from.
    pub(crate) source: KeptRegion,
    /// On a parent domain: held while the QP exists.
    pub(crate) token: Option<Token>,
}

/// Messages that are being received.
pub(crate) struct Receiving {
    pub(crate) receive: Option<Receive>,
    /// Requests that found no receive request.
    pub(crate) rnr_grace: RnrGraceQueue,
    /// Probes of other hosts that wait for receive requests.
    pub(crate) unanswered: Unanswered,
    /// Receive completions that are not yet in the CQ.
    pub(crate) arrived: Vec<Cqe>,
    /// The scatter list of a request from the SRQ.
    pub(crate) shared: Vec<Sge>,
    /// The region in which messages are placed.
    pub(crate) place: KeptRegion,
}

impl Receiving {
    /// `srq_sges`: the most scatter elements of a request from the SRQ; 0 without one.
    pub(crate) fn new(kept: &Arc<KeptBytes>, srq_sges: u32) -> Self {
        Self {
            receive: None,
            rnr_grace: RnrGraceQueue::new(Arc::clone(kept)),
            unanswered: Unanswered::default(),
            arrived: Vec::new(),
            shared: Vec::with_capacity(srq_sges as usize),
            place: KeptRegion::default(),
        }
    }
}

/// The path to the peer, and what is known about it.
pub(crate) struct Link {
    pub(crate) route: Route,
    /// Connection: the engine of its peer, and the index of its lane among the lanes to that
    /// engine.
    pub(crate) lane_index: Option<(u32, u32)>,
    /// The state of path migration.
    pub(crate) migration: Migration,
    /// The location of the peer's address.
    pub(crate) place: DevicePort,
    /// Whether it is on its lane's blocked list.
    pub(crate) blocked: bool,
    /// Why packets cannot take every path. [`Qp::special`] has the engine's reasons, too.
    pub(crate) special: Special,
    /// The partition of the packets that take the shortest path.
    pub(crate) partition: Partition,
    /// The MTU codes of our packets on a lane and of the peer's packets; 0 is the lane's own MTU.
    pub(crate) lane_mtu: u8,
    pub(crate) peer_mtu: u8,
    /// The longest payload that passes the links on the path, if that is less than the path MTU.
    pub(crate) room: u32,
    /// Connection: whether the switches let no packet pass.
    pub(crate) pathless: bool,
    /// The fault rules about links on the path.
    pub(crate) links: RuledLinks,
    /// iWARP: there is no route, but a TCP connection.
    pub(crate) stream: Option<Box<StreamPart<Receive>>>,
}

impl Link {
    /// Whether the peer is on another host. Decided with the address.
    #[inline]
    pub(crate) fn on_wire(&self) -> bool {
        self.special.has(Special::WIRE)
    }

    /// Whether packets on a lane may be lost, by faults on demand.
    #[inline]
    pub(crate) fn is_lossy(&self) -> bool {
        self.special.has(Special::LOSSY)
    }

    /// Whether a fault rule of this engine may concern the packets.
    #[inline]
    pub(crate) fn is_ruled(&self) -> bool {
        self.special.has(Special::RULED)
    }
}

/// The migration bit that a QP waits for: none, "rearmed", "migrated".
const NOTHING: u8 = 2;
const REARMED: u8 = 0;
const MIGRATED: u8 = 1;

/// The state of path migration of a QP ([`crate::migration`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Migration {
    pub(crate) state: u8,
    /// The migration bit of packets that matter.
    heeds: u8,
    /// PATH_MIG_ERR has been raised.
    pub(crate) told: bool,
}

impl Default for Migration {
    fn default() -> Self {
        Self::new(migration::MIGRATED, false)
    }
}

impl Migration {
    pub(crate) fn new(state: u8, told: bool) -> Self {
        let heeds = match state {
            migration::REARM => REARMED,
            migration::ARMED => MIGRATED,
            _ => NOTHING,
        };
        Self { state, heeds, told }
    }

    /// Whether a packet with this migration bit is to be passed to `Qp::on_migration_bit`.
    #[inline]
    pub(crate) fn heeds(&self, migrated: bool) -> bool {
        self.heeds == u8::from(migrated)
    }

    /// Whether packets may come by an alternate path.
    pub(crate) fn has_spare(&self) -> bool {
        self.state != migration::MIGRATED
    }

    /// The migration bit of this QP's packets.
    pub(crate) fn is_migrated(&self) -> bool {
        self.state == migration::MIGRATED
    }
}

/// State of XRC targets only.
#[derive(Default)]
pub(crate) struct XrcPart {
    /// The CQ of each entry of `arrived`.
    pub(crate) arrived_at: Vec<Arc<Cq>>,
    /// The last named SRQ.
    pub(crate) named: Option<Arc<Srq>>,
    /// Present when it serves another engine's target, or another engine serves it.
    pub(crate) remote_srq: Option<Box<RemoteSrq>>,
}

/// State of UD QPs only.
#[derive(Default)]
pub(crate) struct UdPart {
    /// The request for which no lane could be opened.
    pub(crate) unreachable: Option<u32>,
    /// The members of a group that the current datagram waits for.
    pub(crate) missing: Option<Missing<Lane>>,
    /// A destination address of a received datagram, the epoch of the GID tables, and the port
    /// that has the address in this epoch.
    pub(crate) own_gid: Option<([u8; 16], u32, u8)>,
    /// The location of the last datagram's destination, for one epoch of the GID tables.
    pub(crate) last_place: Option<([u8; 16], u32, DevicePort)>,
    /// What passes on the way of the last datagram, and the version of the answers.
    pub(crate) last_passage: Option<(Way, u32, Arc<Passage>)>,
    /// The flow of the last datagram to another host.
    pub(crate) last_flow: Option<(Vector, Arc<Flow>)>,
}

/// State that is used only on the wire.
#[derive(Default)]
pub(crate) struct WirePart {
    /// The requester's count of losses at the last look.
    pub(crate) losses: u32,
    /// Its unacknowledged bytes towards another host, and whether it waits for the send scheduler.
    pub(crate) quantum: SendQuantum,
    /// What the program does after it has received something from another host.
    pub(crate) reply_pattern: ReplyPattern,
    /// The QP is in the engine's list of delayed acknowledgements.
    pub(crate) is_listed: bool,
}

impl Inner {
    /// The state of a new QP.
    pub(crate) fn new(
        service: Service,
        max_send_wr: u32,
        view: Option<View>,
        queues: Queues,
        incoming: Receiving,
    ) -> Self {
        Self {
            view,
            state: State::Reset,
            attributes: ModifyQp::default(),
            requester: Requester::new(service, max_send_wr),
            responder: Responder::new(service),
            queues,
            incoming,
            xrc: XrcPart::default(),
            link: Link {
                route: Route::Unknown,
                lane_index: None,
                migration: Migration::default(),
                place: DevicePort::default(),
                blocked: false,
                special: Special::default(),
                partition: Partition::default(),
                lane_mtu: 0,
                peer_mtu: 0,
                room: u32::MAX,
                pathless: false,
                links: RuledLinks::default(),
                stream: None,
            },
            ud: UdPart::default(),
            traffic: Traffic::default(),
            wire: WirePart::default(),
            complained: false,
            deadline: None,
            alarm: None,
            established: false,
            draining: None,
            pace: None,
            direct: DirectState::default(),
            wake: Wake::default(),
        }
    }

    /// The path MTU is 2^n bytes.
    #[inline]
    pub(crate) fn mtu_bits(&self) -> u32 {
        7 + u32::from(self.attributes.path_mtu.clamp(1, 5))
    }

    /// The index of this connection's lane among the lanes to the peer's engine. It stays the same
    /// after the first use.
    pub(crate) fn lane_index_to(&mut self, lanes: &Lanes<Qp>, owner: u32) -> u32 {
        match self.link.lane_index {
            Some((known, lane_index)) if known == owner => lane_index,
            _ => {
                let lane_index = lanes.next_lane_index(owner);
                self.link.lane_index = Some((owner, lane_index));
                lane_index
            }
        }
    }

    #[inline]
    pub(crate) fn store(&self, offset: usize, value: u32) {
        if let Some(view) = &self.view {
            view.word(offset).store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
        if !state.serves() {
            self.direct.withdraw();
            self.incoming.rnr_grace.clear();
        }
        if let Some(view) = &self.view {
            // Release: the agent, which reads the word, sees all earlier writes.
            view.word(word::STATE).store(state as u32, Ordering::Release);
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.view.is_none()
    }

    /// Whether the QP serves requests, and no request waits that must be served before the next, and
    /// no READ or atomic waits for its answer.
    #[inline]
    pub(crate) fn awaits_next(&self) -> bool {
        !self.is_dead()
            && self.state.serves()
            && (self.established || self.state != State::Rtr)
            && self.incoming.rnr_grace.is_empty()
            && self.incoming.rnr_grace.out_of_order.is_none()
            && !self.responder.owes_data()
    }

    /// Whether changes of the QP have no effect now, by the agent's word after FREEZE_QP.
    pub(crate) fn is_frozen(&self) -> bool {
        // Acquire pairs with the agent's store: a thread that knows of the freeze sees it here.
        self.view.as_ref().is_some_and(|view| view.word(word::FROZEN).load(Ordering::Acquire) != 0)
    }
}
