//! What engines learn of paths while the fabric changes, in agents without a server.

use std::time::{Duration, Instant};

use abi::device::port_state;
use mad::counters::Counter::{
    self, MulticastReceivePackets, MulticastXmitPackets, SwitchRelayErrors, UnicastReceivePackets, UnicastXmitPackets,
};
use mad::key::Key;
use mad::topology::Topology;
use subnet::CutBy;
use subnet::switch::Ports;

use super::*;
use crate::asker::Asker;
use crate::config::Config;
use crate::faults::{Scope, manage};
use crate::ids::{ContextId, Peer};
use crate::objects::traffic::{Counted, Flow, Sum};

/// The adapters have the indices 0 to 2.
const ROW: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[3] \"S2\"[3]\n[4] \"S2\"[4]\n\nSwitch 8 \"S2\"\n[1] \"H2\"[1]\n\
     [2] \"H3\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n";
const ROUTED: &str = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"R\"[1]\n\nSwitch 4 \"S2\"\n[1] \"H2\"[1]\n[2] \"R\"[2]\n\n\
     Rt 2 \"R\"\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";

/// H1 is the adapter 0, and H3 the adapter 1.
const THREE_SUBNETS: &str = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"R1\"[1]\n\nSwitch 4 \"S2\"\n[1] \"R1\"[2]\n[2] \"R2\"[1]\n\n\
     Switch 4 \"S3\"\n[1] \"R2\"[2]\n[2] \"H3\"[1]\n\nRt 2 \"R1\"\n\nRt 2 \"R2\"\n\nHca 1 \"H1\"\n\nHca 1 \"H3\"\n";

/// An agent with a topology, and a program on each adapter.
struct Bench {
    world: World,
    mads: Mads,
    contexts: Vec<ContextId>,
}

impl Bench {
    fn new(text: &str) -> Self {
        Self::with(text, sm::Settings::default())
    }

    fn with(text: &str, subnet_manager: sm::Settings) -> Self {
        let topology = Topology::from_text(text).expect("valid");
        let devices = crate::topology::devices(&topology).expect("adapters");
        let wire = crate::config::WireMode::Off;
        let topology = Some(topology);
        let config = Config { devices, topology, has_subnet_manager: true, subnet_manager, wire, ..Config::default() };
        let mut world = World::new(&config, "a test").expect("a world");
        let mads = Mads::new(&world, &config).expect("a fabric");
        let peer = || Peer { pid: 1, uid: 1000, comm: "test".into() };
        let count = world.devices.slots();
        let contexts = (0..count).map(|device| world.open(device, 0, peer()).expect("a context")).collect();
        let mut bench = Self { world, mads, contexts };
        bench.run_until(|bench| bench.all_are_active());
        bench
    }

    fn all_are_active(&self) -> bool {
        self.world.devices.iter().all(|device| device.ports[0].state == port_state::ACTIVE)
    }

