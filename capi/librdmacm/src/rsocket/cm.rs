//! An id of the connection manager with its own event channel, as rsockets use it. Every call here
//! is a function of `rdma_cma.h`, implemented by this library. Nothing here waits: a call takes an
//! event only if one is there. The principal types are [`Endpoint`] and [`News`].

use super::address::Name;
use super::verbs::never_waits;
use super::waiting::borrowed;
use crate::cma::{CmEvent, CmId, ConnParam, EventChannel, ps, qpt};
use crate::entry::Outcome;
use crate::layout::{Context, Cq, Pd, Qp, QpCap, QpInitAttr, SaPathRec};
use crate::object::get;
use crate::verbs::{last_error, made};
use crate::{address, channel, connection, devices, event, get_event, id_life, option, qp};
use bytemuck::Zeroable;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The kind of an event (`enum rdma_cm_event_type`, reduced to the kinds that rsockets use).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AddressResolved,
    AddressError,
    RouteResolved,
    RouteError,
    Request,
    Unreachable,
    Rejected,
    ConnectError,
    Established,
    Disconnected,
    DeviceRemoval,
    Other(u32),
}

impl Kind {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::AddressResolved,
            1 => Self::AddressError,
            2 => Self::RouteResolved,
            3 => Self::RouteError,
            4 => Self::Request,
            6 => Self::ConnectError,
            7 => Self::Unreachable,
            8 => Self::Rejected,
            9 => Self::Established,
            10 => Self::Disconnected,
            11 => Self::DeviceRemoval,
            other => Self::Other(other),
        }
    }
}

/// An event, after it has been acknowledged.
pub(crate) struct News {
    pub(crate) kind: Kind,
    pub(crate) status: i32,
    /// The peer's private data, for a request and its answer.
    pub(crate) private: Vec<u8>,
    /// The new id of a request, still on its listener's channel.
    pub(crate) request: Option<Incoming>,
}

/// A request that was not answered yet. Dropping it rejects the request.
pub(crate) struct Incoming {
    id: *mut CmId,
    depths: (u8, u8),
}

// SAFETY: any thread may use an id.
unsafe impl Send for Incoming {}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.id.is_null() {
            // SAFETY: only this value refers to it; rejecting a request that is gone fails without
            // harm.
            unsafe {
                let _ = connection::reject(self.id, std::ptr::null(), 0);
                let _ = id_life::destroy(self.id);
            }
        }
    }
}

/// A channel and an id on it.
pub(crate) struct Endpoint {
    channel: *mut EventChannel,
    id: *mut CmId,
    depths: (u8, u8),
}

// SAFETY: any thread may call the functions of an id and a channel. The socket's lock ensures that
// fields of the id are not read during a call that changes them.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

/// The properties of a queue pair.
pub(crate) struct Shape {
    pub(crate) datagrams: bool,
    pub(crate) cap: QpCap,
}

impl Endpoint {
    /// Makes a new id for connections or for datagrams.
    pub(crate) fn new(datagrams: bool) -> Outcome<Self> {
        let mut endpoint = Self::on_channel()?;
        let space = if datagrams { ps::UDP } else { ps::TCP };
        // SAFETY: the channel is live, and the id's place belongs to `endpoint`.
        answered(unsafe { id_life::create(endpoint.channel, &raw mut endpoint.id, std::ptr::null_mut(), space) })?;
        Ok(endpoint)
    }

    /// Moves the id of a request to its own channel.
    pub(crate) fn of_request(mut request: Incoming) -> Outcome<Self> {
        let mut endpoint = Self::on_channel()?;
        // SAFETY: both are live.
        answered(unsafe { id_life::migrate(request.id, endpoint.channel) })?;
        endpoint.id = std::mem::replace(&mut request.id, std::ptr::null_mut());
        endpoint.depths = request.depths;
        Ok(endpoint)
    }

    fn on_channel() -> Outcome<Self> {
        let channel = made(channel::create())?;
        let endpoint = Self { channel, id: std::ptr::null_mut(), depths: (0, 0) };
        never_waits(endpoint.fd())?;
        Ok(endpoint)
    }

