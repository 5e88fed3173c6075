//! A fabric with the agents of its nodes, in which a subnet manager can work: what management sets
//! is applied to the model, and what happens in the model is shown to management. Like
//! [`crate::fabric`], it has no clock, thread or socket. Time is an argument.
//!
//! ```text
//!   send(end, datagram)      inject(end, packet)            advance(until) → outputs
//!          │                        │                                ▲
//!          └────────► the fabric: links, switches, tables ───────────┤ for attached end ports
//!                       │ datagrams            ▲ answers, settings   │
//!                       ▼                      │                     │
//!                     agents: SMI, SMA, PMA, traps ──────────────────┘
//! ```
//!
//! # Who answers
//!
//! Each node has its agents here: SMA, PMA and the SMI, which moves directed-route datagrams hop by
//! hop. Switches, routers and adapters answer by themselves. An owner may *attach* to an end port:
//! a port of an adapter or a router, or port 0 of a switch. The agents still serve an attached
//! port. What they do not serve comes out for the owner's clients.
//!
//! | datagram | attached port | other port |
//! |---|---|---|
//! | Get, Set of subnet management, but SMInfo | SMA | SMA |
//! | SMInfo | owner | status 0x0c |
//! | other methods of subnet management, not a response | owner | status 0x08, or dropped if a trap |
//! | TrapRepress of a trap of this port | SMA | SMA |
//! | TrapRepress of another trap | owner | dropped |
//! | request of performance management | PMA | PMA |
//! | Get, Set of another class of QP 1 | owner | status 0x0c |
//! | responses, and other methods of QP 1 | owner | dropped |
//! | other packets | owner | dropped |
//!
//! An owner with a datagram that no client serves calls [`Managed::refuse`], which answers as Linux
//! does. So a Get of SMInfo at a port without a manager gets status 0x0c everywhere.
//!
//! # What a Set changes
//!
//! Each attribute is applied when its answer has left. A Set that takes a link down waits for
//! [`LINK_DELAY`], so that the answer can still leave by this link. Enabled widths and speeds take
//! effect when the link trains the next time, as with real ports. The physical state SLEEP is
//! POLLING here.
//!
//! Where to read first: this file, then `agents`, `apply` and `mirror` in its folder. Principal
//! type: [`Managed`].

mod agents;
mod apply;
mod build;
mod counting;
pub mod datagram;
mod guids;
mod mirror;
mod operator;
pub mod routed_groups;
mod routers;
mod subnets;
mod timers;
mod tunnels;

pub use build::{ADAPTER_CAPABILITIES, ADAPTER_GUIDS};
pub use datagram::Datagram;
pub use guids::Unbuildable;
pub use timers::LINK_DELAY;

use crate::counters::{Cause, Counters};
use crate::fabric::{Delivery, End, Fabric, Kind, NodeId};
use crate::frame::Frame;
use crate::rate::Time;
use crate::state::Logical;
use crate::tunnel::passed::Passed;
use crate::tunnel::reach::Reached;
use mad::key::Key;
use mad::node::Node;
use mad::sma::NodeEvent;
use mad::smi::{self, Step};
use mad::topology::Topology;
use mad::traps::Traps;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use subnets::Subnets;
use timers::Timer;
use tunnels::Tunnels;
use wire::mad::CLASS_SUBN_DIRECTED;
use wire::smp::{PERMISSIVE_LID, Smp};

/// Something for the owner of an attached end port, or for another agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A management datagram that the agents do not serve.
    Datagram(Box<Delivered>),
    /// Another packet. Its end is the end port.
    Packet(Delivery),
    /// A packet that the port has sent, or that has come to it, as it is on the link: for captures
    /// ([`Managed::show_datagrams`]). Packets from a port to itself are on no link.
    Seen {
        /// The end port.
        end: End,
        /// Whether the port has sent it.
        sent: bool,
        /// The packet.
        frame: Frame,
    },
    /// Management or the link has changed something at the port. [`Managed::node`] and
    /// [`Managed::port_info`] have the values.
    Changed {
        /// The end port.
        end: End,
        /// What changed.
        event: NodeEvent,
    },
    /// The port has dropped a datagram whose key is wrong, and has counted it.
    Violation {
        /// The end port.
        end: End,
        /// The key.
        key: Key,
    },
    /// A datagram asks for PortInfo of the port, or sets it. The owner may say what it has counted
    /// of wrong keys ([`Managed::set_violations`]) before the next call of [`Managed::advance`].
    Asked {
        /// The end port.
        end: End,
    },
    /// The state of the port's link changed.
    Link {
        /// The end port.
        end: End,
        /// The state now.
        state: Logical,
    },
    /// A datagram for another agent, to which a link leads. It concerns no end port.
    Tunnel {
        /// The address of that agent.
        peer: SocketAddr,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// Peers of links to other agents want to know what programs have sent past the tunnels, or a
    /// node samples its counters. The owner counts it ([`Managed::pass`], [`Managed::add`]) before
    /// the next call of [`Managed::advance`]. It concerns no end port.
    Count,
    /// Packets of programs that have come in past the tunnel of a link.
    Passed {
        /// The end of the link that stands for the other agent.
        far: End,
        /// What they are.
        passed: Vec<Passed>,
    },
    /// What packets reach that leave by a link to another agent has changed.
    Reach {
        /// The end of the link that stands for the other agent.
        far: End,
        /// The address of that agent.
        peer: SocketAddr,
        /// All LIDs that they reach.
        reached: Vec<Reached>,
    },
}

