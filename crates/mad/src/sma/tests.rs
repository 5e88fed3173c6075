//! Tests of the agent: each attribute, keys, and hostile requests.

use super::*;
use crate::node::Node;
use crate::traps::Traps;
use proptest::prelude::*;
use wire::mad::{METHOD_TRAP, STATUS_INVALID};
use wire::smp::{LinkState, NodeType, PortLink, PortVls};

const SECOND: Duration = Duration::from_secs(1);

fn node(kind: NodeType) -> Node {
    let link = PortLink {
        width_supported: 3,
        width_enabled: 3,
        speed_supported: 7,
        speed_enabled: 7,
        mtu_cap: 5,
        state: LinkState::Init as u8,
        phys_state: PhysState::LinkUp as u8,
        down_default: 2,
        ..PortLink::default()
    };
    let vls = PortVls { cap: 3, arbitration_low_cap: 8, arbitration_high_cap: 40, ..PortVls::default() };
    let port = PortInfo { link, vls, guid_cap: 16, ..PortInfo::default() };
    let info = NodeInfo { ports: 4, node_guid: 0x100, partition_cap: 64, ..NodeInfo::default() };
    let switch = SwitchInfo { linear_cap: 0xc000, multicast_cap: 64, enforcement_cap: 32, ..SwitchInfo::default() };
    Node::new(kind, info, "a node", &port, switch)
}

fn smp<T: Layout>(method: u8, attribute: u16, modifier: u32, data: T) -> Smp {
    let mut smp =
        Smp { base_version: 1, class_version: 1, class: CLASS_SUBN_LID, method, attribute, modifier, ..Smp::default() };
    data.write(&mut smp.data);
    smp
}

fn get(node: &mut Node, attribute: u16, modifier: u32) -> (u16, [u8; 64]) {
    let answer = handle(node, 2, &smp(METHOD_GET, attribute, modifier, SlToVl::default()), SECOND).answer.unwrap();
    (answer.status, answer.data)
}

fn set<T: Layout>(node: &mut Node, attribute: u16, modifier: u32, data: T) -> (u16, Vec<(u8, NodeEvent)>) {
    let handled = handle(node, 2, &smp(METHOD_SET, attribute, modifier, data), SECOND);
    (handled.answer.unwrap().status, handled.events)
}

fn port_info(node: &mut Node, modifier: u32) -> PortInfo {
    PortInfo::parse(&get(node, PortInfo::ATTRIBUTE, modifier).1)
}

#[test]
fn node_info_names_the_port_of_arrival() {
    let info = NodeInfo::parse(&get(&mut node(NodeType::Ca), NodeInfo::ATTRIBUTE, 0).1);
    assert_eq!((info.local_port, info.port_guid, info.node_type), (2, 0x102, 1));
    let info = NodeInfo::parse(&get(&mut node(NodeType::Switch), NodeInfo::ATTRIBUTE, 0).1);
    assert_eq!((info.local_port, info.port_guid, info.node_type), (2, 0x100, 2));
}

#[test]
fn a_port_gets_its_lid_and_rises_by_single_steps() {
    let mut node = node(NodeType::Ca);
    let mut info = port_info(&mut node, 0);
    assert_eq!(info.local_port, 2);
    info.lid = 8;
    info.lmc = 3;
    info.master_sm_lid = 1;
    info.link.phys_state = 0;
    info.link.state = LinkState::Active as u8;
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, info).0, STATUS_INVALID, "INIT does not become ACTIVE");
    assert_eq!(port_info(&mut node, 2).lid, 0, "a wrong Set changes nothing");
    info.link.state = LinkState::Armed as u8;
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, info), (0, vec![(2, NodeEvent::Lid), (2, NodeEvent::SmLid)]));
    info.link.state = LinkState::Active as u8;
    info.client_reregister = true;
    let (status, events) = set(&mut node, PortInfo::ATTRIBUTE, 2, info);
    assert_eq!((status, events), (0, vec![(2, NodeEvent::Active), (2, NodeEvent::ClientReregister)]));
    assert!(!port_info(&mut node, 2).client_reregister);
    info.client_reregister = false;
    info.link.state = LinkState::Armed as u8;
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, info).0, STATUS_INVALID, "ACTIVE does not become ARMED");
    info.link.state = LinkState::Down as u8;
    let (_, events) = set(&mut node, PortInfo::ATTRIBUTE, 2, info);
    assert_eq!(events, [(2, NodeEvent::Inactive), (2, NodeEvent::Link(PhysState::Polling))]);
}

