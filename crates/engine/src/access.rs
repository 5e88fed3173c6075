//! The operations on registered memory: gather, scatter, remote write, read and atomics. Each is
//! checked against a key and survives a fault.
//!
//! Only `usermem` and this module form addresses of the program's memory. While bytes move, the
//! slot of the key is held, or the QP whose lock is held keeps the region (`kept.rs`). In both
//! cases a deregistration waits for the copy. A failure returns a [`Refusal`], which has the
//! sentence and says whose mistake it was.

pub(crate) mod beyond;
pub(crate) mod kept;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use abi::mr::access as right;
use abi::post::Sge;
use parking_lot::MappedRwLockReadGuard;
use shm::{Sink, Source};
use wire::icrc::Folding;

use crate::core::Core;
use crate::extent::{EVERY_PD, Extent, Keeper, LOCAL_READ, MemoryKind};
use crate::usermem;

use self::kept::KeptRegion;

/// Why memory was not accessed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No region has the key.
    NoKey { key: u32 },
    /// The region is on another PD than the QP.
    Domain { key: u32, mr: u32, qp: u32 },
    /// The range leaves the region.
    Range { key: u32, addr: u64, len: u64, start: u64, length: u64 },
    /// The region lacks a right.
    Right { key: u32, missing: u32 },
    /// The window is bound to another QP.
    Queue { key: u32, only: u32, qp: u32 },
    /// The memory is gone or has lost a right since it was registered.
    Memory { key: u32, addr: u64 },
    /// Memory that needs no key, mostly the engine's own, could not be accessed.
    Keyless(usermem::Fault),
}

impl Refusal {
    /// Whether the key was wrong, rather than the memory behind it.
    pub(crate) fn by_key(&self) -> bool {
        !matches!(self, Self::Memory { .. } | Self::Keyless(_))
    }

    /// What a program can do if memory of its own request is refused.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoKey { .. } => "check the lkey, and that its region is still registered",
            Self::Domain { .. } => "register the region on the QP's PD",
            Self::Range { .. } => "check address and length",
            Self::Right { missing, .. } if missing & LOCAL_READ != 0 => "use the lkey of a memory region",
            Self::Right { .. } => "register the region with that right",
            Self::Queue { .. } => "use the window with the QP that has bound it",
            Self::Memory { .. } => "check that the memory is still mapped and writable",
            Self::Keyless(_) => "check that the system has memory left",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoKey { key } => write!(f, "key {key:#x} names no memory region or bound window of this process"),
            Self::Queue { key, only, qp } => {
                write!(f, "key {key:#x} belongs to a memory window bound to QP {only:#x}; QP {qp:#x} cannot use it")
            }
            Self::Right { key, missing } if missing & LOCAL_READ != 0 => {
                write!(f, "key {key:#x} belongs to a memory window, which only peers can use")
            }
            Self::Domain { key, mr, qp } => write!(f, "key {key:#x} is bound to PD {mr}, the QP is on PD {qp}"),
            Self::Range { key, addr, len, start, length } => {
                write!(
                    f,
                    "the range of {len} bytes at {addr:#x} is outside the region of key {key:#x} ({length} bytes at {start:#x})"
                )
            }
            Self::Right { key, missing } => {
                let name = match missing {
                    right::LOCAL_WRITE => "IBV_ACCESS_LOCAL_WRITE",
                    right::REMOTE_WRITE => "IBV_ACCESS_REMOTE_WRITE",
                    right::REMOTE_READ => "IBV_ACCESS_REMOTE_READ",
                    right::ON_DEMAND => "IBV_ACCESS_ON_DEMAND",
                    right::FLUSH_GLOBAL => "IBV_ACCESS_FLUSH_GLOBAL",
                    right::FLUSH_PERSISTENT => "IBV_ACCESS_FLUSH_PERSISTENT",
                    _ => "IBV_ACCESS_REMOTE_ATOMIC",
                };
                write!(f, "the region of key {key:#x} was registered without {name}")
            }
            Self::Memory { key, addr } => {
                write!(
                    f,
                    "the memory at {addr:#x} behind key {key:#x} has been unmapped, protected or truncated since it was registered"
                )
            }
            Self::Keyless(fault) => write!(f, "memory of the adapter cannot be accessed: {fault}"),
        }
    }
}

