//! The node's commands as methods of [`Channel`]: each builds one request and reads its answer. The
//! agent checks them.

use abi::errno::Errno;
use abi::ucma::address::{
    Bind, PathRecData, Query, QueryAddrAnswer, QueryPathAnswer, ResolveAddr, ResolveRoute, query,
};
use abi::ucma::connection::{
    Accept, ConnParam as ConnRecord, Connect, Disconnect, Ece as EceRecord, InitQpAttr, JoinMcast, Listen, Notify,
    QpAttr, Reject, UdParam, WriteCmEvent, join_flags,
};
use abi::ucma::id::{
    Channel as Token, ChannelAnswer, CreateId, CreateIdAnswer, DestroyId, DestroyIdAnswer, FreezeQp, MigrateId,
    RenewId, RenewIdAnswer, SetOption as OptionRecord, Wake, ib_option, level, option,
};
use abi::ucma::sockaddr::SockaddrIb;
use abi::ucma::{PRIVATE_DATA_MAX, build, command};
use abi::{Record, command::RESPONSE};
use engine::{Answer, Result, refusal};

use crate::address::Address;
use crate::channel::Channel;
use crate::event::EventKind;
use crate::event_socket::Reading;
use crate::param::{
    Addresses, ConnParam, Ece, Gids, Id, Multicast, MulticastJoin, Path, PortSpace, QpAttributes, QpKind, QpState,
    SetOption,
};

/// The maximum number of paths that QUERY may return.
const PATHS: usize = 6;

impl Channel {
    /// Makes an id, whose events will carry `cookie`.
    ///
    /// # Errors
    /// EINVAL for an unknown port space or QP type, ENOMEM if the channel has its maximum number of
    /// ids.
    pub fn create_id(&self, cookie: u64, space: PortSpace, kind: QpKind) -> Result<Id> {
        let body = CreateId { uid: cookie, response: RESPONSE, ps: space.0, qp_type: kind.0, ..CreateId::default() };
        let answer: CreateIdAnswer = self.ask(command::CREATE_ID, &body, &[])?;
        Ok(Id(answer.id))
    }

    /// Ends an id in any state. Returns the number of its events that have been handed out.
    ///
    /// # Errors
    /// ENOENT if the channel has no such id.
    pub fn destroy_id(&self, id: Id) -> Result<u32> {
        let mut reading = self.reading();
        let answer = self.end(command::DESTROY_ID, id.0)?;
        self.clear(&mut reading, id, &answer)
    }

    /// Removes the messages of an ended id from the event socket. Returns the number of its events
    /// that have been handed out.
    fn clear(&self, reading: &mut Reading<'_>, id: Id, answer: &DestroyIdAnswer) -> Result<u32> {
        let purged = self.event_socket.purge(reading, id.0, answer.events_reported, answer.event_bytes);
        // Requests that the program has not seen are rejected.
        for request in &purged.requests {
            let _ = self.end(command::DESTROY_ID, *request);
        }
        self.wake(purged.notifications)?;
        Ok(reading.forget(id.0))
    }

    /// Ends an id and makes another one, whose events will carry `cookie`. [`Channel::kept_id`]
    /// returns it.
    ///
    /// # Errors
    /// As for [`Channel::destroy_id`].
    pub fn renew_id(&self, id: Id, cookie: u64, space: PortSpace, kind: QpKind) -> Result<u32> {
        let mut reading = self.reading();
        let body = RenewId { uid: cookie, id: id.0, ps: space.0, qp_type: kind.0, reserved: 0 };
        let RenewIdAnswer { events_reported, event_bytes, id: new } = self.ask(command::RENEW_ID, &body, &[])?;
        let answer = DestroyIdAnswer { events_reported, event_bytes };
        let before = (new != 0).then(|| self.kept.lock().replace((cookie, Id(new), space, kind))).flatten();
        let reported = self.clear(&mut reading, id, &answer)?;
        if let Some((_, unused, ..)) = before {
            self.end(command::DESTROY_ID, unused.0)?;
        }
        Ok(reported)
    }

