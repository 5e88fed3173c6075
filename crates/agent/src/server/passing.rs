//! What the server does about messages with descriptors, which are received elsewhere, and about users whose messages are read
//! again. Where descriptors are received, examined and closed, [`crate::closer`] says.

use std::os::fd::OwnedFd;

use super::Server;
use super::turns::{Account, Work};
use crate::client::{Client, Fate, Said};
use crate::foreign::{Arrived, Passed};
use crate::inbox::{Inbox, Message};

/// Descriptors that came from this process.
pub(super) fn passed(fds: Vec<OwnedFd>) -> Vec<Passed> {
    fds.into_iter().map(Passed::ours).collect()
}

impl Client {
    /// Has the next message received on the thread of the client's user. It comes back as a message to the server, and until
    /// then nothing more is read from this client.
    pub(super) fn receive(&mut self, id: u32, inbox: Inbox) -> Fate {
        self.closer().receive(self.lent(), move |arrived| {
            inbox.send(Message::Arrived { id, arrived });
        });
        self.wait(false)
    }
}

/// Connections that are watched again in one piece of work.
const AGAIN: usize = 256;

impl Server {
    /// A message of a client has been received with its descriptors.
    pub(super) fn take_arrived(&mut self, id: u32, arrived: Arrived) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.wait_no_more();
        let Arrived { bytes, truncated, fds } = arrived;
        let next = client.hear(&mut self.world, &mut self.manager, Said { bytes: &bytes, truncated, fds });
        self.do_next(id, next);
    }

    /// Less of a user waits to be closed: its messages are read again. The rest of many connections is a piece of work of its own.
    pub(super) fn read_again(&mut self, uid: u32) {
        let mut left = AGAIN - self.ask_again(uid, AGAIN);
        let held_up = self.clients.iter().filter(|(_, client)| client.uid() == uid && client.is_held_up());
        for id in held_up.map(|(id, _)| *id).take(left).collect::<Vec<_>>() {
            if let Some(client) = self.clients.get_mut(&id) {
                client.go_on();
            }
            self.settle(id, Fate::Goes);
            left -= 1;
        }
        if left == 0 {
            self.queue.push(Account::User(uid), Work::Message(Message::Room(uid)));
        }
    }
}
