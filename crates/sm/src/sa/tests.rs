//! Requests to a subnet of three switches in a row, with four adapters: 0x10 and 0x11 at the first
//! switch, 0x12 at the second and 0x13 at the third. 0x10, 0x11 and 0x12 are in the default
//! partition; 0x13 is a limited member of it, and so is 0x12.

use super::*;
use crate::inventory::{Node, Port, Switch};
use proptest::prelude::*;
use wire::mad::MAD_LEN;
use wire::sa::{GuidInfoRecord, NodeRecord, PortInfoRecord};
use wire::smp::{GuidInfo, LinkState, NodeDescription, NodeInfo, NodeType, PortInfo, SwitchInfo};

const PREFIX: u64 = 0xfe80 << 48;
const SECOND: Duration = Duration::from_secs(1);

fn port(guid: u64, lid: u16, lmc: u8, peer: Option<PortId>, pkeys: &[u16]) -> Port {
    let mut info = PortInfo { lid, lmc, mkey: 0x77, capability_mask: 0x0008_0002, ..PortInfo::default() };
    info.link.state = LinkState::Active as u8;
    (info.link.mtu_cap, info.link.neighbor_mtu) = (5, 4);
    (info.link.width_active, info.link.speed_active, info.link.extended_active) = (2, 4, 2);
    Port {
        guid,
        info,
        peer,
        pkeys: pkeys.to_vec(),
        sl_to_vl: BTreeMap::new(),
        arbitration_high: Vec::new(),
        arbitration_low: Vec::new(),
        guids: vec![guid],
        sm: None,
    }
}

/// The LID of adapter 0x10 + n is 4 + 2n, with LMC 1; the switches have 1, 2 and 3.
fn inventory() -> Inventory {
    let mut inventory = Inventory { lids: vec![None; 16], ..Inventory::default() };
    let keys: [&[u16]; 4] = [&[0xffff], &[0xffff], &[0x7fff], &[0x7fff]];
    let homes = [(1, 3), (1, 4), (2, 3), (3, 3)];
    for nth in 0..4_u16 {
        let (guid, lid) = (0x10 + u64::from(nth), 4 + 2 * nth);
        let (node, number) = homes[usize::from(nth)];
        let end = port(guid, lid, 1, Some(PortId { node, port: number }), keys[usize::from(nth)]);
        add(&mut inventory, guid, NodeType::Ca, [(1, end)].into(), None);
        inventory.lids[usize::from(lid)..usize::from(lid) + 2].fill(Some(PortId { node: guid, port: 1 }));
    }
    for switch in 1..=3_u16 {
        let guid = u64::from(switch);
        let mut ports = BTreeMap::from([(0, port(guid, switch, 0, None, &[0xffff]))]);
        if switch > 1 {
            ports.insert(1, port(guid, 0, 0, Some(PortId { node: guid - 1, port: 2 }), &[]));
        }
        if switch < 3 {
            ports.insert(2, port(guid, 0, 0, Some(PortId { node: guid + 1, port: 1 }), &[]));
        }
        let mut linear = vec![255; 16];
        for other in 1..=3 {
            linear[usize::from(other)] = toward(switch, other);
        }
        for (nth, (home, number)) in homes.iter().enumerate() {
            let home = u16::try_from(*home).unwrap();
            let egress = if home == switch { *number } else { toward(switch, home) };
            linear[4 + 2 * nth..6 + 2 * nth].fill(egress);
            if home == switch {
                let peer = PortId { node: 0x10 + u64::try_from(nth).unwrap(), port: 1 };
                ports.insert(*number, port(guid, 0, 0, Some(peer), &[]));
            }
        }
        let info = SwitchInfo { linear_cap: 64, multicast_cap: 2, ..SwitchInfo::default() };
        let switch_part = Switch { info, linear, multicast: BTreeMap::new() };
        add(&mut inventory, guid, NodeType::Switch, ports, Some(Box::new(switch_part)));
        inventory.lids[usize::from(switch)] = Some(PortId { node: guid, port: 0 });
    }
    inventory
}

fn toward(switch: u16, other: u16) -> u8 {
    match other.cmp(&switch) {
        std::cmp::Ordering::Less => 1,
        std::cmp::Ordering::Equal => 0,
        std::cmp::Ordering::Greater => 2,
    }
}

fn add(inventory: &mut Inventory, guid: u64, kind: NodeType, ports: BTreeMap<u8, Port>, switch: Option<Box<Switch>>) {
    let info = NodeInfo { node_type: kind as u8, ports: 4, node_guid: guid, ..NodeInfo::default() };
    let description = NodeDescription::new("node");
    inventory.nodes.insert(guid, Node { info, description, ports, switch, route: Box::default() });
}

