//! An id of the connection manager with an event channel of its own, as rsockets use them: every call here is one of
//! `rdma_cma.h`, by this library's own functions. Nothing waits here: events are taken when there are any. The principal types
//! are [`Endpoint`] and [`News`].

use super::address::Name;
use super::verbs::never_waits;
use super::waiting::borrowed;
use crate::cma::{CmEvent, CmId, ConnParam, EventChannel, ps, qpt};
use crate::entry::Outcome;
use crate::layout::{Context, Cq, Pd, Qp, QpCap, QpInitAttr, SaPathRec};
use crate::object::get;
use crate::verbs::{last_error, made};
use crate::{address, channel, connection, event, id, option, qp};
use bytemuck::Zeroable;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// What has happened to an id (`enum rdma_cm_event_type`, as far as rsockets look).
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
    /// The peer's private data, of a request and its answer.
    pub(crate) private: Vec<u8>,
    /// The new id of a request, still on its listener's channel.
    pub(crate) request: Option<Incoming>,
}

/// A request that nobody has answered. It is rejected when it is dropped.
pub(crate) struct Incoming {
    id: *mut CmId,
    depths: (u8, u8),
}

// SAFETY: an id may be used by any thread.
unsafe impl Send for Incoming {}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.id.is_null() {
            // SAFETY: ours alone; rejecting one that is gone is an error that harms nobody.
            unsafe {
                let _ = connection::reject(self.id, std::ptr::null(), 0);
                let _ = id::destroy(self.id);
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

// SAFETY: the functions of an id and a channel may be called by any thread; fields of the id are read while no call that changes
// them is under way, which the socket's lock sees to.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

/// How a queue pair is to be.
pub(crate) struct Shape {
    pub(crate) datagrams: bool,
    pub(crate) cap: QpCap,
}

impl Endpoint {
    /// A new id; for connections, or for datagrams.
    pub(crate) fn new(datagrams: bool) -> Outcome<Self> {
        let mut endpoint = Self::on_channel()?;
        let space = if datagrams { ps::UDP } else { ps::TCP };
        // SAFETY: the channel is live, the place is ours.
        answered(unsafe { id::create(endpoint.channel, &raw mut endpoint.id, std::ptr::null_mut(), space) })?;
        Ok(endpoint)
    }

    /// The id of a request, on a channel of its own.
    pub(crate) fn of_request(mut request: Incoming) -> Outcome<Self> {
        let mut endpoint = Self::on_channel()?;
        // SAFETY: both live.
        answered(unsafe { id::migrate(request.id, endpoint.channel) })?;
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

    /// Readable when an event waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: live.
        borrowed(unsafe { (*self.channel).fd })
    }

    /// The number of that descriptor, which is the socket's.
    pub(crate) fn number(&self) -> RawFd {
        self.fd().as_raw_fd()
    }

    pub(crate) fn bind(&self, name: &Name) -> Outcome<()> {
        // SAFETY: the id is live, the address whole.
        answered(unsafe { address::bind(self.id, name.as_ptr().cast()) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Outcome<()> {
        // SAFETY: the id is live.
        answered(unsafe { connection::listen(self.id, backlog) })
    }

    pub(crate) fn resolve_address(&self, source: Option<&Name>, name: &Name, milliseconds: c_int) -> Outcome<()> {
        let source = source.map_or(std::ptr::null_mut(), Name::as_ptr);
        // SAFETY: the id is live, the addresses whole.
        answered(unsafe { address::resolve_addr(self.id, source.cast(), name.as_ptr().cast(), milliseconds) })
    }

    pub(crate) fn resolve_route(&self, milliseconds: c_int) -> Outcome<()> {
        // SAFETY: the id is live.
        answered(unsafe { address::resolve_route(self.id, milliseconds) })
    }

    /// Makes the id's queue pair.
    pub(crate) fn make_queue(&self, cq: *mut Cq, shape: &Shape) -> Outcome<QpCap> {
        let mut attr = QpInitAttr::zeroed();
        (attr.send_cq, attr.recv_cq, attr.cap, attr.sq_sig_all) = (cq, cq, shape.cap, 1);
        attr.qp_type = if shape.datagrams { qpt::UD } else { qpt::RC };
        // SAFETY: the id is live and has a device; the attributes are whole.
        answered(unsafe { qp::create(self.id, std::ptr::null_mut(), &raw mut attr) })?;
        Ok(attr.cap)
    }

    /// Ends the id's queue pair, if it has one.
    pub(crate) fn end_queue(&self) {
        if !self.id.is_null() && !self.qp().is_null() {
            // SAFETY: the id is live.
            unsafe { qp::destroy(self.id) };
        }
    }

    pub(crate) fn connect(&self, private: &[u8]) -> Outcome<()> {
        let mut param = Self::param(private);
        (param.flow_control, param.retry_count, param.rnr_retry_count) = (1, 7, 7);
        // SAFETY: the id is live, the parameters are whole.
        answered(unsafe { connection::connect(self.id, &raw mut param) })
    }

    pub(crate) fn accept(&self, private: &[u8]) -> Outcome<()> {
        let mut param = Self::param(private);
        (param.flow_control, param.rnr_retry_count) = (1, 7);
        (param.responder_resources, param.initiator_depth) = self.depths;
        // SAFETY: the id is live, the parameters are whole.
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
        // SAFETY: the id is live, the value whole.
        answered(unsafe { option::set(self.id, level, name, value.as_ptr().cast_mut().cast(), value.len()) })
    }

    /// The next event, if one waits.
    pub(crate) fn news(&self) -> Outcome<Option<News>> {
        let mut found: *mut CmEvent = std::ptr::null_mut();
        // SAFETY: the channel is live, the place is ours.
        if unsafe { event::get(self.channel, &raw mut found) } != 0 {
            let refusal = last_error();
            return if refusal == super::AGAIN { Ok(None) } else { Err(refusal) };
        }
        // SAFETY: given out just now, and not acknowledged.
        let CmEvent { id, event: number, status, param, .. } = unsafe { found.read() };
        let kind = Kind::of(number);
        let mut news = News { kind, status, private: Vec::new(), request: None };
        if matches!(kind, Kind::Request | Kind::Established) {
            // SAFETY: these events carry the parameters of a connection (datagram ids of ours never connect).
            let conn = unsafe { param.conn };
            if !conn.private_data.is_null() && conn.private_data_len > 0 {
                // SAFETY: as many bytes as the event says.
                let bytes =
                    unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) };
                news.private = bytes.to_vec();
            }
            if kind == Kind::Request {
                let depths = (conn.responder_resources, conn.initiator_depth);
                news.request = Some(Incoming { id, depths });
            }
        }
        // SAFETY: given out above, and acknowledged once.
        unsafe { event::ack(found) };
        Ok(Some(news))
    }

    fn qp(&self) -> *mut Qp {
        get!(self.id, qp)
    }

    /// The id's queue pair, once it is made.
    pub(crate) fn queue_pair(&self) -> *mut Qp {
        self.qp()
    }

    /// The device, once the id has one.
    pub(crate) fn context(&self) -> *mut Context {
        get!(self.id, verbs)
    }

    /// The protection domain that goes with the device.
    pub(crate) fn pd(&self) -> *mut Pd {
        get!(self.id, pd)
    }

    /// The port of the device.
    pub(crate) fn port(&self) -> u8 {
        get!(self.id, port_num)
    }

    /// The path to the peer, once it is resolved.
    pub(crate) fn path(&self) -> Option<SaPathRec> {
        let (records, count) = (get!(self.id, route.path_rec), get!(self.id, route.num_paths));
        // SAFETY: as many records as there are paths.
        (count > 0 && !records.is_null()).then(|| unsafe { records.read() })
    }

    /// The address on this side.
    pub(crate) fn local(&self) -> Outcome<Name> {
        // SAFETY: the id's own, in a `struct sockaddr_storage`.
        unsafe { Name::known((&raw const (*self.id).route.addr.src_storage).cast::<c_void>()) }
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> Outcome<Name> {
        // SAFETY: the id's own, in a `struct sockaddr_storage`.
        unsafe { Name::known((&raw const (*self.id).route.addr.dst_storage).cast::<c_void>()) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end_queue();
        // SAFETY: nobody uses them any more, and every event has been acknowledged.
        unsafe {
            if !self.id.is_null() {
                let _ = id::destroy(self.id);
            }
            channel::destroy(self.channel);
        }
    }
}

/// What a function that answers 0, or -1 and `errno`, said.
fn answered(code: c_int) -> Outcome<()> {
    if code == 0 { Ok(()) } else { Err(last_error()) }
}
