//! One end of a connection, with what it has asked for and what must come of it: the oracle. Principal type: [`End`].

use std::collections::VecDeque;
use std::sync::Arc;

use abi::ah::AhAttr;
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Ah, Caps, Hold, InitiatorSpec, Mr, Mw, Qp, QpSpec, Service};
use fabric::simulation::Memory;

use super::plan::{Kind, Link};
use super::program::{Program, RIGHTS, SLOT, Slots};

/// Requests under way at once.
pub(crate) const DEPTH: usize = 8;
/// Bytes that the peer may write to and read.
pub(crate) const AREA: usize = 16 * 1024;
/// Where the part begins that is for anything; before it are words.
pub(crate) const OPEN: usize = 256;
/// Bytes that go inline.
pub(crate) const INLINE: usize = 64;
/// The Q_Key of datagrams.
pub(crate) const QKEY: u32 = 0x1111;

/// What must hold when a request has completed.
pub(crate) enum Check {
    Nothing,
    /// What was read.
    Landed(Vec<u8>),
    /// The window has this key.
    Bound(u32),
    /// The window has none.
    Closed,
}

/// A request that is under way.
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) signaled: bool,
    /// What its completion says that it was, and how long; None where the length does not count.
    pub(crate) opcode: u32,
    pub(crate) byte_len: Option<u32>,
    pub(crate) check: Check,
    /// Bytes of the peer's area that it reads.
    pub(crate) reads: Option<(usize, usize)>,
    pub(crate) by_window: bool,
}

/// What the peer must receive.
pub(crate) struct Message {
    pub(crate) number: u64,
    /// As the completion says it.
    pub(crate) opcode: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) len: usize,
    /// What is in the buffer; None where nothing is.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// What a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Closed,
    Opening,
    Open(u32),
    /// Not to be used any more: to be closed when nobody does.
    Retired(u32),
    Closing,
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) program: usize,
    /// The other end, by its number.
    pub(crate) peer: usize,
    pub(crate) kind: Kind,
    pub(crate) qp: Arc<Qp>,
    _hold: Option<Arc<Hold>>,
    pub(crate) ah: Option<Arc<Ah>>,
    pub(crate) xrc_srq: u32,
    /// It receives from its program's shared queue (XRC: the domain's) if it has none of its own.
    pub(crate) slots: Option<Slots>,
    /// What the peer reaches, then what is sent from, then what answers go to.
    pub(crate) memory: Memory,
    pub(crate) mr: Arc<Mr>,
    pub(crate) iova: u64,
    pub(crate) window: Option<(Arc<Mw>, Window)>,

    /// Requests so far, and how many there are to be.
    pub(crate) posted: u32,
    pub(crate) total: u32,
    pub(crate) under_way: VecDeque<Request>,
    pub(crate) messages: VecDeque<Message>,
    /// What the peer's area must be when everything has been done.
    pub(crate) model: Vec<u8>,
    /// UC: where it has written what, and whether it is known to have come; unreliable writes never overlap.
    pub(crate) pieces: Vec<Piece>,
    /// Harmed packets of the connection at the last progress.
    pub(crate) harm: u64,
    /// The connection has failed, as it should have.
    pub(crate) failed: bool,
    /// A receive was flushed while no failure was known yet.
    pub(crate) flushed: bool,
}

/// Something that an unreliable connection wrote.
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) at: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) came: bool,
}