fn sa() -> (Sa, Inventory) {
    let inventory = inventory();
    let mut sa = Sa::new(SaConfig { sm_key: 9, ..SaConfig::default() });
    sa.inventory_changed(&inventory, Duration::ZERO);
    (sa, inventory)
}

fn peer(lid: u16) -> Peer {
    Peer { lid, qpn: 1, pkey: 0xffff, ..Peer::default() }
}

fn gid_of(guid: u64) -> wire::cm::Gid {
    request::gid(PREFIX, guid)
}

fn datagram<R: Layout>(method: u8, attribute: u16, sm_key: u64, mask: u64, record: R) -> Mad {
    let mut mad = [0; MAD_LEN];
    sa::Header { sm_key, component_mask: mask, ..sa::Header::default() }.write(&mut mad);
    let header = Header {
        base_version: 1,
        class: CLASS_SA,
        class_version: 2,
        method,
        transaction: 5,
        attribute,
        ..Header::default()
    };
    header.emit_to(&mut mad);
    record.write(&mut mad[DATA..]);
    mad
}

/// The status and the first record of the answer.
fn ask<R: Layout + Default>(sa: &mut Sa, inventory: &Inventory, lid: u16, mad: &Mad) -> (u16, R) {
    sa.receive(inventory, peer(lid), mad, SECOND);
    sa.answer_joins(true, SECOND);
    loop {
        let (_, answer) = sa.poll_transmit().expect("there is an answer");
        if Header::of(&answer).method & RESPONSE != 0 {
            return (Header::of(&answer).status, R::read(&answer[DATA..]).unwrap());
        }
    }
}

fn path(sgid: u64, dgid: u64) -> PathRecord {
    PathRecord { sgid: gid_of(sgid), dgid: gid_of(dgid), ..PathRecord::default() }
}

const PAIR: u64 = PathRecord::SGID | PathRecord::DGID;

#[test]
fn a_path_has_the_least_of_its_links() {
    let (mut sa, mut inventory) = sa();
    let mad = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, path(0x10, 0x12));
    let (status, found) = ask::<PathRecord>(&mut sa, &inventory, 4, &mad);
    assert_eq!((status, found.slid, found.dlid, found.mtu, found.rate, found.pkey), (0, 4, 8, 4, 16, 0xffff));
    assert!(found.reversible);
    let slow = inventory.port_mut(PortId { node: 1, port: 2 }).unwrap();
    (slow.info.link.neighbor_mtu, slow.info.link.extended_active) = (3, 0);
    let (_, found) = ask::<PathRecord>(&mut sa, &inventory, 4, &mad);
    assert_eq!((found.mtu, found.rate), (3, 7), "1024 bytes and 40 Gb/s");
    inventory.nodes.get_mut(&2).unwrap().switch.as_mut().unwrap().linear[8] = 255;
    assert_eq!(ask::<PathRecord>(&mut sa, &inventory, 4, &mad).0, sa::STATUS_NO_RECORDS);
}

#[test]
fn a_path_to_another_subnet_leads_to_a_router() {
    const OWN: u64 = 0xfec0 << 48 | 1;
    let mut inventory = inventory();
    let beyond = PathRecord { sgid: request::gid(OWN, 0x10), dgid: request::gid(OWN + 6, 0x77), ..path(0, 0) };
    let mad = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, beyond);
    let config = SaConfig { prefix: OWN, ..SaConfig::default() };
    let asked = |config: &SaConfig, inventory: &Inventory, mad: &Mad| {
        let mut sa = Sa::new(config.clone());
        sa.inventory_changed(inventory, Duration::ZERO);
        ask::<PathRecord>(&mut sa, inventory, 4, mad)
    };
    assert_eq!(asked(&config, &inventory, &mad).0, sa::STATUS_INVALID_GID, "there is no router");
    inventory.nodes.get_mut(&0x11).unwrap().info.node_type = NodeType::Router as u8;
    let (status, found) = asked(&config, &inventory, &mad);
    assert_eq!((status, found.slid, found.dlid, found.hop_limit, found.dgid), (0, 4, 6, 255, beyond.dgid));
    let inside = PathRecord { dgid: request::gid(OWN, 0x12), ..beyond };
    let (status, found) = asked(&config, &inventory, &datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, inside));
    assert_eq!((status, found.dlid, found.hop_limit), (0, 8, 0), "inside of the subnet");
    let unknown = PathRecord { dgid: request::gid(OWN, 0x99), ..beyond };
    let unknown = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, unknown);
    assert_eq!(asked(&config, &inventory, &unknown).0, sa::STATUS_INVALID_GID);
    let local = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, PathRecord { sgid: gid_of(0x10), ..beyond });
    let link_local = SaConfig { prefix: PREFIX, ..config };
    assert_eq!(asked(&link_local, &inventory, &local).0, sa::STATUS_INVALID_GID, "no router forwards such packets");
}

