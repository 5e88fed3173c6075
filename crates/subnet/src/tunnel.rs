//! A link to a port of another agent: a tunnel of link packets in UDP datagrams. This is the
//! protocol of one end, without clock and socket: datagrams and time go in, datagrams and changes
//! of the link come out. Not what the link is in the model ([`crate::managed`]). Principal type:
//! [`Tunnel`].
//!
//! ```text
//!   A                                              B
//!   │ hello(to 0, cookie a) ─────────────────────▶ │  B answers, and believes nothing yet
//!   │ ◀───────────────────── hello(to a, cookie b) │
//!   │ up; hello(to b, cookie a) ─────────────────▶ │ up
//!   │ ◀══════════ packet(to a), packet(to b) ════▶ │
//!   │ a hello each 500 ms, both ways               │
//! ```
//!
//! Each end has chosen a number at random, its *cookie*. A datagram counts only if it has the
//! receiver's cookie, which the receiver has told only to the configured address. So who does not
//! see the datagrams cannot forge one, and who forges a first hello gets no more than one answer of
//! the same length, to the address of the peer. Who sees the datagrams can forge them: the tunnel
//! neither encrypts nor signs. It is for networks that are trusted as far as a cable is.
//!
//! A peer that was silent for [`SILENCE`] is gone. A peer that starts again has a new cookie, and
//! its link goes down and trains again. A hello also tells when the sender's port has left the link
//! by itself, so that both ends train together.

mod message;
pub mod passed;
pub mod reach;

pub use message::{HEADER, Hello, Message, Offer, other_version};

use crate::frame::Frame;
use crate::rate::{MICROSECOND, Mtu, Time};
use message::VERSION;
use passed::Passed;
use reach::{Parts, Reached};
use wire::vcrc;

/// The UDP port of tunnels, if the configuration names none.
pub const UDP_PORT: u16 = 4792;
/// The time between two hellos.
pub const HELLO: Time = 500_000 * MICROSECOND;
/// After this time without a hello, the peer is gone.
pub const SILENCE: Time = 3_000_000 * MICROSECOND;
/// The shortest time between two answers to hellos without our cookie.
const ANSWER: Time = 100_000 * MICROSECOND;

/// The peer, since it has shown that it has our cookie.
#[derive(Clone, Copy, Debug)]
struct Peer {
    cookie: u64,
    restarts: u32,
    offer: Offer,
    on: bool,
    /// When it is gone, unless it says hello before.
    deadline: Time,
}

/// What a datagram or the time has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The peer's port looks for its neighbour. If the link is up, it goes down and trains again.
    Up(Offer),
    /// The peer's port is not there.
    Down,
}

/// Why a datagram is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It is no datagram of a tunnel.
    #[error("it is no datagram of a tunnel")]
    Malformed,
    /// The peer is another release of softhca.
    #[error("it has version {0} and this agent has version {VERSION}: run the same release of softhca on both hosts")]
    Version(u8),
    /// It does not have our cookie: from a former peer, or forged.
    #[error("it does not have the cookie of this end")]
    Cookie,
    /// The other end's file names other ports.
    #[error("the other end's file names other ports for this link")]
    Names,
    /// The packet of the link is damaged.
    #[error("its packet is damaged")]
    Packet,
}

/// What a datagram is, if it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// It concerns the tunnel. The link may have changed.
    Link(Option<Change>),
    /// A packet for the link.
    Packet(Frame),
    /// What packets reach that leave by the tunnel. `None`: as before.
    Reach(Option<Vec<Reached>>),
    /// Packets that programs have sent past the tunnel, and that have come in here.
    Passed(Vec<Passed>),
}

