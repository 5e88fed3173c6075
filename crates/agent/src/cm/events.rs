//! Taking events: GET_EVENT as in Linux, and NEXT_EVENT. With the event, NEXT_EVENT also answers
//! what its id knows now, so that a client need not ask four times for one connection. If a client
//! wants to be told, the event socket brings the same answer without a command.

use std::os::fd::BorrowedFd;

use abi::Errno;
use abi::layout::Record;
use abi::qp::state;
use abi::ucma::connection::{EVENT_MIN, EventAnswer, NextEventAnswer, event, known};
use abi::ucma::id::{Taken, Wake};
use abi::ucma::{SENTENCE_MAX, event_message};

use super::Manager;
use super::attributes::attributes;
use super::channel::{ChannelId, Event, Notified};
use super::dispatch::CmCall;
use super::query::{addresses, own_gid, path_data, peer_gid, shown_path};
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// Maximum number of notifications without an event that one WAKE command may request.
const NOTIFICATIONS_MAX: u32 = 1 << 16;

impl Manager {
    pub(super) fn get_event(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let (_, (answer, sentence)) = self.take_event(call)?;
        let mut bytes = call.command.answer(&answer);
        append(&mut bytes, &sentence, call.command.room.saturating_sub(size_of::<EventAnswer>()));
        debug_assert!(bytes.len() >= EVENT_MIN, "the room was checked");
        Ok(bytes)
    }

    /// Announces through a channel's event socket the events that have not been announced.
    pub(super) fn announce(&mut self, world: &World, name: ChannelId) {
        let Some(owner) = self.channels.get_mut(&name) else { return };
        if !owner.channel.told {
            return owner.channel.notify();
        }
        let mut notified = owner.channel.notify_as_asked();
        while notified == Notified::Done {
            let Some(owner) = self.channels.get(&name) else { return };
            let Some(event) = owner.channel.unsaid() else { return };
            let (id, request) = (event.id, event.request.is_some());
            // The client counts an event in a message against its id. An event of a membership
            // counts against the membership, so the client must ask the agent for it.
            let whole = event.member.is_none();
            let message = if whole { self.told(world, event) } else { vec![event_message::ASK] };
            let Some(owner) = self.channels.get_mut(&name) else { return };
            notified = owner.channel.say_next(&message, whole);
            if notified == Notified::Done
                && whole
                && let Some(id) = self.ids.get_mut(id)
            {
                id.events.queued = id.events.queued.saturating_sub(1);
                id.events.reported += 1;
                id.events.untaken += u32::from(request);
            }
        }
        if !self.notices.full.contains(&name) {
            self.notices.full.push(name);
        }
    }

    /// Channels whose event socket was found full since the last call.
    pub(crate) fn take_full(&mut self) -> Vec<ChannelId> {
        std::mem::take(&mut self.notices.full)
    }

    /// Whether the event socket of a channel was found full since the last [`Manager::take_full`].
    pub(crate) fn has_full(&self) -> bool {
        !self.notices.full.is_empty()
    }

