//! A client without the engine library: it has a QP and lanes like any client, and the test decides
//! what it does with them. The principal types are [`Stranger`] and [`StrangersLane`].

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::command::{extended, legacy, number};
use abi::cq::{CreateCq, CreateCqAnswer};
use abi::device::{GetContext, GetContextAnswer};
use abi::layout::Record;
use abi::mcast::AttachMcast;
use abi::pd::{AllocPd, AllocPdAnswer};
use abi::private::{EngineHello, EngineHelloAnswer, LaneOpen, LaneOut};
use abi::qp::{CreateQp, CreateQpAnswer, kind};
use engine::{Answer, Control, SocketControl};
use rustix::event::EventfdFlags;
use shm::{LANE_LEN, Notifier, Region, Side};

use super::Fabric;

pub(crate) struct Stranger {
    control: SocketControl,
    /// The number of a QP that it owns.
    pub(crate) qpn: u32,
    pd: u32,
    cq: u32,
    _held: Vec<OwnedFd>,
}

/// Its end of a lane.
pub(crate) struct StrangersLane {
    pub(crate) region: Arc<Region>,
    pub(crate) side: Side,
    /// Wakes the other end.
    pub(crate) peer: Notifier,
}

impl Stranger {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        Self::open(fabric, true)
    }

    /// A stranger with a QP and without an engine, so no lane can be opened to it.
    pub(crate) fn without_engine(fabric: &Fabric) -> Self {
        Self::open(fabric, false)
    }

    fn open(fabric: &Fabric, has_engine: bool) -> Self {
        let control = SocketControl::open(&fabric.node(0), 0).expect("an agent");
        let call = |request: Vec<u8>| control.call(&request, &[]).expect("an answer");
        let mut held =
            call(legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], size_of::<GetContextAnswer>() + 64)).fds;

        if has_engine {
            let (_, wake_word) = Region::create("wake-word", 4096).expect("a wake word");
            let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
            let hello = EngineHello { pid: 1, flags: 0 };
            let hello = extended(number::ENGINE_HELLO, &hello, size_of::<EngineHelloAnswer>(), 0);
            held.extend(control.call(&hello, &[wake_word.as_fd(), kick.as_fd()]).expect("an engine's number").fds);
            held.push(kick);
        }
        let pd: AllocPdAnswer = get(&call(legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12)));
        let cq = CreateCq { response: 1, cqe: 8, comp_channel: -1, ..CreateCq::default() };
        let cq: CreateCqAnswer = get(&call(legacy(number::CREATE_CQ, &cq, &[], 8 + 56)));
        let (pd, cq) = (pd.pd_handle, cq.cq_handle);
        let mut stranger = Self { control, qpn: 0, pd, cq, _held: held };
        stranger.qpn = stranger.create_qp(kind::RC).qpn;
        stranger
    }

    fn create_qp(&self, kind: u8) -> CreateQpAnswer {
        let qp = CreateQp {
            response: 1,
            pd_handle: self.pd,
            send_cq_handle: self.cq,
            recv_cq_handle: self.cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            qp_type: kind,
            ..CreateQp::default()
        };
        let request = legacy(number::CREATE_QP, &qp, &[], 32 + 72);
        get(&self.control.call(&request, &[]).expect("an answer"))
    }

    /// Attaches a datagram QP to a group.
    pub(crate) fn join(&self, gid: [u8; 16]) {
        let body = AttachMcast { gid, qp_handle: self.create_qp(kind::UD).qp_handle, mlid: 0, reserved: 0 };
        self.control.call(&legacy(number::ATTACH_MCAST, &body, &[], 0), &[]).expect("attached");
    }

    /// The stranger's end of the lane to `engine`.
    pub(crate) fn lane(&self, engine: u32, lane_index: u32) -> StrangersLane {
        let request = extended(number::LANE_OPEN, &LaneOpen { engine, lane_index }, size_of::<LaneOut>(), 0);
        let mut answer = self.control.call(&request, &[]).expect("a lane");
        let out: LaneOut = get(&answer);
        let region = Region::map(answer.fds[0].as_fd(), LANE_LEN).expect("its memory");
        let side = if out.side == 0 { Side::A } else { Side::B };
        StrangersLane { region: Arc::new(region), side, peer: Notifier::from(answer.fds.remove(2)) }
    }
}

fn get<T: Record>(answer: &Answer) -> T {
    T::read(&answer.bytes).expect("a whole record")
}

/// Pseudorandom bytes for filling memory: xorshift.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn fill(&mut self, region: &Region) {
        for at in (0..region.len()).step_by(8) {
            region.write(at, &self.next());
        }
    }
}
