//! Programs with open files: what they ask, and what they read.

use abi::Errno;
use abi::Record;
use abi::event::kind as event_kind;
use abi::umad::{RegisterAgent, RegisterAgent2, UserMad, ioctl};
use wire::layout::Layout;
use wire::mad::{
    BASE_VERSION, CLASS_PM, CLASS_SA, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, GSI_QKEY, Header, MAD_LEN, METHOD_GET,
    METHOD_SET, METHOD_TRAP, Mad, RESPONSE,
};
use wire::notice::{KeyNotice, Notice};
use wire::perf::PortCounters;
use wire::smp::{GuidInfo, NodeInfo, PERMISSIVE_LID, PKeyTable, PortInfo, SmInfo, Smp};

use super::*;
use crate::config::Config;
use crate::devices::DeviceNews;

const TWO_PORTS: &str = "[[devices]]\nname = \"a\"\n[[devices.ports]]\nlink_layer = \"infiniband\"\nsubnet = { lid = 3 }\n\
     [[devices]]\nname = \"b\"\n[[devices.ports]]\nlink_layer = \"infiniband\"\nsubnet = { lid = 8, lmc = 2 }\n\
     [[devices]]\nname = \"c\"\n";
const A: PortId = PortId { device: 0, port: 1 };
const B: PortId = PortId { device: 1, port: 1 };
const ETHERNET: PortId = PortId { device: 2, port: 1 };
/// The user of all programs here.
const USER: u32 = 1000;

/// An agent without a server.
struct Bench {
    world: World,
    mads: Mads,
    last: u32,
}

/// A program's file.
struct Program {
    name: u32,
    key: [u8; 16],
}

impl Bench {
    fn new() -> Self {
        Self::of(Config::parse(TWO_PORTS).expect("valid"))
    }

    fn of(config: Config) -> Self {
        let config = Config { wire: crate::config::WireMode::Off, ..config };
        let world = World::new(&config, "a test").expect("a world");
        let mads = Mads::new(&world, &config).expect("no topology");
        Self { world, mads, last: 0 }
    }

    fn open(&mut self, at: PortId) -> Program {
        self.open_as(at, USER)
    }

    fn open_as(&mut self, at: PortId, uid: u32) -> Program {
        self.last += 1;
        let key = self.mads.open(&self.world, self.last, (1, uid), at).expect("it is there");
        self.ioctl(&key, ioctl::ENABLE_PKEY, &mut []).expect("nothing is registered");
        Program { name: self.last, key }
    }

    fn ioctl(&mut self, key: &[u8; 16], request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.mads.ioctl(&self.world, key, request, argument)
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        self.mads.began -= time;
    }

    /// Registers for a class, and for requests of these methods.
    fn register(&mut self, program: &Program, qpn: u8, class: u8, methods: u32) -> Result<u32, Errno> {
        let class_version = if class == CLASS_SA { 2 } else { 1 };
        let asked = RegisterAgent {
            qpn,
            mgmt_class: class,
            mgmt_class_version: class_version,
            method_mask: [methods, 0, 0, 0],
            rmpp_version: u8::from(class == CLASS_SA),
            ..RegisterAgent::default()
        };
        let mut argument = asked.bytes().to_vec();
        self.ioctl(&program.key, ioctl::REGISTER_AGENT, &mut argument)?;
        Ok(RegisterAgent::read(&argument).expect("whole").id)
    }

    fn write(&mut self, program: &Program, header: UserMad, mad: &[u8]) -> Result<(), Errno> {
        let qkey = if header.qkey == 0 { GSI_QKEY } else { header.qkey };
        let header = UserMad { qpn: header.qpn.to_be(), lid: header.lid.to_be(), qkey: qkey.to_be(), ..header };
        self.mads.write(&mut self.world, &program.key, &[header.bytes(), mad].concat())
    }

    /// What a program reads next.
    fn read(&mut self, program: &Program) -> Option<(UserMad, Vec<u8>)> {
        let record = self.mads.first_piece(program.name)?.to_vec();
        self.mads.pop_piece(program.name);
        let header = UserMad::read(&record).expect("whole");
        assert_eq!(header.length as usize, record.len());
        Some((header, record[size_of::<UserMad>()..].to_vec()))
    }
}

fn smp(class: u8, method: u8, attribute: u16) -> Smp {
    let lid = PERMISSIVE_LID;
    Smp {
        base_version: BASE_VERSION,
        class,
        class_version: 1,
        method,
        attribute,
        transaction: 77,
        dr_slid: lid,
        dr_dlid: lid,
        ..Smp::default()
    }
}

