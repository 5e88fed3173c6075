//! Lists of work requests and of their elements, as programs pass them. The principal function is
//! [`each_recv`].

use crate::entry::{Outcome, Refusal, refuse};
use crate::layout::{RecvWr, Sge};
use engine::RecvWr as EngineRecv;
use std::ffi::c_int;

/// More elements than any queue pair accepts.
const COPIED_MAX: usize = 1024;

const _: () = assert!(size_of::<Sge>() == size_of::<abi::post::Sge>());

/// Posts each receive request of a list.
///
/// # Safety
/// `wr` is a list of valid work requests, `bad` NULL or valid.
pub(crate) unsafe fn each_recv(
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    mut post: impl FnMut(&EngineRecv<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the caller's list.
        let request = unsafe { &*next };
        let mut copies = Vec::new();
        // SAFETY: the caller's list.
        let sges = unsafe { elements(request.sg_list, request.num_sge, &mut copies) };
        let posted = sges.and_then(|sges| post(&EngineRecv { wr_id: request.wr_id, sges }));
        posted.map_err(|refusal| blame(bad, next, refusal))?;
        next = request.next;
    }
    Ok(())
}

/// Stores the refused request in `bad`.
pub(crate) fn blame<T>(bad: *mut *mut T, wr: *mut T, refusal: Refusal) -> Refusal {
    if !bad.is_null() {
        // SAFETY: not NULL, and the caller's to write.
        unsafe { bad.write(wr) };
    }
    refusal
}

/// The elements in place, or copied to `copies` if they are not aligned: some programs keep them in
/// packed structs (libiscsi).
///
/// # Safety
/// `list` has `count` elements.
pub(crate) unsafe fn elements(
    list: *mut Sge,
    count: c_int,
    copies: &mut Vec<abi::post::Sge>,
) -> Outcome<&[abi::post::Sge]> {
    // Both structs are the same three numbers, in `verbs.h` and in the uverbs ABI.
    let first = list.cast::<abi::post::Sge>();
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise, and they are aligned.
        Ok(count) if !list.is_null() && first.is_aligned() => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
        Ok(count) if !list.is_null() && count <= COPIED_MAX => {
            // SAFETY: the caller's promise.
            copies.extend((0..count).map(|index| unsafe { first.add(index).read_unaligned() }));
            Ok(copies)
        }
        _ => Err(refuse!(EINVAL, "a work request has {count} elements at {list:p}")),
    }
}