#[test]
fn a_requester_may_choose_a_service_level_that_has_a_lane() {
    let inventory = inventory();
    let wanted = PathRecord { sl: 3, ..path(0x10, 0x11) };
    let mad = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR | PathRecord::SL, wanted);
    let asked = |config: SaConfig| {
        let mut sa = Sa::new(config);
        sa.inventory_changed(&inventory, Duration::ZERO);
        let (status, found) = ask::<PathRecord>(&mut sa, &inventory, 4, &mad);
        (status == 0).then_some(found.sl)
    };
    assert_eq!(asked(SaConfig::default()), Some(3));
    assert_eq!(asked(SaConfig { dropped: 1 << 3, ..SaConfig::default() }), None);
    let levels = BTreeMap::from([(0x7fff, 2)]);
    assert_eq!(asked(SaConfig { levels, ..SaConfig::default() }), None, "the partition has another level");
}

#[test]
fn limited_members_have_no_path_to_each_other() {
    let (mut sa, inventory) = sa();
    let mad = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 9, PAIR, path(0x12, 0x13));
    assert_eq!(ask::<PathRecord>(&mut sa, &inventory, 4, &mad).0, sa::STATUS_NO_RECORDS);
    let own = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, path(0x13, 0x13));
    let (status, found) = ask::<PathRecord>(&mut sa, &inventory, 10, &own);
    assert_eq!((status, found.pkey, found.life), (0, 0x7fff, 0), "a port reaches itself");
    let unknown = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, path(0x10, 0x99));
    assert_eq!(ask::<PathRecord>(&mut sa, &inventory, 4, &unknown).0, sa::STATUS_INVALID_GID);
    let lacking = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PathRecord::SGID, path(0x10, 0x11));
    assert_eq!(ask::<PathRecord>(&mut sa, &inventory, 4, &lacking).0, sa::STATUS_INSUFFICIENT_COMPONENTS);
}

#[test]
fn paths_of_several_pairs_begin_with_each_end_once() {
    let (mut sa, inventory) = sa();
    let counts = MultiPathRecord::SOURCES | MultiPathRecord::DESTINATIONS;
    let mut wanted = MultiPathRecord { sources: 2, destinations: 2, number: 2, ..MultiPathRecord::default() };
    for (gid, guid) in wanted.gids.iter_mut().zip([0x10, 0x11, 0x12, 0x13]) {
        *gid = gid_of(guid);
    }
    let multi = |mask, record: MultiPathRecord| datagram(METHOD_GET_MULTI, MultiPathRecord::ATTRIBUTE, 0, mask, record);
    let mad = multi(counts | MultiPathRecord::NUMBER | MultiPathRecord::SL, wanted);
    sa.receive(&inventory, peer(4), &mad, SECOND);
    let answer =
        std::iter::from_fn(|| sa.poll_transmit()).map(|(_, mad)| mad).find(|mad| mad[3] & RESPONSE != 0).unwrap();
    let header = Header::of(&answer);
    assert_eq!((header.method, header.attribute, header.status), (0x94, PathRecord::ATTRIBUTE, 0));
    let second = PathRecord::read(&answer[DATA + 64..]).unwrap();
    let first = PathRecord::read(&answer[DATA..]).unwrap();
    assert_eq!((first.sgid, first.dgid, first.slid, first.dlid), (gid_of(0x10), gid_of(0x12), 4, 8));
    assert_eq!((second.sgid, second.dgid), (gid_of(0x11), gid_of(0x13)));
    assert_eq!(rmpp::Header::read(&answer[rmpp::OFFSET..]).unwrap().length, 20 + 2 * 64);
    let refused = [
        (MultiPathRecord::SOURCES, wanted, sa::STATUS_INSUFFICIENT_COMPONENTS),
        (counts, MultiPathRecord { destinations: 0, ..wanted }, sa::STATUS_INVALID_REQUEST),
        (counts, MultiPathRecord { sources: 9, ..wanted }, sa::STATUS_INVALID_REQUEST),
        (counts, MultiPathRecord { destinations: 3, ..wanted }, sa::STATUS_INVALID_GID),
    ];
    for (mask, record, status) in refused {
        assert_eq!(ask::<MultiPathRecord>(&mut sa, &inventory, 6, &multi(mask, record)).0, status);
    }
}