/// One end of a tunnel.
#[derive(Debug)]
pub struct Tunnel {
    cookie: u64,
    /// The own port and that of the peer, such as `S1[3]`.
    names: [Box<str>; 2],
    offer: Offer,
    on: bool,
    restarts: u32,
    peer: Option<Peer>,
    /// The cookie of a sender that gets an answer.
    answer: Option<u64>,
    may_answer: Time,
    next_hello: Time,
    /// What is sent to the peer after each hello, in parts, and which part is next.
    reach: Vec<Vec<u8>>,
    next_part: usize,
    /// What the peer has said.
    parts: Parts,
}

impl Tunnel {
    /// The end at a port, which says hello at once. Nobody may guess `cookie`.
    #[must_use]
    pub fn new(cookie: u64, own: &str, peer: &str, offer: Offer) -> Tunnel {
        let names = [own.into(), peer.into()];
        Tunnel {
            cookie,
            names,
            offer,
            on: true,
            restarts: 0,
            peer: None,
            answer: None,
            may_answer: 0,
            next_hello: 0,
            reach: Vec::new(),
            next_part: 0,
            parts: Parts::default(),
        }
    }

    /// Whether the peer is there, and its port looks for its neighbour.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.peer.is_some_and(|peer| peer.on)
    }

    /// When [`Tunnel::poll_transmit`] has something to send, or the peer may be gone.
    #[must_use]
    pub const fn next_timeout(&self) -> Time {
        if self.answer.is_some() { 0 } else { self.next_hello }
    }

    /// The own port is on or off, and can be this. A change is sent to the peer at once.
    pub fn set_port(&mut self, on: bool, offer: Offer) {
        if (self.on, self.offer) != (on, offer) {
            (self.on, self.offer, self.next_hello) = (on, offer, 0);
        }
    }

    /// The own port has left the link by itself. The peer's port follows.
    pub fn restart(&mut self) {
        self.restarts = self.restarts.wrapping_add(1);
        self.next_hello = 0;
    }

    /// What packets reach that come by the tunnel. A change is sent to the peer at once.
    pub fn set_reach(&mut self, reached: &[Reached]) {
        let bodies = reach::bodies(reached);
        if self.reach != bodies {
            (self.reach, self.next_part) = (bodies, 0);
        }
    }

    /// What packets reach that leave by the tunnel, as far as the peer has said so.
    pub fn reached(&self) -> impl Iterator<Item = &Reached> {
        self.parts.all()
    }

    /// The datagrams that tell the peer what programs have sent past the tunnel.
    #[must_use]
    pub fn passed(&self, passed: &[Passed]) -> Vec<Vec<u8>> {
        let to_bytes =
            |peer: Peer| passed::bodies(passed).map(|body| Message::Passed(&body).to_bytes(peer.cookie)).collect();
        self.peer.map(to_bytes).unwrap_or_default()
    }

    /// Whether the peer has not said yet what packets reach there.
    #[must_use]
    pub fn knows_nothing(&self) -> bool {
        self.parts.is_empty()
    }

    /// Handles a datagram from the address of the peer.
    ///
    /// # Errors
    /// It does not count.
    pub fn handle(&mut self, bytes: &[u8], now: Time) -> Result<Received, Ignored> {
        let (receiver, message) = Message::parse(bytes).ok_or(Ignored::Malformed)?;
        match message {
            Message::Hello(hello) => self.hello(receiver, &hello, now).map(Received::Link),
            _ if receiver != self.cookie || self.peer.is_none() => Err(Ignored::Cookie),
            Message::Packet { hops, bytes } => {
                let mut frame = Frame::parse(bytes).map_err(|_| Ignored::Packet)?;
                frame.hops = hops;
                Ok(Received::Packet(frame))
            }
            Message::Bye => Ok(Received::Link(self.lose())),
            Message::Reach(body) => Ok(Received::Reach(self.parts.take(body))),
            Message::Passed(body) => Ok(Received::Passed(passed::parse(body).ok_or(Ignored::Malformed)?)),
        }
    }

    fn hello(&mut self, receiver: u64, hello: &Hello<'_>, now: Time) -> Result<Option<Change>, Ignored> {
        if !self.is_named(hello) {
            return Err(Ignored::Names);
        }
        if receiver != self.cookie {
            if now >= self.may_answer {
                (self.answer, self.may_answer) = (Some(hello.cookie), now + ANSWER);
            }
            return if receiver == 0 { Ok(None) } else { Err(Ignored::Cookie) };
        }
        let Hello { cookie, restarts, offer, on, .. } = *hello;
        let before = self.peer.replace(Peer { cookie, restarts, offer, on, deadline: now + SILENCE });
        let is_new = before.is_none_or(|before| before.cookie != cookie);
        if is_new {
            // It may not know our cookie yet.
            self.next_hello = 0;
            self.parts = Parts::default();
        }
        let stays = before.is_some_and(|it| it.on == on && it.offer == offer && it.restarts == restarts);
        Ok(match on {
            _ if stays && !is_new => None,
            true => Some(Change::Up(offer)),
            false => before.filter(|before| before.on).map(|_| Change::Down),
        })
    }

    /// Whether a hello is from the port that this end is connected to.
    fn is_named(&self, hello: &Hello<'_>) -> bool {
        let [own, peer] = &self.names;
        (hello.from, hello.to) == (peer, own)
    }

    /// Whether a datagram is for this end, of several with a peer at one address.
    #[must_use]
    pub fn is_for(&self, bytes: &[u8]) -> bool {
        match Message::parse(bytes) {
            Some((_, Message::Hello(hello))) => self.is_named(&hello),
            Some((receiver, _)) => receiver == self.cookie,
            None => false,
        }
    }

    /// Handles the time: a silent peer is gone.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Change> {
        let is_gone = self.peer.is_some_and(|peer| peer.deadline <= now);
        if is_gone { self.lose() } else { None }
    }

    fn lose(&mut self) -> Option<Change> {
        self.parts = Parts::default();
        self.peer.take().filter(|peer| peer.on).map(|_| Change::Down)
    }

    /// The next datagram that is due: a hello, or a part of what the peer's packets reach here.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        let receiver = match self.answer.take() {
            Some(cookie) => cookie,
            None if now < self.next_hello => {
                let (peer, body) = (self.peer?, self.reach.get(self.next_part)?);
                self.next_part += 1;
                return Some(Message::Reach(body).to_bytes(peer.cookie));
            }
            None => {
                (self.next_hello, self.next_part) = (now + HELLO, 0);
                self.peer.map_or(0, |peer| peer.cookie)
            }
        };
        let [from, to] = &self.names;
        let Tunnel { cookie, restarts, offer, on, .. } = *self;
        Some(Message::Hello(Hello { cookie, restarts, offer, on, from, to }).to_bytes(receiver))
    }

    /// The datagram for a packet of the link. `None`: the peer is not there.
    #[must_use]
    pub fn packet(&self, frame: &Frame) -> Option<Vec<u8>> {
        let peer = self.peer?;
        Some(Message::Packet { hops: frame.hops, bytes: &frame.to_bytes() }.to_bytes(peer.cookie))
    }

    /// This end is no more. Returns the datagram that tells the peer.
    pub fn close(&mut self) -> Option<Vec<u8>> {
        Some(Message::Bye.to_bytes(self.peer.take()?.cookie))
    }
}

/// The longest MTU whose packets fit into UDP datagrams with this many bytes. `None`: not even
/// management datagrams do.
#[must_use]
pub fn longest_mtu(payload: usize) -> Option<Mtu> {
    (1..=5).rev().filter_map(Mtu::from_code).find(|mtu| datagram(*mtu) <= payload)
}

/// Bytes of the longest datagram of a tunnel whose link has this MTU.
#[must_use]
pub const fn datagram(mtu: Mtu) -> usize {
    HEADER + mtu.longest_packet() + vcrc::LEN
}

#[cfg(test)]
mod tests;
