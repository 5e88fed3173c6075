//! Section 4.3: each row of the transition table, tested on real queue pairs of RC, UC and UD. For
//! each service a row lists the required and the optional attributes. The tests try every
//! attribute. With all required attributes, the transition is accepted or refused as the row says.
//! If any required attribute is missing, the transition is refused. The table for all services is
//! tested in `crates/protocol/tests/modify.rs`.

use std::sync::Arc;

use abi::errno::Errno;
use abi::qp::attr::*;
use abi::qp::{ModifyQp, state};

use crate::common::{Fabric, Plan, Side, connect, everywhere, start};
use engine::{Engine, Service};

/// For RC, UC and UD: the required and the optional attributes. `None`: there is no such
/// transition.
type Row = [Option<(u32, u32)>; 3];

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

const ALL: [u32; 20] = [
    CUR_STATE,
    EN_SQD_ASYNC_NOTIFY,
    ACCESS_FLAGS,
    PKEY_INDEX,
    PORT,
    QKEY,
    AV,
    PATH_MTU,
    TIMEOUT,
    RETRY_CNT,
    RNR_RETRY,
    RQ_PSN,
    MAX_QP_RD_ATOMIC,
    ALT_PATH,
    MIN_RNR_TIMER,
    SQ_PSN,
    MAX_DEST_RD_ATOMIC,
    PATH_MIG_STATE,
    CAP,
    DEST_QPN,
];

/// The masks for the alternate path and the migration state.
const PATHS: u32 = ALT_PATH | PATH_MIG_STATE;

/// A queue pair in a state, and a peer that supplies its address.
fn side_in(engine: &Arc<Engine>, service: Service, wanted: u8) -> (Side, Side) {
    let plan = Plan::new(service);
    let (side, peer) = (Side::new(engine, &plan), Side::new(engine, &plan));
    if wanted >= state::INIT {
        side.init();
    }
    if wanted >= state::RTR && wanted != state::ERR {
        side.rtr(peer.gid(), peer.qp.qpn());
    }
    match wanted {
        state::RTS | state::SQD => side.rts(),
        state::SQE => {
            side.rts();
            let ah = side.ah(&peer);
            let ud = (service == Service::Ud).then_some((&*ah, 5, 5));
            let sges = [abi::post::Sge::new(8, 8, 0xdead_0000)];
            side.post(&engine::SendWr { ud, sges: &sges, ..engine::SendWr::default() });
            assert_ne!(side.sent().status, 0);
        }
        _ => {}
    }
    if wanted == state::SQD || wanted == state::ERR {
        side.to(wanted);
    }
    assert_eq!(side.qp.state(), u32::from(wanted));
    (side, peer)
}

/// A request with valid values for every attribute.
fn request(side: &Side, peer: &Side, from: u8, to: u8, mask: u32) -> ModifyQp {
    let values = side.rtr_request(peer.gid(), peer.qp.qpn(), 1);
    ModifyQp {
        attr_mask: mask | STATE,
        qp_state: to,
        cur_qp_state: from,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        qkey: 1,
        path_mig_state: 0,
        alt_dest: values.dest,
        alt_port_num: 1,
        alt_timeout: 14,
        ..values
    }
}

/// These tests do not try to change capacities, even where the table allows it.
fn is_tried(attribute: u32) -> bool {
    attribute != CAP
}

fn row(fabric: &Fabric, from: u8, to: u8, row: Row) {
    let engine = fabric.engine();
    for (service, rule) in SERVICES.into_iter().zip(row) {
        let attempt = |mask: u32| {
            let (side, peer) = side_in(&engine, service, from);
            let answer = side.qp.modify(&request(&side, &peer, from, to, mask)).map_err(|error| error.errno);
            let after = side.qp.state();
            let expected = if answer.is_ok() { to } else { from };
            assert_eq!(after, u32::from(expected), "{service}, {mask:#x}: {answer:?}");
            answer
        };
        let Some((required, optional)) = rule else {
            assert_eq!(attempt(0), Err(Errno::EINVAL), "{service} has no such way");
            continue;
        };
        assert_eq!(attempt(required), Ok(()), "{service}, all that is required: {:?}", engine::reason::last(1));
        for one in ALL.into_iter().filter(|one| is_tried(*one)) {
            if required & one != 0 {
                assert_eq!(attempt(required & !one), Err(Errno::EINVAL), "{service} without {one:#x}");
            } else {
                let expected = if optional & one == 0 { Err(Errno::EINVAL) } else { Ok(()) };
                assert_eq!(attempt(required | one), expected, "{service} with {one:#x}: {:?}", engine::reason::last(1));
            }
        }
    }
}