#[test]
fn an_mtu_and_a_timeout_alone_are_told_and_extended_speeds_can_be_off() {
    let mut node = node(NodeType::Ca);
    let info = port_info(&mut node, 2);
    let ask = |link: PortLink| PortInfo { link: PortLink { phys_state: 0, state: 0, ..link }, ..info };
    let mtu = ask(PortLink { neighbor_mtu: 3, ..info.link });
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, mtu), (0, vec![(2, NodeEvent::Settings)]));
    let timeout = PortInfo { subnet_timeout: 9, ..mtu };
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, timeout), (0, vec![(2, NodeEvent::Settings)]));
    let off = PortInfo { link: PortLink { extended_enabled: NO_EXTENDED, ..timeout.link }, ..timeout };
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, off).0, 0);
    assert_eq!(port_info(&mut node, 2).link.extended_enabled, 30);
}

#[test]
fn a_port_that_is_off_stays_off_until_its_physical_state_is_set() {
    let mut node = node(NodeType::Ca);
    node.ports[2].info.link.phys_state = PhysState::Disabled as u8;
    let info = port_info(&mut node, 2);
    let ask = |state, phys_state| PortInfo { link: PortLink { state, phys_state, ..info.link }, ..info };
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, ask(1, 0)), (0, vec![]));
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, ask(1, 2)).1, [(2, NodeEvent::Link(PhysState::Polling))]);
}

#[test]
fn wrong_values_of_a_port_are_refused() {
    let mut node = node(NodeType::Ca);
    let good = PortInfo {
        lid: 8,
        link: PortLink { phys_state: 0, state: 0, ..PortLink::default() },
        ..port_info(&mut node, 2)
    };
    let link = good.link;
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, good).0, 0);
    for wrong in [
        PortInfo { lid: 0xc000, ..good },
        PortInfo { lid: 9, lmc: 1, ..good },
        PortInfo { master_sm_lid: 0xffff, ..good },
        PortInfo { link: PortLink { width_enabled: 4, ..link }, ..good },
        PortInfo { link: PortLink { speed_enabled: 8, ..link }, ..good },
        PortInfo { link: PortLink { neighbor_mtu: 6, ..link }, ..good },
        PortInfo { link: PortLink { phys_state: 5, ..link }, ..good },
        PortInfo { link: PortLink { state: 2, ..link }, ..good },
        PortInfo { link: PortLink { down_default: 3, ..link }, ..good },
        PortInfo { vls: PortVls { operational: 4, ..good.vls }, ..good },
    ] {
        assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 2, wrong).0, STATUS_INVALID, "{wrong:?}");
    }
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 5, good).0, STATUS_INVALID, "no such port");
    assert_eq!(set(&mut node, PortInfo::ATTRIBUTE, 1 << 31 | 2, good).0, 0);
}

#[test]
fn tables_are_kept_by_blocks() {
    let mut ca = node(NodeType::Ca);
    let pkeys = PKeyTable { pkeys: [0x8001; 32] };
    assert_eq!(set(&mut ca, PKeyTable::ATTRIBUTE, 1, pkeys), (0, vec![(2, NodeEvent::PKeys)]));
    assert_eq!(set(&mut ca, PKeyTable::ATTRIBUTE, 1, pkeys), (0, vec![]));
    assert_eq!(set(&mut ca, PKeyTable::ATTRIBUTE, 2, pkeys).0, STATUS_INVALID);
    assert_eq!(PKeyTable::parse(&get(&mut ca, PKeyTable::ATTRIBUTE, 0).1).pkeys[..2], [0xffff, 0]);
    let guids = GuidInfo { guids: [7; 8] };
    assert_eq!(set(&mut ca, GuidInfo::ATTRIBUTE, 0, guids), (0, vec![(2, NodeEvent::Gids)]));
    assert_eq!(GuidInfo::parse(&get(&mut ca, GuidInfo::ATTRIBUTE, 0).1).guids[..2], [0x102, 7]);
    for attribute in [SwitchInfo::ATTRIBUTE, LinearTable::ATTRIBUTE, MulticastTable::ATTRIBUTE, 0x20, 0xff90] {
        assert_eq!(get(&mut ca, attribute, 0).0, STATUS_METHOD_ATTRIBUTE);
    }
    assert_eq!(get(&mut ca, VlArbitration::ATTRIBUTE, 4 << 16).0, 0);
    assert_eq!(get(&mut ca, VlArbitration::ATTRIBUTE, 2 << 16).0, STATUS_INVALID);
    assert_eq!(get(&mut ca, VlArbitration::ATTRIBUTE, 5 << 16).0, STATUS_INVALID);
}

