//! Contexts: an open device, which makes everything else and answers what the device is. Principal type: [`Context`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::device::{QueryDeviceAnswer, port_state};
use abi::errno::Errno;
use engine::{Control, Engine};
use parking_lot::Mutex;

use crate::cm::{self, Manager, Opener};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::event::About;
use crate::gid::Gid;
use crate::mtu::Mtu;
use crate::pd::Pd;

/// An open device. Clones are the same; the device is closed when the last clone and the last object made with it are gone.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<ContextInner>,
}

pub(crate) struct ContextInner {
    pub(crate) engine: Arc<Engine>,
    /// What the cookies in async events stand for.
    pub(crate) named: Mutex<HashMap<u64, About>>,
    next: AtomicU64,
    opener: Option<Opener>,
    /// Open from the first connection on.
    manager: Mutex<Option<Arc<Manager>>>,
}

impl ContextInner {
    /// The connections of this device.
    pub(crate) fn manager(&self) -> Result<Arc<Manager>> {
        let opener = self.opener.as_ref().ok_or_else(cm::none)?;
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

/// What a device is and how much it can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its node GUID.
    pub guid: u64,
    /// How many ports it has, from 1.
    pub ports: u8,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most requests in one queue.
    pub max_requests: u32,
    /// Most parts of one request.
    pub max_parts: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most completions in one queue.
    pub max_completions: u32,
    /// Most registrations of memory.
    pub max_regions: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most READs and atomics that a queue pair serves at a time.
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

/// A port's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// It can be used.
    pub active: bool,
    /// The longest packet now.
    pub mtu: Mtu,
    /// The longest packet that is possible at all.
    pub max_mtu: Mtu,
    /// Places in its table of GIDs.
    pub gids: u32,
    /// The longest message, in bytes.
    pub max_message: u32,
}

/// One address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// The network interface that it belongs to, 0 for none.
    pub interface: u32,
}

impl Context {
    /// Opens a device through a connection of another kind than the agent's socket: this is how the crate `fabric` reaches the
    /// agents that it embeds.
    ///
    /// # Errors
    /// What the other end refuses.
    pub fn with_control(control: Box<dyn Control>) -> Result<Self> {
        Self::with(control, None)
    }

    /// The same, with a way to the agent's connection manager: what [`cm`](crate::cm) opens at the first connection.
    ///
    /// # Errors
    /// What the other end refuses.
    pub fn with_manager(
        control: Box<dyn Control>,
        manager: impl Fn() -> ::cm::Result<::cm::Channel> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with(control, Some(Box::new(manager)))
    }

    /// Takes over an engine that has been opened already, for whoever drives it in simulated time; there is no connection manager.
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
        // Readers here wait by poll, with a limit; the descriptor is this context's own.
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

    /// What the device is and how much it can hold.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn device(&self) -> Result<DeviceInfo> {
        Ok(self.inner.engine.query_device()?.into())
    }

    /// A port's state; the first is 1.
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
            max_message: answer.max_msg_sz,
        })
    }

    /// One address of a port.
    ///
    /// # Errors
    /// ENODATA for an empty place, EINVAL for an index beyond the table.
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
            // The board says which places are empty without a question to the agent.
            if !Gid(self.inner.engine.query_gid(port, index)?).is_empty() {
                match self.gid(port, index) {
                    Err(Error::Refused { errno, .. }) if errno == Errno::ENODATA.0 => {}
                    entry => entries.push(entry?),
                }
            }
        }
        Ok(entries)
    }

    /// What this device has dropped, by cause and queue pair: how many packets, why, and which was the last one. Nothing while nothing
    /// was.
    #[must_use]
    pub fn drops(&self) -> Vec<String> {
        self.inner.engine.drops().iter().map(abi::reason::DropRecord::sentence).collect()
    }

    /// A protection domain: what belongs together shares one.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn pd(&self) -> Result<Pd> {
        Pd::new(&self.inner)
    }

    /// A completion queue for at least so many completions.
    ///
    /// # Errors
    /// EINVAL for a size that the device does not have.
    pub fn cq(&self, completions: u32) -> Result<Cq> {
        Cq::new(&self.inner, completions)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(engine {})", self.inner.engine.number())
    }
}
