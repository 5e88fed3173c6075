//! Carries out a command of the node `rdma_cm`. This file checks the header. The file of the
//! command's subject carries the command out. Then the outcome becomes a reply.

use abi::Errno;
use abi::ucma::{self, Command, command};

use super::channel::{ChannelId, EVENTS_MAX};
use super::id::{Id, Stage};
use super::{ChannelIds, Manager};
use crate::dispatch::Reply;
use crate::headroom;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// One admitted command.
#[derive(Clone, Copy)]
pub(super) struct CmCall<'a> {
    /// The channel that sent it.
    pub(super) channel: ChannelId,
    pub(super) command: Command<'a>,
}

impl Manager {
    /// Carries out one command of a channel. Before it returns, the command's events are in the
    /// channel and the client has been notified.
    pub(crate) fn serve(&mut self, world: &mut World, channel: ChannelId, request: &[u8]) -> Reply {
        let reply = self.dispatch(world, channel, request);
        self.announce_all(world);
        reply
    }

    /// Carries out one command of a channel. Its events are then in the channel, and the client has
    /// not been notified.
    fn dispatch(&mut self, world: &mut World, channel: ChannelId, request: &[u8]) -> Reply {
        let outcome = match ucma::admit(request) {
            Ok(command) => self.carry_out(world, &CmCall { channel, command }),
            Err(errno) => refuse(errno, why(errno)),
        };
        self.take_outputs(world);
        match outcome {
            Ok(bytes) => Reply { status: 0, bytes, fds: Vec::new() },
            Err(refusal) => {
                // A program that polls for events gets EAGAIN again and again.
                if refusal.errno != Errno::EAGAIN {
                    tracing::debug!(channel = channel.0, %refusal, "refused");
                }
                refusal.into()
            }
        }
    }

    fn carry_out(&mut self, world: &mut World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        use command::{DESTROY_ID, GET_EVENT, LEAVE_MCAST, NEXT_EVENT};
        let gives_back = matches!(call.command.number(), DESTROY_ID | LEAVE_MCAST | GET_EVENT | NEXT_EVENT);
        if !gives_back {
            headroom::check()?;
        }
        match call.command.number() {
            command::CREATE_ID => self.create_id(call),
            command::DESTROY_ID => self.destroy_id(call),
            command::RENEW_ID => self.renew_id(call),
            command::MIGRATE_ID => self.migrate_id(call),
            command::SET_OPTION => self.set_option(call),
            command::GET_EVENT => self.get_event(call),
            command::NEXT_EVENT => self.next_event(world, call),
            command::TAKEN => self.taken(call),
            command::WAKE => self.notify_as_asked(call),
            command::WRITE_CM_EVENT => self.write_event(call),
            command::CHANNEL => self.tell_channel(call),
            command::FREEZE_QP => self.freeze_qp(world, call),

            command::BIND_IP => self.bind_ip(call),
            command::BIND => self.bind(call),
            command::LISTEN => self.listen(call),

            command::RESOLVE_IP => self.resolve_ip(world, call),
            command::RESOLVE_ADDR => self.resolve_addr(world, call),
            command::RESOLVE_ROUTE => self.resolve_route(call),
            command::QUERY_ROUTE => self.query_route(world, call),
            command::QUERY => self.query(world, call),

            command::CONNECT => self.connect_id(world, call),
            command::ACCEPT => self.accept_id(world, call),
            command::REJECT => self.reject_id(call),
            command::DISCONNECT => self.disconnect_id(call),
            command::NOTIFY => self.notify(call),
            command::INIT_QP_ATTR => self.init_qp_attr(call),

            command::JOIN_IP_MCAST => self.join_ip(call),
            command::JOIN_MCAST => self.join(call),
            command::LEAVE_MCAST => self.leave(call),
            _ => refuse(Errno::ENOSYS, format!("{} is not implemented", call.command.row.name)),
        }
    }

    /// The channel of a call.
    pub(super) fn owner(&mut self, channel: ChannelId) -> Outcome<&mut ChannelIds> {
        self.channels.get_mut(&channel).map_or_else(|| refuse(Errno::EBADF, "the event channel has ended"), Ok)
    }

    /// The id that a call names, if it belongs to the call's channel.
    pub(super) fn id(&mut self, call: &CmCall<'_>, name: u32) -> Outcome<&mut Id> {
        match self.ids.get_mut(name) {
            Some(id) if id.channel == call.channel => Ok(id),
            _ => refuse(Errno::ENOENT, format!("id {name:#x} does not belong to this event channel")),
        }
    }

    /// Like [`Manager::id`], and checks that the id is in one of `stages`.
    pub(super) fn id_in(&mut self, call: &CmCall<'_>, name: u32, stages: &[Stage]) -> Outcome<&mut Id> {
        let id = self.id(call, name)?;
        if stages.contains(&id.stage) {
            return Ok(id);
        }
        let (what, stage) = (call.command.row.name, id.stage);
        let listed: Vec<String> = stages.iter().map(ToString::to_string).collect();
        refuse(Errno::EINVAL, format!("{what}: id {name:#x} is {stage}; it has to be {}", listed.join(" or ")))
    }

    /// Checks that a call may cause one more event.
    pub(super) fn check_room(&mut self, call: &CmCall<'_>) -> Outcome<()> {
        let owner = self.owner(call.channel)?;
        if owner.channel.has_room() {
            let uid = owner.channel.peer.uid;
            if self.has_room_for_events(uid) {
                return Ok(());
            }
            return refuse(
                Errno::ENOMEM,
                format!("the limit of waiting events for user {uid} is reached; get some events first"),
            );
        }
        let waiting = owner.channel.waiting();
        if waiting < EVENTS_MAX {
            return refuse(Errno::ENOMEM, "the agent has no memory for one more event");
        }
        refuse(
            Errno::ENOMEM,
            format!(
                "the limit of waiting events is reached: {waiting} wait in this event channel; get some events first"
            ),
        )
    }
}

/// Says what is wrong with a command's header.
fn why(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSYS => "the command is not implemented",
        Errno::ENOSPC => "there is too little room for the command's answer",
        _ => "the command is not known, or shorter than it has to be",
    }
}
