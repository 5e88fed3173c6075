//! Several managers in one fabric.

use crate::net::{Net, SECOND, SMALL};
use softhca_sm::{Config, Event};
use wire::layout::Layout;
use wire::mad::{CLASS_SUBN_LID, METHOD_GET, METHOD_SET};
use wire::smp::{SmInfo, SmState, Smp};

fn with(priority: u8) -> Config {
    Config { priority, ..Config::default() }
}

fn states(net: &Net) -> Vec<SmState> {
    net.sites.iter().map(|site| site.manager.state()).collect()
}

fn sm_lid(net: &Net, name: &str) -> u16 {
    net.managed.port_info(net.end(name, 1)).unwrap().master_sm_lid
}

#[test]
fn of_two_that_start_together_the_lower_guid_becomes_the_master() {
    let mut net = Net::new(SMALL);
    net.start("H3", with(3));
    net.start("H1", with(3));
    net.run(60 * SECOND);
    let guid = |site: usize| net.sites[site].manager.sm_info().guid;
    let expected =
        if guid(0) < guid(1) { [SmState::Master, SmState::Standby] } else { [SmState::Standby, SmState::Master] };
    assert_eq!(states(&net), expected);
    net.assert_connected();
}

#[test]
fn a_master_hands_over_to_a_better_manager_and_lids_stay() {
    let mut net = Net::up(SMALL, with(5));
    let before = net.lids();
    net.start("H3", with(9));
    // The capability of the new one causes trap 144, and that the sweep that finds it.
    net.run(3 * SECOND);
    net.settle();
    assert_eq!(states(&net), [SmState::Standby, SmState::Master]);
    assert_eq!((sm_lid(&net, "H2"), net.lids()), (net.lid("H3"), before));
    assert!(!net.sites[0].manager.is_up() && net.sites[1].manager.is_up());
    net.assert_connected();
    // A worse one changes nothing.
    net.start("H2", with(1));
    net.run(30 * SECOND);
    assert_eq!(states(&net), [SmState::Standby, SmState::Master, SmState::Standby]);
}

#[test]
fn a_better_manager_that_does_not_answer_at_first_becomes_the_master() {
    let mut net = Net::up(SMALL, with(5));
    let new = net.start("H3", with(9));
    net.sites[new].answers_from = net.managed.now() + 5 * SECOND;
    net.run(4 * SECOND);
    assert_eq!(states(&net), [SmState::Master, SmState::Standby]);
    net.run(60 * SECOND);
    net.settle();
    assert_eq!(states(&net), [SmState::Standby, SmState::Master]);
    net.assert_connected();
}

#[test]
fn a_standby_takes_over_from_a_dead_master_and_lids_stay() {
    let mut net = Net::up(SMALL, with(5));
    net.start("H3", with(1));
    net.run(3 * SECOND);
    assert_eq!(states(&net), [SmState::Master, SmState::Standby]);
    let before = net.lids();
    net.run(60 * SECOND);
    let changes = net.sites[1].events.iter().filter(|event| matches!(event, Event::State(_))).count();
    assert_eq!(changes, 1, "it is on standby as long as the master answers");
    net.kill(0);
    net.run(60 * SECOND);
    net.settle();
    assert_eq!(states(&net)[1], SmState::Master);
    assert_eq!((sm_lid(&net, "H2"), net.lids()), (net.lid("H3"), before));
    net.assert_connected();
}

#[test]
fn managers_with_different_keys_do_not_trust_each_other() {
    let mut net = Net::up(SMALL, with(5));
    net.start("H3", Config { sm_key: 77, ..with(9) });
    net.run(3 * SECOND);
    assert_eq!(states(&net)[0], SmState::Master, "it hands nothing over");
    assert!(net.problems().iter().any(|problem| problem.contains("another SM_Key")));
}

#[test]
fn a_master_disables_a_standby_and_wakes_it() {
    let mut net = Net::up(SMALL, with(5));
    net.start("H3", with(1));
    net.run(3 * SECOND);
    let set = |net: &mut Net, modifier: u32, key: u64, state: SmState| {
        let info = SmInfo { guid: 1, sm_key: key, activity_count: 1, priority: 5, state: state as u8 };
        let answer = ask(net, METHOD_SET, modifier, info);
        (answer.status, SmInfo::read(&answer.data).unwrap().state)
    };
    const REFUSED: u16 = 0x1c;
    assert_eq!(set(&mut net, SmInfo::DISABLE, 9, SmState::Master), (REFUSED, 2), "a wrong key");
    assert_eq!(set(&mut net, SmInfo::DISABLE, 1, SmState::Standby), (REFUSED, 2), "no master");
    assert_eq!(set(&mut net, SmInfo::STANDBY, 1, SmState::Master), (REFUSED, 2), "it is on standby");
    assert_eq!(set(&mut net, SmInfo::DISABLE, 1, SmState::Master), (0, 0));
    net.run(60 * SECOND);
    assert_eq!(states(&net)[1], SmState::NotActive);
    assert_eq!(set(&mut net, SmInfo::STANDBY, 1, SmState::Master), (0, 2));
    net.run(60 * SECOND);
    assert_eq!(states(&net), [SmState::Master, SmState::Standby], "it polls the master");
    let answer = ask(&mut net, METHOD_GET, 0, SmInfo::default());
    assert_eq!(SmInfo::read(&answer.data).unwrap().priority, 1);
}

/// Asks the manager at H3 from H2.
fn ask(net: &mut Net, method: u8, modifier: u32, info: SmInfo) -> Smp {
    let from = net.end("H2", 1);
    net.managed.attach(from).unwrap();
    let (base_version, class, class_version) = (1, CLASS_SUBN_LID, 1);
    let attribute = SmInfo::ATTRIBUTE;
    let mut smp = Smp { base_version, class, class_version, method, attribute, modifier, ..Smp::default() };
    info.write(&mut smp.data);
    let datagram = subnet::managed::Datagram::smp(net.lid("H2"), net.lid("H3"), 0, smp.to_mad());
    net.managed.send(from, &datagram).unwrap();
    net.outputs.clear();
    net.run(SECOND / 100);
    let answer = net.outputs.iter().find_map(|output| match output {
        subnet::managed::Output::Datagram(delivered) if delivered.end == from => Some(delivered.datagram.mad),
        _ => None,
    });
    Smp::parse(&answer.unwrap())
}

/// The trap of a new manager comes while it still looks for a master: its answers are slow.
#[test]
fn a_master_hands_over_to_a_better_manager_that_takes_its_time() {
    let mut net = Net::up(SMALL, with(5));
    let site = net.start("H3", with(9));
    net.sites[site].mute_until = net.managed.now() + SECOND / 2;
    net.run(5 * SECOND);
    assert_eq!(states(&net), [SmState::Standby, SmState::Master]);
}