fn answered(message: &[u8]) -> Smp {
    Smp::parse(message.first_chunk::<MAD_LEN>().expect("a datagram"))
}

#[test]
fn a_port_answers_its_own_program_by_a_directed_route_of_no_hops() {
    let mut bench = Bench::new();
    let program = bench.open(A);
    let id = bench.register(&program, 0, CLASS_SUBN_DIRECTED, 0).expect("registered");
    let to = UserMad { id, timeout_ms: 1000, lid: PERMISSIVE_LID, ..UserMad::default() };
    let request = smp(CLASS_SUBN_DIRECTED, METHOD_GET, NodeInfo::ATTRIBUTE);
    bench.write(&program, to, &request.to_mad()).expect("sent");
    let (header, message) = bench.read(&program).expect("an answer");
    let answer = answered(&message);
    assert_eq!((header.id, header.status), (id, 0));
    assert_eq!((answer.method, answer.status, answer.transaction as u32), (METHOD_GET | RESPONSE, 0, 77));
    let info = NodeInfo::parse(&answer.data);
    assert_eq!((info.node_guid, info.ports, info.local_port), (bench.world.devices[0].node_guid.0, 1, 1));
    assert!(bench.read(&program).is_none());
}

#[test]
fn ports_are_reached_by_every_lid_that_they_have_and_by_no_other() {
    let mut bench = Bench::new();
    let program = bench.open(A);
    let id = bench.register(&program, 0, CLASS_SUBN_LID, 0).expect("registered");
    for (lid, answers) in [(3, true), (8, true), (11, true), (12, false), (7, false)] {
        let to = UserMad { id, timeout_ms: 1, lid, ..UserMad::default() };
        let request = smp(CLASS_SUBN_LID, METHOD_GET, PortInfo::ATTRIBUTE);
        bench.write(&program, to, &request.to_mad()).expect("sent");
        bench.pass(Duration::from_millis(2));
        bench.mads.on_time(&mut bench.world);
        let (header, message) = bench.read(&program).expect("something");
        assert_eq!(header.status == 0, answers, "LID {lid}");
        assert!(answers || header.status == 110, "it came back");
        let expected = if lid == 3 { 3 } else { 8 };
        assert!(!answers || PortInfo::parse(&answered(&message).data).lid == expected);
    }
}

#[test]
fn a_manager_changes_the_device_and_programs_get_the_events() {
    let mut bench = Bench::new();
    let program = bench.open(A);
    let id = bench.register(&program, 0, CLASS_SUBN_LID, 0).expect("registered");
    let to = |lid| UserMad { id, timeout_ms: 1000, lid, ..UserMad::default() };
    let mut request = smp(CLASS_SUBN_LID, METHOD_GET, PortInfo::ATTRIBUTE);
    bench.write(&program, to(8), &request.to_mad()).expect("sent");
    let present = PortInfo::parse(&answered(&bench.read(&program).expect("an answer").1).data);
    let mut wanted = PortInfo { lid: 16, lmc: 1, master_sm_lid: 3, client_reregister: true, ..present };
    wanted.link.state = 0;
    wanted.link.phys_state = 0;
    request.method = METHOD_SET;
    wanted.write(&mut request.data);
    request.transaction = 78;
    bench.write(&program, to(8), &request.to_mad()).expect("sent");
    assert_eq!(answered(&bench.read(&program).expect("an answer").1).status, 0);
    let port = bench.world.devices[1].port_attributes(1).expect("port 1");
    assert_eq!((port.lid, port.lmc, port.sm_lid), (16, 1, 3));
    assert!(bench.mads.take_results().ports_changed);
    // A LID of another port is refused, and nothing changes.
    wanted.lid = 2;
    wanted.write(&mut request.data);
    request.transaction = 79;
    bench.write(&program, to(16), &request.to_mad()).expect("sent");
    assert_eq!(answered(&bench.read(&program).expect("an answer").1).status, wire::mad::STATUS_INVALID);
    assert_eq!(bench.world.devices[1].port_attributes(1).expect("port 1").lid, 16);
    let mut table = smp(CLASS_SUBN_LID, METHOD_SET, PKeyTable::ATTRIBUTE);
    let mut pkeys = PKeyTable::default();
    (pkeys.pkeys[0], pkeys.pkeys[1]) = (0xffff, 0x8001);
    pkeys.write(&mut table.data);
    bench.write(&program, to(16), &table.to_mad()).expect("sent");
    assert_eq!(answered(&bench.read(&program).expect("an answer").1).status, 0);
    assert_eq!(bench.world.devices[1].pkey(1, 1).expect("an entry"), 0x8001);
    let news = bench.world.devices.take_news();
    let told = |event| {
        news.iter().any(|news| matches!(news, crate::devices::DeviceNews::Event(1, it) if it.event_type == event))
    };
    assert!(told(event_kind::LID_CHANGE) && told(event_kind::SM_CHANGE) && told(event_kind::CLIENT_REREGISTER));
    assert!(told(event_kind::PKEY_CHANGE));
}