    /// The id that was made in advance, with its cookie, if it fits.
    pub fn kept_id(&self, space: PortSpace, kind: QpKind) -> Option<(u64, Id)> {
        let mut kept = self.kept.lock();
        let fits = kept.is_some_and(|(_, _, of, as_kind)| (of, as_kind) == (space, kind));
        kept.take_if(|_| fits).map(|(cookie, id, ..)| (cookie, id))
    }

    /// Binds an id to a local address. Port 0 means any port, and the wildcard address means all
    /// addresses.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, EINVAL, EAFNOSUPPORT.
    pub fn bind(&self, id: Id, address: &Address) -> Result<()> {
        self.tell(
            command::BIND,
            &Bind { id: id.0, addr_size: address.size(), reserved: 0, addr: address.storage() },
            &[],
        )
    }

    /// Finds the device and the source address for a destination; ADDR_RESOLVED or ADDR_ERROR
    /// follows.
    ///
    /// # Errors
    /// As for [`Channel::bind`].
    pub fn resolve_addr(&self, id: Id, source: Option<&Address>, destination: &Address, timeout_ms: u32) -> Result<()> {
        let source = source.unwrap_or(&Address::NONE);
        let body = ResolveAddr {
            id: id.0,
            timeout_ms,
            src_size: source.size(),
            dst_size: destination.size(),
            reserved: 0,
            src_addr: source.storage(),
            dst_addr: destination.storage(),
        };
        self.tell(command::RESOLVE_ADDR, &body, &[])
    }

    /// Finds the path to the resolved address; ROUTE_RESOLVED or ROUTE_ERROR follows.
    ///
    /// # Errors
    /// EINVAL in another state.
    pub fn resolve_route(&self, id: Id, timeout_ms: u32) -> Result<()> {
        self.tell(command::RESOLVE_ROUTE, &ResolveRoute { id: id.0, timeout_ms }, &[])
    }

    /// The id's addresses and device.
    ///
    /// # Errors
    /// ENOENT if the channel has no such id.
    pub fn query_addresses(&self, id: Id) -> Result<Addresses> {
        let answer: QueryAddrAnswer =
            self.ask(command::QUERY, &Query { response: RESPONSE, id: id.0, option: query::ADDR }, &[])?;
        Ok(addresses(&answer))
    }

    /// The id's GIDs.
    ///
    /// # Errors
    /// ENOENT if the channel has no such id.
    pub fn query_gids(&self, id: Id) -> Result<Gids> {
        let answer: QueryAddrAnswer =
            self.ask(command::QUERY, &Query { response: RESPONSE, id: id.0, option: query::GID }, &[])?;
        let gid = |bytes: &[u8; 128]| SockaddrIb::read_zero_extended(bytes).addr;
        Ok(Gids { source: gid(&answer.src_addr), destination: gid(&answer.dst_addr) })
    }

    /// The paths to the id's peer.
    ///
    /// # Errors
    /// ENOENT if the channel has no such id.
    pub fn query_paths(&self, id: Id) -> Result<Vec<Path>> {
        let room = size_of::<QueryPathAnswer>() + PATHS * size_of::<PathRecData>();
        let body = Query { response: RESPONSE, id: id.0, option: query::PATH };
        let answer = self.call(&build(command::QUERY, &body, &[], room), &[])?;
        let head: QueryPathAnswer = record(&answer)?;
        let count = usize::try_from(head.num_paths).unwrap_or(PATHS).min(PATHS);
        let records = answer.bytes.get(size_of::<QueryPathAnswer>()..).unwrap_or_default();
        Ok(records.chunks_exact(Path::DATA).take(count).filter_map(Path::read).collect())
    }

    /// Listens on the bound address with at most `backlog` waiting requests. An id without a port
    /// gets one.
    ///
    /// # Errors
    /// EADDRINUSE if another id listens there.
    pub fn listen(&self, id: Id, backlog: i32) -> Result<()> {
        self.tell(command::LISTEN, &Listen { id: id.0, backlog: backlog.cast_unsigned() }, &[])
    }