    /// Lets time pass until something holds.
    #[track_caller]
    fn run_until(&mut self, holds: impl Fn(&mut Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < end, "it does not come to hold");
            self.mads.began -= Duration::from_millis(20);
            self.mads.on_time(&mut self.world);
            self.mads.take_results();
        }
    }

    /// A port joins a group at the subnet administration of its subnet, or leaves it.
    #[track_caller]
    fn join_group(&mut self, device: usize, mgid: [u8; 16], joins: bool) {
        use wire::layout::Layout;
        use wire::mad::{CLASS_SA, Header, METHOD_DELETE, METHOD_SET};
        use wire::sa::{DATA, McMemberRecord as Record};
        let port = &self.world.devices[device].ports[0];
        let (port_gid, lid) = (port.gids.entry(0).expect("a GID").gid, port.lid.expect("a LID").number);
        let pkey = port.pkeys.entries()[0];
        let record = Record { mgid, port_gid, qkey: 7, pkey, join_state: Record::FULL, ..Record::default() };
        let mask = Record::MGID | Record::PORT_GID | Record::JOIN_STATE;
        let create = Record::QKEY | Record::TRAFFIC_CLASS | Record::PKEY | Record::FLOW_LABEL | Record::SL;
        let method = if joins { METHOD_SET } else { METHOD_DELETE };
        let mask = if joins { mask | create } else { mask };
        let mut mad = [0; 256];
        wire::sa::Header { component_mask: mask, ..wire::sa::Header::default() }.write(&mut mad);
        let attribute = Record::ATTRIBUTE;
        Header { base_version: 1, class: CLASS_SA, class_version: 2, method, attribute, ..Header::default() }
            .emit_to(&mut mad);
        record.write(&mut mad[DATA..]);
        let now = self.mads.now();
        let peer = sm::sa::Peer { lid, qpn: 1, pkey, ..sm::sa::Peer::default() };
        let prefix = u64::from_be_bytes(*port_gid.first_chunk().expect("8 bytes"));
        let manager = self.mads.managers.iter_mut().find(|manager| manager.prefix() == prefix).expect("a manager");
        manager.service_mut().receive_administration(peer, &mad, now);
    }

    /// The LID of a group in the subnet of a device.
    fn mlid(&self, device: usize, mgid: [u8; 16]) -> Option<u16> {
        let gid = self.world.devices[device].ports[0].gids.entry(0)?.gid;
        let prefix = u64::from_be_bytes(*gid.first_chunk()?);
        let sa = self.mads.managers.iter().find(|manager| manager.prefix() == prefix)?.service().sa()?;
        sa.group(&mgid).map(|group| group.mlid)
    }

    fn question(&self, from: usize, to: usize) -> Question {
        Question { from: (from, 1), to: (to, 1), dlid: 0, route: ([0; 16], 0, 0) }
    }

    /// What the program at the sender's port learns, as by PATH_RESOLVE.
    fn ask(&mut self, question: &Question) -> Path {
        let context = self.contexts[question.from.0];
        if let Some(path) = self.world.tables.paths.path(context, question) {
            return path.clone();
        }
        self.mads.find_paths(&mut self.world);
        self.world.tables.paths.path(context, question).expect("it is found now").clone()
    }

    fn path(&mut self, from: usize, to: usize) -> Path {
        let question = self.question(from, to);
        self.ask(&question)
    }

    fn operate(&mut self, action: impl FnOnce(&mut Fabric)) {
        action(self.mads.fabric.as_mut().expect("it is there"));
        self.mads.settle(&mut self.world);
    }

    /// Sets the ports of a group at a switch; without ports, the group goes.
    fn set_group(&mut self, switch: &str, mlid: u16, ports: &[u8]) {
        let node = self.end(switch, 0).node;
        let tables = self.mads.fabric.as_mut().and_then(|fabric| fabric.managed.fabric_mut().switch_mut(node));
        let groups = &mut tables.expect("a switch").multicast;
        match ports {
            [] => groups.remove(&mlid),
            _ => groups.insert(mlid, Ports::of(ports.iter().copied())),
        };
    }

    /// The program at H1 sends packets to a group. The agent has not seen their count yet.
    fn sends(&mut self, mlid: u16, packets: u64) {
        let flow = Flow { dlid: mlid, pkey: 0xffff, ..Flow::of_port((0, 1)) };
        let datagrams = Sum { packets, words: 10 * packets };
        self.world.tables.traffic.add(flow, Counted { datagrams, ..Counted::default() });
    }

    fn counter(&mut self, name: &str, port: u8, counter: Counter) -> u64 {
        let end = self.end(name, port);
        self.mads.fabric.as_mut().expect("it is there").managed.counter(end, counter)
    }

    fn end(&self, name: &str, port: u8) -> End {
        let fabric = self.mads.fabric.as_ref().expect("it is there");
        End { node: fabric.managed.id(name).expect("a node"), port }
    }
}

