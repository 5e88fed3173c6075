//! Clients of the proxy engine, beyond the plain exchange: shared receive queues, CQs that change
//! their size, a death in the middle, XRC, a client in the agent's own process, and lists with
//! wrong lengths.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::common::{Answer, Client, TestAgent};
use abi::Errno;
use abi::command::{legacy, number};
use abi::cq::{PollCq, PollCqAnswer, ResizeCq, ResizeCqAnswer, Wc, status};
use abi::device::{QueryGid, QueryGidAnswer};
use abi::layout::Record;
use abi::mr::{RegMr, RegMrAnswer, access};
use abi::post::{Post, Rdma, RecvWr, SendWr, Sge, XrcSend, opcode, send_flags};
use abi::qp::{CreateQp, CreateQpAnswer, Dest, ModifyQp, attr, kind, state};
use abi::queue::MrIn;
use abi::srq::{CreateSrq, CreateSrqAnswer, ModifySrq, QuerySrq, QuerySrqAnswer, attr as srq_attr};
use abi::xrc::{CreateXsrq, OpenXrcd, OpenXrcdAnswer};
use shm::region::Region;

const BASE: u64 = 0x10_0000;
const LEN: usize = 1 << 16;

struct Side {
    client: Client,
    pd: u32,
    gid: [u8; 16],
    memory: Region,
    lkey: u32,
    cq: u32,
    srq: u32,
    qp: CreateQpAnswer,
}

impl Side {
    fn new(agent: &TestAgent) -> Self {
        let mut client = agent.client();
        let query = QueryGid { response: 1, port_num: 1, ..Default::default() };
        let gid = client.call(&legacy(number::QUERY_GID, &query, &[], 16)).get::<QueryGidAnswer>(0).gid;
        let pd = client.alloc_pd();
        let (memory, lkey) = memory(&mut client, pd);
        let (cq, ..) = client.create_cq(8);
        let body = CreateSrq { response: 1, pd_handle: pd, max_wr: 8, max_sge: 1, ..CreateSrq::default() };
        let srq = client.call(&legacy(number::CREATE_SRQ, &body, &[], 16)).get::<CreateSrqAnswer>(0).srq_handle;
        let body = CreateQp {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            srq_handle: srq,
            is_srq: 1,
            max_send_wr: 8,
            max_send_sge: 1,
            qp_type: kind::RC,
            ..CreateQp::default()
        };
        let mut side = Self { client, pd, gid, memory, lkey, cq, srq, qp: CreateQpAnswer::default() };
        side.qp = side.make_qp(body);
        side
    }

    fn make_qp(&mut self, body: CreateQp) -> CreateQpAnswer {
        let body = CreateQp { response: 1, ..body };
        self.client.call(&legacy(number::CREATE_QP, &body, &[], 32)).get(0)
    }

    fn modify(&mut self, mask: u32, body: ModifyQp) {
        let body = ModifyQp { qp_handle: self.qp.qp_handle, attr_mask: attr::STATE | mask, ..body };
        let answer = self.client.call(&legacy(number::MODIFY_QP, &body, &[], 0));
        assert_eq!(answer.status, 0, "{}", answer.reason());
    }

    fn join(&mut self, gid: [u8; 16], qpn: u32) {
        let dest = Dest { dgid: gid, is_global: 1, port_num: 1, ..Dest::default() };
        let init = attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        self.modify(init, ModifyQp { qp_state: state::INIT, port_num: 1, ..ModifyQp::default() });
        let path =
            attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        let rtr = ModifyQp {
            qp_state: state::RTR,
            path_mtu: 3,
            dest_qp_num: qpn,
            dest,
            min_rnr_timer: 1,
            ..ModifyQp::default()
        };
        self.modify(path, rtr);
        let sending = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC;
        let rts = ModifyQp { qp_state: state::RTS, timeout: 10, retry_cnt: 1, rnr_retry: 7, ..ModifyQp::default() };
        self.modify(sending, rts);
    }

