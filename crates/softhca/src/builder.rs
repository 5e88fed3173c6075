//! Builders of queue pairs: sizes, queues, addresses and timers, each with a default that suits
//! most programs. Principal type: [`QpBuilder`].

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use abi::errno::Errno;
use abi::mr::access as right;
use abi::qp::{ModifyQp, attr, state};
use engine::{Caps, Engine, QpSpec, Service};
use parking_lot::Mutex;

use crate::about::About;
use crate::connected::{Connected, Reliable, Unconnected, Unreliable};
use crate::context::ContextInner;
use crate::cq::Cq;
use crate::datagram::{Datagram, DatagramQp};
use crate::endpoint::{DatagramEndpoint, Endpoint};
use crate::error::{Error, Result};
use crate::gid::{GIDS, Gid};
use crate::mtu::Mtu;
use crate::pd::Pd;
use crate::pending::{Queues, Slots};
use crate::queue_pair::QpInner;
use crate::srq::Srq;
use crate::timing::{Patience, Retries, RnrRetries, Timing};

/// The default Q_Key. It is public, not a secret.
const QKEY: u32 = 0x1111_1111;
/// PSNs have 24 bits.
const PSN_MASK: u32 = 0x00ff_ffff;
/// Builds a queue pair; from [`Pd::reliable`], [`Pd::unreliable`] or [`Pd::datagrams`].
#[must_use = "a builder makes nothing until it is told to build"]
pub struct QpBuilder<'a, Kind> {
    pd: &'a Pd,
    send_cq: &'a Cq,
    receive_cq: &'a Cq,
    srq: Option<&'a Srq>,
    caps: Caps,
    port: u8,
    gid_index: Option<u8>,
    pkey_index: u16,
    mtu: Option<Mtu>,
    reads: u8,
    patience: Patience,
    qkey: u32,
    kind: PhantomData<Kind>,
}

impl<'a, Kind> QpBuilder<'a, Kind> {
    pub(crate) fn new(pd: &'a Pd, cq: &'a Cq) -> Self {
        let caps = Caps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
        Self {
            pd,
            send_cq: cq,
            receive_cq: cq,
            srq: None,
            caps,
            port: 1,
            gid_index: None,
            pkey_index: 0,
            mtu: None,
            reads: 16,
            patience: Patience::default(),
            qkey: QKEY,
            kind: PhantomData,
        }
    }

    /// Receives complete on this CQ instead of the CQ of the sends.
    pub fn receive_cq(self, cq: &'a Cq) -> Self {
        Self { receive_cq: cq, ..self }
    }

    /// The queue pair takes its receives from this shared receive queue.
    pub fn srq(self, srq: &'a Srq) -> Self {
        Self { srq: Some(srq), ..self }
    }

    /// Size of the send queue in requests (default 64).
    pub fn sends(mut self, requests: u32) -> Self {
        self.caps.max_send_wr = requests;
        self
    }

    /// Size of the receive queue in requests (default 64).
    pub fn receives(mut self, requests: u32) -> Self {
        self.caps.max_recv_wr = requests;
        self
    }

    /// Maximum number of parts of a request (default 4).
    pub fn parts(mut self, parts: u32) -> Self {
        (self.caps.max_send_sge, self.caps.max_recv_sge) = (parts, parts);
        self
    }

    /// Maximum number of bytes of an inline request, which copies its bytes when it is posted
    /// (default 64).
    pub fn inline(mut self, bytes: u32) -> Self {
        self.caps.max_inline_data = bytes;
        self
    }

    /// The port (default 1) and the index in its GID table (default: the first that is an address
    /// of the host). They choose the network that the queue pair uses.
    pub fn address(self, port: u8, gid_index: u8) -> Self {
        Self { port, gid_index: Some(gid_index), ..self }
    }

    /// The partition of the queue pair: an index in the P_Key table of its port (default 0). Both
    /// ends of a connection belong to the same partition.
    pub fn partition(self, pkey_index: u16) -> Self {
        Self { pkey_index, ..self }
    }

