//! Queue pairs: CREATE_QP, QUERY_QP, DESTROY_QP. MODIFY_QP has its own file, [`super::qp_modify`].
//!
//! The agent allocates the queues, gives out the number, and keeps the attributes. The state is a
//! word in queue memory. The engine writes it too, and this word is authoritative. The principal
//! type is [`Qp`].

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use abi::qp::{CreateQp, CreateQpAnswer, DestroyQp, DestroyQpAnswer, QueryQp, QueryQpAnswer, kind};
use abi::queue::{Mapping, QP_CONTROL_LEN, QP_SQ_DRAINING, QpOut, REV, SGE_LEN, qp as word, recv_stride, send_stride};
use abi::stream::qp_kind;
use abi::target::TARGET_LEN;
use abi::{Errno, Refusal};
use protocol::{Service, State};

use super::mcast;
use super::pd::{self, no_handle};
use super::{Answer, Call, find, stream, target, unused, xrc};
use crate::device::Device;
use crate::ids::ContextId;
use crate::objects::Qp;
use crate::objects::traffic::Counted;
use crate::queue_memory::Allocation;
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// The parameters of both forms of CREATE_QP.
#[derive(Debug, Clone, Copy)]
pub struct QpInitAttr {
    /// The client's name for it.
    pub user_handle: u64,
    /// PD handle; for an XRC target, the handle of the domain.
    pub pd: u32,
    /// CQ handle of the send queue.
    pub send_cq: u32,
    /// CQ handle of the receive queue.
    pub recv_cq: u32,
    /// SRQ handle.
    pub srq: Option<u32>,
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Gather entries.
    pub max_send_sge: u32,
    /// Scatter entries.
    pub max_recv_sge: u32,
    /// Inline bytes.
    pub max_inline_data: u32,
    /// Whether every send request creates a completion.
    pub sq_sig_all: u8,
    /// `qp::kind` of the ABI.
    pub qp_type: u8,
}

/// CREATE_QP.
pub fn create(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: CreateQp = call.body()?;
    let wanted = QpInitAttr {
        user_handle: body.user_handle,
        pd: body.pd_handle,
        send_cq: body.send_cq_handle,
        recv_cq: body.recv_cq_handle,
        srq: (body.is_srq != 0).then_some(body.srq_handle),
        max_send_wr: body.max_send_wr,
        max_recv_wr: body.max_recv_wr,
        max_send_sge: body.max_send_sge,
        max_recv_sge: body.max_recv_sge,
        max_inline_data: body.max_inline_data,
        sq_sig_all: body.sq_sig_all,
        qp_type: body.qp_type,
    };
    let (answer, out, fd) = make(world, call.context, &wanted)?;
    Ok(call.answer_with(&answer, &out, fd))
}

/// Takes a QP number: of the targets of all processes, for a domain that a file names.
fn take_number(world: &mut World, owner: ContextId, domain: Option<u32>) -> Outcome<u32> {
    let (qpn, change) = match domain {
        Some(domain) if world.tables.domains.is_of_file(domain) => target::number(world, owner)?,
        _ => world.numbers.qpns.take(owner).ok_or_else(|| Refusal::new(Errno::ENOMEM, "every QP number is in use"))?,
    };
    if let Some(change) = change {
        world.board.show_block(change);
    }
    Ok(qpn)
}

