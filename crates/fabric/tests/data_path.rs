//! The data path between engines of one process and one agent: each operation on real memory, over lanes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::cq::Wc;
use abi::post::{Sge, opcode, send_flags};
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Caps, Cq, CqSpec, Engine, Mr, Pd, Qp, QpSpec, RecvWr, SendWr, Service, SocketControl};

struct Side {
    engine: Arc<Engine>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    memory: Vec<u8>,
    mr: Arc<Mr>,
}

fn side(dir: &std::path::Path, service: Service, size: usize) -> Side {
    let control = SocketControl::open(&dir.join("uverbs0"), 0).expect("the agent answers");
    let engine = Engine::open(Box::new(control)).expect("a context");
    let pd = engine.alloc_pd().expect("a PD");
    let cq = engine.create_cq(&CqSpec { cqe: 128, channel: None, comp_vector: 0, cookie: 1 }).expect("a CQ");
    let caps = Caps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let spec = QpSpec { service, send_cq: &cq, recv_cq: &cq, srq: None, caps, sq_sig_all: false, cookie: 2 };
    let qp = engine.create_qp(&pd, &spec).expect("a QP");
    let memory = vec![0u8; size];
    let addr = memory.as_ptr() as u64;
    let mr = pd.reg_mr(addr, size as u64, addr, 0xf).expect("an MR");
    Side { engine, pd, cq, qp, memory, mr }
}

fn connect(a: &Side, b: &Side) {
    let init = ModifyQp {
        attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS,
        qp_state: state::INIT,
        port_num: 1,
        qp_access_flags: 0xe,
        ..ModifyQp::default()
    };
    a.qp.modify(&init).expect("INIT");
    let rtr = ModifyQp {
        attr_mask: attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER,
        qp_state: state::RTR,
        dest: Dest { dgid: b.engine.query_gid(1, 0).expect("a GID"), is_global: 1, port_num: 1, hop_limit: 1, ..Dest::default() },
        path_mtu: 3,
        dest_qp_num: b.qp.qpn(),
        rq_psn: 7,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        ..ModifyQp::default()
    };
    a.qp.modify(&rtr).expect("RTR");
    let rts = ModifyQp {
        attr_mask: attr::STATE | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC,
        qp_state: state::RTS,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        sq_psn: 7,
        max_rd_atomic: 4,
        ..ModifyQp::default()
    };
    a.qp.modify(&rts).expect("RTS");
}

fn completion(side: &Side) -> Wc {
    let limit = Instant::now() + Duration::from_secs(20);
    let mut wc = [Wc::default()];
    while side.cq.poll(&mut wc).expect("the CQ polls") == 0 {
        assert!(Instant::now() < limit, "no completion");
    }
    wc[0]
}

impl Side {
    fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [Sge::new(self.memory.as_ptr() as u64 + at as u64, len as u32, self.mr.lkey())]
    }

    fn send(&self, wr: &SendWr<'_>) {
        let mut batch = self.qp.send_batch().expect("a batch");
        batch.push(wr).expect("room");
        batch.finish();
    }
}

#[test]
fn every_operation_of_rc() {
    let dir = tempfile::tempdir().expect("a directory");
    let agent = agent::Agent::start(&agent::Config::default(), Some(dir.path())).expect("an agent");
    let size = 3 << 20;
    let (mut a, mut b) = (side(dir.path(), Service::Rc, size), side(dir.path(), Service::Rc, size));
    connect(&a, &b);
    connect(&b, &a);
    for len in [0usize, 1, 8, 100, 300, 4096, 32768, 32769, 2 << 20] {
        for i in 0..len {
            a.memory[i] = (i * 7 + len) as u8;
        }
        b.memory[..len].fill(0);
        b.qp.post_recv(&RecvWr { wr_id: 5, sges: &b.sge(0, len) }).expect("a receive");
        a.send(&SendWr { wr_id: 9, send_flags: send_flags::SIGNALED, sges: &a.sge(0, len), ..SendWr::default() });
        let wc = completion(&b);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (5, 0, len as u32));
        let wc = completion(&a);
        assert_eq!((wc.wr_id, wc.status), (9, 0), "{:?}", engine::reason::last(3));
        assert!(a.memory[..len] == b.memory[..len], "length {len}");

        b.memory[..len].fill(0);
        let remote_addr = b.memory.as_ptr() as u64;
        a.send(&SendWr { opcode: opcode::RDMA_WRITE, send_flags: send_flags::SIGNALED, remote_addr, rkey: b.mr.rkey(), sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!(completion(&a).status, 0, "{:?}", engine::reason::last(3));
        assert!(a.memory[..len] == b.memory[..len], "write of length {len}");

        a.memory[..len].fill(0);
        a.send(&SendWr { opcode: opcode::RDMA_READ, send_flags: send_flags::SIGNALED, remote_addr, rkey: b.mr.rkey(), sges: &a.sge(0, len), ..SendWr::default() });
        assert_eq!(completion(&a).status, 0, "{:?}", engine::reason::last(3));
        assert!(a.memory[..len] == b.memory[..len], "read of length {len}");
    }
    b.memory[..8].copy_from_slice(&41u64.to_ne_bytes());
    let remote_addr = b.memory.as_ptr() as u64;
    a.send(&SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, send_flags: send_flags::SIGNALED, remote_addr, rkey: b.mr.rkey(), compare_add: 1, sges: &a.sge(64, 8), ..SendWr::default() });
    assert_eq!(completion(&a).status, 0);
    assert_eq!(a.memory[64..72], 41u64.to_ne_bytes());
    assert_eq!(b.memory[..8], 42u64.to_ne_bytes());
    for side in [&a, &b] {
        side.qp.destroy().expect("destroyed");
        side.cq.destroy().expect("destroyed");
        side.mr.dereg().expect("deregistered");
        side.pd.dealloc().expect("deallocated");
        side.engine.close();
    }
    agent.stop();
}
