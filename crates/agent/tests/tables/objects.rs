//! The world as a value: every sequence of commands keeps the counts correct, and the end of a
//! context removes everything.

use std::collections::BTreeMap;

use abi::Errno;
use abi::ah::{AhAttr, CreateAh};
use abi::command::{extended, legacy, number};
use abi::cq::{CreateCq, ResizeCq};
use abi::device::GetContext;
use abi::event;
use abi::layout::Record;
use abi::mcast::AttachMcast;
use abi::mr::{RegMr, ReregMr};
use abi::private::ResizeUndo;
use abi::qp::{CreateQp, Dest, ModifyQp, QueryQp, QueryQpAnswer, attr, kind, state};
use abi::queue::{CONTROL_LEN, CqOut, context_page, cq as cq_word};
use abi::srq::{CreateSrq, ModifySrq, attr as srq_attr};
use agent::Config;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::gids::HostAddress;
use agent::table::Kind;
use agent::world::World;
use proptest::prelude::*;

fn world() -> World {
    World::new(&Config::default(), "a test").expect("a world")
}

fn client(world: &mut World) -> ContextId {
    let peer = Peer { pid: 1, uid: 2, comm: "test".into() };
    let id = world.open(0, 0, peer).expect("open");
    assert_eq!(call(world, id, number::GET_CONTEXT, &GetContext { response: 1 }, 48).status, 0);
    id
}

fn call<T: Record>(world: &mut World, id: ContextId, number: u8, body: &T, room: usize) -> Reply {
    dispatch(world, id, &legacy(number, body, &[], room), Vec::new())
}

fn word(reply: &Reply, at: usize) -> u32 {
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    u32::from_le_bytes(reply.bytes[at..at + 4].try_into().expect("four bytes"))
}

fn reason(reply: &Reply, errno: Errno) -> String {
    assert_eq!(reply.status, errno.to_status());
    String::from_utf8(reply.bytes.clone()).expect("a sentence")
}

fn pd(world: &mut World, id: ContextId) -> u32 {
    word(&call(world, id, number::ALLOC_PD, &abi::pd::AllocPd { response: 1 }, 12), 0)
}

fn cq(world: &mut World, id: ContextId) -> u32 {
    let body = CreateCq { cqe: 10, comp_channel: -1, ..CreateCq::default() };
    word(&call(world, id, number::CREATE_CQ, &body, 64), 0)
}

fn qp(world: &mut World, id: ContextId, qp_type: u8) -> u32 {
    let (pd_handle, cq) = (pd(world, id), cq(world, id));
    let body = CreateQp { pd_handle, send_cq_handle: cq, recv_cq_handle: cq, qp_type, ..CreateQp::default() };
    word(&call(world, id, number::CREATE_QP, &body, 104), 0)
}