#[test]
fn an_answer_stays_current_and_only_a_change_of_it_is_announced() {
    let mut bench = Bench::new(ROW);
    let path = bench.path(0, 2);
    assert!(path.levels & 1 == 1 && path.pkeys & 1 == 1 && path.mtu == 5, "{path:?}");
    let epoch = bench.world.board.path_epoch();
    let other = bench.end("H2", 1);
    bench.operate(|fabric| fabric.managed.cut(other, CutBy::Operator));
    bench.run_until(|bench| bench.world.devices[1].ports[0].state != port_state::ACTIVE);
    assert_eq!((bench.path(0, 2), bench.world.board.path_epoch()), (path.clone(), epoch), "it does not pass there");
    for port in [3, 4] {
        let end = bench.end("S1", port);
        bench.operate(|fabric| fabric.managed.cut(end, CutBy::Operator));
    }
    bench.run_until(|bench| bench.path(0, 2).levels == 0);
    assert_ne!(bench.world.board.path_epoch(), epoch);
    let end = bench.end("S1", 4);
    bench.operate(|fabric| fabric.managed.mend(end, CutBy::Operator));
    bench.run_until(|bench| bench.path(0, 2) == path);
}

#[test]
fn a_path_of_unknown_ports_is_no_path_and_a_program_that_ends_is_forgotten() {
    let mut bench = Bench::new(ROW);
    for question in [Question { to: (9, 1), ..bench.question(0, 2) }, Question { dlid: 0xbff0, ..bench.question(0, 2) }]
    {
        assert_eq!(bench.ask(&question), Path::default());
    }
    // The LID of another port.
    let lid = bench.world.devices[1].ports[0].lid.expect("a LID").number;
    assert_eq!(bench.ask(&Question { dlid: lid, ..bench.question(0, 2) }).levels, 0);
    assert_eq!(bench.world.tables.paths.known.len(), 1);
    bench.world.close(bench.contexts[0]);
    assert!(bench.world.tables.paths.known.is_empty());
}

#[test]
fn a_device_is_added_at_its_place_in_the_topology_only() {
    let mut bench = Bench::new(ROW);
    let path = bench.path(0, 2);
    let told = bench.world.add_devices("[[devices]]\nname = \"H4\"").expect_err("it has no cable");
    assert!(told.contains("no adapter \"H4\"") && told.contains("softhca subnet"), "{told}");
    bench.world.remove_device("H3").expect("it is there");
    bench.world.tell_clients(&mut [&mut bench.mads]);
    bench.run_until(|bench| bench.path(0, 2).levels == 0);
    bench.world.close(bench.contexts[2]);
    bench.world.add_devices("[[devices]]\nname = \"H3\"").expect("its place is free");
    bench.world.tell_clients(&mut [&mut bench.mads]);
    bench.run_until(|bench| bench.all_are_active());
    bench.run_until(|bench| bench.path(0, 2) == path);
}

#[test]
fn a_router_joins_two_subnets() {
    let mut bench = Bench::new(ROUTED);
    let gids = [0, 1].map(|device| bench.world.devices[device].ports[0].gids.entry(0).expect("a GID").gid);
    assert_eq!(gids.map(|gid| gid[..8].to_vec()), [[0xfe, 0xc0, 0, 0, 0, 0, 0, 1], [0xfe, 0xc0, 0, 0, 0, 0, 0, 2]]);
    let router = bench.end("R", 1);
    let lid = bench.mads.fabric.as_ref().and_then(|fabric| fabric.managed.port_info(router)).expect("a port").lid;
    let global = |hop_limit| Question {
        dlid: lid,
        route: (gids[1], hop_limit, 0),
        ..Question { from: (0, 1), to: (1, 1), dlid: 0, route: ([0; 16], 0, 0) }
    };
    assert!(lid != 0 && bench.ask(&global(2)).levels & 1 == 1, "LID {lid}");
    assert_eq!(bench.ask(&global(1)).levels, 0, "the hop limit");
    assert_eq!(bench.path(0, 1).levels, 0, "not without a GRH");
    let end = bench.end("R", 2);
    bench.operate(|fabric| fabric.managed.cut(end, CutBy::Operator));
    bench.run_until(|bench| bench.ask(&global(2)).levels == 0);
}