#[test]
fn only_nodes_of_the_vendor_have_its_attribute() {
    let mut node = node(NodeType::Ca);
    assert_eq!(get(&mut node, EXTENDED_PORT_INFO, 2).0, STATUS_METHOD_ATTRIBUTE);
    node.info.vendor_id = VENDOR;
    assert_eq!(get(&mut node, EXTENDED_PORT_INFO, 2), (0, [0; 64]));
    assert_eq!(get(&mut node, EXTENDED_PORT_INFO, 9).0, STATUS_INVALID);
}

#[test]
fn a_switch_forwards_by_its_tables() {
    let mut switch = node(NodeType::Switch);
    assert_eq!(set(&mut switch, LinearTable::ATTRIBUTE, 1, LinearTable { ports: [3; 64] }).0, 0);
    assert_eq!((switch.egress(64), switch.egress(63), switch.egress(200)), (Some(3), None, None));
    assert_eq!(LinearTable::parse(&get(&mut switch, LinearTable::ATTRIBUTE, 1).1).ports, [3; 64]);
    assert_eq!(LinearTable::parse(&get(&mut switch, LinearTable::ATTRIBUTE, 700).1).ports, [255; 64]);
    assert_eq!(get(&mut switch, LinearTable::ATTRIBUTE, 768).0, STATUS_INVALID);
    assert_eq!(set(&mut switch, MulticastTable::ATTRIBUTE, 1, MulticastTable { masks: [6; 32] }).0, 0);
    assert_eq!(MulticastTable::parse(&get(&mut switch, MulticastTable::ATTRIBUTE, 1).1).masks, [6; 32]);
    assert_eq!(get(&mut switch, MulticastTable::ATTRIBUTE, 2).0, STATUS_INVALID);
    assert_eq!(get(&mut switch, MulticastTable::ATTRIBUTE, 1 << 28).0, STATUS_INVALID);
    let lanes = SlToVl { vls: [1; 16] };
    assert_eq!(set(&mut switch, SlToVl::ATTRIBUTE, 0x0103, lanes).0, 0);
    assert_eq!(SlToVl::parse(&get(&mut switch, SlToVl::ATTRIBUTE, 0x0103).1), lanes);
    assert_eq!(SlToVl::parse(&get(&mut switch, SlToVl::ATTRIBUTE, 0x0301).1), SlToVl::default());
    assert_eq!(get(&mut switch, SlToVl::ATTRIBUTE, 0x0105).0, STATUS_INVALID);
}

#[test]
fn a_state_change_is_cleared_by_writing_one() {
    let mut switch = node(NodeType::Switch);
    switch.switch.as_mut().unwrap().info.port_state_change = true;
    let read = |switch: &mut Node| SwitchInfo::parse(&get(switch, SwitchInfo::ATTRIBUTE, 0).1);
    let info = read(&mut switch);
    set(&mut switch, SwitchInfo::ATTRIBUTE, 0, SwitchInfo { port_state_change: false, ..info });
    assert!(read(&mut switch).port_state_change);
    set(&mut switch, SwitchInfo::ATTRIBUTE, 0, SwitchInfo { linear_top: 9, ..info });
    assert_eq!((read(&mut switch).port_state_change, read(&mut switch).linear_top), (false, 9));
    assert_eq!(set(&mut switch, SwitchInfo::ATTRIBUTE, 0, SwitchInfo { linear_top: 0xc000, ..info }).0, STATUS_INVALID);
}

