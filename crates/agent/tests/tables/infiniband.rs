//! Ports whose link layer is InfiniBand: the address vectors that they accept, and the events when
//! the port changes. Ethernet ports still refuse address vectors without a GRH.

use abi::ah::{AhAttr, CreateAh};
use abi::board::{self, port_word};
use abi::command::{legacy, number};
use abi::cq::CreateCq;
use abi::device::{GetContext, QueryPort, QueryPortAnswer};
use abi::layout::Record;
use abi::qp::{CreateQp, Dest, ModifyQp, QueryQp, QueryQpAnswer, attr, kind, state};
use abi::queue::context_page;
use abi::{Errno, event};
use agent::Config;
use agent::config::{Guid, LinkLayer, PortState};
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::gids::HostAddress;
use agent::port_change::{BadChange, PortChange};
use agent::subnet_settings::{BadSettings, SubnetSettings};
use agent::world::World;

struct Client {
    world: World,
    id: ContextId,
}

impl Client {
    fn on(link_layer: LinkLayer) -> Self {
        Self::with(&Config::default().with_link_layer(link_layer))
    }

    fn with(config: &Config) -> Self {
        let mut world = World::new(config, "a test").expect("a world");
        let id = world.open(0, 0, Peer { pid: 1, uid: 2, comm: "test".into() }).expect("open");
        let mut client = Self { world, id };
        assert_eq!(client.call(number::GET_CONTEXT, &GetContext { response: 1 }, 48).status, 0);
        client
    }

    fn call<T: Record>(&mut self, number: u8, body: &T, room: usize) -> Reply {
        dispatch(&mut self.world, self.id, &legacy(number, body, &[], room), Vec::new())
    }

    fn made<T: Record>(&mut self, number: u8, body: &T, room: usize) -> u32 {
        let reply = self.call(number, body, room);
        assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
        u32::from_le_bytes(reply.bytes[..4].try_into().expect("four bytes"))
    }

    fn pd(&mut self) -> u32 {
        self.made(number::ALLOC_PD, &abi::pd::AllocPd { response: 1 }, 12)
    }

    fn port(&mut self) -> QueryPortAnswer {
        let body = QueryPort { response: 1, port_num: 1, ..QueryPort::default() };
        let reply = self.call(number::QUERY_PORT, &body, size_of::<QueryPortAnswer>());
        QueryPortAnswer::read(&reply.bytes).expect("whole")
    }

    /// The types of the events that the context has got.
    fn events(&mut self) -> Vec<u32> {
        self.world.flush(false);
        let page = self.world.contexts[&self.id].events.as_ref().expect("open").page();
        let count = page.read(context_page::HEAD) as usize;
        (0..count).map(|at| page.read(context_page::RECORDS + 16 * at + 8)).collect()
    }

    /// Changes port 1 of the device, and returns its events.
    fn change(&mut self, change: &PortChange) -> Result<Vec<u32>, BadChange> {
        self.world.change_port(0, 1, change)
    }

    /// The result of CREATE_AH.
    fn ah(&mut self, attr: AhAttr) -> Result<(), String> {
        let body = CreateAh { pd_handle: self.pd(), attr, ..CreateAh::default() };
        let reply = self.call(number::CREATE_AH, &body, 4);
        if reply.status == 0 {
            return Ok(());
        }
        assert_eq!(reply.status, Errno::EINVAL.to_status());
        Err(String::from_utf8(reply.bytes).expect("a sentence"))
    }
}

fn address(last: u8) -> HostAddress {
    HostAddress { ip: [10, 0, 0, last].into(), ifindex: 1, mtu: 1500, prefix: 24 }
}

fn to_lid(dlid: u16) -> AhAttr {
    AhAttr { dlid, port_num: 1, ..AhAttr::default() }
}