/// A management datagram that has reached an end port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// When.
    pub time: Time,
    /// The end port; of a switch, port 0.
    pub end: End,
    /// The port at which it came in: that of a switch may be another one.
    pub ingress: u8,
    /// The datagram. `dest_qp` is 0 or 1.
    pub datagram: Datagram,
}

/// Why a datagram or packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// Nothing can be sent from there: it is no end port.
    #[error("node {} port {} is no end port", .0.node.0, .0.port)]
    NoEnd(End),
    /// The pointers of a directed route are wrong, or it begins at another port.
    #[error("the directed route does not begin at this port")]
    Route,
    /// The port drops it.
    #[error("the port drops it: {0}")]
    Dropped(Cause),
}

/// A fabric with agents.
#[derive(Debug)]
pub struct Managed {
    fabric: Fabric,
    /// The agents' state of each node, by node id.
    nodes: Vec<Node>,
    names: Vec<Box<str>>,
    ids: HashMap<Box<str>, NodeId>,
    attached: HashSet<End>,
    /// Traps that were not repressed, by end port.
    traps: HashMap<End, Traps>,
    timers: BTreeSet<(Time, Timer)>,
    /// Datagrams about PortInfo of attached ports, which wait for the counts of the owner.
    asked: VecDeque<(End, Datagram)>,
    /// The model's counters of a port when they were last added to those of the agent.
    counted: HashMap<End, Counters>,
    /// The links to other agents.
    tunnels: Tunnels,
    /// The ports of routers that are up.
    subnets: Subnets,
    /// How often these have changed.
    router_changes: u64,
    /// The groups that routers forward, by the prefix of a subnet and the LID there.
    routed: BTreeMap<(u64, u16), u128>,
    /// What attached ports send and receive is handed out.
    shown: bool,
    outputs: Vec<Output>,
}

impl Managed {
    /// Builds the nodes and links of a topology. Their ids count from 0 in the order of the file.
    /// The links train in the first [`crate::fabric::TRAINING`]. Then they are INIT, and no port
    /// has a LID.
    ///
    /// # Errors
    /// The topology has two nodes with one GUID, or links that contradict each other.
    pub fn new(topology: &Topology) -> Result<Managed, Unbuildable> {
        let build::Built { mut fabric, nodes, names, ids, tunnels } = build::build(topology)?;
        fabric.watch();
        let (attached, traps, counted) = Default::default();
        Ok(Managed {
            fabric,
            nodes,
            names,
            ids,
            attached,
            traps,
            timers: BTreeSet::new(),
            asked: VecDeque::new(),
            counted,
            tunnels,
            subnets: Subnets::new(),
            router_changes: 0,
            routed: BTreeMap::new(),
            shown: false,
            outputs: Vec::new(),
        })
    }

    /// Whether datagrams can be sent from here: a port of an adapter or router, or port 0 of a
    /// switch.
    #[must_use]
    pub fn is_end(&self, end: End) -> bool {
        self.fabric.port(end).is_some() && self.end_port(end) == end
    }

    /// Begins to hand out what is for an end port.
    ///
    /// # Errors
    /// It is no end port.
    pub fn attach(&mut self, end: End) -> Result<(), Unsent> {
        if !self.is_end(end) {
            return Err(Unsent::NoEnd(end));
        }
        self.attached.insert(end);
        Ok(())
    }

    /// The port has no owner any more.
    pub fn detach(&mut self, end: End) {
        self.attached.remove(&end);
    }

