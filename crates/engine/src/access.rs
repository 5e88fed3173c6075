//! The operations on registered memory: gather, scatter, remote write, read and atomics. Each is
//! checked against a key and survives a fault.
//!
//! Only `usermem` and this module form addresses of the program's memory. The slot of a key is held
//! while bytes move, so that a deregistration waits for the copy. A failure returns a [`Refusal`],
//! which has the sentence and says whose mistake it was.

pub(crate) mod beyond;
mod near;

use std::fmt;
use std::sync::Arc;

use abi::mr::access as right;
use abi::post::Sge;
use parking_lot::MappedRwLockReadGuard;
use wire::icrc::Folding;

use crate::engine::Engine;
use crate::extent::{EVERY_PD, Extent, LOCAL_READ, Matter};
use crate::usermem;

pub(crate) use near::Near;

/// Why memory was not accessed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No region has the key (any more).
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
}

impl Refusal {
    /// Whether the key was wrong, rather than the memory behind it.
    pub(crate) fn by_key(&self) -> bool {
        !matches!(self, Self::Memory { .. })
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
fn gone(engine: &Engine, key: u32, addr: u64) -> Refusal {
    if let Some(lint) = engine.lint() {
        lint.vanished(key, addr);
    }
    Refusal::Memory { key, addr }
}

/// Calls `act` with the address of the range in this process, with the region held.
fn with<T>(
    engine: &Engine,
    wanted: Use,
    (key, addr, len): (u32, u64, u64),
    act: impl FnOnce(*mut u8) -> Result<T, usermem::Fault>,
) -> Result<T, Refusal> {
    let (_extent, host) = open(engine, wanted, (key, addr, len))?;
    act(host).map_err(|_| gone(engine, key, addr))
}

/// The region, held, and the address of the range in this process.
#[inline]
fn open<'a>(
    engine: &'a Engine,
    wanted: Use,
    (key, addr, len): (u32, u64, u64),
) -> Result<(MappedRwLockReadGuard<'a, Arc<Extent>>, *mut u8), Refusal> {
    let extent = engine.extents.hold(key >> 8).ok_or(Refusal::NoKey { key })?;
    let host = check(&extent, wanted, key, addr, len)?;
    Ok((extent, std::ptr::with_exposed_provenance_mut(host as usize)))
}

/// Registered memory that was looked up once for several copies; the region is held meanwhile.
pub(crate) struct Stretch<'a> {
    _region: MappedRwLockReadGuard<'a, Arc<Extent>>,
    host: *mut u8,
    key: u32,
    addr: u64,
    len: usize,
}

/// Looks up `len` bytes at `addr` of a region. Returns `None` if they are not accessible, or not by
/// plain copies.
pub(crate) fn hold(engine: &Engine, wanted: Use, (key, addr, len): (u32, u64, u64)) -> Option<Stretch<'_>> {
    let (region, host) = open(engine, wanted, (key, addr, len)).ok()?;
    (region.matter != Matter::Nothing).then_some(Stretch { _region: region, host, key, addr, len: len as usize })
}

impl Stretch<'_> {
    /// The address of `len` bytes at the offset `at`.
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes behind {at} of {}", self.len);
        self.host.wrapping_add(at)
    }

    fn refusal(&self, at: usize) -> Refusal {
        Refusal::Memory { key: self.key, addr: self.addr.wrapping_add(at as u64) }
    }

    /// Copies `from` to the offset `at`. `hold` must have been called with a right to write.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> Result<(), Refusal> {
        let to = self.at(at, from.len());
        // SAFETY: `to` lies in a range that the program registered for this use, and that is held;
        // faults are survived.
        unsafe { usermem::copy(to, from.as_ptr(), from.len()) }.map_err(|_| self.refusal(at))
    }

    /// Copies `len` bytes at the offset `at` to `to`, which is valid for `len` bytes.
    pub(crate) fn read(&self, at: usize, to: *mut u8, len: usize) -> Result<(), Refusal> {
        let from = self.at(at, len);
        // SAFETY: `to` is the caller's, valid for `len`; `from` lies in a registered range, which
        // is held; faults are survived.
        unsafe { usermem::copy(to, from, len) }.map_err(|_| self.refusal(at))
    }

    /// Like `read`, for whole strides, which are also folded into an ICRC.
    pub(crate) fn read_folding(
        &self,
        at: usize,
        to: *mut u8,
        len: usize,
        folding: &mut Folding,
    ) -> Result<(), Refusal> {
        let from = self.at(at, len);
        // SAFETY: as in `read`.
        unsafe { usermem::copy_folding(to, from, len, folding) }.map_err(|_| self.refusal(at))
    }
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

