//! Faults pages in before they are used. Where no memory is pinned, prefetching means only this.
//! Principal function: [`populate`].

use std::io;

use rustix::io::Errno;
use rustix::mm::Advice;

const PAGE: u64 = 4096;

/// Makes the kernel fault in the pages of a range, for reading or for writing. On a kernel without
/// support (before 5.14) it does nothing.
///
/// # Errors
///
/// A page is not mapped, or there is no memory for it.
pub fn populate(addr: u64, len: u64, write: bool) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let start = addr & !(PAGE - 1);
    let len = addr.saturating_add(len).saturating_sub(start);
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let place = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: populating changes no byte and no mapping: it faults pages in as a first access
    // would.
    match unsafe { rustix::mm::madvise(place, len as usize, advice) } {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
