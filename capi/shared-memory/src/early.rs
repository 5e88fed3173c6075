//! Memory for the first calls: `dlsym` may allocate while this library looks the next `malloc` up.
//! The memory is never freed. The principal functions are [`allocate`] and [`size_of`].

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of the memory.
const ROOM: usize = 64 * 1024;
/// Before each block, its size. Also the alignment of every block.
const HEADER: usize = 16;

#[repr(C, align(16))]
struct Arena(UnsafeCell<[u8; ROOM]>);

// SAFETY: each byte is given out once; only its receiver uses it.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; ROOM]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// A block of zeros, or NULL if the memory is used up or the alignment is unusual.
pub(crate) fn allocate(size: usize, align: usize) -> *mut c_void {
    let Some(whole) = size.checked_add(HEADER).and_then(|size| size.checked_next_multiple_of(HEADER)) else {
        return null_mut();
    };
    if align > HEADER {
        return null_mut();
    }
    let taken = USED
        .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| used.checked_add(whole).filter(|end| *end <= ROOM));
    let Ok(start) = taken else { return null_mut() };
    let header = ARENA.0.get().cast::<u8>().wrapping_add(start);
    // SAFETY: inside the arena, aligned, and this caller's alone.
    unsafe { header.cast::<usize>().write(size) };
    header.wrapping_add(HEADER).cast()
}

/// The size of a block that comes from here.
pub(crate) fn size_of(block: *const c_void) -> Option<usize> {
    let offset = (block as usize).wrapping_sub(ARENA.0.get() as usize);
    if offset >= ROOM {
        return None;
    }
    // SAFETY: a block of the arena has its size before it.
    Some(unsafe { block.cast::<u8>().wrapping_sub(HEADER).cast::<usize>().read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_separate_aligned_and_known_until_the_memory_is_used_up() {
        let blocks = [1, 16, 100].map(|size| allocate(size, 8));
        for (block, size) in blocks.iter().zip([1, 16, 100]) {
            assert!((*block as usize).is_multiple_of(HEADER));
            assert_eq!(super::size_of(*block), Some(size));
        }
        assert!(blocks[1] as usize - blocks[0] as usize >= 32);
        let elsewhere = 0_u8;
        assert_eq!(super::size_of((&raw const elsewhere).cast()), None);
        assert!(allocate(usize::MAX, 8).is_null() && allocate(8, 64).is_null());
        while !allocate(1000, 16).is_null() {}
        assert!(!allocate(1, 16).is_null(), "a small block still fits");
    }
}
