//! The objects of the verbs, as the agent keeps them: plain records, and the tables that they lie in ([`tables`]). The commands that make,
//! change and destroy them are in [`crate::commands`]. An object that others refer to counts them.

pub mod domains;
pub mod groups;
pub mod tables;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::ah::AhAttr;
use abi::qp::QueryQpAnswer;
use abi::queue::qp as word;
use protocol::{Service, State};

use crate::foreign::Foreign;
use crate::ids::ContextId;
use crate::queue_memory::Block;
use groups::Gid;

/// One protection domain.
#[derive(Debug)]
pub struct Pd {
    /// By which people tell PDs apart.
    pub number: u32,
    /// MRs, MWs, AHs, SRQs and QPs on it.
    pub users: u32,
    /// Imported: the PD of another context that it stands for.
    pub twin: Option<(ContextId, u32)>,
}

/// One memory region.
#[derive(Debug)]
pub struct Mr {
    /// The PD it is on.
    pub pd: u32,
    /// First byte in the client's address space.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// First byte as work requests name it.
    pub hca_va: u64,
    /// Rights.
    pub access: u32,
    /// lkey and rkey are one number.
    pub key: u32,
    /// The memory itself, from a client of the slow path.
    pub memory: Option<Shared>,
    /// What it is made of.
    pub matter: Matter,
    /// How many contexts have imported it.
    pub twins: u32,
    /// Imported: the MR of another context that it stands for.
    pub twin: Option<(ContextId, u32)>,
}

/// What an MR is made of.
#[derive(Debug)]
pub enum Matter {
    /// The client's memory.
    Memory,
    /// Nothing at all.
    Nothing,
    /// Device memory, and the handle by which its context holds it (no handle: imported without it).
    Device(Arc<Piece>, Option<u32>),
}

/// Memory that a client handed over.
#[derive(Debug)]
pub struct Shared {
    /// The memfd.
    pub memfd: Arc<Foreign>,
    /// Where the region begins in it.
    pub offset: u64,
}

/// One memory window.
#[derive(Debug)]
pub struct Mw {
    /// The PD it is on.
    pub pd: u32,
    /// 1 or 2.
    pub kind: u8,
    /// The key that it began with; binding changes the lower 8 bits.
    pub key: u32,
}

/// A context's hold on a piece of device memory.
#[derive(Debug)]
pub struct Dm {
    /// The memory, which other contexts may hold too.
    pub piece: Arc<Piece>,
    /// MRs on it.
    pub users: u32,
}

/// A piece of device memory.
#[derive(Debug)]
pub struct Piece {
    /// The memfd.
    pub memfd: OwnedFd,
    /// Bytes.
    pub length: u64,
}

/// Pieces are multiples of this.
const GRAIN: u64 = 64;

impl Piece {
    /// Bytes of device memory that it takes.
    pub(crate) fn taken(&self) -> u64 {
        self.length.next_multiple_of(GRAIN)
    }
}

/// One completion channel.
#[derive(Debug)]
pub struct Channel {
    /// What the client polls.
    pub eventfd: Foreign,
    /// CQs that report to it.
    pub users: u32,
}

/// One completion queue.
pub struct Cq {
    /// By which people tell CQs apart.
    pub number: u32,
    /// The client's name for it.
    pub user_handle: u64,
    /// Entries, a power of two.
    pub entries: u32,
    /// Its channel.
    pub channel: Option<u32>,
    /// Its completion vector.
    pub vector: u32,
    /// Where it lies.
    pub block: Block,
    /// Where it lay before it was resized; the client may still be reading there.
    pub former: Vec<Block>,
    /// Send and receive queues that complete to it.
    pub users: u32,
}

/// One queue pair.
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// What kind of connection it has.
    pub service: Service,
    /// The client's name for it.
    pub user_handle: u64,
    /// The PD it is on; 0 for an XRC target, which has none, and no CQs either.
    pub pd: u32,
    /// CQ of the send queue.
    pub send_cq: u32,
    /// CQ of the receive queue; 0 for an XRC initiator.
    pub recv_cq: u32,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<u32>,
    /// Capacities and attributes, as QUERY_QP answers them; the state in it is not kept up to date.
    pub attributes: QueryQpAnswer,
    /// How fast it may send, in kbit/s; 0 is as fast as it can. An engine sees to that.
    pub rate_limit: u32,
    /// MODIFY_QP succeeds and changes nothing: the connection manager's client looks after its states.
    pub frozen: bool,
    /// An XRC target: its domain, and the handle of it by which it was made (0 when its maker has let go of it).
    pub domain: Option<(u32, u32)>,
    /// An XRC target: the handles by which it is held.
    pub holders: u32,
    /// An XRC target: its maker has let go of it.
    pub is_left: bool,
    /// An XRC target: its context has not taken it over yet; what lies in `block` is nobody's queue memory meanwhile.
    pub offered: bool,
    /// Groups it is a member of.
    pub groups: BTreeSet<Gid>,
    /// Where it lies.
    pub block: Block,
}

impl Qp {
    /// The state now. A word that is no state is the client's own doing; such a QP is in error.
    pub fn state(&self) -> State {
        state_of(self.block.read(word::STATE))
    }
}

/// The state that a word in queue memory stands for.
pub fn state_of(value: u32) -> State {
    match value {
        0 => State::Reset,
        1 => State::Init,
        2 => State::Rtr,
        3 => State::Rts,
        4 => State::Sqd,
        5 => State::Sqe,
        _ => State::Err,
    }
}

/// One shared receive queue.
pub struct Srq {
    /// Unique among all devices of the agent.
    pub number: u32,
    /// The client's name for it.
    pub user_handle: u64,
    /// The PD it is on.
    pub pd: u32,
    /// Work requests, a power of two.
    pub max_wr: u32,
    /// Scatter entries per work request.
    pub max_sge: u32,
    /// Where it lies.
    pub block: Block,
    /// Where it lay before it was resized.
    pub(crate) former: Vec<Block>,
    /// QPs that receive from it. The target QPs of its domain are not among them.
    pub users: u32,
    /// What it has if it is an XRC SRQ.
    pub xrc: Option<Xrc>,
    /// The key that its number comes from.
    pub(crate) key: u32,
}

/// What an XRC SRQ has besides.
#[derive(Debug, Clone, Copy)]
pub struct Xrc {
    /// The domain whose target QPs reach it.
    pub domain: u32,
    /// The handle of the domain by which it was made.
    pub xrcd: u32,
    /// The CQ of its receives.
    pub cq: u32,
}

/// One address handle. The engine keeps the address vector for sending; here it is for `show` and the slow path.
#[derive(Debug)]
pub struct Ah {
    /// The PD it is on.
    pub pd: u32,
    /// Where it leads.
    pub attr: AhAttr,
}

/// A handle of a domain.
#[derive(Debug)]
pub struct Xrcd {
    /// The domain.
    pub domain: u32,
    /// SRQs and QPs that were made or opened by this handle.
    pub users: u32,
}

/// One more handle of a target QP.
#[derive(Debug)]
pub struct Opened {
    /// The context that serves the QP, and its handle there.
    pub qp: (ContextId, u32),
    /// The handle of the domain by which it was opened.
    pub xrcd: u32,
    /// The client's name for it.
    pub user_handle: u64,
}