#[test]
fn independent_paths_have_few_links_in_common() {
    let (sa, mut inventory) = sa();
    // A second link between the first two switches, for the second LID of 0x12.
    for (node, peer) in [(1, 2), (2, 1)] {
        let second = port(node, 0, 0, Some(PortId { node: peer, port: 9 }), &[]);
        inventory.nodes.get_mut(&node).unwrap().ports.insert(9, second);
    }
    inventory.nodes.get_mut(&1).unwrap().switch.as_mut().unwrap().linear[9] = 9;
    let mask = MultiPathRecord::SOURCES | MultiPathRecord::DESTINATIONS | MultiPathRecord::NUMBER;
    let mut wanted = MultiPathRecord { sources: 2, destinations: 1, number: 2, ..MultiPathRecord::default() };
    for (gid, guid) in wanted.gids.iter_mut().zip([0x10, 0x11, 0x12]) {
        *gid = gid_of(guid);
    }
    for (independence, dlids) in [(0, [8, 8]), (2, [8, 9])] {
        let mut sa = sa.clone();
        let mask = mask | MultiPathRecord::INDEPENDENCE;
        let record = MultiPathRecord { independence, ..wanted };
        let mad = datagram(METHOD_GET_MULTI, MultiPathRecord::ATTRIBUTE, 0, mask, record);
        sa.receive(&inventory, peer(4), &mad, SECOND);
        let (_, answer) = std::iter::from_fn(|| sa.poll_transmit()).find(|(_, mad)| mad[3] & RESPONSE != 0).unwrap();
        let path = |nth: usize| PathRecord::read(&answer[DATA + 64 * nth..]).unwrap();
        assert_eq!([path(0).dlid, path(1).dlid], dlids);
    }
}

#[test]
fn a_loop_in_the_tables_is_no_path() {
    let (mut sa, mut inventory) = sa();
    inventory.nodes.get_mut(&2).unwrap().switch.as_mut().unwrap().linear[8] = 1;
    let mad = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, path(0x10, 0x12));
    assert_eq!(ask::<PathRecord>(&mut sa, &inventory, 4, &mad).0, sa::STATUS_NO_RECORDS);
}

#[test]
fn management_keys_are_hidden_without_the_key_of_the_manager() {
    let (mut sa, inventory) = sa();
    let record = PortInfoRecord { lid: 4, ..PortInfoRecord::default() };
    let get = |key| datagram(METHOD_GET, PortInfoRecord::ATTRIBUTE, key, PortInfoRecord::LID, record);
    for (key, mkey) in [(0, 0), (9, 0x77)] {
        let (status, found) = ask::<PortInfoRecord>(&mut sa, &inventory, 6, &get(key));
        assert_eq!((status, found.info.mkey), (0, mkey));
    }
    sa.receive(&inventory, peer(6), &get(8), SECOND);
    assert_eq!(sa.poll_transmit(), None, "a wrong key has no answer");
    let mad = datagram(METHOD_GET, NodeRecord::ATTRIBUTE, 0, 0, NodeRecord::default());
    assert_eq!(ask::<NodeRecord>(&mut sa, &inventory, 4, &mad).0, sa::STATUS_TOO_MANY_RECORDS);
    let table = sa::PKeyTableRecord { lid: 4, ..sa::PKeyTableRecord::default() };
    for (key, status) in [(0, sa::STATUS_INVALID_REQUEST), (9, 0)] {
        let mad = datagram(METHOD_GET, sa::PKeyTableRecord::ATTRIBUTE, key, sa::PKeyTableRecord::LID, table);
        assert_eq!(ask::<sa::PKeyTableRecord>(&mut sa, &inventory, 4, &mad).0, status, "tables of partitions");
    }
}

const CREATE: u64 = McMemberRecord::MGID
    | McMemberRecord::PORT_GID
    | McMemberRecord::JOIN_STATE
    | McMemberRecord::QKEY
    | McMemberRecord::PKEY
    | McMemberRecord::TRAFFIC_CLASS
    | McMemberRecord::FLOW_LABEL
    | McMemberRecord::SL;
const JOIN: u64 = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;

fn membership(last: u8, port: u64, join_state: u8) -> McMemberRecord {
    let mgid = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    McMemberRecord { mgid, port_gid: gid_of(port), qkey: 0x0b1b, pkey: 0xffff, join_state, ..McMemberRecord::default() }
}

