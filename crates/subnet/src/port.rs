//! A port: what the manager and the configuration set, its states, its counters, and its lanes with
//! their queues and credits. Not when something happens to it ([`crate::fabric`]). Principal types:
//! [`Port`], [`Settings`].

use crate::arbitration::{Arbiter, Tables};
use crate::counters::{Cause, Counters};
use crate::credit::{Receiver, Sender};
use crate::frame::Frame;
use crate::pkey;
use crate::rate::{Codes, Mtu, Rate, Time, coded_time};
use crate::service::SlToVl;
use crate::state::{Logical, Physical};
use std::collections::VecDeque;
use std::sync::Arc;

/// A time code from here on means "for ever".
const FOR_EVER: u8 = 20;

/// Who a port is in its subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The port GUID.
    pub guid: u64,
    /// The upper half of the GID at index 0.
    pub prefix: u64,
    /// The base LID, 0 before the manager has set it.
    pub lid: u16,
    /// The port has 2^`lmc` LIDs.
    pub lmc: u8,
    /// The LID of the master subnet manager.
    pub sm_lid: u16,
    /// The service level to the master subnet manager.
    pub sm_sl: u8,
}

/// What a switch port does to packets of other partitions, and to raw packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// Packets that come in must belong to a partition of the port.
    pub pkey_in: bool,
    /// Packets that go out must belong to a partition of the port.
    pub pkey_out: bool,
    /// Raw packets may not come in.
    pub raw_in: bool,
    /// Raw packets may not go out.
    pub raw_out: bool,
}

/// What the configuration and the manager set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who the port is.
    pub identity: Identity,
    /// Widths that the port can have.
    pub widths: Codes,
    /// Widths that it may have.
    pub widths_enabled: Codes,
    /// Speeds that the port can have.
    pub speeds: Codes,
    /// Speeds that it may have.
    pub speeds_enabled: Codes,
    /// The longest MTU of the port.
    pub mtu_cap: Mtu,
    /// The MTU of the link: NeighborMTU.
    pub mtu: Mtu,
    /// How many data lanes the port has.
    pub vls_cap: u8,
    /// How many of them are in operation.
    pub vls: u8,
    /// The partitions of the port.
    pub pkeys: pkey::Table,
    /// What a switch port enforces.
    pub enforcement: Enforcement,
    /// The lane of each service level; a switch has one for each pair of ports instead.
    pub sl_to_vl: SlToVl,
    /// The arbitration between lanes. Ports share equal tables.
    pub arbitration: Arc<Tables>,
    /// HOQLife of a switch port: 4.096 µs × 2^code at the head of a queue; 20 and more means no
    /// limit.
    pub hoq_life: u8,
    /// Blocks of the receive buffer of each data lane.
    pub buffer: u16,
}

impl Settings {
    pub(crate) fn new(guid: u64, arbitration: Arc<Tables>) -> Settings {
        Settings {
            identity: Identity { guid, prefix: LINK_LOCAL, lid: 0, lmc: 0, sm_lid: 0, sm_sl: 0 },
            widths: 1 | 2,
            widths_enabled: 1 | 2,
            speeds: 0x1f,
            speeds_enabled: 0x1f,
            mtu_cap: Mtu::B4096,
            mtu: Mtu::B4096,
            vls_cap: 8,
            vls: 8,
            pkeys: pkey::Table::default(),
            enforcement: Enforcement::default(),
            sl_to_vl: SlToVl::default(),
            arbitration,
            hoq_life: FOR_EVER,
            buffer: 256,
        }
    }
}

/// The prefix fe80::/64, which no router forwards.
pub const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;

impl Identity {
    /// Whether a unicast LID is one of the port's.
    #[must_use]
    pub const fn has(&self, lid: u16) -> bool {
        self.lid != 0 && (lid ^ self.lid) >> self.lmc == 0
    }

    /// The GID at index 0.
    #[must_use]
    pub const fn gid(&self) -> [u8; 16] {
        ((self.prefix as u128) << 64 | self.guid as u128).to_be_bytes()
    }
}

/// A place in the receive buffer of a lane, which a packet occupies until it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) port: u32,
    pub(crate) vl: u8,
    pub(crate) blocks: u16,
}