#[test]
fn a_lid_is_enough_if_it_can_be_a_ports() {
    let mut client = Client::on(LinkLayer::Infiniband);
    for lid in [1, 2, 0xbfff] {
        assert_eq!(client.ah(to_lid(lid)), Ok(()), "{lid}");
    }
    for (lid, word) in [(0, "no port's"), (0xc000, "group"), (0xffff, "group")] {
        let said = client.ah(to_lid(lid)).expect_err("refused");
        assert!(said.contains(word) && said.contains(&format!("LID {lid}")), "{said}");
    }
    let mut group = [0; 16];
    group[0] = 0xff;
    assert_eq!(client.ah(AhAttr { dgid: group, is_global: 1, ..to_lid(0xc001) }), Ok(()));
    assert_eq!(client.ah(AhAttr { is_global: 1, ..to_lid(0) }), Ok(()), "a GID is enough, too");
    let said = client.ah(AhAttr { is_global: 1, sgid_index: 9, ..to_lid(1) }).expect_err("refused");
    assert!(said.contains("GID index 9"), "{said}");
}

#[test]
fn ethernet_ports_still_want_a_grh() {
    let mut client = Client::on(LinkLayer::Ethernet);
    let said = client.ah(to_lid(1)).expect_err("refused");
    assert!(said.contains("-g 0") && said.contains("infiniband"), "{said}");
    assert_eq!((client.port().lid, client.port().link_layer, client.port().flags), (0, 2, 1));
}

#[test]
fn a_qp_gets_to_rtr_by_lid_and_keeps_what_it_was_told() {
    let mut client = Client::on(LinkLayer::Infiniband);
    let pd_handle = client.pd();
    let cq = CreateCq { cqe: 10, comp_channel: -1, ..CreateCq::default() };
    let cq = client.made(number::CREATE_CQ, &cq, 64);
    let wanted =
        CreateQp { pd_handle, send_cq_handle: cq, recv_cq_handle: cq, qp_type: kind::RC, ..CreateQp::default() };
    let qp_handle = client.made(number::CREATE_QP, &wanted, 104);
    let init = ModifyQp {
        qp_handle,
        attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS,
        qp_state: state::INIT,
        port_num: 1,
        ..ModifyQp::default()
    };
    assert_eq!(client.call(number::MODIFY_QP, &init, 0).status, 0);
    let rtr = ModifyQp {
        qp_handle,
        attr_mask: attr::STATE
            | attr::AV
            | attr::PATH_MTU
            | attr::DEST_QPN
            | attr::RQ_PSN
            | attr::MAX_DEST_RD_ATOMIC
            | attr::MIN_RNR_TIMER,
        qp_state: state::RTR,
        // More than an interface with an MTU of 1500 allows.
        path_mtu: 5,
        dest: Dest { dlid: 7, port_num: 1, ..Dest::default() },
        ..ModifyQp::default()
    };
    client.world.follow_addresses(&[address(1)]);
    assert_eq!(client.port().active_mtu, 3);
    for wrong in [0, 0xc000] {
        let dest = Dest { dlid: wrong, ..rtr.dest };
        assert_eq!(client.call(number::MODIFY_QP, &ModifyQp { dest, ..rtr }, 0).status, Errno::EINVAL.to_status());
    }
    assert_eq!(client.call(number::MODIFY_QP, &ModifyQp { path_mtu: 6, ..rtr }, 0).status, Errno::EINVAL.to_status());
    assert_eq!(client.call(number::MODIFY_QP, &rtr, 0).status, 0);
    let query = QueryQp { response: 1, qp_handle, attr_mask: 0 };
    let reply = client.call(number::QUERY_QP, &query, size_of::<QueryQpAnswer>());
    let kept = QueryQpAnswer::read(&reply.bytes).expect("whole");
    assert_eq!((kept.qp_state, kept.dest.dlid, kept.dest.is_global, kept.path_mtu), (state::RTR, 7, 0, 5));
}