    /// Asks the peer for a connection, or for its QP if the id is for datagrams.
    ///
    /// # Errors
    /// EINVAL in another state, or if the private data does not fit into the message.
    pub fn connect(&self, id: Id, param: &ConnParam<'_>) -> Result<()> {
        let body = Connect { conn_param: conn_record(param)?, id: id.0, reserved: 0, ece: ece_record(param.ece) };
        self.tell(command::CONNECT, &body, &[])
    }

    /// Accepts a request. Events of the new id will carry `cookie`.
    ///
    /// # Errors
    /// EINVAL in another state, or if the private data does not fit into the message.
    pub fn accept(&self, id: Id, cookie: u64, param: &ConnParam<'_>) -> Result<()> {
        let conn_param = ConnRecord { valid: 1, ..conn_record(param)? };
        let body = Accept { uid: cookie, conn_param, id: id.0, reserved: 0, ece: ece_record(param.ece) };
        self.tell(command::ACCEPT, &body, &[])
    }

    /// Ends the handshake on the active side after CONNECT_RESPONSE, when the QP is ready.
    ///
    /// # Errors
    /// EINVAL in another state.
    pub fn establish(&self, id: Id) -> Result<()> {
        self.tell(command::ACCEPT, &Accept { id: id.0, ..Accept::default() }, &[])
    }

    /// Like [`Channel::establish`], directly after the id's CONNECT_RESPONSE and without waiting
    /// for a reply. If the state has changed meanwhile, an event reports it.
    ///
    /// # Errors
    /// EIO if the agent has ended.
    pub fn establish_quietly(&self, id: Id) -> Result<()> {
        self.say(&build(command::ACCEPT, &Accept { id: id.0, ..Accept::default() }, &[], 0))
    }

    /// Rejects a request or a response. `reason` 0 stands for the consumer's reason (28); 35 means
    /// that a vendor's option is not supported.
    ///
    /// # Errors
    /// EINVAL in another state.
    pub fn reject(&self, id: Id, reason: u8, private_data: &[u8]) -> Result<()> {
        let (private_data, private_data_len) = padded(private_data)?;
        self.tell(command::REJECT, &Reject { id: id.0, private_data_len, reason, reserved: [0; 2], private_data }, &[])
    }

    /// Ends the connection. DISCONNECTED follows on both sides.
    ///
    /// # Errors
    /// EINVAL without a connection.
    pub fn disconnect(&self, id: Id) -> Result<()> {
        self.tell(command::DISCONNECT, &Disconnect { id: id.0 }, &[])
    }

    /// Like [`Channel::disconnect`], without waiting for a reply. Use it only for an id that has
    /// reported ESTABLISHED, because then the agent cannot refuse the command.
    ///
    /// # Errors
    /// EIO if the agent has ended.
    pub fn disconnect_quietly(&self, id: Id) -> Result<()> {
        self.say(&build(command::DISCONNECT, &Disconnect { id: id.0 }, &[], 0))
    }

    /// The attributes for taking the id's QP to a state.
    ///
    /// # Errors
    /// EINVAL if the id does not know them yet.
    pub fn qp_attributes(&self, id: Id, state: QpState) -> Result<QpAttributes> {
        self.ask::<_, QpAttr>(
            command::INIT_QP_ATTR,
            &InitQpAttr { response: RESPONSE, id: id.0, qp_state: state.0 },
            &[],
        )
    }

    /// Reports an asynchronous event of the id's QP. COMM_EST replaces a lost RTU.
    ///
    /// # Errors
    /// EINVAL in another state.
    pub fn notify(&self, id: Id, event: u32) -> Result<()> {
        self.tell(command::NOTIFY, &Notify { id: id.0, event }, &[])
    }

