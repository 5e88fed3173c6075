//! Routers as members of groups, in the subnet of the other tests.

use super::*;
use crate::groups::Routed;

/// A router at port 5 of the second switch, with the LID 15.
const ROUTER: u64 = 0x90;

fn with_router() -> (Sa, Inventory) {
    let (mut sa, mut inventory) = sa();
    let home = PortId { node: 2, port: 5 };
    add(&mut inventory, ROUTER, NodeType::Router, [(1, port(ROUTER, 15, 0, Some(home), &[0xffff]))].into(), None);
    inventory.lids[15] = Some(PortId { node: ROUTER, port: 1 });
    sa.inventory_changed(&inventory, Duration::ZERO);
    while sa.poll_event().is_some() {}
    (sa, inventory)
}

#[test]
fn routers_are_members_of_groups_beyond_the_subnet_only_while_they_are_told() {
    let (mut sa, inventory) = with_router();
    let mut site = membership(1, 0x10, 1);
    site.mgid[1] = 0x15;
    for record in [site, membership(2, 0x10, 1)] {
        let mad = datagram(METHOD_SET, McMemberRecord::ATTRIBUTE, 0, CREATE, record);
        let (status, joined) = ask::<McMemberRecord>(&mut sa, &inventory, 4, &mad);
        assert_eq!((status, joined.hop_limit), (0, if record.mgid == site.mgid { 255 } else { 0 }));
    }
    let routed: Vec<Routed> = sa.routed(&inventory).collect();
    assert_eq!(routed.len(), 1, "not the link-local group");
    assert!(routed[0].record.mgid == site.mgid && routed[0].receives && routed[0].lives);
    let full = BTreeMap::from([(ROUTER, McMemberRecord::FULL)]);
    let record = sa.join_routers(&inventory, &routed[0].record, &full, SECOND).expect("it is joined");
    let members = |sa: &Sa| sa.groups().get(&record.mlid).map(|members| members.len());
    assert_eq!(members(&sa), Some(2));
    assert_eq!(sa.routed(&inventory).count(), 1, "the router is no member that matters");
    let other = McMemberRecord { qkey: 1, ..record };
    assert_eq!(sa.join_routers(&inventory, &other, &full, SECOND), None, "another Q_Key");
    assert_eq!(members(&sa), Some(1), "so the router leaves");
    sa.join_routers(&inventory, &record, &full, SECOND).expect("it is joined");
    let mad = datagram(METHOD_DELETE, McMemberRecord::ATTRIBUTE, 0, JOIN, site);
    assert_eq!(ask::<McMemberRecord>(&mut sa, &inventory, 4, &mad).0, 0);
    assert_eq!((members(&sa), sa.routed(&inventory).count()), (Some(1), 0));
    assert_eq!(sa.groups_of_routers(&inventory).count(), 1);
    assert_eq!(sa.join_routers(&inventory, &record, &BTreeMap::new(), SECOND), None);
    assert_eq!(members(&sa), None, "the group has ended");
    let made = sa.join_routers(&inventory, &record, &full, SECOND).expect("a subnet without members has it, too");
    assert_eq!(members(&sa), Some(1));
    assert!(
        sa.join_routers(&inventory, &made, &BTreeMap::from([(0x11, 1)]), SECOND).is_none(),
        "an adapter is no router"
    );
}