#[test]
fn event_lid_change_when_the_address_is_another() {
    let mut client = Client::on(LinkLayer::Infiniband);
    assert_eq!((client.port().lid, client.port().sm_lid, client.port().link_layer), (0xbfff, 0xbfff, 1));
    assert!(client.world.follow_addresses(&[address(5)]));
    assert_eq!(client.events(), [event::kind::GID_CHANGE, event::kind::LID_CHANGE, event::kind::SM_CHANGE]);
    assert_eq!(client.port().lid, 5);
    assert!(client.world.follow_addresses(&[address(5), address(4)]), "another address, the same LID");
    assert_eq!(client.events().len(), 4);
    assert!(client.world.follow_addresses(&[address(4)]));
    assert_eq!((client.port().lid, client.events().last()), (4, Some(&event::kind::SM_CHANGE)));

    let view = client.world.board.descriptor();
    let view = shm::region::Region::map_read_only(view, board::BOARD_LEN).expect("a view");
    let at = board::port(0, 1).expect("port 1");
    let word = |offset| view.word(at + offset).load(std::sync::atomic::Ordering::Acquire);
    assert_eq!((word(port_word::LINK_LAYER), word(port_word::LID)), (1, 4));
    assert_eq!((word(port_word::LID_GID), word(port_word::LID_HOSTS)), (2, 0xff));
}

fn lids(lid: u16, lmc: u8) -> SubnetSettings {
    SubnetSettings { lid: Some(lid), lmc: Some(lmc), ..SubnetSettings::default() }
}

#[test]
fn a_subnet_manager_changes_a_port_and_programs_get_each_event_once() {
    use event::kind::{CLIENT_REREGISTER, GID_CHANGE, LID_CHANGE, PKEY_CHANGE, PORT_ACTIVE, PORT_ERR, SM_CHANGE};
    let mut client = Client::on(LinkLayer::Infiniband);
    let port = client.port();
    assert_eq!((port.lmc, port.sm_sl, port.subnet_timeout, port.init_type_reply), (0, 0, 18, 0));
    let none = PortChange::default();
    let subnet = |subnet| PortChange { subnet, ..PortChange::default() };
    let sm = SubnetSettings { sm_lid: Some(3), sm_sl: Some(5), ..SubnetSettings::default() };
    let quiet = SubnetSettings { timeout: Some(20), init_type_reply: Some(2), ..SubnetSettings::default() };
    let steps = [
        (none.clone(), vec![]),
        // As long as no manager is named, it is the port itself.
        (subnet(lids(8, 2)), vec![LID_CHANGE, SM_CHANGE]),
        (subnet(lids(8, 2)), vec![]),
        (subnet(sm), vec![SM_CHANGE]),
        (subnet(lids(16, 3)), vec![LID_CHANGE]),
        (subnet(quiet), vec![]),
        (PortChange { subnet_prefix: Some(Guid(0xfec0 << 48)), ..none.clone() }, vec![GID_CHANGE]),
        (PortChange { pkeys: Some(vec![0xffff, 0x8001]), ..none.clone() }, vec![PKEY_CHANGE]),
        (PortChange { reregister: true, ..none.clone() }, vec![CLIENT_REREGISTER]),
        (PortChange { state: Some(PortState::Down), ..none.clone() }, vec![PORT_ERR]),
        (PortChange { state: Some(PortState::Active), ..none.clone() }, vec![PORT_ACTIVE]),
        (PortChange { mtu: Some(1024), rate: "1X HDR".parse().ok(), ..none }, vec![]),
    ];
    let mut all = Vec::new();
    for (change, events) in steps {
        assert_eq!(client.change(&change), Ok(events.clone()), "{change:?}");
        all.extend(events);
        assert_eq!(client.events(), all, "{change:?}");
    }
    let port = client.port();
    assert_eq!((port.lid, port.lmc, port.sm_lid, port.sm_sl), (16, 3, 3, 5));
    assert_eq!((port.subnet_timeout, port.init_type_reply, port.pkey_tbl_len), (20, 2, 128));
    assert_eq!((port.active_mtu, port.active_width, port.active_speed, port.state), (3, 1, 64, 4));
    let first = client.world.devices[0].gid(1, 0).expect("GID 0");
    assert_eq!(first[..2], [0xfe, 0xc0]);
    let view = client.world.board.descriptor();
    let view = shm::region::Region::map_read_only(view, board::BOARD_LEN).expect("a view");
    let at = board::port(0, 1).expect("port 1");
    let word = |offset| view.word(at + offset).load(std::sync::atomic::Ordering::Acquire);
    assert_eq!((word(port_word::LID), word(port_word::LMC), word(port_word::ACTIVE_MTU)), (16, 3, 3));
    // A change of the host's addresses is none of the LID any more.
    assert!(client.world.follow_addresses(&[address(5)]));
    assert_eq!((client.port().lid, client.events().last()), (16, Some(&GID_CHANGE)));
}

