//! One end of a connection, with its requests and their expected results: the oracle. The principal
//! type is [`End`].

use std::collections::VecDeque;
use std::sync::Arc;

use abi::ah::AhAttr;
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Ah, Caps, Hold, InitiatorSpec, Mr, Mw, Qp, QpSpec, Service};
use fabric::simulation::Memory;

use super::plan::{Kind, Link};
use super::program::{Program, RIGHTS, SLOT, Slots};

/// Outstanding requests.
pub(crate) const DEPTH: usize = 8;
/// Bytes that the peer may write and read.
pub(crate) const AREA: usize = 16 * 1024;
/// Where the part for any data begins. Before it are words for atomics.
pub(crate) const OPEN: usize = 256;
/// The most bytes of inline data.
pub(crate) const INLINE: usize = 64;
/// The Q_Key of datagrams.
pub(crate) const QKEY: u32 = 0x1111;

/// The condition that must hold when a request has completed.
pub(crate) enum Check {
    Nothing,
    /// The data of a READ or atomic is in the landing area.
    Landed(Vec<u8>),
    /// The window has this key.
    Bound(u32),
    /// The window has no key.
    Closed,
}

/// An outstanding request.
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) signaled: bool,
    /// Opcode and length in the completion. `None`: the length does not matter.
    pub(crate) opcode: u32,
    pub(crate) byte_len: Option<u32>,
    pub(crate) check: Check,
    /// The range of the peer's area that the request reads.
    pub(crate) reads: Option<(usize, usize)>,
    pub(crate) by_window: bool,
}

/// A message that the peer must receive.
pub(crate) struct Message {
    pub(crate) number: u64,
    /// The opcode in the completion.
    pub(crate) opcode: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) len: usize,
    /// The content of the buffer. `None`: the message leaves the buffer unchanged.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Closed,
    Opening,
    Open(u32),
    /// The window gets no new requests, and is closed when no request uses it.
    Retired(u32),
    Closing,
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) program: usize,
    /// The number of the other end.
    pub(crate) peer: usize,
    pub(crate) kind: Kind,
    pub(crate) qp: Arc<Qp>,
    _hold: Option<Arc<Hold>>,
    pub(crate) ah: Option<Arc<Ah>>,
    pub(crate) xrc_srq: u32,
    /// Own receive buffers. `None`: the end receives from its program's shared queue (XRC: from the
    /// domain's).
    pub(crate) slots: Option<Slots>,
    /// Three parts: the area for the peer, the sources of requests, and the landing areas of
    /// responses.
    pub(crate) memory: Memory,
    pub(crate) mr: Arc<Mr>,
    pub(crate) iova: u64,
    pub(crate) window: Option<(Arc<Mw>, Window)>,

    /// Requests posted so far, and the planned number.
    pub(crate) posted: u32,
    pub(crate) total: u32,
    pub(crate) under_way: VecDeque<Request>,
    pub(crate) messages: VecDeque<Message>,
    /// The expected content of the peer's area after all requests.
    pub(crate) model: Vec<u8>,
    /// UC: each write of this end, and whether it is known to have arrived. Unreliable writes never
    /// overlap.
    pub(crate) pieces: Vec<Piece>,
    /// The number of harmed packets of the connection at the last progress.
    pub(crate) harm: u64,
    /// The connection has failed, as expected.
    pub(crate) failed: bool,
    /// A receive was flushed before any failure was known.
    pub(crate) flushed: bool,
}

/// One write of an unreliable connection.
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) at: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) came: bool,
}

/// A pattern that differs for each request.
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

    /// Brings the QP to RTS.
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

    /// The offset of the data of request `number`.
    pub(crate) fn source(number: u64) -> usize {
        AREA + number as usize % DEPTH * SLOT
    }

    /// The offset for the response to request `number`.
    pub(crate) fn landing(number: u64) -> usize {
        Self::source(number) + DEPTH * SLOT
    }

    /// Whether the end has nothing left to do.
    pub(crate) fn is_done(&self) -> bool {
        // An end that has given up may still have unsignalled requests. If they succeed, they never
        // complete visibly.
        let over = self.failed && self.under_way.iter().all(|request| !request.signaled);
        over || (self.posted == self.total && self.under_way.is_empty())
    }

    /// Whether every message of this end has arrived, or can never arrive.
    pub(crate) fn is_delivered(&self) -> bool {
        self.failed || self.messages.is_empty() || matches!(self.kind, Kind::Uc | Kind::Ud)
    }
}