/// Creates a QP. Returns its answer, its tail, and the descriptor of its region if the region is
/// new to the client.
pub fn make(
    world: &mut World,
    owner: ContextId,
    wanted: &QpInitAttr,
) -> Outcome<(CreateQpAnswer, QpOut, Option<OwnedFd>)> {
    let service = service_of(wanted.qp_type)?;
    let (wanted, domain) = &parts(world, owner, service, wanted)?;
    let device = world.device_of(owner);
    let link = link_of(device, service, wanted.qp_type)?;
    let shape = Shape::new(device, service, wanted)?;
    shares::room_for(world, owner, Kind::Qp)?;
    let qpn = take_number(world, owner, *domain)?;
    let Allocation { block, mapping, fd } =
        match world.context(owner)?.memory.allocate(if domain.is_some() { TARGET_LEN } else { shape.bytes() }) {
            Ok(allocation) => allocation,
            Err(error) => {
                world.numbers.qpns.give_back(qpn);
                return Err(by_system(error));
            }
        };
    let qp = Qp {
        qpn,
        service,
        user_handle: wanted.user_handle,
        domain: domain.map(|domain| (domain, wanted.pd)),
        holders: 1,
        is_left: false,
        offered: false,
        pd: if domain.is_some() { 0 } else { wanted.pd },
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: wanted.srq,
        attributes: shape.attributes(wanted.sq_sig_all != 0),
        rate_limit: 0,
        frozen: false,
        groups: BTreeSet::new(),
        counted: Counted::default(),
        block: block.clone(),
    };
    let Some(handle) = world.tables.qps.insert(owner, qp) else {
        world.numbers.qpns.give_back(qpn);
        world.context(owner)?.memory.release(&block);
        return Err(no_handle(Kind::Qp));
    };
    hold_parts(world, owner, wanted, domain.map(|domain| (domain, qpn, handle)))?;
    world.device_of_mut(owner).count_up(Kind::Qp);
    if service == Service::Ud
        && let Err(error) = world.wire.tell_hops()
    {
        tracing::warn!(%error, "datagrams come without their traffic class and hop limit");
    }
    let (answer, out) = shape.answers(handle, qpn, mapping);
    Ok((answer, QpOut { kind: link, ..out }, fd))
}

/// Counts a new QP at the objects that it uses. `target` is the domain of an XRC target, with its
/// number and handle.
fn hold_parts(
    world: &mut World,
    owner: ContextId,
    wanted: &QpInitAttr,
    target: Option<(u32, u32, u32)>,
) -> Outcome<()> {
    match target {
        None => pd::hold(world, owner, wanted.pd)?,
        Some((domain, qpn, handle)) => {
            xrc::hold(world, owner, wanted.pd, 1);
            world.tables.domains.enter(domain, qpn, owner, handle);
        }
    }
    count_users(world, owner, [wanted.send_cq, wanted.recv_cq], wanted.srq, 1);
    Ok(())
}

/// What carries a queue pair's data: packets, or on an iWARP device a stream.
fn link_of(device: &Device, service: Service, qp_type: u8) -> Outcome<u32> {
    match (device.is_iwarp(), service) {
        (false, _) => Ok(qp_kind::PACKETS),
        (true, Service::Rc) => Ok(qp_kind::STREAM),
        (true, _) => {
            let name = kind::name(qp_type).unwrap_or("unknown");
            let text = format!("{} is an iWARP device: it has RC QPs only, not {name}", device.name);
            refuse(Errno::EOPNOTSUPP, text)
        }
    }
}

/// Finds the objects that a QP uses. Returns the parameters that apply to its service, and the
/// domain of an XRC target.
fn parts(world: &World, owner: ContextId, service: Service, wanted: &QpInitAttr) -> Outcome<(QpInitAttr, Option<u32>)> {
    let nothing_received = QpInitAttr { recv_cq: 0, srq: None, max_recv_wr: 0, max_recv_sge: 0, ..*wanted };
    match service {
        Service::XrcTgt => {
            let domain = find(&world.tables.xrcds, owner, wanted.pd, Kind::Xrcd)?.domain;
            let nothing =
                QpInitAttr { send_cq: 0, max_send_wr: 0, max_send_sge: 0, max_inline_data: 0, ..nothing_received };
            return Ok((nothing, Some(domain)));
        }
        Service::XrcIni => {
            find(&world.tables.pds, owner, wanted.pd, Kind::Pd)?;
            find(&world.tables.cqs, owner, wanted.send_cq, Kind::Cq)?;
            return Ok((nothing_received, None));
        }
        _ => {}
    }
    find(&world.tables.pds, owner, wanted.pd, Kind::Pd)?;
    find(&world.tables.cqs, owner, wanted.send_cq, Kind::Cq)?;
    find(&world.tables.cqs, owner, wanted.recv_cq, Kind::Cq)?;
    if let Some(handle) = wanted.srq {
        let srq = find(&world.tables.srqs, owner, handle, Kind::Srq)?;
        // The SRQ may be on another PD. Then its buffers are on that PD.
        if srq.xrc.is_some() {
            let number = srq.number;
            return refuse(Errno::EINVAL, format!("SRQ {number} is an XRC SRQ: only target QPs receive from it"));
        }
    }
    Ok((*wanted, None))
}

