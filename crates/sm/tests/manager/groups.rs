//! Multicast trees.

use crate::net::{Net, SECOND, SMALL, fat_tree};
use softhca_sm::Config;
use softhca_sm::inventory::{Member, PortId};
use std::collections::BTreeMap;
use subnet::managed::Output;
use subnet::{CutBy, Frame};
use wire::sa::McMemberRecord;
use wire::{Opcode, Operation, Qpn, Transport, bth, deth, lrh};

/// A datagram to a multicast LID.
fn packet(slid: u16, dlid: u16) -> Frame {
    let mut head = [0; bth::LEN];
    let opcode = Opcode::new(Transport::Ud, Operation::SendOnly);
    bth::Header { opcode, pkey: 0xffff, dest_qp: Qpn::new(0xff_ffff), ..bth::Header::default() }.emit(&mut head);
    let mut datagram = [0; deth::LEN];
    deth::Header { qkey: 5, src_qp: Qpn::new(78) }.emit(&mut datagram);
    let body = [&head[..], &datagram, &[0; 256 + 4]].concat();
    Frame::new(lrh::Header { slid, dlid, ..lrh::Header::default() }, body).unwrap()
}

impl Net {
    fn member(&self, name: &str, join_state: u8) -> Member {
        let node = self.managed.node(self.managed.id(name).unwrap()).unwrap();
        let port = u8::from(node.switch.is_none());
        Member { port: PortId { node: node.info.node_guid, port }, join_state }
    }

    /// The nodes that get a packet which a node sends to a group.
    fn receivers(&mut self, from: &str, mlid: u16) -> Vec<String> {
        self.outputs.clear();
        let slid = self.lid(from);
        self.managed.inject(self.end(from, 1), packet(slid, mlid)).unwrap();
        self.run(SECOND / 100);
        let mut found: Vec<String> = self
            .outputs
            .iter()
            .filter_map(|output| match output {
                Output::Packet(delivery) => Some(self.managed.name(delivery.end.node).unwrap().to_string()),
                _ => None,
            })
            .collect();
        found.sort();
        found
    }

    fn attach_all(&mut self) {
        let ends: Vec<_> = self.managed.ends().collect();
        ends.into_iter().for_each(|end| self.managed.attach(end).unwrap());
    }
}

#[test]
fn each_receiver_gets_one_copy_and_others_get_none() {
    for text in [fat_tree(2, 4), SMALL.into()] {
        let mut net = Net::up(&text, Config::default());
        net.attach_all();
        let (full, sends) = (McMemberRecord::FULL, McMemberRecord::SEND_ONLY_NON);
        let receivers = ["H1", "H2", "H4"];
        let mut members: Vec<Member> = receivers.iter().map(|name| net.member(name, full)).collect();
        members.push(net.member("H3", sends));
        let other = vec![net.member("H2", full), net.member("H3", full)];
        let groups = BTreeMap::from([(0xc000, members.clone()), (0xc045, other)]);
        net.manager().set_groups(groups.clone());
        net.settle();
        for from in ["H1", "H2", "H3", "H4"] {
            let expected: Vec<&str> = receivers.iter().copied().filter(|name| *name != from).collect();
            assert_eq!(net.receivers(from, 0xc000), expected, "from {from}");
        }
        assert_eq!(net.receivers("H3", 0xc045), ["H2"]);
        // A member leaves, and a group ends.
        members.remove(0);
        net.manager().set_groups(BTreeMap::from([(0xc000, members)]));
        net.settle();
        assert_eq!(net.receivers("H3", 0xc000), ["H2", "H4"]);
        assert_eq!(net.receivers("H3", 0xc045), [""; 0]);
        net.assert_connected();
        assert_eq!(net.problems(), [""; 0]);
    }
}

#[test]
fn trees_are_mended_when_a_link_is_cut_and_switches_can_be_members() {
    let mut net = Net::up(SMALL, Config::default());
    net.attach_all();
    let full = McMemberRecord::FULL;
    let members = ["H1", "H2", "H3", "H4", "S3"].map(|name| net.member(name, full));
    net.manager().set_groups(BTreeMap::from([(0xc003, members.to_vec())]));
    net.settle();
    assert_eq!(net.receivers("H1", 0xc003), ["H2", "H3", "H4", "S3"]);
    net.managed.cut(net.end("S1", 6), CutBy::Operator);
    net.managed.cut(net.end("S1", 7), CutBy::Operator);
    net.run(SECOND / 2);
    net.settle();
    assert_eq!(net.receivers("H1", 0xc003), ["H2", "H3", "H4", "S3"]);
    assert_eq!(net.receivers("H4", 0xc003), ["H1", "H2", "H3", "S3"]);
}

#[test]
fn trees_outlive_a_takeover_until_members_have_had_time_to_join_again() {
    let mut net = Net::up(&fat_tree(2, 4), Config { priority: 5, ..Config::default() });
    net.start("H8", Config::default());
    net.run(3 * SECOND);
    net.attach_all();
    let full = McMemberRecord::FULL;
    let mut members: Vec<Member> = ["H2", "H4", "H7"].map(|name| net.member(name, full)).to_vec();
    members.push(net.member("H16", McMemberRecord::SEND_ONLY_NON));
    net.manager().set_groups(BTreeMap::from([(0xc000, members.clone()), (0xc021, members.clone())]));
    net.settle();
    net.kill(0);
    while !net.sites[1].manager.is_up() {
        net.run(SECOND);
    }
    // One has joined again, to the first group.
    net.sites[1].manager.set_groups(BTreeMap::from([(0xc000, members[2..3].to_vec())]));
    net.settle();
    for (from, mlid) in [("H4", 0xc000), ("H16", 0xc000), ("H16", 0xc021)] {
        let expected: Vec<&str> = ["H2", "H4", "H7"].into_iter().filter(|name| *name != from).collect();
        assert_eq!(net.receivers(from, mlid), expected, "from {from} to {mlid:#x}");
    }
    net.run(40 * SECOND);
    net.settle();
    assert_eq!(net.receivers("H7", 0xc000), [""; 0], "the others have not joined again");
    assert_eq!(net.receivers("H7", 0xc021), [""; 0]);
}
