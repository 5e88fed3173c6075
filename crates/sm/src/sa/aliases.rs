//! GUIDInfoRecord: requests for alias GUIDs, and queries. The table of alias GUIDs is in
//! [`super::index`], and the manager sets them at the ports. Principal type: [`Aliases`].

use super::index::Index;
use super::request::{Answer, Refusal, SaRequest};
use crate::groups::Groups;
use crate::inventory::{Port, PortId};
use std::collections::BTreeMap;
use wire::mad::METHOD_DELETE;
use wire::sa::{
    GuidInfoRecord as Record, STATUS_DENIED, STATUS_INSUFFICIENT_COMPONENTS, STATUS_INVALID_REQUEST, STATUS_NO_RECORDS,
};
use wire::smp::GuidInfo;

/// GUIDs in a block.
const GUIDS: usize = 8;
/// The component of the first GUID of a block.
const FIRST: u64 = 1 << 4;
/// GUIDs that the manager chooses begin with the company id of OpenFabrics, as opensm's do.
const CHOSEN: u64 = 0x1405 << 40;

/// The aliases that the manager has chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct Aliases {
    /// By port GUID and index: a port that asks again gets the same one.
    chosen: BTreeMap<(u64, usize), u64>,
    last: u32,
}

impl Aliases {
    /// Sets or deletes aliases of the asker's port. A GUID of zero asks for one that the manager
    /// chooses. The answer has the whole block as it is now: a GUID that another port has is not in
    /// it. Returns also whether there is something new.
    pub(super) fn change(&mut self, request: &SaRequest<'_>, index: &mut Index, groups: &Groups) -> (Answer, bool) {
        let (id, port, named) = match named(request) {
            Ok(named) => named,
            Err(refusal) => return (Err(refusal), false),
        };
        let wanted: Record = request.template();
        let is_member = |guid| guid != 0 && groups.iter().any(|group| group.members.keys().any(|of| of.guid == guid));
        let deletes = request.header.method == METHOD_DELETE;
        let mut changes = Vec::new();
        for at in named {
            let (old, asked) = (index.alias(id, at), wanted.table.guids[at % GUIDS]);
            let new = match asked {
                _ if deletes => 0,
                0 if old != 0 => old,
                0 => self.choose(index, (port.guid, at)),
                guid => guid,
            };
            if new != old && is_member(old) {
                return (Err(Refusal(STATUS_DENIED)), false);
            }
            changes.push((at, new));
        }
        let changed = changes.into_iter().fold(false, |any, (at, guid)| index.set(id, at, guid) | any);
        let mut records = request.records::<Record>();
        let pushed = records.push(record(index, id, port, wanted.block));
        (pushed.map(|()| records), changed)
    }

    /// A GUID that no port has: that of an earlier request for this index, or a new one.
    fn choose(&mut self, index: &Index, place: (u64, usize)) -> u64 {
        let earlier = self.chosen.get(&place).copied().filter(|guid| index.owner(*guid).is_none());
        let guid = earlier.unwrap_or_else(|| {
            loop {
                self.last = self.last.wrapping_add(1);
                let guid = CHOSEN | u64::from(self.last);
                if index.owner(guid).is_none() {
                    break guid;
                }
            }
        });
        self.chosen.insert(place, guid);
        guid
    }

    /// Forgets what was chosen for ports that are gone.
    pub(super) fn retain(&mut self, exists: impl Fn(u64) -> bool) {
        self.chosen.retain(|(port, _), _| exists(*port));
    }
}

/// The port that a change is about, and the indexes that it names.
fn named<'a>(request: &SaRequest<'a>) -> Result<(PortId, &'a Port, Vec<usize>), Refusal> {
    let wanted: Record = request.template();
    if !request.asks(Record::LID | Record::BLOCK) {
        return Err(Refusal(STATUS_INSUFFICIENT_COMPONENTS));
    }
    let id = request.inventory.by_lid(wanted.lid).ok_or(Refusal(STATUS_NO_RECORDS))?;
    let port = request.inventory.port(id).ok_or(Refusal(STATUS_NO_RECORDS))?;
    if !request.trusted && id != request.asker {
        return Err(Refusal(STATUS_DENIED));
    }
    let (first, cap) = (usize::from(wanted.block) * GUIDS, usize::from(port.info.guid_cap));
    if first >= cap {
        return Err(Refusal(STATUS_NO_RECORDS));
    }
    let named: Vec<usize> = (first..cap.min(first + GUIDS)).filter(|at| request.asks(FIRST << (at % GUIDS))).collect();
    // The port's own GUID stays.
    if named.contains(&0) { Err(Refusal(STATUS_INVALID_REQUEST)) } else { Ok((id, port, named)) }
}

fn record(index: &Index, id: PortId, port: &Port, block: u8) -> Record {
    let mut table = GuidInfo::default();
    for (guid, at) in table.guids.iter_mut().zip(usize::from(block) * GUIDS..) {
        *guid = if at == 0 { port.guid } else { index.alias(id, at) };
    }
    Record { lid: port.info.lid, block, table }
}

/// Answers GUIDInfoRecord, with all blocks of a port.
pub(super) fn query(request: &SaRequest<'_>, index: &Index) -> Answer {
    let template: Record = request.template();
    let mut records = request.records::<Record>();
    for (id, _, port) in request.end_ports(request.asks(Record::LID).then_some(template.lid)) {
        for block in 0..port.info.guid_cap.max(1).div_ceil(GUIDS as u8) {
            records.offer(record(index, id, port, block), &template, request.mask & !Record::LID)?;
        }
    }
    Ok(records)
}
