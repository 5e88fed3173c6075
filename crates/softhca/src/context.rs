//! Contexts: an open device, which creates all other objects and reports its properties. Principal
//! type: [`Context`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::device::{QueryDeviceAnswer, link_layer, port_state};
use abi::errno::Errno;
use engine::{Control, Engine};
use parking_lot::Mutex;

use crate::about::About;
use crate::cm::manager::{self, Manager, Opener};
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::mtu::Mtu;

/// The bit of PortInfo:CapabilityMask of a port at which a subnet manager runs.
const IS_SM: u32 = 1 << 1;

/// An open device. Clones refer to the same device. It is closed when the last clone and the last
/// object made with it are dropped.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<ContextInner>,
}

pub(crate) struct ContextInner {
    pub(crate) engine: Arc<Engine>,
    /// The objects that the cookies in async events stand for.
    pub(crate) named: Mutex<HashMap<u64, About>>,
    next: AtomicU64,
    opener: Option<Opener>,
    /// Opened by the first connection.
    manager: Mutex<Option<Arc<Manager>>>,
}

impl ContextInner {
    /// The connection manager of this device, opened if necessary.
    pub(crate) fn manager(&self) -> Result<Arc<Manager>> {
        let opener = self.opener.as_ref().ok_or_else(manager::none)?;
        let mut manager = self.manager.lock();
        match &*manager {
            Some(open) => Ok(Arc::clone(open)),
            None => Ok(Arc::clone(manager.insert(Arc::new(Manager::open(opener)?)))),
        }
    }

    /// A cookie that no other object has.
    pub(crate) fn cookie(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        self.engine.close();
    }
}

/// The properties and limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The node GUID.
    pub guid: u64,
    /// Number of ports; port numbers begin at 1.
    pub ports: u8,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of requests in one queue.
    pub max_requests: u32,
    /// Maximum number of parts of one request.
    pub max_parts: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of completions in one queue.
    pub max_completions: u32,
    /// Maximum number of memory registrations.
    pub max_regions: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of READs and atomics that a queue pair serves at the same time.
    pub max_reads: u8,
}

impl From<QueryDeviceAnswer> for DeviceInfo {
    fn from(answer: QueryDeviceAnswer) -> Self {
        Self {
            guid: u64::from_be(answer.node_guid),
            ports: answer.phys_port_cnt,
            max_qp: answer.max_qp,
            max_requests: answer.max_qp_wr,
            max_parts: answer.max_sge,
            max_cq: answer.max_cq,
            max_completions: answer.max_cqe,
            max_regions: answer.max_mr,
            max_srq: answer.max_srq,
            max_reads: u8::try_from(answer.max_qp_rd_atom.min(answer.max_qp_init_rd_atom)).unwrap_or(u8::MAX),
        }
    }
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Whether the port can be used.
    pub active: bool,
    /// The active MTU.
    pub mtu: Mtu,
    /// The largest MTU that the port supports.
    pub max_mtu: Mtu,
    /// Number of entries in the GID table.
    pub gids: u32,
    /// Number of entries in the P_Key table.
    pub pkeys: u16,
    /// Maximum length of a message in bytes.
    pub max_message: u32,
    /// Whether the link layer is InfiniBand, not Ethernet.
    pub infiniband: bool,
    /// The LID; 0 on Ethernet.
    pub lid: u16,
    /// The LID of the subnet manager; 0 on Ethernet.
    pub sm_lid: u16,
    /// The service level of datagrams to the subnet manager.
    pub sm_sl: u8,
    /// Whether a subnet manager runs at this port.
    pub runs_manager: bool,
}

/// One address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// Index in the GID table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Index of the network interface that has this address; 0 for none.
    pub interface: u32,
}

impl Context {
    /// Opens a device through a control connection other than the agent's socket. The crate
    /// `fabric` reaches its embedded agents this way.
    ///
    /// # Errors
    /// The other end's refusal.
    pub fn with_control(control: Box<dyn Control>) -> Result<Self> {
        Self::with(control, None)
    }

    /// As [`Context::with_control`], with a way to the agent's connection manager, which
    /// [`cm`](crate::cm) opens at the first connection.
    ///
    /// # Errors
    /// The other end's refusal.
    pub fn with_manager(
        control: Box<dyn Control>,
        manager: impl Fn() -> ::cm::Result<::cm::Channel> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with(control, Some(Box::new(manager)))
    }

    /// Makes a context from an open engine, for a caller that drives the engine in simulated time.
    /// There is no connection manager.
    ///
    /// # Errors
    /// The system refuses to change a descriptor's flags.
    pub fn over(engine: Arc<Engine>) -> Result<Self> {
        Self::around(engine, None)
    }

    fn with(control: Box<dyn Control>, opener: Option<Opener>) -> Result<Self> {
        Self::around(Engine::open(control)?, opener)
    }

    fn around(engine: Arc<Engine>, opener: Option<Opener>) -> Result<Self> {
        let fd = engine.async_fd();
        // Readers in this crate wait with poll and a time limit; the descriptor belongs to this
        // context alone.
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        let inner = ContextInner {
            engine,
            named: Mutex::new(HashMap::new()),
            next: AtomicU64::new(1),
            opener,
            manager: Mutex::new(None),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The properties and limits of the device.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn device(&self) -> Result<DeviceInfo> {
        Ok(self.inner.engine.query_device()?.into())
    }

    /// The state of a port; port numbers begin at 1.
    ///
    /// # Errors
    /// EINVAL for a port that the device does not have.
    pub fn port(&self, port: u8) -> Result<PortInfo> {
        let answer = self.inner.engine.query_port(port)?;
        Ok(PortInfo {
            active: answer.state == port_state::ACTIVE,
            mtu: Mtu::of_code(answer.active_mtu),
            max_mtu: Mtu::of_code(answer.max_mtu),
            gids: answer.gid_tbl_len,
            pkeys: answer.pkey_tbl_len,
            max_message: answer.max_msg_sz,
            infiniband: answer.link_layer == link_layer::INFINIBAND,
            lid: answer.lid,
            sm_lid: answer.sm_lid,
            sm_sl: answer.sm_sl,
            runs_manager: answer.port_cap_flags & IS_SM != 0,
        })
    }

    /// One address of a port.
    ///
    /// # Errors
    /// ENODATA for an empty entry, EINVAL for an index beyond the table.
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        let entry = self.inner.engine.gid_entry(u32::from(port), index)?;
        Ok(GidEntry { index, gid: Gid(entry.gid), interface: entry.ifindex })
    }

    /// The addresses of a port.
    ///
    /// # Errors
    /// EINVAL for a port that the device does not have.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        let mut entries = Vec::new();
        for index in 0..self.port(port)?.gids {
            // The board shows which entries are empty, without a command to the agent.
            if !Gid(self.inner.engine.query_gid(port, index)?).is_empty() {
                match self.gid(port, index) {
                    Err(Error::Refused { errno, .. }) if errno == Errno::ENODATA.0 => {}
                    entry => entries.push(entry?),
                }
            }
        }
        Ok(entries)
    }

    /// One P_Key of a port; 0 for an empty entry.
    ///
    /// # Errors
    /// EINVAL for an index beyond the table.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        Ok(self.inner.engine.query_pkey(port, u32::from(index))?)
    }

    /// The packets that this device has dropped, by cause and queue pair: how many, why, and the
    /// last one. Empty if no packet was dropped.
    #[must_use]
    pub fn drops(&self) -> Vec<String> {
        self.inner.engine.drops().iter().map(abi::reason::DropRecord::sentence).collect()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(engine {})", self.inner.engine.number())
    }
}