/// Subnet administration of the first subnet does not know the links of the second one.
#[test]
fn a_path_through_a_router_has_the_mtu_of_the_links_behind_it() {
    use wire::layout::Layout;
    use wire::sa::{DATA, PathRecord};
    let mut bench = Bench::new(ROUTED);
    let gids = [0, 1].map(|device| bench.world.devices[device].ports[0].gids.entry(0).expect("a GID").gid);
    let router = bench.end("R", 1);
    let dlid = bench.mads.fabric.as_ref().and_then(|fabric| fabric.managed.port_info(router)).expect("a port").lid;
    let asked = PathRecord { sgid: gids[0], dgid: gids[1], dlid, mtu: 5, hop_limit: 255, ..PathRecord::default() };
    let mtu = |bench: &Bench, record: &PathRecord| {
        let mut mad = [0; 256];
        let header = wire::mad::Header { attribute: PathRecord::ATTRIBUTE, ..wire::mad::Header::default() };
        header.emit_to(&mut mad);
        record.write(&mut mad[DATA..]);
        PathRecord::read(&bench.mads.with_whole_path(mad)[DATA..]).expect("a record").mtu
    };
    bench.run_until(|bench| mtu(bench, &asked) == 5);
    let narrow = bench.end("S2", 1);
    bench.operate(|fabric| fabric.managed.fabric_mut().settings_mut(narrow).expect("a port").mtu = subnet::Mtu::B1024);
    assert_eq!(mtu(&bench, &asked), 3);
    assert_eq!(mtu(&bench, &PathRecord { mtu: 2, ..asked }), 2, "the links up to the router");
    assert_eq!(mtu(&bench, &PathRecord { dgid: gids[0], ..asked }), 5, "in the own subnet");
}

/// Three subnets in a row: the hop limit counts the routers, and a link of the second router ends
/// the path.
#[test]
fn paths_lead_through_several_routers() {
    let mut bench = Bench::new(THREE_SUBNETS);
    let gids = [0, 1].map(|device| bench.world.devices[device].ports[0].gids.entry(0).expect("a GID").gid);
    let lids = [("R1", 1), ("R2", 2)].map(|(name, port)| {
        let end = bench.end(name, port);
        bench.mads.fabric.as_ref().and_then(|fabric| fabric.managed.port_info(end)).expect("a port").lid
    });
    let global = |from: usize, hop_limit| {
        let to = 1 - from;
        Question { from: (from, 1), to: (to, 1), dlid: lids[from], route: (gids[to], hop_limit, 0) }
    };
    bench.run_until(|bench| bench.ask(&global(0, 3)).levels & 1 == 1);
    assert_eq!(bench.ask(&global(1, 3)).levels & 1, 1, "and back");
    let last = [0, 1].map(|from| bench.ask(&global(from, 3)).router.0);
    assert_eq!(last, [lids[1], lids[0]], "completions have the LID of the router next to the receiver");
    assert_eq!(bench.ask(&global(0, 2)).levels, 0, "there are two routers");
    let end = bench.end("R2", 2);
    bench.operate(|fabric| fabric.managed.cut(end, CutBy::Operator));
    bench.run_until(|bench| bench.ask(&global(0, 3)).levels == 0);
    bench.operate(|fabric| fabric.managed.mend(end, CutBy::Operator));
    bench.run_until(|bench| bench.ask(&global(0, 3)).levels & 1 == 1);
}

