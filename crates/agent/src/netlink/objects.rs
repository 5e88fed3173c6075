//! The objects of a device for NETLINK_RDMA, one kind at a time. This file only reads.
//!
//! A [`Cursor`] goes in order through the contexts of a device, the table of a kind, or the ids of
//! the connection manager. Each piece of this work is bounded and makes at most one message. Keys,
//! addresses and sequence numbers are shown only to their owner.

use std::ops::Bound;

use abi::netlink::{ANSWER_MAX, Header, Writer, attribute, command, flag};
use abi::qp::kind;
use abi::queue::qp as qp_word;
use protocol::Service;

use super::facts;
use crate::asker::Asker;
use crate::cm::Manager;
use crate::cm::show::Listed;
use crate::context::Context;
use crate::device::Device;
use crate::ids::ContextId;
use crate::objects::Qp;
use crate::table::Kind;
use crate::world::World;

/// Maximum numbers of objects, and of slots of ids, that one piece looks at.
const PIECE: usize = 64;
const PLACES: usize = 256;
/// Maximum number of slots of a table that one piece looks at. Many of them may be free, or belong
/// to another device.
const SLOTS: usize = 1024;
/// Length of the longest entry: an id with two addresses.
const ENTRY_MAX: usize = 400;

/// A kind of object in NETLINK_RDMA.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    /// The attribute that contains all objects; the next one contains one object.
    table: u16,
    /// The attribute for an object's number.
    pub(super) number: u16,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Table(Kind),
    Contexts,
    Ids,
}

impl Class {
    /// The kind of object that a command asks for, if it asks for objects.
    pub(super) fn of(command: u16) -> Option<Self> {
        let (table, number, what) = match command {
            command::RES_QP_GET => (attribute::RES_QP, attribute::RES_LQPN, What::Table(Kind::Qp)),
            command::RES_CM_ID_GET => (attribute::RES_CM_ID, attribute::RES_CM_IDN, What::Ids),
            command::RES_CQ_GET => (attribute::RES_CQ, attribute::RES_CQN, What::Table(Kind::Cq)),
            command::RES_MR_GET => (attribute::RES_MR, attribute::RES_MRN, What::Table(Kind::Mr)),
            command::RES_PD_GET => (attribute::RES_PD, attribute::RES_PDN, What::Table(Kind::Pd)),
            command::RES_CTX_GET => (attribute::RES_CTX, attribute::RES_CTXN, What::Contexts),
            command::RES_SRQ_GET => (attribute::RES_SRQ, attribute::RES_SRQN, What::Table(Kind::Srq)),
            _ => return None,
        };
        Some(Self { table, number, what })
    }

    const fn entry(self) -> u16 {
        self.table + 1
    }
}

/// The position of an answer about objects.
#[derive(Debug)]
pub(super) struct Cursor {
    class: Class,
    device: usize,
    port: Option<u32>,
    /// Only the object with this number is wanted.
    only: Option<u32>,
    place: ObjectCursor,
}

#[derive(Debug)]
enum ObjectCursor {
    /// Contexts after this one.
    After(Option<ContextId>),
    /// Objects of a table from this index on.
    From(usize),
    /// Slots of ids from this one on.
    Ids(usize),
}

impl Cursor {
    /// All objects of a kind. For QPs, only those of `port` if it is given.
    pub(super) fn all(class: Class, device: usize, port: Option<u32>) -> Self {
        let place = match class.what {
            What::Table(_) => ObjectCursor::From(0),
            What::Contexts => ObjectCursor::After(None),
            What::Ids => ObjectCursor::Ids(0),
        };
        Self { class, device, port, only: None, place }
    }

    /// The object with this number.
    pub(super) fn one(class: Class, device: usize, number: u32) -> Self {
        Self { only: Some(number), ..Self::all(class, device, None) }
    }

    /// Whether one object is wanted.
    pub(super) fn is_for_one(&self) -> bool {
        self.only.is_some()
    }

    /// A piece of the ids of the connection manager: as many as fit, even if all of them have the
    /// longest entry.
    fn ids_piece(&mut self, page: &mut Page<'_>, start: usize, asker: Asker, manager: &Manager) -> bool {
        let (ids, next) = manager.listed(start, PLACES.min((ANSWER_MAX - 2 * ENTRY_MAX) / ENTRY_MAX));
        for id in ids.filter(|id| id.device.is_none_or(|at| at == self.device)) {
            if self.only.is_none_or(|only| only == id.name)
                && self.port.is_none_or(|port| id.port.is_none_or(|at| u32::from(at) == port))
            {
                page.entry(|to| cm_id(to, &id, asker));
            }
        }
        page.close();
        self.place = ObjectCursor::Ids(next.unwrap_or(usize::MAX));
        next.is_some()
    }