    fn sge(&self) -> Sge {
        Sge { addr: BASE, length: 100, lkey: self.lkey }
    }

    fn post_shared(&mut self, wr_id: u64) -> Answer {
        let wr = RecvWr { wr_id, num_sge: 1, reserved: 0 };
        let post = Post { response: 1, handle: self.srq, wr_count: 1, sge_count: 1, wqe_size: 16 };
        let tail = [wr.bytes(), self.sge().bytes()].concat();
        self.client.call(&legacy(number::POST_SRQ_RECV, &post, &tail, 4))
    }

    fn send(&mut self, wr_id: u64, flags: u32) -> Answer {
        let wr = SendWr { wr_id, num_sge: 1, opcode: opcode::SEND, send_flags: flags, ..SendWr::default() };
        let post = Post { response: 1, handle: self.qp.qp_handle, wr_count: 1, sge_count: 1, wqe_size: 56 };
        let tail = [wr.bytes(), self.sge().bytes()].concat();
        self.client.call(&legacy(number::POST_SEND, &post, &tail, 4))
    }

    fn completion(&mut self) -> Wc {
        let body = PollCq { response: 1, cq_handle: self.cq, ne: 1 };
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let answer = self.client.call(&legacy(number::POLL_CQ, &body, &[], 8 + 48));
            if answer.get::<PollCqAnswer>(0).count == 1 {
                return answer.get(8);
            }
            assert!(Instant::now() < end, "no completion");
        }
    }
}

fn memory(client: &mut Client, pd: u32) -> (Region, u32) {
    let (region, fd) = Region::create("memory", LEN).expect("memory");
    let body = RegMr {
        response: 1,
        start: BASE,
        length: LEN as u64,
        hca_va: BASE,
        pd_handle: pd,
        access_flags: access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ,
    };
    let tail = MrIn { rev: 1, flags: 1, ..MrIn::default() };
    let answer = client.call_with(&legacy(number::REG_MR, &body, tail.bytes(), 12), &[fd.as_fd()]);
    (region, answer.get::<RegMrAnswer>(0).lkey)
}

fn pair(agent: &TestAgent) -> (Side, Side) {
    let (mut one, mut two) = (Side::new(agent), Side::new(agent));
    one.join(two.gid, two.qp.qpn);
    two.join(one.gid, one.qp.qpn);
    (one, two)
}

#[test]
fn a_shared_receive_queue_and_a_cq_that_grows() {
    let agent = TestAgent::start();
    let (mut one, mut two) = pair(&agent);
    for wr_id in 1..=3 {
        assert_eq!(two.post_shared(wr_id).status, 0);
    }
    let limit = ModifySrq { srq_handle: two.srq, attr_mask: srq_attr::LIMIT, max_wr: 0, srq_limit: 2 };
    assert_eq!(two.client.call(&legacy(number::MODIFY_SRQ, &limit, &[], 0)).status, 0);
    let query = QuerySrq { response: 1, srq_handle: two.srq, reserved: 0 };
    let known: QuerySrqAnswer = two.client.call(&legacy(number::QUERY_SRQ, &query, &[], 16)).get(0);
    assert_eq!((known.max_wr, known.srq_limit), (8, 2));

    one.memory.write(0, &0x5a5a_0001_u32);
    assert_eq!(one.send(9, send_flags::SIGNALED).status, 0);
    // The completion waits in the CQ while the CQ is resized.
    assert_eq!(one.completion().status, status::SUCCESS);
    let resize = ResizeCq { response: 1, cq_handle: two.cq, cqe: 500 };
    let answer = two.client.call(&legacy(number::RESIZE_CQ, &resize, &[], 8));
    assert_eq!(answer.get::<ResizeCqAnswer>(0).cqe, 512);
    let received = two.completion();
    assert_eq!((received.wr_id, received.status, received.byte_len), (1, status::SUCCESS, 100));
    assert_eq!(two.memory.read::<u32>(0), 0x5a5a_0001);
    assert_eq!(one.send(10, send_flags::SIGNALED).status, 0);
    assert_eq!(two.completion().wr_id, 2);
    let known: QuerySrqAnswer = two.client.call(&legacy(number::QUERY_SRQ, &query, &[], 16)).get(0);
    assert_eq!(known.srq_limit, 0, "one is left, the limit was reached and is off");
}