/// Datagrams and packets of a connection: what arrives counts at every port on the way, and what
/// has too small a hop limit up to the router that drops it, which counts the drop. IBA 16.1.3.5
/// counts it as PortRcvSwitchRelayErrors: the relay received it and could not forward it.
#[test]
fn packets_count_at_every_router_up_to_the_one_that_drops_them() {
    let mut bench = Bench::new(THREE_SUBNETS);
    let gid = bench.world.devices[1].ports[0].gids.entry(0).expect("a GID").gid;
    let router = bench.end("R1", 1);
    let lid = bench.mads.fabric.as_ref().and_then(|fabric| fabric.managed.port_info(router)).expect("a port").lid;
    let arrives = Question { from: (0, 1), to: (1, 1), dlid: lid, route: (gid, 3, 0) };
    bench.run_until(|bench| bench.ask(&arrives).levels & 1 == 1);
    let counts = |bench: &mut Bench| {
        let sent = [("H1", 1), ("S1", 2), ("R1", 2), ("S2", 2), ("R2", 2), ("S3", 2)];
        let received = [("S1", 1), ("R1", 1), ("S2", 1), ("R2", 1), ("S3", 1), ("H3", 1)];
        let drops = [("R1", 1), ("R2", 1), ("R2", 2)];
        (
            sent.map(|(name, port)| bench.counter(name, port, UnicastXmitPackets)),
            received.map(|(name, port)| bench.counter(name, port, UnicastReceivePackets)),
            drops.map(|(name, port)| bench.counter(name, port, SwitchRelayErrors)),
        )
    };
    let to = |hop_limit, to| Flow { dlid: lid, pkey: 0xffff, to, route: (gid, hop_limit, 0), ..Flow::of_port((0, 1)) };
    let sum = Sum { packets: 5, words: 50 };
    for (flow, counted) in [
        (to(3, None), Counted { datagrams: sum, ..Counted::default() }),
        (to(3, Some((1, 1))), Counted { sent: sum, ..Counted::default() }),
    ] {
        let before = counts(&mut bench);
        bench.world.tables.traffic.add(flow, counted);
        bench.mads.count_traffic(&mut bench.world);
        let now = counts(&mut bench);
        assert_eq!((now.0, now.1, now.2), (before.0.map(|it| it + 5), before.1.map(|it| it + 5), [0; 3]), "{flow:?}");
    }
    let mut dropped = 0;
    for flow in [Flow { mtu: 256, ..to(2, None) }, to(2, Some((1, 1)))] {
        let before = counts(&mut bench);
        bench.world.tables.traffic.add(flow, Counted { lost: sum, ..Counted::default() });
        bench.mads.count_traffic(&mut bench.world);
        let now = counts(&mut bench);
        dropped += 5;
        let until =
            |last: usize, before: [u64; 6]| std::array::from_fn(|at| before[at] + if at < last { 5 } else { 0 });
        assert_eq!((now.0, now.1, now.2), (until(4, before.0), until(4, before.1), [0, dropped, 0]), "{flow:?}");
    }
}

fn to_group(mlid: u16, sl: u8, route: ([u8; 16], u8)) -> TreeQuestion {
    TreeQuestion { from: (0, 1), mlid, sl, pkey: 0xffff, route }
}

/// Members in the first and the last of three subnets. The routers join for them, also in the
/// subnet between, and leave with them.
#[test]
fn a_group_reaches_members_behind_routers() {
    let mut bench = Bench::new(THREE_SUBNETS);
    let mut mgid = [0; 16];
    (mgid[0], mgid[1], mgid[15]) = (0xff, 0x15, 9);
    let local = {
        let mut local = mgid;
        local[1] = 0x12;
        local
    };
    for group in [mgid, local] {
        [0, 1].iter().for_each(|device| bench.join_group(*device, group, true));
    }
    let reaches = |bench: &mut Bench, group: [u8; 16], hops: u8| {
        let mlid = bench.mlid(0, group)?;
        let question = to_group(mlid, 0, (group, hops));
        let found = bench.mads.fabric.as_ref().expect("a fabric").find_tree(&question).answer;
        assert!(found.copies.links.len() <= 7, "no link twice: {found:?}");
        Some((found.ports.contains(&(1, 1)), found.copies.ends.len()))
    };
    bench.run_until(|bench| reaches(bench, mgid, 3) == Some((true, 1)));
    assert_eq!(reaches(&mut bench, mgid, 2), Some((false, 0)), "there are two routers");
    assert_eq!(reaches(&mut bench, local, 3).map(|(reached, _)| reached), Some(false), "link-local");
    bench.join_group(1, mgid, false);
    bench.run_until(|bench| matches!(reaches(bench, mgid, 3), Some((false, _))));
    bench.run_until(|bench| {
        bench.mads.managers.iter().filter(|it| it.prefix() & 7 > 1).all(|it| {
            it.service().sa().is_some_and(|sa| sa.groups_of_routers(it.service().manager().inventory()).count() == 0)
        })
    });
}

