//! Memory regions: the program's memory that work requests and peers may name by key.
//!
//! A region is not pinned, and the program may unmap it at any time. So every access is a
//! fault-safe copy (see [`crate::access`]). A key is the agent's index (upper 24 bits) and a
//! generation (lower 8 bits), which makes stale keys detectable. Principal type: [`Mr`].

use std::sync::Arc;

use abi::command::number as command;
use abi::errno::Errno;
use abi::layout::Record;
use abi::mr::access as right;
use abi::mr::{DeregMr, RegMr, RegMrAnswer, ReregMr, ReregMrAnswer};
use abi::queue::{MrIn, REV, mr_flags};
use parking_lot::RwLock;
use shm::region::Region;

use crate::core::Core;
use crate::error::{Result, refusal};
use crate::extent::{Extent, Keepers, LOCAL_READ, MemoryKind};
use crate::pd::Pd;
use crate::request;
use crate::usermem::mappings;

/// A memory region.
pub struct Mr {
    core: Arc<Core>,
    pd: RwLock<Arc<Pd>>,
    handle: u32,
    extent: RwLock<Arc<Extent>>,
}

/// The bits of `access` that only ask for an optional mode. A software device may ignore them.
const OPTIONAL: u32 = 0x3ff0_0000;
/// The rights and modes that this device knows.
const KNOWN: u32 = right::LOCAL_WRITE
    | right::REMOTE_WRITE
    | right::REMOTE_READ
    | right::REMOTE_ATOMIC
    | right::MW_BIND
    | right::ZERO_BASED
    | right::ON_DEMAND
    | right::HUGETLB
    | right::FLUSH_GLOBAL;

impl Mr {
    fn register(pd: &Arc<Pd>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Self>> {
        let core = pd.core();
        core.check_process()?;
        let access = checked_access(access)?;
        let iova = if access & right::ZERO_BASED != 0 { 0 } else { iova };
        check_memory(addr, length, iova, access)?;
        if let Err(error) = crate::usermem::install() {
            crate::reason!(
                "memory that is unmapped while registered will end the program: no fault handler could be set ({error})"
            );
        }
        let body =
            RegMr { response: 1, start: addr, length, hca_va: iova, pd_handle: pd.handle(), access_flags: access };
        let answer: RegMrAnswer =
            core.call(&request::legacy(command::REG_MR, &body, size_of::<RegMrAnswer>()))?.get(0)?;
        Ok(Self::adopt(pd, &answer, addr, &body, MemoryKind::Program, None))
    }

    /// A region without memory over all addresses, for local requests only.
    fn nothing(pd: &Arc<Pd>) -> Result<Arc<Self>> {
        let core = pd.core();
        core.check_process()?;
        let body = RegMr {
            response: 1,
            length: u64::MAX,
            pd_handle: pd.handle(),
            access_flags: right::LOCAL_WRITE,
            ..RegMr::default()
        };
        let tail = MrIn { rev: REV, flags: mr_flags::NOTHING, ..MrIn::default() };
        let request = abi::command::legacy(command::REG_MR, &body, tail.bytes(), size_of::<RegMrAnswer>());
        let answer: RegMrAnswer = core.call(&request)?.get(0)?;
        Ok(Self::adopt(pd, &answer, 0, &body, MemoryKind::Null, None))
    }

    /// Makes the region that the agent has registered. `host` is the address of its memory in this
    /// process.
    pub(crate) fn adopt(
        pd: &Arc<Pd>,
        answer: &RegMrAnswer,
        host: u64,
        body: &RegMr,
        memory_kind: MemoryKind,
        backing: Option<Arc<Region>>,
    ) -> Arc<Self> {
        let extent = Extent {
            key: answer.lkey,
            pd: pd.handle(),
            host,
            iova: body.hca_va,
            length: body.length,
            access: body.access_flags | LOCAL_READ,
            only: 0,
            memory_kind,
            windows: Arc::default(),
            backing,
            keepers: Keepers::default(),
        };
        let core = Arc::clone(pd.core());
        let mr = Arc::new(Self {
            core,
            pd: RwLock::new(Arc::clone(pd)),
            handle: answer.mr_handle,
            extent: RwLock::new(Arc::new(extent)),
        });
        mr.publish();
        mr
    }

    fn publish(&self) {
        let extent = self.extent.read().clone();
        self.core.keys.extents.insert(extent.key >> 8, extent);
    }

    /// The agent's handle of the region.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The key for local work requests.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.extent.read().key
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.extent.read().length
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.lkey()
    }

    /// Ends the registration. When this returns, neither the engine nor a peer accesses the memory
    /// through this key any more.
    ///
    /// # Errors
    /// EBUSY while a window is bound to it; the agent's refusal.
    pub fn dereg(&self) -> Result<()> {
        self.core.check_process()?;
        self.core.take_arrived();
        let extent = self.extent.read().clone();
        extent.windows.close(extent.key)?;
        let body = DeregMr { mr_handle: self.handle };
        if let Some(lint) = self.core.lint() {
            lint.deregisters(&self.core, "ibv_dereg_mr", &extent);
        }
        let answer = self.core.call(&request::legacy(command::DEREG_MR, &body, 0));
        match answer {
            Err(error) if !self.core.has_lost(&error) => {
                extent.windows.open();
                Err(error)
            }
            _ => {
                self.withdraw();
                Ok(())
            }
        }
    }

    /// Makes the key invalid. Waits for copies under way.
    pub(crate) fn withdraw(&self) {
        let extent = self.extent.read().clone();
        self.end(&extent);
    }

