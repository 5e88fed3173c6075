//! Ports whose link layer is InfiniBand: the address vectors that they accept, and the events when
//! a LID changes. Ethernet ports still refuse address vectors without a GRH.

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
use agent::config::LinkLayer;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::gids::HostAddress;
use agent::world::World;

struct Client {
    world: World,
    id: ContextId,
}

impl Client {
    fn on(link_layer: LinkLayer) -> Self {
        let config = Config::default().with_link_layer(link_layer);
        let mut world = World::new(&config, "a test").expect("a world");
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
    let page = client.world.contexts[&client.id].events.as_ref().expect("open").page().clone();
    let events = || -> Vec<u32> {
        (0..page.read(context_page::HEAD) as usize).map(|at| page.read(context_page::RECORDS + 16 * at + 8)).collect()
    };
    assert_eq!((client.port().lid, client.port().sm_lid, client.port().link_layer), (0xbfff, 0xbfff, 1));
    assert!(client.world.follow_addresses(&[address(5)]));
    client.world.flush(false);
    assert_eq!(events(), [event::kind::GID_CHANGE, event::kind::LID_CHANGE]);
    assert_eq!(client.port().lid, 5);
    assert!(client.world.follow_addresses(&[address(5), address(4)]), "another address, the same LID");
    client.world.flush(false);
    assert_eq!(events().len(), 3);
    assert!(client.world.follow_addresses(&[address(4)]));
    client.world.flush(false);
    assert_eq!((client.port().lid, events().last()), (4, Some(&event::kind::LID_CHANGE)));

    let view = client.world.board.descriptor();
    let view = shm::region::Region::map_read_only(view, board::BOARD_LEN).expect("a view");
    let at = board::port(0, 1).expect("port 1");
    let word = |offset| view.word(at + offset).load(std::sync::atomic::Ordering::Acquire);
    assert_eq!((word(port_word::LINK_LAYER), word(port_word::LID)), (1, 4));
    assert_eq!((word(port_word::LID_GID), word(port_word::LID_HOSTS)), (2, 0xff));
}