#[test]
fn a_group_lives_until_its_last_full_member_leaves() {
    let (mut sa, inventory) = sa();
    let attribute = McMemberRecord::ATTRIBUTE;
    let mut call = |lid, method, mask, record| {
        let mad = datagram(method, attribute, 0, mask, record);
        ask::<McMemberRecord>(&mut sa, &inventory, lid, &mad)
    };
    assert_eq!(call(6, METHOD_SET, CREATE, membership(1, 0x11, 2)).0, sa::STATUS_INVALID_REQUEST, "a non-member");
    assert_eq!(call(4, METHOD_SET, JOIN, membership(1, 0x10, 1)).0, sa::STATUS_INSUFFICIENT_COMPONENTS);
    let (status, joined) = call(4, METHOD_SET, CREATE, membership(1, 0x10, 1));
    assert_eq!((status, joined.mlid, joined.mtu, joined.join_state), (0, 0xc000, 5, 1));
    assert_eq!(call(6, METHOD_SET, JOIN, membership(1, 0x11, 2)).1.join_state, 2);
    let other = McMemberRecord { qkey: 1, ..membership(1, 0x11, 2) };
    assert_eq!(call(6, METHOD_SET, CREATE, other).0, sa::STATUS_INVALID_REQUEST, "another Q_Key");
    assert_eq!(call(4, METHOD_SET, CREATE, membership(2, 0x10, 1)).1.mlid, 0xc001);
    assert_eq!(call(4, METHOD_SET, CREATE, membership(3, 0x10, 1)).0, sa::STATUS_NO_RESOURCES, "the switches hold two");
    assert_eq!(call(4, METHOD_DELETE, JOIN, membership(1, 0x10, 2)).0, sa::STATUS_INVALID_REQUEST, "not its bits");
    assert_eq!(call(4, METHOD_DELETE, JOIN, membership(1, 0x10, 1)).1.join_state, 0);
    assert_eq!(call(4, METHOD_GET, McMemberRecord::MGID, membership(1, 0, 0)).0, sa::STATUS_NO_RECORDS);
    assert_eq!(sa.groups().keys().copied().collect::<Vec<_>>(), [0xc001]);
    assert_eq!(sa.poll_event(), Some(SaEvent::GroupsChanged));
}

#[test]
fn a_proxy_changes_only_what_the_port_has_not_joined_itself() {
    let (mut sa, inventory) = sa();
    let mut call = |lid, method, mask, record| {
        let mad = datagram(method, McMemberRecord::ATTRIBUTE, 0, mask, record);
        let (status, answer) = ask::<McMemberRecord>(&mut sa, &inventory, lid, &mad);
        (status, answer.proxy)
    };
    let member = membership(1, 0x10, 1);
    assert_eq!(call(6, METHOD_SET, CREATE, member), (0, true));
    assert_eq!(call(6, METHOD_DELETE, JOIN, member).0, 0);
    assert_eq!(call(6, METHOD_SET, CREATE, member), (0, true));
    assert_eq!(call(4, METHOD_SET, JOIN, member), (0, false));
    assert_eq!(call(6, METHOD_DELETE, JOIN, member).0, sa::STATUS_DENIED, "0x10 is a member by itself");
    assert_eq!(call(6, METHOD_SET, JOIN, McMemberRecord { join_state: 2, ..member }).0, sa::STATUS_DENIED);
    assert_eq!(call(4, METHOD_DELETE, JOIN, member).0, 0);
    assert_eq!(call(8, METHOD_SET, CREATE, membership(1, 0x13, 1)).0, sa::STATUS_DENIED, "no common partition");
}

#[test]
fn a_group_of_a_chosen_gid_is_not_made_by_request() {
    let (mut sa, inventory) = sa();
    let mut create = |first: [u8; 4]| {
        let mut record = membership(1, 0x10, 1);
        record.mgid[..4].copy_from_slice(&first);
        let mad = datagram(METHOD_SET, McMemberRecord::ATTRIBUTE, 0, CREATE, record);
        ask::<McMemberRecord>(&mut sa, &inventory, 4, &mad).0
    };
    assert_eq!(create([0xff, 0x12, 0xa0, 0x1b]), sa::STATUS_INVALID_REQUEST);
    assert_eq!(create([0xef, 0x12, 0xa0, 0x1c]), sa::STATUS_INVALID_REQUEST, "not of a group");
    assert_eq!(create([0xff, 0x22, 0xa0, 0x1c]), sa::STATUS_INVALID_REQUEST, "an unknown flag");
    assert_eq!(create([0xff, 0x15, 0xa0, 0x1b]), 0, "the scope of a site");
    assert_eq!(create([0xff, 0x1f, 0xa0, 0x1c]), 0, "the largest scope");
}

