//! DMA handles: a program's hints to a device about how it will use the memory of a region (a
//! processor, hints for the bus). A software device has no bus. It offers the handle without hints,
//! and refuses hints that it would not follow. The principal type is [`Hints`].

use crate::context::OpenContext;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Context, Dmah, DmahInitAttr};
use crate::object::{Named, Object, get};
use std::ffi::c_int;
use std::sync::Arc;

/// `struct ibv_dmah`, and the value that every region registered with it shares.
type DmahObject = Object<Dmah, Arc<Hints>>;

/// The hints of a handle: none are offered.
#[derive(Debug)]
pub(crate) struct Hints;

/// `IBV_DMAH_INIT_ATTR_MASK_CPU_ID`, `_PH` and `_TPH_MEM_TYPE`.
const CPU_ID: u32 = 1;
const PH: u32 = 2;
const TPH_MEM_TYPE: u32 = 4;
/// Processing hints have two bits; memory is volatile (0) or persistent (1).
const MAX_PH: u8 = 3;
const MAX_TPH_MEM_TYPE: u8 = 1;

impl Named for Dmah {
    const NAME: &'static str = "DMA handle";

    fn name(_: *const Self) -> u32 {
        0
    }
}

/// `ibv_alloc_dmah`.
///
/// # Safety
/// `context` is open, `attr` valid.
pub(crate) unsafe extern "C" fn alloc(context: *mut Context, attr: *mut DmahInitAttr) -> *mut Dmah {
    entry::pointer("ibv_alloc_dmah", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let engine = &unsafe { OpenContext::of(context) }?.engine;
        engine.check_process()?;
        let mask = get!(attr, comp_mask);
        if mask & PH != 0 && get!(attr, ph) > MAX_PH {
            return Err(refuse!(
                EINVAL,
                "ibv_alloc_dmah: processing hints {:#x} have more than two bits",
                get!(attr, ph)
            ));
        }
        if mask & TPH_MEM_TYPE != 0 && get!(attr, tph_mem_type) > MAX_TPH_MEM_TYPE {
            return Err(refuse!(EINVAL, "ibv_alloc_dmah: memory type {} is not known", get!(attr, tph_mem_type)));
        }
        if mask & (CPU_ID | PH | TPH_MEM_TYPE) != 0 {
            return Err(refuse!(
                EOPNOTSUPP,
                "ibv_alloc_dmah: there is no bus that hints (comp_mask {mask:#x}) are for"
            ));
        }
        if mask != 0 {
            return Err(refuse!(EOPNOTSUPP, "ibv_alloc_dmah: comp_mask {mask:#x} has unknown bits"));
        }
        Ok(DmahObject::create(Dmah { context }, Arc::new(Hints)).cast())
    })
}

/// `ibv_dealloc_dmah`: fails with EBUSY while a region uses the handle.
///
/// # Safety
/// `dmah` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dealloc(dmah: *mut Dmah) -> c_int {
    entry::code("ibv_dealloc_dmah", || {
        let unused = |object: &DmahObject| match Arc::strong_count(&object.inner) - 1 {
            0 => Ok(()),
            regions => Err(refuse!(EBUSY, "ibv_dealloc_dmah: {regions} MRs have the DMA handle")),
        };
        // SAFETY: the caller's promise.
        unsafe { DmahObject::end(dmah, unused) }
    })
}

/// A share of a handle for a region of `context`.
///
/// # Safety
/// `dmah` is live.
pub(crate) unsafe fn share(dmah: *mut Dmah, context: *mut Context) -> Outcome<Arc<Hints>> {
    // SAFETY: the caller's promise.
    let object = unsafe { DmahObject::live(dmah) }?;
    if get!(object.c(), context) != context {
        return Err(refuse!(EINVAL, "the DMA handle belongs to a different device context"));
    }
    Ok(Arc::clone(&object.inner))
}
