//! Random traffic through random settings: no packet is lost, doubled or reordered, and equal calls
//! have equal results.

use crate::net::Net;
use proptest::prelude::*;
use softhca_subnet::switch::Ports;
use softhca_subnet::{Delivery, Frame};
use wire::lrh::{self, Next};

#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: usize, sl: u8, words: usize },
    Stop(usize),
    Resume(usize),
    Run(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hca = 0..4_usize;
    let step = prop_oneof![
        8 => (hca.clone(), hca.clone(), 0..4_u8, 0..1024_usize)
            .prop_map(|(from, to, sl, words)| Step::Send { from, to, sl, words }),
        1 => hca.clone().prop_map(Step::Stop),
        1 => hca.prop_map(Step::Resume),
        2 => (0..2_000_000_u64).prop_map(Step::Run),
    ];
    proptest::collection::vec(step, 1..200)
}

fn play(steps: &[Step], lanes: u8) -> (Net, Vec<Delivery>, usize) {
    let mut net = Net::star(4);
    for at in 0..4 {
        net.fabric.settings_mut(net.hca(at)).unwrap().sl_to_vl = softhca_subnet::service::SlToVl::spread(lanes);
    }
    let table = softhca_subnet::service::SlToVl::spread(lanes);
    net.fabric.switch_mut(net.switches[0]).unwrap().sl_to_vl_default = table;
    let (mut delivered, mut sent) = (Vec::new(), 0);
    for step in steps {
        match *step {
            Step::Send { from, to, sl, words } if from != to => {
                net.send(from, to, sl, 4 * words);
                sent += 1;
            }
            Step::Send { .. } => {}
            Step::Stop(at) => net.fabric.stop(net.hca(at)),
            Step::Resume(at) => net.fabric.resume(net.hca(at)),
            Step::Run(time) => {
                let until = net.fabric.now() + time;
                delivered.extend(net.fabric.advance(until));
            }
        }
    }
    (0..4).for_each(|at| net.fabric.resume(net.hca(at)));
    delivered.extend(net.run());
    (net, delivered, sent)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn l30_l34_a_switch_loses_nothing_and_keeps_the_order(steps in steps(), lanes in 1..5_u8) {
        let (net, delivered, sent) = play(&steps, lanes);
        prop_assert_eq!(delivered.len(), sent);
        prop_assert_eq!(net.drops(), 0);
        prop_assert_eq!(net.fabric.stalls(), []);
        for from in 0..4 {
            for to in 0..4 {
                for level in 0..4 {
                    let sent: Vec<usize> = steps.iter().filter_map(|step| match step {
                        Step::Send { from: f, to: t, sl, words } if (*f, *t, *sl) == (from, to, level) && f != t => Some(4 * words + 16),
                        _ => None,
                    }).collect();
                    let of = |delivery: &&Delivery| {
                        let lrh = delivery.frame.lrh;
                        (usize::from(lrh.slid) - 1, usize::from(lrh.dlid) - 1, lrh.sl) == (from, to, level)
                    };
                    let got: Vec<usize> = delivered.iter().filter(of).map(|delivery| delivery.frame.body().len()).collect();
                    prop_assert_eq!(got, sent);
                }
            }
        }
        let (_, again, _) = play(&steps, lanes);
        prop_assert_eq!(delivered, again);
    }
}

/// Packets with any header fields, as a hostile node may send them.
fn any_frame() -> impl Strategy<Value = Frame> {
    let dlid = prop_oneof![0..8_u16, 0xc000..0xc003_u16, Just(0xffff_u16), any::<u16>()];
    let next = prop_oneof![Just(Next::Raw), Just(Next::Bth), Just(Next::Grh)];
    (dlid, any::<u16>(), prop_oneof![Just(0_u8), Just(15), 0..16_u8], any::<u8>(), next, 14..1050_usize, any::<u8>())
        .prop_map(|(dlid, slid, vl, sl, next, words, fill)| {
            let lrh = lrh::Header { vl, sl, next, dlid, packet_len: 0, slid };
            Frame::new(lrh, vec![fill; 4 * words]).unwrap()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn l34_no_packet_of_a_hostile_node_costs_others_their_credits(frames in proptest::collection::vec(any_frame(), 1..60)) {
        let mut net = Net::star(4);
        let switch = net.fabric.switch_mut(net.switches[0]).unwrap();
        switch.multicast.insert(0xc001, Ports::of([0, 1, 2, 3, 7]));
        for frame in frames {
            let _ = net.fabric.inject(net.hca(0), frame);
        }
        net.run();
        prop_assert_eq!(net.fabric.stalls(), []);
        for to in 1..4 {
            (0..20).for_each(|_| net.send(0, to, 0, 4096));
        }
        prop_assert_eq!(net.run().len(), 60);
        prop_assert_eq!(net.fabric.deadlock(), None);
    }
}