#[test]
fn an_alias_is_a_member_of_its_own_and_belongs_to_one_port() {
    let (mut sa, mut inventory) = sa();
    for guid in [0x10, 0x11] {
        inventory.port_mut(PortId { node: guid, port: 1 }).unwrap().info.guid_cap = 16;
    }
    sa.inventory_changed(&inventory, SECOND);
    let block = GuidInfoRecord::LID | GuidInfoRecord::BLOCK;
    let aliases = |sa: &mut Sa, from, method, mask, (lid, block, guids): (u16, u8, [u64; 8])| {
        let record = GuidInfoRecord { lid, block, table: GuidInfo { guids } };
        let mad = datagram(method, GuidInfoRecord::ATTRIBUTE, 0, mask, record);
        let (status, answer) = ask::<GuidInfoRecord>(sa, &inventory, from, &mad);
        (status, answer.table.guids)
    };
    let (first, second) = (block | 1 << 5, block | 1 << 5 | 1 << 6);
    let wanted = (4, 0, [0, 0x50, 0, 0, 0, 0, 0, 0]);
    let chosen = 0x0014_0500_0000_0001;
    let both = [0x10, 0x50, chosen, 0, 0, 0, 0, 0];
    assert_eq!(aliases(&mut sa, 4, METHOD_SET, second, wanted), (0, both), "one of its own choice");
    assert_eq!(sa.poll_event(), Some(SaEvent::AliasesChanged));
    assert_eq!(sa.aliases()[&PortId { node: 0x10, port: 1 }], [0, 0x50, chosen]);
    assert_eq!(aliases(&mut sa, 6, METHOD_SET, second, wanted).0, sa::STATUS_DENIED, "another port's");
    let taken = (6, 1, [0x50, 0x60, 0x10, 0, 0, 0, 0, 0]);
    assert_eq!(aliases(&mut sa, 6, METHOD_SET, block | 7 << 4, taken).1, [0, 0x60, 0, 0, 0, 0, 0, 0]);
    assert_eq!(aliases(&mut sa, 4, METHOD_SET, block | 1 << 4, wanted).0, sa::STATUS_INVALID_REQUEST, "its own GUID");
    assert_eq!(aliases(&mut sa, 4, METHOD_SET, first, (4, 2, [0; 8])).0, sa::STATUS_NO_RECORDS, "its table ends");

    let mad = datagram(METHOD_GET, PathRecord::ATTRIBUTE, 0, PAIR, path(0x50, 0x60));
    let (status, found) = ask::<PathRecord>(&mut sa, &inventory, 4, &mad);
    assert_eq!((status, found.slid, found.dlid, found.sgid), (0, 4, 6, gid_of(0x50)));
    let mut member = |method, mask, guid| {
        let mad = datagram(method, McMemberRecord::ATTRIBUTE, 0, mask, membership(1, guid, 1));
        ask::<McMemberRecord>(&mut sa, &inventory, 4, &mad).0
    };
    assert_eq!([member(METHOD_SET, CREATE, 0x10), member(METHOD_SET, JOIN, 0x50)], [0, 0]);
    assert_eq!(member(METHOD_DELETE, JOIN, 0x10), 0, "the alias is still a member");
    assert_eq!(sa.groups()[&0xc000].len(), 1);
    assert_eq!(aliases(&mut sa, 4, METHOD_DELETE, first, wanted).0, sa::STATUS_DENIED, "it is a member of a group");
    let left = datagram(METHOD_DELETE, McMemberRecord::ATTRIBUTE, 0, JOIN, membership(1, 0x50, 1));
    assert_eq!(ask::<McMemberRecord>(&mut sa, &inventory, 4, &left).0, 0);
    assert_eq!(aliases(&mut sa, 4, METHOD_DELETE, second, wanted).1, [0x10, 0, 0, 0, 0, 0, 0, 0]);
    let again = aliases(&mut sa, 4, METHOD_SET, block | 1 << 6, (4, 0, [0; 8])).1;
    assert_eq!(again, [0x10, 0, chosen, 0, 0, 0, 0, 0], "an index gets the same GUID again");
}

#[test]
fn a_port_that_vanishes_leaves_its_groups() {
    let (mut sa, mut inventory) = sa();
    let mad = datagram(METHOD_SET, McMemberRecord::ATTRIBUTE, 0, CREATE, membership(1, 0x10, 1));
    assert_eq!(ask::<McMemberRecord>(&mut sa, &inventory, 4, &mad).0, 0);
    let broadcast = crate::partitions::Partitions::default().list[0].records()[0];
    assert_eq!(broadcast.mgid[4..6], [0xff, 0xff]);
    assert_eq!(sa.create_group(&inventory, broadcast), Some(0xc001));
    inventory.nodes.remove(&0x10);
    sa.inventory_changed(&inventory, SECOND);
    assert_eq!(sa.groups(), BTreeMap::from([(0xc001, vec![])]), "the permanent group stays");
}

