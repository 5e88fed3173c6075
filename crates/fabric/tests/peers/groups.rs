//! Bursts of datagrams to a group: members that are slower than the sender, and one that takes
//! nothing.

use abi::qp::state;
use engine::{Caps, SendWr};

use crate::common::stranger::Stranger;
use crate::common::{Fabric, Plan, QKEY, Side, ah, start};

const GROUP: [u8; 16] = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
/// Far more datagrams than a lane holds.
const COUNT: u32 = 4_000;
const LEN: usize = 1_000;

fn plan() -> Plan {
    let caps = Caps { max_send_wr: COUNT, max_recv_wr: COUNT, ..Plan::ud().caps };
    Plan { caps, cqe: COUNT, ..Plan::ud() }
}

fn member(fabric: &Fabric) -> Side {
    let side = Side::new(&fabric.engine(), &plan());
    start(&side);
    side.qp.attach_mcast(&GROUP, 0).expect("attached");
    (0..u64::from(COUNT)).for_each(|wr_id| side.recv(wr_id, 0, 40 + LEN));
    side
}

fn sender(fabric: &Fabric) -> Side {
    let side = Side::new(&fabric.engine(), &plan());
    start(&side);
    side
}

fn post_burst(from: &Side) {
    let group = ah(&from.pd, GROUP, from.gid_index());
    let sges = from.sge(0, LEN);
    let wr = SendWr { ud: Some((&group, 0xff_ffff, QKEY)), sges: &sges, ..SendWr::default() };
    from.post_all(&vec![wr; COUNT as usize]);
}

fn assert_all_received(from: &Side, members: &[Side]) {
    (0..COUNT).for_each(|_| assert_eq!(from.sent().status, 0));
    for member in members {
        (0..u64::from(COUNT)).for_each(|wr_id| assert_eq!(member.received().wr_id, wr_id));
    }
}

#[test]
fn a_fast_sender_waits_for_the_members() {
    let fabric = Fabric::start();
    let (a, members) = (sender(&fabric), [member(&fabric), member(&fabric)]);
    post_burst(&a);
    assert_all_received(&a, &members);
}

#[test]
fn a_member_that_takes_nothing_holds_up_nobody() {
    let fabric = Fabric::start();
    let stranger = Stranger::new(&fabric);
    stranger.join(GROUP);
    let (a, reset, members) = (sender(&fabric), sender(&fabric), [member(&fabric), member(&fabric)]);
    post_burst(&a);
    assert_all_received(&a, &members);
    // A QP that waits for the member can be reset, and a new burst waits again.
    post_burst(&reset);
    reset.to(state::RESET);
    // The members have no receives for these datagrams.
    start(&reset);
    post_burst(&reset);
    (0..COUNT).for_each(|_| assert_eq!(reset.sent().status, 0));
}
