//! Engines of one embedded agent, without a socket and without a run directory. Their behaviour is
//! the same.

use std::time::{Duration, Instant};

use abi::Errno;
use abi::cq::{Wc, status};
use abi::mr::access;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Caps, CqSpec, Qp, QpSpec, RecvWr, SendWr, Service};
use fabric::Fabric;

fn connect(qp: &Qp, dest_qpn: u32, gid: [u8; 16]) {
    let dest = Dest { dgid: gid, hop_limit: 1, is_global: 1, port_num: 1, ..Dest::default() };
    let whole = ModifyQp {
        dest,
        dest_qp_num: dest_qpn,
        path_mtu: 3,
        port_num: 1,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        qp_access_flags: access::REMOTE_WRITE,
        ..ModifyQp::default()
    };
    let path =
        attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
    let sending = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC;
    for (next, mask) in
        [(state::INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS), (state::RTR, path), (state::RTS, sending)]
    {
        qp.modify(&ModifyQp { qp_state: next, attr_mask: attr::STATE | mask, ..whole }).expect("a legal transition");
    }
}

#[test]
fn two_engines_of_one_fabric_exchange_a_message() {
    let fabric = Fabric::start().expect("a fabric");
    let sides: Vec<_> = (0..2)
        .map(|_| {
            let engine = fabric.host(0).connect().expect("an engine");
            let pd = engine.alloc_pd().expect("a PD");
            let memory = vec![0_u8; 8192].leak();
            let mr =
                pd.reg_mr(memory.as_ptr() as u64, 8192, memory.as_ptr() as u64, access::LOCAL_WRITE).expect("an MR");
            let cq = engine.create_cq(&CqSpec { cqe: 16, channel: None, comp_vector: 0, cookie: 1 }).expect("a CQ");
            let caps = Caps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let spec = QpSpec {
                service: Service::Rc,
                send_cq: &cq,
                recv_cq: &cq,
                srq: None,
                caps,
                sq_sig_all: false,
                cookie: 2,
            };
            let qp = engine.create_qp(&pd, &spec).expect("a QP");
            (engine, memory.as_ptr() as u64, mr, cq, qp)
        })
        .collect();
    let [one, two] = <[_; 2]>::try_from(sides).ok().expect("two sides");
    let gid = one.0.query_gid(1, 0).expect("GID 0");
    connect(&one.4, two.4.qpn(), gid);
    connect(&two.4, one.4.qpn(), gid);

    let sge =
        |side: &(_, u64, std::sync::Arc<engine::Mr>, _, _)| Sge { addr: side.1, length: 4096, lkey: side.2.lkey() };
    two.4.post_recv(&RecvWr { wr_id: 7, sges: &[sge(&two)] }).expect("posted");
    let mut batch = one.4.send_batch().expect("a batch");
    let sges = [sge(&one)];
    let wr =
        SendWr { wr_id: 8, opcode: opcode::SEND, send_flags: send_flags::SIGNALED, sges: &sges, ..SendWr::default() };
    batch.push(&wr).expect("posted");
    batch.finish();
    for (cq, wr_id) in [(&two.3, 7), (&one.3, 8)] {
        let end = Instant::now() + Duration::from_secs(10);
        let mut wc = [Wc::default()];
        while cq.poll(&mut wc).expect("polled") == 0 {
            assert!(Instant::now() < end, "no completion for {wr_id}");
        }
        assert_eq!((wc[0].wr_id, wc[0].status), (wr_id, status::SUCCESS));
    }
}

#[test]
fn a_device_that_is_not_there_and_an_agent_that_ends() {
    let fabric = Fabric::start().expect("a fabric");
    assert_eq!(fabric.host(0).connect_to(1).err().expect("no such device").errno, Errno::ENODEV);
    let engine = fabric.host(0).connect().expect("an engine");
    drop(fabric);
    let end = Instant::now() + Duration::from_secs(10);
    while !engine.is_gone() {
        assert!(Instant::now() < end, "the engine does not notice that its agent has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(engine.alloc_pd().err().expect("gone").errno, Errno::EIO);
}
