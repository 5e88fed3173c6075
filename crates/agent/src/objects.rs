//! The objects of the verbs, as the agent keeps them: plain records, and their tables ([`tables`]).
//! The commands that create, change and destroy them are in [`crate::commands`]. An object counts
//! the objects that refer to it.

pub mod domains;
pub(crate) mod elsewhere;
pub mod groups;
pub(crate) mod paths;
pub mod tables;
pub(crate) mod traffic;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::ah::AhAttr;
use abi::qp::QueryQpAnswer;
use abi::queue::qp as word;
use protocol::{Service, State};
use wire::cm::Gid;

use crate::foreign::Foreign;
use crate::ids::ContextId;
use crate::queue_memory::Block;
use traffic::Counted;

/// The places of a queue before it was resized, with their numbers of entries.
pub type Former = Vec<(Block, u32)>;

/// One protection domain.
#[derive(Debug)]
pub struct Pd {
    /// A label that tells PDs apart for users.
    pub number: u32,
    /// How many MRs, MWs, AHs, SRQs and QPs are on it.
    pub users: u32,
    /// If it is imported: the PD of the other context.
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
    /// The address of the first byte in work requests.
    pub hca_va: u64,
    /// Access flags.
    pub access: u32,
    /// lkey and rkey are one number.
    pub key: u32,
    /// The memory itself, if the client uses a proxy engine and handed it over.
    pub memory: Option<Shared>,
    /// What it consists of.
    pub memory_kind: MemoryKind,
    /// How many contexts have imported it.
    pub twins: u32,
    /// If it is imported: the MR of the other context.
    pub twin: Option<(ContextId, u32)>,
}

impl Mr {
    /// Whether its PD cannot be freed while it exists. A region of nothing holds no PD: that of
    /// mlx5's library does not exist for the kernel, and perftest frees the PD first.
    pub fn holds_pd(&self) -> bool {
        !matches!(self.memory_kind, MemoryKind::Null)
    }
}

/// What an MR consists of.
#[derive(Debug)]
pub enum MemoryKind {
    /// The client's memory.
    Program,
    /// Nothing.
    Null,
    /// Device memory, and its handle in the context (no handle if it was imported without one).
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
    /// Its first key; binding changes the lower 8 bits.
    pub key: u32,
}

/// A handle of a context on a piece of device memory.
#[derive(Debug)]
pub struct Dm {
    /// The memory, of which other contexts may have handles too.
    pub piece: Arc<Piece>,
    /// How many MRs are on it.
    pub users: u32,
}

/// A piece of device memory.
#[derive(Debug)]
pub struct Piece {
    /// The memfd.
    pub memfd: OwnedFd,
    /// Length in bytes.
    pub length: u64,
}

/// The size of a piece is a multiple of this.
const GRAIN: u64 = 64;

impl Piece {
    /// Bytes of device memory that it occupies.
    pub(crate) fn taken(&self) -> u64 {
        self.length.next_multiple_of(GRAIN)
    }
}

/// One completion channel.
#[derive(Debug)]
pub struct CompletionChannel {
    /// The eventfd that the client polls.
    pub eventfd: Foreign,
    /// How many CQs report to it.
    pub users: u32,
}

/// One completion queue.
pub struct Cq {
    /// A label that tells CQs apart for users.
    pub number: u32,
    /// The client's name for it.
    pub user_handle: u64,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Its channel.
    pub channel: Option<u32>,
    /// Its completion vector.
    pub vector: u32,
    /// Its place in queue memory.
    pub block: Block,
    /// Its places before it was resized.
    pub former: Former,
    /// How many send and receive queues complete to it.
    pub users: u32,
}

/// One queue pair.
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// Its transport service.
    pub service: Service,
    /// The client's name for it.
    pub user_handle: u64,
    /// The PD it is on; 0 for an XRC target, which has no PD and no CQs.
    pub pd: u32,
    /// The CQ of the send queue.
    pub send_cq: u32,
    /// The CQ of the receive queue; 0 for an XRC initiator.
    pub recv_cq: u32,
    /// Its SRQ, if it has no receive queue of its own.
    pub srq: Option<u32>,
    /// Capacities and attributes for the answer to QUERY_QP; the state in them is not kept up to
    /// date.
    pub attributes: QueryQpAnswer,
    /// Its rate limit in kbit/s; 0 for none. The engine enforces it.
    pub rate_limit: u32,
    /// MODIFY_QP succeeds and changes nothing: the connection manager's client controls the states.
    pub frozen: bool,
    /// If it is an XRC target: its domain, and the handle of the domain with which it was created
    /// (0 once the creator has released it).
    pub domain: Option<(u32, u32)>,
    /// If it is an XRC target: how many handles it has.
    pub holders: u32,
    /// If it is an XRC target: its creator has released it.
    pub is_left: bool,
    /// If it is an XRC target: its context has not taken it over yet, so `block` is not its queue
    /// memory yet.
    pub offered: bool,
    /// The groups of which it is a member.
    pub groups: BTreeSet<Gid>,
    /// The sums of its traffic when the agent last looked at them.
    pub(crate) counted: Counted,
    /// Its place in queue memory.
    pub block: Block,
}

impl Qp {
    /// The current state. The client can write the word: an invalid value counts as the error
    /// state.
    pub fn state(&self) -> State {
        state_of(self.block.read(word::STATE))
    }
}

/// The state for a word in queue memory.
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
    /// Number of work requests, a power of two.
    pub max_wr: u32,
    /// Scatter entries per work request.
    pub max_sge: u32,
    /// Its place in queue memory.
    pub block: Block,
    /// Its places before it was resized.
    pub(crate) former: Former,
    /// How many QPs receive from it, without the target QPs of its domain.
    pub users: u32,
    /// The additional properties of an XRC SRQ.
    pub xrc: Option<Xrc>,
    /// The key that its number comes from.
    pub(crate) key: u32,
}

/// The additional properties of an XRC SRQ.
#[derive(Debug, Clone, Copy)]
pub struct Xrc {
    /// The domain whose target QPs reach it.
    pub domain: u32,
    /// The handle of the domain with which it was created.
    pub xrcd: u32,
    /// The CQ of its receives.
    pub cq: u32,
}

/// One address handle. The engine keeps the address vector for sending. This copy is for `show` and
/// the proxy engine.
#[derive(Debug)]
pub struct Ah {
    /// The PD it is on.
    pub pd: u32,
    /// The address vector.
    pub attr: AhAttr,
}

/// A handle of an XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// The domain.
    pub domain: u32,
    /// How many SRQs and QPs were created or opened with this handle.
    pub users: u32,
}

/// A further handle of a target QP.
#[derive(Debug)]
pub struct OpenedQp {
    /// The context that serves the QP, and its handle there.
    pub qp: (ContextId, u32),
    /// The handle of the domain with which it was opened.
    pub xrcd: u32,
    /// The client's name for it.
    pub user_handle: u64,
}
