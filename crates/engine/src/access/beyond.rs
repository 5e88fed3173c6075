//! Copies and atomics between registered memory of this process and mapped memory of a peer. Each
//! runs only while its grant is valid.
//!
//! Errors in the local memory are not explained here: the caller then takes the general path, which
//! explains them. Principal functions: [`gather`] and [`scatter`].

use abi::mr::access as right;
use abi::post::Sge;
use shm::{Sink, Source};

use super::{Atomic, HeldRegion, Use};
use crate::extent::LOCAL_READ;
use crate::usermem::guarded::{self, GuardWord, NotDone};

/// Where an element lies in this process, with its region held or kept. `None` if it cannot be
/// accessed, or has no memory.
#[inline]
fn place(region: &mut HeldRegion<'_>, pd: u32, right: u32, sge: Sge) -> Option<*mut u8> {
    region.open(Use { pd, right, qpn: 0 }, (sge.lkey, sge.addr, sge.length as usize)).ok().flatten()
}

/// Whether the whole list can be read (or written), as far as that is known without an access.
#[inline]
pub(crate) fn is_sound(
    region: &mut HeldRegion<'_>,
    pd: u32,
    mut elements: impl Iterator<Item = Sge>,
    write: bool,
) -> bool {
    let right = if write { right::LOCAL_WRITE } else { LOCAL_READ };
    elements.all(|sge| sge.length == 0 || place(region, pd, right, sge).is_some())
}

/// Copies the `elements` to the peer's memory at `to`, which has room for all of them.
#[inline]
pub(crate) fn gather(
    region: &mut HeldRegion<'_>,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    guard: GuardWord<'_>,
    to: &mut Sink<'_>,
) -> Result<(), NotDone> {
    let mut done = 0;
    for sge in elements.filter(|sge| sge.length != 0) {
        let from = place(region, pd, LOCAL_READ, sge).ok_or(NotDone::Fault)?;
        let to = to.part(done, sge.length as usize);
        // SAFETY: `from` lies in a registered range, which is held or kept; `to` lies in a mapping
        // of a file that a peer has granted for this. Faults are survived.
        unsafe { guarded::copy(guard, to.start(), from, to.len()) }?;
        done += to.len();
    }
    Ok(())
}

/// Copies the peer's memory at `from` to the `elements`, as many bytes as they have.
#[inline]
pub(crate) fn scatter(
    region: &mut HeldRegion<'_>,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    guard: GuardWord<'_>,
    from: Source<'_>,
) -> Result<(), NotDone> {
    let mut done = 0;
    for sge in elements.filter(|sge| sge.length != 0) {
        let to = place(region, pd, right::LOCAL_WRITE, sge).ok_or(NotDone::Fault)?;
        let from = from.part(done, sge.length as usize);
        // SAFETY: `to` lies in a registered range, which is held or kept; `from` lies in a mapping
        // of a file that a peer has granted for this. Faults are survived.
        unsafe { guarded::copy(guard, to, from.start(), from.len()) }?;
        done += from.len();
    }
    Ok(())
}

/// Copies bytes of the engine to the peer's memory, which is as long.
pub(crate) fn put(guard: GuardWord<'_>, to: &Sink<'_>, from: Source<'_>) -> Result<(), NotDone> {
    assert_eq!(to.len(), from.len(), "the peer's memory and the bytes that go there");
    // SAFETY: `from` is readable; `to` lies in a mapping of a file that a peer has granted for
    // this. Faults are survived.
    unsafe { guarded::copy(guard, to.start(), from.start(), from.len()) }
}

/// Copies inline data of a request to the peer's memory, which is as long. The address is the
/// program's own, so no key is checked.
#[inline]
pub(crate) fn put_unkeyed(guard: GuardWord<'_>, to: &Sink<'_>, element: &Sge) -> Result<(), NotDone> {
    assert_eq!(to.len(), element.length as usize, "the peer's memory and the bytes that go there");
    let from: *const u8 = std::ptr::with_exposed_provenance(element.addr as usize);
    // SAFETY: as in `put`; reading the program's memory survives a fault.
    unsafe { guarded::copy(guard, to.start(), from, to.len()) }
}

/// Carries out an atomic on an aligned word of the peer; returns the word's old value.
pub(crate) fn change(guard: GuardWord<'_>, word: &Sink<'_>, what: Atomic) -> Result<u64, NotDone> {
    let is_word = word.len() == size_of::<u64>() && word.start().addr().is_multiple_of(align_of::<u64>());
    if !is_word {
        return Err(NotDone::Fault);
    }
    let word = word.start().cast::<u64>();
    match what {
        // SAFETY: an aligned word in a mapping that a peer has granted for atomics; faults are
        // survived.
        Atomic::CompareSwap { compare, swap } => unsafe { guarded::compare_swap(guard, word, compare, swap) },
        // SAFETY: as above.
        Atomic::FetchAdd(add) => unsafe { guarded::fetch_add(guard, word, add) },
        Atomic::Write(_) => Err(NotDone::Fault),
    }
}
