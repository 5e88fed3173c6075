//! The ids of the connection manager, and the state changes of a queue pair that they control.
//! Principal type: [`Id`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ::cm::{Address, Channel, Event, EventKind, PortSpace, QpAttributes, QpKind, QpState};
use abi::errno::Errno;
use abi::qp::{Dest, ModifyQp};

use crate::cm::manager::{Mailbox, Manager};
use crate::context::ContextInner;
use crate::error::{Error, Result};

/// The reason of the IBA for a rejection by the peer's program (volume 1, 12.6.7.2).
const CONSUMER: i32 = 28;

/// An id. Dropping it ends the id in any state, and the agent tells the peer.
pub(crate) struct Id {
    pub(crate) ctx: Arc<ContextInner>,
    manager: Arc<Manager>,
    id: ::cm::Id,
    pub(crate) cookie: u64,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// The addresses of an id.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Id {
    pub(crate) fn new(ctx: &Arc<ContextInner>, space: PortSpace, kind: QpKind) -> Result<Self> {
        ctx.engine.check_process()?;
        let manager = ctx.manager()?;
        let (cookie, mailbox) = manager.mailbox();
        match manager.channel().create_id(cookie, space, kind) {
            Ok(id) => Ok(Self { ctx: Arc::clone(ctx), manager, id, cookie, mailbox }),
            Err(error) => {
                manager.forget(cookie);
                Err(error.into())
            }
        }
    }

    /// The id that the agent has made for a request to this one.
    pub(crate) fn requested(&self, event: &Event) -> Self {
        let manager = Arc::clone(&self.manager);
        let (cookie, mailbox) = manager.mailbox();
        Self { ctx: Arc::clone(&self.ctx), manager, id: event.id, cookie, mailbox }
    }

    /// The channel and the id, for a command on this id.
    pub(crate) fn command(&self) -> Result<(&Channel, ::cm::Id)> {
        self.ctx.engine.check_process()?;
        Ok((self.manager.channel(), self.id))
    }

    /// Both addresses, as far as they are known; checks that the agent chose this device.
    pub(crate) fn ends(&self) -> Result<Ends> {
        let (channel, id) = self.command()?;
        let addresses = channel.query_addresses(id)?;
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let known = |address: Address| address.socket_addr().unwrap_or(unknown);
        let own = self.ctx.engine.query_device()?.node_guid.to_ne_bytes();
        if addresses.node_guid != own && addresses.node_guid != [0; 8] {
            let reason = format!("{} belongs to another device than the one that is open here", addresses.source);
            return Err(Error::refused(Errno::EADDRNOTAVAIL, reason));
        }
        Ok(Ends { local: known(addresses.source), peer: known(addresses.destination) })
    }

    /// The connection manager's attributes for a queue pair that goes to `state`.
    pub(crate) fn attributes(&self, state: QpState) -> Result<ModifyQp> {
        let (channel, id) = self.command()?;
        let attributes = channel.qp_attributes(id, state)?;
        Ok(modify(&attributes))
    }

    /// Waits for an event of this kind, without a limit, because the agent guarantees that the
    /// event comes.
    pub(crate) fn expect(&self, kind: EventKind) -> Result<Event> {
        loop {
            let event = self.mailbox.wait(None)?;
            if let Some(event) = event.map(|event| expected(event, kind)).transpose()?.flatten() {
                return Ok(event);
            }
        }
    }

    /// [`Id::expect`] for tasks.
    #[cfg(feature = "tokio")]
    pub(crate) async fn expected(&self, kind: EventKind) -> Result<Event> {
        loop {
            if let Some(event) = expected(self.mailbox.event().await?, kind)? {
                return Ok(event);
            }
        }
    }

    /// Waits for an event of this kind, at most until `end`.
    pub(crate) fn expect_until(&self, kind: EventKind, end: Option<Instant>) -> Result<Option<Event>> {
        while let Some(event) = self.mailbox.wait(end)? {
            if let Some(event) = expected(event, kind)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.ctx.engine.check_process().is_ok() {
            // Fails only when the agent is gone, and the id with it.
            let _ = self.manager.channel().destroy_id(self.id);
        }
        self.manager.forget(self.cookie);
    }
}

/// Returns the event if it is of the expected kind; `None` for an event that changes nothing.
fn expected(event: Event, kind: EventKind) -> Result<Option<Event>> {
    if event.kind == kind {
        return Ok(Some(event));
    }
    match event.kind {
        EventKind::ADDR_CHANGE | EventKind::TIMEWAIT_EXIT | EventKind::USER | EventKind::INTERNAL => Ok(None),
        _ => Err(failure(&event)),
    }
}

/// The error of an unexpected event.
fn failure(event: &Event) -> Error {
    let sentence = |otherwise: &str| event.reason.clone().unwrap_or_else(|| otherwise.to_owned());
    let refused = |errno: Errno, otherwise: &str| {
        let errno = if event.status < 0 { Errno(-event.status) } else { errno };
        Error::refused(errno, sentence(otherwise))
    };
    match event.kind {
        EventKind::REJECTED => Error::Declined {
            code: u16::try_from(event.status).unwrap_or(0),
            // Only a program sends private data.
            private_data: if event.status == CONSUMER { event.conn().private_data.to_vec() } else { Vec::new() },
            reason: sentence("the peer has rejected the connection"),
        },
        // The status is the status of an answer about a datagram queue pair.
        EventKind::UNREACHABLE if event.status > 0 => Error::Declined {
            code: u16::try_from(event.status).unwrap_or(0),
            private_data: event.ud().private_data.to_vec(),
            reason: sentence("no queue pair is named there"),
        },
        EventKind::UNREACHABLE => refused(Errno::ETIMEDOUT, "the peer does not answer"),
        EventKind::ADDR_ERROR => refused(Errno::EADDRNOTAVAIL, "the address leads to no device"),
        EventKind::ROUTE_ERROR => refused(Errno::ENETUNREACH, "there is no path to the peer"),
        EventKind::DISCONNECTED => refused(Errno::ECONNRESET, "the peer has disconnected"),
        EventKind::DEVICE_REMOVAL => refused(Errno::ENODEV, "the device is gone"),
        _ => refused(Errno::ECONNRESET, &format!("the connection has failed ({})", event.kind)),
    }
}

/// Converts attributes to those of the verbs.
fn modify(from: &QpAttributes) -> ModifyQp {
    let path = &from.ah_attr;
    ModifyQp {
        attr_mask: from.qp_attr_mask,
        qp_state: from.qp_state as u8,
        path_mtu: from.path_mtu as u8,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        pkey_index: from.pkey_index,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        dest: Dest {
            dgid: path.dgid,
            flow_label: path.flow_label,
            dlid: path.dlid,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            sl: path.sl,
            src_path_bits: path.src_path_bits,
            static_rate: path.static_rate,
            is_global: path.is_global,
            port_num: path.port_num,
            ..Dest::default()
        },
        ..ModifyQp::default()
    }
}