#[test]
fn a_service_ends_with_its_lease_and_needs_its_key() {
    let (mut sa, inventory) = sa();
    let mask = ServiceRecord::ID | ServiceRecord::GID | ServiceRecord::LEASE | ServiceRecord::KEY;
    let record = ServiceRecord { id: 3, gid: gid_of(0x10), lease: 10, key: [1; 16], ..ServiceRecord::default() };
    let call = |sa: &mut Sa, method, mask, record| {
        let mad = datagram(method, ServiceRecord::ATTRIBUTE, 0, mask, record);
        ask::<ServiceRecord>(sa, &inventory, 4, &mad)
    };
    assert_eq!(call(&mut sa, METHOD_SET, mask, record).0, 0);
    let (status, found) = call(&mut sa, METHOD_GET, ServiceRecord::ID, record);
    assert_eq!((status, found.key, found.lease), (0, [0; 16], 10));
    let forged = ServiceRecord { key: [2; 16], ..record };
    assert_eq!(call(&mut sa, METHOD_DELETE, mask, forged).0, sa::STATUS_DENIED);
    assert_eq!(sa.next_timeout(), Some(11 * SECOND));
    sa.handle_timeout(&inventory, 11 * SECOND);
    assert_eq!(call(&mut sa, METHOD_GET, ServiceRecord::ID, record).0, sa::STATUS_NO_RECORDS);
}

#[test]
fn a_service_belongs_to_its_port_and_hides_its_key() {
    let (mut sa, inventory) = sa();
    let mask = ServiceRecord::ID | ServiceRecord::GID | ServiceRecord::KEY | ServiceRecord::NAME;
    let plain = ServiceRecord { id: 3, gid: request::gid(7, 0x10), ..ServiceRecord::default() };
    let keyed = ServiceRecord { key: [1; 16], name: [b'n'; 64], ..plain };
    let mut call = |lid, method, mask, record| {
        let mad = datagram(method, ServiceRecord::ATTRIBUTE, 0, mask, record);
        let (status, answer) = ask::<ServiceRecord>(&mut sa, &inventory, lid, &mad);
        (status, answer.key)
    };
    let (good, denied, none) = ((0, [0; 16]), sa::STATUS_DENIED, sa::STATUS_NO_RECORDS);
    assert_eq!(call(4, METHOD_SET, mask, plain), good, "its GID is of another subnet");
    assert_eq!(call(6, METHOD_SET, mask, plain).0, denied, "another port has it");
    assert_eq!(call(4, METHOD_SET, mask, keyed), good, "it had no key");
    assert_eq!(call(4, METHOD_SET, mask, plain).0, denied, "now it has one");
    let unknown = ServiceRecord { gid: gid_of(0x99), ..plain };
    assert_eq!(call(4, METHOD_SET, mask, unknown).0, sa::STATUS_INVALID_GID);
    let named = ServiceRecord::NAME | ServiceRecord::KEY;
    assert_eq!(call(6, METHOD_GET, named, keyed), good);
    assert_eq!(call(6, METHOD_GET, named, ServiceRecord { key: [0; 16], ..keyed }).0, none);
    let shown = ServiceRecord { key: [0; 16], pkey: 0xffff, ..keyed };
    assert_eq!(call(6, METHOD_DELETE, ServiceRecord::NAME, shown).0, denied);
    assert_eq!(call(4, METHOD_DELETE, ServiceRecord::NAME, shown), good, "as a query has shown it");
    assert_eq!(call(4, METHOD_DELETE, ServiceRecord::NAME, shown).0, none);
}

#[test]
fn a_subscriber_hears_until_it_no_longer_answers() {
    let (mut sa, inventory) = sa();
    let all = InformInfo {
        lid_begin: 0xffff,
        generic: 1,
        subscribe: 1,
        kind: 0xffff,
        number: 0xffff,
        producer: 0xff_ffff,
        ..InformInfo::default()
    };
    let mad = datagram(METHOD_SET, InformInfo::ATTRIBUTE, 0, 0, all);
    assert_eq!(ask::<InformInfo>(&mut sa, &inventory, 4, &mad).0, 0);
    let details = GidNotice { gid: gid_of(0x11) };
    let notice = Notice::with(Notice::SUBNET, 4, Notice::GID_IN_SERVICE, 1, details);
    sa.notice(&inventory, &notice, SECOND);
    let (to, mut report) = sa.poll_transmit().unwrap();
    assert_eq!((to, Header::of(&report).method), (peer(4), METHOD_REPORT));
    assert_eq!(Notice::read(&report[DATA..]), Some(notice));
    report[3] |= RESPONSE;
    sa.receive(&inventory, peer(4), &report, SECOND);
    assert_eq!(sa.next_timeout(), None, "the report is answered");
    sa.notice(&inventory, &notice, SECOND);
    while let Some(due) = sa.next_timeout() {
        sa.handle_timeout(&inventory, due);
    }
    while sa.poll_transmit().is_some() {}
    sa.notice(&inventory, &notice, 20 * SECOND);
    assert_eq!(sa.poll_transmit(), None);
}

