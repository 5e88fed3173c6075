//! Commands about ids themselves: CREATE_ID, DESTROY_ID, MIGRATE_ID, SET_OPTION, GET_EVENT,
//! WRITE_CM_EVENT; and softhca's own CHANNEL and FREEZE_QP.

use std::sync::atomic::Ordering;

use abi::Errno;
use abi::layout::Record;
use abi::qp::kind;
use abi::queue::qp as word;
use abi::ucma::address::{PathRecData, path_flags};
use abi::ucma::connection::{EventAnswer, UdParam, WriteCmEvent, event};
use abi::ucma::id::{
    ChannelAnswer, CreateId, CreateIdAnswer, DestroyId, DestroyIdAnswer, FreezeQp, MigrateId, RenewId, RenewIdAnswer,
    SetOption, ib_option, level, option,
};
use abi::ucma::port_space;

use super::Manager;
use super::channel::{ChannelId, Event};
use super::dispatch::CmCall;
use super::id::{Id, Stage};
use super::query::path_of;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

impl Manager {
    pub(super) fn create_id(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let body: CreateId = call.command.body();
        let name = self.make_id(call, body.uid, body.ps, body.qp_type)?;
        Ok(call.command.answer(&CreateIdAnswer { id: name }))
    }

    fn make_id(&mut self, call: &CmCall<'_>, uid: u64, ps: u16, qp_type: u8) -> Outcome<u32> {
        let kind = match (ps, qp_type) {
            (port_space::TCP, kind::UC) => kind::UC,
            (port_space::TCP, _) => kind::RC,
            (port_space::UDP | port_space::IPOIB, _) => kind::UD,
            (port_space::IB, kind @ (kind::RC | kind::UC | kind::UD | kind::XRC_INI | kind::XRC_TGT)) => kind,
            (port_space::IB, other) => {
                return refuse(Errno::EINVAL, format!("QP type {other} is not one of RC, UC, UD and XRC"));
            }
            (other, _) => return refuse(Errno::EINVAL, format!("port space {other:#x} is not known")),
        };
        let id = Id::new(call.channel, uid, ps, kind);
        let full =
            || refuse(Errno::ENOMEM, "the limit of ids of this user or of the agent is reached, or there is no memory");
        self.add(id).map_or_else(full, Ok)
    }

    pub(super) fn renew_id(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let RenewId { uid, id: name, ps, qp_type, .. } = call.command.body();
        self.id(call, name)?;
        let (events_reported, event_bytes) = self.end(name);
        let id = self.make_id(call, uid, ps, qp_type).unwrap_or(0);
        Ok(call.command.answer(&RenewIdAnswer { events_reported, event_bytes, id }))
    }

    pub(super) fn destroy_id(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let DestroyId { id: name, .. } = call.command.body();
        self.id(call, name)?;
        let (events_reported, event_bytes) = self.end(name);
        Ok(call.command.answer(&DestroyIdAnswer { events_reported, event_bytes }))
    }

    /// Moves an id and its waiting events from another channel of the same user to the caller's
    /// channel.
    pub(super) fn migrate_id(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let MigrateId { id: name, fd: token, .. } = call.command.body();
        let to = call.channel;
        let uid = self.owner(to)?.channel.peer.uid;
        let from = self.tokens.get(&token).copied();
        let from = from.filter(|from| self.channels.get(from).is_some_and(|owner| owner.channel.peer.uid == uid));
        let Some(from) = from else {
            return refuse(Errno::EINVAL, format!("no event channel of this user has the number {token:#x}"));
        };
        let (reported, queued) = match self.ids.get(name) {
            Some(id) if id.channel == from => (id.events.reported, id.events.queued as usize),
            _ => {
                return refuse(Errno::ENOENT, format!("id {name:#x} is none of the event channel that it is to leave"));
            }
        };
        let mut event_bytes = 0;
        if from != to {
            self.check_room(call)?;
            let mut events = Vec::new();
            if !self.owner(to)?.channel.reserve(queued) || events.try_reserve_exact(queued).is_err() {
                return refuse(
                    Errno::ENOMEM,
                    format!("the agent has no memory for the {queued} events of id {name:#x}"),
                );
            }
            let from_channel = &mut self.owner(from)?.channel;
            event_bytes = from_channel.take_out(|of, _| of == name, |event| events.push(event)).1;
            self.move_to(name, from, to);
            for event in events {
                if let Some(request) = event.request {
                    self.move_to(request, from, to);
                }
                if let Some(owner) = self.channels.get_mut(&to) {
                    // The memory is reserved.
                    owner.channel.push(event);
                }
            }
            self.notices.to_notify.push(to);
        }
        Ok(call.command.answer(&DestroyIdAnswer { events_reported: reported, event_bytes }))
    }

    fn move_to(&mut self, name: u32, from: ChannelId, to: ChannelId) {
        let Some(id) = self.ids.get_mut(name) else { return };
        id.channel = to;
        for member in id.members.clone() {
            if let Some(member) = self.members.get_mut(member) {
                member.channel = to;
            }
        }
        if let Some(owner) = self.channels.get_mut(&from) {
            owner.ids.remove(&name);
        }
        if let Some(owner) = self.channels.get_mut(&to) {
            owner.ids.insert(name);
        }
    }

