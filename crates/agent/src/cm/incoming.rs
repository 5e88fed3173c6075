//! Requests of peers: finding the listener, and making each request an id. IBA 12.9.8, A11.
//!
//! If a request has no listener, the agent rejects it with the reason of the specification. It does
//! so at once, or after a short wait if a program may be about to listen
//! ([`super::before_listen`]).

use std::fmt;

use abi::qp::kind;
use abi::ucma::connection::Ece as EceRecord;
use abi::ucma::connection::{ConnParam, EventAnswer, UdParam, event};
use abi::ucma::port_space;
use abi::ucma::sockaddr::Sockaddr;
use protocol::Time;
use protocol::cm::{Ece, Id as ConnectionId, Origin, Path, Reason, SidrReply, TransportType};
use wire::cm::ip::{Header, LEN as HEADER_LEN};
use wire::cm::{Req, SidrReq, SidrStatus};

use super::Manager;
use super::before_listen::{Ask, GRACE};
use super::binding::is_ipoib;
use super::channel::Event;
use super::id::{Id, Stage, ib_address};
use super::locals::Attachment;
use super::ports::Spot;
use crate::gids::ip_of;

/// A request that has arrived, of either kind.
struct IncomingRequest<'a> {
    connection: ConnectionId,
    service: u64,
    kind: u8,
    path: Path,
    private: &'a [u8],
}

/// The listener that gets a request.
struct FoundListener {
    listener: u32,
    attachment: Attachment,
    local: Sockaddr,
    remote: Sockaddr,
    /// Where the program's private data begin.
    offset: usize,
}

/// Why no listener gets the request.
struct Unwanted {
    /// The reason that answers a REQ. `None`: no answer, because the sender repeats the request and
    /// may find room then.
    reason: Option<Reason>,
    status: SidrStatus,
    text: String,
    /// A program may be about to listen.
    may_wait: bool,
}

impl Manager {
    /// Handles a REQ. Without a listener, the REQ waits until `until`.
    pub(super) fn on_request(&mut self, connection: ConnectionId, (req, ece): (&Req, Ece), until: Time) {
        let kind = match req.transport {
            TransportType::Rc => kind::RC,
            TransportType::Uc => kind::UC,
            // The initiator connects, so this side is the target.
            TransportType::Xrc => kind::XRC_TGT,
            _ => u8::MAX,
        };
        let path = self.core.connection(connection).map(|known| known.path).unwrap_or_default();
        let asked =
            IncomingRequest { connection, service: req.service_id, kind, path, private: req.private_data.as_slice() };
        let taken = match self.take(&asked) {
            Ok(taken) => taken,
            Err(unwanted) => return self.keep_or_turn_away(&asked, &unwanted, until, &Ask::Connection(*req, ece)),
        };
        let param = ConnParam {
            qp_num: req.local_qpn.value(),
            private_data: padded(&asked.private[taken.offset..]),
            private_data_len: (asked.private.len() - taken.offset) as u8,
            srq: u8::from(req.srq),
            // The peer's initiator depth is what this side must be able to respond to.
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: u8::from(req.flow_control),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ..ConnParam::default()
        };
        self.introduce(&asked, taken, UdParam::from_conn(&param), ece);
    }

    /// Handles a SIDR_REQ. Without a listener, it waits until `until`.
    pub(super) fn on_question(&mut self, connection: ConnectionId, (req, origin): (&SidrReq, &Origin), until: Time) {
        let asked = IncomingRequest {
            connection,
            service: req.service_id,
            kind: kind::UD,
            path: origin.back(),
            private: req.private_data.as_slice(),
        };
        let taken = match self.take(&asked) {
            Ok(taken) => taken,
            Err(unwanted) => return self.keep_or_turn_away(&asked, &unwanted, until, &Ask::Question(*req, *origin)),
        };
        let param = UdParam {
            private_data: padded(&asked.private[taken.offset..]),
            private_data_len: (asked.private.len() - taken.offset) as u8,
            ..UdParam::default()
        };
        self.introduce(&asked, taken, param, Ece::default());
    }