/// The ports that a group reaches are those of the packets' service level.
#[test]
fn a_group_is_resolved_when_somebody_asks() {
    let mut bench = Bench::new(ROW);
    let question = to_group(0xc000, 0, ([0; 16], 0));
    assert!(bench.world.tables.paths.tree(&question).is_none());
    bench.mads.find_paths(&mut bench.world);
    let reach = bench.world.tables.paths.tree(&question).expect("it is known");
    assert!(reach.has((0, 1)) && !reach.has((2, 1)), "only the sender itself: nobody has joined");
    assert!(bench.world.tables.paths.tree(&to_group(0xc000, 3, ([0; 16], 0))).is_none());
}

/// Copies that were sent while the group was there took the ways of that time.
#[test]
fn copies_to_a_group_that_has_gone_count_at_the_links_that_they_took() {
    let mut bench = Bench::new(ROW);
    let mlid = 0xc123;
    bench.set_group("S1", mlid, &[1, 3]);
    bench.set_group("S2", mlid, &[2, 3]);
    bench.operate(|_| ());
    let question = to_group(mlid, 0, ([0; 16], 0));
    assert!(bench.world.tables.paths.tree(&question).is_none());
    bench.mads.find_paths(&mut bench.world);
    assert!(bench.world.tables.paths.tree(&question).expect("it is known").has((2, 1)));
    bench.sends(mlid, 5);
    bench.set_group("S1", mlid, &[]);
    bench.set_group("S2", mlid, &[]);
    bench.operate(|_| ());
    let counts = |bench: &mut Bench| {
        let way = [("H1", 1), ("S1", 3), ("S2", 2)].map(|(name, port)| bench.counter(name, port, MulticastXmitPackets));
        let ends = [("S1", 1), ("H3", 1)].map(|(name, port)| bench.counter(name, port, MulticastReceivePackets));
        (way, ends, bench.counter("S1", 1, SwitchRelayErrors))
    };
    assert_eq!(counts(&mut bench), ([5; 3], [5; 2], 0));
    // From now on the first switch drops them.
    bench.sends(mlid, 2);
    bench.mads.count_traffic(&mut bench.world);
    assert_eq!(counts(&mut bench), ([7, 5, 5], [7, 5], 2));
}

#[test]
fn the_own_manager_represses_what_a_port_tells_of_wrong_keys() {
    use abi::private::Violation;
    let mut bench = Bench::new(ROW);
    let at = PortId { device: 2, port: 1 };
    let (lid, from) = [2, 0].map(|device| bench.world.devices[device].ports[0].lid.expect("a LID").number).into();
    let told =
        |key| Violation { port: 1, kind: abi::private::violation::PKEY, key, slid: from, ..Violation::default() };
    for key in 1..100 {
        bench.world.note_violation(at, told(key));
        assert!(bench.mads.take_violations(&mut bench.world));
    }
    assert!(!bench.mads.take_violations(&mut bench.world));
    let end = bench.end("H3", 1);
    let waiting = |bench: &Bench| bench.mads.fabric.as_ref().expect("it is there").managed.waiting_traps(end);
    assert!((1..=mad::traps::MOST_OF_KEYS).contains(&waiting(&bench)));
    bench.run_until(|bench| waiting(bench) == 0);
    // What management datagrams and programs count is one number.
    bench.world.count_violation(at, Key::PKey);
    bench.mads.show_violations(&bench.world, end);
    let info = bench.mads.fabric.as_ref().and_then(|fabric| fabric.managed.port_info(end)).expect("a port");
    assert_eq!((info.lid, info.pkey_violations, info.qkey_violations), (lid, 1, 0));
}