#[test]
fn alias_guids_of_a_manager_become_gids_of_the_port() {
    let topology = mad::topology::Topology::from_text("Hca 1 \"H1\"\n[1] \"S\"[1]\nSwitch 2 \"S\"\n").expect("valid");
    let devices = crate::topology::devices(&topology).expect("one");
    let mut bench = Bench::of(Config { devices, topology: Some(topology), ..Config::default() });
    let program = bench.open(A);
    let id = bench.register(&program, 0, CLASS_SUBN_DIRECTED, 0).expect("registered");
    let to = UserMad { id, timeout_ms: 1000, lid: PERMISSIVE_LID, ..UserMad::default() };
    let mut set = |transaction, guids: [u64; 8]| {
        let mut request = Smp { transaction, ..smp(CLASS_SUBN_DIRECTED, METHOD_SET, GuidInfo::ATTRIBUTE) };
        GuidInfo { guids }.write(&mut request.data);
        bench.write(&program, to, &request.to_mad()).expect("sent");
        assert_eq!(answered(&bench.read(&program).expect("an answer").1).status, 0);
        let news = bench.world.devices.take_news();
        let is_event =
            |news: &DeviceNews| matches!(news, DeviceNews::Event(0, it) if it.event_type == event_kind::GID_CHANGE);
        assert!(news.iter().any(is_event), "programs get the event");
        [1, 2].map(|index| bench.world.devices[0].gid(1, index).expect("in the table"))
    };
    let expected = (0xfe80_u128 << 112 | 0x1234_5678).to_be_bytes();
    assert_eq!(set(1, [0, 0, 0x1234_5678, 0, 0, 0, 0, 0]), [[0; 16], expected]);
    assert_eq!(set(2, [0; 8]), [[0; 16]; 2]);
}

#[test]
fn requests_go_to_the_program_that_serves_them_and_others_are_refused_by_the_port() {
    let mut bench = Bench::new();
    let (client, server) = (bench.open(A), bench.open(B));
    let id = bench.register(&client, 1, CLASS_SA, 0).expect("registered");
    let to = UserMad { id, timeout_ms: 1000, lid: 8, qpn: 1, ..UserMad::default() };
    let mut request = [0; MAD_LEN];
    let header = Header { base_version: 1, class: CLASS_SA, class_version: 2, method: METHOD_GET, ..Header::default() };
    header.emit_to(&mut request);
    bench.write(&client, to, &request).expect("sent");
    let refused = Header::parse(bench.read(&client).expect("an answer").1.first_chunk().expect("whole"));
    assert_eq!((refused.method, refused.status), (METHOD_GET | RESPONSE, wire::mad::STATUS_METHOD_ATTRIBUTE));
    let served = bench.register(&server, 1, CLASS_SA, 1 << METHOD_GET).expect("registered");
    assert_eq!(bench.register(&client, 1, CLASS_SA, 1 << METHOD_GET), Ok(1), "at another port");
    assert_eq!(bench.register(&server, 1, CLASS_SA, 1 << METHOD_GET), Err(Errno::EINVAL), "it is served");
    bench.write(&client, to, &request).expect("sent");
    let (from, message) = bench.read(&server).expect("the request");
    assert_eq!((from.id, u16::from_be(from.lid), u32::from_be(from.qpn)), (served, 3, 1));
    let mut answer: Mad = message.as_slice().try_into().expect("a datagram");
    answer[3] |= RESPONSE;
    answer[100] = 9;
    let back = UserMad { id: served, lid: 3, qpn: 1, ..UserMad::default() };
    bench.write(&server, back, &answer).expect("sent");
    let (_, message) = bench.read(&client).expect("the answer");
    assert_eq!(message[100], 9);
    // Nobody waits for a second one.
    bench.write(&server, back, &answer).expect("sent");
    assert!(bench.read(&client).is_none());
    // The server ends, and with it its registration.
    bench.mads.close(&mut bench.world, server.name);
    bench.write(&client, to, &request).expect("sent");
    assert!(bench.read(&client).is_some());
}