/// Who uses a key, and for what: the input of every check besides the range.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    /// The PD of the QP (or SRQ).
    pub(crate) pd: u32,
    /// The right that is needed.
    pub(crate) right: u32,
    /// The QP, for memory windows of type 2, which only one QP may use.
    pub(crate) qpn: u32,
}

#[inline]
fn check(extent: &Extent, wanted: Use, key: u32, addr: u64, len: u64) -> Result<u64, Refusal> {
    if extent.key != key {
        return Err(Refusal::NoKey { key });
    }
    if extent.pd != wanted.pd && extent.pd != EVERY_PD {
        return Err(Refusal::Domain { key, mr: extent.pd, qp: wanted.pd });
    }
    if extent.access & wanted.right != wanted.right {
        return Err(Refusal::Right { key, missing: wanted.right });
    }
    if extent.only != 0 && extent.only != wanted.qpn {
        return Err(Refusal::Queue { key, only: extent.only, qp: wanted.qpn });
    }
    let inside =
        addr.checked_sub(extent.iova).filter(|&offset| offset <= extent.length && len <= extent.length - offset);
    let offset = inside.ok_or(Refusal::Range { key, addr, len, start: extent.iova, length: extent.length })?;
    Ok(extent.host + offset)
}

/// The refusal for memory that has vanished.
#[cold]
fn gone(core: &Core, key: u32, addr: u64) -> Refusal {
    if let Some(lint) = core.lint() {
        lint.vanished(key, addr);
    }
    Refusal::Memory { key, addr }
}

/// Calls `act` with the address of the range in this process, with the region held.
fn with<T>(
    core: &Core,
    wanted: Use,
    (key, addr, len): (u32, u64, u64),
    act: impl FnOnce(*mut u8) -> Result<T, usermem::Fault>,
) -> Result<T, Refusal> {
    let (_extent, host) = open(core, wanted, (key, addr, len))?;
    act(host).map_err(|_| gone(core, key, addr))
}

/// Looks up a region and holds it. Also returns the address of the range in this process.
#[inline]
fn open<'a>(
    core: &'a Core,
    wanted: Use,
    (key, addr, len): (u32, u64, u64),
) -> Result<(MappedRwLockReadGuard<'a, Arc<Extent>>, *mut u8), Refusal> {
    let extent = core.keys.extents.hold(key >> 8).ok_or(Refusal::NoKey { key })?;
    let host = check(&extent, wanted, key, addr, len)?;
    Ok((extent, std::ptr::with_exposed_provenance_mut(host as usize)))
}

/// The rest of the element that contains the byte `offset` of the concatenated `elements`, from
/// that byte on.
pub(crate) fn piece(elements: impl Iterator<Item = Sge>, offset: u32) -> Option<Sge> {
    let mut skip = offset;
    for element in elements {
        if skip < element.length {
            let addr = element.addr.wrapping_add(u64::from(skip));
            return Some(Sge { addr, length: element.length - skip, ..element });
        }
        skip -= element.length;
    }
    None
}

/// Checks a remote range without accessing it.
pub(crate) fn check_remote(core: &Core, wanted: Use, key: u32, addr: u64, len: u64) -> Result<(), Refusal> {
    with(core, wanted, (key, addr, len), |_| Ok(()))
}

/// An atomic on 8 bytes.
#[derive(Clone, Copy)]
pub(crate) enum Atomic {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd(u64),
    /// Stores the value.
    Write(u64),
}

/// Carries out an atomic on an aligned word; returns its old value.
pub(crate) fn atomic(core: &Core, wanted: Use, (key, addr): (u32, u64), what: Atomic) -> Result<u64, Refusal> {
    with(core, wanted, (key, addr, 8), |word| {
        let word = word.cast::<u64>();
        match what {
            // SAFETY: an aligned word in a range registered for remote atomics; faults are
            // survived.
            Atomic::CompareSwap { compare, swap } => unsafe { usermem::compare_swap(word, compare, swap) },
            // SAFETY: as above.
            Atomic::FetchAdd(add) => unsafe { usermem::fetch_add(word, add) },
            // SAFETY: an aligned word in a range registered for remote writing; faults are
            // survived.
            Atomic::Write(value) => unsafe { usermem::swap(word, value) },
        }
    })
}