    /// Finds the listener.
    fn take(&mut self, asked: &IncomingRequest<'_>) -> Result<FoundListener, Unwanted> {
        let nobody = |text: String| unwanted(Reason::INVALID_SERVICE_ID, SidrStatus::UNSUPPORTED, text);
        let attachment = self.addressed(&asked.path)?;
        let node = self.locals.has_nodes().then_some(attachment.device);
        let port = asked.service & 0xffff;
        let header = asked.private.first_chunk::<HEADER_LEN>().map(Header::parse);
        let is_heard = |spot: Spot| self.ports.listener(asked.service, spot.on(node)).is_some();
        // Ids have IP addresses or GIDs, and only requests to an IP address come with a header. The
        // listener tells which it is, because private data may look like a header.
        let header = match header {
            _ if is_ipoib(asked.service) => None,
            Some(Ok(header)) if is_heard(Spot::ip(header.destination.to_canonical())) => Some(header),
            _ if asked.service >> 16 == u64::from(port_space::IB) || is_heard(Spot::gid(asked.path.sgid)) => None,
            Some(header) => Some(header.map_err(|error| nobody(error.to_string()))?),
            None => None,
        };
        let (spot, local, remote) = match header {
            Some(header) => {
                let (to, from) = (header.destination.to_canonical(), header.source.to_canonical());
                if !self.locals.is_own(to, 0) {
                    return Err(nobody(format!("{to} is no address of this agent")));
                }
                let at = |ip, port| Sockaddr::Ip((ip, port).into());
                (Spot::ip(to).on(node), at(to, port as u16), at(from, header.source_port))
            }
            None => {
                let service = asked.service;
                let peer = ib_address(asked.path.dgid, asked.path.pkey, 0);
                (Spot::gid(asked.path.sgid).on(node), ib_address(asked.path.sgid, asked.path.pkey, service), peer)
            }
        };
        let place = ListenerAddress { local: &local, service: asked.service };
        let Some(listener) = self.ports.listener(asked.service, spot) else {
            return Err(Unwanted { may_wait: true, ..nobody(format!("nobody listens at {place}")) });
        };
        let Some(id) = self.ids.get(listener) else {
            return Err(nobody(format!("nobody listens at {place} any more")));
        };
        if id.kind != asked.kind {
            let text = format!("the listener at {place} expects another QP type");
            return Err(unwanted(Reason::INVALID_TRANSPORT_TYPE, SidrStatus::REJECTED, text));
        }
        let room = self.channels.get_mut(&id.channel).is_some_and(|owner| owner.channel.has_room());
        if id.backlog == 0 || !room {
            let text = format!("the backlog of the listener at {place} is full");
            return Err(Unwanted { reason: None, status: SidrStatus::REJECTED, text, may_wait: false });
        }
        let attachment = id.attachment.filter(|at| at.gid == attachment.gid).unwrap_or(attachment);
        let offset = if header.is_some() { HEADER_LEN } else { 0 };
        Ok(FoundListener { listener, attachment, local, remote, offset })
    }

    /// The attachment that a request names by its GID. Its port must belong to the request's
    /// partition.
    fn addressed(&self, path: &Path) -> Result<Attachment, Unwanted> {
        // For a foreign partition, Linux gives the reason of a foreign GID, too.
        let refuse = |text: String| Err(unwanted(Reason::INVALID_GID, SidrStatus::REJECTED, text));
        let Some(attachment) = self.locals.with_gid(&path.sgid) else {
            return refuse(format!("{} is no address of this agent", ip_of(&path.sgid)));
        };
        match self.locals.pkey_index(&attachment, path.pkey) {
            Some(_) => Ok(attachment),
            None => {
                let (port, pkey) = (attachment.port, path.pkey);
                refuse(format!("port {port} does not belong to the partition {pkey:#06x}"))
            }
        }
    }

    /// Makes a request an id of the listener's channel, and tells the listener.
    fn introduce(&mut self, asked: &IncomingRequest<'_>, taken: FoundListener, param: UdParam, ece: Ece) {
        let Some(listener) = self.ids.get_mut(taken.listener) else { return };
        listener.backlog -= 1;
        let uid = listener.uid;
        let mut id = Id::new(listener.channel, 0, listener.space, asked.kind);
        (id.known, id.stage) = (false, Stage::Connecting);
        (id.options.tos, id.options.ack_timeout, id.qkey) =
            (listener.options.tos, listener.options.ack_timeout, listener.qkey);
        (id.local, id.remote) = (Some(taken.local), Some(taken.remote));
        (id.attachment, id.target, id.path) = (Some(taken.attachment), Some(asked.path.dgid), Some(asked.path));
        id.connection = Some(asked.connection);
        let Some(name) = self.add(id) else {
            if let Some(listener) = self.ids.get_mut(taken.listener) {
                listener.backlog += 1;
            }
            let text = "the listener's user, or the agent, has as many ids as it may".to_owned();
            return self.turn_away(asked, &unwanted(Reason::NO_RESOURCES, SidrStatus::REJECTED, text));
        };
        self.connections.insert(asked.connection, name);
        let owner =
            self.ids.get(name).and_then(|id| self.channels.get(&id.channel)).map_or(0, |of| of.channel.peer.uid);
        if let Err(error) = self.core.set_owner(asked.connection, owner) {
            tracing::debug!(%error, "a request was gone before it had an owner");
        }
        let ece = EceRecord { vendor_id: ece.vendor_id, attr_mod: ece.options };
        let answer = EventAnswer { uid, id: name, event: event::CONNECT_REQUEST, param, ece, ..EventAnswer::default() };
        let id = taken.listener;
        self.queue(id, Event { answer, id, member: None, request: Some(name), sentence: String::new() });
    }