/// One step of a random program. The numbers choose among the handles that the context knows.
#[derive(Debug, Clone)]
enum Step {
    AllocPd,
    RegMr(usize, u32),
    CreateChannel,
    CreateCq(u32, Option<usize>),
    ResizeCq(usize, u32),
    CreateSrq(usize, u32),
    CreateQp(usize, usize, Option<usize>, u8),
    CreateAh(usize, u8),
    Attach(usize, u8),
    Destroy(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pick = 0..6_usize;
    prop_oneof![
        Just(Step::AllocPd),
        (pick.clone(), 0..16_u32).prop_map(|(pd, access)| Step::RegMr(pd, access)),
        Just(Step::CreateChannel),
        (0..5_000_u32, proptest::option::of(pick.clone())).prop_map(|(cqe, channel)| Step::CreateCq(cqe, channel)),
        (pick.clone(), 1..50_000_u32).prop_map(|(cq, cqe)| Step::ResizeCq(cq, cqe)),
        (pick.clone(), 0..40_000_u32).prop_map(|(pd, max_wr)| Step::CreateSrq(pd, max_wr)),
        (pick.clone(), pick.clone(), proptest::option::of(pick.clone()), 1..6_u8)
            .prop_map(|(pd, cq, srq, kind)| Step::CreateQp(pd, cq, srq, kind)),
        (pick.clone(), 0..3_u8).prop_map(|(pd, port)| Step::CreateAh(pd, port)),
        (pick.clone(), 0..2_u8).prop_map(|(qp, first)| Step::Attach(qp, first)),
        (0..7_usize, pick).prop_map(|(kind, which)| Step::Destroy(kind, which)),
    ]
}

type Handles = BTreeMap<u8, Vec<u32>>;

fn carry_out(world: &mut World, id: ContextId, step: &Step, handles: &mut Handles) {
    let pick = |kind: u8, which: usize| handles.get(&kind).and_then(|list| list.get(which)).copied().unwrap_or(0xbad);
    let (kind, reply) = match *step {
        Step::AllocPd => (1, call(world, id, number::ALLOC_PD, &abi::pd::AllocPd { response: 1 }, 12)),
        Step::RegMr(which, access_flags) => {
            let body = RegMr {
                start: 4096,
                hca_va: 4096,
                length: 100,
                pd_handle: pick(1, which),
                access_flags,
                ..RegMr::default()
            };
            (2, call(world, id, number::REG_MR, &body, 12))
        }
        Step::CreateChannel => {
            (7, call(world, id, number::CREATE_COMP_CHANNEL, &abi::cq::CreateCompChannel { response: 1 }, 4))
        }
        Step::CreateCq(cqe, channel) => {
            let comp_channel = channel.map_or(-1, |which| pick(7, which).cast_signed());
            (3, call(world, id, number::CREATE_CQ, &CreateCq { cqe, comp_channel, ..CreateCq::default() }, 64))
        }
        Step::ResizeCq(which, cqe) => {
            let body = ResizeCq { response: 1, cq_handle: pick(3, which), cqe };
            (0, call(world, id, number::RESIZE_CQ, &body, 64))
        }
        Step::CreateSrq(which, max_wr) => {
            let body = CreateSrq { pd_handle: pick(1, which), max_wr, max_sge: 2, ..CreateSrq::default() };
            (5, call(world, id, number::CREATE_SRQ, &body, 72))
        }
        Step::CreateQp(pd, cq, srq, qp_type) => {
            let body = CreateQp {
                pd_handle: pick(1, pd),
                send_cq_handle: pick(3, cq),
                recv_cq_handle: pick(3, cq),
                srq_handle: srq.map_or(0, |which| pick(5, which)),
                is_srq: u8::from(srq.is_some()),
                max_send_wr: 20,
                max_recv_wr: 20,
                qp_type,
                ..CreateQp::default()
            };
            (4, call(world, id, number::CREATE_QP, &body, 104))
        }
        Step::CreateAh(which, port_num) => {
            let attr = AhAttr { port_num, is_global: 1, ..AhAttr::default() };
            let body = CreateAh { pd_handle: pick(1, which), attr, ..CreateAh::default() };
            (6, call(world, id, number::CREATE_AH, &body, 4))
        }
        Step::Attach(which, first) => {
            let mut gid = [0; 16];
            gid[0] = if first == 0 { 0xff } else { 0 };
            let body = AttachMcast { gid, qp_handle: pick(4, which), ..AttachMcast::default() };
            (0, call(world, id, number::ATTACH_MCAST, &body, 0))
        }
        Step::Destroy(index, which) => {
            let (kind, command, at) = [
                (1, number::DEALLOC_PD, 0),
                (2, number::DEREG_MR, 0),
                (3, number::DESTROY_CQ, 8),
                (4, number::DESTROY_QP, 8),
                (5, number::DESTROY_SRQ, 8),
                (6, number::DESTROY_AH, 0),
                (1, number::DEALLOC_PD, 0),
            ][index];
            let handle = pick(kind, which);
            let mut body = vec![0; if at == 0 { 4 } else { 16 }];
            body[at..at + 4].copy_from_slice(&handle.to_le_bytes());
            let words = (8 + body.len()) as u16 / 4;
            let header = abi::command::Header { command: u32::from(command), in_words: words, out_words: 2 };
            let reply = dispatch(world, id, &[header.bytes(), &body].concat(), Vec::new());
            if reply.status == 0 {
                handles.entry(kind).or_default().retain(|other| *other != handle);
            }
            return;
        }
    };
    if reply.status == 0 && kind != 0 {
        handles.entry(kind).or_default().push(word(&reply, 0));
    } else if reply.status != 0 {
        assert!(reply.bytes.len() > 20, "a refusal has a sentence");
    }
}

fn assert_empty(world: &World) {
    assert!(
        world.contexts.is_empty()
            && world.tables.pds.is_empty()
            && world.tables.mrs.is_empty()
            && world.tables.cqs.is_empty()
    );
    assert!(
        world.tables.qps.is_empty()
            && world.tables.srqs.is_empty()
            && world.tables.ahs.is_empty()
            && world.tables.channels.is_empty()
    );
    assert_eq!(world.tables.groups.iter().count(), 0);
    assert_eq!(world.numbers.qpns.owner(0x100), None);
    for kind in [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Qp, Kind::Srq, Kind::Ah, Kind::Channel, Kind::Mw, Kind::Dm] {
        assert_eq!(world.devices[0].used(kind), 0, "{kind}s are still counted");
    }
}

/// A context with many objects ends in pieces of few objects. Other clients are served meanwhile,
/// and nothing is left.
#[test]
fn a_context_ends_in_pieces_of_bounded_size() {
    let mut world = world();
    let (ends, stays) = (client(&mut world), client(&mut world));
    let on = pd(&mut world, ends);
    for start in 1..=1_000_u64 {
        let body = RegMr { start: start << 12, hca_va: start << 12, length: 10, pd_handle: on, ..RegMr::default() };
        assert_eq!(call(&mut world, ends, number::REG_MR, &body, 12).status, 0);
    }
    for _ in 0..50 {
        qp(&mut world, ends, kind::RC);
    }
    let all = |world: &World| {
        world.tables.mrs.len() + world.tables.qps.len() + world.tables.cqs.len() + world.tables.pds.len()
    };
    let (mut before, mut pieces) = (all(&world), 0);
    while !world.close_some(ends, 64) {
        let after = all(&world);
        assert!(before - after <= 64, "{} in one piece", before - after);
        (before, pieces) = (after, pieces + 1);
        pd(&mut world, stays);
        before += 1;
    }
    assert!(pieces >= 1_000 / 64, "{pieces}");
    assert_eq!(
        (world.tables.mrs.len(), world.tables.qps.len(), world.tables.pds.len(), world.contexts.len()),
        (0, 0, pieces, 1)
    );
    assert_eq!(world.devices[0].used(Kind::Mr), 0);
    world.close(stays);
    assert!(world.users.all.is_empty() && all(&world) == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_a_client_did_its_end_leaves_nothing(steps in proptest::collection::vec((any::<bool>(), step()), 0..80)) {
        let mut world = world();
        let clients = [client(&mut world), client(&mut world)];
        // Both contexts choose from one list, so each also tries the other's handles.
        let mut handles = Handles::new();
        for (who, step) in &steps {
            carry_out(&mut world, clients[usize::from(*who)], step, &mut handles);
        }
        for id in clients {
            world.close(id);
        }
        assert_empty(&world);
    }
}

#[test]
fn destroying_an_object_in_use_fails_with_ebusy_and_its_name() {
    let mut world = world();
    let id = client(&mut world);
    qp(&mut world, id, kind::UD);
    let pd = world.tables.pds.handles(id)[0];
    let reply = call(&mut world, id, number::DEALLOC_PD, &abi::pd::DeallocPd { pd_handle: pd }, 0);
    assert!(reason(&reply, Errno::EBUSY).contains("PD 1"));
    let cq_handle = world.tables.cqs.handles(id)[0];
    let body = abi::cq::DestroyCq { response: 1, cq_handle, reserved: 0 };
    assert!(reason(&call(&mut world, id, number::DESTROY_CQ, &body, 8), Errno::EBUSY).contains("QPs"));
}

fn modify(world: &mut World, id: ContextId, body: &ModifyQp) -> Reply {
    call(world, id, number::MODIFY_QP, body, 0)
}

const INIT: u32 = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
const RTR: u32 = attr::STATE
    | attr::AV
    | attr::PATH_MTU
    | attr::DEST_QPN
    | attr::RQ_PSN
    | attr::MAX_DEST_RD_ATOMIC
    | attr::MIN_RNR_TIMER;

#[test]
fn without_a_gid_index_the_reason_says_what_to_type() {
    let mut world = world();
    let id = client(&mut world);
    let qp_handle = qp(&mut world, id, kind::RC);
    let init = ModifyQp { qp_handle, attr_mask: INIT, qp_state: state::INIT, port_num: 1, ..ModifyQp::default() };
    assert_eq!(modify(&mut world, id, &init).status, 0);
    let dest = Dest { port_num: 1, ..Dest::default() };
    let rtr = ModifyQp { qp_handle, attr_mask: RTR, qp_state: state::RTR, path_mtu: 3, dest, ..ModifyQp::default() };
    let said = reason(&modify(&mut world, id, &rtr), Errno::EINVAL);
    assert!(said.contains("-g 0") && said.contains("0x100") && said.contains("softhca0"), "{said}");
    let global = ModifyQp { dest: Dest { is_global: 1, sgid_index: 9, ..dest }, ..rtr };
    let said = reason(&modify(&mut world, id, &global), Errno::EINVAL);
    assert!(said.contains("GID index 9") && said.contains("valid are 0"), "{said}");
    let right = ModifyQp { dest: Dest { is_global: 1, ..dest }, rq_psn: 0xff00_0001, ..rtr };
    assert_eq!(modify(&mut world, id, &right).status, 0);
    let query = QueryQp { response: 1, qp_handle, attr_mask: 0 };
    let reply = call(&mut world, id, number::QUERY_QP, &query, size_of::<QueryQpAnswer>());
    let kept = QueryQpAnswer::read(&reply.bytes).expect("whole");
    assert_eq!((kept.qp_state, kept.rq_psn, kept.path_mtu), (state::RTR, 1, 3));
    let reset = ModifyQp { qp_handle, attr_mask: attr::STATE, qp_state: state::RESET, ..ModifyQp::default() };
    assert_eq!(modify(&mut world, id, &reset).status, 0);
    let reply = call(&mut world, id, number::QUERY_QP, &query, size_of::<QueryQpAnswer>());
    let kept = QueryQpAnswer::read(&reply.bytes).expect("whole");
    assert_eq!((kept.qp_state, kept.rq_psn, kept.path_mtu, kept.port_num), (state::RESET, 0, 0, 0));
}

#[test]
fn the_state_word_is_the_truth() {
    let mut world = world();
    let id = client(&mut world);
    let qp_handle = qp(&mut world, id, kind::RC);
    let block = world.tables.qps.find(id, qp_handle).expect("there").block.clone();
    for (written, answered) in [(state::ERR, state::ERR), (77, state::ERR), (state::SQD, state::SQD)] {
        block.word(0).store(u32::from(written), std::sync::atomic::Ordering::Release);
        let query = QueryQp { response: 1, qp_handle, attr_mask: 0 };
        let reply = call(&mut world, id, number::QUERY_QP, &query, size_of::<QueryQpAnswer>());
        assert_eq!(QueryQpAnswer::read(&reply.bytes).expect("whole").qp_state, answered);
    }
    let body = ModifyQp {
        qp_handle,
        attr_mask: attr::STATE | attr::CUR_STATE,
        qp_state: state::RTS,
        cur_qp_state: state::RTS,
        ..ModifyQp::default()
    };
    assert!(reason(&modify(&mut world, id, &body), Errno::EINVAL).contains("but cur_qp_state says RTS"));
}

#[test]
fn a_client_that_plays_with_the_state_word_does_not_hold_the_agent() {
    let mut world = world();
    let id = client(&mut world);
    let qp_handle = qp(&mut world, id, kind::RC);
    let block = world.tables.qps.find(id, qp_handle).expect("there").block.clone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                value = value.wrapping_add(1);
                block.word(0).store(value % 9, std::sync::atomic::Ordering::Release);
            }
        });
        for _ in 0..10_000 {
            let body = ModifyQp { qp_handle, attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
            modify(&mut world, id, &body);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    world.close(id);
    assert_empty(&world);
}

#[test]
fn a_resized_cq_keeps_its_counts_and_leaves_its_old_place_alone() {
    let mut world = world();
    let id = client(&mut world);
    let cq_handle = cq(&mut world, id);
    let old = world.tables.cqs.find(id, cq_handle).expect("there").block.clone();
    old.word(cq_word::PRODUCER).store(40, std::sync::atomic::Ordering::Release);
    old.word(cq_word::CONSUMER).store(20, std::sync::atomic::Ordering::Release);
    let small = ResizeCq { response: 1, cq_handle, cqe: 16 };
    assert!(reason(&call(&mut world, id, number::RESIZE_CQ, &small, 64), Errno::EINVAL).contains("20 completions"));
    let large = ResizeCq { cqe: 1000, ..small };
    let reply = call(&mut world, id, number::RESIZE_CQ, &large, 64);
    assert_eq!(word(&reply, 0), 1024);
    let out = CqOut::read(&reply.bytes[8..]).expect("whole");
    assert_eq!((out.cqe_count, out.mapping.length), (1024, (CONTROL_LEN + 1024 * 64) as u64));
    let new = world.tables.cqs.find(id, cq_handle).expect("there").block.clone();
    assert_eq!(new.read(cq_word::PRODUCER), 40);
    cq(&mut world, id);
    assert_eq!(old.read(cq_word::PRODUCER), 40, "the new CQ is elsewhere");
}

/// The client could not map the new memory, and has not moved the entries.
#[test]
fn a_resize_that_is_undone_leaves_the_cq_as_it_was() {
    let mut world = world();
    let id = client(&mut world);
    let cq_handle = cq(&mut world, id);
    let memory = |world: &World| (world.contexts[&id].memory.regions(), world.contexts[&id].memory.bytes());
    let place = |world: &World| {
        let cq = world.tables.cqs.find(id, cq_handle).expect("there");
        (cq.block.read(cq_word::PRODUCER), cq.entries, cq.former.len())
    };
    let cq_block = world.tables.cqs.find(id, cq_handle).expect("there").block.clone();
    let (before, bytes) = (place(&world), memory(&world));
    for round in 1..4 {
        let resize = ResizeCq { response: 1, cq_handle, cqe: 100_000 };
        assert_eq!(call(&mut world, id, number::RESIZE_CQ, &resize, 64).status, 0);
        let undo = ResizeUndo { handle: cq_handle, is_srq: 0 };
        let undo = extended(number::RESIZE_UNDO, &undo, 0, 0);
        // The client has gone on in its old memory.
        cq_block.word(cq_word::PRODUCER).store(round, std::sync::atomic::Ordering::Release);
        assert_eq!(dispatch(&mut world, id, &undo, Vec::new()).status, 0);
        assert_eq!((place(&world), memory(&world)), ((round, before.1, before.2), bytes));
        assert_ne!(dispatch(&mut world, id, &undo, Vec::new()).status, 0, "once is enough");
    }
}

/// Each resize keeps the memory of the former size, so their number is bounded.
#[test]
fn queues_are_not_resized_without_end() {
    let mut world = world();
    let id = client(&mut world);
    let (cq_handle, pd_handle) = (cq(&mut world, id), pd(&mut world, id));
    let create = CreateSrq { response: 1, pd_handle, max_wr: 1, max_sge: 1, ..CreateSrq::default() };
    let srq_handle = word(&call(&mut world, id, number::CREATE_SRQ, &create, 64), 0);
    let cq = ResizeCq { response: 1, cqe: 10, cq_handle };
    let srq = ModifySrq { srq_handle, attr_mask: srq_attr::MAX_WR, max_wr: 1, srq_limit: 0 };
    let mut resizes = [0; 2];
    let mut refused = |which: usize| {
        let mut resize = || match which {
            0 => call(&mut world, id, number::RESIZE_CQ, &cq, 64),
            _ => call(&mut world, id, number::MODIFY_SRQ, &srq, 64),
        };
        let refused = (0..100_000).map(|_| resize()).inspect(|_| resizes[which] += 1).find(|reply| reply.status != 0);
        reason(&refused.expect("an end"), Errno::ENOMEM)
    };
    assert!(refused(0).contains("CQ") && refused(1).contains("SRQ"));
    assert_eq!(resizes, [1025; 2]);
}

#[test]
fn keys_die_with_the_translation_they_stood_for() {
    let mut world = world();
    let id = client(&mut world);
    let pd_handle = pd(&mut world, id);
    let body = RegMr { start: 4096, hca_va: 4096, length: 10, pd_handle, access_flags: 1, ..RegMr::default() };
    let reply = call(&mut world, id, number::REG_MR, &body, 12);
    let (mr_handle, lkey, rkey) = (word(&reply, 0), word(&reply, 4), word(&reply, 8));
    assert_eq!(lkey, rkey);
    let again = ReregMr { mr_handle, flags: 4, access_flags: 3, ..ReregMr::default() };
    assert_eq!(word(&call(&mut world, id, number::REREG_MR, &again, 8), 0), lkey, "rights alone keep the key");
    let moved = ReregMr { mr_handle, flags: 1, start: 8192, hca_va: 8192, length: 20, ..ReregMr::default() };
    assert_ne!(word(&call(&mut world, id, number::REREG_MR, &moved, 8), 0), lkey);
}

#[test]
fn event_gid_change_and_a_row_of_the_table() {
    let mut world = world();
    let id = client(&mut world);
    let page = world.contexts[&id].events.as_ref().expect("open").page().clone();
    let address = |last| HostAddress { ip: [127, 0, 0, last].into(), ifindex: 1, mtu: 65536, prefix: 8 };
    assert!(world.follow_addresses(&[address(1)]));
    assert!(!world.follow_addresses(&[address(1)]), "no change, no event");
    world.flush(false);
    assert_eq!(page.read(context_page::HEAD), 1);
    let element_and_type = [0, 4, 8].map(|at| page.read(context_page::RECORDS + at));
    assert_eq!(element_and_type, [1, 0, event::kind::GID_CHANGE]);
    let entry = world.devices[0].gid_entry(1, 1).expect("valid");
    assert_eq!((entry.gid[12..].to_vec(), entry.gid_type, entry.ifindex), (vec![127, 0, 0, 1], 2, 1));
    assert!(world.follow_addresses(&[address(2)]));
    world.flush(false);
    assert_eq!(page.read(context_page::HEAD), 2);
}

#[test]
fn channels_are_limited_by_the_descriptors_of_the_agent_alone() {
    let mut world = world();
    world.users.descriptors = 3_000;
    let (id, other) = (client(&mut world), client(&mut world));
    let body = abi::cq::CreateCompChannel { response: 1 };
    let made =
        (0..4_000).take_while(|_| call(&mut world, id, number::CREATE_COMP_CHANNEL, &body, 4).status == 0).count();
    assert_eq!(made, 3_000);
    for id in [id, other] {
        let said = reason(&call(&mut world, id, number::CREATE_COMP_CHANNEL, &body, 4), Errno::EMFILE);
        assert!(said.contains("3000"), "{said}");
    }
    world.close(id);
    assert_eq!(call(&mut world, other, number::CREATE_COMP_CHANNEL, &body, 4).status, 0, "there is room again");
}
