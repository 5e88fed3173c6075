//! Copies and atomics between registered memory of this process and mapped memory of a peer. Each
//! runs only while its grant is valid.
//!
//! Errors in the local memory are not explained here: the caller then takes the general path, which
//! explains them. Principal functions: [`gather`] and [`scatter`].

use abi::mr::access as right;
use abi::post::Sge;
use shm::{Sink, Source};

use super::{Atomic, Use, open};
use crate::core::Core;
use crate::extent::{LOCAL_READ, MemoryKind};
use crate::usermem::guarded::{self, GuardWord, NotDone};

/// Whether the whole list can be read (or written), as far as that is known without an access.
pub(crate) fn is_sound(core: &Core, pd: u32, mut elements: impl Iterator<Item = Sge>, write: bool) -> bool {
    let wanted = Use { pd, right: if write { right::LOCAL_WRITE } else { LOCAL_READ }, qpn: 0 };
    let sound = |sge: Sge| {
        let found = open(core, wanted, (sge.lkey, sge.addr, u64::from(sge.length)));
        sge.length == 0 || found.is_ok_and(|(extent, _)| extent.memory_kind != MemoryKind::Null)
    };
    elements.all(sound)
}

/// Copies the `elements` to the peer's memory at `to`, which has room for all of them.
pub(crate) fn gather(
    core: &Core,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    guard: GuardWord<'_>,
    to: &mut Sink<'_>,
) -> Result<(), NotDone> {
    let mut done = 0;
    for sge in elements.filter(|sge| sge.length != 0) {
        let wanted = Use { pd, right: LOCAL_READ, qpn: 0 };
        let (_held, from) =
            open(core, wanted, (sge.lkey, sge.addr, u64::from(sge.length))).map_err(|_| NotDone::Fault)?;
        let to = to.part(done, sge.length as usize);
        // SAFETY: `from` lies in a registered range, which is held; `to` lies in a mapping of a
        // file that a peer has granted for this. Faults are survived.
        unsafe { guarded::copy(guard, to.start(), from, to.len()) }?;
        done += to.len();
    }
    Ok(())
}

/// Copies the peer's memory at `from` to the `elements`, as many bytes as they have.
pub(crate) fn scatter(
    core: &Core,
    pd: u32,
    elements: impl Iterator<Item = Sge>,
    guard: GuardWord<'_>,
    from: Source<'_>,
) -> Result<(), NotDone> {
    let mut done = 0;
    for sge in elements.filter(|sge| sge.length != 0) {
        let wanted = Use { pd, right: right::LOCAL_WRITE, qpn: 0 };
        let (_held, to) =
            open(core, wanted, (sge.lkey, sge.addr, u64::from(sge.length))).map_err(|_| NotDone::Fault)?;
        let from = from.part(done, sge.length as usize);
        // SAFETY: `to` lies in a registered range, which is held; `from` lies in a mapping of a
        // file that a peer has granted for this. Faults are survived.
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
