//! Dropped packets: counted by cause and QP, each with its last packet, where the agent can show
//! them.
//!
//! Any host may send any number of bad packets. So the table is bounded, and a dropped packet only
//! updates a few words in it. Only the 1st, 10th, 100th … packet of a cause is reported. Packets
//! are counted in `drops/dropping.rs`. Principal type: [`Drops`].

mod dropping;

use abi::layout::Record;
use abi::queue::{CONTEXT_LEN, DROP_LEN, DROPS, context_page};
use abi::reason::{Cause, DropRecord};
use parking_lot::Mutex;
use protocol::Fault;

use crate::memory::View;

/// The packets that one engine has dropped.
pub(crate) struct Drops {
    /// The memory after the context page; `None` if the agent does not show drops.
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
