//! Tests of notices and subscriptions.

use super::*;
use crate::layout::tests::{agrees, components, round_trip};

#[test]
fn a_change_of_the_capability_mask_in_literal_bytes() {
    let bytes = [0x84, 0, 0, 1, 0, 144, 0, 5, 0x80, 3, 0, 0, 0, 5, 0, 1, 2, 0x51, 8, 0x6a, 0, 0x21, 0, 0x31];
    let mut whole = [0; Notice::LEN];
    whole[..24].copy_from_slice(&bytes);
    let change = ChangeNotice {
        lid: 5,
        other: true,
        capability_mask: 0x0251_086a,
        mask2_changed: true,
        description_changed: true,
        capability_mask2: 0x31,
        ..ChangeNotice::default()
    };
    let notice = Notice { toggle: true, count: 3, ..Notice::with(Notice::INFO, 1, Notice::LOCAL_CHANGE, 5, change) };
    assert_eq!(Notice::parse(&whole), notice);
    assert_eq!(notice.details::<ChangeNotice>(), change);
    let mut emitted = [0xff; Notice::LEN];
    notice.emit(&mut emitted);
    assert_eq!(emitted, whole);
}

#[test]
fn details_begin_at_the_places_of_the_specification() {
    let bytes: [u8; 80] = std::array::from_fn(|nth| u8::try_from(nth).expect("80 fit"));
    let notice = Notice::parse(&bytes);
    assert_eq!(notice.details::<GidNotice>().gid[0], 16);
    assert_eq!(notice.details::<SwitchNotice>().lid, 0x0a0b);
    assert_eq!(notice.details::<PortNotice>(), PortNotice { lid: 0x0c0d, port: 14 });
    assert_eq!(notice.details::<SystemNotice>(), SystemNotice { lid: 0x0c0d, guid: 0x1011_1213_1415_1617 });
    let mkey = notice.details::<MKeyNotice>();
    assert_eq!((mkey.lid, mkey.dr_slid, mkey.method, mkey.attribute), (0x0c0d, 0x0e0f, 16, 0x1213));
    assert_eq!((mkey.modifier, mkey.mkey, mkey.hops, mkey.path[0]), (0x1415_1617, 0x1819_1a1b_1c1d_1e1f, 33, 34));
    let key = notice.details::<KeyNotice>();
    assert_eq!((key.lid1, key.lid2, key.key, key.sl), (0x0c0d, 0x0e0f, 0x1011_1213, 1));
    assert_eq!((key.qp1, key.qp2, key.gid1[0], key.gid2[0]), (0x15_1617, 0x19_1a1b, 28, 44));
    let switch = notice.details::<SwitchPKeyNotice>();
    assert_eq!((switch.valid, switch.lid1, switch.lid2, switch.pkey), (0x0a0b, 0x0c0d, 0x0e0f, 0x1011));
    assert_eq!((switch.qp1, switch.qp2, switch.gid1[0], switch.gid2[0]), (0x13_1415, 0x17_1819, 26, 42));
    assert_eq!((switch.switch_lid, switch.port), (0x3a3b, 60));
}

#[test]
fn nothing_is_lost() {
    round_trip::<Notice>();
    round_trip::<GidNotice>();
    round_trip::<PortNotice>();
    round_trip::<ChangeNotice>();
    round_trip::<SystemNotice>();
    round_trip::<MKeyNotice>();
    round_trip::<KeyNotice>();
    round_trip::<SwitchPKeyNotice>();
    round_trip::<InformInfo>();
}

#[test]
fn positions_are_those_of_libibmad() {
    agrees::<Notice>(&[
        ("NoticeIsGeneric", 0, 1),
        ("NoticeType", 1, 7),
        ("NoticeProducerType", 8, 24),
        ("NoticeTrapNumber", 32, 16),
        ("NoticeIssuerLID", 48, 16),
        ("NoticeToggle", 64, 1),
        ("NoticeCount", 65, 15),
        ("NoticeDataDetails", 80, 432),
    ]);
    // Those of the details count from the notice's front.
    agrees::<SwitchNotice>(&[("NoticeDataLID", 80 - 80, 16)]);
    agrees::<ChangeNotice>(&[("NoticeDataTrap144LID", 96 - 80, 16), ("NoticeDataTrap144CapMask", 128 - 80, 32)]);
}

/// opensm's struct and its components of an InformInfoRecord, where three come before those here.
#[test]
fn subscriptions_are_those_of_opensm() {
    let own = components::<InformInfo>();
    let expected = [
        ("gid", 3),
        ("lid_begin", 4),
        ("lid_end", 5),
        ("generic", 7),
        ("subscribe", 8),
        ("kind", 9),
        ("number", 10),
        ("qpn", 11),
        ("response_time", 13),
        ("producer", 15),
    ];
    assert_eq!(own, expected.map(|(name, number)| (name.to_owned(), number - 3)));
    agrees::<InformInfo>(&[
        ("lid_range_begin", 16 * 8, 16),
        ("is_generic", 22 * 8, 8),
        ("subscribe", 23 * 8, 8),
        ("trap_type", 24 * 8, 16),
        ("trap_num", 26 * 8, 16),
        ("qpn", 28 * 8, 24),
        ("resp_time_val", 28 * 8 + 27, 5),
        ("node_type", 33 * 8, 24),
    ]);
}
