//! How queue pairs are made: sizes, queues, addresses and timers, each with a value that suits most. Principal type: [`QpBuilder`].

use std::marker::PhantomData;
use std::sync::Arc;

use abi::errno::Errno;
use abi::mr::access as right;
use abi::qp::{ModifyQp, attr, state};
use engine::{Caps, Engine, QpSpec, Service};
use parking_lot::Mutex;

use crate::connected::{Connected, Timing, Unconnected};
use crate::context::ContextInner;
use crate::cq::Cq;
use crate::datagram::{Datagram, DatagramQp};
use crate::endpoint::{DatagramEndpoint, Endpoint, mtu_bytes, mtu_code};
use crate::error::{Error, Result};
use crate::event::About;
use crate::gid::Gid;
use crate::pd::Pd;
use crate::pending::{Queues, Slots};
use crate::queue_pair::QpInner;
use crate::srq::Srq;

/// The Q_Key of those who do not choose one: no secret.
const QKEY: u32 = 0x1111_1111;
/// Packet numbers have 24 bits.
const PSN_MASK: u32 = 0x00ff_ffff;
/// Places in a table of addresses, at most.
pub(crate) const GIDS: u8 = 64;

/// Makes a queue pair; from [`Pd::reliable`], [`Pd::unreliable`] or [`Pd::datagrams`].
#[must_use = "a builder makes nothing until it is told to build"]
pub struct QpBuilder<'a, Kind> {
    pd: &'a Pd,
    send_cq: &'a Cq,
    receive_cq: &'a Cq,
    srq: Option<&'a Srq>,
    caps: Caps,
    port: u8,
    gid_index: Option<u8>,
    mtu: Option<u32>,
    reads: u8,
    timing: Timing,
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
            mtu: None,
            reads: 16,
            timing: Timing::default(),
            qkey: QKEY,
            kind: PhantomData,
        }
    }

    /// Receives complete on a CQ of their own.
    pub fn receive_cq(self, cq: &'a Cq) -> Self {
        Self { receive_cq: cq, ..self }
    }

    /// Receives come from a shared queue.
    pub fn srq(self, srq: &'a Srq) -> Self {
        Self { srq: Some(srq), ..self }
    }

    /// Room for so many sends (64).
    pub fn sends(mut self, requests: u32) -> Self {
        self.caps.max_send_wr = requests;
        self
    }

    /// Room for so many receives (64).
    pub fn receives(mut self, requests: u32) -> Self {
        self.caps.max_recv_wr = requests;
        self
    }

    /// Up to so many parts in a request (4).
    pub fn parts(mut self, parts: u32) -> Self {
        (self.caps.max_send_sge, self.caps.max_recv_sge) = (parts, parts);
        self
    }

    /// Up to so many bytes in a request that copies them at once (64).
    pub fn inline(mut self, bytes: u32) -> Self {
        self.caps.max_inline_data = bytes;
        self
    }

    /// The port (1) and the index of the address there (the first that is an address of the host): which network it talks in.
    pub fn address(self, port: u8, gid_index: u8) -> Self {
        Self { port, gid_index: Some(gid_index), ..self }
    }

    /// Makes the queue pair, in RESET.
    fn bare(&self, service: Service) -> Result<QpInner> {
        let ctx = &self.pd.inner.ctx;
        for cq in [self.send_cq, self.receive_cq] {
            if !Arc::ptr_eq(&cq.inner.ctx, ctx) {
                return Err(Error::refused(Errno::EINVAL, "the CQ is on another open device than the PD"));
            }
        }
        if self.srq.is_some_and(|srq| !Arc::ptr_eq(&srq.inner.pd.ctx, ctx)) {
            return Err(Error::refused(Errno::EINVAL, "the SRQ is on another open device than the PD"));
        }
        let cookie = ctx.cookie();
        let spec = QpSpec {
            service,
            send_cq: &self.send_cq.inner.cq,
            recv_cq: &self.receive_cq.inner.cq,
            srq: self.srq.map(|srq| &srq.inner.srq),
            caps: self.caps,
            // Of a batch only the last request asks for a completion.
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

    /// Makes the queue pair, and brings it to INIT.
    fn make(&self, service: Service, qkey: Option<u32>) -> Result<QpInner> {
        let inner = self.bare(service)?;
        let mut init = ModifyQp {
            attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT,
            qp_state: state::INIT,
            port_num: self.port,
            ..ModifyQp::default()
        };
        match qkey {
            Some(qkey) => (init.attr_mask, init.qkey) = (init.attr_mask | attr::QKEY, qkey),
            None => {
                init.attr_mask |= attr::ACCESS_FLAGS;
                // What peers may touch is said where memory is exposed.
                init.qp_access_flags = right::REMOTE_WRITE;
                if service == Service::Rc {
                    init.qp_access_flags |= right::REMOTE_READ | right::REMOTE_ATOMIC;
                }
            }
        }
        inner.qp.modify(&init)?;
        Ok(inner)
    }

    /// The index of the address, and the address.
    fn gid(&self) -> Result<(u8, Gid)> {
        let query = |index: u8| Ok::<_, Error>(Gid(self.pd.inner.ctx.engine.query_gid(self.port, u32::from(index))?));
        let index = match self.gid_index {
            Some(index) => index,
            // Index 0 is no address of the host: it leads to programs of the same agent only.
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
    /// Makes the queue pair for a connection of this context, in RESET.
    pub(crate) fn bare_for(&self, ctx: &Arc<ContextInner>) -> Result<QpInner> {
        if !Arc::ptr_eq(&self.pd.inner.ctx, ctx) {
            return Err(Error::refused(Errno::EINVAL, "the PD is on another open device than the connection"));
        }
        self.bare(Kind::SERVICE)
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    /// How many READs and atomics at a time, asked as well as served.
    pub(crate) fn most_reads(&self) -> Result<u8> {
        let device = self.pd.inner.ctx.engine.query_device()?;
        let most = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom);
        Ok(self.reads.min(u8::try_from(most).unwrap_or(u8::MAX)))
    }

    /// The longest packet, in bytes: 256, 512, 1024, 2048 or 4096 (what the port takes). The lesser of both sides counts.
    pub fn mtu(self, bytes: u32) -> Self {
        Self { mtu: Some(bytes), ..self }
    }

    /// So many READs and atomics at a time, asked as well as served (16). The lesser of both sides counts.
    pub fn reads(self, reads: u8) -> Self {
        Self { reads, ..self }
    }

    /// How long it waits for an acknowledgement: 4.096 µs × 2^`code` (14: 67 ms; 0: for ever), and how often it tries again (7).
    pub fn retry(mut self, code: u8, retries: u8) -> Self {
        (self.timing.timeout, self.timing.retries) = (code, retries);
        self
    }

    /// How often it tries again when the peer has no receive (7: for ever), and the code of how long its own peer is asked to
    /// wait then (12: 0.64 ms).
    pub fn receiver_not_ready(mut self, retries: u8, timer: u8) -> Self {
        (self.timing.rnr_retries, self.timing.rnr_timer) = (retries, timer);
        self
    }

    /// Makes it. It may post receives already, and waits to be connected.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits; ENODATA without an address.
    pub fn build(self) -> Result<Unconnected<Kind>> {
        let active = self.pd.inner.ctx.engine.query_port(self.port)?.active_mtu;
        let mtu = match self.mtu {
            None => mtu_bytes(active),
            Some(bytes) if mtu_code(bytes)? <= active => bytes,
            Some(bytes) => {
                let has = mtu_bytes(active);
                return Err(Error::refused(Errno::EINVAL, format!("an MTU of {bytes}: port {} has {has}", self.port)));
            }
        };
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
        Ok(Unconnected::new(inner, endpoint, (self.port, gid_index), self.timing))
    }
}

impl QpBuilder<'_, Datagram> {
    /// The key that datagrams have to show (0x11111111). Its top bit is for privileged programs.
    pub fn qkey(self, qkey: u32) -> Self {
        Self { qkey, ..self }
    }

    /// Makes it, ready to send and to receive.
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

/// A PSN that nobody guesses easily: late packets of an earlier connection shall not fit.
fn random(engine: &Engine) -> u32 {
    engine.chance() as u32 & PSN_MASK
}