#[test]
fn a_management_key_protects_until_its_lease_ends() {
    let mut node = node(NodeType::Ca);
    let info =
        PortInfo { mkey: 77, mkey_protect: 1, mkey_lease: 10, link: PortLink::default(), ..port_info(&mut node, 2) };
    let request = |method, mkey| Smp { mkey, ..smp(method, PortInfo::ATTRIBUTE, 2, info) };
    assert!(handle(&mut node, 2, &request(METHOD_SET, 0), SECOND).answer.is_some());
    let shown = |node: &mut Node, mkey| {
        PortInfo::parse(&handle(node, 2, &request(METHOD_GET, mkey), SECOND).answer.unwrap().data).mkey
    };
    assert_eq!((shown(&mut node, 5), shown(&mut node, 77)), (0, 77));
    let refused = handle(&mut node, 2, &request(METHOD_SET, 5), SECOND);
    assert!(refused.answer.is_none() && refused.events.is_empty());
    let notice = refused.notice.unwrap();
    assert_eq!((notice.number, notice.details::<MKeyNotice>().mkey), (Notice::BAD_MKEY, 5));
    assert_eq!(node.ports[2].info.mkey_violations, 1);
    assert!(handle(&mut node, 2, &request(METHOD_SET, 5), 10 * SECOND).answer.is_none());
    handle(&mut node, 2, &request(METHOD_GET, 5), 11 * SECOND);
    assert_eq!(node.ports[2].info.mkey_protect, 0, "the lease began with the first violation");
}

#[test]
fn answers_go_back_with_the_class_of_the_request() {
    let mut node = node(NodeType::Ca);
    let request =
        Smp { class: CLASS_SUBN_DIRECTED, hop_pointer: 3, hop_count: 2, ..smp(METHOD_GET, 0x11, 0, SlToVl::default()) };
    let answer = handle(&mut node, 1, &request, SECOND).answer.unwrap();
    assert_eq!((answer.returning, answer.class, answer.hop_pointer, answer.method), (true, 0x81, 3, 0x81));
    let status = |change: Smp| handle(&mut self::node(NodeType::Ca), 1, &change, SECOND).answer.map(|smp| smp.status);
    assert_eq!(status(Smp { class_version: 2, ..request }), Some(STATUS_VERSION));
    assert_eq!(status(Smp { method: 9, ..request }), Some(STATUS_METHOD));
    assert_eq!(status(Smp { method: METHOD_TRAP, ..request }), None);
    assert_eq!(status(Smp { method: METHOD_GET | RESPONSE, ..request }), None);
    assert_eq!(status(Smp { method: METHOD_SET, ..request }), Some(STATUS_METHOD_ATTRIBUTE), "NodeInfo is read only");
}

#[test]
fn a_trap_is_repeated_until_it_is_repressed() {
    let mut traps = Traps::default();
    let notice = Notice { number: Notice::LOCAL_CHANGE, ..Notice::default() };
    traps.push(notice);
    traps.push(notice);
    let port = PortInfo { lid: 5, master_sm_lid: 1, subnet_timeout: 18, ..PortInfo::default() };
    assert_eq!(traps.poll_transmit(&PortInfo { master_sm_lid: 0, ..port }, SECOND), None);
    let trap = traps.poll_transmit(&port, SECOND).unwrap();
    assert_eq!((trap.method, trap.data[5], trap.data[7]), (METHOD_TRAP, 144, 5));
    assert_eq!(traps.poll_transmit(&port, 2 * SECOND), None, "the subnet timeout is 1.07 s");
    assert_eq!(traps.poll_transmit(&port, 3 * SECOND).unwrap().transaction, trap.transaction);
    assert!(!traps.repress(trap.transaction + 1) && traps.repress(trap.transaction));
    assert_eq!((traps.poll_transmit(&port, 9 * SECOND), traps.deadline()), (None, None));
}

proptest! {
    #[test]
    fn hostile_requests_change_values_within_their_bounds(
        requests in proptest::collection::vec((any::<bool>(), 0x10_u16..0x22, any::<u32>(), any::<[u8; 32]>(), 0_u8..6), 1..40),
        is_switch in any::<bool>(),
    ) {
        let mut node = node(if is_switch { NodeType::Switch } else { NodeType::Ca });
        for (is_set, attribute, modifier, bytes, ingress) in requests {
            let method = if is_set { METHOD_SET } else { METHOD_GET };
            let mut request = smp(method, attribute, modifier & 0xf003_0307, SlToVl::default());
            request.data[..32].copy_from_slice(&bytes);
            request.data[32..].copy_from_slice(&bytes);
            let handled = handle(&mut node, ingress, &request, SECOND);
            prop_assert!(handled.events.len() <= 8);
        }
        for port in &node.ports {
            prop_assert!(port.info.lid <= 0xbfff && port.info.vls.operational <= port.info.vls.cap);
        }
    }
}