#[test]
fn the_other_side_dies() {
    let agent = TestAgent::start();
    let (mut one, two) = pair(&agent);
    drop(two);
    assert_eq!(one.send(1, send_flags::SIGNALED).status, 0);
    assert_eq!(one.completion().status, status::RETRY_EXC_ERR);
    drop(one);
    agent.eventually("status", |status| status["contexts"] == 0 && status["lanes"] == 0 && status["objects"] == 0);
    let (mut one, mut two) = pair(&agent);
    assert_eq!(two.post_shared(1).status, 0);
    assert_eq!(one.send(2, send_flags::SIGNALED).status, 0);
    assert_eq!(two.completion().status, status::SUCCESS);
}

#[test]
fn inline_data_and_lists_that_lie_are_refused_with_the_number_of_the_first_bad_one() {
    let agent = TestAgent::start();
    let (mut one, _two) = pair(&agent);
    let refused = one.send(1, send_flags::INLINE);
    assert_eq!((refused.status, &refused.bytes[..4]), (Errno::EINVAL.to_status(), &[1, 0, 0, 0][..]));
    let handle = one.qp.qp_handle;
    let lies = [
        Post { response: 1, handle, wr_count: u32::MAX, sge_count: 1, wqe_size: 56 },
        Post { response: 1, handle, wr_count: 1, sge_count: u32::MAX, wqe_size: 56 },
        Post { response: 1, handle, wr_count: u32::MAX, sge_count: u32::MAX, wqe_size: u32::MAX },
        Post { response: 1, handle, wr_count: 1, sge_count: 0, wqe_size: 55 },
        Post { response: 1, handle, wr_count: 1, sge_count: 0, wqe_size: 60 },
        Post { response: 1, handle: 5, wr_count: 0, sge_count: 0, wqe_size: 56 },
    ];
    for (index, post) in lies.into_iter().enumerate() {
        let answer = one.client.call(&legacy(number::POST_SEND, &post, &[0; 56], 4));
        let errno = if post.handle == handle { Errno::EINVAL } else { Errno::ENOENT };
        assert_eq!((answer.status, &answer.bytes[..4]), (errno.to_status(), &[1, 0, 0, 0][..]), "lie {index}");
    }
    let more_sges = SendWr { num_sge: 2, opcode: opcode::SEND, ..SendWr::default() };
    let post = Post { response: 1, handle, wr_count: 1, sge_count: 1, wqe_size: 56 };
    let tail = [more_sges.bytes(), one.sge().bytes()].concat();
    assert_eq!(one.client.call(&legacy(number::POST_SEND, &post, &tail, 4)).status, -22);
    let body = PollCq { response: 1, cq_handle: one.cq, ne: 1000 };
    let answer = one.client.call(&legacy(number::POLL_CQ, &body, &[], 56));
    assert_eq!(answer.status, Errno::ENOSPC.to_status());
}

/// An XRC initiator of one client, and a target and an SRQ of its domain at another client.
struct Xrc {
    one: Side,
    two: Side,
    srqn: u32,
}