fn clear_faults(bench: &mut Bench) {
    let question = serde_json::json!({ "do": "clear" });
    manage::answer(&mut bench.world, Asker::Root, &question);
    bench.mads.follow_faults(&mut bench.world);
}

/// A rule about a link concerns the paths over it, in its direction, and ends with the rule.
#[test]
fn paths_tell_the_fault_rules_about_their_links() {
    let mut bench = Bench::new(
        "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"S2\"[3]\n\nSwitch 8 \"S2\"\n[1] \"H3\"[1]\n\n\
        Hca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n",
    );
    let links = |bench: &mut Bench, from, to| {
        let links = bench.path(from, to).links;
        (links.there, links.both_ways)
    };
    let add = |bench: &mut Bench, rule: &str| {
        bench.world.add_faults(Scope::All, rule).expect("a rule");
        bench.mads.follow_faults(&mut bench.world);
    };
    assert_eq!(links(&mut bench, 0, 2), (0, 0));
    add(&mut bench, "loss 10% link S2[3]");
    assert_eq!([links(&mut bench, 0, 2), links(&mut bench, 2, 0), links(&mut bench, 0, 1)], [(2, 2), (2, 2), (0, 0)]);
    add(&mut bench, "delay 1ms direction out link \"S1\"[3]");
    assert_eq!([links(&mut bench, 0, 2), links(&mut bench, 2, 1)], [(6, 6), (2, 6)]);
    clear_faults(&mut bench);
    assert_eq!(links(&mut bench, 0, 2), (0, 0));
    for (rule, words) in [("loss link S1[4]", "`softhca subnet` lists"), ("loss link S9[1]", "there is no cable")] {
        let told = bench.world.add_faults(Scope::All, rule).expect_err(words);
        assert!(told.contains(words), "{told}");
    }
}

/// Packets that a bad link loses count at the ports up to the link, and as errors behind it.
#[test]
fn what_a_bad_link_loses_is_counted_at_the_port_behind_it() {
    use mad::counters::Counter::{ReceiveErrors, SymbolErrors};
    for (rule, errors) in [("loss 10% link S1[3] direction out", [7, 0]), ("corrupt link S2[3]", [7, 7])] {
        let mut bench = Bench::new(
            "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[3] \"S2\"[3]\n\nSwitch 8 \"S2\"\n[1] \"H2\"[1]\n\n\
            Hca 1 \"H1\"\n\nHca 1 \"H2\"\n",
        );
        bench.world.add_faults(Scope::All, rule).expect("a rule");
        bench.mads.follow_faults(&mut bench.world);
        let ports = [("S1", 1, UnicastReceivePackets), ("S1", 3, UnicastXmitPackets), ("S2", 3, UnicastReceivePackets)];
        let counts = |bench: &mut Bench| ports.map(|(name, port, counter)| bench.counter(name, port, counter));
        let before = counts(&mut bench);
        let dlid = bench.world.devices[1].ports[0].lid.expect("a LID").number;
        let flow = Flow { dlid, to: Some((1, 1)), pkey: 0xffff, ..Flow::of_port((0, 1)) };
        let lost = Sum { packets: 7, words: 70 };
        bench.world.tables.traffic.add(flow, Counted { lost, ..Counted::default() });
        // The rule ends before somebody asks.
        clear_faults(&mut bench);
        let now = counts(&mut bench);
        assert_eq!(now, [before[0] + 7, before[1] + 7, before[2]], "{rule}");
        let found = [SymbolErrors, ReceiveErrors].map(|counter| bench.counter("S2", 3, counter));
        assert_eq!(found, errors, "{rule}");
        assert_eq!(bench.counter("S1", 3, SymbolErrors), 0, "the other direction");
    }
}

