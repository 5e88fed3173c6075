//! An id: one end of a connection, a listener, or a datagram service. It exists from CREATE_ID, or
//! from a peer's request, to DESTROY_ID.
//!
//! The protocol's state machine (`protocol::cm`) knows the state of the connection. This file keeps
//! what the program asked for and the stage of its id. The principal type is [`Id`].

use std::fmt;
use std::net::IpAddr;

use abi::qp::kind;
use abi::ucma::port_space;
use abi::ucma::sockaddr::{Sockaddr, SockaddrIb, family};
use protocol::cm::Path;

use super::channel::ChannelId;
use super::locals::Attachment;
use crate::rnic::StartUp;

/// The stage of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// New.
    Idle,
    /// It has a local address and a port.
    Bound,
    /// A peer's address is being resolved.
    Resolving,
    /// The peer's address is resolved.
    AddressResolved,
    /// The route is resolved.
    RouteResolved,
    /// It listens.
    Listening,
    /// It requests a connection, was requested, or is connected.
    Connecting,
    /// The connection has ended, or was not established.
    Over,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "new",
            Self::Bound => "bound",
            Self::Resolving => "resolving",
            Self::AddressResolved => "resolved",
            Self::RouteResolved => "routed",
            Self::Listening => "listening",
            Self::Connecting => "connection",
            Self::Over => "over",
        })
    }
}

/// The Q_Key of port space UDP, the same on all hosts (Linux's `RDMA_UDP_QKEY`).
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;
/// The Q_Key of IPoIB's groups (RFC 4391).
pub(crate) const IPOIB_QKEY: u32 = 0x0000_0b1b;

/// One id.
#[derive(Debug)]
pub(crate) struct Id {
    /// The channel to which it belongs.
    pub(crate) channel: ChannelId,
    /// The program's name for it.
    pub(crate) uid: u64,
    /// The program knows the id: it created it, or accepted the request.
    pub(crate) known: bool,
    /// See `port_space`.
    pub(crate) space: u16,
    /// Type of its QP.
    pub(crate) kind: u8,
    pub(crate) stage: Stage,
    /// The service id, which includes the port.
    pub(crate) service: Option<u64>,
    pub(crate) local: Option<Sockaddr>,
    pub(crate) remote: Option<Sockaddr>,
    /// The device, port and GID that it uses.
    pub(crate) attachment: Option<Attachment>,
    /// The peer's GID.
    pub(crate) target: Option<[u8; 16]>,
    /// The path to the peer.
    pub(crate) path: Option<Path>,
    pub(crate) options: Options,
    pub(crate) qkey: u32,
    /// The program's QP, once the program has named it.
    pub(crate) qpn: u32,
    /// The protocol's state machine of its connection.
    pub(crate) connection: Option<protocol::cm::Id>,
    /// ESTABLISHED has been reported, or the program has sent RTU.
    pub(crate) established: bool,
    /// Maximum number of requests that may wait.
    pub(crate) backlog: u32,
    pub(crate) events: EventCounts,
    /// Its memberships.
    pub(crate) members: Vec<u32>,
}

/// What the program has set with `rdma_set_option`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) tos: u8,
    pub(crate) reuse: bool,
    /// AFONLY, if the program has set it: the id takes addresses of its own family only.
    pub(crate) af_only: Option<bool>,
    pub(crate) ack_timeout: Option<u8>,
}

/// The id's events, by where they are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EventCounts {
    /// Events that were given out.
    pub(crate) reported: u32,
    /// Events that wait.
    pub(crate) queued: u32,
    /// Requests that were sent through the event socket, and that the client may not have read yet.
    pub(crate) untaken: u32,
}

impl Id {
    /// How its connection begins, if it is on an iWARP device.
    pub(crate) fn start_up(&self) -> Option<StartUp> {
        self.attachment.and_then(|at| at.iwarp)
    }