    /// The channel's descriptor, which is readable when an event waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: live.
        borrowed(unsafe { (*self.channel).fd })
    }

    /// The number of that descriptor, which is also the socket's number.
    pub(crate) fn number(&self) -> RawFd {
        self.fd().as_raw_fd()
    }

    pub(crate) fn bind(&self, name: &Name) -> Outcome<()> {
        // SAFETY: the id is live, and the address is complete.
        answered(unsafe { address::bind(self.id, name.as_ptr().cast()) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Outcome<()> {
        // SAFETY: the id is live.
        answered(unsafe { connection::listen(self.id, backlog) })
    }

    pub(crate) fn resolve_address(&self, source: Option<&Name>, name: &Name, milliseconds: c_int) -> Outcome<()> {
        let source = source.map_or(std::ptr::null_mut(), Name::as_ptr);
        // SAFETY: the id is live, and the addresses are complete.
        answered(unsafe { address::resolve_addr(self.id, source.cast(), name.as_ptr().cast(), milliseconds) })
    }

    pub(crate) fn resolve_route(&self, milliseconds: c_int) -> Outcome<()> {
        // SAFETY: the id is live.
        answered(unsafe { address::resolve_route(self.id, milliseconds) })
    }

    /// Makes the id's queue pair.
    pub(crate) fn make_queue(&self, cq: *mut Cq, shape: &Shape) -> Outcome<QpCap> {
        let mut attr = QpInitAttr::zeroed();
        (attr.send_cq, attr.recv_cq, attr.cap) = (cq, cq, shape.cap);
        attr.qp_type = if shape.datagrams { qpt::UD } else { qpt::RC };
        // SAFETY: the id is live and has a device; the attributes are complete.
        answered(unsafe { qp::create(self.id, std::ptr::null_mut(), &raw mut attr) })?;
        Ok(attr.cap)
    }

    /// Destroys the id's queue pair, if it has one.
    pub(crate) fn end_queue(&self) {
        if !self.id.is_null() && !self.qp().is_null() {
            // SAFETY: the id is live.
            unsafe { qp::destroy(self.id) };
        }
    }

    pub(crate) fn connect(&self, private: &[u8]) -> Outcome<()> {
        let mut param = Self::param(private);
        (param.flow_control, param.retry_count, param.rnr_retry_count) = (1, 7, 7);
        // Some iWARP adapters begin a connection with a READ.
        param.initiator_depth = self.is_iwarp().into();
        // SAFETY: the id is live, and the parameters are complete.
        answered(unsafe { connection::connect(self.id, &raw mut param) })
    }

    pub(crate) fn accept(&self, private: &[u8]) -> Outcome<()> {
        let mut param = Self::param(private);
        (param.flow_control, param.rnr_retry_count) = (1, 7);
        (param.responder_resources, param.initiator_depth) = self.depths;
        // SAFETY: the id is live, and the parameters are complete.
        answered(unsafe { connection::accept(self.id, &raw mut param) })
    }

    fn param(private: &[u8]) -> ConnParam {
        let mut param = ConnParam::zeroed();
        param.private_data = private.as_ptr().cast();
        param.private_data_len = u8::try_from(private.len()).unwrap_or(0);
        param
    }

    pub(crate) fn disconnect(&self) -> Outcome<()> {
        // SAFETY: the id is live.
        answered(unsafe { connection::disconnect(self.id) })
    }

    /// `rdma_set_option`.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
        // SAFETY: the id is live, and the value is complete.
        answered(unsafe { option::set(self.id, level, name, value.as_ptr().cast_mut().cast(), value.len()) })
    }

    /// The next event, if one waits.
    pub(crate) fn news(&self) -> Outcome<Option<News>> {
        let mut found: *mut CmEvent = std::ptr::null_mut();
        // SAFETY: the channel is live, and the id's place belongs to `endpoint`.
        if unsafe { get_event::get(self.channel, &raw mut found) } != 0 {
            let refusal = last_error();
            return if refusal == super::AGAIN { Ok(None) } else { Err(refusal) };
        }
        // SAFETY: handed out just now, and not acknowledged.
        let CmEvent { id, event: number, status, param, .. } = unsafe { found.read() };
        let kind = Kind::of(number);
        let mut news = News { kind, status, private: Vec::new(), request: None };
        if matches!(kind, Kind::Request | Kind::Established) {
            // SAFETY: these events carry the parameters of a connection (our datagram ids never
            // connect).
            let conn = unsafe { param.conn };
            if !conn.private_data.is_null() && conn.private_data_len > 0 {
                // SAFETY: the event says how many bytes there are.
                let bytes =
                    unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) };
                news.private = bytes.to_vec();
            }
            if kind == Kind::Request {
                let depths = (conn.responder_resources, conn.initiator_depth);
                news.request = Some(Incoming { id, depths });
            }
        }
        // SAFETY: handed out above, and acknowledged once.
        unsafe { event::ack(found) };
        Ok(Some(news))
    }

    fn qp(&self) -> *mut Qp {
        get!(self.id, qp)
    }

    /// The id's queue pair, or NULL before it is made.
    pub(crate) fn queue_pair(&self) -> *mut Qp {
        self.qp()
    }

    /// The device's context, or NULL before the id has a device.
    pub(crate) fn context(&self) -> *mut Context {
        get!(self.id, verbs)
    }

    /// Whether the device is an iWARP device. There must be a device.
    pub(crate) fn is_iwarp(&self) -> bool {
        devices::is_iwarp(get!(self.context(), device))
    }

    /// The default protection domain of the device.
    pub(crate) fn pd(&self) -> *mut Pd {
        get!(self.id, pd)
    }

    /// The port of the device.
    pub(crate) fn port(&self) -> u8 {
        get!(self.id, port_num)
    }

    /// The path to the peer, if it is resolved.
    pub(crate) fn path(&self) -> Option<SaPathRec> {
        let (records, count) = (get!(self.id, route.path_rec), get!(self.id, route.num_paths));
        // SAFETY: there are as many records as paths.
        (count > 0 && !records.is_null()).then(|| unsafe { records.read() })
    }

    /// The local address.
    pub(crate) fn local(&self) -> Outcome<Name> {
        // SAFETY: the id's own address, in a `struct sockaddr_storage`.
        unsafe { Name::known((&raw const (*self.id).route.addr.src_storage).cast::<c_void>()) }
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> Outcome<Name> {
        // SAFETY: the id's own address, in a `struct sockaddr_storage`.
        unsafe { Name::known((&raw const (*self.id).route.addr.dst_storage).cast::<c_void>()) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end_queue();
        // SAFETY: nothing uses them any more, and every event has been acknowledged.
        unsafe {
            if !self.id.is_null() {
                let _ = id_life::destroy(self.id);
            }
            channel::destroy(self.channel);
        }
    }
}

/// The outcome of a function that returns 0, or -1 and `errno`.
fn answered(code: c_int) -> Outcome<()> {
    if code == 0 { Ok(()) } else { Err(last_error()) }
}