/// The range of a FLUSH, or all of a key's region.
#[derive(Clone, Copy)]
pub(crate) enum FlushRange {
    Range { addr: u64, len: u64 },
    Region,
}

/// Makes the peers' writes visible to all threads of this host. The writes were ordinary stores, so
/// a fence suffices. The key is checked nevertheless.
pub(crate) fn flush(core: &Core, wanted: Use, key: u32, what: FlushRange) -> Result<(), Refusal> {
    let extent = core.keys.extents.hold(key >> 8).ok_or(Refusal::NoKey { key })?;
    let (addr, len) = match what {
        FlushRange::Range { addr, len } => (addr, len),
        FlushRange::Region => (extent.iova, extent.length),
    };
    check(&extent, wanted, key, addr, len)?;
    // SeqCst: earlier stores become visible before the answer, which is a store, too, or leaves
    // through the kernel.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(())
}

/// Fills `to` with the bytes of the concatenated `elements` from `offset` on.
#[inline]
pub(crate) fn gather(
    region: &mut HeldRegion<'_>,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    offset: u32,
    to: &mut Sink<'_>,
) -> Result<(), Refusal> {
    let wanted = Use { pd, right: LOCAL_READ, qpn: 0 };
    walk(elements, (offset, to.len()), |place, range| {
        region.read(wanted, place, &mut to.part(range.start, range.len()))
    })
}

/// Copies `from` to the concatenated `elements` from `offset` on.
#[inline]
pub(crate) fn scatter(
    region: &mut HeldRegion<'_>,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    offset: u32,
    from: Source<'_>,
) -> Result<(), Refusal> {
    let wanted = Use { pd, right: right::LOCAL_WRITE, qpn: 0 };
    walk(elements, (offset, from.len()), |place, range| {
        region.write(wanted, place, from.part(range.start, range.len()))
    })
}

