//! Two fabrics of two agents, with a link between them. Principal type: [`Pair`].

use crate::net::{SECOND, data};
use mad::topology::Topology;
use softhca_subnet::fabric::TRAINING;
use softhca_subnet::managed::{Datagram, Managed, Output};
use softhca_subnet::rate::{Mtu, Rate, Speed, Width};
use softhca_subnet::tunnel::reach::Reached;
use softhca_subnet::tunnel::{self, HELLO, Ignored, SILENCE};
use softhca_subnet::{CutBy, End, Time};
use std::net::SocketAddr;
use wire::layout::Layout;
use wire::mad::{BASE_VERSION, CLASS_SUBN_DIRECTED, METHOD_GET, METHOD_SET, RESPONSE};
use wire::smp::{CLASS_VERSION, NodeDescription, PERMISSIVE_LID, PortInfo, Smp};

struct Pair {
    nets: [Managed; 2],
    /// Datagrams pass between the agents.
    passes: bool,
    /// How many datagrams have left.
    sent: usize,
    /// What each has heard that its packets reach at the other one.
    reached: [Vec<Reached>; 2],
}

fn address(agent: usize) -> SocketAddr {
    format!("10.0.0.{}:{}", agent + 1, tunnel::UDP_PORT).parse().unwrap()
}

fn managed(text: &str, cookie: u64) -> Managed {
    let mut net = Managed::new(&Topology::from_text(text).unwrap()).unwrap();
    let ports: Vec<(End, SocketAddr)> = net.tunnels().collect();
    ports.into_iter().for_each(|(near, _)| net.open_tunnel(near, cookie, Mtu::B2048));
    net
}

const A: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[3] \"@10.0.0.2/S2\"[4]\n\nHca 1 \"H1\"\n";
const B: &str = "Switch 8 \"S2\"\n[1] \"H2\"[1]\n[4] \"@10.0.0.1/S1\"[3] w=1 s=2\n\nHca 1 \"H2\"\n";

impl Pair {
    fn new() -> Pair {
        Pair { nets: [managed(A, 0xa), managed(B, 0xb)], passes: true, sent: 0, reached: [Vec::new(), Vec::new()] }
    }

    fn up() -> Pair {
        let mut pair = Pair::new();
        pair.run(3 * TRAINING);
        pair
    }

    /// Lets time pass in both. Returns what has come out at the end ports.
    fn run(&mut self, time: Time) -> Vec<Output> {
        let until = self.nets[0].now().max(self.nets[1].now()) + time;
        let mut found = Vec::new();
        loop {
            let next = self.nets.iter().filter_map(Managed::next_event).min().filter(|next| *next <= until);
            for from in 0..2 {
                let now = next.unwrap_or(until).max(self.nets[from].now());
                for output in self.nets[from].advance(now) {
                    match output {
                        Output::Tunnel { peer, bytes } => {
                            assert_eq!(peer, address(1 - from));
                            self.sent += 1;
                            if self.passes {
                                let _ = self.nets[1 - from].tunnel_arrived(address(from), &bytes);
                            }
                        }
                        Output::Reach { reached, .. } => self.reached[from] = reached,
                        output => found.push(output),
                    }
                }
            }
            if next.is_none() {
                return found;
            }
        }
    }

    fn ends(&self) -> [End; 2] {
        [("S1", 3), ("S2", 4)].map(|(name, port)| {
            let node = self.nets.iter().find_map(|net| net.id(name)).unwrap();
            End { node, port }
        })
    }

    /// Logical and physical state of both ends of the link.
    fn states(&self) -> [(u8, u8); 2] {
        let [one, other] = self.ends();
        let state =
            |net: &Managed, end| net.port_info(end).map(|info| (info.link.state, info.link.phys_state)).unwrap();
        [state(&self.nets[0], one), state(&self.nets[1], other)]
    }

    /// Asks along a directed route from H1. Returns the answer.
    fn ask<T: Layout>(
        &mut self,
        path: &[u8],
        (method, attribute, modifier): (u8, u16, u32),
        content: T,
    ) -> Option<Smp> {
        let from = End { node: self.nets[0].id("H1").unwrap(), port: 1 };
        self.nets[0].attach(from).unwrap();
        let mut smp = Smp {
            base_version: BASE_VERSION,
            class: CLASS_SUBN_DIRECTED,
            class_version: CLASS_VERSION,
            method,
            attribute,
            modifier,
            transaction: self.nets[0].now(),
            dr_slid: PERMISSIVE_LID,
            dr_dlid: PERMISSIVE_LID,
            hop_count: path.len() as u8,
            ..Smp::default()
        };
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        content.write(&mut smp.data);
        let datagram = Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, 0, smp.to_mad());
        self.nets[0].send(from, &datagram).unwrap();
        self.run(SECOND / 100).into_iter().find_map(|output| match output {
            Output::Datagram(delivered) => Some(Smp::parse(&delivered.datagram.mad)),
            _ => None,
        })
    }
}