/// QUERY_QP: the attributes that were set, and the current state.
pub fn query(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let QueryQp { qp_handle, .. } = call.body()?;
    let (owner, qp_handle) = xrc::resolve(world, call.context, qp_handle);
    let qp = find(&world.tables.qps, owner, qp_handle, Kind::Qp)?;
    let state = qp.state();
    let draining = state == State::Sqd && qp.block.read(word::FLAGS) & QP_SQ_DRAINING != 0;
    let mut answer = qp.attributes_now();
    (answer.qp_state, answer.cur_qp_state, answer.sq_draining) = (state as u8, state as u8, u8::from(draining));
    Ok(call.answer(&answer))
}

/// DESTROY_QP.
pub fn destroy(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let DestroyQp { qp_handle, .. } = call.body()?;
    let (owner, handle) = xrc::resolve(world, call.context, qp_handle);
    let qp = find(&world.tables.qps, owner, handle, Kind::Qp)?;
    unused(qp.groups.len() as u32, &format!("QP {:#x}", qp.qpn), "multicast groups; detach it")?;
    let answer = DestroyQpAnswer { events_reported: qp.block.read(word::EVENTS_REPORTED) };
    if !(qp.domain.is_some() && xrc::let_go_of(world, call.context, qp_handle, (owner, handle))) {
        remove(world, owner, handle);
    }
    Ok(call.answer(&answer))
}

/// Destroys some QPs of a context that ends, after removing them from their groups.
pub fn destroy_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let handles = world.tables.qps.first_of(owner, most);
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    handles.len()
}

/// Removes a QP from all tables.
pub(super) fn remove(world: &mut World, owner: ContextId, handle: u32) {
    world.note_traffic(owner, handle);
    let Some(qp) = world.tables.qps.remove(owner, handle) else { return };
    for gid in &qp.groups {
        mcast::leave(world, gid, (owner, handle));
    }
    count_users(world, owner, [qp.send_cq, qp.recv_cq], qp.srq, -1);
    match qp.domain {
        None => pd::let_go(world, owner, qp.pd),
        Some((_, xrcd)) => {
            xrc::hold(world, owner, xrcd, -1);
            world.tables.domains.leave(qp.qpn);
        }
    }
    stream::leave(world, owner, qp.qpn);
    world.numbers.qpns.give_back(qp.qpn);
    if let Ok(context) = world.context(owner)
        && !qp.offered
    {
        context.memory.release(&qp.block);
    }
    world.device_of_mut(owner).count_down(Kind::Qp);
}

fn count_users(world: &mut World, owner: ContextId, cqs: [u32; 2], srq: Option<u32>, by: i32) {
    for handle in cqs {
        if let Some(cq) = world.tables.cqs.find_mut(owner, handle) {
            cq.users = cq.users.saturating_add_signed(by);
        }
    }
    if let Some(srq) = srq.and_then(|handle| world.tables.srqs.find_mut(owner, handle)) {
        srq.users = srq.users.saturating_add_signed(by);
    }
}

/// The size of the queues.
struct Shape {
    sq_count: u32,
    rq_count: u32,
    send_sge: u32,
    recv_sge: u32,
    inline: u32,
    sq_stride: usize,
    rq_stride: usize,
}

