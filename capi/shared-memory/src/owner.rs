//! Whether this process has the memory that its table says it has. A child that was made with the
//! system call clone(2) inherits the table without the memory. The kernel clears one page in every
//! child (`MADV_WIPEONFORK`); the handler of a fork that has copied the memory marks the page
//! again. The principal function is [`is_owner`].

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::pages;

/// A byte of the page; true in the owner.
static MARK: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

fn mark() -> Option<&'static AtomicBool> {
    // SAFETY: NULL, or the beginning of a page that stays mapped, for bytes that are 0 or 1.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
}

/// Makes this process the owner of what is in its table.
pub(crate) fn own() {
    if mark().is_none()
        && let Ok(page) = pages::map_wiped()
    {
        MARK.store(std::ptr::with_exposed_provenance_mut(page), Ordering::Relaxed);
    }
    if let Some(mark) = mark() {
        mark.store(true, Ordering::Relaxed);
    }
}

/// Whether this process is the owner. `false` is always safe.
pub(crate) fn is_owner() -> bool {
    mark().is_some_and(|mark| mark.load(Ordering::Relaxed))
}
