//! MCMemberRecord: joins, leaves and queries. Not the table of groups ([`crate::groups`]).
//! Principal type: [`Joined`].

use super::index::{self, Index};
use super::paths::{EXACTLY, carries, choose_mtu, choose_rate};
use super::request::{Answer, Refusal, SaRequest, common, gid, pkeys};
use crate::groups::{Group, Groups, Joiner};
use crate::inventory::Inventory;
use wire::grh::{LINK_LOCAL_SCOPE, is_beyond_subnet};
use wire::layout::matches;
use wire::rate_mbps;
use wire::sa::{
    McMemberRecord as Record, STATUS_DENIED, STATUS_INSUFFICIENT_COMPONENTS, STATUS_INVALID_GID,
    STATUS_INVALID_REQUEST, STATUS_NO_RESOURCES,
};

/// The components that every join and leave has.
const MEMBERSHIP: u64 = Record::MGID | Record::PORT_GID | Record::JOIN_STATE;
/// The components that also make a group.
const CREATION: u64 = Record::QKEY | Record::TRAFFIC_CLASS | Record::PKEY | Record::FLOW_LABEL | Record::SL;
/// The most groups that one port is in.
const MOST_OF_PORT: usize = 1024;
/// A port in this many groups is joined to no further one by others.
const MOST_BY_PROXY: usize = 512;
/// The signature of GIDs that the manager has chosen.
const CHOSEN: [u8; 2] = [0xa0, 0x1b];

/// What a join or a leave did.
pub(super) struct Joined {
    pub(super) answer: Record,
    pub(super) created: bool,
    pub(super) deleted: bool,
}

/// The multicast LIDs that all switches hold.
pub(super) fn cap(inventory: &Inventory) -> u16 {
    let caps = inventory.nodes.values().filter_map(|node| node.switch.as_ref());
    caps.map(|switch| switch.info.multicast_cap).min().unwrap_or(0x3fff)
}

/// The port that a join or a leave is about. One asks for another port if both are in a common
/// partition.
fn member(request: &SaRequest<'_>, index: &Index, record: &Record) -> Result<Joiner, Refusal> {
    if !request.asks(MEMBERSHIP) {
        return Err(Refusal(STATUS_INSUFFICIENT_COMPONENTS));
    }
    let id = index.find(request.prefix, record.port_gid).ok_or(Refusal(STATUS_INVALID_GID))?;
    if record.join_state == 0 {
        return Err(Refusal(STATUS_INVALID_REQUEST));
    }
    let port = request.inventory.port(id).ok_or(Refusal(STATUS_INVALID_GID))?;
    let joiner = Joiner { port: id, guid: index::guid(record.port_gid) };
    if id == request.asker || request.sees(port) { Ok(joiner) } else { Err(Refusal(STATUS_DENIED)) }
}

/// Whether the asker may change a membership: another port's only if that has not joined by itself,
/// and he is in the partition of the group.
fn may_change(request: &SaRequest<'_>, group: &Group, id: Joiner) -> bool {
    let joined_itself = group.members.contains_key(&id) && !group.proxies.contains(&id);
    let own = request.inventory.port(request.asker).map_or(&[][..], pkeys);
    let is_in = || common(own, &[group.record.pkey | 0x8000]).is_some();
    request.trusted || id.port == request.asker || !joined_itself && is_in()
}

/// Joins a port to a group, which the first full member makes.
pub(super) fn join(
    request: &SaRequest<'_>,
    index: &Index,
    groups: &mut Groups,
    life: u8,
    number: &mut u32,
) -> Result<Joined, Refusal> {
    let invalid = Refusal(STATUS_INVALID_REQUEST);
    let wanted: Record = request.template();
    let id = member(request, index, &wanted)?;
    let port = request.inventory.port(id.port).ok_or(Refusal(STATUS_INVALID_GID))?;
    let by_proxy = id.port != request.asker;
    let (mtu, rate) = carries(port);
    let others = groups.iter().filter(|group| group.record.mgid != wanted.mgid && group.has_port(id.port));
    let most = if by_proxy { MOST_BY_PROXY } else { MOST_OF_PORT };
    if others.count() >= most {
        return Err(Refusal(STATUS_NO_RESOURCES));
    }
    let (mut created, mut mgid) = (false, wanted.mgid);
    if groups.find(&mgid).is_none() {
        if wanted.join_state & (Record::FULL | Record::SEND_ONLY_FULL) == 0 {
            return Err(invalid);
        }
        if !request.asks(CREATION) {
            return Err(Refusal(STATUS_INSUFFICIENT_COMPONENTS));
        }
        let record = creation(request, wanted, (mtu, rate), life, number)?;
        let asker = request.inventory.port(request.asker).filter(|_| !request.trusted).unwrap_or(port);
        for member in [port, asker] {
            common(pkeys(member), &[record.pkey | 0x8000]).ok_or(invalid)?;
        }
        mgid = record.mgid;
        groups.create(record, false, cap(request.inventory)).ok_or(Refusal(STATUS_NO_RESOURCES))?;
        created = true;
    }
    let known = groups.find(&mgid).ok_or(invalid)?;
    if !may_change(request, known, id) {
        return Err(Refusal(STATUS_DENIED));
    }
    let group = known.record;
    if !created {
        let mut fixed = request.mask & !MEMBERSHIP & !Record::PROXY & !Record::PKEY & !Record::MLID;
        for pair in [
            Record::MTU_SELECTOR | Record::MTU,
            Record::RATE_SELECTOR | Record::RATE,
            Record::LIFE_SELECTOR | Record::LIFE,
        ] {
            fixed &= if request.asks(pair) { u64::MAX } else { !pair };
        }
        let same_partition = !request.asks(Record::PKEY) || (group.pkey ^ wanted.pkey) & 0x7fff == 0;
        let fast = rate_mbps(rate).unwrap_or(0) >= rate_mbps(group.rate).unwrap_or(0);
        let fits = matches(&group, &wanted, fixed) && same_partition && mtu >= group.mtu && fast;
        if !fits || common(pkeys(port), &[group.pkey | 0x8000]).is_none() {
            return Err(invalid);
        }
    }
    let join_state = groups.join(&mgid, id, wanted.join_state, by_proxy).ok_or(invalid)?;
    let answer = Record { port_gid: wanted.port_gid, join_state, proxy: by_proxy, ..group };
    Ok(Joined { answer, created, deleted: false })
}

