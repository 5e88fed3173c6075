//! Connections: CONNECT, ACCEPT, REJECT, DISCONNECT, NOTIFY. [`super::news`] tells the program how
//! the peer reacts.

use abi::event::kind as async_kind;
use abi::qp::kind;
use abi::ucma::PRIVATE_DATA_MAX;
use abi::ucma::connection::{Accept, ConnParam, Connect, Disconnect, Ece as EceRecord, Notify, Reject};
use abi::ucma::sockaddr::Sockaddr;
use abi::{Errno, Refusal};
use protocol::cm::{CmState, Ece, Error, Path, Reason, Reply, Request, SidrReply, SidrRequest, TransportType};
use wire::Psn;
use wire::Qpn;
use wire::cm::SidrStatus;
use wire::cm::ip::{Header, LEN as HEADER_LEN};

use super::Manager;
use super::dispatch::CmCall;
use super::id::{Id, Stage, ip, port};
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// How long either side may take to answer a message: code 19 is 2.1 s. A side that needs longer
/// sends an MRA.
const RESPONSE_TIMEOUT: u8 = 19;
/// How often a message is repeated.
const CM_RETRIES: u8 = 15;
/// Lengths of the private data of a REQ and of a SIDR_REQ.
const REQ_PRIVATE: usize = 92;
const SIDR_REQ_PRIVATE: usize = 216;
/// In a REP: the alternate path of the REQ is accepted, or is not.
const FAILOVER: u8 = 0;
const NO_FAILOVER: u8 = 1;

impl Manager {
    pub(super) fn connect(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Connect { conn_param: param, id: name, ece, .. } = call.command.body();
        let now = self.now();
        let psn = self.psn();
        self.check_room(call)?;
        self.check_qp(world, call, param.qp_num)?;
        let owner = self.owner(call.channel)?.channel.peer.uid;
        let id = self.id_in(call, name, &[Stage::RouteResolved])?;
        if param.valid == 0 {
            return refuse(Errno::EINVAL, "the connection's parameters are not marked as valid");
        }
        let (Some(path), Some(at), Some(remote)) = (id.path, id.attachment, id.remote) else {
            return refuse(Errno::EINVAL, format!("the address that id {name:#x} had is gone"));
        };
        let service_id = service_id(id.space, &remote);
        let private = private_data(id, &param)?;
        id.qpn = param.qp_num;
        if param.qkey != 0 && id.is_datagram() {
            id.qkey = param.qkey;
        }
        let (datagram, transport, timeout) = (id.is_datagram(), transport(id.kind), id.options.ack_timeout);
        let outcome = if datagram {
            self.core.sidr_request(now, &sidr_request(owner, path, service_id, &private))
        } else {
            self.core.request(
                now,
                &Request {
                    owner,
                    path,
                    alternate: None,
                    service_id,
                    transport,
                    ca_guid: world.devices.get(at.device).map_or(0, |device| device.node_guid.0),
                    qpn: Qpn::new(param.qp_num),
                    psn,
                    qkey: 0,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    flow_control: param.flow_control != 0,
                    retry_count: param.retry_count.min(7),
                    rnr_retry_count: param.rnr_retry_count.min(7),
                    srq: param.srq != 0,
                    ack_timeout: timeout.unwrap_or(path.packet_life + 1),
                    remote_response_timeout: RESPONSE_TIMEOUT,
                    local_response_timeout: RESPONSE_TIMEOUT,
                    max_cm_retries: CM_RETRIES,
                    ece: ece_of(&ece),
                    private_data: &private,
                },
            )
        };
        let connection = outcome.map_err(|error| impossible(name, &error))?;
        if let Some(id) = self.ids.get_mut(name) {
            id.connection = Some(connection);
            id.stage = Stage::Connecting;
        }
        self.connections.insert(connection, name);
        Ok(Vec::new())
    }