/// A pattern that no two requests share.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl End {
    pub(crate) fn new(number: usize, program: usize, owner: &Program, link: &Link, asks: bool, total: u32) -> Self {
        let caps = Caps {
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            max_send_sge: 3,
            max_recv_sge: 2,
            max_inline_data: INLINE as u32,
        };
        let (engine, mut hold) = (&owner.engine, None);
        let service = match link.kind {
            Kind::Uc => Service::Uc,
            Kind::Ud => Service::Ud,
            Kind::Rc | Kind::Xrc => Service::Rc,
        };
        let qp = match (link.kind, asks) {
            (Kind::Xrc, true) => {
                let spec = InitiatorSpec { send_cq: &owner.send_cq, caps, sq_sig_all: false, cookie: 0 };
                engine.create_initiator(&owner.pd, &spec).expect("an initiator")
            }
            (Kind::Xrc, false) => {
                let target = engine.create_target(&owner.xrcd, 0).expect("a target");
                let qp = Arc::clone(target.qp());
                hold = Some(target);
                qp
            }
            _ => {
                let srq = link.shared.then_some(&owner.srq);
                let (send_cq, recv_cq) = (&owner.send_cq, &owner.recv_cq);
                let spec = QpSpec { service, send_cq, recv_cq, srq, caps, sq_sig_all: false, cookie: 0 };
                engine.create_qp(&owner.pd, &spec).expect("a QP")
            }
        };
        let iova = 0x1_0000_0000 * (number as u64 + 1);
        let memory = Memory::new(AREA + 2 * DEPTH * SLOT);
        memory.put(0, &pattern(iova, AREA));
        let mr = owner.pd.reg_mr(memory.address(), memory.len() as u64, iova, RIGHTS).expect("an MR");
        let slots = (!link.shared).then(|| Slots::new(&owner.pd, DEPTH, iova + 0x1000_0000, 0));
        let window = (link.kind == Kind::Rc).then(|| (owner.pd.alloc_mw(2).expect("a window"), Window::Closed));
        Self {
            program,
            peer: number ^ 1,
            kind: link.kind,
            qp,
            _hold: hold,
            ah: None,
            xrc_srq: 0,
            slots,
            memory,
            mr,
            iova,
            window,
            posted: 0,
            total: if link.kind == Kind::Xrc && !asks { 0 } else { total },
            under_way: VecDeque::new(),
            messages: VecDeque::new(),
            model: Vec::new(),
            pieces: Vec::new(),
            harm: 0,
            failed: false,
            flushed: false,
        }
    }

    /// To RTS.
    pub(crate) fn connect(&mut self, owner: &Program, link: &Link, side: usize, (gid, qpn): ([u8; 16], u32)) {
        let dest = Dest { dgid: gid, sgid_index: 1, is_global: 1, port_num: 1, hop_limit: 64, ..Dest::default() };
        let whole = ModifyQp {
            port_num: 1,
            qp_access_flags: 0xe | 0x100,
            qkey: QKEY,
            dest,
            path_mtu: link.mtu,
            dest_qp_num: qpn,
            rq_psn: link.psns[1 - side],
            sq_psn: link.psns[side],
            max_dest_rd_atomic: link.depth,
            max_rd_atomic: link.depth,
            min_rnr_timer: link.rnr_timer,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            ..ModifyQp::default()
        };
        let way = attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let (init, rtr, rts) = match self.kind {
            Kind::Rc | Kind::Xrc => (
                attr::ACCESS_FLAGS,
                way | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER,
                attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC,
            ),
            Kind::Uc => (attr::ACCESS_FLAGS, way, attr::SQ_PSN),
            Kind::Ud => (attr::QKEY, 0, attr::SQ_PSN),
        };
        let init = init | attr::PKEY_INDEX | attr::PORT;
        for (qp_state, mask) in [(state::INIT, init), (state::RTR, rtr), (state::RTS, rts)] {
            self.qp.modify(&ModifyQp { qp_state, attr_mask: attr::STATE | mask, ..whole }).expect("the next state");
        }
        if self.kind == Kind::Ud {
            let vector =
                AhAttr { dgid: gid, sgid_index: 1, is_global: 1, port_num: 1, hop_limit: 64, ..AhAttr::default() };
            self.ah = Some(owner.pd.create_ah(&vector).expect("an address handle"));
        }
    }

    /// Where request `number` is sent from.
    pub(crate) fn source(number: u64) -> usize {
        AREA + number as usize % DEPTH * SLOT
    }

    /// Where its answer goes.
    pub(crate) fn landing(number: u64) -> usize {
        Self::source(number) + DEPTH * SLOT
    }

    /// Whether it has nothing left to do.
    pub(crate) fn is_done(&self) -> bool {
        // Whoever gives up may end with requests that are not signaled, and of which nothing is heard if they succeed.
        let over = self.failed && self.under_way.iter().all(|request| !request.signaled);
        over || (self.posted == self.total && self.under_way.is_empty())
    }

    /// Whether everything that it has sent is where it should be by now, or never comes.
    pub(crate) fn is_delivered(&self) -> bool {
        self.failed || self.messages.is_empty() || matches!(self.kind, Kind::Uc | Kind::Ud)
    }
}