const INIT: [(u8, u8); 2] = [(2, 5); 2];
const POLLING: [(u8, u8); 2] = [(1, 2); 2];

#[test]
fn the_link_trains_with_what_both_ends_can_be_and_a_directed_route_crosses_it() {
    let mut pair = Pair::new();
    assert_eq!(pair.states(), POLLING, "the peer is not there yet");
    pair.run(3 * TRAINING);
    assert_eq!(pair.states(), INIT);
    for (net, end) in pair.nets.iter().zip(pair.ends()) {
        assert_eq!(net.fabric().port(end).unwrap().rate(), Rate { width: Width::X1, speed: Speed::Ddr });
        assert_eq!(net.port_info(end).unwrap().link.mtu_cap, Mtu::B2048 as u8);
    }
    let answer = pair.ask(&[1, 3, 1], (METHOD_GET, NodeDescription::ATTRIBUTE, 0), NodeDescription::default());
    let answer = answer.expect("an answer of H2");
    assert_eq!((answer.method, answer.status & 0x7fff), (METHOD_GET | RESPONSE, 0));
    assert_eq!(&answer.data[..2], b"H2");
    assert_eq!(pair.nets[0].name(pair.nets[0].fabric().peer(pair.ends()[0]).unwrap().node), Some("@10.0.0.2/S2"));
}

#[test]
fn a_silent_peer_takes_the_link_down_and_a_new_one_brings_it_up() {
    let mut pair = Pair::up();
    pair.run(10 * SECOND);
    assert_eq!(pair.states(), INIT);
    pair.passes = false;
    pair.run(SILENCE + 2 * HELLO);
    assert_eq!(pair.states(), POLLING);
    pair.passes = true;
    pair.nets[1] = managed(B, 0xc);
    pair.run(2 * HELLO);
    assert_eq!(pair.states(), INIT);
    for (peer, bytes) in pair.nets[0].close_tunnels() {
        assert_eq!(peer, address(1));
        assert_eq!(pair.nets[1].tunnel_arrived(address(0), &bytes), Ok(()));
    }
    assert_eq!(pair.states()[1], (1, 2), "the peer has said goodbye");
}

#[test]
fn both_ends_follow_a_cut_cable_and_a_manager_that_retrains_the_link() {
    let mut pair = Pair::up();
    let [near, _] = pair.ends();
    pair.nets[0].cut(near, CutBy::Operator);
    pair.run(TRAINING);
    assert_eq!(pair.states(), POLLING);
    pair.run(5 * SECOND);
    assert_eq!(pair.states(), POLLING);
    pair.nets[0].mend(near, CutBy::Operator);
    pair.run(3 * TRAINING);
    assert_eq!(pair.states(), INIT);
    let downed = |pair: &mut Pair| {
        let [near, far] = pair.ends();
        let counter = mad::counters::Counter::LinkDowned;
        [pair.nets[0].counter(near, counter), pair.nets[1].counter(far, counter)]
    };
    assert_eq!(downed(&mut pair), [1, 1]);
    let info = pair.nets[0].port_info(near).unwrap();
    let link = wire::smp::PortLink { state: 1, phys_state: 2, ..info.link };
    let sent = pair.sent;
    let set = (METHOD_SET, PortInfo::ATTRIBUTE, near.port.into());
    assert_eq!(pair.ask(&[1], set, PortInfo { link, ..info }).map(|answer| answer.status & 0x7fff), Some(0));
    assert_eq!((pair.states(), downed(&mut pair)), (INIT, [2, 2]), "both have trained again, once");
    assert!(pair.sent - sent < 20, "and are calm: {}", pair.sent - sent);
}

#[test]
fn a_flood_of_the_peer_is_dropped_where_it_comes_in() {
    let mut pair = Pair::up();
    let [near, _] = pair.ends();
    let node = pair.nets[1].id("S2").unwrap();
    let mut smp = Smp { class: CLASS_SUBN_DIRECTED, method: METHOD_GET, hop_count: 1, ..Smp::default() };
    (smp.dr_slid, smp.dr_dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
    smp.initial_path[1] = 4;
    let datagram = Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, 0, smp.to_mad());
    pair.nets[1].send(End { node, port: 0 }, &datagram).unwrap();
    let until = pair.nets[1].now() + SECOND / 100;
    let outputs = pair.nets[1].advance(until);
    let Some(Output::Tunnel { bytes, .. }) = outputs.into_iter().next() else { panic!("a datagram") };
    for _ in 0..10_000 {
        assert_eq!(pair.nets[0].tunnel_arrived(address(1), &bytes), Ok(()));
    }
    let far = pair.nets[0].fabric().peer(near).unwrap();
    assert!(pair.nets[0].fabric().port(far).unwrap().backlog() <= 64);
    assert_eq!(pair.nets[0].tunnel_arrived(address(5), &bytes), Err(Ignored::Names), "another address");
    assert_eq!(pair.nets[0].tunnel_arrived(address(1), &[0; 40]), Err(Ignored::Names));
}

