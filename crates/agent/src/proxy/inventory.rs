//! What an engine must learn when it attaches late: the objects of a context, as the answers that
//! created them.
//!
//! [`Inventory`] tells all existing objects, in pieces. [`change`] tells what one successful
//! command has created, changed or destroyed. Both only read the world. The principal type is
//! [`Change`].

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::ah::AhAttr;
use abi::command::{EXTENDED, ExtendedHeader, Header, NUMBER, number};
use abi::cq::CreateCqAnswer;
use abi::device::GetContextAnswer;
use abi::layout::Record;
use abi::mr::{RegMr, RegMrAnswer};
use abi::qp::{CreateQpAnswer, ExModifyQp, ModifyQp, attr, migration};
use abi::queue::{
    CONTROL_LEN, CQE_LEN, ContextOut, CqOut, QP_CONTROL_LEN, QpOut, REV, SrqOut, recv_stride, send_stride,
};
use abi::srq::CreateSrqAnswer;
use protocol::{Service, State};

use crate::commands::xrc;
use crate::foreign::Foreign;
use crate::ids::ContextId;
use crate::objects::Qp;
use crate::queue_memory::Block;
use crate::table::Kind;
use crate::world::World;

/// An answer of the agent with its descriptors, as a client would have received it.
pub(super) struct Made {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// One change that an engine must follow.
pub(super) enum Change {
    /// A PD was created.
    Pd(u32),
    /// Memory was registered, or its registration changed. The agent can reach the memory only if
    /// the client handed it over.
    Mr { body: RegMr, answer: RegMrAnswer, memory: Option<(Arc<Foreign>, u64)> },
    /// A completion channel was created.
    Channel { handle: u32, eventfd: OwnedFd },
    /// A CQ was created.
    Cq { handle: u32, cookie: u64, channel: Option<u32>, made: Made },
    /// An SRQ was created.
    Srq { handle: u32, pd: u32, cookie: u64, made: Made, member: Option<XrcSrqSpec> },
    /// A QP was created.
    Qp { handle: u32, spec: PairSpec, made: Made },
    /// An XRC target was created.
    Target { cookie: u64, made: Made, domain: XrcDomainId },
    /// An XRC target that another engine serves was opened.
    Opened { qpn: u32, domain: XrcDomainId },
    /// A target was modified.
    ModifyTarget { qpn: u32, body: Box<ModifyQp> },
    /// A QP's handle is gone, and with it all targets except these.
    Left { handle: u32, targets: Vec<u32> },
    /// An AH was created.
    Ah { handle: u32, pd: u32, attr: AhAttr },
    /// A QP was modified.
    Modify(Box<ExModifyQp>),
    /// An object was destroyed.
    Gone(Kind, u32),
}

/// An XRC domain: its number and token.
pub(super) type XrcDomainId = (u32, u64);

/// The additional properties of an SRQ in an XRC domain.
pub(super) struct XrcSrqSpec {
    pub(super) domain: XrcDomainId,
    /// The CQ of its receives.
    pub(super) cq: u32,
}

/// The properties with which a QP was created.
pub(super) struct PairSpec {
    pub(super) service: Service,
    pub(super) pd: u32,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) srq: Option<u32>,
    pub(super) sq_sig_all: bool,
    pub(super) cookie: u64,
}

/// Makes the answer to GET_CONTEXT again.
pub(super) fn context(world: &World, id: ContextId) -> Option<Made> {
    let context = world.contexts.get(&id)?;
    let events = context.events.as_ref()?;
    let device = world.device_of(id);
    let answer = GetContextAnswer { async_fd: 0, num_comp_vectors: device.completion_vectors };
    let out = ContextOut { rev: REV, device: device.index as u32, page: events.page().mapping(true) };
    let fds = vec![world.system.duplicate(events.descriptor()).ok()?, context.memory.descriptor(events.page()).ok()?];
    Some(Made { bytes: [answer.bytes(), out.bytes()].concat(), fds })
}

/// The objects of a context that the engine does not know yet. The client's commands wait until all
/// objects are told.
pub(super) struct Inventory {
    id: ContextId,
    /// The parts after the current one.
    next: std::slice::Iter<'static, InventoryPart>,
    part: Option<InventoryPart>,
    /// The last object of the current part that was looked at. It still exists, because the
    /// client's commands wait.
    last: Option<u32>,
}

/// Maximum number of regions that are looked at in one piece. A client may have hundreds of
/// thousands, but the agent reaches only the few thousand that were handed over.
const LOOKED_AT: usize = 4096;

