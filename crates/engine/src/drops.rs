//! Dropped packets: counted by cause and QP, each with its last packet, where the agent can show
//! them.
//!
//! A stranger may send any number of bad packets. So the table is bounded, and a dropped packet
//! costs only a few words in it. Only the 1st, 10th, 100th … packet of a cause makes a sentence.
//! Principal type: [`Drops`].

use std::sync::Arc;

use abi::layout::Record;
use abi::queue::{CONTEXT_LEN, DROP_LEN, DROPS, context_page};
use abi::reason::{Cause, DropRecord, Kind};
use parking_lot::Mutex;
use protocol::{Fault, Service, State};
use wire::Qpn;
use wire::grh::Network;

use crate::cell::{Notice, Packet};
use crate::engine::Engine;
use crate::memory::View;
use crate::net::deliver::Datagrams;
use crate::qp::{Inner, Qp, Route};
use crate::reason::{Note, note};
use crate::receive::{Arrival, Origin};

/// The packets that one engine has dropped.
pub(crate) struct Drops {
    /// The memory behind the context page; `None` if the agent does not show drops.
    view: Option<View>,
    /// A private copy, which no other process writes. Empty until the first packet is dropped.
    table: Mutex<Vec<DropRecord>>,
}

impl Drops {
    pub(crate) fn new(view: View) -> Self {
        Self { view: (view.len() >= CONTEXT_LEN).then_some(view), table: Mutex::new(Vec::new()) }
    }

    /// Counts a packet. Returns its record if it should be reported.
    #[cold]
    fn count(&self, cause: Cause, dropped: &DropRecord) -> Option<DropRecord> {
        let mut table = self.table.lock();
        let key = (cause as u32, dropped.qpn);
        let known = table.iter().position(|record| (record.cause, record.qpn) == key);
        // In a full table kinds of drops replace each other and always start at 1. Such drops are
        // not reported.
        let is_news = known.is_some() || table.len() < DROPS;
        let place = known.unwrap_or_else(|| {
            if table.len() < DROPS {
                table.push(DropRecord::default());
                return table.len() - 1;
            }
            // The record with the oldest last packet is replaced.
            table.iter().enumerate().min_by_key(|(_, record)| record.time).map_or(0, |(place, _)| place)
        });
        let before = if known.is_some() { table[place].count } else { 0 };
        let count = before + 1;
        let record = DropRecord { cause: cause as u32, count, time: crate::clock::since_1970(), ..*dropped };
        table[place] = record;
        if let Some(view) = &self.view {
            view.write_bytes(context_page::DROPS + place * DROP_LEN, record.bytes());
        }
        (is_news && is_round(count) && !cause.is_mended()).then_some(record)
    }
}

/// Whether the count is 1, 10, 100 …
fn is_round(count: u64) -> bool {
    count != 0 && 10_u64.pow(count.ilog10()) == count
}

impl Engine {
    /// The drops of this engine so far, by cause and QP, each with its last packet.
    #[must_use]
    pub fn drops(&self) -> Vec<DropRecord> {
        self.drops.table.lock().clone()
    }

    /// Counts a dropped packet. Returns whether it was reported.
    #[cold]
    pub(crate) fn drop_packet(&self, cause: Cause, dropped: DropRecord) -> bool {
        tracing::debug!(
            "QP {:#x} from QP {:#x}: a packet was dropped ({})",
            dropped.dest_qp,
            dropped.src_qp,
            cause.word()
        );
        if self.is_capturing() {
            self.capture_drop(cause, &dropped);
        }
        let told = self.drops.count(cause, &dropped);
        if let Some(record) = &told {
            note(Note { qpn: record.qpn, ..self.reasons.note(Kind::Dropped) }, format_args!("{}", record.sentence()));
        }
        told.is_some()
    }

    /// Counts a packet of a lane that no QP here takes. Responses are not counted: an
    /// acknowledgement to a QP that is gone is no loss.
    #[cold]
    pub(crate) fn drop_of_lane(&self, cause: Cause, packet: &Packet, (got, expected): (u32, u32)) {
        if !packet.headers.opcode.is_response() {
            self.drop_packet(cause, DropRecord { got, expected, ..told(packet) });
        }
    }

