//! The functions that allocate. Each of them makes a shared block if the user wants one and it can
//! be made, and calls the next function otherwise. `errno` is what the next function sets; a shared
//! block leaves it alone.

use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut as pointer;

use crate::blocks::{self, Resized};
use crate::choice::PAGE;
use crate::freed::Content;
use crate::front::is_ready;
use crate::next::Function;
use crate::{early, front};

type Block = *mut c_void;

/// Calls the next function of a name, of the given type.
macro_rules! next {
    ($name:ident($($argument:expr),*): fn($($type:ty),*) $(-> $answer:ty)?) => {{
        // SAFETY: the type is the one that the C library's manual gives.
        match unsafe { Function::$name.next::<unsafe extern "C" fn($($type),*) $(-> $answer)?>() } {
            // SAFETY: the arguments are the program's own.
            Some(next) => unsafe { next($($argument),*) },
            None => interpose::not_there(),
        }
    }};
}

/// Allocates memory. Principal function; the others are variants.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn malloc(size: usize) -> Block {
    if !is_ready() {
        return early::allocate(size, 1);
    }
    blocks::make(size, 1, Content::Any).map_or_else(|| next!(malloc(size): fn(usize) -> Block), pointer)
}

/// Allocates zeros.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn calloc(count: usize, size: usize) -> Block {
    if !is_ready() {
        return count.checked_mul(size).map_or(std::ptr::null_mut(), |size| early::allocate(size, 1));
    }
    let made = count.checked_mul(size).and_then(|size| blocks::make(size, 1, Content::Zeros));
    made.map_or_else(|| next!(calloc(count, size): fn(usize, usize) -> Block), pointer)
}

/// Frees memory.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn free(block: Block) {
    if blocks::free(block.addr()) {
        return;
    }
    // Memory of the first calls is not freed. Before the next function is known, there is no other.
    if early::size_of(block).is_none() && is_ready() {
        type Free = unsafe extern "C" fn(Block);
        // SAFETY: the type is the one that the C library's manual gives.
        if let Some(next) = unsafe { Function::free.next::<Free>() } {
            // SAFETY: the block is not from here, so it is from the next allocator, or NULL.
            unsafe { next(block) };
        }
    }
}

/// Changes the size of a block.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn realloc(block: Block, size: usize) -> Block {
    if let Some(shared) = blocks::find(block.addr()).filter(|_| size != 0) {
        return match blocks::resize(&shared, size) {
            Resized::Done(start) => pointer(start),
            // SAFETY: the block is the program's, of this size.
            Resized::Copy => unsafe { moved(block, shared.len(), size) },
        };
    }
    if let Some(old) = early::size_of(block) {
        // SAFETY: as above.
        return unsafe { moved(block, old, size) };
    }
    if size == 0 && blocks::find(block.addr()).is_some() {
        // SAFETY: the block is the program's.
        unsafe { free(block) };
        return std::ptr::null_mut();
    }
    if front::choice().wants_block(size, 1) && !block.is_null() {
        // SAFETY: the block is the next allocator's.
        let old = unsafe { malloc_usable_size(block) };
        // SAFETY: all of the usable size may be read.
        let new = unsafe { moved_to_shared(block, old, size) };
        if !new.is_null() {
            return new;
        }
    }
    if block.is_null() {
        // SAFETY: takes a number.
        return unsafe { malloc(size) };
    }
    next!(realloc(block, size): fn(Block, usize) -> Block)
}

/// Copies a block to a new one and frees it.
///
/// # Safety
/// The block is the program's, and has `old` bytes.
unsafe fn moved(block: Block, old: usize, size: usize) -> Block {
    let shared = blocks::find(block.addr()).filter(|_| old <= size);
    let zeros = shared.as_ref().and_then(|_| blocks::make(size, 1, Content::Zeros));
    // SAFETY: takes a number.
    let new = zeros.map_or_else(|| unsafe { malloc(size) }, pointer);
    if !new.is_null() {
        let source = shared.filter(|_| zeros.is_some());
        let is_copied = source.is_some_and(|source| blocks::copy(&source, new.addr()).is_ok());
        if !is_copied {
            // SAFETY: both blocks have so many bytes; the new one overlaps nothing.
            unsafe { std::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), old.min(size)) };
        }
        // SAFETY: the program gives the block up.
        unsafe { free(block) };
    }
    new
}

/// Copies a block of the next allocator to a shared one and frees it. NULL: no shared block can be
/// made, and nothing has changed.
///
/// # Safety
/// The block is the next allocator's, and has `old` bytes.
unsafe fn moved_to_shared(block: Block, old: usize, size: usize) -> Block {
    let Some(new) = blocks::make(size, 1, Content::Any) else { return std::ptr::null_mut() };
    let new: Block = pointer(new);
    // SAFETY: both blocks have so many bytes; the new one overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), old.min(size)) };
    // SAFETY: the program gives the block up.
    unsafe { free(block) };
    new
}

/// Changes the size of an array.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn reallocarray(block: Block, count: usize, size: usize) -> Block {
    match count.checked_mul(size) {
        // SAFETY: as the caller promises.
        Some(size) => unsafe { realloc(block, size) },
        None => interpose::refused(libc::ENOMEM),
    }
}

/// A block at a multiple of `align`, which must be a power of two.
fn aligned(size: usize, align: usize, next: impl FnOnce() -> Block) -> Block {
    if !is_ready() {
        return early::allocate(size, align);
    }
    let made = if align.is_power_of_two() { blocks::make(size, align, Content::Any) } else { None };
    made.map_or_else(next, pointer)
}

/// Allocates aligned memory.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn memalign(align: usize, size: usize) -> Block {
    aligned(size, align, || next!(memalign(align, size): fn(usize, usize) -> Block))
}

/// Allocates aligned memory.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> Block {
    aligned(size, align, || next!(aligned_alloc(align, size): fn(usize, usize) -> Block))
}

/// Allocates a block on a page boundary.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn valloc(size: usize) -> Block {
    aligned(size, PAGE, || next!(valloc(size): fn(usize) -> Block))
}

/// Allocates whole pages.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pvalloc(size: usize) -> Block {
    let whole = crate::choice::whole_pages(size).unwrap_or(usize::MAX);
    aligned(whole, PAGE, || next!(pvalloc(size): fn(usize) -> Block))
}

/// Allocates aligned memory; returns the reason if it fails.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn posix_memalign(place: *mut Block, align: usize, size: usize) -> c_int {
    let is_valid = align.is_power_of_two() && align.is_multiple_of(size_of::<usize>());
    let made = if is_valid && is_ready() { blocks::make(size, align, Content::Any) } else { None };
    let Some(made) = made else {
        return next!(posix_memalign(place, align, size): fn(*mut Block, usize, usize) -> c_int);
    };
    // SAFETY: the caller's place for the result.
    unsafe { place.write(pointer(made)) };
    0
}

/// The bytes of a block that the program may use.
///
/// # Safety
/// As for the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn malloc_usable_size(block: Block) -> usize {
    if let Some(shared) = blocks::find(block.addr()) {
        return shared.len();
    }
    if let Some(size) = early::size_of(block) {
        return size;
    }
    type Size = unsafe extern "C" fn(Block) -> usize;
    // SAFETY: the type is the one that the C library's manual gives.
    let next = unsafe { Function::malloc_usable_size.next::<Size>() };
    // SAFETY: the block is the next allocator's.
    next.map_or(0, |next| unsafe { next(block) })
}