    fn end(&self, extent: &Extent) {
        self.core.keys.extents.remove(extent.key >> 8);
        extent.keepers.withdraw();
        self.core.keys.withdraw_grants(extent.key);
    }

    /// Changes the translation (1), the PD (2) or the access rights (4), as `flags` says. The keys
    /// change as well.
    ///
    /// # Errors
    /// As for registration; EBUSY while a window is bound to the region. A refused call changes
    /// nothing.
    pub fn rereg(&self, flags: u32, pd: Option<&Arc<Pd>>, addr: u64, length: u64, access: u32) -> Result<()> {
        self.core.check_process()?;
        let old = self.extent.read().clone();
        if flags & 1 != 0 && length == 0 {
            return Err(refusal(Errno::EINVAL, "a memory region cannot be changed to length 0"));
        }
        let new_access = if flags & 4 != 0 { checked_access(access)? } else { old.access };
        let (host, length) = if flags & 1 != 0 { (addr, length) } else { (old.host, old.length) };
        if old.memory_kind != MemoryKind::Program {
            let what = format!("MR {:#x} is not registered program memory and cannot be changed", old.key);
            return Err(refusal(Errno::EINVAL, what));
        }
        let new_pd = pd.filter(|_| flags & 2 != 0).cloned().unwrap_or_else(|| self.pd.read().clone());
        let iova = match (new_access & right::ZERO_BASED != 0, flags & 1 != 0) {
            (true, _) => 0,
            (false, true) => addr,
            // No longer zero-based: peers use the address in this process.
            (false, false) if old.access & right::ZERO_BASED != 0 => host,
            (false, false) => old.iova,
        };
        check_memory(host, length, iova, new_access)?;
        let body = ReregMr {
            response: 1,
            mr_handle: self.handle,
            flags,
            start: host,
            length,
            hca_va: iova,
            pd_handle: new_pd.handle(),
            access_flags: new_access,
        };
        self.core.take_arrived();
        old.windows.close(old.key)?;
        let asked = self.core.call(&request::legacy(command::REREG_MR, &body, size_of::<ReregMrAnswer>()));
        old.windows.open();
        let answer: ReregMrAnswer = asked?.get(0)?;
        if let Some(lint) = self.core.lint() {
            lint.deregisters(&self.core, "ibv_rereg_mr", &old);
        }
        self.end(&old);
        let extent = Extent {
            key: answer.lkey,
            pd: new_pd.handle(),
            host,
            iova,
            length,
            access: new_access | LOCAL_READ,
            only: 0,
            memory_kind: old.memory_kind,
            windows: Arc::clone(&old.windows),
            backing: old.backing.clone(),
            keepers: Keepers::default(),
        };
        *self.extent.write() = Arc::new(extent);
        *self.pd.write() = new_pd;
        self.publish();
        Ok(())
    }
}

impl Pd {
    /// Registers `length` bytes at `addr`. Work requests and peers address them from `iova` on.
    ///
    /// # Errors
    /// EFAULT for unmapped memory or a missing right; EINVAL for contradictory flags.
    pub fn reg_mr(self: &Arc<Self>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        Mr::register(self, addr, length, iova, access)
    }

    /// A region without memory (`ibv_alloc_null_mr`): reads give zeros, and writes are dropped. It
    /// has only an lkey.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn null_mr(self: &Arc<Self>) -> Result<Arc<Mr>> {
        Mr::nothing(self)
    }
}

fn checked_access(access: u32) -> Result<u32> {
    let unknown = access & !(KNOWN | right::FLUSH_PERSISTENT | OPTIONAL);
    if unknown != 0 {
        return Err(refusal(Errno::EINVAL, format!("unknown access flags {unknown:#x}")));
    }
    if access & right::FLUSH_PERSISTENT != 0 {
        let text = "IBV_ACCESS_FLUSH_PERSISTENT: the device does not promise that FLUSH makes data persistent";
        return Err(refusal(Errno::EOPNOTSUPP, text));
    }
    if access & (right::REMOTE_WRITE | right::REMOTE_ATOMIC) != 0 && access & right::LOCAL_WRITE == 0 {
        return Err(refusal(
            Errno::EINVAL,
            "a region that peers may write or use atomics on needs IBV_ACCESS_LOCAL_WRITE too",
        ));
    }
    Ok(access & KNOWN)
}

/// Checks that the memory is mapped with the rights that the region will give, without touching it.
/// No check for a length of 0. On-demand memory need not be mapped yet, and may be the whole
/// address space.
fn check_memory(addr: u64, length: u64, iova: u64, access: u32) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    if access & right::ON_DEMAND != 0 {
        if addr == 0 && length == u64::MAX && iova != 0 {
            return Err(refusal(Errno::EINVAL, "a region of all memory must use addr = iova"));
        }
        if access & right::HUGETLB != 0 && !mappings::is_huge(addr) {
            let text = format!("IBV_ACCESS_ON_DEMAND with IBV_ACCESS_HUGETLB: there are no huge pages at {addr:#x}");
            return Err(refusal(Errno::EINVAL, text));
        }
        return Ok(());
    }
    let write = access & (right::LOCAL_WRITE | right::REMOTE_WRITE | right::REMOTE_ATOMIC) != 0;
    mappings::check(addr, length, write).map_err(|error| {
        refusal(Errno::EFAULT, format!("the memory of {length} bytes at {addr:#x} cannot be registered: {error}"))
    })
}