    /// Sends a management datagram from an end port. One of QP 0 with a directed route begins it
    /// here, or continues it if it is a response.
    ///
    /// # Errors
    /// It cannot leave, and why.
    pub fn send(&mut self, from: End, datagram: &Datagram) -> Result<(), Unsent> {
        if !self.is_end(from) {
            return Err(Unsent::NoEnd(from));
        }
        let mut smp = Smp::parse(&datagram.mad);
        // Where a LID-routed part comes first, the switch at its end begins the directed part.
        let first_part = if smp.returning { smp.dr_dlid } else { smp.dr_slid };
        if datagram.dest_qp != 0 || smp.class != CLASS_SUBN_DIRECTED || first_part != PERMISSIVE_LID {
            return self.put(from, datagram);
        }
        let (is_switch, ports) = self.shape(from.node);
        match smi::step(&mut smp, is_switch, ports, None) {
            Step::Here => {
                self.smp_arrived(from, &smp, datagram);
                Ok(())
            }
            Step::Port(port) if is_switch || port == from.port => {
                let out = Datagram { slid: PERMISSIVE_LID, dlid: PERMISSIVE_LID, mad: smp.to_mad(), ..*datagram };
                self.put(End { port, ..from }, &out)
            }
            Step::Lid(dlid) => self.put(from, &Datagram { dlid, mad: smp.to_mad(), ..*datagram }),
            Step::Port(_) | Step::Drop => Err(Unsent::Route),
        }
    }

    /// Sends a packet from an end port. Those for QP 0 and QP 1 are better sent as datagrams.
    ///
    /// # Errors
    /// It is no end port, or the port drops the packet.
    pub fn inject(&mut self, from: End, frame: Frame) -> Result<(), Unsent> {
        if !self.is_end(from) {
            return Err(Unsent::NoEnd(from));
        }
        match Datagram::of(&frame).filter(|datagram| datagram.dest_qp == 0) {
            Some(datagram) => self.send(from, &datagram),
            None => self.fabric.inject(from, frame).map_err(Unsent::Dropped),
        }
    }

    /// Answers a datagram that no client of the owner serves: status 0x0c to a Get or Set.
    pub fn refuse(&mut self, delivered: &Delivered) {
        let Delivered { end, ingress, datagram, .. } = delivered;
        if datagram.dest_qp == 0 {
            self.refuse_smp(End { port: *ingress, ..*end }, datagram);
        } else {
            self.refuse_gmp(*end, datagram);
        }
    }

    /// When something happens next: now, if a call has caused something that
    /// [`Managed::advance`] has not handed out yet.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        if self.outputs.is_empty() { self.next_work() } else { Some(self.now()) }
    }

    fn next_work(&self) -> Option<Time> {
        let news = self.fabric.has_news().then_some(self.now());
        let timer = self.timers.first().map(|(time, _)| *time);
        self.fabric.next_event().into_iter().chain(timer).chain(news).min()
    }

    /// Processes all that happens up to and including `until`, sets the time to it, and returns
    /// what is for the owners of attached ports, in order. The work is that of the events: idle
    /// nodes cost nothing.
    pub fn advance(&mut self, until: Time) -> Vec<Output> {
        loop {
            let due = self.next_work().filter(|time| *time <= until);
            let deliveries = self.fabric.advance(due.unwrap_or(until));
            deliveries.into_iter().for_each(|delivery| self.arrived(delivery));
            self.follow();
            self.watch_reach();
            self.fire();
            if due.is_none() {
                return std::mem::take(&mut self.outputs);
            }
        }
    }

    /// The end port that stands for a port.
    fn end_port(&self, end: End) -> End {
        let port = self.nodes.get(end.node.0 as usize).map_or(end.port, |node| node.end_port(end.port));
        End { port, ..end }
    }

    /// Whether the node is a switch, and how many ports it has.
    fn shape(&self, node: NodeId) -> (bool, u8) {
        let node = self.fabric.node(node);
        node.map_or((false, 0), |node| (matches!(node.kind(), Kind::Switch(_)), node.ports()))
    }

    fn put(&mut self, end: End, datagram: &Datagram) -> Result<(), Unsent> {
        let frame = datagram.to_frame().ok_or(Unsent::Route)?;
        self.show(end, true, &frame);
        self.fabric.inject(end, frame).map_err(Unsent::Dropped)
    }

    /// Hands a packet at an attached port to who looks.
    fn show(&mut self, at: End, sent: bool, frame: &Frame) {
        if !self.shown {
            return;
        }
        let end = self.end_port(at);
        let mut frame = frame.clone();
        if sent && !frame.is_management() {
            frame.lrh.vl = self.virtual_lane(end, frame.lrh.sl);
        }
        self.output(end, || Output::Seen { end, sent, frame });
    }

    /// Hands something to the owner of an end port, if there is one.
    fn output(&mut self, end: End, output: impl FnOnce() -> Output) {
        if self.attached.contains(&end) {
            self.outputs.push(output());
        }
    }

    /// The time as the agents count it.
    fn clock(&self) -> Duration {
        Duration::from_nanos(self.fabric.now() / 1000)
    }
}