const NOTHING: Row = [Some((0, 0)); 3];
const NO_WAY: Row = [None; 3];

fn modify_reset_to_reset(fabric: &Fabric) {
    row(fabric, state::RESET, state::RESET, NOTHING);
}

fn modify_reset_to_init(fabric: &Fabric) {
    let connected = Some((PKEY_INDEX | PORT | ACCESS_FLAGS, 0));
    row(fabric, state::RESET, state::INIT, [connected, connected, Some((PKEY_INDEX | PORT | QKEY, 0))]);
}

fn modify_init_to_init(fabric: &Fabric) {
    let connected = Some((0, PKEY_INDEX | PORT | ACCESS_FLAGS));
    row(fabric, state::INIT, state::INIT, [connected, connected, Some((0, PKEY_INDEX | PORT | QKEY))]);
}

fn modify_init_to_rtr(fabric: &Fabric) {
    let uc = AV | PATH_MTU | DEST_QPN | RQ_PSN;
    let optional = ACCESS_FLAGS | PKEY_INDEX | ALT_PATH;
    let rc = uc | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    row(fabric, state::INIT, state::RTR, [Some((rc, optional)), Some((uc, optional)), Some((0, PKEY_INDEX | QKEY))]);
}

fn modify_rtr_to_rts(fabric: &Fabric) {
    let rc = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
    let rule = [
        Some((rc, CUR_STATE | ACCESS_FLAGS | PATHS | MIN_RNR_TIMER)),
        Some((SQ_PSN, CUR_STATE | ACCESS_FLAGS | PATHS)),
        Some((SQ_PSN, CUR_STATE | QKEY)),
    ];
    row(fabric, state::RTR, state::RTS, rule);
}

fn modify_rts_to_rts(fabric: &Fabric) {
    let rule = [
        Some((0, CUR_STATE | ACCESS_FLAGS | PATHS | MIN_RNR_TIMER)),
        Some((0, CUR_STATE | ACCESS_FLAGS | PATHS)),
        Some((0, CUR_STATE | QKEY)),
    ];
    row(fabric, state::RTS, state::RTS, rule);
}

fn modify_rts_to_sqd(fabric: &Fabric) {
    row(fabric, state::RTS, state::SQD, [Some((0, EN_SQD_ASYNC_NOTIFY)); 3]);
}

fn modify_sqd_to_rts(fabric: &Fabric) {
    let rule = [
        Some((0, CUR_STATE | ACCESS_FLAGS | PATHS | MIN_RNR_TIMER)),
        Some((0, CUR_STATE | ACCESS_FLAGS | PATHS)),
        Some((0, CUR_STATE | QKEY)),
    ];
    row(fabric, state::SQD, state::RTS, rule);
}

fn modify_sqd_to_sqd(fabric: &Fabric) {
    let uc = AV | ACCESS_FLAGS | PKEY_INDEX | PATHS;
    let more = PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    row(fabric, state::SQD, state::SQD, [Some((0, uc | more)), Some((0, uc)), Some((0, PKEY_INDEX | QKEY))]);
}

fn modify_sqe_to_rts(fabric: &Fabric) {
    let engine = fabric.engine();
    for (service, optional) in [(Service::Uc, CUR_STATE | ACCESS_FLAGS), (Service::Ud, CUR_STATE | QKEY)] {
        for one in ALL.into_iter().filter(|one| is_tried(*one)).chain([0]) {
            let (side, peer) = side_in(&engine, service, state::SQE);
            let answer =
                side.qp.modify(&request(&side, &peer, state::SQE, state::RTS, one)).map_err(|error| error.errno);
            let expected = if optional & one == one { Ok(()) } else { Err(Errno::EINVAL) };
            assert_eq!(answer, expected, "{service} with {one:#x}");
        }
    }
}

fn modify_any_to_reset(fabric: &Fabric) {
    for from in [state::INIT, state::RTR, state::RTS, state::SQD, state::ERR] {
        row(fabric, from, state::RESET, NOTHING);
    }
}

fn modify_any_to_err(fabric: &Fabric) {
    for from in [state::INIT, state::RTR, state::RTS, state::SQD, state::ERR] {
        row(fabric, from, state::ERR, NOTHING);
    }
}

