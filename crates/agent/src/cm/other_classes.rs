//! Management datagrams of other classes, which share the inlet and the sockets of the connection
//! manager ([`crate::mads`]). Adds to [`Manager`].

use std::collections::VecDeque;

use protocol::cm::Mad;

use super::{ARRIVALS, Manager};
use crate::management::{Addressing, CaptureNote, ReceivedMad};

impl Manager {
    /// Takes some of the management datagrams that have arrived, of any class.
    pub(crate) fn take_arrivals(&self) -> VecDeque<ReceivedMad> {
        self.mail.inlet.take_some(ARRIVALS)
    }

    /// Sends a datagram of another class.
    pub(crate) fn send_for_others(&mut self, addressing: &Addressing, mad: &Mad, owner: u32) {
        let sent = self.mail.outlets.send(addressing, mad, &CaptureNote { owner, words: "" });
        match sent {
            Ok(()) => self.counts.sent += 1,
            Err(_) => self.counts.not_sent += 1,
        }
    }
}
