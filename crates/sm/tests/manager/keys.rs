//! Partitions, the management key, service levels and lanes.

use crate::net::{Net, SECOND, SMALL};
use softhca_sm::Config;
use softhca_sm::config::{MKey, Qos};
use softhca_sm::partitions::Partitions;
use subnet::CutBy;
use wire::smp::VlWeight;

fn guid(net: &Net, name: &str) -> u64 {
    net.managed.node(net.managed.id(name).unwrap()).unwrap().port(1).unwrap().guid
}

fn used(keys: &[u16]) -> Vec<u16> {
    keys.iter().copied().filter(|key| *key != 0).collect()
}

#[test]
fn partitions_are_at_the_adapters_and_checked_at_the_switch_ports_that_face_them() {
    let net = Net::new(SMALL);
    let (h2, h3) = (guid(&net, "H2"), guid(&net, "H3"));
    let text = format!("Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n store=0x10 : {h2:#x}=full, {h3:#x}=both ;");
    let partitions = Partitions::parse(&text).unwrap();
    let net = Net::up(SMALL, Config { partitions, ..Config::default() });
    for (name, expected, (switch, port)) in [
        ("H1", vec![0xffff], ("S1", 1)),
        ("H2", vec![0x7fff, 0x8010], ("S1", 2)),
        ("H3", vec![0x7fff, 0x8010, 0x0010], ("S2", 1)),
        ("H4", vec![0x7fff], ("S2", 2)),
    ] {
        let keys =
            |name, port| used(&net.managed.node(net.managed.id(name).unwrap()).unwrap().port(port).unwrap().pkeys);
        assert_eq!(keys(name, 1), expected, "{name}");
        assert_eq!(keys(switch, port), expected, "{switch} port {port}");
        let vls = net.managed.port_info(net.end(switch, port)).unwrap().vls;
        assert!(vls.enforce_inbound && vls.enforce_outbound);
    }
    let trunk = net.managed.port_info(net.end("S1", 7)).unwrap().vls;
    assert!(!trunk.enforce_inbound && !trunk.enforce_outbound);
    assert_eq!(net.problems(), [""; 0]);
    net.assert_connected();
}

#[test]
fn the_management_key_protects_all_ports_and_the_manager_goes_on() {
    let mkey = MKey { key: 0x77, protect: 2, lease: 0 };
    let mut net = Net::up(SMALL, Config { mkey, ..Config::default() });
    for end in net.ends() {
        let info = net.managed.port_info(end).unwrap();
        assert_eq!((info.mkey, info.mkey_protect), (0x77, 2));
    }
    net.managed.cut(net.end("S1", 7), CutBy::Operator);
    net.run(SECOND / 2);
    net.settle();
    net.assert_connected();
    assert_eq!(net.problems(), [""; 0]);
}

#[test]
fn service_levels_and_arbitration_are_set_where_packets_leave() {
    let sl_to_vl = std::array::from_fn(|sl| sl as u8);
    let weights = |vls: &[u8]| vls.iter().map(|vl| VlWeight { vl: *vl, weight: 4 }).collect::<Vec<_>>();
    let qos = Qos { sl_to_vl, high: weights(&[1]), low: weights(&[0, 2, 3, 9]), high_limit: 3 };
    let mut net = Net::up(SMALL, Config { qos: Some(qos), ..Config::default() });
    assert_eq!(net.problems(), [""; 0]);
    let host = net.managed.node(net.managed.id("H4").unwrap()).unwrap().port(2).unwrap();
    // The ports have eight lanes: SL 9 has lane 1, and SL 15 is dropped.
    let vls = host.sl_to_vl[&0].vls;
    assert_eq!((vls[7], vls[9], vls[15], host.info.vls.high_limit), (7, 1, 15, 3));
    let switch = net.managed.node(net.managed.id("S1").unwrap()).unwrap().port(7).unwrap();
    assert_eq!(switch.sl_to_vl[&1].vls, vls);
    let low = switch.arbitration.as_ref().unwrap()[0].entries;
    assert_eq!((low[2].vl, low[2].weight, low[3].weight), (3, 4, 0), "lane 9 does not exist");
    let path = net.managed.resolve(net.end("H1", 1), net.lid("H3"), 2).unwrap();
    assert!(path.vl == 2 && path.hops.iter().all(|hop| hop.vl == 2));
    net.manager().sweep_now();
    net.settle();
    let sets = net.sites[0].sets;
    net.manager().sweep_now();
    net.settle();
    assert_eq!(net.sites[0].sets, sets);
}