    /// Counts a packet of another host.
    #[cold]
    pub(crate) fn drop_of_host(&self, datagrams: &Datagrams, packet: &Packet, cause: Cause) {
        if !packet.headers.opcode.is_response() {
            self.drop_packet(cause, DropRecord { address: datagrams.from, ..told(packet) });
        }
    }

    /// Counts a packet of another host that was not parsed. Reads only the bytes that are there.
    pub(crate) fn drop_datagram(
        &self,
        datagrams: &Datagrams,
        bytes: &[u8],
        (cause, qpn): (Cause, u32),
        said: (u32, u32),
    ) {
        let three = |at: usize| match bytes.get(at..at + 3) {
            Some(bytes) => u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]),
            None => 0,
        };
        let (got, expected) = said;
        let dropped = DropRecord {
            qpn,
            got,
            expected,
            address: datagrams.from,
            dest_qp: three(5),
            psn: three(9),
            opcode: bytes.first().copied().unwrap_or_default().into(),
            ..DropRecord::default()
        };
        self.drop_packet(cause, dropped);
    }
}

/// The fields that a packet itself contains.
fn told(packet: &Packet) -> DropRecord {
    DropRecord {
        src_qp: packet.src_qp.value(),
        dest_qp: packet.headers.dest_qp.value(),
        psn: packet.headers.psn.value(),
        opcode: packet.headers.opcode.as_u8().into(),
        ..DropRecord::default()
    }
}

/// The cause and numbers of a drop, from a responder's fault.
pub(crate) fn of_fault(fault: &Fault) -> (Cause, u32, u32) {
    match *fault {
        Fault::Dead => (Cause::Dead, 0, 0),
        Fault::Service { .. } => (Cause::Service, 0, 0),
        Fault::Sequence { expected, got } => (Cause::Sequence, got.value(), expected.value()),
        Fault::Forgotten { .. } => (Cause::Forgotten, 0, 0),
        Fault::Abandoned { .. } | Fault::Order { .. } => (Cause::Order, 0, 0),
        Fault::QKey { expected, got } => (Cause::QKey, got, expected),
        Fault::NotAllowed { access, .. } => (Cause::Rights, 0, access),
        Fault::TooManyReads { limit } => (Cause::Rights, 0, limit.into()),
        Fault::Length { got, mtu, .. } => (Cause::Length, got, mtu),
        Fault::Misaligned { .. } | Fault::Placement { .. } | Fault::Executor => (Cause::Memory, 0, 0),
        Fault::NoReceive => (Cause::NoReceive, 0, 0),
    }
}

impl Qp {
    /// Counts a packet that this QP has dropped, with the known details. Returns whether it was
    /// reported.
    #[cold]
    pub(crate) fn drop_packet(
        &self,
        inner: &Inner,
        cause: Cause,
        packet: &Packet,
        (got, expected): (u32, u32),
    ) -> bool {
        let address = match packet.grh.as_ref().map(Network::parse) {
            Some(Ok(network)) => network.gids().0,
            _ if inner.on_wire => inner.attributes.dest.dgid,
            _ => [0; 16],
        };
        // Packets of a connection do not name their source QP.
        let src_qp = match packet.src_qp.value() {
            0 => inner.attributes.dest_qp_num,
            src_qp => src_qp,
        };
        let dropped = DropRecord { qpn: self.qpn(), got, expected, address, src_qp, ..told(packet) };
        self.engine().drop_packet(cause, dropped)
    }

    /// There is no path for the answers: drops them.
    #[cold]
    pub(crate) fn lose_answers(&self, inner: &mut Inner) {
        let mut lost = false;
        while inner.responder.poll_transmit().is_some() {
            lost = true;
        }
        if lost {
            self.tell_peer_of_loss(inner);
        }
    }

    /// The peer's requests get no answer. On a lane the peer would wait for ever, so it gets a
    /// notice, by any lane if this QP has no route yet.
    #[cold]
    pub(crate) fn tell_peer_of_loss(&self, inner: &Inner) {
        let (engine, peer) = (self.engine(), inner.attributes.dest_qp_num);
        let lane = match &inner.route {
            _ if inner.on_wire => None,
            Route::Lane(lane) => Some(Arc::clone(lane)).filter(|lane| !lane.is_dead()),
            _ => engine.lanes.any_to(engine.board.owner(peer)),
        };
        if let Some(lane) = lane {
            let (from, to) = (Qpn::new(self.qpn()), Qpn::new(peer));
            engine.send_notice(&lane, Notice { from, to, psn: inner.responder.expected_psn() });
        }
    }