/// What a packet in a queue holds of a receive buffer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Hold {
    /// Nothing: the packet began here, or is a management packet.
    #[default]
    Nothing,
    One(Place),
    /// The copies of a multicast packet: the place is free when the last one has left.
    Shared(Arc<Place>),
}

impl Hold {
    /// The place of which this holds a part.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Hold::Nothing => None,
            Hold::One(place) => Some(*place),
            Hold::Shared(place) => Some(**place),
        }
    }

    /// The place that becomes free when this part of it does.
    pub(crate) fn last(self) -> Option<Place> {
        match self {
            Hold::Nothing => None,
            Hold::One(place) => Some(place),
            Hold::Shared(place) => Arc::into_inner(place),
        }
    }
}

/// A packet that waits at an egress port.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) frame: Frame,
    pub(crate) hold: Hold,
    /// The time at which it must have left the switch.
    pub(crate) expires: Time,
}

/// One data lane of a port, in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) queue: VecDeque<Queued>,
    /// Since when the first packet of the queue is the first.
    pub(crate) head_since: Time,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

/// What makes a link bad, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// One bit of each n-th packet is changed, flow-control packets included. 0: of none.
    pub corrupt_every: u32,
    /// Packets take so many times as long in addition.
    pub slower: u32,
}

/// The sending side of a port.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    pub(crate) management: VecDeque<Queued>,
    pub(crate) arbiter: Arbiter,
    pub(crate) busy_until: Time,
    /// What the packet on the wire still holds.
    pub(crate) sending: Hold,
    /// Lanes whose credits the neighbour does not know yet, one bit for each.
    pub(crate) flow_due: u16,
    /// Lanes whose credits are repeated at the end of the refresh time.
    pub(crate) refresh: u16,
    /// The earliest wake event in the queue.
    pub(crate) wake: Option<Time>,
    pub(crate) waiting_since: Option<Time>,
    pub(crate) fault: Fault,
    /// Packets sent since the fault was set.
    pub(crate) fault_count: u32,
    /// Copies of what leaves are kept.
    pub(crate) captures: bool,
}

/// Why a cable is cut. There may be several causes at once. The cable carries packets again when
/// the last one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutBy {
    /// The operator.
    Operator,
    /// A fault rule.
    Rule,
    /// The node at this end is away. The port at the other end has a cable that is not cut.
    Absence,
}

/// A set of [`CutBy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts(u8);

impl Cuts {
    /// Whether one of them is this.
    #[must_use]
    pub const fn contains(self, by: CutBy) -> bool {
        self.0 & 1 << by as u8 != 0
    }

    pub(crate) const fn insert(&mut self, by: CutBy) {
        self.0 |= 1 << by as u8;
    }

    pub(crate) const fn remove(&mut self, by: CutBy) {
        self.0 &= !(1 << by as u8);
    }
}

/// A port of a node.
#[derive(Debug)]
pub struct Port {
    pub(crate) node: u32,
    pub(crate) number: u8,
    /// The port at the other end of the link.
    pub(crate) peer: Option<u32>,
    pub(crate) delay: Time,
    /// The port belongs to a switch.
    pub(crate) relays: bool,
    /// What cuts the cable.
    pub(crate) cuts: Cuts,
    /// Changes with each failure of the link; what was on the wire before is lost.
    pub(crate) generation: u32,
    pub(crate) settings: Settings,
    pub(crate) logical: Logical,
    pub(crate) physical: Physical,
    pub(crate) rate: Rate,
    pub(crate) counters: Counters,
    pub(crate) lanes: Box<[Lane]>,
    pub(crate) egress: Egress,
    /// Packets that a stopped receiver has not taken.
    pub(crate) held: Option<VecDeque<Frame>>,
}

impl Port {
    pub(crate) fn new(node: u32, number: u8, relays: bool, settings: Settings) -> Port {
        let lane = Lane {
            queue: VecDeque::new(),
            head_since: 0,
            sender: Sender::default(),
            receiver: Receiver::new(settings.buffer),
        };
        Port {
            node,
            number,
            peer: None,
            delay: 0,
            relays,
            cuts: Cuts::default(),
            generation: 0,
            logical: Logical::Down,
            physical: Physical::Polling,
            rate: Rate::default(),
            counters: Counters::default(),
            lanes: vec![lane; usize::from(settings.vls_cap)].into(),
            egress: Egress::default(),
            held: None,
            settings,
        }
    }