    pub(super) fn accept(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Accept { uid, conn_param: param, id: name, ece, .. } = call.command.body();
        let now = self.now();
        self.check_room(call)?;
        let id = self.id_in(call, name, &[Stage::Connecting])?;
        let Some(connection) = id.connection else {
            return refuse(Errno::EINVAL, format!("id {name:#x} has no request to accept"));
        };
        if param.valid == 0 {
            // The REP has arrived, and the program has a QP for the connection.
            id.established = true;
            self.core.ready(connection, &[]).map_err(|error| impossible(name, &error))?;
            return Ok(Vec::new());
        }
        let private = given(&param);
        self.check_qp(world, call, param.qp_num)?;
        let id = self.id(call, name)?;
        id.qpn = param.qp_num;
        if param.qkey != 0 && id.is_datagram() {
            id.qkey = param.qkey;
        }
        let (datagram, qkey) = (id.is_datagram(), id.qkey);
        let at = id.attachment;
        // The program's QP may already be in RTR, with the values that INIT_QP_ATTR answered.
        let facts = self.core.connection(connection).ok();
        let psn = facts.as_ref().map_or(Psn::new(0), |facts| facts.receive_psn);
        let alternate = facts.as_ref().and_then(|facts| self.alternate(facts));
        let has_alternate = alternate.is_some_and(|from| at.is_some_and(|at| at.device == from.device));
        let outcome = if datagram {
            self.core.sidr_reply(now, connection, &sidr_reply(param.qp_num, qkey, &ece, private))
        } else {
            self.core.reply(
                now,
                connection,
                &Reply {
                    ca_guid: at.and_then(|at| world.devices.get(at.device)).map_or(0, |device| device.node_guid.0),
                    qpn: Qpn::new(param.qp_num),
                    psn,
                    qkey: 0,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    target_ack_delay: 0,
                    failover_accepted: if has_alternate { FAILOVER } else { NO_FAILOVER },
                    flow_control: param.flow_control != 0,
                    rnr_retry_count: param.rnr_retry_count.min(7),
                    srq: param.srq != 0,
                    ece: ece_of(&ece),
                    private_data: private,
                },
            )
        };
        outcome.map_err(|error| impossible(name, &error))?;
        let user = self.owner(call.channel)?.channel.peer.uid;
        self.make_known(name, uid, user);
        Ok(Vec::new())
    }

    /// The program has accepted a request: it knows the id from now on, by the name `uid`.
    pub(super) fn make_known(&mut self, name: u32, uid: u64, user: u32) {
        let Some(id) = self.ids.get_mut(name) else { return };
        id.uid = uid;
        if !std::mem::replace(&mut id.known, true)
            && let Some(share) = self.users.get_mut(&user)
        {
            share.undecided -= 1;
        }
    }

    pub(super) fn reject(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Reject { id: name, private_data_len, reason, private_data, .. } = call.command.body();
        let now = self.now();
        let reason = match reason {
            0 | 28 => Reason::CONSUMER_DEFINED,
            35 => Reason::VENDOR_OPTION_NOT_SUPPORTED,
            other => {
                return refuse(Errno::EINVAL, format!("reason {other} is not the program's to give; 28 and 35 are"));
            }
        };
        let id = self.id_in(call, name, &[Stage::Connecting])?;
        let Some(connection) = id.connection else {
            return refuse(Errno::EINVAL, format!("id {name:#x} has nothing to reject"));
        };
        let private = &private_data[..usize::from(private_data_len)];
        let datagram = id.is_datagram();
        let outcome = if datagram {
            let reply = SidrReply { status: SidrStatus::REJECTED, private_data: private, ..SidrReply::default() };
            self.core.sidr_reply(now, connection, &reply)
        } else {
            self.core.reject(now, connection, reason, &[], private)
        };
        outcome.map_err(|error| impossible(name, &error))?;
        if let Some(id) = self.ids.get_mut(name) {
            id.stage = Stage::Over;
        }
        Ok(Vec::new())
    }

    /// Ends a connection, or answers a peer that has ended it. A connection that has ended remains
    /// so.
    pub(super) fn disconnect(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Disconnect { id: name } = call.command.body();
        let now = self.now();
        let id = self.id(call, name)?;
        let Some(connection) = id.connection else {
            return refuse(Errno::EINVAL, format!("id {name:#x} has no connection to end"));
        };
        if id.is_datagram() {
            return refuse(Errno::EINVAL, format!("id {name:#x} is for datagrams, which have no connection"));
        }
        match self.core.disconnect(now, connection, &[]) {
            // The connection is ending, has ended, or was never established. As in Linux, this is
            // no error.
            Ok(()) | Err(Error::State { .. } | Error::Stale) => Ok(Vec::new()),
            Err(error) => Err(impossible(name, &error)),
        }
    }