    fn keep_or_turn_away(&mut self, asked: &IncomingRequest<'_>, why: &Unwanted, until: Time, ask: &Ask) {
        if !(why.may_wait && self.before_listen.keep(self.now(), until, asked.connection, ask)) {
            self.turn_away(asked, why);
        }
    }

    fn turn_away(&mut self, asked: &IncomingRequest<'_>, why: &Unwanted) {
        let from = ip_of(&asked.path.dgid);
        tracing::debug!(%from, service = format_args!("{:#x}", asked.service), reason = %why.text, "a request is turned away");
        let now = self.now();
        let (core, connection) = (&mut self.core, asked.connection);
        let done = match why.reason {
            _ if asked.kind == kind::UD => {
                let reply = SidrReply { status: why.status, ..SidrReply::default() };
                core.sidr_reply(now, connection, &reply).and_then(|()| core.destroy(now, connection))
            }
            Some(reason) => core.reject(now, connection, reason, &[], &[]).and_then(|()| core.destroy(now, connection)),
            None => core.forget(connection),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a request was gone before it was turned away");
        }
    }
}

fn unwanted(reason: Reason, status: SidrStatus, text: String) -> Unwanted {
    Unwanted { reason: Some(reason), status, text, may_wait: false }
}

/// Private data in the room that an event has for them.
pub(super) fn padded(bytes: &[u8]) -> [u8; 256] {
    let mut room = [0; 256];
    let len = bytes.len().min(room.len());
    room[..len].copy_from_slice(&bytes[..len]);
    room
}

/// The address of a listener, in words.
struct ListenerAddress<'a> {
    local: &'a Sockaddr,
    service: u64,
}

impl fmt::Display for ListenerAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.local, u16::try_from(self.service >> 16).ok().and_then(port_space::name)) {
            (Sockaddr::Ip(addr), Some(space)) => write!(f, "{addr} ({space})"),
            _ => write!(f, "service {:#x}", self.service),
        }
    }
}

/// Requests that have no listener yet ([`super::before_listen`]).
impl Manager {
    /// Handles a new request.
    pub(super) fn on_ask(&mut self, connection: ConnectionId, ask: &Ask) {
        let until = self.now().after(GRACE);
        self.consider(connection, ask, until);
    }

    /// Considers the waiting requests again, because a program has begun to listen.
    pub(super) fn consider_early(&mut self) {
        for (until, connection, ask) in std::mem::take(&mut self.before_listen.waiting) {
            self.consider(connection, &ask, until);
        }
    }

    /// Rejects requests whose time has expired.
    pub(super) fn reject_early(&mut self, now: Time) {
        while self.before_listen.next_time().is_some_and(|until| until <= now) {
            if let Some((until, connection, ask)) = self.before_listen.waiting.pop_front() {
                self.consider(connection, &ask, until);
            }
        }
    }

    /// The peer has withdrawn a request that has no id.
    pub(super) fn forget_early(&mut self, connection: ConnectionId) {
        if self.before_listen.forget(connection) {
            let now = self.now();
            if let Err(error) = self.core.destroy(now, connection) {
                tracing::debug!(%error, "a request was gone before it was forgotten");
            }
        }
    }

    fn consider(&mut self, connection: ConnectionId, ask: &Ask, until: Time) {
        match ask {
            Ask::Connection(req, ece) => self.on_request(connection, (req, *ece), until),
            Ask::Question(req, origin) => self.on_question(connection, (req, origin), until),
        }
    }
}
