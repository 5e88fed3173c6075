//! The table of the node's commands: one [`Row`] per number, for `docs/abi.md` and for
//! [`super::admit`].

use super::{address, command, connection, id};
use crate::errno::Errno;
use crate::layout::{Layout, Record};

/// One command of the node.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Command number.
    pub number: u32,
    /// Name.
    pub name: &'static str,
    /// Request body.
    pub request: Option<Layout>,
    /// Shortest request body in bytes.
    pub request_min: usize,
    /// Answer.
    pub answer: Option<Layout>,
    /// Least room for the answer in bytes.
    pub answer_min: usize,
    /// Errors of its own.
    pub errors: &'static [(Errno, &'static str)],
    /// The test that checks it; `None`: it is not implemented, and refused with ENOSYS.
    pub test: Option<&'static str>,
}

impl Row {
    const fn new(number: u32, name: &'static str, test: &'static str) -> Self {
        Self { number, name, request: None, request_min: 0, answer: None, answer_min: 0, errors: &[], test: Some(test) }
    }

    const fn refused(number: u32, name: &'static str) -> Self {
        Self { test: None, ..Self::new(number, name, "") }
    }

    const fn request<T: Record>(mut self) -> Self {
        self.request = Some(T::LAYOUT);
        self.request_min = T::LAYOUT.size;
        self
    }

    const fn at_least(mut self, len: usize) -> Self {
        self.request_min = len;
        self
    }

    const fn answer<T: Record>(mut self, min: usize) -> Self {
        self.answer = Some(T::LAYOUT);
        self.answer_min = min;
        self
    }

    const fn errors(mut self, errors: &'static [(Errno, &'static str)]) -> Self {
        self.errors = errors;
        self
    }
}

const STATE: (Errno, &str) = (Errno::EINVAL, "the state of the id does not allow this command");
const BIND: &[(Errno, &str)] = &[
    STATE,
    (Errno::EADDRINUSE, "another id has this port at this address"),
    (
        Errno::EADDRNOTAVAIL,
        "the address is not one of this host; or another id has this port, and one of the two has every address; or no port is left",
    ),
    (Errno::EACCES, "the port is below net.ipv4.ip_unprivileged_port_start"),
    (Errno::EAFNOSUPPORT, "the family is neither AF_INET, AF_INET6 nor AF_IB"),
];
const RESOLVE: &[(Errno, &str)] = &[
    STATE,
    (Errno::EADDRNOTAVAIL, "the source is not an address of this host, or no port is left"),
    (Errno::EAFNOSUPPORT, "the family is neither AF_INET, AF_INET6 nor AF_IB"),
];
const JOIN: &[(Errno, &str)] = &[
    STATE,
    (Errno::EADDRINUSE, "the id is already a member"),
    (Errno::ENOMEM, "the id has reached the limit of memberships"),
];

