//! Training, port states and what they let pass.

use crate::net::{Net, end, packet, smp};
use softhca_subnet::fabric::TRAINING;
use softhca_subnet::state::{Event, Logical, Physical};
use softhca_subnet::{Cause, Fabric, Speed, Width};

fn pair() -> Net {
    let mut net = Net::new(2, 0);
    net.cable(net.hca(0), net.hca(1));
    net
}

fn state(net: &Net, at: usize) -> Logical {
    net.fabric.port(net.hca(at)).unwrap().logical()
}

#[test]
fn l33_a_link_trains_to_init_and_only_the_manager_goes_on() {
    let mut net = pair();
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().physical(), Physical::Training);
    net.fabric.advance(10 * TRAINING);
    assert_eq!([state(&net, 0), state(&net, 1)], [Logical::Init; 2]);
    assert!(net.fabric.set_state(net.hca(0), Event::SetActive).is_err(), "not before ARMED");
    assert_eq!(net.fabric.set_state(net.hca(0), Event::SetArmed), Ok(Logical::Armed));
    assert_eq!(net.fabric.set_state(net.hca(0), Event::SetActive), Ok(Logical::Active));
    assert!(net.fabric.set_state(net.hca(0), Event::Data).is_err(), "not the manager's");
}

#[test]
fn l33_init_passes_management_packets_and_no_data() {
    let mut net = pair();
    net.fabric.advance(2 * TRAINING);
    net.fabric.inject(net.hca(0), smp(1, 2)).unwrap();
    assert_eq!(net.fabric.inject(net.hca(0), packet(1, 2, 0, 0)), Err(Cause::EgressDown));
    assert_eq!(net.run().len(), 1);
}

#[test]
fn l33_the_first_data_packet_makes_an_armed_port_active() {
    let mut net = pair();
    net.up();
    net.fabric.set_state(net.hca(1), Event::SetDown).unwrap();
    net.fabric.advance(10 * TRAINING);
    for at in 0..2 {
        net.fabric.set_state(net.hca(at), Event::SetArmed).unwrap();
    }
    net.fabric.set_state(net.hca(0), Event::SetActive).unwrap();
    assert_eq!(net.fabric.inject(net.hca(1), packet(2, 1, 0, 0)), Err(Cause::EgressDown), "none may start here");
    net.send(0, 1, 0, 64);
    let epoch = net.fabric.epoch();
    assert_eq!((net.run().len(), state(&net, 1)), (1, Logical::Active));
    assert!(net.fabric.epoch() > epoch);
}

#[test]
fn l05_a_link_has_the_best_width_and_speed_that_both_ends_enable() {
    let mut net = Net::new(2, 0);
    net.fabric.settings_mut(net.hca(0)).unwrap().speeds_enabled = 7;
    net.fabric.settings_mut(net.hca(1)).unwrap().widths_enabled = Width::X1.code();
    net.cable(net.hca(0), net.hca(1));
    net.up();
    let rate = net.fabric.port(net.hca(0)).unwrap().rate();
    assert_eq!((rate.width, rate.speed), (Width::X1, Speed::Qdr));
}

#[test]
fn l05_ports_without_a_common_speed_stay_down() {
    let mut net = Net::new(2, 0);
    net.fabric.settings_mut(net.hca(0)).unwrap().speeds_enabled = 1;
    net.fabric.settings_mut(net.hca(1)).unwrap().speeds_enabled = 2;
    net.cable(net.hca(0), net.hca(1));
    net.up();
    assert_eq!(state(&net, 0), Logical::Down);
}

#[test]
fn l33_a_disabled_port_takes_its_neighbour_down_and_comes_back() {
    let mut net = pair();
    net.up();
    net.fabric.set_enabled(net.hca(0), false);
    net.run();
    assert_eq!([state(&net, 0), state(&net, 1)], [Logical::Down; 2]);
    assert_eq!(net.fabric.port(net.hca(0)).unwrap().physical(), Physical::Disabled);
    net.fabric.set_enabled(net.hca(0), true);
    net.run();
    assert_eq!([state(&net, 0), state(&net, 1)], [Logical::Init; 2]);
}

#[test]
fn l06_l07_chips_of_one_system_have_guids_of_their_own_and_one_system_guid() {
    let mut fabric = Fabric::new();
    let chips = [0x100, 0x200].map(|guid| fabric.add_switch(guid, 4));
    for chip in chips {
        fabric.node_mut(chip).unwrap().system_guid = 0x99;
    }
    let mut guids: Vec<u64> = chips.iter().map(|chip| fabric.node(*chip).unwrap().guid).collect();
    assert!(chips.iter().all(|chip| fabric.node(*chip).unwrap().system_guid == 0x99));
    let ports = chips.iter().flat_map(|chip| (1..=4).map(move |port| end(*chip, port)));
    guids.extend(ports.map(|at| fabric.port(at).unwrap().settings().identity.guid));
    let count = guids.len();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!((count, guids.len()), (10, 10));
}

#[test]
fn l33_data_to_a_port_that_is_only_init_is_dropped_and_keeps_no_credits() {
    let mut net = pair();
    net.fabric.advance(2 * TRAINING);
    net.fabric.set_state(net.hca(0), Event::SetArmed).unwrap();
    net.fabric.set_state(net.hca(0), Event::SetActive).unwrap();
    (0..50).for_each(|_| net.send(0, 1, 0, 4096));
    assert_eq!(net.run(), []);
    assert_eq!(net.dropped(net.hca(1), Cause::NotReceiving), 50);
    net.fabric.set_state(net.hca(1), Event::SetArmed).unwrap();
    net.send(0, 1, 0, 4096);
    assert_eq!(net.run().len(), 1);
}
