//! Buffers that the device allocates for the program: ordinary memory in whole pages that belongs
//! to a protection domain. The principal type is [`Buf`]; the engine does not know buffers.

use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{Mr, Pd};
use crate::memory;
use crate::object::{Named, Object, get};
use crate::pd::PdObject;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// `struct ibv_buf`, which is opaque to programs.
#[repr(C)]
pub(crate) struct Buf {
    pd: *mut Pd,
}

/// The handle and its memory.
type BufObject = Object<Buf, Pages>;

/// The alignment of buffers.
const PAGE: usize = 4096;

/// The memory of a buffer.
struct Pages {
    base: NonNull<u8>,
    layout: Layout,
    /// The size that the program asked for.
    size: usize,
}

impl Pages {
    fn allocate(size: usize) -> Outcome<Self> {
        let too_much = || refuse!(ENOMEM, "ibv_alloc_buf: there is no memory for {size} bytes");
        let layout = Layout::from_size_align(size.max(1), PAGE).map_err(|_| too_much())?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(too_much)?;
        Ok(Self { base, layout, size })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `allocate`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

impl Named for Buf {
    const NAME: &'static str = "buffer";

    fn name(_: *const Self) -> u32 {
        0
    }
}

/// `ibv_alloc_buf`: returns the address of the memory, and stores the handle in `buf`.
///
/// # Safety
/// `pd` is live, `buf` valid.
pub(crate) unsafe extern "C" fn alloc(pd: *mut Pd, size: usize, buf: *mut *mut Buf) -> *mut c_void {
    entry::pointer("ibv_alloc_buf", || {
        entry::not_null(buf)?;
        // SAFETY: the caller's promise.
        unsafe { PdObject::live(pd) }?;
        let pages = Pages::allocate(size)?;
        let base = pages.base.as_ptr().cast();
        // SAFETY: not NULL, and the caller's to write.
        unsafe { buf.write(BufObject::create(Buf { pd }, pages).cast()) };
        Ok(base)
    })
}

/// `ibv_free_buf`.
///
/// # Safety
/// `buf` is live, and neither it nor its memory is used afterwards.
pub(crate) unsafe extern "C" fn free(buf: *mut Buf) {
    // SAFETY: the caller's promise.
    entry::code("ibv_free_buf", || unsafe { BufObject::end(buf, |_| Ok(())) });
}

/// `ibv_reg_buf_mr`.
///
/// # Safety
/// `pd` and `buf` are live.
pub(crate) unsafe extern "C" fn register(
    pd: *mut Pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    entry::pointer("ibv_reg_buf_mr", || {
        // SAFETY: the caller's promise.
        unsafe { check_range(pd, buf, addr, length) }?;
        // SAFETY: the caller's promise.
        unsafe { memory::register(pd, addr, length, addr.addr() as u64, access.cast_unsigned(), None) }
    })
}

/// `ibv_export_buf_dmabuf_fd`: fails with ENODATA, because every buffer is ordinary memory.
///
/// # Safety
/// `buf` is live.
pub(crate) unsafe extern "C" fn export(buf: *mut Buf) -> c_int {
    entry::or_minus_one("ibv_export_buf_dmabuf_fd", || {
        // SAFETY: the caller's promise.
        unsafe { BufObject::live(buf) }?;
        Err(refuse!(ENODATA, "ibv_export_buf_dmabuf_fd: the buffer is ordinary memory, and no dma-buf"))
    })
}

/// Refuses a range that is not inside a buffer of this PD.
///
/// # Safety
/// `buf` is live.
pub(crate) unsafe fn check_range(pd: *mut Pd, buf: *mut Buf, addr: *mut c_void, length: usize) -> Result<(), Refusal> {
    // SAFETY: the caller's promise.
    let object = unsafe { BufObject::live(buf) }?;
    if get!(object.c(), pd) != pd {
        return Err(refuse!(EINVAL, "the buffer was allocated in another PD than it is registered in"));
    }
    let Pages { base, size, .. } = object.inner;
    match addr.addr().checked_sub(base.addr().get()) {
        Some(offset) if offset <= size && length <= size - offset => Ok(()),
        _ => Err(refuse!(EINVAL, "{length} bytes at {addr:p} are not all in the buffer of {size} bytes at {base:p}")),
    }
}