    /// The next context after `before`.
    fn context_piece(&mut self, page: &mut Page<'_>, before: Option<ContextId>, world: &World) -> bool {
        let from = before.map_or(Bound::Unbounded, Bound::Excluded);
        let Some((id, context)) = world.contexts.range((from, Bound::Unbounded)).next() else {
            page.close();
            return false;
        };
        self.place = ObjectCursor::After(Some(*id));
        if context.device == self.device && self.only.is_none_or(|only| only == id.0) {
            page.entry(|to| {
                to.word(attribute::RES_CTXN, id.0);
                to.word(attribute::RES_PID, context.peer.pid);
            });
        }
        true
    }

    /// Does one piece, and writes a message if it finds an object. Returns false after the last
    /// piece.
    pub(super) fn piece(
        &mut self,
        to: &mut Writer,
        header: &Header,
        asker: Asker,
        world: &World,
        manager: &Manager,
    ) -> bool {
        let Some(device) = world.devices.get(self.device) else { return false };
        let mut page = Page { table: None, to, header, device, class: self.class, only: self.only.is_some() };
        if let ObjectCursor::Ids(start) = self.place {
            return self.ids_piece(&mut page, start, asker, manager);
        }
        let (mut left, mut slots) = (PIECE, SLOTS);
        while left > 0 && slots > 0 {
            if page.to.len() + ENTRY_MAX > ANSWER_MAX {
                break;
            }
            slots -= 1;
            match &mut self.place {
                ObjectCursor::From(index) => {
                    let What::Table(kind) = self.class.what else { break };
                    let Some(found) = world.tables.at(kind, *index) else {
                        page.close();
                        return false;
                    };
                    *index += 1;
                    let Some((id, handle)) = found else { continue };
                    let Some(context) = world.contexts.get(&id).filter(|context| context.device == self.device) else {
                        continue;
                    };
                    left -= 1;
                    let Some((number, port)) = identity(world, id, kind, handle) else { continue };
                    let wanted = self.only.is_none_or(|only| only == number)
                        && self.port.is_none_or(|wanted| port.is_none_or(|port| port == wanted));
                    if wanted {
                        page.entry(|to| object(to, world, context, kind, handle, asker));
                    }
                }
                ObjectCursor::After(before) => {
                    left -= 1;
                    let before = *before;
                    if !self.context_piece(&mut page, before, world) {
                        return false;
                    }
                }
                ObjectCursor::Ids(_) => break,
            }
        }
        page.close();
        true
    }
}

/// A message with entries. It begins with its first entry.
struct Page<'a> {
    to: &'a mut Writer,
    table: Option<abi::netlink::Nest>,
    header: &'a Header,
    device: &'a Device,
    class: Class,
    /// The message is about one object, which needs no table.
    only: bool,
}

impl Page<'_> {
    fn entry(&mut self, fill: impl FnOnce(&mut Writer)) {
        if self.table.is_none() && (self.to.is_empty() || !self.only) {
            self.to.begin(self.header, if self.only { 0 } else { flag::MULTI });
            facts::handle(self.to, self.device);
            if !self.only {
                self.table = Some(self.to.nest(self.class.table));
            }
        }
        if self.only {
            return fill(self.to);
        }
        let nest = self.to.nest(self.class.entry());
        fill(self.to);
        self.to.end(nest);
    }

    fn close(&mut self) {
        if let Some(table) = self.table.take() {
            self.to.end(table);
        }
    }
}

/// The number of an object, and the port of a queue pair that has one.
fn identity(world: &World, id: ContextId, kind: Kind, handle: u32) -> Option<(u32, Option<u32>)> {
    Some(match kind {
        Kind::Pd => (world.tables.pds.find(id, handle)?.number, None),
        Kind::Cq => (world.tables.cqs.find(id, handle)?.number, None),
        Kind::Srq => (world.tables.srqs.find(id, handle)?.number, None),
        Kind::Qp => {
            let qp = world.tables.qps.find(id, handle)?;
            (qp.qpn, Some(u32::from(qp.attributes_now().port_num)).filter(|port| *port != 0))
        }
        // Regions have no number except their handles, and keys are secret.
        Kind::Mr => (handle & 0xf_ffff, None),
        _ => return None,
    })
}