    /// The program reports an event of its QP.
    pub(super) fn notify(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Notify { id: name, event } = call.command.body();
        let connection = self.id(call, name)?.connection;
        let Some(connection) = connection.filter(|_| event == async_kind::COMM_EST) else {
            return refuse(Errno::EINVAL, format!("event {event} means nothing to id {name:#x}"));
        };
        match self.core.established_by_data(connection) {
            Ok(()) => Ok(Vec::new()),
            Err(_) if self.core.state(connection).is_ok_and(|state| state == CmState::Established) => {
                refuse(Errno::EISCONN, format!("id {name:#x} is connected already"))
            }
            Err(error) => Err(impossible(name, &error)),
        }
    }

    /// Checks the QP number of a program. A kernel accepts any number. But if users are kept apart,
    /// another user's number is refused. The peer would take it for a new connection of that user's
    /// QP, and would end the connection that the user has.
    pub(super) fn check_qp(&mut self, world: &World, call: &CmCall<'_>, qpn: u32) -> Outcome<()> {
        let uid = self.owner(call.channel)?.channel.peer.uid;
        let owner = world.numbers.qpns.owner(qpn).and_then(|context| world.contexts.get(&context));
        if world.users.apart && owner.is_some_and(|context| context.peer.uid != uid) {
            return refuse(Errno::EINVAL, format!("QP {qpn:#x} is another user's"));
        }
        Ok(())
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.outside.word() & 0xff_ffff)
    }
}

/// The private data of a REQ or SIDR_REQ. They follow the header of the IP CM service, except for
/// ids with GIDs.
fn private_data(id: &Id, param: &ConnParam) -> Outcome<Vec<u8>> {
    let given = given(param);
    let room = if id.is_datagram() { SIDR_REQ_PRIVATE } else { REQ_PRIVATE };
    let (Some(local), Some(remote)) = (&id.local, &id.remote) else { return Ok(given.to_vec()) };
    let (Some(source), Some(destination)) = (ip(local), ip(remote)) else { return Ok(given.to_vec()) };
    let room = room - HEADER_LEN;
    if given.len() > room {
        let text = format!("{} bytes of private data do not fit into the {room} that a request has", given.len());
        return refuse(Errno::EINVAL, text);
    }
    let mut header = [0; HEADER_LEN];
    Header { source_port: port(local), source, destination }.emit(&mut header);
    Ok([&header[..], given].concat())
}

/// The private data that a program gives.
pub(super) fn given(param: &ConnParam) -> &[u8] {
    &param.private_data[..usize::from(param.private_data_len).min(PRIVATE_DATA_MAX)]
}

fn ece_of(record: &EceRecord) -> Ece {
    Ece { vendor_id: record.vendor_id & 0xff_ffff, options: record.attr_mod }
}

fn transport(kind: u8) -> TransportType {
    match kind {
        kind::UC => TransportType::Uc,
        kind::XRC_INI => TransportType::Xrc,
        _ => TransportType::Rc,
    }
}

/// The refusal of a call that the protocol does not allow in this state.
pub(super) fn impossible(name: u32, error: &Error) -> Refusal {
    let errno = match error {
        Error::Full => Errno::ENOMEM,
        _ => Errno::EINVAL,
    };
    Refusal::new(errno, format!("id {name:#x}: {error}"))
}

/// The service id of a peer's address.
fn service_id(space: u16, remote: &Sockaddr) -> u64 {
    match remote {
        Sockaddr::Ib(record) if record.sid != [0; 8] => u64::from_be_bytes(record.sid),
        _ => u64::from(space) << 16 | u64::from(port(remote)),
    }
}

fn sidr_request(owner: u32, path: Path, service_id: u64, private_data: &[u8]) -> SidrRequest<'_> {
    SidrRequest {
        owner,
        path,
        service_id,
        remote_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: CM_RETRIES,
        private_data,
    }
}

fn sidr_reply<'a>(qpn: u32, qkey: u32, ece: &EceRecord, private_data: &'a [u8]) -> SidrReply<'a> {
    SidrReply { status: SidrStatus::OK, qpn: Qpn::new(qpn), qkey, ece: ece_of(ece), info: &[], private_data }
}