#[test]
fn a_change_that_is_impossible_changes_nothing() {
    let text = "[[devices]]\nname = 'one'\n[[devices.ports]]\nlink_layer = 'infiniband'\n\
                [[devices.ports]]\nlink_layer = 'infiniband'\nsubnet = { lid = 4, lmc = 1 }\n\
                [[devices]]\nname = 'two'\n";
    let mut client = Client::with(&Config::parse(text).expect("a configuration"));
    let before = client.port();
    let subnet = |subnet| PortChange { subnet, state: Some(PortState::Down), ..PortChange::default() };
    let taken = BadChange::TakenLid { device: "one".into(), port: 2 };
    assert_eq!(client.change(&subnet(lids(5, 0))), Err(taken));
    let unaligned = BadSettings::Unaligned { lid: 9, count: 2 };
    assert_eq!(client.change(&subnet(lids(9, 1))), Err(BadChange::Subnet(unaligned)));
    let pkeys = PortChange { pkeys: Some(vec![0x8000]), ..subnet(lids(9, 0)) };
    assert!(matches!(client.change(&pkeys), Err(BadChange::Pkeys(_))));
    assert_eq!(client.change(&PortChange { mtu: Some(1500), ..subnet(lids(9, 0)) }), Err(BadChange::Mtu(1500)));
    assert_eq!(client.world.change_port(1, 1, &subnet(lids(9, 0))), Err(BadChange::Subnet(BadSettings::Ethernet)));
    let again = PortChange { reregister: true, ..PortChange::default() };
    assert_eq!(client.world.change_port(1, 1, &again), Err(BadChange::NoAdministration));
    for (device, port) in [(0, 0), (0, 3), (2, 1)] {
        assert_eq!(client.world.change_port(device, port, &again), Err(BadChange::NoPort));
    }
    assert_eq!((client.port(), client.events()), (before, vec![]));
}

#[test]
fn a_port_that_gets_a_lid_takes_it_from_a_port_that_has_it_by_chance() {
    let text =
        "[[devices]]\n[[devices.ports]]\nlink_layer = 'infiniband'\n[[devices.ports]]\nlink_layer = 'infiniband'\n";
    let mut client = Client::with(&Config::parse(text).expect("a configuration"));
    client.world.follow_addresses(&[address(5)]);
    let before = client.events().len();
    let change = PortChange { subnet: lids(4, 1), ..PortChange::default() };
    use event::kind::{LID_CHANGE, SM_CHANGE};
    assert_eq!(client.world.change_port(0, 2, &change), Ok(vec![LID_CHANGE, SM_CHANGE]));
    assert_eq!(client.events()[before..], [LID_CHANGE, SM_CHANGE, LID_CHANGE, SM_CHANGE]);
    assert_eq!((client.port().lid, client.world.devices[0].ports[1].lid.map(|lid| lid.all())), (0xbfff, Some(4..=5)));
}

#[test]
fn service_levels_above_15_are_refused() {
    let mut client = Client::on(LinkLayer::Infiniband);
    let with = |sl| AhAttr { sl, ..to_lid(1) };
    assert_eq!(client.ah(with(15)), Ok(()));
    assert!(client.ah(with(16)).is_err() && client.ah(with(255)).is_err());
}

#[test]
fn path_bits_choose_one_of_the_ports_lids() {
    let mut client = Client::on(LinkLayer::Infiniband);
    let with = |src_path_bits| AhAttr { src_path_bits, ..to_lid(1) };
    // Those beyond the LMC are ignored, as by adapters.
    assert_eq!((client.ah(with(0)), client.ah(with(127))), (Ok(()), Ok(())));
    client.change(&PortChange { subnet: lids(8, 2), ..PortChange::default() }).expect("possible");
    assert_eq!((client.ah(with(3)), client.ah(with(4))), (Ok(()), Ok(())));
}