    /// A channel's event socket.
    pub(crate) fn event_socket(&self, channel: ChannelId) -> Option<BorrowedFd<'_>> {
        self.channels.get(&channel).map(|owner| owner.channel.event_socket())
    }

    /// Continues when a channel's event socket has room again.
    pub(crate) fn on_room(&mut self, world: &World, channel: ChannelId) {
        self.announce(world, channel);
    }

    /// An event as the event socket brings it.
    fn told(&self, world: &World, event: &Event) -> Vec<u8> {
        let mut next = NextEventAnswer { event: event.answer, counts: event.id, ..NextEventAnswer::default() };
        self.add_known(world, &mut next);
        let mut bytes = next.bytes().to_vec();
        append(&mut bytes, &event.sentence, SENTENCE_MAX);
        bytes
    }

    /// Counts requests that came through the event socket and that the client has read.
    pub(super) fn taken(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Taken { id: name, count } = call.command.body();
        let id = self.id(call, name)?;
        let count = count.min(id.events.untaken);
        id.events.untaken -= count;
        id.backlog += count;
        Ok(Vec::new())
    }

    /// The client keeps messages that it has read from the event socket. It asks for one
    /// notification without an event for each of them, so that its program wakes for the kept
    /// messages.
    pub(super) fn notify_as_asked(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Wake { count, .. } = call.command.body();
        let owner = self.owner(call.channel)?;
        if !owner.channel.told || count > NOTIFICATIONS_MAX {
            return refuse(Errno::EINVAL, format!("{count} notifications without an event: not supported"));
        }
        owner.channel.owe_notifications(count);
        self.notices.to_notify.push(call.channel);
        Ok(Vec::new())
    }

    pub(super) fn next_event(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let (counts, (answer, sentence)) = self.take_event(call)?;
        let mut next = NextEventAnswer { event: answer, counts, ..NextEventAnswer::default() };
        self.add_known(world, &mut next);
        let mut bytes = next.bytes().to_vec();
        append(&mut bytes, &sentence, call.command.room.saturating_sub(size_of::<NextEventAnswer>()));
        Ok(bytes)
    }

    /// Takes the oldest event from the channel. The event counts as given out, for the id that is
    /// returned with it.
    fn take_event(&mut self, call: &CmCall<'_>) -> Outcome<(u32, (EventAnswer, String))> {
        let owner = self.owner(call.channel)?;
        let Some(Event { answer, id: name, member, request, sentence }) = owner.channel.pop() else {
            return refuse(Errno::EAGAIN, "there is no event");
        };
        self.notices.to_notify.push(call.channel);
        if let Some(id) = self.ids.get_mut(name) {
            id.events.queued = id.events.queued.saturating_sub(1);
            // An event of a membership counts at the membership.
            id.events.reported += u32::from(member.is_none());
            id.backlog += u32::from(request.is_some());
        }
        if let Some(member) = member.and_then(|member| self.members.get_mut(member)) {
            member.reported += 1;
        }
        Ok((if member.is_none() { name } else { 0 }, (answer, sentence)))
    }

    /// Adds what the client would ask about the id next, as far as it is known.
    fn add_known(&self, world: &World, next: &mut NextEventAnswer) {
        let wanted = match next.event.event {
            event::ADDR_RESOLVED => known::ADDRESSES | known::INIT,
            event::ROUTE_RESOLVED => known::PATH | known::INIT,
            event::CONNECT_REQUEST => known::ADDRESSES | known::PATH | known::INIT | known::RTR | known::RTS,
            event::CONNECT_RESPONSE => known::INIT | known::RTR | known::RTS,
            _ => return,
        };
        let Some(id) = self.ids.get(next.event.id) else { return };
        if wanted & known::ADDRESSES != 0 {
            next.addresses = addresses(world, id);
            next.sgid = id.attachment.map_or([0; 16], |at| own_gid(world, &at));
            next.dgid = peer_gid(id).unwrap_or_default();
            next.known |= known::ADDRESSES;
        }
        if let Some(path) = shown_path(id).filter(|_| wanted & known::PATH != 0) {
            next.path = path_data(id, path);
            next.known |= known::PATH;
        }
        let Some(at) = &id.attachment else { return };
        let connection = self.connection_of(id);
        // Without an index there are no attributes. The program then asks for them and gets the
        // reason.
        let Some(pkey_index) = self.locals.pkey_index(at, id.pkey().unwrap_or(at.pkey)) else { return };
        let attributes = |bit: u32, state: u8| {
            (wanted & bit != 0)
                .then(|| attributes(id, (at, pkey_index), connection.as_ref(), u32::from(state)))
                .flatten()
        };
        for (bit, state, place) in [
            (known::INIT, state::INIT, &mut next.init),
            (known::RTR, state::RTR, &mut next.rtr),
            (known::RTS, state::RTS, &mut next.rts),
        ] {
            if let Some(told) = attributes(bit, state) {
                *place = told;
                next.known |= bit;
            }
        }
    }
}

/// Appends the part of a sentence that fits.
fn append(bytes: &mut Vec<u8>, sentence: &str, room: usize) {
    let room = room.min(SENTENCE_MAX);
    let end = (0..=room.min(sentence.len())).rev().find(|end| sentence.is_char_boundary(*end));
    bytes.extend_from_slice(&sentence.as_bytes()[..end.unwrap_or_default()]);
}