/// A part of the inventory.
#[derive(Debug, Clone, Copy)]
enum InventoryPart {
    /// All objects of a kind.
    Made(Kind),
    /// The transitions that bring new QPs to their states.
    Transitions,
}

/// Objects come after the objects on which they depend.
const PARTS: [InventoryPart; 9] = [
    InventoryPart::Made(Kind::Pd),
    InventoryPart::Made(Kind::Mr),
    InventoryPart::Made(Kind::Channel),
    InventoryPart::Made(Kind::Cq),
    InventoryPart::Made(Kind::Srq),
    InventoryPart::Made(Kind::Qp),
    InventoryPart::Made(Kind::Ah),
    InventoryPart::Transitions,
    InventoryPart::Made(Kind::Opened),
];

impl Inventory {
    /// All objects of a context.
    pub(super) fn new(id: ContextId) -> Self {
        Self { id, next: PARTS.iter(), part: None, last: None }
    }

    /// Takes the changes of the next objects, `most` at most. The second value is true if these are
    /// the last.
    pub(super) fn take(&mut self, world: &World, most: usize) -> (Vec<Change>, bool) {
        let mut changes = Vec::new();
        let mut left = LOOKED_AT;
        while left > 0 && changes.len() < most {
            left -= 1;
            let Some(part) = self.part else {
                let Some(part) = self.next.next() else { return (changes, true) };
                (self.part, self.last) = (Some(*part), None);
                continue;
            };
            let kind = if let InventoryPart::Made(kind) = part { kind } else { Kind::Qp };
            let Some(handle) = world.tables.after(self.id, kind, self.last) else {
                self.part = None;
                continue;
            };
            self.last = Some(handle);
            match part {
                InventoryPart::Made(Kind::Mr) if !self.is_reached(world, handle) => {}
                InventoryPart::Made(kind) => changes.extend(made(world, self.id, kind, handle)),
                InventoryPart::Transitions => {
                    if let Some(qp) = world.tables.qps.find(self.id, handle).filter(|qp| !qp.offered) {
                        changes.extend(transitions_to(qp, handle).into_iter().map(|body| modified(qp, body)));
                    }
                }
            }
        }
        (changes, false)
    }

    /// Whether the memory of a region was handed over.
    fn is_reached(&self, world: &World, handle: u32) -> bool {
        world.tables.mrs.find(self.id, handle).is_some_and(|mr| mr.memory.is_some())
    }
}

/// The change that a successful command has made.
pub(super) fn change(world: &World, id: ContextId, request: &[u8], answer: &[u8]) -> Option<Change> {
    let header = Header::read(request)?;
    let extended = header.command & EXTENDED != 0;
    let body = &request[size_of::<Header>() + if extended { size_of::<ExtendedHeader>() } else { 0 }..];
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let new = |kind| made(world, id, kind, word(answer, 0)?);
    let gone = |kind, at| Some(Change::Gone(kind, word(body, at)?));
    match ((header.command & NUMBER) as u8, extended) {
        (number::ALLOC_PD, false) => new(Kind::Pd),
        (number::REG_MR, false) => new(Kind::Mr),
        (number::CREATE_COMP_CHANNEL, false) => new(Kind::Channel),
        (number::CREATE_CQ, _) => new(Kind::Cq),
        (number::CREATE_SRQ | number::CREATE_XSRQ, false) => new(Kind::Srq),
        (number::CREATE_QP, _) => new(Kind::Qp),
        (number::CREATE_AH, false) => new(Kind::Ah),
        (number::MODIFY_QP, _) => {
            let body = modify_body(request)?;
            // A frozen QP has not changed.
            let (_, handle) = xrc::resolve(world, id, body.qp_handle);
            let qp = world.tables.qps.find(id, handle).filter(|qp| !qp.frozen)?;
            Some(modified(qp, body))
        }
        (number::REREG_MR, false) => made(world, id, Kind::Mr, word(body, 8)?),
        (number::DEALLOC_PD, false) => gone(Kind::Pd, 0),
        (number::DEREG_MR, false) => gone(Kind::Mr, 0),
        (number::DESTROY_AH, false) => gone(Kind::Ah, 0),
        (number::DESTROY_CQ, false) => gone(Kind::Cq, 8),
        (number::DESTROY_SRQ, false) => gone(Kind::Srq, 8),
        (number::OPEN_QP, false) => new(Kind::Opened),
        (number::DESTROY_QP, false) => {
            let targets = world.tables.qps.of(id).filter(|(_, qp)| qp.service == Service::XrcTgt);
            Some(Change::Left { handle: word(body, 8)?, targets: targets.map(|(_, qp)| qp.qpn).collect() })
        }
        (number::CHANNEL_DESTROY, true) => gone(Kind::Channel, 0),
        _ => None,
    }
}