    /// Refuses a packet that this QP cannot take, and counts it with the reason.
    #[cold]
    pub(crate) fn turn_down(&self, inner: &Inner, packet: &Packet, origin: Origin<'_>) -> Arrival {
        let is_of_another_partition = inner.state.serves() && !self.is_in_partition(inner, packet);
        if is_of_another_partition {
            self.engine().events.violation(context_page::PKEY_VIOLATIONS, inner.attributes.port_num.into());
        }
        if packet.headers.opcode.is_response() {
            // A response that no request waits for.
            return Arrival::NotTaken;
        }
        let mut dropped = DropRecord { qpn: self.qpn(), ..told(packet) };
        if let Origin::Host { from, .. } = origin {
            dropped.address = *from;
        }
        let cause = if !self.is_of_service(packet.headers.opcode) {
            Cause::Service
        } else if inner.state == State::Err {
            Cause::InError
        } else if !inner.state.serves() {
            dropped.got = inner.state as u32;
            Cause::State
        } else if is_of_another_partition {
            (dropped.got, dropped.expected) = (packet.headers.pkey.into(), inner.responder.pkey().into());
            Cause::PKey
        } else if !self.engine().board.is_up(self.engine().device(), inner.attributes.port_num.into()) {
            Cause::PortDown
        } else if self.service == Service::Ud
            || (matches!(origin, Origin::Lane)
                && !inner.on_wire
                && packet.src_qp.value() == inner.attributes.dest_qp_num)
        {
            dropped.expected = inner.attributes.port_num.into();
            Cause::Port
        } else if matches!(origin, Origin::Lane) && !inner.on_wire {
            (dropped.got, dropped.expected) = (packet.src_qp.value(), inner.attributes.dest_qp_num);
            Cause::SourceQp
        } else {
            Cause::SourceAddress
        };
        self.engine().drop_packet(cause, dropped);
        Arrival::NotTaken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::region::Region;

    fn drops() -> (Region, Drops) {
        let (ours, fd) = Region::create("softhca-test", CONTEXT_LEN).expect("memory");
        let theirs = Region::map(std::os::fd::AsFd::as_fd(&fd), CONTEXT_LEN).expect("mapped");
        (ours, Drops::new(View::whole(theirs)))
    }

    #[test]
    fn drops_are_counted_by_cause_and_qp_and_told_now_and_then() {
        let (memory, drops) = drops();
        let one = DropRecord { qpn: 0x11, psn: 7, ..DropRecord::default() };
        let told: Vec<u64> =
            (0..1000).filter_map(|_| drops.count(Cause::QKey, &one)).map(|record| record.count).collect();
        assert_eq!(told, [1, 10, 100, 1000]);
        assert!(drops.count(Cause::Sequence, &one).is_none(), "a connection gets over it");
        let first: DropRecord = memory.read(context_page::DROPS);
        assert_eq!((first.cause, first.qpn, first.count, first.psn), (Cause::QKey as u32, 0x11, 1000, 7));
        let second: DropRecord = memory.read(context_page::DROPS + DROP_LEN);
        assert_eq!((second.cause, second.count), (Cause::Sequence as u32, 1));
        assert_eq!(drops.table.lock().iter().map(|record| record.count).sum::<u64>(), 1001);
    }

    #[test]
    fn a_stranger_fills_no_more_than_the_table() {
        let (memory, drops) = drops();
        let one = |qpn| drops.count(Cause::State, &DropRecord { qpn, ..DropRecord::default() });
        let told = (0..10 * DROPS as u32).filter_map(one).count();
        assert_eq!(told, DROPS, "each kind was told that there was room for, and no more");
        assert_eq!(drops.table.lock().len(), DROPS);
        let last: DropRecord = memory.read(context_page::FAULTS - DROP_LEN);
        assert_eq!(last.count, 1);
    }
}