impl Shape {
    /// The attributes of a new QP.
    fn attributes(&self, sq_sig_all: bool) -> QueryQpAnswer {
        QueryQpAnswer {
            max_send_wr: self.sq_count,
            max_recv_wr: self.rq_count,
            max_send_sge: self.send_sge,
            max_recv_sge: self.recv_sge,
            max_inline_data: self.inline,
            sq_sig_all: u8::from(sq_sig_all),
            ..QueryQpAnswer::default()
        }
    }

    /// What the client learns of a new QP.
    fn answers(&self, qp_handle: u32, qpn: u32, mapping: Mapping) -> (CreateQpAnswer, QpOut) {
        let answer = CreateQpAnswer {
            qp_handle,
            qpn,
            max_send_wr: self.sq_count,
            max_recv_wr: self.rq_count,
            max_send_sge: self.send_sge,
            max_recv_sge: self.recv_sge,
            max_inline_data: self.inline,
            reserved: 0,
        };
        let out = QpOut {
            rev: REV,
            qpn,
            mapping,
            sq_offset: QP_CONTROL_LEN as u32,
            sq_count: self.sq_count,
            sq_stride: self.sq_stride as u32,
            rq_offset: self.rq_offset() as u32,
            rq_count: self.rq_count,
            rq_stride: self.rq_stride as u32,
            kind: qp_kind::PACKETS,
            reserved: 0,
        };
        (answer, out)
    }

    fn new(device: &Device, service: Service, wanted: &QpInitAttr) -> Outcome<Self> {
        let limits = &device.limits;
        let mut checks = vec![
            ("max_send_wr", wanted.max_send_wr, limits.max_qp_wr),
            ("max_send_sge", wanted.max_send_sge, limits.max_sge),
            ("max_inline_data", wanted.max_inline_data, limits.max_inline_data),
        ];
        if wanted.srq.is_none() {
            checks.push(("max_recv_wr", wanted.max_recv_wr, limits.max_qp_wr));
            checks.push(("max_recv_sge", wanted.max_recv_sge, limits.max_sge));
        }
        for (what, value, most) in checks {
            if value > most {
                return refuse(Errno::EINVAL, format!("{what} {value} is above what {} has: {most}", device.name));
            }
        }
        let count = |wr: u32| if wr == 0 { 0 } else { wr.next_power_of_two() };
        let (rq_count, recv_sge) = match wanted.srq {
            None if wanted.recv_cq == 0 => (0, 0),
            None => (count(wanted.max_recv_wr), wanted.max_recv_sge.max(1)),
            Some(_) => (0, 0),
        };
        let send_sge = if wanted.send_cq == 0 { 0 } else { wanted.max_send_sge.max(1) };
        // The space of the gather entries also holds inline data. Adapters offer this, and programs
        // rely on it.
        let inline = wanted.max_inline_data.max((send_sge * SGE_LEN).min(limits.max_inline_data));
        Ok(Self {
            sq_count: count(wanted.max_send_wr),
            rq_count,
            send_sge,
            recv_sge,
            inline,
            sq_stride: send_stride(service == Service::Ud, send_sge, inline),
            rq_stride: recv_stride(recv_sge),
        })
    }

    fn rq_offset(&self) -> usize {
        QP_CONTROL_LEN + self.sq_count as usize * self.sq_stride
    }

    fn bytes(&self) -> usize {
        self.rq_offset() + self.rq_count as usize * self.rq_stride
    }
}

fn service_of(qp_type: u8) -> Outcome<Service> {
    match qp_type {
        kind::RC => Ok(Service::Rc),
        kind::UC => Ok(Service::Uc),
        kind::UD => Ok(Service::Ud),
        kind::XRC_INI => Ok(Service::XrcIni),
        kind::XRC_TGT => Ok(Service::XrcTgt),
        _ => {
            let name = kind::name(qp_type).unwrap_or("unknown");
            refuse(
                Errno::EOPNOTSUPP,
                format!("QP type {qp_type} ({name}) is not one of RC, UC, UD and XRC's two, which the device has"),
            )
        }
    }
}
