//! Tests of the records against literal bytes and against the positions and components of opensm
//! and libibmad.

use super::*;
use crate::layout::matches;
use crate::layout::tests::{agrees, components, round_trip};
use crate::smp::NodeInfo;

#[test]
fn the_header_is_where_libibmad_has_it() {
    agrees::<Header>(&[("SaSMkey", 288, 64), ("SaAttrOffs", 46 * 8 - 16, 16), ("SaCompMask", 48 * 8, 64)]);
    round_trip::<Header>();
    assert_eq!((DATA_LEN, stride::<PathRecord>(), stride::<NodeRecord>(), stride::<LinkRecord>()), (200, 64, 112, 8));
}

#[test]
fn nothing_is_lost() {
    round_trip::<NodeRecord>();
    round_trip::<PortInfoRecord>();
    round_trip::<SlToVlRecord>();
    round_trip::<SwitchInfoRecord>();
    round_trip::<LinearTableRecord>();
    round_trip::<MulticastTableRecord>();
    round_trip::<SmInfoRecord>();
    round_trip::<GuidInfoRecord>();
    round_trip::<PKeyTableRecord>();
    round_trip::<VlArbitrationRecord>();
    round_trip::<InformInfoRecord>();
    round_trip::<LinkRecord>();
    round_trip::<PathRecord>();
    round_trip::<MultiPathRecord>();
    round_trip::<McMemberRecord>();
    round_trip::<ServiceRecord>();
}

#[test]
fn a_path_in_literal_bytes() {
    let mut bytes = [0; PathRecord::LEN];
    bytes[7] = 0x77;
    bytes[8..10].copy_from_slice(&[0xfe, 0x80]);
    bytes[23] = 2;
    bytes[39] = 1;
    bytes[40..58].copy_from_slice(&[0, 7, 0, 3, 0x80, 1, 2, 3, 9, 0x81, 0xff, 0xff, 1, 0x25, 0x84, 0x90, 0x92, 1]);
    let [mut dgid, mut sgid] = [[0; 16]; 2];
    dgid[..2].copy_from_slice(&[0xfe, 0x80]);
    (dgid[15], sgid[15]) = (2, 1);
    let path = PathRecord {
        service_id: 0x77,
        dgid,
        sgid,
        dlid: 7,
        slid: 3,
        raw: true,
        flow_label: 0x102,
        hop_limit: 3,
        traffic_class: 9,
        reversible: true,
        number: 1,
        pkey: 0xffff,
        qos_class: 0x12,
        sl: 5,
        mtu_selector: 2,
        mtu: 4,
        rate_selector: 2,
        rate: 16,
        life_selector: 2,
        life: 18,
        preference: 1,
    };
    assert_eq!(PathRecord::parse(&bytes), path);
}

#[test]
fn positions_are_those_of_libibmad() {
    agrees::<PathRecord>(&[
        ("PathRecDGid", 64, 128),
        ("PathRecSGid", 192, 128),
        ("PathRecDLid", 320, 16),
        ("PathRecSLid", 336, 16),
        ("PathRecNumPath", 393, 7),
        ("PathRecSL", 428, 4),
    ]);
    agrees::<MultiPathRecord>(&[
        ("MultiPathNumPath", 41, 7),
        ("MultiPathNumSrc", 120, 8),
        ("MultiPathNumDest", 128, 8),
    ]);
    agrees::<McMemberRecord>(&[
        ("McastMemMGid", 0, 128),
        ("McastMemPortGid", 128, 128),
        ("McastMemQkey", 256, 32),
        ("McastMemMLid", 288, 16),
        ("McastMemSL", 352, 4),
        ("McastMemMTU", 306, 6),
        ("McastMemRate", 338, 6),
        ("McastMemTClass", 312, 8),
        ("McastMemPkey", 320, 16),
        ("McastMemFlowLbl", 356, 20),
        ("McastMemJoinState", 388, 4),
        ("McastMemProxyJoin", 392, 1),
    ]);
    agrees::<ServiceRecord>(&[
        ("ServRecID", 0, 64),
        ("ServRecGid", 64, 128),
        ("ServRecPkey", 192, 16),
        ("ServRecLease", 224, 32),
        ("ServRecKey", 256, 128),
        ("ServRecName", 384, 512),
    ]);
    agrees::<GuidInfoRecord>(&[("Lid", 0, 16), ("BlockNum", 16, 8), ("Guid0 to Guid7", 64, 512)]);
}