/// Calls `copy` for each piece of `[offset, offset + len)` of the concatenated `elements`, with its
/// key and address, and its range in one buffer of `len` bytes.
#[inline(always)]
fn walk(
    mut elements: impl Iterator<Item = Sge>,
    (offset, len): (u32, usize),
    mut copy: impl FnMut((u32, u64), Range<usize>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if len == 0 {
        // Elements of no bytes are not looked at: their key and address mean nothing.
        return Ok(());
    }
    let first = elements.next();
    // The common case: all bytes lie in the first element.
    if let Some(first) = first
        && u64::from(offset) + len as u64 <= u64::from(first.length)
    {
        return copy((first.lkey, first.addr.wrapping_add(u64::from(offset))), 0..len);
    }
    walk_many(first.into_iter().chain(elements), (offset, len), copy)
}

/// Does the work of [`walk`] for several elements. Apart, so that the common case stays short.
#[inline(never)]
fn walk_many(
    elements: impl Iterator<Item = Sge>,
    (mut skip, len): (u32, usize),
    mut copy: impl FnMut((u32, u64), Range<usize>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut done = 0;
    for element in elements {
        if done == len {
            break;
        }
        if skip >= element.length {
            skip -= element.length;
            continue;
        }
        let end = len.min(done + (element.length - skip) as usize);
        copy((element.lkey, element.addr.wrapping_add(u64::from(skip))), done..end)?;
        done = end;
        skip = 0;
    }
    Ok(())
}

/// Copies inline data when a request is posted, as far as `to` has room. The addresses are the
/// program's own, so no key is checked. The error is an address that cannot be read.
pub(crate) fn inline(elements: &[Sge], to: &mut Sink<'_>) -> Result<(), u64> {
    let mut done = 0;
    for element in elements {
        let part = to.part(done, element.length as usize);
        let from: *const u8 = std::ptr::with_exposed_provenance(element.addr as usize);
        // SAFETY: `part` is writable; reading the program's memory survives a fault.
        unsafe { usermem::copy(part.start(), from, part.len()) }.map_err(|_| element.addr)?;
        done += part.len();
    }
    Ok(())
}

/// Copies bytes without a key; both sides have the same length. Each side is memory of the engine
/// (queue memory, lane memory, private memory), or memory that the program passes for this call. An
/// access to the engine's memory fails only if the system cannot provide a page.
#[inline]
pub(crate) fn copy(to: &Sink<'_>, from: Source<'_>) -> Result<(), Refusal> {
    assert_eq!(to.len(), from.len(), "the room and the bytes that go there");
    // SAFETY: one is writable, the other readable, and they are equally long; faults are survived.
    unsafe { usermem::copy(to.start(), from.start(), from.len()) }.map_err(Refusal::Keyless)
}

/// Returns a private copy.
pub(crate) fn copied(from: Source<'_>) -> Result<Box<[u8]>, Refusal> {
    let mut bytes = vec![0; from.len()].into_boxed_slice();
    copy(&Sink::from(&mut bytes[..]), from)?;
    Ok(bytes)
}

/// Copies like [`copy`], and folds the bytes into an ICRC as [`HeldRegion::read_folding`] does.
#[cfg(test)]
pub(crate) fn folded(to: &Sink<'_>, from: &[u8], folding: &mut Folding) -> Result<(), Refusal> {
    assert_eq!(to.len(), from.len());
    // SAFETY: `to` is writable and as long as `from`.
    unsafe { usermem::copy_folding(to.start(), from.as_ptr(), from.len(), folding) }.map_err(Refusal::Keyless)
}

/// The content of a region without memory.
static ZEROS: [u8; 4096] = [0; 4096];

/// Fills one of the engine's own buffers with zeros.
fn zero(to: &mut Sink<'_>) -> Result<(), Refusal> {
    for at in (0..to.len()).step_by(ZEROS.len()) {
        let len = ZEROS.len().min(to.len() - at);
        copy(&to.part(at, len), Source::from(&ZEROS[..len]))?;
    }
    Ok(())
}

/// Where a range of an on-demand region of a PD lies in this process; for `advise_mr`.
pub(crate) fn on_demand(core: &Core, pd: u32, sge: &Sge, write: bool) -> Result<u64, Refusal> {
    let wanted = Use { pd, right: if write { right::LOCAL_WRITE } else { LOCAL_READ }, qpn: 0 };
    let (key, addr, len) = (sge.lkey, sge.addr, u64::from(sge.length));
    let (extent, host) = open(core, wanted, (key, addr, len))?;
    if extent.access & right::ON_DEMAND == 0 {
        return Err(Refusal::Right { key, missing: right::ON_DEMAND });
    }
    Ok(host.addr() as u64)
}

/// A region that several copies in a row probably use: it is looked up once, and held from the
/// first copy to the last.
///
/// Finding and releasing a region costs a locked instruction each, more than a copy of a few bytes.
/// Each copy is checked against its key. While a region is held, a thread that deregisters it
/// waits. So the holder must not wait for a thread that might deregister a region, and it releases
/// the region before it looks up another one. The same is true for who holds the lock of a QP that
/// keeps a region.
pub(crate) struct HeldRegion<'a> {
    core: &'a Core,
    region: Option<MappedRwLockReadGuard<'a, Arc<Extent>>>,
    /// The QP whose lock the caller holds, if any, and what this QP keeps.
    keeper: Option<&'a dyn Keeper>,
    kept: KeptRegion,
    /// The next copy is probably the last one.
    is_last: bool,
}

impl<'a> HeldRegion<'a> {
    /// Holds no region yet.
    #[inline]
    pub(crate) fn new(core: &'a Core) -> Self {
        Self { core, region: None, keeper: None, kept: KeptRegion::default(), is_last: false }
    }

    /// Holds no region yet, but uses the one that `keeper` keeps, and may make it keep another. The
    /// caller holds the lock of this QP, and returns what [`HeldRegion::into_kept`] returns to it
    /// before the lock is released.
    #[inline]
    pub(crate) fn of_qp(core: &'a Core, keeper: &'a dyn Keeper, kept: KeptRegion) -> Self {
        Self { core, region: None, keeper: Some(keeper), kept, is_last: false }
    }

    /// Releases the region, and returns what the QP keeps.
    #[inline]
    pub(crate) fn into_kept(self) -> KeptRegion {
        self.kept
    }

    /// Releases the region.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.region = None;
    }

    /// Says whether the next read is probably the last copy. Then it releases the region itself,
    /// before the caller publishes what it has read: each locked instruction after that waits until
    /// the peer has released the cache line.
    #[inline]
    pub(crate) fn set_last(&mut self, is_last: bool) {
        self.is_last = is_last;
    }

    /// The address of the range in this process, or `None` if the region has no memory.
    #[inline(always)]
    fn open(&mut self, wanted: Use, (key, addr, len): (u32, u64, usize)) -> Result<Option<*mut u8>, Refusal> {
        let region = match self.kept.get(key) {
            Some(region) => region,
            None => self.hold(key)?,
        };
        let host = check(region, wanted, key, addr, len as u64)?;
        Ok((!matches!(region.memory_kind, MemoryKind::Null))
            .then(|| std::ptr::with_exposed_provenance_mut(host as usize)))
    }

    /// Looks a region up, unless it is held already, and holds it.
    #[inline(always)]
    fn hold(&mut self, key: u32) -> Result<&Extent, Refusal> {
        if self.region.as_ref().is_none_or(|region| region.key != key) {
            // The old region is released first, so that no thread holds two regions at once.
            self.region = None;
            self.region = self.core.keys.extents.hold(key >> 8);
            if let (Some(keeper), Some(region)) = (self.keeper, &self.region) {
                self.kept.note(region, keeper);
            }
        }
        self.region.as_deref().map(|region| &**region).ok_or(Refusal::NoKey { key })
    }

    /// Copies `from` to `addr` of a region.
    #[inline]
    pub(crate) fn write(&mut self, wanted: Use, (key, addr): (u32, u64), from: Source<'_>) -> Result<(), Refusal> {
        let Some(to) = self.open(wanted, (key, addr, from.len()))? else { return Ok(()) };
        // SAFETY: `to` lies in a range that the program registered for this use, and that is held
        // or kept; `from` is readable; faults are survived.
        unsafe { usermem::copy(to, from.start(), from.len()) }.map_err(|_| gone(self.core, key, addr))
    }

    /// Fills `to` with the bytes at `addr` of a region. No other thread reads `to` before the
    /// caller publishes it.
    #[inline]
    pub(crate) fn read(&mut self, wanted: Use, (key, addr): (u32, u64), to: &mut Sink<'_>) -> Result<(), Refusal> {
        let Some(from) = self.open(wanted, (key, addr, to.len()))? else { return zero(to) };
        // SAFETY: `to` is writable, and no other thread knows of it yet; `from` lies in a
        // registered range, which is held or kept; faults are survived.
        let read = unsafe { usermem::stage(to.start(), from, to.len()) };
        if self.is_last {
            self.region = None;
        }
        read.map_err(|_| gone(self.core, key, addr))
    }

    /// Like `read`, for whole strides, which are also folded into an ICRC. Returns false, without
    /// having read anything, if the region has no memory.
    pub(crate) fn read_folding(
        &mut self,
        wanted: Use,
        (key, addr): (u32, u64),
        to: &Sink<'_>,
        folding: &mut Folding,
    ) -> Result<bool, Refusal> {
        let Some(from) = self.open(wanted, (key, addr, to.len()))? else { return Ok(false) };
        // SAFETY: as in `read`.
        let read = unsafe { usermem::copy_folding(to.start(), from, to.len(), folding) };
        read.map(|()| true).map_err(|_| gone(self.core, key, addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Keepers;

    #[test]
    fn a_window_of_type_2_opens_for_its_qp_and_of_type_2b_on_its_pd_alone() {
        let window = |pd| Extent {
            key: 0x500,
            pd,
            host: 4096,
            iova: 0,
            length: 64,
            access: right::REMOTE_WRITE,
            only: 9,
            memory_kind: MemoryKind::Program,
            windows: Arc::default(),
            backing: None,
            keepers: Keepers::default(),
        };
        let reach = |pd, by: (u32, u32)| {
            let wanted = Use { pd: by.0, right: right::REMOTE_WRITE, qpn: by.1 };
            check(&window(pd), wanted, 0x500, 8, 8).is_ok()
        };
        // Type 2B, on PD 1; and type 2A, which a QP with the right number reaches on any PD.
        assert_eq!([(1, 9), (2, 9), (1, 8)].map(|by| reach(1, by)), [true, false, false]);
        assert_eq!([(1, 9), (2, 9), (1, 8)].map(|by| reach(EVERY_PD, by)), [true, true, false]);
    }
}
