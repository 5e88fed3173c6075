//! Any datagrams: nothing panics, and the work has an end.

use crate::net::{Net, SECOND};
use mad::topology::Topology;
use proptest::prelude::*;
use softhca_subnet::managed::{Datagram, Managed};
use wire::mad::MAD_LEN;
use wire::smp::{LinearTable, Smp};

fn datagram() -> impl Strategy<Value = Datagram> {
    let mad = proptest::collection::vec(any::<u8>(), MAD_LEN);
    let class = prop_oneof![Just(0x81_u8), Just(0x01), Just(0x04), any::<u8>()];
    let shape = (class, prop_oneof![1..8_u8, Just(0x81), any::<u8>()], 0x10..0x22_u8, any::<bool>());
    let route = (0..5_u8, 0..5_u8, proptest::collection::vec(0..9_u8, 8), proptest::collection::vec(0..9_u8, 8));
    let lids =
        (0..2_u8, prop_oneof![0..8_u16, Just(0xffff)], prop_oneof![0..8_u16, Just(0xffff)], any::<(bool, bool)>());
    (mad, shape, route, lids).prop_map(
        |(bytes, (class, method, attribute, back), (pointer, count, out, home), lids)| {
            let mut mad = [0; MAD_LEN];
            mad.copy_from_slice(&bytes);
            (mad[0], mad[1], mad[2], mad[3]) = (1, class, 1, method);
            let (qp, slid, dlid, (first, last)) = lids;
            if class == 0x81 {
                let mut smp = Smp::parse(&mad);
                (smp.hop_pointer, smp.hop_count, smp.returning) = (pointer, count, back);
                smp.initial_path[1..9].copy_from_slice(&out);
                smp.return_path[1..9].copy_from_slice(&home);
                (smp.dr_slid, smp.dr_dlid) = (if first { 0xffff } else { slid }, if last { 0xffff } else { dlid });
                mad = smp.to_mad();
            }
            (mad[16], mad[17]) = (0, attribute);
            mad[20..24].copy_from_slice(&[0, bytes[21] & 3, bytes[22] & 1, bytes[23] & 15]);
            if qp == 0 { Datagram::smp(slid, dlid, 0, mad) } else { Datagram::gmp(slid, dlid, bytes[30] & 15, mad) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_datagrams_end_after_bounded_work(datagrams in proptest::collection::vec((0..6_u8, datagram()), 1..40)) {
        let mut net = Net::up();
        for name in ["H2", "H3", "S2"] {
            let port = u8::from(name != "S2");
            net.managed.attach(net.end(name, port)).unwrap();
        }
        for (from, datagram) in datagrams {
            let name = ["H1", "H2", "H3", "H4", "S1", "S2"][usize::from(from)];
            let end = net.end(name, u8::from(from < 4));
            let before = net.managed.fabric().processed();
            let _ = net.managed.send(end, &datagram);
            let outputs = net.run(SECOND / 1000);
            prop_assert!(outputs.len() < 100, "{}", outputs.len());
            outputs.into_iter().for_each(|output| if let softhca_subnet::managed::Output::Datagram(delivered) = output {
                net.managed.refuse(&delivered);
            });
            net.run(SECOND / 1000);
            let work = net.managed.fabric().processed() - before;
            prop_assert!(work < 5_000, "{work} events");
        }
    }
}

proptest! {
    #[test]
    fn any_topology_is_built_or_refused(lines in proptest::collection::vec((0..6_u8, 0..5_u8, 0..4_u8, 0..5_u8), 0..20)) {
        let text: String = lines.into_iter().map(|(what, a, port, b)| match what {
            0 => format!("Switch 3 \"N{a}\"\n"),
            1 => format!("Hca 2 \"N{a}\"\n"),
            2 => format!("caguid=0x{:x}\n", 0x10_0000 + u32::from(b)),
            _ => format!("[{port}]({:x}) \"N{b}\"[{}]\n", 0x10_0000 + u32::from(a), port ^ 3),
        }).collect();
        if let Ok(mut managed) = Topology::from_text(&text).map_err(drop).and_then(|file| Managed::new(&file).map_err(drop)) {
            managed.advance(SECOND);
            let mut guids: Vec<u64> = managed.ends().map(|end| managed.fabric().port(end).unwrap().settings().identity.guid).collect();
            let count = guids.len();
            guids.sort_unstable();
            guids.dedup();
            prop_assert_eq!(guids.len(), count);
        }
    }
}

#[test]
fn tables_that_lead_in_a_circle_end_the_packet() {
    let mut net = Net::up();
    for (description, port) in [("leaf 1", 7), ("leaf 2", 7)] {
        let path = net.path(description);
        let table = LinearTable { ports: [port; 64] };
        net.manager.set(&mut net.managed, &path, (LinearTable::ATTRIBUTE, 0), table);
    }
    let own = net.lid("H1");
    let before = net.managed.fabric().processed();
    let smp = Smp { base_version: 1, class: 1, class_version: 1, method: 1, attribute: 0x11, ..Smp::default() };
    net.managed.send(net.end("H2", 1), &Datagram::smp(own, 5, 0, smp.to_mad())).unwrap();
    net.run(SECOND);
    assert!(net.managed.fabric().processed() - before < 500);
}
