//! The server's part in two tasks: handling messages with descriptors, which another thread
//! receives, and reading a user's messages again after a pause. [`crate::closer`] receives, checks
//! and closes the descriptors. Adds to [`Server`].

use std::os::fd::OwnedFd;

use super::Server;
use super::scheduler::{Account, Work};
use crate::client::{Client, Fate, Said};
use crate::foreign::{PassedFd, ReceivedMessage};
use crate::inbox::{Inbox, Message};

/// Descriptors that this process made itself.
pub(super) fn passed(fds: Vec<OwnedFd>) -> Vec<PassedFd> {
    fds.into_iter().map(PassedFd::ours).collect()
}

impl Client {
    /// Receives the next message on the thread of the client's user. The message comes back to the
    /// server through `inbox`. Until then the server reads nothing more from this client.
    pub(super) fn receive(&mut self, id: u32, inbox: Inbox) -> Fate {
        self.closer().receive(self.lent(), move |arrived| {
            inbox.send(Message::Arrived { id, arrived });
        });
        self.wait(false)
    }
}

/// The maximum number of connections that one piece of work watches again.
const AGAIN: usize = 256;

impl Server {
    /// Handles a client's message that was received with its descriptors.
    pub(super) fn take_arrived(&mut self, id: u32, arrived: ReceivedMessage) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.wait_no_more();
        let ReceivedMessage { bytes, truncated, fds } = arrived;
        let next = client.hear(&mut self.world, &mut self.manager, Said { bytes: &bytes, truncated, fds });
        self.do_next(id, next);
    }

    /// Fewer descriptors of a user wait to be closed, so the server reads the user's messages
    /// again. With many connections, the rest is another piece of work.
    pub(super) fn read_again(&mut self, uid: u32) {
        let mut left = AGAIN - self.ask_again(uid, AGAIN);
        let held_up = self.clients.iter().filter(|(_, client)| client.uid() == uid && client.is_held_up());
        for id in held_up.map(|(id, _)| *id).take(left).collect::<Vec<_>>() {
            if let Some(client) = self.clients.get_mut(&id) {
                client.go_on();
            }
            self.settle(id, Fate::Continues);
            left -= 1;
        }
        if left == 0 {
            self.schedule.queue.push(Account::User(uid), Work::Message(Message::Room(uid)));
        }
    }
}