    /// What the configuration and the manager have set.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The state of the link layer.
    #[must_use]
    pub const fn logical(&self) -> Logical {
        self.logical
    }

    /// The state of the physical layer.
    #[must_use]
    pub const fn physical(&self) -> Physical {
        self.physical
    }

    /// Whether the cable is cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cuts != Cuts::default()
    }

    /// What cuts the cable.
    #[must_use]
    pub const fn cuts(&self) -> Cuts {
        self.cuts
    }

    /// Width and speed, as training found them.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// What the port has counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Packets that wait to go out.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queue.len()).sum::<usize>() + self.egress.management.len()
    }

    /// Whether a packet may be queued here to go out on this lane. `vl` is `None` if the service
    /// level has none.
    pub(crate) fn admits(&self, frame: &Frame, vl: Option<u8>) -> Result<u8, Cause> {
        let management = frame.is_management();
        if !self.logical.queues(management) {
            return Err(Cause::EgressDown);
        }
        if management {
            return Ok(frame.lrh.vl);
        }
        if frame.lrh.byte_len() > self.settings.mtu.longest_packet() {
            return Err(Cause::TooLong);
        }
        let vl = vl.filter(|vl| *vl < self.settings.vls && usize::from(*vl) < self.lanes.len()).ok_or(Cause::NoVl)?;
        match frame.pkey() {
            None if self.settings.enforcement.raw_out => Err(Cause::RawFilter),
            Some(key) if self.settings.enforcement.pkey_out && !self.settings.pkeys.passes(key) => {
                Err(Cause::PartitionOut)
            }
            _ => Ok(vl),
        }
    }

    /// Whether a switch or router port lets a packet in.
    pub(crate) fn enforces(&self, frame: &Frame) -> Result<(), Cause> {
        match frame.pkey() {
            _ if frame.is_management() => Ok(()),
            None if self.settings.enforcement.raw_in => Err(Cause::RawFilter),
            Some(key) if self.settings.enforcement.pkey_in && !self.settings.pkeys.passes(key) => {
                Err(Cause::PartitionIn)
            }
            _ => Ok(()),
        }
    }

    /// When the packet at the head of a lane's queue expires, and why. Only switches drop a packet
    /// for its age.
    pub(crate) fn deadline(&self, lane: &Lane) -> Option<(Time, Cause)> {
        let head = lane.queue.front()?;
        let code = if self.relays { self.settings.hoq_life } else { FOR_EVER };
        let hoq = lifetime(code).map_or(Time::MAX, |life| lane.head_since + life);
        let of_head = if hoq <= head.expires { (hoq, Cause::HeadOfQueue) } else { (head.expires, Cause::LifeTime) };
        (of_head.0 < Time::MAX).then_some(of_head)
    }

    /// Whether a lane's first packet has the credits to go out.
    pub(crate) fn ready(&self, vl: u8) -> Option<usize> {
        let lane = self.lanes.get(usize::from(vl))?;
        let head = lane.queue.front()?;
        lane.sender.may_send(head.frame.blocks()).then_some(head.frame.lrh.byte_len())
    }
}

/// The time of a life code, if it is not for ever.
pub(crate) fn lifetime(code: u8) -> Option<Time> {
    (code < FOR_EVER).then(|| coded_time(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l10_a_port_has_the_lids_that_differ_in_its_lmc_bits_only() {
        let identity = Identity { guid: 1, prefix: LINK_LOCAL, lid: 8, lmc: 2, sm_lid: 0, sm_sl: 0 };
        assert_eq!([7, 8, 11, 12].map(|lid| identity.has(lid)), [false, true, true, false]);
        assert!(!Identity { lid: 0, ..identity }.has(1), "no LID yet");
    }

    #[test]
    fn l08_gid_0_is_prefix_then_guid() {
        let identity =
            Identity { guid: 0x1122_3344_5566_7788, prefix: LINK_LOCAL, lid: 0, lmc: 0, sm_lid: 0, sm_sl: 0 };
        let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        assert_eq!(identity.gid(), gid);
    }
}
