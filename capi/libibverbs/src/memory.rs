//! Memory regions: registering, changing, deregistering. The principal type is [`MrObject`].

use crate::buffer::{self, Buf};
use crate::dmah::{self, Hints};
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{Mr, MrInitAttr, Pd, Sge};
use crate::object::{Object, get, set};
use crate::pd::PdObject;
use abi::mr::access::ON_DEMAND;
use engine::Mr as EngineMr;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `struct ibv_mr` and the engine's MR.
type MrObject = Object<Mr, Region>;

/// A region, and its share of the DMA handle that it was registered with.
struct Region {
    mr: Arc<EngineMr>,
    _hints: Option<Arc<Hints>>,
}

/// Bits of `ibv_mr_init_attr.comp_mask`: which fields are valid.
mod field {
    pub(super) const IOVA: u64 = 1;
    pub(super) const ADDR: u64 = 2;
    pub(super) const FD: u64 = 4;
    pub(super) const FD_OFFSET: u64 = 8;
    pub(super) const DMAH: u64 = 16;
    pub(super) const BUF: u64 = 32;
    pub(super) const ALL: u64 = 63;
}

/// `IBV_REREG_MR_CHANGE_TRANSLATION`, `IBV_REREG_MR_CHANGE_PD`, and all existing flags.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;
const CHANGE_ANY: c_int = 7;

