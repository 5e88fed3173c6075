//! Datagrams that nobody asked for, and answers that cannot be true.

use crate::net::{MS, Net, SECOND, SMALL, duration};
use proptest::prelude::*;
use softhca_sm::{Address, Config, Manager};
use std::time::Duration;
use wire::mad::{METHOD_GET, Mad, RESPONSE};
use wire::smp::{NodeInfo, PortInfo, SmInfo, Smp, SwitchInfo};

fn address() -> impl Strategy<Value = Address> {
    let lid = (any::<u16>(), 0..16u8, 0..3u32).prop_map(|(lid, sl, qp)| Address::Lid { lid, sl, qp });
    prop_oneof![Just(Address::Directed), lid]
}

/// Datagrams that are nearly right: the class, method and attribute exist.
fn datagram() -> impl Strategy<Value = Smp> {
    let methods = prop::sample::select(vec![1u8, 2, 5, 6, 7, 0x81, 0x85]);
    let attributes = prop::sample::select(vec![2u16, 0x10, 0x11, 0x12, 0x15, 0x16, 0x19, 0x20]);
    let head = (prop::sample::select(vec![1u8, 0x81, 3]), methods, attributes, 0..8u32);
    let body = (prop::collection::vec(any::<u8>(), 64), any::<[u8; 32]>(), any::<u8>(), any::<u8>());
    (head, body, 0..64u64).prop_map(
        |((class, method, attribute, modifier), (data, path, hops, pointer), transaction)| {
            let mut smp =
                Smp { base_version: 1, class, class_version: 1, method, attribute, modifier, ..Smp::default() };
            (smp.hop_count, smp.hop_pointer, smp.transaction) = (hops, pointer, (1 << 20) + transaction);
            smp.data.copy_from_slice(&data);
            smp.return_path[..32].copy_from_slice(&path);
            smp
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_fabric_comes_up_under_a_rain_of_datagrams(rain in prop::collection::vec((address(), datagram()), 1..60)) {
        let mut net = Net::new(SMALL);
        net.start("H1", Config::default());
        net.run(MS / 2);
        for (from, smp) in rain {
            let now = duration(net.managed.now());
            net.manager().receive(from, &smp.to_mad(), now);
            net.run(MS / 100);
        }
        let held = std::iter::from_fn(|| net.manager().poll_transmit()).count();
        prop_assert!(held < 200);
        net.run(60 * SECOND);
    }

    #[test]
    fn agents_may_answer_anything(seed in any::<u64>()) {
        liar(seed, 20_000);
    }
}

/// A fabric whose every answer is made up. The inventory stays within its limit.
fn liar(seed: u64, steps: usize) {
    let config = Config { most_nodes: 50, ..Config::default() };
    let mut manager = Manager::new(config, 5, seed);
    let mut random = seed | 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut now = Duration::ZERO;
    manager.handle_timeout(now);
    for _ in 0..steps {
        if let Some(transmit) = manager.poll_transmit() {
            let mad = invent(&transmit.mad, &mut next);
            manager.receive(Address::Directed, &mad, now);
        } else if let Some(timeout) = manager.next_timeout() {
            now = now.max(timeout);
            manager.handle_timeout(now);
        }
        while manager.poll_event().is_some() {}
    }
    let found = manager.inventory();
    assert!(found.nodes.len() <= 50 && found.lids.len() <= 0xc000);
}

/// An answer to a request: possible at first sight.
fn invent(request: &Mad, next: &mut impl FnMut() -> u64) -> Mad {
    let mut smp = Smp::parse(request);
    (smp.method, smp.returning) = (METHOD_GET | RESPONSE, true);
    if next().is_multiple_of(8) {
        smp.status = 0x1c;
    }
    for chunk in smp.data.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_be_bytes());
    }
    match smp.attribute {
        NodeInfo::ATTRIBUTE => {
            smp.data[2] = (next() % 3) as u8 + 1;
            smp.data[3] = (next() % 20) as u8;
            smp.data[12..19].fill(0);
            smp.data[19] = (next() % 80) as u8;
            smp.data[36] = (next() % 20) as u8;
        }
        PortInfo::ATTRIBUTE => smp.data[32] = (next() % 5) as u8,
        SwitchInfo::ATTRIBUTE if next().is_multiple_of(2) => smp.data[..2].copy_from_slice(&[0xc0, 0]),
        SmInfo::ATTRIBUTE => smp.data[8..16].copy_from_slice(&1u64.to_be_bytes()),
        _ => {}
    }
    smp.to_mad()
}
