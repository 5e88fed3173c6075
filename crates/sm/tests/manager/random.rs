//! Any connected fabric comes up with any engine.

use crate::net::{Net, SECOND};
use proptest::prelude::*;
use softhca_sm::Config;
use softhca_sm::config::{Engine, Routing};
use std::fmt::Write;
use subnet::fabric::TRAINING;
use subnet::{CutBy, End};

/// Switches in a tree, with more links between them; adapters at some of them. Returns the text and
/// the links that are no part of the tree.
fn text(parents: &[usize], more: &[(usize, usize)], hosts: &[usize]) -> (String, Vec<(usize, u8)>) {
    let count = parents.len() + 1;
    let mut used = vec![0u8; count];
    let mut lines = vec![String::new(); count];
    let mut port = |at: usize| {
        used[at] += 1;
        used[at]
    };
    for (child, parent) in parents.iter().enumerate() {
        let (child, parent) = (child + 1, parent % (child + 1));
        let (own, other) = (port(child), port(parent));
        writeln!(lines[child], "[{own}] \"S{parent}\"[{other}]").unwrap();
    }
    let mut extra = Vec::new();
    for (one, other) in more.iter().map(|(one, other)| (one % count, other % count)).filter(|(one, other)| one != other)
    {
        let (own, there) = (port(one), port(other));
        writeln!(lines[one], "[{own}] \"S{other}\"[{there}]").unwrap();
        extra.push((one, own));
    }
    let mut text = String::new();
    for (nth, host) in hosts.iter().enumerate() {
        let at = host % count;
        let own = port(at);
        writeln!(lines[at], "[{own}] \"H{}\"[1]", nth + 1).unwrap();
    }
    for (nth, lines) in lines.iter().enumerate() {
        writeln!(text, "Switch 40 \"S{nth}\"\n{lines}").unwrap();
    }
    (1..=hosts.len()).for_each(|host| writeln!(text, "Hca 1 \"H{host}\"\n").unwrap());
    (text, extra)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn every_engine_connects_any_fabric_and_up_down_cannot_deadlock(
        parents in prop::collection::vec(any::<usize>(), 0..9),
        more in prop::collection::vec((any::<usize>(), any::<usize>()), 0..12),
        hosts in prop::collection::vec(any::<usize>(), 1..10),
        cut in any::<prop::sample::Index>(),
        lmc in 0..3u8,
    ) {
        let (text, extra) = text(&parents, &more, &hosts);
        for engine in [Engine::MinHop, Engine::UpDown, Engine::FatTree, Engine::DimensionOrder] {
            let config = Config { lmc, routing: Routing { engine, roots: Vec::new() }, ..Config::default() };
            let mut net = Net::up(&text, config);
            net.assert_connected();
            if !extra.is_empty() {
                let (switch, port) = *cut.get(&extra);
                let node = net.managed.id(&format!("S{switch}")).unwrap();
                net.managed.cut(End { node, port }, CutBy::Operator);
                net.run(2 * TRAINING + 2 * SECOND);
                net.settle();
                net.assert_connected();
            }
            if matches!(engine, Engine::UpDown | Engine::FatTree) {
                prop_assert_eq!(net.managed.fabric().routing_cycle(&[0]), None);
            }
        }
    }
}