/// `IBV_REREG_MR_ERR_INPUT`: refused before anything was changed.
const ERR_INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`: the device refused.
const ERR_CMD: c_int = -4;

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn reg(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_reg_mr", || unsafe {
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned(), None)
    })
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn reg_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_reg_mr_iova", || unsafe { register(pd, addr, length, iova, access.cast_unsigned(), None) })
}

/// `ibv_reg_mr_iova2`: as [`reg_iova`], with flags that a device may ignore. The engine ignores
/// them.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn reg_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_reg_mr_iova2", || unsafe { register(pd, addr, length, iova, access, None) })
}

/// `ibv_reg_dmabuf_mr`: refused, because there is no device memory to share.
pub(crate) extern "C" fn reg_dmabuf(
    _pd: *mut Pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut Mr {
    entry::pointer("ibv_reg_dmabuf_mr", || Err(no_dmabuf()))
}

fn no_dmabuf() -> Refusal {
    refuse!(EOPNOTSUPP, "dma-buf memory is not offered")
}

/// `ibv_reg_mr_ex`: any of the other ways to register, depending on the valid fields.
///
/// # Safety
/// `pd` is live, `attr` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn reg_ex(pd: *mut Pd, attr: *mut MrInitAttr) -> *mut Mr {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_reg_mr_ex", || unsafe { register_ex(pd, attr) })
}

/// # Safety
/// As [`reg_ex`].
unsafe fn register_ex(pd: *mut Pd, attr: *mut MrInitAttr) -> Outcome<*mut Mr> {
    entry::not_null(attr)?;
    // SAFETY: the caller's promise.
    unsafe { PdObject::live(pd) }?;
    let mask = get!(attr, comp_mask);
    let (length, access) = (get!(attr, length), get!(attr, access).cast_unsigned());
    let has = |fields: u64| mask & fields == fields;
    let wrong = || refuse!(EINVAL, "ibv_reg_mr_ex: the fields of comp_mask {mask:#x} do not go together");
    if mask & !field::ALL != 0 {
        return Err(refuse!(EOPNOTSUPP, "ibv_reg_mr_ex: comp_mask {mask:#x} has unknown bits"));
    }
    if has(field::FD) {
        let whole = has(field::FD_OFFSET | field::IOVA) && !has(field::ADDR) && !has(field::BUF);
        return Err(if whole { no_dmabuf() } else { wrong() });
    }
    if !has(field::ADDR) || has(field::FD_OFFSET) {
        return Err(wrong());
    }
    let addr = get!(attr, addr);
    if has(field::BUF) {
        // SAFETY: the caller's promise.
        unsafe { buffer::check_range(pd, get!(attr, buf).cast::<Buf>(), addr, length) }?;
    }
    // SAFETY: the caller's promise.
    let share = || unsafe { dmah::share(get!(attr, dmah), get!(pd, context)) };
    let hints = has(field::DMAH).then(share).transpose()?;
    if hints.is_some() && access & ON_DEMAND != 0 {
        return Err(refuse!(EOPNOTSUPP, "ibv_reg_mr_ex: paging on demand with a DMA handle"));
    }
    let iova = if has(field::IOVA) { get!(attr, iova) } else { addr.addr() as u64 };
    // SAFETY: the caller's promise.
    unsafe { register(pd, addr, length, iova, access, hints) }
}

/// `alloc_null_mr` of the extended context: the MR covers all addresses, and only its lkey is
/// valid.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn alloc_null(pd: *mut Pd) -> *mut Mr {
    entry::pointer("ibv_alloc_null_mr", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::live(pd) }?;
        let mr = domain.inner.null_mr()?;
        let context = get!(domain.c(), context);
        let (handle, lkey) = (mr.handle(), mr.lkey());
        let c = Mr { context, pd, addr: std::ptr::null_mut(), length: usize::MAX, handle, lkey, rkey: 0 };
        Ok(MrObject::create(c, Region { mr, _hints: None }).cast())
    })
}

/// `advise_mr` of the extended context.
///
/// # Safety
/// `pd` is live, and the list has `count` elements.
pub(crate) unsafe extern "C" fn advise(pd: *mut Pd, advice: c_uint, flags: u32, list: *mut Sge, count: u32) -> c_int {
    entry::code("ibv_advise_mr", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::live(pd) }?;
        if count > 0 {
            entry::not_null(list)?;
        }
        let element = |index: u32| {
            // SAFETY: the caller's list.
            let Sge { addr, length, lkey } = unsafe { list.wrapping_add(index as usize).read_unaligned() };
            abi::post::Sge { addr, length, lkey }
        };
        let ranges: Vec<abi::post::Sge> = (0..count).map(element).collect();
        Ok(domain.inner.advise(advice, flags, &ranges)?)
    })
}

/// `ibv_rereg_mr`: returns 0, or a value of `enum ibv_rereg_mr_err_code` with `errno`.
///
/// # Safety
/// `mr` is live, and so is `pd` if the flags say that it is valid.
pub(crate) unsafe extern "C" fn rereg(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    entry::value("ibv_rereg_mr", || {
        if mr.is_null() || flags == 0 || flags & !CHANGE_ANY != 0 {
            entry::set_errno(refuse!(EINVAL, "ibv_rereg_mr: MR {mr:p}, flags {flags:#x}"));
            return ERR_INPUT;
        }
        if access != 0 && flags & CHANGE_ACCESS == 0 {
            entry::set_errno(refuse!(EINVAL, "ibv_rereg_mr: access {access:#x} without IBV_REREG_MR_CHANGE_ACCESS"));
            return ERR_INPUT;
        }
        if (flags & CHANGE_TRANSLATION != 0 && (addr.is_null() || length == 0))
            || (flags & CHANGE_PD != 0 && pd.is_null())
        {
            entry::set_errno(refuse!(
                EINVAL,
                "ibv_rereg_mr: flags {flags:#x} with address {addr:p}, length {length}, PD {pd:p}"
            ));
            return ERR_INPUT;
        }
        // SAFETY: the caller's promise; pointers that must not be NULL were checked.
        match unsafe { change(mr, flags, pd, addr, length, access) } {
            Ok(()) => 0,
            Err(refusal) => {
                entry::set_errno(refusal);
                ERR_CMD
            }
        }
    })
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// `mr` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dereg(mr: *mut Mr) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_dereg_mr", || unsafe { MrObject::end(mr, |object| Ok(object.inner.mr.dereg()?)) })
}

/// Makes the C object of an MR on a live PD.
pub(crate) fn create(pd: *mut Pd, addr: *mut c_void, length: usize, handle: u32, mr: Arc<EngineMr>) -> *mut Mr {
    create_with(pd, addr, length, handle, Region { mr, _hints: None })
}

fn create_with(pd: *mut Pd, addr: *mut c_void, length: usize, handle: u32, region: Region) -> *mut Mr {
    let (lkey, rkey) = (region.mr.lkey(), region.mr.rkey());
    MrObject::create(Mr { context: get!(pd, context), pd, addr, length, handle, lkey, rkey }, region).cast()
}

/// # Safety
/// `pd` is NULL or live.
pub(crate) unsafe fn register(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
    hints: Option<Arc<Hints>>,
) -> Outcome<*mut Mr> {
    // SAFETY: the caller's promise.
    let domain = unsafe { PdObject::live(pd) }?;
    // The memory is the program's. Exposing its address lets the engine's copies make a pointer
    // from it.
    let mr = domain.inner.reg_mr(addr.expose_provenance() as u64, length as u64, iova, access)?;
    Ok(create_with(pd, addr, length, mr.handle(), Region { mr, _hints: hints }))
}

/// # Safety
/// `mr` is live, and so is `pd` if the flags say that it is valid.
unsafe fn change(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let region = &unsafe { MrObject::live(mr) }?.inner.mr;
    // SAFETY: the caller's promise.
    let domain = if flags & CHANGE_PD != 0 { Some(unsafe { PdObject::live(pd) }?) } else { None };
    let start = addr.expose_provenance() as u64;
    let domain = domain.map(|domain| &domain.inner);
    region.rereg(flags.cast_unsigned(), domain, start, length as u64, access.cast_unsigned())?;
    if flags & CHANGE_TRANSLATION != 0 {
        set!(mr, addr, addr);
        set!(mr, length, length);
    }
    if flags & CHANGE_PD != 0 {
        set!(mr, pd, pd);
    }
    set!(mr, lkey, region.lkey());
    set!(mr, rkey, region.rkey());
    Ok(())
}