    /// Sets an option.
    ///
    /// # Errors
    /// ENOSYS for an unknown option, EINVAL for a malformed value.
    pub fn set_option(&self, id: Id, chosen: SetOption<'_>) -> Result<()> {
        let flag = |flag: bool| i32::from(flag).to_ne_bytes();
        let (small, flags);
        let (level, name, value): (u32, u32, &[u8]) = match chosen {
            SetOption::TypeOfService(value) => {
                small = [value];
                (level::ID, option::TOS, &small)
            }
            SetOption::AckTimeout(value) => {
                small = [value];
                (level::ID, option::ACK_TIMEOUT, &small)
            }
            SetOption::ReuseAddress(value) => {
                flags = flag(value);
                (level::ID, option::REUSEADDR, &flags)
            }
            SetOption::FamilyOnly(value) => {
                flags = flag(value);
                (level::ID, option::AFONLY, &flags)
            }
            SetOption::IbPath(value) => (level::IB, ib_option::PATH, value),
            SetOption::Raw { level, name, value } => (level, name, value),
        };
        let optlen = u32::try_from(value.len()).ok().filter(|len| *len <= u32::from(u16::MAX / 2));
        let optlen =
            optlen.ok_or_else(|| refusal(Errno::EINVAL, "the value of an option is longer than any can be"))?;
        self.tell(
            command::SET_OPTION,
            &OptionRecord { optval: RESPONSE, id: id.0, level, optname: name, optlen },
            value,
        )
    }

    /// Joins a group. MULTICAST_JOIN or MULTICAST_ERROR follows.
    ///
    /// # Errors
    /// EINVAL if the id has no device, ENOMEM if it has its maximum number of memberships.
    pub fn join_multicast(&self, id: Id, join: &MulticastJoin) -> Result<Multicast> {
        let body = JoinMcast {
            response: RESPONSE,
            uid: join.cookie,
            id: id.0,
            addr_size: join.group.size(),
            join_flags: if join.send_only { join_flags::SENDONLY_FULLMEMBER } else { join_flags::FULLMEMBER },
            addr: join.group.storage(),
        };
        let answer: CreateIdAnswer = self.ask(command::JOIN_MCAST, &body, &[])?;
        Ok(Multicast(answer.id))
    }

    /// Leaves a group. Returns the number of the membership's events that have been handed out.
    ///
    /// # Errors
    /// ENOENT if the channel has no such membership.
    pub fn leave_multicast(&self, membership: Multicast) -> Result<u32> {
        let mut reading = self.reading();
        let answer = self.end(command::LEAVE_MCAST, membership.0)?;
        let purged = self.event_socket.purge(&mut reading, 0, 0, answer.event_bytes);
        self.wake(purged.notifications)?;
        Ok(answer.events_reported)
    }

    /// Moves an id from another channel to this one, with its waiting events. Returns the number of
    /// its events that have been handed out.
    ///
    /// # Errors
    /// EINVAL if the id does not belong to the other channel.
    pub fn migrate_id(&self, id: Id, from: &Self) -> Result<u32> {
        let fd = from.token()?;
        let fetch = |id: u32| self.ask(command::MIGRATE_ID, &MigrateId { response: RESPONSE, id, fd }, &[]);
        if std::ptr::eq(self, from) {
            let reading = self.reading();
            let _: DestroyIdAnswer = fetch(id.0)?;
            return Ok(reading.reported(id.0));
        }
        // Both channels are locked meanwhile, so that the id's events stay in order. All threads
        // take the locks in the same order.
        let (mut old, mut new) = if std::ptr::from_ref(from) < std::ptr::from_ref(self) {
            let old = from.reading();
            (old, self.reading())
        } else {
            let new = self.reading();
            (from.reading(), new)
        };
        let answer: DestroyIdAnswer = fetch(id.0)?;
        let purged = from.event_socket.purge(&mut old, id.0, answer.events_reported, answer.event_bytes);
        for request in purged.requests {
            let _: Result<DestroyIdAnswer> = fetch(request);
        }
        from.wake(purged.notifications)?;
        let reported = old.forget(id.0);
        self.wake(new.adopt(id.0, reported, purged.messages))?;
        Ok(reported)
    }