    /// Creates the queue pair in RESET.
    fn bare(&self, service: Service) -> Result<QpInner> {
        let ctx = &self.pd.inner.ctx;
        for cq in [self.send_cq, self.receive_cq] {
            if !Arc::ptr_eq(&cq.inner.ctx, ctx) {
                return Err(Error::refused(Errno::EINVAL, "the CQ belongs to a different device context than the PD"));
            }
        }
        if self.srq.is_some_and(|srq| !Arc::ptr_eq(&srq.inner.pd.ctx, ctx)) {
            return Err(Error::refused(Errno::EINVAL, "the SRQ belongs to a different device context than the PD"));
        }
        let cookie = ctx.cookie();
        let spec = QpSpec {
            service,
            send_cq: &self.send_cq.inner.cq,
            recv_cq: &self.receive_cq.inner.cq,
            srq: self.srq.map(|srq| &srq.inner.srq),
            caps: self.caps,
            // In a batch only the last request asks for a completion.
            sq_sig_all: false,
            cookie,
        };
        let qp = ctx.engine.create_qp(&self.pd.inner.pd, &spec)?;
        let queues = Arc::new(Queues {
            sends: Slots::new(cookie),
            receives: match self.srq {
                Some(srq) => Arc::clone(&srq.inner.slots),
                None => Arc::new(Slots::new(cookie)),
            },
            shared: self.srq.is_some(),
            datagrams: service == Service::Ud,
            #[cfg(feature = "tokio")]
            inbox: std::sync::OnceLock::new(),
        });
        let named = Arc::downgrade(&queues);
        qp.name_requests(Box::new(move |name| named.upgrade()?.id(name)));
        ctx.named.lock().insert(cookie, About::Qp(qp.qpn()));
        self.send_cq.inner.know(qp.qpn(), &queues);
        self.receive_cq.inner.know(qp.qpn(), &queues);
        Ok(QpInner {
            qp,
            queues,
            send_cq: Arc::clone(&self.send_cq.inner),
            receive_cq: Arc::clone(&self.receive_cq.inner),
            _srq: self.srq.map(|srq| Arc::clone(&srq.inner)),
            pd: Arc::clone(&self.pd.inner),
            cookie,
            groups: Mutex::new(Vec::new()),
            #[cfg(feature = "tokio")]
            turn: tokio::sync::Mutex::new(()),
        })
    }

    /// Creates the queue pair and moves it to INIT.
    fn make(&self, service: Service, qkey: Option<u32>) -> Result<QpInner> {
        let inner = self.bare(service)?;
        let mut init = ModifyQp {
            attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT,
            qp_state: state::INIT,
            port_num: self.port,
            pkey_index: self.pkey_index,
            ..ModifyQp::default()
        };
        match qkey {
            Some(qkey) => (init.attr_mask, init.qkey) = (init.attr_mask | attr::QKEY, qkey),
            None => {
                init.attr_mask |= attr::ACCESS_FLAGS;
                // The rights of peers are set where memory is exposed.
                init.qp_access_flags = right::REMOTE_WRITE;
                if service == Service::Rc {
                    init.qp_access_flags |= right::REMOTE_READ | right::REMOTE_ATOMIC;
                }
            }
        }
        inner.qp.modify(&init)?;
        Ok(inner)
    }

    /// The GID index and the GID.
    fn gid(&self) -> Result<(u8, Gid)> {
        let query = |index: u8| Ok::<_, Error>(Gid(self.pd.inner.ctx.engine.query_gid(self.port, u32::from(index))?));
        let index = match self.gid_index {
            Some(index) => index,
            // Index 0 is not an address of the host: it reaches only programs of the same agent.
            None => (1..GIDS).find(|index| query(*index).is_ok_and(|gid| !gid.is_empty())).unwrap_or(0),
        };
        let gid = query(index)?;
        if gid.is_empty() {
            return Err(Error::refused(Errno::ENODATA, format!("port {} has no address at index {index}", self.port)));
        }
        Ok((index, gid))
    }
}

