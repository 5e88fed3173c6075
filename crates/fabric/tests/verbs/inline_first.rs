//! Inline data of a program that has registered no memory. This test has its own file, because the
//! engine's fault handler belongs to the process, and the first registration of memory installs it.

use crate::common::{Fabric, Memory, Plan, cq, make_qp};
use abi::errno::Errno;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{PostError, SendWr};

#[test]
fn inline_data_that_is_not_there_is_refused_before_anything_is_registered() {
    let fabric = Fabric::start();
    let engine = fabric.engine();
    let (pd, cq) = (engine.alloc_pd().expect("a PD"), cq(&engine, 8));
    let qp = make_qp(&engine, &pd, &Plan::uc(), (&cq, &cq), None);
    let whole = ModifyQp {
        port_num: 1,
        dest: Dest {
            dgid: engine.query_gid(1, 0).expect("a GID"),
            is_global: 1,
            port_num: 1,
            hop_limit: 1,
            ..Dest::default()
        },
        path_mtu: 1,
        dest_qp_num: qp.qpn(),
        ..ModifyQp::default()
    };
    for (qp_state, mask) in [
        (state::INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS),
        (state::RTR, attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN),
        (state::RTS, attr::SQ_PSN),
    ] {
        qp.modify(&ModifyQp { qp_state, attr_mask: attr::STATE | mask, ..whole }).expect("the next state");
    }
    let mut memory = Memory::new(4096);
    let post = |wr_id, addr| {
        let sges = [Sge::new(addr, 8, 0)];
        let mut batch = qp.send_batch().expect("a batch");
        let wr =
            SendWr { wr_id, opcode: opcode::SEND, send_flags: send_flags::INLINE, sges: &sges, ..SendWr::default() };
        let posted = batch.push(&wr);
        batch.finish();
        posted.map_err(PostError::errno)
    };
    assert_eq!(post(1, memory.addr(0)), Ok(()));
    let gone = memory.addr(0);
    memory.unmap();
    assert_eq!(post(2, gone), Err(Errno::EFAULT));
    assert!(engine::reason::last(1)[0].contains("cannot be read"), "{:?}", engine::reason::last(1));
    assert_eq!(post(3, 8), Err(Errno::EFAULT));
}