    /// Puts an event into the id's channel: USER, or INTERNAL for libraries.
    ///
    /// # Errors
    /// EINVAL for any other kind.
    pub fn write_event(&self, id: Id, kind: EventKind, status: i32, arg: u64) -> Result<()> {
        let param = UdParam::read_zero_extended(&arg.to_ne_bytes());
        let body = WriteCmEvent { id: id.0, reserved: 0, event: kind.0, status: status.cast_unsigned(), param };
        self.tell(command::WRITE_CM_EVENT, &body, &[])
    }

    /// Freezes or unfreezes one of the caller's own QPs. MODIFY_QP has no effect on a frozen QP.
    /// Engines send some changes without waiting for a reply. To make sure that the agent has seen
    /// an earlier change before the freeze, send QUERY_QP first.
    ///
    /// # Errors
    /// EINVAL if the caller has no such QP.
    pub fn freeze_qp(&self, qp_num: u32, frozen: bool) -> Result<()> {
        self.tell(command::FREEZE_QP, &FreezeQp { qp_num, frozen: u32::from(frozen) }, &[])
    }

    fn token(&self) -> Result<u32> {
        if let Some(token) = self.token.get() {
            return Ok(*token);
        }
        let answer: ChannelAnswer = self.ask(command::CHANNEL, &Token { reserved: 0 }, &[])?;
        Ok(*self.token.get_or_init(|| answer.channel))
    }

    fn end(&self, command: u32, handle: u32) -> Result<DestroyIdAnswer> {
        self.ask(command, &DestroyId { response: RESPONSE, id: handle, reserved: 0 }, &[])
    }

    /// Asks the agent for `count` wake-ups, one for each message that this channel keeps.
    fn wake(&self, count: u32) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.tell(command::WAKE, &Wake { count, reserved: 0 }, &[])
    }

    fn tell<T: Record>(&self, command: u32, body: &T, tail: &[u8]) -> Result<()> {
        self.call(&build(command, body, tail, 0), &[]).map(drop)
    }

    fn ask<T: Record, A: Record>(&self, command: u32, body: &T, tail: &[u8]) -> Result<A> {
        record(&self.call(&build(command, body, tail, size_of::<A>()), &[])?)
    }
}

/// Translates the answer to the query for addresses.
pub(crate) fn addresses(answer: &QueryAddrAnswer) -> Addresses {
    let address = |bytes: &[u8; 128], size: u16| {
        let bytes = bytes.get(..usize::from(size)).unwrap_or(bytes);
        Address::from_bytes(bytes).unwrap_or(Address::NONE)
    };
    Addresses {
        node_guid: answer.node_guid.to_ne_bytes(),
        device: answer.ibdev_index,
        port: answer.port_num,
        pkey: answer.pkey,
        source: address(&answer.src_addr, answer.src_size),
        destination: address(&answer.dst_addr, answer.dst_size),
    }
}

fn record<A: Record>(answer: &Answer) -> Result<A> {
    answer.get(0)
}

fn conn_record(param: &ConnParam<'_>) -> Result<ConnRecord> {
    let (private_data, private_data_len) = padded(param.private_data)?;
    Ok(ConnRecord {
        qp_num: param.qp_num,
        qkey: param.qkey,
        private_data,
        private_data_len,
        srq: param.srq.into(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        valid: 1,
    })
}

fn ece_record(ece: Ece) -> EceRecord {
    EceRecord { vendor_id: ece.vendor_id, attr_mod: ece.options }
}

/// Private data, padded for a record, and its length.
fn padded(data: &[u8]) -> Result<([u8; PRIVATE_DATA_MAX], u8)> {
    let too_long = || refusal(Errno::EINVAL, format!("{} bytes of private data fit no message", data.len()));
    let len = u8::try_from(data.len()).map_err(|_| too_long())?;
    let mut room = [0; PRIVATE_DATA_MAX];
    room[..data.len()].copy_from_slice(data);
    Ok((room, len))
}