/// Every command of the node.
pub const ROWS: &[Row] = &[
    Row::new(command::CREATE_ID, "CREATE_ID", "ids").request::<id::CreateId>().answer::<id::CreateIdAnswer>(4).errors(
        &[
            (Errno::EINVAL, "the port space or the QP type is unknown"),
            (Errno::ENOMEM, "the channel or its user has reached the limit of ids"),
        ],
    ),
    Row::new(command::DESTROY_ID, "DESTROY_ID", "ids").request::<id::DestroyId>().answer::<id::DestroyIdAnswer>(4),
    Row::new(command::BIND_IP, "BIND_IP", "binding").request::<address::BindIp>().errors(BIND),
    Row::new(command::RESOLVE_IP, "RESOLVE_IP", "resolving").request::<address::ResolveIp>().errors(RESOLVE),
    Row::new(command::RESOLVE_ROUTE, "RESOLVE_ROUTE", "resolving").request::<address::ResolveRoute>().errors(&[STATE]),
    Row::new(command::QUERY_ROUTE, "QUERY_ROUTE", "resolving")
        .request::<address::Query>()
        .at_least(12)
        .answer::<address::QueryRouteAnswer>(200),
    Row::new(command::CONNECT, "CONNECT", "connecting")
        .request::<connection::Connect>()
        .at_least(connection::CONNECT_MIN)
        .errors(&[STATE, (Errno::EINVAL, "the private data are longer than the message holds")]),
    Row::new(command::LISTEN, "LISTEN", "connecting").request::<connection::Listen>().errors(&[
        STATE,
        (Errno::EADDRINUSE, "an id that allowed reuse has this port at this address"),
        (Errno::EADDRNOTAVAIL, "an id that allowed reuse has this port, and one of the two has every address"),
    ]),
    Row::new(command::ACCEPT, "ACCEPT", "connecting")
        .request::<connection::Accept>()
        .at_least(connection::ACCEPT_MIN)
        .errors(&[STATE, (Errno::EINVAL, "the private data are longer than the message holds")]),
    Row::new(command::REJECT, "REJECT", "rejecting").request::<connection::Reject>().errors(&[STATE]),
    Row::new(command::DISCONNECT, "DISCONNECT", "disconnecting").request::<connection::Disconnect>().errors(&[STATE]),
    Row::new(command::INIT_QP_ATTR, "INIT_QP_ATTR", "connecting")
        .request::<connection::InitQpAttr>()
        .answer::<connection::QpAttr>(size_of::<connection::QpAttr>())
        .errors(&[STATE]),
    Row::new(command::GET_EVENT, "GET_EVENT", "ids")
        .request::<connection::GetEvent>()
        .answer::<connection::EventAnswer>(connection::EVENT_MIN)
        .errors(&[(Errno::EAGAIN, "there is no event")]),
    Row::refused(command::GET_OPTION, "GET_OPTION"),
    Row::new(command::SET_OPTION, "SET_OPTION", "options").request::<id::SetOption>().errors(&[
        STATE,
        (Errno::ENOSYS, "the option is unknown"),
        (Errno::EINVAL, "the value is malformed"),
    ]),
    Row::new(command::NOTIFY, "NOTIFY", "connecting").request::<connection::Notify>().errors(&[STATE]),
    Row::new(command::JOIN_IP_MCAST, "JOIN_IP_MCAST", "groups")
        .request::<connection::JoinIpMcast>()
        .answer::<id::CreateIdAnswer>(4)
        .errors(JOIN),
    Row::new(command::LEAVE_MCAST, "LEAVE_MCAST", "groups").request::<id::DestroyId>().answer::<id::DestroyIdAnswer>(4),
    Row::new(command::MIGRATE_ID, "MIGRATE_ID", "migration")
        .request::<id::MigrateId>()
        .answer::<id::DestroyIdAnswer>(4)
        .errors(&[(Errno::EINVAL, "this user has no such channel, or the id does not belong to it")]),
    Row::new(command::QUERY, "QUERY", "resolving").request::<address::Query>().answer::<address::QueryPathAnswer>(8),
    Row::new(command::BIND, "BIND", "binding").request::<address::Bind>().errors(BIND),
    Row::new(command::RESOLVE_ADDR, "RESOLVE_ADDR", "resolving").request::<address::ResolveAddr>().errors(RESOLVE),
    Row::new(command::JOIN_MCAST, "JOIN_MCAST", "groups")
        .request::<connection::JoinMcast>()
        .answer::<id::CreateIdAnswer>(4)
        .errors(JOIN),
    Row::refused(command::RESOLVE_IB_SERVICE, "RESOLVE_IB_SERVICE"),
    Row::new(command::WRITE_CM_EVENT, "WRITE_CM_EVENT", "ids").request::<connection::WriteCmEvent>().errors(&[STATE]),
    Row::new(command::CHANNEL, "CHANNEL", "migration").request::<id::Channel>().answer::<id::ChannelAnswer>(4),
    Row::new(command::NEXT_EVENT, "NEXT_EVENT", "next_events")
        .request::<connection::NextEvent>()
        .answer::<connection::NextEventAnswer>(size_of::<connection::NextEventAnswer>())
        .errors(&[(Errno::EAGAIN, "there is no event")]),
    Row::new(command::RENEW_ID, "RENEW_ID", "ids")
        .request::<id::RenewId>()
        .answer::<id::RenewIdAnswer>(size_of::<id::RenewIdAnswer>()),
    Row::new(command::TAKEN, "TAKEN", "told_events").request::<id::Taken>(),
    Row::new(command::WAKE, "WAKE", "told_events")
        .request::<id::Wake>()
        .errors(&[(Errno::EINVAL, "the event socket sends no messages, or count is above its limit")]),
    Row::new(command::FREEZE_QP, "FREEZE_QP", "frozen_qps")
        .request::<id::FreezeQp>()
        .errors(&[(Errno::EINVAL, "the caller has no such QP")]),
];