impl Xrc {
    fn new(agent: &TestAgent) -> Self {
        let (mut one, mut two) = (Side::new(agent), Side::new(agent));
        let open = OpenXrcd { response: 1, fd: -1, oflags: 0 };
        let xrcd = two.client.call(&legacy(number::OPEN_XRCD, &open, &[], 4)).get::<OpenXrcdAnswer>(0).xrcd_handle;
        let body = CreateXsrq {
            response: 1,
            srq_type: 1,
            pd_handle: two.pd,
            max_wr: 8,
            max_sge: 1,
            xrcd_handle: xrcd,
            cq_handle: two.cq,
            ..CreateXsrq::default()
        };
        let srq: CreateSrqAnswer = two.client.call(&legacy(number::CREATE_XSRQ, &body, &[], 16)).get(0);
        two.srq = srq.srq_handle;
        two.qp = two.make_qp(CreateQp { pd_handle: xrcd, qp_type: kind::XRC_TGT, ..CreateQp::default() });
        let sending = CreateQp { max_send_wr: 8, max_send_sge: 1, qp_type: kind::XRC_INI, ..CreateQp::default() };
        one.qp = one.make_qp(CreateQp { pd_handle: one.pd, send_cq_handle: one.cq, ..sending });
        Self { one, two, srqn: srq.srqn }
    }

    fn join(&mut self) {
        let ends = [(self.one.gid, self.one.qp.qpn), (self.two.gid, self.two.qp.qpn)];
        for (side, peer, asks) in [(&mut self.one, ends[1], true), (&mut self.two, ends[0], false)] {
            let init = attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
            let rights = access::REMOTE_WRITE | access::REMOTE_READ;
            let body = ModifyQp { qp_state: state::INIT, port_num: 1, qp_access_flags: rights, ..ModifyQp::default() };
            side.modify(init, body);
            let dest = Dest { dgid: peer.0, is_global: 1, port_num: 1, ..Dest::default() };
            let path = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
            let answering = if asks { 0 } else { attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER };
            let rtr = ModifyQp { qp_state: state::RTR, path_mtu: 3, dest_qp_num: peer.1, dest, ..ModifyQp::default() };
            side.modify(path | answering, ModifyQp { max_dest_rd_atomic: 1, min_rnr_timer: 1, ..rtr });
            let asking = if asks { attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC } else { 0 };
            let rts = ModifyQp { qp_state: state::RTS, timeout: 10, retry_cnt: 1, rnr_retry: 7, ..ModifyQp::default() };
            side.modify(attr::TIMEOUT | attr::SQ_PSN | asking, ModifyQp { max_rd_atomic: 1, ..rts });
        }
    }

    /// Posts requests, each with its 100 bytes and, if its record has room, the SRQ number.
    fn post(&mut self, wqe_size: u32, requests: &[SendWr], srqn: u32) -> Answer {
        let count = requests.len() as u32;
        let handle = self.one.qp.qp_handle;
        let post = Post { response: 1, handle, wr_count: count, sge_count: count, wqe_size };
        let mut tail = Vec::new();
        for request in requests {
            let record = [request.bytes(), XrcSend { remote_srqn: srqn, reserved: 0 }.bytes(), &[0; 8]].concat();
            tail.extend(&record[..wqe_size as usize]);
        }
        requests.iter().for_each(|_| tail.extend(self.one.sge().bytes()));
        self.one.client.call(&legacy(number::POST_SEND, &post, &tail, 4))
    }
}

fn request(wr_id: u64, opcode: u32) -> SendWr {
    SendWr { wr_id, num_sge: 1, opcode, send_flags: send_flags::SIGNALED, ..SendWr::default() }
}