/// The record of a new group.
fn creation(
    request: &SaRequest<'_>,
    wanted: Record,
    (mtu, rate): (u8, u8),
    life: u8,
    number: &mut u32,
) -> Result<Record, Refusal> {
    let invalid = Refusal(STATUS_INVALID_REQUEST);
    let asked = |both: u64, value: (u8, u8)| if request.asks(both) { value } else { (3, 0) };
    let mtu_asked = asked(Record::MTU_SELECTOR | Record::MTU, (wanted.mtu_selector, wanted.mtu));
    let rate_asked = asked(Record::RATE_SELECTOR | Record::RATE, (wanted.rate_selector, wanted.rate));
    let mut mgid = wanted.mgid;
    if mgid == [0; 16] {
        let scope = if request.asks(Record::SCOPE) { wanted.scope } else { LINK_LOCAL_SCOPE };
        *number = number.wrapping_add(1);
        mgid[..4].copy_from_slice(&[0xff, 0x10 | scope, CHOSEN[0], CHOSEN[1]]);
        mgid[4..12].copy_from_slice(&request.prefix.to_be_bytes());
        mgid[12..].copy_from_slice(&number.to_be_bytes());
    }
    let scope = mgid[1] & 0xf;
    let hop_limit = if request.asks(Record::HOP_LIMIT) { wanted.hop_limit } else { hop_limit(scope) };
    // GIDs that the manager chooses in a subnet are its own to give away.
    let is_reserved = mgid == wanted.mgid && mgid[2..4] == CHOSEN && scope == LINK_LOCAL_SCOPE;
    if mgid[0] != 0xff || !matches!(mgid[1] >> 4, 0 | 1) || scope == 0 || is_reserved {
        return Err(invalid);
    }
    Ok(Record {
        mgid,
        mtu_selector: EXACTLY,
        mtu: choose_mtu(mtu, mtu_asked).ok_or(invalid)?,
        rate_selector: EXACTLY,
        rate: choose_rate(rate, rate_asked).ok_or(invalid)?,
        life_selector: EXACTLY,
        life,
        scope,
        hop_limit,
        pkey: wanted.pkey | 0x8000,
        join_state: 0,
        proxy: false,
        port_gid: [0; 16],
        ..wanted
    })
}

/// The hop limit of packets to a group whose creator names none.
const fn hop_limit(scope: u8) -> u8 {
    if is_beyond_subnet(scope) { u8::MAX } else { 0 }
}

/// Takes bits of a port's membership.
pub(super) fn leave(request: &SaRequest<'_>, index: &Index, groups: &mut Groups) -> Result<Joined, Refusal> {
    let invalid = Refusal(STATUS_INVALID_REQUEST);
    let wanted: Record = request.template();
    let id = member(request, index, &wanted)?;
    let known = groups.find(&wanted.mgid).ok_or(invalid)?;
    if !may_change(request, known, id) {
        return Err(Refusal(STATUS_DENIED));
    }
    let group = known.record;
    let (join_state, deleted) = groups.leave(&wanted.mgid, id, wanted.join_state).ok_or(invalid)?;
    Ok(Joined { answer: Record { port_gid: wanted.port_gid, join_state, ..group }, created: false, deleted })
}

/// Answers queries. With the SM_Key there is a record for each member; without it, a record for
/// each group, and members stay hidden.
pub(super) fn query(request: &SaRequest<'_>, groups: &Groups) -> Answer {
    let template: Record = request.template();
    let mut records = request.records::<Record>();
    let own = request.inventory.port(request.asker).map_or(&[][..], pkeys);
    for group in groups.iter() {
        if !request.trusted && common(own, &[group.record.pkey | 0x8000]).is_none() {
            continue;
        }
        if !request.trusted || group.members.is_empty() {
            records.offer(group.record, &template, request.mask)?;
            continue;
        }
        for (id, join_state) in &group.members {
            let port_gid = gid(request.prefix, id.guid);
            let proxy = group.proxies.contains(id);
            let record = Record { port_gid, join_state: *join_state, proxy, ..group.record };
            records.offer(record, &template, request.mask)?;
        }
    }
    Ok(records)
}