#[test]
fn packets_of_programs_cross_when_managers_have_made_the_link_active() {
    let mut pair = Pair::up();
    let host = pair.nets[1].id("H2").unwrap();
    let out = pair.nets[0].fabric().peer(pair.ends()[0]).unwrap();
    let from = End { node: pair.nets[0].id("H1").unwrap(), port: 1 };
    pair.nets[1].attach(End { node: host, port: 1 }).unwrap();
    assert!(pair.nets[0].resolve(from, 9, 0).is_err(), "no manager has been there");
    for (net, node, route) in [(0, "S1", 3), (1, "S2", 1)] {
        // A manager would send datagrams; the test knows the model.
        let id = pair.nets[net].id(node).unwrap();
        let mut table = wire::smp::LinearTable { ports: [255; 64] };
        table.ports[9] = route;
        let path: &[u8] = if net == 0 { &[1] } else { &[1, 3] };
        assert!(pair.ask(path, (METHOD_SET, wire::smp::LinearTable::ATTRIBUTE, 0), table).is_some());
        let info =
            wire::smp::SwitchInfo { linear_top: 63, ..pair.nets[net].node(id).unwrap().switch.as_ref().unwrap().info };
        assert!(pair.ask(path, (METHOD_SET, wire::smp::SwitchInfo::ATTRIBUTE, 0), info).is_some());
    }
    for (path, number, lid) in
        [(&[1_u8, 3, 1][..], 1, 9), (&[1, 3], 1, 0), (&[1, 3], 4, 0), (&[1], 3, 0), (&[1], 1, 0), (&[], 1, 8)]
    {
        for state in [3, 4] {
            let info = pair.ask(path, (METHOD_GET, PortInfo::ATTRIBUTE, number), PortInfo::default()).unwrap();
            let info = PortInfo::read(&info.data).unwrap();
            let link = wire::smp::PortLink { state, phys_state: 0, speed_enabled: 0, width_enabled: 0, ..info.link };
            let info = PortInfo { lid, master_sm_lid: 8, link, ..info };
            pair.ask(path, (METHOD_SET, PortInfo::ATTRIBUTE, number), info).unwrap();
        }
    }
    assert_eq!(pair.nets[0].resolve(from, 9, 0).unwrap().end, out, "the path leads out of this fabric");
    let [reached] = &pair.reached[0][..] else { panic!("one LID: {:?}", pair.reached[0]) };
    let same =
        Reached { lid: 9, levels: 0xffff, mtu: Mtu::B2048, pkeys: vec![0xffff], address: None, ..reached.clone() };
    assert_eq!((reached, reached.tunnels), (&same, 0), "what the other agent says");
    assert_ne!(reached.gid, [0; 16], "with its GID");
    pair.nets[0].inject(from, data(8, 9, 0xffff)).unwrap();
    let arrived = pair.run(SECOND / 100);
    assert!(arrived.iter().any(|output| matches!(output, Output::Packet(_))), "{arrived:?}");
    pair.nets[1] = managed(B, 0xd);
    pair.run(2 * HELLO);
    assert!(pair.reached[0].is_empty(), "a new agent has no LIDs");
}

#[test]
fn a_peer_of_another_release_is_refused_and_reported_once_until_it_is_replaced() {
    let mut pair = Pair::new();
    let Some(Output::Tunnel { bytes, .. }) = pair.nets[1].advance(0).into_iter().next() else { panic!("a hello") };
    let mut old = bytes.clone();
    old[4] -= 1;
    assert_eq!(pair.nets[0].tunnel_arrived(address(1), &old), Err(Ignored::Version(old[4])));
    assert_eq!(pair.nets[0].tunnel_arrived(address(1), &old), Ok(()), "once");
    let mut older = old.clone();
    older[4] -= 1;
    for forged in [&older, &old, &older] {
        assert_eq!(pair.nets[0].tunnel_arrived(address(1), forged), Ok(()), "a sender does not fill the log");
    }
    assert_eq!(pair.nets[0].tunnel_arrived(address(5), &old), Ok(()), "a stranger is not reported");
    pair.run(3 * TRAINING);
    assert_eq!(pair.states(), INIT);
    assert_eq!(pair.nets[0].tunnel_arrived(address(1), &old), Err(Ignored::Version(old[4])), "again");
}