fn modify_everything_else_is_refused(fabric: &Fabric) {
    let ways = [
        (state::RESET, &[state::RTR, state::RTS, state::SQD, state::SQE, state::ERR][..]),
        (state::INIT, &[state::RTS, state::SQD, state::SQE]),
        (state::RTR, &[state::INIT, state::RTR, state::SQD, state::SQE]),
        (state::RTS, &[state::INIT, state::RTR, state::SQE]),
        (state::SQD, &[state::INIT, state::RTR, state::SQE]),
        (state::ERR, &[state::INIT, state::RTR, state::RTS, state::SQD, state::SQE]),
    ];
    for (from, to) in ways {
        to.iter().for_each(|to| row(fabric, from, *to, NO_WAY));
    }
}

/// The values are checked too. Each of these requests has one wrong value.
fn modify_values_are_checked(fabric: &Fabric) {
    let engine = fabric.engine();
    let refused = |from: u8, to: u8, mask: u32, change: &dyn Fn(&mut ModifyQp)| {
        let (side, peer) = side_in(&engine, Service::Rc, from);
        let mut wish = request(&side, &peer, from, to, mask);
        change(&mut wish);
        assert_eq!(side.qp.modify(&wish).map_err(|error| error.errno), Err(Errno::EINVAL), "{wish:?}");
        assert_eq!(side.qp.state(), u32::from(from));
    };
    let init = PKEY_INDEX | PORT | ACCESS_FLAGS;
    refused(state::RESET, state::INIT, init, &|wish| wish.port_num = 0);
    refused(state::RESET, state::INIT, init, &|wish| wish.port_num = 9);
    refused(state::RESET, state::INIT, init, &|wish| wish.pkey_index = 9999);
    let rtr = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    refused(state::INIT, state::RTR, rtr, &|wish| wish.path_mtu = 0);
    refused(state::INIT, state::RTR, rtr, &|wish| wish.path_mtu = 6);
    refused(state::INIT, state::RTR, rtr, &|wish| wish.dest.is_global = 0);
    refused(state::INIT, state::RTR, rtr, &|wish| wish.dest.sgid_index = 255);
    // One of source and destination is an IPv4 address.
    refused(state::INIT, state::RTR, rtr, &|wish| {
        let is_ipv4 = wish.dest.dgid.starts_with(&[0; 10]);
        wish.dest.dgid = if is_ipv4 { [0xfe; 16] } else { std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets() };
    });
    refused(state::INIT, state::RTR, rtr, &|wish| wish.min_rnr_timer = 32);
    refused(state::INIT, state::RTR, rtr, &|wish| wish.max_dest_rd_atomic = 255);
    let rts = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
    refused(state::RTR, state::RTS, rts, &|wish| wish.timeout = 32);
    refused(state::RTR, state::RTS, rts, &|wish| wish.retry_cnt = 8);
    refused(state::RTR, state::RTS, rts, &|wish| wish.rnr_retry = 8);
    refused(state::RTR, state::RTS, rts, &|wish| wish.max_rd_atomic = 255);
    refused(state::RTS, state::RTS, CUR_STATE, &|wish| wish.cur_qp_state = state::SQD);
}

/// A queue pair that went through every transition works.
fn modify_all_the_way_and_back(fabric: &Fabric) {
    let (a, b) = fabric.pair(&Plan::rc());
    for _ in 0..3 {
        a.to(state::SQD);
        a.to(state::RTS);
        b.recv(1, 0, 0);
        a.post(&engine::SendWr::default());
        assert_eq!((a.sent().status, b.received().wr_id), (0, 1));
        for wanted in [state::ERR, state::RESET] {
            a.to(wanted);
            b.to(wanted);
        }
        connect(&a, &b);
    }
    let ud = Side::new(&fabric.engine(), &Plan::ud());
    start(&ud);
}

everywhere! {
    modify_reset_to_reset
    modify_reset_to_init
    modify_init_to_init
    modify_init_to_rtr
    modify_rtr_to_rts
    modify_rts_to_rts
    modify_rts_to_sqd
    modify_sqd_to_rts
    modify_sqd_to_sqd
    modify_sqe_to_rts
    modify_any_to_reset
    modify_any_to_err
    modify_everything_else_is_refused
    modify_values_are_checked
    modify_all_the_way_and_back
}
