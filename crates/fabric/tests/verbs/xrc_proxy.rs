//! XRC for a client that runs no engine: a proxy engine in the agent serves its targets and queues.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::common::Fabric;
use crate::common::wait::{next, until};
use crate::common::xrc::{Asker, O_CREAT, Queue, connect, gid};
use abi::command::{legacy, number};
use abi::cq::{CreateCq, CreateCqAnswer, PollCq, PollCqAnswer, Wc};
use abi::device::{GetContext, GetContextAnswer};
use abi::layout::Record;
use abi::mr::{RegMr, RegMrAnswer};
use abi::pd::{AllocPd, AllocPdAnswer};
use abi::post::{Post, PostAnswer, RecvWr, Sge, opcode};
use abi::qp::{CreateQp, CreateQpAnswer, DestroyQp, DestroyQpAnswer, ModifyQp, attr, kind, state};
use abi::queue::{ContextOut, CqOut, MrIn, QpOut, REV, SrqOut, mr_flags};
use abi::srq::CreateSrqAnswer;
use abi::xrc::{CreateXsrq, OpenXrcd, OpenXrcdAnswer, XrcdOut};
use engine::{Control, Engine, SendWr, SocketControl};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use shm::Region;

const LEN: usize = 64 * 1024;
/// The address of the first byte, as requests name it.
const BASE: u64 = 0x7000_0000;

/// A client that uses only commands.
struct Proxied {
    control: SocketControl,
    memory: Region,
    key: u32,
    pd: u32,
    cq: u32,
    xrcd: u32,
    srq: u32,
    srqn: u32,
}

impl Proxied {
    fn new(fabric: &Fabric, file: &std::fs::File) -> Self {
        let control = SocketControl::open(&fabric.node(0), 0).expect("an agent");
        let mut this = Self {
            control,
            memory: Region::create("never used", 4096).expect("memory").0,
            key: 0,
            pd: 0,
            cq: 0,
            xrcd: 0,
            srq: 0,
            srqn: 0,
        };
        this.ask::<_, GetContextAnswer>(
            number::GET_CONTEXT,
            &GetContext { response: 1 },
            &[],
            size_of::<ContextOut>(),
            None,
        );
        this.pd = this.ask::<_, AllocPdAnswer>(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 8, None).pd_handle;
        let cq = CreateCq { response: 1, cqe: 16, comp_channel: -1, ..CreateCq::default() };
        this.cq = this.ask::<_, CreateCqAnswer>(number::CREATE_CQ, &cq, &[], size_of::<CqOut>(), None).cq_handle;
        let domain = OpenXrcd { response: 1, fd: 0, oflags: O_CREAT };
        let fd = file.as_fd().try_clone_to_owned().expect("a copy");
        this.xrcd =
            this.ask::<_, OpenXrcdAnswer>(number::OPEN_XRCD, &domain, &[], size_of::<XrcdOut>(), Some(fd)).xrcd_handle;
        let srq = CreateXsrq {
            response: 1,
            srq_type: 1,
            pd_handle: this.pd,
            max_wr: 16,
            max_sge: 1,
            xrcd_handle: this.xrcd,
            cq_handle: this.cq,
            ..CreateXsrq::default()
        };
        let made: CreateSrqAnswer = this.ask(number::CREATE_XSRQ, &srq, &[], size_of::<SrqOut>(), None);
        (this.srq, this.srqn) = (made.srq_handle, made.srqn);
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&memory, LEN as u64).expect("room");
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("sealed");
        this.memory = Region::map(memory.as_fd(), LEN).expect("mapped");
        let mr = RegMr {
            response: 1,
            start: BASE,
            length: LEN as u64,
            hca_va: BASE,
            pd_handle: this.pd,
            access_flags: crate::common::ALL_RIGHTS,
        };
        let tail = MrIn { rev: REV, flags: mr_flags::MEMFD, ..MrIn::default() };
        this.key = this.ask::<_, RegMrAnswer>(number::REG_MR, &mr, tail.bytes(), 0, Some(memory)).rkey;
        this
    }

    fn ask<T: Record, A: Record>(&self, number: u8, body: &T, tail: &[u8], more: usize, fd: Option<OwnedFd>) -> A {
        let request = legacy(number, body, tail, size_of::<A>() + more);
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        self.control.call(&request, &fds).expect("it is done").get(0).expect("an answer")
    }

    fn tell<T: Record>(&self, number: u8, body: &T) {
        self.control.call(&legacy(number, body, &[], 0), &[]).expect("it is done");
    }

    fn post(&self, wr_id: u64, at: usize, len: u32) {
        let body =
            Post { response: 1, handle: self.srq, wr_count: 1, sge_count: 1, wqe_size: size_of::<RecvWr>() as u32 };
        let wr = RecvWr { wr_id, num_sge: 1, ..RecvWr::default() };
        let sge = Sge::new(BASE + at as u64, len, self.key);
        let _: PostAnswer = self.ask(number::POST_SRQ_RECV, &body, &[wr.bytes(), sge.bytes()].concat(), 0, None);
    }

    fn next(&self) -> Wc {
        until("a completion", || {
            let body = PollCq { response: 1, cq_handle: self.cq, ne: 1 };
            let len = size_of::<PollCqAnswer>() + size_of::<Wc>();
            let answer = self.control.call(&legacy(number::POLL_CQ, &body, &[], len), &[]).expect("it polls");
            let count: PollCqAnswer = answer.get(0).expect("a count");
            (count.count == 1).then(|| answer.get(size_of::<PollCqAnswer>()).expect("a completion"))
        })
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        (0..len / 8).flat_map(|word| self.memory.read::<[u8; 8]>(at + word * 8)).collect()
    }

    /// A target that is connected with a peer: its handle and number.
    fn target(&self, asker: &Asker) -> (u32, u32) {
        let body = CreateQp { response: 1, pd_handle: self.xrcd, qp_type: kind::XRC_TGT, ..CreateQp::default() };
        let made: CreateQpAnswer = self.ask(number::CREATE_QP, &body, &[], size_of::<QpOut>(), None);
        let (dgid, sgid_index) = gid(&asker.engine);
        let dest = abi::qp::Dest { dgid, sgid_index, is_global: 1, port_num: 1, hop_limit: 1, ..Default::default() };
        let whole = ModifyQp {
            qp_handle: made.qp_handle,
            port_num: 1,
            qp_access_flags: 0xe,
            dest,
            path_mtu: asker.engine.query_port(1).expect("a port").active_mtu,
            dest_qp_num: asker.initiator.qpn(),
            rq_psn: 7,
            sq_psn: 7,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 14,
            ..ModifyQp::default()
        };
        let rtr =
            attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        for (qp_state, mask) in [
            (state::INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS),
            (state::RTR, rtr),
            (state::RTS, attr::TIMEOUT | attr::SQ_PSN),
        ] {
            self.tell(number::MODIFY_QP, &ModifyQp { qp_state, attr_mask: attr::STATE | mask, ..whole });
        }
        connect(&asker.initiator, &asker.engine, gid(&asker.engine).0, made.qpn, 7);
        (made.qp_handle, made.qpn)
    }

    fn destroy(&self, qp_handle: u32) {
        let body = DestroyQp { response: 1, qp_handle, reserved: 0 };
        let _: DestroyQpAnswer = self.ask(number::DESTROY_QP, &body, &[], 0, None);
    }
}

