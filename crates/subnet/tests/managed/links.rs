//! Changes of links, and the notices that management gets of them.

use crate::net::{Net, SECOND, traps};
use mad::sma::NodeEvent;
use softhca_subnet::CutBy;
use softhca_subnet::managed::Output;
use wire::mad::{CLASS_SUBN_LID, METHOD_TRAP_REPRESS};
use wire::notice::{ChangeNotice, Notice, SwitchNotice};
use wire::smp::{Capability, PortInfo, Smp, SwitchInfo};

impl Net {
    fn state_change(&mut self, description: &str) -> bool {
        let path = self.path(description);
        let info: SwitchInfo = self.manager.get(&mut self.managed, &path, SwitchInfo::ATTRIBUTE, 0).unwrap();
        info.port_state_change
    }

    fn states(&self, name: &str, port: u8) -> (u8, u8) {
        let link = self.managed.port_info(self.end(name, port)).unwrap().link;
        (link.state, link.phys_state)
    }

    fn repress(&mut self, (transaction, notice): &(u64, Notice)) {
        let (class, attribute) = (CLASS_SUBN_LID, Notice::ATTRIBUTE);
        let method = METHOD_TRAP_REPRESS;
        let (base_version, class_version, transaction) = (1, 1, *transaction);
        let smp = Smp { base_version, class_version, class, method, attribute, transaction, ..Smp::default() };
        let datagram = softhca_subnet::managed::Datagram::smp(self.lid("H1"), notice.issuer_lid, 0, smp.to_mad());
        self.managed.send(self.manager.from, &datagram).unwrap();
    }
}

#[test]
fn a_cut_link_is_down_at_both_ends_and_its_switch_sends_a_trap() {
    let mut net = Net::up();
    assert!(!net.state_change("leaf 2"), "the manager has cleared it");
    net.managed.cut(net.end("S2", 1), CutBy::Operator);
    let outputs = net.run(SECOND);
    assert_eq!([net.states("S2", 1), net.states("H3", 1)], [(1, 2); 2]);
    let found = traps(&outputs);
    let (number, lid) = (found[0].1.number, found[0].1.details::<SwitchNotice>().lid);
    assert_eq!((number, lid, found[0].1.issuer_lid), (Notice::LINK_STATE, net.lid("S2"), net.lid("S2")));
    assert!(net.state_change("leaf 2"));
    net.managed.mend(net.end("S2", 1), CutBy::Operator);
    net.run(SECOND / 100);
    assert_eq!([net.states("S2", 1), net.states("H3", 1)], [(2, 5); 2]);
}

#[test]
fn a_trap_is_repeated_by_the_subnet_timeout_until_the_manager_represses_it() {
    let mut net = Net::up();
    net.managed.cut(net.end("S2", 1), CutBy::Operator);
    let outputs = net.run(4 * SECOND);
    let found = traps(&outputs);
    assert!((3..=5).contains(&found.len()), "{}", found.len());
    assert!(found.iter().all(|trap| *trap == found[0]), "each has the same transaction");
    net.repress(&found[0]);
    assert!(traps(&net.run(10 * SECOND)).is_empty());
    assert_eq!(net.managed.next_event(), None);
}

#[test]
fn a_repress_of_another_trap_is_for_the_owner() {
    let mut net = Net::up();
    net.managed.attach(net.end("H3", 1)).unwrap();
    let notice = Notice { issuer_lid: net.lid("H3"), ..Notice::default() };
    net.repress(&(77 << 32, notice));
    let outputs = net.run(SECOND);
    assert_eq!(outputs.len(), 1);
}

#[test]
fn a_capability_that_changes_is_told_to_the_manager() {
    let mut net = Net::up();
    let end = net.end("H3", 1);
    let mask = net.managed.port_info(end).unwrap().capability_mask | Capability::SM;
    net.managed.set_capability(end, mask).unwrap();
    let found = traps(&net.run(SECOND / 2));
    let details: ChangeNotice = found[0].1.details();
    assert_eq!((found.len(), found[0].1.number), (1, Notice::LOCAL_CHANGE));
    assert_eq!((details.lid, details.capability_mask), (net.lid("H3"), mask));
    assert!(net.managed.set_capability(net.end("S1", 1), mask).is_err(), "no end port");
}

#[test]
fn a_port_is_disabled_and_enabled_by_port_info() {
    let mut net = Net::up();
    let end = net.end("H3", 1);
    net.managed.attach(end).unwrap();
    let path = net.path("leaf 2");
    let disable = |info: &mut PortInfo| (info.link.state, info.link.phys_state) = (1, 3);
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, disable), Some(0));
    let outputs = net.run(SECOND);
    assert!(outputs.contains(&Output::Changed { end, event: NodeEvent::Inactive }));
    assert_eq!((net.states("S2", 1), net.states("H3", 1)), ((1, 3), (1, 2)));
    let nothing = |info: &mut PortInfo| info.link.state = 1;
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, nothing), Some(0));
    net.run(SECOND);
    assert_eq!(net.states("S2", 1), (1, 3), "still off");
    let enable = |info: &mut PortInfo| (info.link.state, info.link.phys_state) = (1, 2);
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, enable), Some(0));
    net.run(SECOND);
    assert_eq!([net.states("S2", 1), net.states("H3", 1)], [(2, 5); 2]);
}

#[test]
fn a_link_trains_again_with_the_width_and_speed_that_are_enabled() {
    let mut net = Net::up();
    let path = net.path("leaf 2");
    let slow = |info: &mut PortInfo| {
        (info.link.width_enabled, info.link.speed_enabled, info.link.extended_enabled) = (1, 1, 30);
    };
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, slow), Some(0));
    let down = |info: &mut PortInfo| info.link.state = 1;
    assert_eq!(net.manager.change_port(&mut net.managed, &path, 1, down), Some(0));
    net.run(SECOND);
    let link = net.managed.port_info(net.end("H3", 1)).unwrap().link;
    assert_eq!((link.state, link.width_active, link.speed_active, link.extended_active), (2, 1, 1, 0));
}

#[test]
fn the_answer_to_a_set_that_takes_down_its_own_link_arrives() {
    let mut net = Net::up();
    let down = |info: &mut PortInfo| info.link.state = 1;
    assert_eq!(net.manager.change_port(&mut net.managed, &[1], 1, down), Some(0));
    net.run(SECOND);
    assert_eq!(net.states("H1", 1), (2, 5), "it has trained again");
}

#[test]
fn a_node_that_is_away_is_gone_until_it_is_restored() {
    let mut net = Net::up();
    let away = net.end("S2", 0).node;
    net.managed.remove(away);
    net.run(SECOND);
    net.manager = crate::manager::Manager::new(&mut net.managed, net.manager.from);
    net.manager.discover(&mut net.managed);
    assert_eq!(net.manager.found.len(), 3);
    net.managed.restore(away);
    net.run(SECOND);
    net.manager = crate::manager::Manager::new(&mut net.managed, net.manager.from);
    net.manager.discover(&mut net.managed);
    assert_eq!(net.manager.found.len(), 6);
}