/// Checks a remote range without an access to it.
pub(crate) fn check_remote(engine: &Engine, wanted: Use, key: u32, addr: u64, len: u64) -> Result<(), Refusal> {
    with(engine, wanted, (key, addr, len), |_| Ok(()))
}

/// Copies to the `len` bytes at `addr` of a region.
pub(crate) fn write(
    engine: &Engine,
    wanted: Use,
    (key, addr): (u32, u64),
    from: *const u8,
    len: usize,
) -> Result<(), Refusal> {
    let (extent, to) = open(engine, wanted, (key, addr, len as u64))?;
    if extent.matter == Matter::Nothing {
        return Ok(());
    }
    // SAFETY: `to` lies in a range that the program registered for this use; `from` is the
    // caller's, valid for `len`; faults are survived.
    unsafe { usermem::copy(to, from, len) }.map_err(|_| gone(engine, key, addr))
}

/// Copies the `len` bytes at `addr` of a region to `to`, which no other thread reads before it is
/// told.
pub(crate) fn read(
    engine: &Engine,
    wanted: Use,
    (key, addr): (u32, u64),
    to: *mut u8,
    len: usize,
) -> Result<(), Refusal> {
    let (extent, from) = open(engine, wanted, (key, addr, len as u64))?;
    if extent.matter == Matter::Nothing {
        zero(to, len);
        return Ok(());
    }
    // SAFETY: `to` is the caller's, valid for `len`, and no other thread knows of it yet; `from`
    // lies in a registered range; faults are survived.
    unsafe { usermem::stage(to, from, len) }.map_err(|_| gone(engine, key, addr))
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
pub(crate) fn atomic(engine: &Engine, wanted: Use, (key, addr): (u32, u64), what: Atomic) -> Result<u64, Refusal> {
    with(engine, wanted, (key, addr, 8), |word| {
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
pub(crate) enum Flushed {
    Range { addr: u64, len: u64 },
    Region,
}

/// Makes the peers' writes visible to all on this host. The peers wrote by stores of this process,
/// so a fence suffices; the key is checked all the same.
pub(crate) fn flush(engine: &Engine, wanted: Use, key: u32, what: Flushed) -> Result<(), Refusal> {
    let extent = engine.extents.hold(key >> 8).ok_or(Refusal::NoKey { key })?;
    let (addr, len) = match what {
        Flushed::Range { addr, len } => (addr, len),
        Flushed::Region => (extent.iova, extent.length),
    };
    check(&extent, wanted, key, addr, len)?;
    // SeqCst: earlier stores become visible before the answer, which is a store, too, or leaves
    // through the kernel.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(())
}

/// The direction of a copy between a list of elements and one buffer.
#[derive(Clone, Copy)]
enum Way {
    Gather(*mut u8),
    Scatter(*const u8),
}

/// Copies `[offset, offset + len)` of the concatenated `elements` to `to`.
pub(crate) fn gather(
    engine: &Engine,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    (offset, len): (u32, u32),
    to: *mut u8,
) -> Result<(), Refusal> {
    walk(engine, Use { pd, right: LOCAL_READ, qpn: 0 }, elements, (offset, len), Way::Gather(to))
}

/// Copies `len` bytes from `from` to `[offset, offset + len)` of the concatenated `elements`.
pub(crate) fn scatter(
    engine: &Engine,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    (offset, len): (u32, u32),
    from: *const u8,
) -> Result<(), Refusal> {
    walk(engine, Use { pd, right: right::LOCAL_WRITE, qpn: 0 }, elements, (offset, len), Way::Scatter(from))
}

fn walk(
    engine: &Engine,
    wanted: Use,
    elements: impl Iterator<Item = Sge>,
    (offset, len): (u32, u32),
    way: Way,
) -> Result<(), Refusal> {
    let (mut skip, mut left) = (offset, len);
    let mut done = 0usize;
    for element in elements {
        if left == 0 {
            break;
        }
        if skip >= element.length {
            skip -= element.length;
            continue;
        }
        let part = (element.length - skip).min(left);
        let place = (element.lkey, element.addr.wrapping_add(u64::from(skip)));
        match way {
            Way::Gather(to) => read(engine, wanted, place, to.wrapping_add(done), part as usize)?,
            Way::Scatter(from) => write(engine, wanted, place, from.wrapping_add(done), part as usize)?,
        }
        done += part as usize;
        left -= part;
        skip = 0;
    }
    Ok(())
}

/// Copies inline data when a request is posted. The addresses are the program's own, so no key is
/// checked.
pub(crate) fn inline(elements: &[Sge], mut to: *mut u8) -> Result<(), u64> {
    for element in elements {
        let from: *const u8 = std::ptr::with_exposed_provenance(element.addr as usize);
        // SAFETY: `to` has room for the list (the caller checked its length); reading the program's
        // memory survives a fault.
        unsafe { usermem::copy(to, from, element.length as usize) }.map_err(|_| element.addr)?;
        to = to.wrapping_add(element.length as usize);
    }
    Ok(())
}

/// Copies between the program's memory and the engine's in the program's own call; no key is
/// checked.
pub(crate) fn exchange(to: *mut u8, from: *const u8, len: usize) -> Result<(), ()> {
    // SAFETY: one side is the engine's and valid for `len`; the other is the program's, handed over
    // for this call, and faults are survived.
    unsafe { usermem::copy(to, from, len) }.map_err(drop)
}

/// Copies between the engine's own buffers (queue memory and lane memory).
pub(crate) fn plain(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: both are the caller's, valid for `len`, and do not overlap; lane memory is sealed
    // against shrinking, so it cannot fault.
    let _ = unsafe { usermem::copy(to, from, len) };
}

/// Copies like [`plain`], and folds the bytes into an ICRC as [`Stretch::read_folding`] does.
#[cfg(test)]
pub(crate) fn folded(to: *mut u8, from: &[u8], folding: &mut Folding) {
    // SAFETY: `to` is the caller's, valid for as much as `from`, and they do not overlap.
    let _ = unsafe { usermem::copy_folding(to, from.as_ptr(), from.len(), folding) };
}

/// The content of a region without memory.
static ZEROS: [u8; 4096] = [0; 4096];

/// Fills one of the engine's own buffers with zeros.
fn zero(to: *mut u8, len: usize) {
    for at in (0..len).step_by(ZEROS.len()) {
        plain(to.wrapping_add(at), ZEROS.as_ptr(), ZEROS.len().min(len - at));
    }
}

/// Where a range of an on-demand region of a PD lies in this process; for `advise_mr`.
pub(crate) fn on_demand(engine: &Engine, pd: u32, sge: &Sge, write: bool) -> Result<u64, Refusal> {
    let wanted = Use { pd, right: if write { right::LOCAL_WRITE } else { LOCAL_READ }, qpn: 0 };
    let (key, addr, len) = (sge.lkey, sge.addr, u64::from(sge.length));
    let (extent, host) = open(engine, wanted, (key, addr, len))?;
    if extent.access & right::ON_DEMAND == 0 {
        return Err(Refusal::Right { key, missing: right::ON_DEMAND });
    }
    Ok(host.addr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            matter: Matter::Memory,
            windows: Arc::default(),
            backing: None,
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