#[test]
fn performance_management_is_answered_by_the_port() {
    let mut bench = Bench::new();
    let program = bench.open(A);
    let id = bench.register(&program, 1, CLASS_PM, 0).expect("registered");
    let mut request = [0; MAD_LEN];
    Header {
        base_version: 1,
        class: CLASS_PM,
        class_version: 1,
        method: METHOD_GET,
        attribute: PortCounters::ATTRIBUTE,
        ..Header::default()
    }
    .emit_to(&mut request);
    request[wire::perf::DATA + 1] = 1;
    let to = UserMad { id, timeout_ms: 1000, lid: 8, qpn: 1, ..UserMad::default() };
    bench.write(&program, to, &request).expect("sent");
    let (_, message) = bench.read(&program).expect("an answer");
    let counters = PortCounters::read(&message[wire::perf::DATA..]).expect("whole");
    assert_eq!((Header::parse(message.first_chunk().expect("whole")).status, counters.port), (0, 1));
}

#[test]
fn one_manager_is_at_a_port_and_the_capability_mask_says_so() {
    const MANAGER: u32 = 1 << 1;
    let mut bench = Bench::new();
    let mask = |bench: &Bench| bench.world.devices[0].port_attributes(1).expect("port 1").port_cap_flags;
    assert_eq!(bench.mads.open_manager(&mut bench.world, 50, A, false), Ok(IssmOpen::Now));
    assert_eq!(mask(&bench) & MANAGER, MANAGER);
    assert_eq!(bench.mads.open_manager(&mut bench.world, 51, A, true), Err(Errno::EAGAIN));
    assert_eq!(bench.mads.open_manager(&mut bench.world, 52, A, false), Ok(IssmOpen::Later));
    assert_eq!(bench.mads.open_manager(&mut bench.world, 53, ETHERNET, false), Err(Errno::ENODEV));
    bench.mads.take_results();
    bench.mads.close(&mut bench.world, 50);
    assert_eq!(bench.mads.take_results().granted, [52]);
    assert_eq!(mask(&bench) & MANAGER, MANAGER);
    bench.mads.close(&mut bench.world, 52);
    assert_eq!(mask(&bench) & MANAGER, 0);
}

#[test]
fn a_manager_gets_the_trap_of_another_port_until_it_represses_it() {
    let mut bench = Bench::new();
    bench.world.devices[1].ports[0].subnet.sm_lid = Some(3);
    bench.world.devices[1].ports[0].subnet.timeout = Some(0);
    let manager = bench.open(A);
    let methods = 1 << METHOD_TRAP | 1 << METHOD_GET;
    let id = bench.register(&manager, 0, CLASS_SUBN_LID, methods).expect("registered");
    assert_eq!(bench.mads.open_manager(&mut bench.world, 60, B, false), Ok(IssmOpen::Now));
    let trap = |bench: &mut Bench| {
        bench.mads.on_time(&mut bench.world);
        bench.read(&manager)
    };
    let (from, message) = trap(&mut bench).expect("the capability mask has changed");
    let told = answered(&message);
    let notice = Notice::read(&[told.data.as_slice(), &[0; 16]].concat()).expect("whole");
    assert_eq!((u16::from_be(from.lid), told.method, notice.number), (8, METHOD_TRAP, Notice::LOCAL_CHANGE));
    bench.pass(Duration::from_millis(5));
    assert!(trap(&mut bench).is_some(), "it is repeated");
    let repress = Smp { method: wire::mad::METHOD_TRAP_REPRESS, ..told };
    bench.write(&manager, UserMad { id, lid: 8, ..UserMad::default() }, &repress.to_mad()).expect("sent");
    bench.pass(Duration::from_millis(5));
    assert!(trap(&mut bench).is_none());
    // The manager's program serves SMInfo at its own port.
    let asker = bench.open(B);
    let asks = bench.register(&asker, 0, CLASS_SUBN_LID, 0).expect("registered");
    let to = UserMad { id: asks, timeout_ms: 1000, lid: 3, ..UserMad::default() };
    bench.write(&asker, to, &smp(CLASS_SUBN_LID, METHOD_GET, SmInfo::ATTRIBUTE).to_mad()).expect("sent");
    let (_, message) = bench.read(&manager).expect("the question");
    assert_eq!(answered(&message).attribute, SmInfo::ATTRIBUTE);
}

