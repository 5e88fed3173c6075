//! Requests to subnet administration, for ports of a topology: paths for RESOLVE_ROUTE, and
//! memberships of multicast groups. IBA 15.2.5.16, 15.2.5.17. The answers come later, and become
//! the events of the program. Adds to [`Manager`].

use std::time::Duration;

use abi::Errno;
use abi::ucma::connection::{EventAnswer, UdParam, event};
use protocol::cm::{Mad, Path};
use wire::layout::Layout;
use wire::mad::{self, CLASS_SA, MAD_LEN, METHOD_DELETE, METHOD_GET, METHOD_SET};
use wire::sa::{self, McMemberRecord, PathRecord};

use super::attributes::vector;
use super::channel::Event;
use super::id::{Membership, Stage};
use super::locals::{Attachment, InFabric};
use super::query::path_of;
use super::questions::Subject;
use super::{GROUP_QPN, Manager};
use crate::ids::PortId;
use crate::outward::{Outward, OutwardKind, SaReply};
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// Maximum number of requests that wait for an answer.
const WAITING_MAX: usize = 4096;
/// How long a program waits for a membership.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);

impl Manager {
    /// Asks for the path from a port to a GID. The id waits until the answer comes.
    pub(super) fn ask_for_path(
        &mut self,
        name: u32,
        (at, target): (&Attachment, [u8; 16]),
        timeout_ms: u32,
    ) -> Outcome<Vec<u8>> {
        let Some(id) = self.ids.get(name) else { return Ok(Vec::new()) };
        let record = PathRecord {
            dgid: target,
            sgid: at.gid,
            reversible: true,
            number: 1,
            traffic_class: id.options.tos,
            pkey: at.pkey,
            ..PathRecord::default()
        };
        type R = PathRecord;
        let mask = R::DGID | R::SGID | R::REVERSIBLE | R::NUMBER | R::PKEY;
        let mask = if id.options.tos == 0 { mask } else { mask | R::TRAFFIC_CLASS };
        let timeout = Duration::from_millis(timeout_ms.into());
        let request = datagram(METHOD_GET, R::ATTRIBUTE, record, mask);
        self.ask(at, Subject::Path(name), request, timeout)?;
        if let Some(id) = self.ids.get_mut(name) {
            id.stage = Stage::Resolving;
        }
        Ok(Vec::new())
    }

    /// Asks for a membership of a group in the subnet, with a join state of [`McMemberRecord`].
    pub(super) fn join_in_subnet(&mut self, name: u32, qkey: u32) -> Outcome<()> {
        let Some(Membership { gid, joined: Some((at, state)), .. }) = self.members.get(name) else { return Ok(()) };
        let (mgid, at, join_state) = (*gid, *at, *state);
        type R = McMemberRecord;
        let record = R { mgid, port_gid: at.gid, join_state, qkey, pkey: at.pkey, ..R::default() };
        let values = R::PKEY | R::QKEY | R::SL | R::FLOW_LABEL | R::TRAFFIC_CLASS;
        let mask = R::MGID | R::PORT_GID | R::JOIN_STATE | values;
        let request = datagram(METHOD_SET, R::ATTRIBUTE, record, mask);
        self.ask(&at, Subject::Member(name), request, JOIN_TIMEOUT)?;
        *self.lookups.questions.memberships.entry((port_of(&at), mgid, join_state)).or_default() += 1;
        Ok(())
    }

    /// Ends a membership in the subnet if it was the last one of its port.
    pub(super) fn leave_in_subnet(&mut self, member: &Membership) {
        let Some((at, join_state)) = member.joined else { return };
        let key = (port_of(&at), member.gid, join_state);
        let Some(count) = self.lookups.questions.memberships.get_mut(&key) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.lookups.questions.memberships.remove(&key);
        type R = McMemberRecord;
        let record = R { mgid: member.gid, port_gid: at.gid, join_state, ..R::default() };
        let request = datagram(METHOD_DELETE, R::ATTRIBUTE, record, R::MGID | R::PORT_GID | R::JOIN_STATE);
        if let Err(refusal) = self.ask(&at, Subject::Nobody, request, JOIN_TIMEOUT) {
            tracing::debug!(%refusal, "the subnet manager does not hear that a group was left");
        }
    }

    /// Sends a request to the subnet manager of a port.
    fn ask(&mut self, at: &Attachment, subject: Subject, mut mad: Mad, timeout: Duration) -> Outcome<()> {
        // The manager may have come after the id was bound.
        let fabric = self.locals.with_gid(&at.gid).and_then(|at| at.fabric);
        let Some(InFabric { is_active: true, sm_lid: lid @ 1.., sm_sl: sl }) = fabric else {
            return refuse(Errno::EAGAIN, "the port has no subnet manager, or is not active");
        };
        let questions = &mut self.lookups.questions;
        if questions.waiting.len() >= WAITING_MAX {
            return refuse(Errno::EAGAIN, format!("{WAITING_MAX} requests wait for a subnet manager already"));
        }
        questions.last = questions.last.wrapping_add(1);
        let mut header = mad::Header::of(&mad);
        header.transaction = questions.last.into();
        header.emit_to(&mut mad);
        let (from, pkey, kind) = (port_of(at), wire::pkey::DEFAULT, OutwardKind::Question(timeout));
        if !self.mail.fabric.push(Outward { from, path_bits: 0, lid, sl, pkey, route: None, mad, kind }) {
            return refuse(Errno::ENOMEM, "too many datagrams wait for the switches");
        }
        questions.waiting.insert(questions.last, subject);
        Ok(())
    }