/// A rule takes a link down. Its ports get their events, and packets take another path or none,
/// until the rule ends. Then the link trains again.
#[test]
fn a_link_is_down_as_long_as_a_rule_says() {
    let mut bench = Bench::new(ROW);
    let path = bench.path(0, 2);
    bench.world.add_faults(Scope::All, "port-down link \"H2\"[1]").expect("a rule");
    bench.mads.follow_faults(&mut bench.world);
    bench.run_until(|bench| bench.world.devices[1].ports[0].state == port_state::DOWN);
    assert_eq!(bench.path(0, 2), path, "another link");
    clear_faults(&mut bench);
    bench.run_until(|bench| bench.all_are_active());
}

/// What the operator has cut stays cut when a rule ends or a device is added, and the reverse.
#[test]
fn a_cut_of_the_operator_and_a_rule_end_by_themselves() {
    let operator = |bench: &mut Bench, action: &str| {
        let question = serde_json::json!({ "do": action, "at": "H2[1]" });
        let (answer, changed) = bench.mads.answer_operator(&mut bench.world, Asker::Root, &question);
        assert!(changed, "{answer}");
    };
    let rule = |bench: &mut Bench, action: &str| match action {
        "cut" => {
            bench.world.add_faults(Scope::All, "port-down link \"S2\"[1]").expect("a rule");
            bench.mads.follow_faults(&mut bench.world);
        }
        _ => clear_faults(bench),
    };
    let device = |bench: &mut Bench, action: &str| {
        match action {
            "cut" => {
                bench.world.remove_device("H2").expect("it is there");
                bench.world.close(bench.contexts[1]);
            }
            _ => {
                bench.world.add_devices("[[devices]]\nname = \"H2\"").expect("its place is free");
            }
        }
        bench.world.tell_clients(&mut [&mut bench.mads]);
    };
    type Cause<'a> = (&'a str, &'a dyn Fn(&mut Bench, &str));
    let (operator, rule, device): (Cause, Cause, Cause) =
        (("operator", &operator), ("rule", &rule), ("absence", &device));
    for (first, second) in [(operator, rule), (rule, operator), (operator, device), (device, rule)] {
        let mut bench = Bench::new(ROW);
        first.1(&mut bench, "cut");
        second.1(&mut bench, "cut");
        first.1(&mut bench, "mend");
        let (picture, _) = bench.mads.answer_operator(&mut bench.world, Asker::Root, &serde_json::json!({}));
        let nodes = picture["subnet"].as_array().expect("nodes");
        let node = nodes.iter().find(|node| node["name"] == "H2").expect("a node");
        let told = [&node["ports"][0]["cut"], &node["ports"][0]["cut_by"]];
        assert_eq!(told, [&serde_json::json!(true), &serde_json::json!([second.0])], "not {}", first.0);
        second.1(&mut bench, "mend");
        bench.run_until(|bench| bench.all_are_active());
    }
}

#[test]
fn the_own_managers_keep_the_lids_of_ports_over_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("lids");
    for text in [ROW, ROUTED] {
        let settings = || sm::Settings { lids: Some(path.clone()), ..sm::Settings::default() };
        let lids = |bench: &Bench| -> Vec<u16> {
            bench.world.devices.iter().map(|device| device.ports[0].lid.expect("a LID").number).collect()
        };
        let kept = || sm::lids::parse(&std::fs::read_to_string(&path).expect("a file")).expect("LIDs");
        let first = lids(&Bench::with(text, settings()));
        assert!(first.iter().all(|lid| *lid < 40 && kept().values().any(|known| known == lid)), "{first:?}");
        // The next manager gives what the file says, and not what it would choose.
        let moved: sm::lids::LidMap = kept().into_iter().map(|(guid, lid)| (guid, lid + 40)).collect();
        std::fs::write(&path, sm::lids::emit(&moved)).expect("written");
        let wanted: Vec<u16> = first.iter().map(|lid| lid + 40).collect();
        assert_eq!(lids(&Bench::with(text, settings())), wanted);
        assert_eq!(kept(), moved);
        std::fs::remove_file(&path).expect("it was there");
    }
}