fn modified(qp: &Qp, base: ModifyQp) -> Change {
    match qp.service {
        Service::XrcTgt => Change::ModifyTarget { qpn: qp.qpn, body: Box::new(base) },
        // If the command contains the limit, the limit has just been set.
        _ => Change::Modify(Box::new(ExModifyQp { base, rate_limit: qp.rate_limit, reserved: 0 })),
    }
}

/// The body with which both forms of MODIFY_QP begin.
pub(super) fn modify_body(request: &[u8]) -> Option<ModifyQp> {
    let extended = Header::read(request)?.command & EXTENDED != 0;
    ModifyQp::read(request.get(size_of::<Header>() + if extended { size_of::<ExtendedHeader>() } else { 0 }..)?)
}

fn made(world: &World, id: ContextId, kind: Kind, handle: u32) -> Option<Change> {
    match kind {
        Kind::Pd => Some(Change::Pd(handle)),
        // Binding needs an engine in the client itself.
        Kind::Mw | Kind::Dm => None,
        Kind::Mr => {
            let mr = world.tables.mrs.find(id, handle)?;
            let body = RegMr {
                response: 0,
                start: mr.start,
                length: mr.length,
                hca_va: mr.hca_va,
                pd_handle: mr.pd,
                access_flags: mr.access,
            };
            let memory = mr.memory.as_ref().map(|shared| (Arc::clone(&shared.memfd), shared.offset));
            Some(Change::Mr { body, answer: RegMrAnswer { mr_handle: handle, lkey: mr.key, rkey: mr.key }, memory })
        }
        Kind::Channel => {
            let channel = world.tables.channels.find(id, handle)?;
            Some(Change::Channel { handle, eventfd: world.system.duplicate(channel.eventfd.as_fd()).ok()? })
        }
        Kind::Cq => cq(world, id, handle),
        Kind::Srq => srq(world, id, handle),
        Kind::Qp => qp(world, id, handle),
        Kind::Xrcd => None,
        Kind::Opened => {
            let (server, qp) = world.tables.opened.find(id, handle)?.qp;
            let qp = world.tables.qps.find(server, qp).filter(|_| server != id)?;
            let (domain, _) = qp.domain?;
            Some(Change::Opened { qpn: qp.qpn, domain: (domain, world.tables.domains.token(domain)) })
        }
        Kind::Ah => {
            let ah = world.tables.ahs.find(id, handle)?;
            Some(Change::Ah { handle, pd: ah.pd, attr: ah.attr })
        }
    }
}

/// A CQ.
fn cq(world: &World, id: ContextId, handle: u32) -> Option<Change> {
    let cq = world.tables.cqs.find(id, handle)?;
    let answer = CreateCqAnswer { cq_handle: handle, cqe: cq.entries };
    let out = CqOut {
        rev: REV,
        number: cq.number,
        mapping: cq.block.mapping(true),
        cqe_count: cq.entries,
        cqe_size: CQE_LEN as u32,
        reserved: [0; 2],
    };
    let made = with_region(world, id, [answer.bytes(), out.bytes()].concat(), &cq.block)?;
    Some(Change::Cq { handle, cookie: cq.user_handle, channel: cq.channel, made })
}

/// An SRQ.
fn srq(world: &World, id: ContextId, handle: u32) -> Option<Change> {
    let srq = world.tables.srqs.find(id, handle)?;
    let answer = CreateSrqAnswer { srq_handle: handle, max_wr: srq.max_wr, max_sge: srq.max_sge, srqn: 0 };
    let out = SrqOut {
        rev: REV,
        number: srq.number,
        mapping: srq.block.mapping(true),
        offset: CONTROL_LEN as u32,
        count: srq.max_wr,
        stride: recv_stride(srq.max_sge) as u32,
        reserved: 0,
    };
    let made = with_region(world, id, [answer.bytes(), out.bytes()].concat(), &srq.block)?;
    let member =
        srq.xrc.map(|xrc| XrcSrqSpec { domain: (xrc.domain, world.tables.domains.token(xrc.domain)), cq: xrc.cq });
    Some(Change::Srq { handle, pd: srq.pd, cookie: srq.user_handle, made, member })
}