/// The counts of Q_Keys and P_Keys that PortInfo of port B shows.
fn violations(bench: &mut Bench, program: &Program, id: u32) -> [u16; 2] {
    let to = UserMad { id, timeout_ms: 1000, lid: 8, ..UserMad::default() };
    bench.write(program, to, &smp(CLASS_SUBN_LID, METHOD_GET, PortInfo::ATTRIBUTE).to_mad()).expect("sent");
    let info = PortInfo::parse(&answered(&bench.read(program).expect("an answer").1).data);
    [info.qkey_violations, info.pkey_violations]
}

#[test]
fn a_datagram_with_a_wrong_key_is_counted_and_told_until_the_manager_clears_the_count() {
    let mut bench = Bench::new();
    bench.world.devices[1].ports[0].subnet.sm_lid = Some(3);
    bench.world.devices[1].ports[0].subnet.timeout = Some(0);
    let manager = bench.open(A);
    let id = bench.register(&manager, 0, CLASS_SUBN_LID, 1 << METHOD_TRAP).expect("registered");
    let gmp = bench.register(&manager, 1, CLASS_PM, 0).expect("registered");
    let mut mad = [0; MAD_LEN];
    Header {
        base_version: 1,
        class: CLASS_PM,
        class_version: 1,
        method: METHOD_GET,
        attribute: 1,
        ..Header::default()
    }
    .emit_to(&mut mad);
    let to = UserMad { id: gmp, lid: 8, qpn: 1, qkey: 0x1234, sl: 3, ..UserMad::default() };
    bench.write(&manager, to, &mad).expect("sent");
    bench.mads.on_time(&mut bench.world);
    let told = answered(&bench.read(&manager).expect("a trap and no answer").1);
    let notice = Notice::read(&[told.data.as_slice(), &[0; 16]].concat()).expect("whole");
    let details: KeyNotice = notice.details();
    assert_eq!((notice.number, notice.issuer_lid, details.key), (Notice::BAD_QKEY, 8, 0x1234));
    assert_eq!((details.lid1, details.lid2, details.sl, details.qp1, details.qp2), (3, 8, 3, 1, 1));
    let repress = Smp { method: wire::mad::METHOD_TRAP_REPRESS, ..told };
    bench.write(&manager, UserMad { id, lid: 8, ..UserMad::default() }, &repress.to_mad()).expect("sent");
    // Of the other partition.
    bench.world.devices[1].ports[0].pkeys.set(&[0x8001]).expect("it fits");
    bench.write(&manager, UserMad { qkey: GSI_QKEY, ..to }, &mad).expect("sent");
    bench.pass(Duration::from_millis(5));
    bench.mads.on_time(&mut bench.world);
    let told = answered(&bench.read(&manager).expect("a trap").1);
    assert_eq!(told.data[4..6], Notice::BAD_PKEY.to_be_bytes());
    assert_eq!(violations(&mut bench, &manager, id), [1, 1]);
    let shown = |bench: &Bench| bench.world.violations(1, 1);
    assert_eq!(shown(&bench), [1, 1]);
    let to = UserMad { id, timeout_ms: 1000, lid: 8, ..UserMad::default() };
    bench.write(&manager, to, &smp(CLASS_SUBN_LID, METHOD_GET, PortInfo::ATTRIBUTE).to_mad()).expect("sent");
    let present = PortInfo::parse(&answered(&bench.read(&manager).expect("an answer").1).data);
    let mut wanted = PortInfo { pkey_violations: 0, ..present };
    (wanted.link.state, wanted.link.phys_state) = (0, 0);
    let mut request = smp(CLASS_SUBN_LID, METHOD_SET, PortInfo::ATTRIBUTE);
    wanted.write(&mut request.data);
    bench.write(&manager, to, &request.to_mad()).expect("sent");
    assert_eq!(answered(&bench.read(&manager).expect("an answer").1).status, 0);
    assert_eq!((violations(&mut bench, &manager, id), shown(&bench)), ([1, 0], [1, 0]));
}

/// A trap waits for a manager, and the agent sleeps meanwhile.
#[test]
fn a_trap_without_a_manager_does_not_keep_the_agent_awake() {
    let mut bench = Bench::new();
    bench.world.devices[1].ports[0].subnet.sm_lid = Some(0);
    assert_eq!(bench.mads.open_manager(&mut bench.world, 60, B, false), Ok(IssmOpen::Now));
    bench.mads.on_time(&mut bench.world);
    assert_eq!(bench.mads.next_time(), None);
}

