//! Ranges of bytes, as callers give them. Principal function: [`checked`].

use std::ops::{Bound, RangeBounds};

/// Start and length of a range inside `len` bytes.
///
/// # Panics
/// When the range is not inside.
pub(crate) fn inside(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let shown = (range.start_bound().cloned(), range.end_bound().cloned());
    checked(range, len).unwrap_or_else(|| panic!("the range {shown:?} is outside the {len} bytes of the memory"))
}

/// Start and length of a range if it is inside `len` bytes.
pub(crate) fn checked(range: impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then(|| (start, end - start))
}
