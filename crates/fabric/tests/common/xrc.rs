//! Shared parts of the XRC tests: queues of a domain, and a connection of an initiator with a
//! target.

use std::sync::Arc;

use abi::post::Sge;
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Caps, Cq, Engine, InitiatorSpec, Mr, Pd, Qp, RecvWr, SendWr, Srq, SrqSpec, Xrcd};

use super::memory::Memory;
use super::wait::next;
use super::{ALL_RIGHTS, cq, register};

pub(crate) const O_CREAT: u32 = 0o100;
pub(crate) const O_EXCL: u32 = 0o200;

/// A shared receive queue of a domain, with a PD, a CQ and memory of its own.
pub(crate) struct Queue {
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) srq: Arc<Srq>,
    pub(crate) memory: Memory,
    pub(crate) mr: Arc<Mr>,
}

impl Queue {
    pub(crate) fn new(engine: &Arc<Engine>, xrcd: &Arc<Xrcd>, cqe: u32) -> Self {
        let pd = engine.alloc_pd().expect("a PD");
        let cq = cq(engine, cqe);
        let spec = SrqSpec { max_wr: 16, max_sge: 1, cookie: 5 };
        let srq = engine.create_xrc_srq(&pd, xrcd, &cq, &spec).expect("an SRQ");
        let memory = Memory::new(64 * 1024);
        let mr = register(&pd, &memory, ALL_RIGHTS);
        Self { pd, cq, srq, memory, mr }
    }

    pub(crate) fn post(&self, wr_id: u64, at: usize, len: usize) {
        let sges = [Sge::new(self.memory.addr(at), len as u32, self.mr.lkey())];
        self.srq.post(&RecvWr { wr_id, sges: &sges }).expect("a place");
    }
}

/// GID and GID index of an engine. The index is 0 on one host. Between hosts, it is the index of
/// the address that other hosts know.
pub(crate) fn gid(engine: &Arc<Engine>) -> ([u8; 16], u8) {
    let other = engine.query_gid(1, 1).unwrap_or_default();
    let index = u8::from(other[0] == 0xfd || other[12] == 10);
    (engine.query_gid(1, u32::from(index)).expect("a GID"), index)
}

/// Brings a QP to RTS with all attributes of RC; the QP ignores those that belong to the other end.
pub(crate) fn connect(qp: &Arc<Qp>, engine: &Arc<Engine>, peer: [u8; 16], peer_qpn: u32, rnr_retry: u8) {
    let (_, sgid_index) = gid(engine);
    let path_mtu = engine.query_port(1).expect("a port").active_mtu;
    let dest = Dest { dgid: peer, sgid_index, is_global: 1, port_num: 1, hop_limit: 1, ..Dest::default() };
    let whole = ModifyQp {
        port_num: 1,
        qp_access_flags: 0xe,
        dest,
        path_mtu,
        dest_qp_num: peer_qpn,
        rq_psn: 7,
        sq_psn: 7,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry,
        ..ModifyQp::default()
    };
    let rtr =
        attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
    let rts = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC;
    for (qp_state, mask) in
        [(state::INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS), (state::RTR, rtr), (state::RTS, rts)]
    {
        qp.modify(&ModifyQp { qp_state, attr_mask: attr::STATE | mask, ..whole }).expect("the next state");
    }
}

/// An initiator with its own memory.
pub(crate) struct Asker {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) initiator: Arc<Qp>,
    pub(crate) memory: Memory,
    pub(crate) mr: Arc<Mr>,
}

impl Asker {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let pd = engine.alloc_pd().expect("a PD");
        let cq = cq(&engine, 64);
        let caps = Caps { max_send_wr: 32, max_send_sge: 2, ..Caps::default() };
        let spec = InitiatorSpec { send_cq: &cq, caps, sq_sig_all: true, cookie: 3 };
        let initiator = engine.create_initiator(&pd, &spec).expect("an initiator");
        let memory = Memory::new(64 * 1024);
        let mr = register(&pd, &memory, ALL_RIGHTS);
        Self { engine, cq, initiator, memory, mr }
    }

    /// Connects the initiator with a target of `server`.
    pub(crate) fn connect(&self, server: &Arc<Engine>, target: &Arc<Qp>, rnr_retry: u8) {
        connect(target, server, gid(&self.engine).0, self.initiator.qpn(), 7);
        connect(&self.initiator, &self.engine, gid(server).0, target.qpn(), rnr_retry);
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [Sge::new(self.memory.addr(at), len as u32, self.mr.lkey())]
    }

    pub(crate) fn post(&self, queue: u32, wr: &SendWr<'_>) {
        let mut batch = self.initiator.send_batch().expect("a batch");
        batch.push(&SendWr { xrc_srq: queue, ..*wr }).expect("room");
        batch.finish();
    }

    /// The status of a request that names a queue.
    pub(crate) fn outcome(&self, queue: u32, wr: &SendWr<'_>) -> u32 {
        self.post(queue, wr);
        next(&self.cq).status
    }
}

impl Queue {
    pub(crate) fn number(&self) -> u32 {
        self.srq.number()
    }

    /// An RDMA or atomic request on the initiator's memory, with its key.
    pub(crate) fn at(&self, opcode: u32, at: usize) -> SendWr<'static> {
        SendWr { opcode, remote_addr: self.memory.addr(at), rkey: self.mr.rkey(), ..SendWr::default() }
    }
}