/// All paths of 39 ports: three switches, 4 adapters, and 32 more at the second switch.
#[test]
fn a_table_of_a_thousand_paths_arrives_over_a_lossy_way() {
    let (mut sa, mut inventory) = sa();
    inventory.lids.resize(64, None);
    for nth in 0..32_u8 {
        let (guid, lid) = (0x40 + u64::from(nth), 20 + u16::from(nth));
        let here = PortId { node: guid, port: 1 };
        let home = PortId { node: 2, port: 10 + nth };
        add(&mut inventory, guid, NodeType::Ca, [(1, port(guid, lid, 0, Some(home), &[0xffff]))].into(), None);
        inventory.lids[usize::from(lid)] = Some(here);
        inventory.nodes.get_mut(&2).unwrap().ports.insert(10 + nth, port(2, 0, 0, Some(here), &[]));
        for (switch, egress) in [(1, 2), (2, 10 + nth), (3, 1)] {
            let linear = &mut inventory.nodes.get_mut(&switch).unwrap().switch.as_mut().unwrap().linear;
            linear.resize(64, 255);
            linear[usize::from(lid)] = egress;
        }
    }
    sa.inventory_changed(&inventory, Duration::ZERO);
    let mut client = Client::new(Registration(3), true, 1 << 20);
    let mad = datagram(
        METHOD_GET_TABLE,
        PathRecord::ATTRIBUTE,
        0,
        PathRecord::NUMBER,
        PathRecord { number: 1, ..PathRecord::default() },
    );
    client.send(peer(1), &mad, 30 * SECOND, 3, Duration::ZERO).unwrap();
    let (mut now, mut sent) = (Duration::ZERO, 0_u32);
    let message = loop {
        let (to, back) = (client.poll_transmit(), sa.poll_transmit());
        if to.is_none() && back.is_none() {
            now = sa.next_timeout().into_iter().chain(client.deadline()).min().expect("something is due");
            sa.handle_timeout(&inventory, now);
            client.handle_timeout(now);
        }
        let mut arrives = || {
            sent += 1;
            !sent.is_multiple_of(11)
        };
        if let Some((_, mad)) = to.filter(|_| arrives()) {
            sa.receive(&inventory, peer(4), &mad, now);
        }
        if let Some((_, mad)) = back.filter(|_| arrives()) {
            client.receive(peer(1), &mad, now);
        }
        match client.poll_event() {
            Some(client::Event::Received(_, message)) => break message,
            Some(event) => panic!("{event:?}"),
            None => {}
        }
    };
    let fields = sa::Header::read(&message).unwrap();
    let records = (message.len() - DATA) / PathRecord::LEN;
    assert_eq!((fields.attribute_offset, fields.sm_key), (8, 0));
    // 39 ports, without the 2 paths from one limited member to the other.
    assert_eq!(records, 39 * 39 - 2);
    let mut last = [0; PathRecord::LEN];
    last.copy_from_slice(&message[message.len() - PathRecord::LEN..]);
    assert_eq!(PathRecord::parse(&last).sgid, gid_of(0x5f));
}

#[test]
fn a_table_that_is_too_long_is_refused() {
    let (_, inventory) = sa();
    let mut sa = Sa::new(SaConfig { longest: 108, ..SaConfig::default() });
    sa.inventory_changed(&inventory, SECOND);
    let mad = datagram(METHOD_GET_TABLE, NodeRecord::ATTRIBUTE, 0, 0, NodeRecord::default());
    assert_eq!(ask::<NodeRecord>(&mut sa, &inventory, 4, &mad).0, sa::STATUS_NO_RESOURCES);
}

proptest! {
    #[test]
    fn any_datagram_is_survived(
        bytes in proptest::collection::vec(any::<u8>(), MAD_LEN),
        method in proptest::sample::select(vec![1_u8, 2, 0x12, 0x13, 0x14, 0x15, 6]),
        attribute in proptest::sample::select(vec![1_u16, 3, 0x11, 0x12, 0x20, 0x30, 0x31, 0x35, 0x38, 0x3a, 0xf3, 0x36]),
        mask in prop_oneof![Just(0), any::<u64>()],
    ) {
        let (mut sa, inventory) = sa();
        let mut mad = datagram(method, attribute, 9, mask, ClassPortInfo::default());
        mad[DATA..].copy_from_slice(&bytes[DATA..]);
        sa.receive(&inventory, peer(4), &mad, SECOND);
        let mut random: Mad = bytes.try_into().unwrap();
        sa.receive(&inventory, peer(6), &random, SECOND);
        random[..4].copy_from_slice(&[1, 3, 2, method]);
        sa.receive(&inventory, peer(6), &random, SECOND);
        while let Some(due) = sa.next_timeout().filter(|due| *due < 100 * SECOND) {
            sa.handle_timeout(&inventory, due);
        }
    }
}

mod routers;