impl<Kind: Connected> QpBuilder<'_, Kind> {
    /// Creates the queue pair for a connection of this context, in RESET.
    pub(crate) fn bare_for(&self, ctx: &Arc<ContextInner>) -> Result<QpInner> {
        if !Arc::ptr_eq(&self.pd.inner.ctx, ctx) {
            return Err(Error::refused(
                Errno::EINVAL,
                "the PD belongs to a different device context than the connection",
            ));
        }
        self.bare(Kind::SERVICE)
    }

    /// Timers and retries as verbs codes.
    pub(crate) fn timing(&self) -> Result<Timing> {
        self.patience.timing()
    }

    /// Maximum number of READs and atomics in flight, in each direction.
    pub(crate) fn most_reads(&self) -> Result<u8> {
        let device = self.pd.inner.ctx.engine.query_device()?;
        let most = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
        Ok(self.reads.min(u8::try_from(most).unwrap_or(u8::MAX)))
    }

    /// The path MTU (default: the port's MTU). The connection uses the lesser MTU of both sides.
    pub fn mtu(self, mtu: Mtu) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// Maximum number of READs and atomics in flight, in each direction (default 16). The
    /// connection uses the lesser value of both sides.
    pub fn reads(self, reads: u8) -> Self {
        Self { reads, ..self }
    }

    /// How long the queue pair waits for an acknowledgement before it retransmits (default 67.1
    /// ms).
    ///
    /// Adapters support only 4.096 µs × 2ⁿ, with n from 1 to 31: 8.192 µs, 16.384 µs … 2.4 hours.
    /// `limit` is rounded up to the next of these values. For a longer limit, such as
    /// [`Duration::MAX`], the queue pair waits for ever.
    ///
    /// A connection of [`cm`](crate::cm) uses the time-out of its route instead.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.patience.timeout = limit;
        self
    }

    /// How often the queue pair retransmits when no acknowledgement comes (default 7 times). Then
    /// the request fails with [`RetryExcErr`](crate::Status::RetryExcErr).
    pub fn retries(mut self, retries: Retries) -> Self {
        self.patience.retries = retries;
        self
    }

    /// How often the queue pair retransmits when the peer has posted no receive (default: for
    /// ever). Then the request fails with [`RnrRetryExcErr`](crate::Status::RnrRetryExcErr).
    pub fn rnr_retries(mut self, retries: RnrRetries) -> Self {
        self.patience.rnr_retries = retries;
        self
    }

    /// How long the peer is asked to wait when this side has posted no receive for its message
    /// (default 640 µs).
    ///
    /// Adapters support 32 times from 10 µs to 655.36 ms. `pause` is rounded up to the next of
    /// them. `build` refuses a longer time.
    pub fn min_rnr_timer(mut self, pause: Duration) -> Self {
        self.patience.min_rnr_timer = pause;
        self
    }

    /// Creates the queue pair. It can already post receives, and must be connected before it can
    /// send.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits. EINVAL for an MTU or a timer that is too long.
    /// ENODATA without an address.
    pub fn build(self) -> Result<Unconnected<Kind>> {
        let timing = self.timing()?;
        let active = Mtu::of_code(self.pd.inner.ctx.engine.query_port(self.port)?.active_mtu);
        let mtu = self.mtu.unwrap_or(active);
        if mtu > active {
            return Err(Error::refused(Errno::EINVAL, format!("an MTU of {mtu}: port {} has {active}", self.port)));
        }
        let (gid_index, gid) = self.gid()?;
        let inner = self.make(Kind::SERVICE, None)?;
        let endpoint = Endpoint {
            reliable: Kind::SERVICE == Service::Rc,
            qpn: inner.qp.qpn(),
            psn: random(&self.pd.inner.ctx.engine),
            gid,
            mtu,
            reads: self.most_reads()?,
        };
        Ok(Unconnected::new(inner, endpoint, (self.port, gid_index), timing))
    }
}

impl QpBuilder<'_, Datagram> {
    /// The Q_Key that datagrams must carry (default 0x11111111). Only privileged programs may set
    /// its top bit.
    pub fn qkey(self, qkey: u32) -> Self {
        Self { qkey, ..self }
    }

    /// Creates the queue pair, ready to send and to receive.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits; ENODATA without an address.
    pub fn build(self) -> Result<DatagramQp> {
        let (gid_index, gid) = self.gid()?;
        let inner = self.make(Service::Ud, Some(self.qkey))?;
        for (next, mask) in [(state::RTR, 0), (state::RTS, attr::SQ_PSN)] {
            let sq_psn = random(&self.pd.inner.ctx.engine);
            inner.qp.modify(&ModifyQp {
                attr_mask: attr::STATE | mask,
                qp_state: next,
                sq_psn,
                ..ModifyQp::default()
            })?;
        }
        let endpoint = DatagramEndpoint { qpn: inner.qp.qpn(), qkey: self.qkey, gid };
        Ok(DatagramQp::new(inner, endpoint, (self.port, gid_index)))
    }
}

/// A random PSN, so that late packets of an earlier connection do not match.
fn random(engine: &Engine) -> u32 {
    engine.chance() as u32 & PSN_MASK
}

impl Pd {
    /// Builds a connected queue pair whose messages arrive once and in order (RC): SEND, RDMA WRITE
    /// and READ, atomics.
    pub fn reliable<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Reliable> {
        QpBuilder::new(self, cq)
    }

    /// Builds a connected queue pair whose messages may be lost (UC): SEND and RDMA WRITE.
    pub fn unreliable<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Unreliable> {
        QpBuilder::new(self, cq)
    }

    /// Builds a queue pair that sends to, and receives from, any number of peers, one packet per
    /// message (UD).
    pub fn datagrams<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Datagram> {
        QpBuilder::new(self, cq)
    }
}
