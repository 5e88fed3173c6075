//! What the server does about descriptors that clients pass: commands that waited for their descriptors to be examined, and
//! users whose messages are read again. Where descriptors are examined and closed, [`crate::closer`] says.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::Server;
use crate::agent::Inbox;
use crate::client::{Client, Command, Fate};
use crate::foreign::{Foreign, Passed};
use crate::local::Message;
use crate::slow::ReplyTo;

/// Descriptors that came from this process.
pub(super) fn passed(fds: Vec<OwnedFd>) -> Vec<Passed> {
    fds.into_iter().map(Passed::ours).collect()
}

impl Client {
    /// Has the descriptors of a command examined; the command comes back with them as a message to the server, and until
    /// then nothing more is read from this client.
    pub(super) fn examine(&mut self, id: u32, command: Command, fds: Vec<Foreign>, inbox: Inbox) -> Fate {
        let quiet = command.quiet;
        self.closer().examine(fds, move |fds| {
            inbox.send(Message::Examined { id, command: Command { fds, ..command } });
        });
        self.wait(quiet)
    }
}

impl Server {
    /// A command whose descriptors have been examined.
    pub(super) fn go_on_with(&mut self, id: u32, command: Command) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(context) = client.context() else { return };
        let Command { sequence, request, fds, .. } = command;
        let to = ReplyTo::Connection { id, sequence };
        let reply = self.paths.carry_out(&mut self.world, context, &request, fds, to);
        self.world.follow_wire(Instant::now);
        if let Some(reply) = reply {
            let fate = client.reply(sequence, reply);
            self.settle(id, fate);
        }
    }

    /// Fewer descriptors of a user wait to be closed: its messages are read again.
    pub(super) fn read_again(&mut self, uid: u32) {
        self.ask_again(uid);
        let held_up = self.clients.iter().filter(|(_, client)| client.uid() == uid && client.is_held_up());
        for id in held_up.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(client) = self.clients.get_mut(&id) {
                client.go_on();
            }
            self.settle(id, Fate::Goes);
        }
    }
}