    pub(super) fn set_option(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let SetOption { id: name, level, optname, optlen, .. } = call.command.body();
        let value = call.command.tail::<SetOption>();
        let Some(value) = value.get(..optlen as usize) else {
            return refuse(Errno::EINVAL, format!("an option of {optlen} bytes came with {}", value.len()));
        };
        let id = self.id(call, name)?;
        let wrong = || refuse(Errno::EINVAL, format!("option {optname} of level {level} has not {optlen} bytes"));
        match (level, optname) {
            (level::ID, option::TOS) => match *value {
                [tos] => id.options.tos = tos,
                _ => return wrong(),
            },
            (level::ID, option::ACK_TIMEOUT) => match *value {
                [code] if code <= 31 && !id.is_datagram() => id.options.ack_timeout = Some(code),
                [_] => return refuse(Errno::EINVAL, "an acknowledge timeout is 0 to 31, and datagrams have none"),
                _ => return wrong(),
            },
            (level::ID, option::REUSEADDR | option::AFONLY) => {
                let Ok(value) = <[u8; 4]>::try_from(value) else { return wrong() };
                return self.set_sharing(call, name, optname, i32::from_ne_bytes(value) != 0);
            }
            (level::IB, ib_option::PATH) => return self.set_path(call, name),
            _ => return refuse(Errno::ENOSYS, format!("option {optname} of level {level} is not known")),
        }
        Ok(Vec::new())
    }

    /// Sets the options that decide which other ids may share the id's port.
    fn set_sharing(&mut self, call: &CmCall<'_>, name: u32, optname: u32, on: bool) -> Outcome<Vec<u8>> {
        let id = self.id_in(call, name, &[Stage::Idle, Stage::Bound])?;
        match optname {
            option::REUSEADDR => id.options.reuse = on,
            _ => id.options.af_only = Some(on),
        }
        if let Some(service) = id.service {
            self.ports.update(service, name, |holder| match optname {
                option::REUSEADDR => holder.reuse = on,
                _ => holder.af_only = on,
            });
        }
        Ok(Vec::new())
    }

    /// Sets the route that the program chose.
    fn set_path(&mut self, call: &CmCall<'_>, name: u32) -> Outcome<Vec<u8>> {
        self.check_room(call)?;
        let wanted = path_flags::GMP | path_flags::PRIMARY | path_flags::OUTBOUND | path_flags::INBOUND_REVERSE;
        let paths = call.command.tail::<SetOption>().chunks_exact(size_of::<PathRecData>());
        let path = paths.filter_map(PathRecData::read).find(|path| path.flags & wanted == wanted);
        let Some(path) = path else {
            return refuse(Errno::EINVAL, "none of the paths is for both directions and for management");
        };
        let path = path_of(&path.path_rec);
        let id = self.id_in(call, name, &[Stage::AddressResolved])?;
        if id.attachment.is_none_or(|at| at.gid != path.sgid) || id.target != Some(path.dgid) {
            return refuse(Errno::EINVAL, "the path leads from or to other addresses than those that were resolved");
        }
        if !(1..=5).contains(&path.mtu) {
            return refuse(Errno::EINVAL, format!("the path's MTU code {} is not 1 to 5", path.mtu));
        }
        id.path = Some(path);
        id.stage = Stage::RouteResolved;
        self.tell(name, event::ROUTE_RESOLVED, 0, UdParam::default(), String::new());
        Ok(Vec::new())
    }

    pub(super) fn write_event(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let body: WriteCmEvent = call.command.body();
        self.check_room(call)?;
        let id = self.id(call, body.id)?;
        if body.event != event::USER && body.event != event::INTERNAL {
            return refuse(Errno::EINVAL, format!("event {} is not the program's to write", body.event));
        }
        let answer = EventAnswer {
            uid: id.uid,
            id: body.id,
            event: body.event,
            status: body.status,
            param: body.param,
            ..EventAnswer::default()
        };
        self.queue(body.id, Event { answer, id: body.id, member: None, request: None, sentence: String::new() });
        Ok(Vec::new())
    }

    pub(super) fn tell_channel(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let channel = self.owner(call.channel)?.channel.token;
        Ok(call.command.answer(&ChannelAnswer { channel }))
    }

    pub(super) fn freeze_qp(&mut self, world: &mut World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let FreezeQp { qp_num, frozen } = call.command.body();
        let uid = self.owner(call.channel)?.channel.peer.uid;
        let found = world.qp_with_number(qp_num);
        let own = found.filter(|(id, _)| world.contexts.get(id).is_some_and(|context| context.peer.uid == uid));
        match own.and_then(|(context, handle)| world.tables.qps.find_mut(context, handle)) {
            Some(qp) if frozen <= 1 => {
                qp.frozen = frozen == 1;
                // Release: an engine that is notified to continue must see the word.
                qp.block.word(word::FROZEN).store(frozen, Ordering::Release);
            }
            Some(_) => return refuse(Errno::EINVAL, format!("a QP is frozen (1) or not (0), not {frozen}")),
            None => return refuse(Errno::EINVAL, format!("QP {qp_num:#x} is none of the caller's")),
        }
        Ok(Vec::new())
    }
}