/// Compares the components of a record with the names and numbers of opensm.
fn numbered<R: Layout>(expected: &[(&str, u8)]) {
    let own = components::<R>();
    for (name, number) in expected {
        let found = own.iter().find(|(own, _)| own == name).map(|(_, number)| *number);
        assert_eq!(found, Some(*number), "{name}");
    }
}

#[test]
fn components_are_those_of_opensm() {
    numbered::<NodeRecord>(&[
        ("lid", 0),
        ("info.base_version", 2),
        ("info.class_version", 3),
        ("info.node_type", 4),
        ("info.ports", 5),
        ("info.system_guid", 6),
        ("info.node_guid", 7),
        ("info.port_guid", 8),
        ("info.partition_cap", 9),
        ("info.device_id", 10),
        ("info.revision", 11),
        ("info.local_port", 12),
        ("info.vendor_id", 13),
        ("description.text", 14),
    ]);
    numbered::<PortInfoRecord>(&[("port", 1), ("options", 2), ("info.mkey", 3), ("info.link.state", 15)]);
    numbered::<SmInfoRecord>(&[("info.guid", 2), ("info.sm_key", 3), ("info.priority", 5), ("info.state", 6)]);
    numbered::<GuidInfoRecord>(&[("block", 1), ("table.guids[0]", 4), ("table.guids[7]", 11)]);
    numbered::<InformInfoRecord>(&[("subscriber", 0), ("info.gid", 3), ("info.qpn", 11), ("info.producer", 15)]);
    numbered::<ServiceRecord>(&[
        ("key", 5),
        ("name", 6),
        ("data8[0]", 7),
        ("data8[15]", 22),
        ("data16[0]", 23),
        ("data16[7]", 30),
        ("data32[0]", 31),
        ("data64[1]", 36),
    ]);
    let masks = [PathRecord::DGID, PathRecord::SL, PathRecord::RATE, PathRecord::LIFE, PathRecord::NUMBER];
    assert_eq!(masks, [1 << 2, 1 << 15, 1 << 19, 1 << 21, 1 << 12]);
    let masks = [McMemberRecord::MGID, McMemberRecord::PKEY, McMemberRecord::JOIN_STATE, McMemberRecord::PROXY];
    assert_eq!(masks, [1, 1 << 7, 1 << 16, 1 << 17]);
    let masks = [MultiPathRecord::SL, MultiPathRecord::SOURCES, MultiPathRecord::DESTINATIONS];
    assert_eq!(masks, [1 << 9, 1 << 19, 1 << 20]);
    assert_eq!([MulticastTableRecord::BLOCK, VlArbitrationRecord::BLOCK, PKeyTableRecord::PORT], [8, 4, 4]);
}

#[test]
fn records_are_found_by_the_components_of_the_mask() {
    let node = NodeRecord {
        lid: 4,
        info: NodeInfo { node_guid: 0x77, ports: 2, ..NodeInfo::default() },
        ..NodeRecord::default()
    };
    let template = NodeRecord { info: NodeInfo { ports: 9, ..node.info }, ..NodeRecord::default() };
    assert!(matches(&node, &template, NodeRecord::NODE_GUID));
    assert!(!matches(&node, &template, NodeRecord::NODE_GUID | NodeRecord::LID));
    let path = PathRecord { mtu: 4, rate: 3, ..PathRecord::default() };
    let at_least = PathRecord { mtu_selector: 0, mtu: 3, rate_selector: 0, rate: 5, ..PathRecord::default() };
    let mask = PathRecord::MTU_SELECTOR | PathRecord::MTU | PathRecord::RATE_SELECTOR | PathRecord::RATE;
    assert!(matches(&path, &at_least, mask), "10 Gb/s is more than 5 Gb/s");
    assert!(!matches(&path, &PathRecord { mtu: 4, ..at_least }, mask));
}

/// A GID is wider than the numbers that are compared.
#[test]
fn every_bit_of_a_gid_is_compared() {
    let path = PathRecord { sgid: [0x11; 16], dgid: [0x22; 16], ..PathRecord::default() };
    let mask = PathRecord::SGID | PathRecord::DGID;
    assert!(matches(&path, &path, mask));
    for byte in 0..16 {
        let mut other = path;
        other.dgid[byte] ^= 1;
        assert!(!matches(&path, &other, mask) && matches(&path, &other, PathRecord::SGID), "byte {byte}");
    }
}