    pub(crate) fn new(channel: ChannelId, uid: u64, space: u16, kind: u8) -> Self {
        Self {
            channel,
            uid,
            known: true,
            space,
            kind,
            stage: Stage::Idle,
            service: None,
            local: None,
            remote: None,
            attachment: None,
            target: None,
            path: None,
            options: Options::default(),
            qkey: if space == port_space::IPOIB { IPOIB_QKEY } else { UDP_QKEY },
            qpn: 0,
            connection: None,
            established: false,
            backlog: 0,
            events: EventCounts::default(),
            members: Vec::new(),
        }
    }

    /// Whether it is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.kind == kind::UD
    }

    /// The partition: that of the path, or the usual one of the port.
    pub(crate) fn pkey(&self) -> Option<u16> {
        self.path.map(|path| path.pkey).or(self.attachment.map(|at| at.pkey))
    }

    /// Replaces an unspecified local address by `source`, and keeps the port.
    pub(crate) fn settle_source(&mut self, source: IpAddr, at: Attachment) {
        match &mut self.local {
            Some(Sockaddr::Ip(addr)) if addr.ip().is_unspecified() => addr.set_ip(source),
            Some(Sockaddr::Ib(record)) if record.addr == [0; 16] => record.addr = at.gid,
            _ => {}
        }
        self.attachment = Some(at);
    }
}

/// The IP address in an address of any family.
pub(crate) fn ip(address: &Sockaddr) -> Option<IpAddr> {
    match address {
        Sockaddr::Ip(addr) => Some(addr.ip().to_canonical()),
        Sockaddr::Ib(_) => None,
    }
}

/// The port in an address of any family.
pub(crate) fn port(address: &Sockaddr) -> u16 {
    match address {
        Sockaddr::Ip(addr) => addr.port(),
        Sockaddr::Ib(record) => (u64::from_be_bytes(record.sid) & 0xffff) as u16,
    }
}

/// A GID with a service id, as an address.
pub(crate) fn ib_address(gid: [u8; 16], pkey: u16, service: u64) -> Sockaddr {
    Sockaddr::Ib(SockaddrIb {
        family: family::IB,
        pkey: pkey.to_be_bytes(),
        addr: gid,
        sid: service.to_be_bytes(),
        sid_mask: [0xff; 8],
        ..SockaddrIb::default()
    })
}

/// The name of a port space.
pub(crate) fn space_name(space: u16) -> &'static str {
    port_space::name(space).unwrap_or("?")
}

/// One membership.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The channel to which it belongs.
    pub(super) channel: ChannelId,
    pub(super) id: u32,
    /// The program's name for it.
    pub(super) uid: u64,
    pub(super) gid: [u8; 16],
    /// The port that asked the subnet manager for the membership, and the kind of membership.
    pub(super) joined: Option<(Attachment, u8)>,
    /// Events that were given out.
    pub(super) reported: u32,
}

#[cfg(test)]
mod tests {
    use super::Stage;

    /// `softhca show cm` prints stages in a column, which scripts split at spaces.
    #[test]
    fn a_stage_is_one_word_and_no_other_stage_has_it() {
        let mut words = Vec::new();
        let mut stage = Some(Stage::Idle);
        while let Some(this) = stage {
            words.push(this.to_string());
            // The match has no wildcard, so a new stage must be named here.
            stage = match this {
                Stage::Idle => Some(Stage::Bound),
                Stage::Bound => Some(Stage::Resolving),
                Stage::Resolving => Some(Stage::AddressResolved),
                Stage::AddressResolved => Some(Stage::RouteResolved),
                Stage::RouteResolved => Some(Stage::Listening),
                Stage::Listening => Some(Stage::Connecting),
                Stage::Connecting => Some(Stage::Over),
                Stage::Over => None,
            };
        }
        for word in &words {
            assert!(!word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase()), "{word:?}");
            assert_eq!(words.iter().filter(|other| *other == word).count(), 1, "{word}");
        }
    }
}