/// The attributes that only a QP has. `full`: for somebody who may see its PSNs.
fn queue_pair(to: &mut Writer, qp: &Qp, number: u32, full: bool) {
    let now = qp.attributes_now();
    let word = |at: usize| qp.block.read(at);
    to.word(attribute::RES_LQPN, number);
    if matches!(qp.service, Service::Rc | Service::Uc) {
        to.word(attribute::RES_RQPN, now.dest_qp_num);
        if full {
            to.word(attribute::RES_RQ_PSN, word(qp_word::RQ_PSN));
        }
    }
    to.word(attribute::RES_SQ_PSN, if full { word(qp_word::SQ_PSN) } else { 0 });
    if qp.service != Service::Ud {
        to.byte(attribute::RES_PATH_MIG_STATE, now.path_mig_state);
    }
    to.byte(attribute::RES_TYPE, kind_of(qp.service));
    to.byte(attribute::RES_STATE, qp.state() as u8);
}

/// The attributes of an object.
fn object(to: &mut Writer, world: &World, context: &Context, kind: Kind, handle: u32, asker: Asker) {
    let id = context.id;
    let full = asker.may_see(context.peer.uid);
    let Some((number, port)) = identity(world, id, kind, handle) else { return };
    let pd = |to: &mut Writer, handle: u32| {
        if let Some(pd) = world.tables.pds.find(id, handle) {
            to.word(attribute::RES_PDN, pd.number);
        }
    };
    match kind {
        Kind::Pd => {
            to.word(attribute::RES_PDN, number);
            to.long(attribute::RES_USECNT, world.tables.pds.find(id, handle).map_or(0, |pd| pd.users.into()));
            to.word(attribute::RES_CTXN, id.0);
        }
        Kind::Cq => {
            let found = world.tables.cqs.find(id, handle);
            to.word(attribute::RES_CQN, number);
            to.word(attribute::RES_CQE, found.map_or(0, |cq| cq.entries));
            to.long(attribute::RES_USECNT, found.map_or(0, |cq| cq.users.into()));
            to.byte(attribute::DEV_DIM, 0);
            to.word(attribute::RES_CTXN, id.0);
        }
        Kind::Mr => {
            let Some(mr) = world.tables.mrs.find(id, handle) else { return };
            if full {
                to.word(attribute::RES_RKEY, mr.key);
                to.word(attribute::RES_LKEY, mr.key);
                to.long(attribute::RES_IOVA, mr.hca_va);
            }
            to.long(attribute::RES_MRLEN, mr.length);
            to.word(attribute::RES_MRN, number);
            pd(to, mr.pd);
        }
        Kind::Srq => {
            let Some(srq) = world.tables.srqs.find(id, handle) else { return };
            to.word(attribute::RES_SRQN, number);
            to.byte(attribute::RES_TYPE, u8::from(srq.xrc.is_some()));
            pd(to, srq.pd);
        }
        Kind::Qp => {
            let Some(qp) = world.tables.qps.find(id, handle) else { return };
            port.into_iter().for_each(|port| to.word(attribute::PORT_INDEX, port));
            queue_pair(to, qp, number, full);
            pd(to, qp.pd);
        }
        _ => return,
    }
    to.word(attribute::RES_PID, context.peer.pid);
}

/// The number of a service in `enum ib_qp_type`.
fn kind_of(service: Service) -> u8 {
    match service {
        Service::Rc => kind::RC,
        Service::Uc => kind::UC,
        Service::Ud => kind::UD,
        Service::XrcIni => kind::XRC_INI,
        Service::XrcTgt => kind::XRC_TGT,
    }
}

/// The attributes of an id.
fn cm_id(to: &mut Writer, id: &Listed, asker: Asker) {
    if let Some(port) = id.port {
        to.word(attribute::PORT_INDEX, port.into());
    }
    if id.qpn != 0 && asker.may_see(id.uid) {
        to.word(attribute::RES_LQPN, id.qpn);
        to.byte(attribute::RES_TYPE, id.kind);
    }
    to.byte(attribute::RES_STATE, id.state);
    to.word(attribute::RES_PS, id.space.into());
    for (number, address) in [(attribute::RES_SRC_ADDR, &id.local), (attribute::RES_DST_ADDR, &id.remote)] {
        if let Some(address) = address {
            to.bytes(number, &address.emit().0);
        }
    }
    to.word(attribute::RES_CM_IDN, id.name);
    to.word(attribute::RES_PID, id.pid);
}

/// Counts the ids of a device, in pieces.
#[derive(Debug, Default)]
pub(super) struct IdCount {
    start: usize,
    count: u64,
}

impl IdCount {
    /// Does one piece. Returns true when all ids are counted.
    pub(super) fn go_on(&mut self, manager: &Manager, device: usize) -> bool {
        let (ids, next) = manager.listed(self.start, PLACES);
        self.count += ids.filter(|id| id.device.is_none_or(|at| at == device)).count() as u64;
        self.start = next.unwrap_or(self.start);
        next.is_none()
    }

    /// How many there are.
    pub(super) fn found(&self) -> u64 {
        self.count
    }
}
