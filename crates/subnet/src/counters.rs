//! What a port counts: traffic, and every reason for which a packet is dropped. Performance
//! management reports these numbers; the saturating and clearing of its own attributes is not done
//! here. Principal types: [`Counters`], [`Cause`].

use crate::frame::Frame;
use crate::rate::Time;
use std::fmt;

/// Why a packet was dropped. Each has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The LRH, the VCRC or the length was wrong.
    Damaged,
    /// The packet was lost with its link.
    LinkLost,
    /// The port's state did not allow the packet to come in.
    NotReceiving,
    /// The sender did not keep to its credits.
    Overrun,
    /// A limited or foreign partition, at the port where the packet came in.
    PartitionIn,
    /// A limited or foreign partition, at the port where the packet was to go out.
    PartitionOut,
    /// A raw packet, where the port filters them.
    RawFilter,
    /// The destination LID is 0, or permissive without a directed route.
    BadLid,
    /// No table entry leads to a port.
    NoRoute,
    /// The packet would leave by the port that it came from.
    BackToSource,
    /// The egress port is down or not ACTIVE.
    EgressDown,
    /// The packet is longer than the egress port's MTU.
    TooLong,
    /// The service level has no virtual lane at the egress port.
    NoVl,
    /// The packet was at the head of its queue for too long.
    HeadOfQueue,
    /// The packet was in the switch for too long, or in a circle of switches.
    LifeTime,
    /// The buffer for management packets was full.
    Vl15Full,
    /// The packet is for another port.
    NotMine,
    /// The packet cannot pass another router.
    HopLimit,
    /// A router lets no packet of this scope pass.
    LinkLocal,
    /// A router found no route for the destination GID.
    NoSubnet,
}

/// The error counters of performance management that a [`Cause`] adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the IBA's own names")]
pub enum PortError {
    PortRcvErrors,
    PortRcvSwitchRelayErrors,
    PortXmitDiscards,
    PortXmitConstraintErrors,
    PortRcvConstraintErrors,
    ExcessiveBufferOverrunErrors,
    Vl15Dropped,
    /// Counted at no port: the packet was never received.
    Nowhere,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 20] = [
        Cause::Damaged,
        Cause::LinkLost,
        Cause::NotReceiving,
        Cause::Overrun,
        Cause::PartitionIn,
        Cause::PartitionOut,
        Cause::RawFilter,
        Cause::BadLid,
        Cause::NoRoute,
        Cause::BackToSource,
        Cause::EgressDown,
        Cause::TooLong,
        Cause::NoVl,
        Cause::HeadOfQueue,
        Cause::LifeTime,
        Cause::Vl15Full,
        Cause::NotMine,
        Cause::HopLimit,
        Cause::LinkLocal,
        Cause::NoSubnet,
    ];

    /// The counter of performance management that this cause adds to. IBA 16.1.3.5.
    #[must_use]
    pub const fn counter(self) -> PortError {
        match self {
            Cause::Damaged | Cause::NotReceiving | Cause::NotMine => PortError::PortRcvErrors,
            Cause::LinkLost => PortError::Nowhere,
            Cause::Overrun => PortError::ExcessiveBufferOverrunErrors,
            Cause::PartitionIn | Cause::RawFilter => PortError::PortRcvConstraintErrors,
            Cause::PartitionOut => PortError::PortXmitConstraintErrors,
            Cause::BadLid
            | Cause::NoRoute
            | Cause::BackToSource
            | Cause::HopLimit
            | Cause::LinkLocal
            | Cause::NoSubnet => PortError::PortRcvSwitchRelayErrors,
            Cause::EgressDown | Cause::TooLong | Cause::NoVl | Cause::HeadOfQueue | Cause::LifeTime => {
                PortError::PortXmitDiscards
            }
            Cause::Vl15Full => PortError::Vl15Dropped,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Damaged => "wrong LRH, VCRC or length",
            Cause::LinkLost => "lost with its link",
            Cause::NotReceiving => "the port's state does not let it in",
            Cause::Overrun => "sent without credit",
            Cause::PartitionIn => "foreign partition at the ingress port",
            Cause::PartitionOut => "foreign partition at the egress port",
            Cause::RawFilter => "raw packets are filtered",
            Cause::BadLid => "no destination LID",
            Cause::NoRoute => "no route to the destination LID",
            Cause::BackToSource => "the route leads back to the ingress port",
            Cause::EgressDown => "the egress port is down or not ACTIVE",
            Cause::TooLong => "longer than the MTU of the egress port",
            Cause::NoVl => "no virtual lane for the service level",
            Cause::HeadOfQueue => "too long at the head of its queue",
            Cause::LifeTime => "too long in the switch",
            Cause::Vl15Full => "too many management packets",
            Cause::NotMine => "for another port",
            Cause::HopLimit => "the hop limit is used up",
            Cause::LinkLocal => "a link-local address is not routed",
            Cause::NoSubnet => "no route to the destination GID",
        })
    }
}

/// Packets and bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Words of 4 bytes from the LRH to the ICRC, as PortXmitData counts them.
    pub words: u64,
    /// Packets. Neither number contains the packets of VL 15.
    pub packets: u64,
    /// Multicast packets of these; the rest is unicast.
    pub multicast: u64,
}

/// The counters of a port.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// What went out.
    pub sent: Traffic,
    /// What came in.
    pub received: Traffic,
    /// How long packets waited while nothing could go out.
    pub waited: Time,
    /// How often the link recovered from an error.
    pub recovered: u32,
    /// How often the link went down.
    pub downed: u32,
    /// Dropped packets by cause; most ports drop none.
    drops: Option<Box<[u64; Cause::ALL.len()]>>,
}

impl Counters {
    /// Packets that were dropped for this cause.
    #[must_use]
    pub fn dropped(&self, cause: Cause) -> u64 {
        self.drops.as_ref().map_or(0, |drops| drops[cause as usize])
    }

    /// An error counter of performance management.
    #[must_use]
    pub fn error(&self, counter: PortError) -> u64 {
        Cause::ALL.into_iter().filter(|cause| cause.counter() == counter).map(|cause| self.dropped(cause)).sum()
    }

    /// The causes for which packets were dropped here, with their numbers.
    pub fn drops(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.into_iter().map(|cause| (cause, self.dropped(cause))).filter(|(_, count)| *count > 0)
    }

    /// Counts a dropped packet.
    pub fn drop(&mut self, cause: Cause) {
        self.drop_some(cause, 1);
    }

    /// Counts dropped packets.
    pub fn drop_some(&mut self, cause: Cause, count: u64) {
        let dropped = &mut self.drops.get_or_insert_default()[cause as usize];
        *dropped = dropped.saturating_add(count);
    }
}

impl Traffic {
    /// Counts a packet.
    pub fn count(&mut self, frame: &Frame) {
        if !frame.is_management() {
            self.words += u64::from(frame.lrh.packet_len);
            self.packets += 1;
            self.multicast += u64::from(frame.lrh.is_multicast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l34_every_cause_has_its_own_counter() {
        let mut counters = Counters::default();
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            (0..=at).for_each(|_| counters.drop(cause));
        }
        assert!(counters.drops().enumerate().all(|(at, (_, count))| count == at as u64 + 1));
        assert_eq!(counters.error(PortError::Vl15Dropped), 16);
        assert_eq!(counters.error(PortError::PortXmitConstraintErrors), 6);
    }
}