    /// Handles the answers of subnet managers.
    pub(crate) fn on_answers(&mut self, world: &World, answers: Vec<SaReply>) {
        for SaReply { transaction, mad } in answers {
            match self.lookups.questions.waiting.remove(&transaction) {
                Some(Subject::Path(name)) => self.on_path(name, mad.as_ref()),
                Some(Subject::Member(name)) => self.on_membership(name, mad.as_ref()),
                Some(Subject::Nobody) | None => {}
            }
        }
        self.settle(world);
    }

    fn on_path(&mut self, name: u32, answer: Option<&Mad>) {
        let Some(id) = self.ids.get_mut(name).filter(|id| id.stage == Stage::Resolving) else { return };
        let route = record::<PathRecord>(answer).and_then(|_| {
            let data = answer.and_then(|mad| mad.get(sa::DATA..)?.first_chunk::<64>());
            data.map(path_of).ok_or((Errno::EINVAL, String::new()))
        });
        match route {
            Ok(path) => {
                let packet_life = id.options.ack_timeout.map_or(path.packet_life, |code| code.saturating_sub(1));
                id.path = Some(Path { packet_life, ..path });
                id.stage = Stage::RouteResolved;
                self.tell(name, event::ROUTE_RESOLVED, 0, UdParam::default(), String::new());
            }
            Err((errno, why)) => {
                id.stage = Stage::AddressResolved;
                let text = format!("there is no path: {why}");
                self.tell(name, event::ROUTE_ERROR, errno.to_status(), UdParam::default(), text);
            }
        }
    }

    fn on_membership(&mut self, name: u32, answer: Option<&Mad>) {
        let Some(Membership { id, uid, joined: Some((at, _)), .. }) = self.members.get(name) else { return };
        let (id, uid, at) = (*id, *uid, *at);
        let outcome = record::<McMemberRecord>(answer);
        let base = EventAnswer { uid, id: name, ..EventAnswer::default() };
        let (answer, sentence) = match outcome {
            Ok(record) => {
                let path = group_path(&record, at.gid);
                let param =
                    UdParam { qp_num: GROUP_QPN, qkey: record.qkey, ah_attr: vector(&path, &at), ..UdParam::default() };
                (EventAnswer { event: event::MULTICAST_JOIN, param, ..base }, String::new())
            }
            Err((errno, why)) => {
                let status = errno.to_status().cast_unsigned();
                (EventAnswer { event: event::MULTICAST_ERROR, status, ..base }, format!("cannot join: {why}"))
            }
        };
        self.queue(id, Event { answer, id, member: Some(name), request: None, sentence });
    }
}

fn port_of(at: &Attachment) -> PortId {
    PortId { device: at.device, port: at.port }
}

/// The path to a group. Packets to a group always have a GRH.
fn group_path(record: &McMemberRecord, sgid: [u8; 16]) -> Path {
    Path {
        sgid,
        dgid: record.mgid,
        slid: 0,
        dlid: record.mlid,
        flow_label: record.flow_label,
        traffic_class: record.traffic_class,
        hop_limit: record.hop_limit.max(2),
        sl: record.sl,
        pkey: record.pkey,
        mtu: record.mtu,
        rate: record.rate,
        packet_life: record.life,
    }
}

/// The record in an answer. An error is the errno of Linux, and what the manager said.
fn record<R: Layout>(answer: Option<&Mad>) -> Result<R, (Errno, String)> {
    let Some(answer) = answer else {
        return Err((Errno::ETIMEDOUT, "the subnet manager does not answer".to_owned()));
    };
    match mad::Header::of(answer).status {
        0 => R::read(&answer[sa::DATA..]).ok_or((Errno::EINVAL, "the answer has no record".to_owned())),
        sa::STATUS_NO_RECORDS => Err((Errno::EINVAL, "the subnet manager knows none".to_owned())),
        status => Err((Errno::EINVAL, format!("the subnet manager refuses (status {status:#06x})"))),
    }
}

fn datagram<R: Layout>(method: u8, attribute: u16, record: R, component_mask: u64) -> Mad {
    let mut datagram = [0; MAD_LEN];
    sa::Header { component_mask, ..sa::Header::default() }.emit(&mut datagram);
    let header = mad::Header {
        base_version: mad::BASE_VERSION,
        class: CLASS_SA,
        class_version: sa::CLASS_VERSION,
        method,
        attribute,
        ..mad::Header::default()
    };
    header.emit_to(&mut datagram);
    record.write(&mut datagram[sa::DATA..]);
    datagram
}