/// The first registration of a file decides how long its headers are, as the redirector expects.
#[test]
fn a_later_registration_does_not_change_the_headers() {
    for (first_is_new, long) in [(false, false), (true, true)] {
        let mut bench = Bench::new();
        let key = bench.mads.open(&bench.world, 1, (1, USER), A).expect("it is there");
        let program = Program { name: 1, key };
        let new = RegisterAgent2 { qpn: 1, mgmt_class: CLASS_SA, mgmt_class_version: 2, ..RegisterAgent2::default() };
        for is_new in [first_is_new, !first_is_new] {
            match is_new {
                true => bench.ioctl(&key, ioctl::REGISTER_AGENT2, &mut new.bytes().to_vec()).expect("registered"),
                false => drop(bench.register(&program, 1, CLASS_SA, 0).expect("registered")),
            }
        }
        assert_eq!(bench.mads.files[&1].has_pkey_index, long);
    }
}

#[test]
fn what_a_kernel_refuses_is_refused() {
    let mut bench = Bench::new();
    let program = bench.open(A);
    assert_eq!(bench.register(&program, 0, CLASS_SA, 0), Err(Errno::EINVAL));
    assert_eq!(bench.register(&program, 2, CLASS_SA, 0), Err(Errno::EINVAL));
    let ethernet = bench.open(ETHERNET);
    assert_eq!(bench.register(&ethernet, 0, CLASS_SUBN_LID, 0), Err(Errno::EPROTONOSUPPORT));
    for id in 0..32 {
        assert_eq!(bench.register(&program, 1, CLASS_SA, 0), Ok(id));
    }
    assert_eq!(bench.register(&program, 1, CLASS_SA, 0), Err(Errno::ENOMEM));
    let mut id = 7_u32.to_ne_bytes();
    assert_eq!(bench.ioctl(&program.key, ioctl::UNREGISTER_AGENT, &mut id), Ok(()));
    assert_eq!(bench.ioctl(&program.key, ioctl::UNREGISTER_AGENT, &mut id), Err(Errno::EINVAL));
    assert_eq!(bench.ioctl(&program.key, ioctl::ENABLE_PKEY, &mut []), Err(Errno::EINVAL), "it was used");
    assert_eq!(bench.register(&program, 1, CLASS_SA, 0), Ok(7));
    let flags = RegisterAgent2 { flags: 6, qpn: 1, mgmt_class: CLASS_SA, ..RegisterAgent2::default() };
    let mut argument = flags.bytes().to_vec();
    assert_eq!(bench.ioctl(&program.key, ioctl::REGISTER_AGENT2, &mut argument), Err(Errno::EINVAL));
    assert_eq!(RegisterAgent2::read(&argument).expect("whole").flags, 1, "the flags that there are");
    let sa = Header { base_version: 1, class: CLASS_SA, class_version: 2, method: METHOD_GET, ..Header::default() };
    let mut mad = [0; MAD_LEN];
    sa.emit_to(&mut mad);
    let header = UserMad { id: 0, lid: 3, qpn: 1, timeout_ms: 1000, ..UserMad::default() };
    assert_eq!(bench.write(&program, header, &mad[..35]), Err(Errno::EINVAL));
    assert_eq!(bench.write(&program, UserMad { id: 99, ..header }, &mad), Err(Errno::EINVAL));
    mad[1] = CLASS_SUBN_LID;
    assert_eq!(bench.write(&program, header, &mad), Err(Errno::EINVAL), "its class belongs to QP 0");
    let stranger = Program { name: 1, key: [1; 16] };
    assert_eq!(bench.write(&stranger, header, &mad), Err(Errno::EIO));
}

#[test]
fn a_removed_device_ends_its_files() {
    let mut bench = Bench::new();
    let (kept, lost) = (bench.open(A), bench.open(B));
    bench.world.remove_device("b").expect("it is there");
    bench.world.tell_clients(&mut [&mut bench.mads]);
    assert!(bench.mads.has_lost_files());
    assert_eq!(bench.mads.take_results().gone, [lost.name]);
    assert!(!bench.mads.has_lost_files());
    assert_eq!(bench.register(&lost, 1, CLASS_SA, 0), Err(Errno::EIO));
    assert_eq!(bench.register(&kept, 1, CLASS_SA, 0), Ok(0));
}

mod turns;