#[test]
fn an_xrc_initiator_names_the_queue_behind_each_request() {
    let agent = TestAgent::start();
    let mut xrc = Xrc::new(&agent);
    xrc.join();
    assert_eq!(xrc.two.post_shared(1).status, 0);
    xrc.one.memory.write(0, &0x5a5a_0002_u32);
    let (srqn, rkey) = (xrc.srqn, xrc.two.lkey);
    // A record with an additional tail, and two requests in one command.
    let place = Rdma { remote_addr: BASE + 4096, rkey, ..Rdma::default() };
    let write = SendWr { target: place.into(), ..request(8, opcode::RDMA_WRITE) };
    let answer = xrc.post(72, &[write, request(9, opcode::SEND)], srqn);
    assert_eq!(answer.status, 0, "{}", answer.reason());
    for wr_id in [8, 9] {
        let sent = xrc.one.completion();
        assert_eq!((sent.wr_id, sent.status), (wr_id, status::SUCCESS));
    }
    let received = xrc.two.completion();
    assert_eq!((received.wr_id, received.status, received.byte_len), (1, status::SUCCESS, 100));
    assert_eq!((xrc.two.memory.read::<u32>(0), xrc.two.memory.read::<u32>(4096)), (0x5a5a_0002, 0x5a5a_0002));
    // The data that returns belongs to a READ.
    xrc.two.memory.write(4096, &0x5a5a_0003_u32);
    let read = SendWr { target: place.into(), ..request(10, opcode::RDMA_READ) };
    assert_eq!(xrc.post(64, &[read], srqn).status, 0);
    assert_eq!(xrc.one.completion().status, status::SUCCESS);
    assert_eq!(xrc.one.memory.read::<u32>(0), 0x5a5a_0003);
}

#[test]
fn an_xrc_initiator_s_requests_have_to_name_a_queue_and_one_that_there_is() {
    let agent = TestAgent::start();
    let mut xrc = Xrc::new(&agent);
    xrc.join();
    for wqe_size in [56, 60] {
        let answer = xrc.post(wqe_size, &[request(1, opcode::SEND)], xrc.srqn);
        assert_eq!((answer.status, &answer.bytes[..4]), (Errno::EINVAL.to_status(), &[1, 0, 0, 0][..]));
        assert!(answer.reason().contains("do not name the SRQ"), "{}", answer.reason());
    }
    assert_eq!(xrc.post(64, &[request(2, opcode::SEND)], xrc.srqn + 1).status, 0);
    let sent = xrc.one.completion();
    assert_eq!((sent.wr_id, sent.status), (2, status::REM_INV_RD_REQ_ERR));
}

#[test]
fn a_client_in_the_process_has_a_proxy_engine_too() {
    let handle = agent::Agent::start(&agent::Config::default(), None).expect("an agent");
    let control = handle.connect(0, 0).expect("open");
    let done = |request: &[u8]| control.command(request, &[]).expect("carried out").bytes;
    done(&legacy(number::GET_CONTEXT, &abi::device::GetContext { response: 1 }, &[], 8));
    let create = abi::cq::CreateCq { response: 1, cqe: 4, comp_channel: -1, ..Default::default() };
    let cq_handle =
        u32::from_le_bytes(done(&legacy(number::CREATE_CQ, &create, &[], 8))[..4].try_into().expect("four"));
    let poll = legacy(number::POLL_CQ, &PollCq { response: 1, cq_handle, ne: 1 }, &[], 56);
    assert_eq!(done(&poll), [0; 8]);
    assert_eq!(done(&legacy(number::RESIZE_CQ, &ResizeCq { response: 1, cq_handle, cqe: 60 }, &[], 8))[0], 64);
    assert_eq!(done(&poll), [0; 8]);
}

#[test]
fn a_posting_client_that_is_killed_leaves_no_thread_and_no_object() {
    let agent = TestAgent::start();

    let slow = || {
        std::fs::read_dir("/proc/self/task")
            .expect("there")
            .flatten()
            .filter(|task| {
                std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("softhca-proxy"))
            })
            .count()
    };

    for _ in 0..5 {
        let (mut one, mut two) = pair(&agent);
        two.post_shared(1);
        one.send(1, 0);
        // Bytes are in flight, and so is a command whose reply will not be read.
        let body = PollCq { response: 1, cq_handle: two.cq, ne: 1 };
        two.client.send(&legacy(number::POLL_CQ, &body, &[], 56), &[]);
    }
    agent.eventually("status", |status| status["contexts"] == 0 && status["objects"] == 0);
    let end = Instant::now() + Duration::from_secs(60);
    // Other tests of this file run at the same time and have a few of their own.
    while slow() > 10 {
        assert!(Instant::now() < end, "{} threads of proxy engines are left", slow());
        std::thread::sleep(Duration::from_millis(5));
    }
}
