//! Connections of iWARP between the connection manager, which makes them, and the engines, which
//! take them. The principal type is [`Streams`].
//!
//! The agent keeps a second descriptor of each socket, and closes it after the queue pair. If a
//! socket is closed while the peer still sends, the kernel resets the connection, and what the
//! peer has not received yet is lost, although its work requests have completed.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use abi::stream::StreamOut;
use parking_lot::Mutex;
use rustix::net::{SocketAddrAny, getpeername, getsockname};

use crate::foreign::Foreign;

/// A connection that an engine may take.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The connected socket.
    pub(crate) socket: OwnedFd,
    /// What both sides have agreed on.
    pub(crate) agreed: StreamOut,
}

/// What is shown of a connection that an engine has taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TakenStream {
    /// The addresses of this side and of the peer; `None` if the peer has already left.
    pub(crate) addresses: Option<[SocketAddr; 2]>,
    /// What both sides have agreed on.
    pub(crate) agreed: StreamOut,
}

impl TakenStream {
    fn of(offer: &Offer) -> Self {
        let address = |at: Option<SocketAddrAny>| at.and_then(|at| SocketAddr::try_from(at).ok());
        let local = address(getsockname(&offer.socket).ok());
        let remote = address(getpeername(&offer.socket).ok().flatten());
        Self { addresses: local.zip(remote).map(|(local, remote)| [local, remote]), agreed: offer.agreed }
    }
}

/// A connection whose queue pair has left it.
#[derive(Debug)]
pub(crate) struct LeftStream {
    pub(crate) socket: Foreign,
    /// The user of the queue pair.
    pub(crate) uid: u32,
    pub(crate) how: Leaving,
}

/// How a connection ends that its queue pair has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The engine ends the sending direction.
    ByEngine,
    /// The process has ended, perhaps without ending the sending direction.
    ByProcess,
    /// The engine could not take the connection: it is reset.
    NotTaken,
}

/// What an engine has done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamNews {
    /// The engine of this QP has taken its connection.
    Taken(u32),
    /// The connection of this QP has ended.
    Ended(u32),
}

/// The connections that wait for their engines, by QP number. The connection manager bounds their
/// number, because each belongs to an id.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<StreamTable>);

#[derive(Debug, Default)]
struct StreamTable {
    offers: BTreeMap<u32, Offer>,
    /// The connections that engines have taken, as long as their ids exist.
    taken: BTreeMap<u32, TakenStream>,
    /// Second descriptors of connections that engines have taken, as long as their QPs exist.
    kept: BTreeMap<u32, Foreign>,
    left: Vec<LeftStream>,
    news: Vec<StreamNews>,
}

impl Streams {
    /// Offers a connection to the engine that has a QP.
    pub(crate) fn offer(&self, qpn: u32, offer: Offer) {
        self.0.lock().offers.insert(qpn, offer);
    }

    /// Closes the connection of a QP, if no engine has taken it.
    pub(crate) fn withdraw(&self, qpn: u32) {
        let mut state = self.0.lock();
        state.offers.remove(&qpn);
        state.taken.remove(&qpn);
    }

    /// Whether a connection waits for a QP.
    pub(crate) fn has(&self, qpn: u32) -> bool {
        self.0.lock().offers.contains_key(&qpn)
    }

    /// Takes the connection of a QP, and a second descriptor of it for [`Streams::keep`].
    ///
    /// # Errors
    /// There is no room for the second descriptor. The connection still waits.
    pub(crate) fn take(&self, qpn: u32) -> io::Result<Option<(Offer, OwnedFd)>> {
        let mut state = self.0.lock();
        let Some(offer) = state.offers.get(&qpn) else { return Ok(None) };
        let second = offer.socket.try_clone()?;
        let Some(offer) = state.offers.remove(&qpn) else { return Ok(None) };
        state.taken.insert(qpn, TakenStream::of(&offer));
        state.news.push(StreamNews::Taken(qpn));
        Ok(Some((offer, second)))
    }

    /// Keeps a second descriptor of the connection that the engine of a QP has taken. Returns whether
    /// there was one of an earlier connection, which the QP has left: it was reset.
    pub(crate) fn keep(&self, qpn: u32, uid: u32, socket: Foreign) -> bool {
        let mut table = self.0.lock();
        let earlier = table.kept.insert(qpn, socket).map(|socket| LeftStream { socket, uid, how: Leaving::ByEngine });
        let was_kept = earlier.is_some();
        table.left.extend(earlier);
        was_kept
    }

    /// A QP of a user leaves its connection. Returns whether a second descriptor was kept.
    pub(crate) fn leave(&self, qpn: u32, uid: u32, how: Leaving) -> bool {
        let mut table = self.0.lock();
        let left = table.kept.remove(&qpn).map(|socket| LeftStream { socket, uid, how });
        let was_kept = left.is_some();
        table.left.extend(left);
        was_kept
    }

    /// Takes the connections that their QPs have left.
    pub(crate) fn take_left(&self) -> Vec<LeftStream> {
        std::mem::take(&mut self.0.lock().left)
    }

    /// The connection that the engine of a QP has taken.
    pub(crate) fn taken(&self, qpn: u32) -> Option<TakenStream> {
        self.0.lock().taken.get(&qpn).copied()
    }

    /// Notes that the connection of a QP has ended.
    pub(crate) fn note_end(&self, qpn: u32) {
        self.0.lock().news.push(StreamNews::Ended(qpn));
    }

    /// Takes what the connection manager has not heard yet.
    pub(crate) fn take_news(&self) -> Vec<StreamNews> {
        std::mem::take(&mut self.0.lock().news)
    }
}
