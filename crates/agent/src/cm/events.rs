//! Taking events: GET_EVENT as Linux has it, and NEXT_EVENT, which tells with the event what its id knows now, so that a client
//! need not ask four times for one connection.

use abi::Errno;
use abi::layout::Record;
use abi::qp::state;
use abi::ucma::SENTENCE_MAX;
use abi::ucma::connection::{EVENT_MIN, EventAnswer, NextEventAnswer, event, known};

use super::Manager;
use super::attributes::attributes;
use super::channel::Event;
use super::dispatch::Call;
use super::query::{addresses, path_data};
use crate::refusal::{Outcome, refuse};
use crate::world::World;

impl Manager {
    pub(super) fn get_event(&mut self, call: &Call<'_>) -> Outcome<Vec<u8>> {
        let (answer, sentence) = self.take_event(call)?;
        let mut bytes = call.command.answer(&answer);
        append(&mut bytes, &sentence, call.command.room.saturating_sub(size_of::<EventAnswer>()));
        debug_assert!(bytes.len() >= EVENT_MIN, "the room was checked");
        Ok(bytes)
    }

    pub(super) fn next_event(&mut self, world: &World, call: &Call<'_>) -> Outcome<Vec<u8>> {
        let (answer, sentence) = self.take_event(call)?;
        let mut next = NextEventAnswer { event: answer, ..NextEventAnswer::default() };
        self.add_known(world, &mut next);
        let mut bytes = next.bytes().to_vec();
        append(&mut bytes, &sentence, call.command.room.saturating_sub(size_of::<NextEventAnswer>()));
        Ok(bytes)
    }

    /// Takes the oldest event out of the channel; it counts as given out.
    fn take_event(&mut self, call: &Call<'_>) -> Outcome<(EventAnswer, String)> {
        let owner = self.owner(call.channel)?;
        let Some(Event { answer, id: name, member, request, sentence }) = owner.channel.pop() else {
            return refuse(Errno::EAGAIN, "there is no event");
        };
        owner.channel.ring();
        if let Some(id) = self.ids.get_mut(name) {
            id.queued = id.queued.saturating_sub(1);
            // An event of a membership counts there.
            id.reported += u32::from(member.is_none());
            id.backlog += u32::from(request.is_some());
        }
        if let Some(member) = member.and_then(|member| self.members.get_mut(member)) {
            member.reported += 1;
        }
        Ok((answer, sentence))
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
            next.sgid = id.attachment.map_or([0; 16], |at| at.gid);
            next.dgid = id.target.unwrap_or_default();
            next.known |= known::ADDRESSES;
        }
        if let Some(path) = id.path.as_ref().filter(|_| wanted & known::PATH != 0) {
            next.path = path_data(path);
            next.known |= known::PATH;
        }
        let Some(at) = &id.attachment else { return };
        let connection = id.connection.and_then(|connection| self.core.connection(connection).ok());
        let attributes = |bit: u32, state: u8| {
            (wanted & bit != 0).then(|| attributes(id, at, connection.as_ref(), u32::from(state))).flatten()
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

/// Appends as much of a sentence as there is room for.
fn append(bytes: &mut Vec<u8>, sentence: &str, room: usize) {
    let room = room.min(SENTENCE_MAX);
    let end = (0..=room.min(sentence.len())).rev().find(|end| sentence.is_char_boundary(*end));
    bytes.extend_from_slice(&sentence.as_bytes()[..end.unwrap_or_default()]);
}