/// A QP that no other engine serves.
fn qp(world: &World, id: ContextId, handle: u32) -> Option<Change> {
    let qp = world.tables.qps.find(id, handle).filter(|qp| !qp.offered)?;
    if let Some((domain, _)) = qp.domain {
        let made = with_region(world, id, pair_answer(qp, handle), &qp.block)?;
        return Some(Change::Target {
            cookie: qp.user_handle,
            made,
            domain: (domain, world.tables.domains.token(domain)),
        });
    }
    let spec = PairSpec {
        service: qp.service,
        pd: qp.pd,
        send_cq: qp.send_cq,
        recv_cq: qp.recv_cq,
        srq: qp.srq,
        sq_sig_all: qp.attributes.sq_sig_all != 0,
        cookie: qp.user_handle,
    };
    Some(Change::Qp { handle, spec, made: with_region(world, id, pair_answer(qp, handle), &qp.block)? })
}

/// An answer with the descriptor of its region.
fn with_region(world: &World, id: ContextId, bytes: Vec<u8>, block: &Block) -> Option<Made> {
    let fds = vec![world.contexts.get(&id)?.memory.descriptor(block).ok()?];
    Some(Made { bytes, fds })
}

fn pair_answer(qp: &Qp, handle: u32) -> Vec<u8> {
    let caps = &qp.attributes;
    let answer = CreateQpAnswer {
        qp_handle: handle,
        qpn: qp.qpn,
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
        reserved: 0,
    };
    let sq_stride = send_stride(qp.service == Service::Ud, caps.max_send_sge, caps.max_inline_data);
    let out = QpOut {
        rev: REV,
        qpn: qp.qpn,
        mapping: qp.block.mapping(true),
        sq_offset: QP_CONTROL_LEN as u32,
        sq_count: caps.max_send_wr,
        sq_stride: sq_stride as u32,
        rq_offset: (QP_CONTROL_LEN + caps.max_send_wr as usize * sq_stride) as u32,
        rq_count: caps.max_recv_wr,
        rq_stride: recv_stride(caps.max_recv_sge) as u32,
        kind: 0,
        reserved: 0,
    };
    [answer.bytes(), out.bytes()].concat()
}

/// The transitions that lead a new QP to its current state.
fn transitions_to(qp: &Qp, handle: u32) -> Vec<ModifyQp> {
    let kept = qp.attributes_now();
    let whole = ModifyQp {
        dest: kept.dest,
        alt_dest: kept.alt_dest,
        alt_pkey_index: kept.alt_pkey_index,
        alt_port_num: kept.alt_port_num,
        alt_timeout: kept.alt_timeout,
        path_mig_state: migration::REARM,
        qp_handle: handle,
        qkey: kept.qkey,
        rq_psn: kept.rq_psn,
        sq_psn: kept.sq_psn,
        dest_qp_num: kept.dest_qp_num,
        qp_access_flags: kept.qp_access_flags,
        pkey_index: kept.pkey_index,
        path_mtu: kept.path_mtu,
        max_rd_atomic: kept.max_rd_atomic,
        max_dest_rd_atomic: kept.max_dest_rd_atomic,
        min_rnr_timer: kept.min_rnr_timer,
        port_num: kept.port_num,
        timeout: kept.timeout,
        retry_cnt: kept.retry_cnt,
        rnr_retry: kept.rnr_retry,
        ..ModifyQp::default()
    };
    let to = |state: State, mask: u32| ModifyQp { qp_state: state as u8, attr_mask: attr::STATE | mask, ..whole };
    let connected = match qp.service {
        Service::Ud => 0,
        _ => attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER,
    };
    let reliable = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC | attr::SQ_PSN;
    let init = to(State::Init, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS | attr::QKEY);
    let alternate = if kept.alt_port_num == 0 { 0 } else { attr::ALT_PATH };
    // A path that was armed is armed again.
    let rearm = if kept.path_mig_state == migration::MIGRATED { 0 } else { attr::PATH_MIG_STATE };
    // Zero also stands for a limit that was never set.
    let paced = if qp.service == Service::XrcTgt { 0 } else { attr::RATE_LIMIT };
    let rtr = to(State::Rtr, connected | alternate | paced);
    let rts = to(State::Rts, reliable | rearm);
    match qp.state() {
        State::Reset => vec![],
        State::Init => vec![init],
        State::Rtr => vec![init, rtr],
        State::Rts => vec![init, rtr, rts],
        State::Sqd => vec![init, rtr, rts, to(State::Sqd, 0)],
        State::Sqe | State::Err => vec![init, to(State::Err, 0)],
    }
}
