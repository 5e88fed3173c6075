//! Requests of the manager to agents: a limited number is outstanding, and those without an answer
//! are sent again. Not what the answers mean. Principal types: [`Asker`], [`SmpRequest`], [`What`].

use crate::address::{Address, Transmit};
use crate::config::Timing;
use crate::inventory::PortId;
use mad::transactions::{Due, MOST, Transactions};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wire::layout::Layout;
use wire::mad::{BASE_VERSION, CLASS_SUBN_DIRECTED, Header, METHOD_GET, METHOD_SET, Mad};
use wire::smp::{CLASS_VERSION, MAX_HOPS, PERMISSIVE_LID, Smp};

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// NodeInfo: of the neighbour of a port, or of the manager's own node.
    Node(Option<PortId>),
    /// NodeDescription.
    Description(u64),
    /// SwitchInfo.
    Switch(u64),
    /// PortInfo.
    Port(PortId),
    /// A block of the P_Key table.
    PKeys(PortId, u16),
    /// A block of the GUID table.
    Guids(PortId, u8),
    /// SMInfo.
    Manager(PortId),
    /// SL to VL, of an ingress port.
    SlToVl(PortId, u8),
    /// A block of an arbitration table.
    Arbitration(PortId, u8),
    /// A block of the linear table.
    Linear(u64, u16),
    /// A block of the multicast table, and a position.
    Multicast(u64, u16, u8),
    /// SwitchInfo, in a light sweep.
    Check(u64),
    /// SMInfo of the master, while on standby.
    Poll,
    /// SMInfo: the manager at this port shall be the master.
    Handover(PortId),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, node, port) = match *self {
            What::Node(None) => return f.write_str("NodeInfo of the own node"),
            What::Poll => return f.write_str("SMInfo of the master"),
            What::Node(Some(at)) => {
                return write!(f, "NodeInfo of the neighbour of node {:#x} port {}", at.node, at.port);
            }
            What::Description(node) => ("NodeDescription", node, None),
            What::Switch(node) | What::Check(node) => ("SwitchInfo", node, None),
            What::Linear(node, _) => ("LinearForwardingTable", node, None),
            What::Multicast(node, ..) => ("MulticastForwardingTable", node, None),
            What::Port(at) => ("PortInfo", at.node, Some(at.port)),
            What::PKeys(at, _) => ("P_KeyTable", at.node, Some(at.port)),
            What::Guids(at, _) => ("GUIDInfo", at.node, Some(at.port)),
            What::Manager(at) => ("SMInfo", at.node, Some(at.port)),
            What::Handover(at) => ("SMInfo (handover)", at.node, Some(at.port)),
            What::SlToVl(at, _) => ("SLtoVLMappingTable", at.node, Some(at.port)),
            What::Arbitration(at, _) => ("VLArbitrationTable", at.node, Some(at.port)),
        };
        write!(f, "{name} of node {node:#x}")?;
        port.map_or(Ok(()), |port| write!(f, " port {port}"))
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct SmpRequest {
    pub(super) what: What,
    pub(super) is_set: bool,
    attribute: u16,
    modifier: u32,
    route: Box<[u8]>,
    data: [u8; 64],
}

impl SmpRequest {
    /// A Get of an attribute.
    pub(super) fn get(what: What, attribute: u16, modifier: u32, route: &[u8]) -> SmpRequest {
        SmpRequest { what, is_set: false, attribute, modifier, route: route.into(), data: [0; 64] }
    }

    /// A Set of an attribute.
    pub(super) fn set<T: Layout>(what: What, (attribute, modifier): (u16, u32), route: &[u8], value: T) -> SmpRequest {
        let mut data = [0; 64];
        value.write(&mut data);
        SmpRequest { what, is_set: true, attribute, modifier, route: route.into(), data }
    }

    /// Whether it sets something new. A Set of SwitchInfo alone takes notice of a change.
    pub(super) const fn is_change(&self) -> bool {
        self.is_set && !matches!(self.what, What::Switch(_))
    }

    fn to_smp(&self, transaction: u64, mkey: u64) -> Smp {
        let mut smp = Smp {
            base_version: BASE_VERSION,
            class: CLASS_SUBN_DIRECTED,
            class_version: CLASS_VERSION,
            method: if self.is_set { METHOD_SET } else { METHOD_GET },
            attribute: self.attribute,
            modifier: self.modifier,
            transaction,
            mkey,
            dr_slid: PERMISSIVE_LID,
            dr_dlid: PERMISSIVE_LID,
            data: self.data,
            ..Smp::default()
        };
        let hops = self.route.len().min(MAX_HOPS.into());
        smp.hop_count = hops as u8;
        smp.initial_path[1..=hops].copy_from_slice(&self.route[..hops]);
        smp
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Sent {
    request: SmpRequest,
    mad: Mad,
}

/// The requests that wait to be sent, and those that wait for an answer.
#[derive(Debug)]
pub(super) struct Asker {
    queue: VecDeque<SmpRequest>,
    waiting: Transactions<Arc<Sent>>,
    next: u64,
    /// Datagrams that were sent, with repetitions.
    pub(super) sent: u64,
}

impl Asker {
    /// `first` is the first transaction id.
    pub(super) fn new(first: u64) -> Asker {
        Asker { queue: VecDeque::new(), waiting: Transactions::default(), next: first, sent: 0 }
    }

    pub(super) fn push(&mut self, request: SmpRequest) {
        self.queue.push_back(request);
    }

    /// Forgets all requests. Late answers are ignored, as their transactions have ended.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.waiting = Transactions::default();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.waiting.is_empty()
    }

    /// Requests that were not sent yet.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Sends what may be outstanding.
    pub(super) fn pump(&mut self, timing: &Timing, mkey: u64, now: Duration, out: &mut VecDeque<Transmit>) {
        while self.waiting.len() < timing.outstanding.clamp(1, MOST) {
            let Some(request) = self.queue.pop_front() else { break };
            self.next = self.next.wrapping_add(1);
            let mad = request.to_smp(self.next, mkey).to_mad();
            let sent = Arc::new(Sent { request, mad });
            // The id is new and there is room; if not, the request counts as lost.
            if self.waiting.begin(Header::of(&mad), sent, timing.timeout, timing.retries, now).is_ok() {
                self.sent += 1;
                out.push_back(Transmit { to: Address::Directed, mad });
            }
        }
    }

    /// Ends the request that a datagram answers.
    pub(super) fn answer(&mut self, header: &Header) -> Option<SmpRequest> {
        let sent = self.waiting.answer(header)?;
        Some(Arc::try_unwrap(sent).map_or_else(|sent| sent.request.clone(), |sent| sent.request))
    }

    /// Whether a request has waited for its answer for too long.
    pub(super) fn is_late(&self, now: Duration) -> bool {
        self.waiting.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Sends due requests again; with `give_up`, drops them instead. Returns one request whose
    /// retries are exhausted or that was dropped. The caller repeats this until it returns `None`.
    pub(super) fn expire(&mut self, now: Duration, give_up: bool, out: &mut VecDeque<Transmit>) -> Option<SmpRequest> {
        loop {
            match self.waiting.poll(now)? {
                Due::Again(sent) if give_up => {
                    let header = Header::of(&sent.mad);
                    self.waiting.cancel(header.transaction, header.class);
                    return Some(sent.request.clone());
                }
                Due::Again(sent) => {
                    self.sent += 1;
                    out.push_back(Transmit { to: Address::Directed, mad: sent.mad });
                }
                Due::Unanswered(sent) => return Some(sent.request.clone()),
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.waiting.deadline()
    }
}