/// A SEND, a WRITE, a READ and an atomic for the client's queue and memory.
fn serves(proxied: &Proxied, asker: &Asker, qpn: u32) {
    proxied.post(5, 0, 8000);
    asker.memory.pattern(0, 8000, 9);
    assert_eq!(asker.outcome(proxied.srqn, &SendWr { sges: &asker.sge(0, 8000), ..SendWr::default() }), 0);
    let wc = proxied.next();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, wc.qp_num), (5, 0, 8000, qpn));
    assert_eq!(proxied.bytes(0, 8000), asker.memory.get(0, 8000));
    let at =
        |number, at: u64| SendWr { opcode: number, remote_addr: BASE + at, rkey: proxied.key, ..SendWr::default() };
    let write = SendWr { sges: &asker.sge(0, 4000), ..at(opcode::RDMA_WRITE, 16_000) };
    assert_eq!(asker.outcome(proxied.srqn, &write), 0);
    let read = SendWr { sges: &asker.sge(20_000, 4000), ..at(opcode::RDMA_READ, 16_000) };
    assert_eq!(asker.outcome(proxied.srqn, &read), 0);
    assert_eq!(asker.memory.get(20_000, 4000), asker.memory.get(0, 4000));
    let before = u64::from_le_bytes(proxied.memory.read(32_000));
    let word = asker.sge(32_000, 8);
    let add = SendWr { sges: &word, compare_add: 3, ..at(opcode::ATOMIC_FETCH_AND_ADD, 32_000) };
    assert_eq!(asker.outcome(proxied.srqn, &add), 0);
    assert_eq!(u64::from_le_bytes(proxied.memory.read(32_000)), before + 3);
}

fn domain(engine: &Arc<Engine>, file: &std::fs::File) -> Arc<engine::Xrcd> {
    engine.open_xrcd(Some(file.as_fd()), O_CREAT).expect("the domain")
}

#[test]
fn xrc_shared_a_client_without_an_engine_has_targets_and_queues() {
    let fabric = Fabric::start();
    let file = tempfile::tempfile().expect("a file");
    let proxied = Proxied::new(&fabric, &file);
    let asker = Asker::new(fabric.engine());
    let (handle, qpn) = proxied.target(&asker);
    serves(&proxied, &asker, qpn);
    // The target also serves the queue of a process that runs an engine.
    let other = fabric.engine();
    let queue = Queue::new(&other, &domain(&other, &file), 16);
    queue.post(1, 0, 100);
    assert_eq!(asker.outcome(queue.number(), &SendWr { sges: &asker.sge(0, 100), ..SendWr::default() }), 0);
    assert_eq!(next(&queue.cq).qp_num, qpn);
    proxied.destroy(handle);
    asker.post(proxied.srqn, &SendWr::default());
    assert_ne!(next(&asker.cq).status, 0, "the target is gone");
}

#[test]
fn xrc_shared_a_queue_of_a_client_without_an_engine_is_reached() {
    let fabric = Fabric::start();
    let file = tempfile::tempfile().expect("a file");
    let proxied = Proxied::new(&fabric, &file);
    let server = fabric.engine();
    let xrcd = domain(&server, &file);
    let target = server.create_target(&xrcd, 1).expect("a target");
    let asker = Asker::new(fabric.engine());
    asker.connect(&server, target.qp(), 7);
    serves(&proxied, &asker, target.qp().qpn());
}
