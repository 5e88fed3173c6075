//! Thread domains and parent domains, with the program's own allocators. The principal type is
//! [`TdObject`].

use crate::context::OpenContext;
use crate::entry::{self, refuse};
use crate::layout::{Context, Op, ParentDomainInitAttr, Pd, Td, TdInitAttr};
use crate::object::{Object, get};
use crate::pd::PdObject;
use abi::errno::Errno;
use engine::{Allocator, Error, Lender, Purpose, Region, Td as EngineTd};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `struct ibv_td` and the engine's thread domain.
pub(crate) type TdObject = Object<Td, Arc<EngineTd>>;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `_PD_CONTEXT`.
const ALLOCATORS: u32 = 1;
const PD_CONTEXT: u32 = 2;
/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC`: permission to allocate memory outside
/// a confidential guest. A device that does not report `IBV_DEVICE_CC_DMA_BOUNCE` does not need it,
/// but accepts it.
const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 4;
/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// The alignment of queues.
const PAGE: usize = 4096;
/// The upper half of a resource type: the owner of the numbers in the lower half. `softhca` is not
/// a vendor, so it uses its own letters.
const RESOURCES: u64 = 0x0053_4843 << 32;

type Alloc = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut Pd, *mut c_void, *mut c_void, u64);

/// The program's two functions.
#[derive(Debug)]
struct Callbacks {
    alloc: Alloc,
    free: Free,
    /// Set when the domain has its address, before any object is made in it.
    pd: AtomicPtr<Pd>,
    context: AtomicPtr<c_void>,
}

/// Memory from the program, for one purpose.
#[derive(Debug)]
struct Lent {
    by: Arc<Callbacks>,
    resource: u64,
}

struct Asked(Arc<Callbacks>);

impl Callbacks {
    fn domain(&self) -> (*mut Pd, *mut c_void) {
        (self.pd.load(Ordering::Relaxed), self.context.load(Ordering::Relaxed))
    }
}

impl Allocator for Asked {
    fn allocate(&self, len: usize, purpose: Purpose) -> engine::Result<Option<Region>> {
        let len = len.next_multiple_of(PAGE);
        let resource = RESOURCES | purpose as u64;
        let (pd, context) = self.0.domain();
        // SAFETY: the program's function, called as `verbs.h` declares it.
        let given = unsafe { (self.0.alloc)(pd, context, len, PAGE, resource) };
        if given.addr() == USE_DEFAULT {
            return Ok(None);
        }
        let Some(base) = NonNull::new(given.cast::<u8>()) else {
            return Err(Error::new(Errno::ENOMEM, "the program's allocator gave no memory for a queue"));
        };
        let lender = Box::new(Lent { by: Arc::clone(&self.0), resource });
        if !base.addr().get().is_multiple_of(8) {
            lender.take_back(base);
            let reason = format!("the program's allocator gave memory at {base:p}, which is not aligned");
            return Err(Error::new(Errno::EINVAL, reason));
        }
        // SAFETY: the program promises that these bytes belong to the queue until they are freed;
        // the alignment was checked above.
        Ok(Some(unsafe { Region::lent(base, len, lender) }))
    }
}

impl Lender for Lent {
    fn take_back(&self, base: NonNull<u8>) {
        let (pd, context) = self.by.domain();
        // SAFETY: the program's function, called as `verbs.h` declares it, with memory from the
        // program's `alloc`.
        unsafe { (self.by.free)(pd, context, base.as_ptr().cast(), self.resource) };
    }
}

/// `alloc_td` of the extended context.
///
/// # Safety
/// `context` is open, `init` valid.
pub(crate) unsafe extern "C" fn alloc_td(context: *mut Context, init: *mut TdInitAttr) -> *mut Td {
    entry::pointer("ibv_alloc_td", || {
        entry::not_null(init)?;
        let mask = get!(init, comp_mask);
        if mask != 0 {
            return Err(refuse!(EOPNOTSUPP, "ibv_alloc_td: comp_mask {mask:#x} has unknown bits"));
        }
        // SAFETY: the caller's promise.
        let td = unsafe { OpenContext::of(context) }?.engine.alloc_td()?;
        Ok(TdObject::create(Td { context }, td).cast())
    })
}

/// `dealloc_td` of the extended context.
///
/// # Safety
/// `td` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut Td) -> c_int {
    // SAFETY: the caller's promise.
    entry::code("ibv_dealloc_td", || unsafe { TdObject::end(td, |object| Ok(object.inner.dealloc()?)) })
}

/// `alloc_parent_domain` of the extended context. `ibv_dealloc_pd` frees the domain.
///
/// # Safety
/// `context` is open, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn alloc(context: *mut Context, init: *mut ParentDomainInitAttr) -> *mut Pd {
    entry::pointer("ibv_alloc_parent_domain", || {
        entry::not_null(init)?;
        let mask = get!(init, comp_mask);
        if mask & !(ALLOCATORS | PD_CONTEXT | ALLOW_CC_UNPROTECTED_ALLOC) != 0 {
            return Err(refuse!(EOPNOTSUPP, "ibv_alloc_parent_domain: comp_mask {mask:#x} has unknown bits"));
        }
        let (pd, td) = (get!(init, pd), get!(init, td));
        // SAFETY: the caller's promise.
        let of = unsafe { PdObject::live(pd) }?;
        if get!(pd, context) != context {
            return Err(refuse!(EINVAL, "ibv_alloc_parent_domain: the PD belongs to a different device context"));
        }
        // SAFETY: the caller's promise.
        let thread = if td.is_null() { None } else { Some(&unsafe { TdObject::live(td) }?.inner) };
        let callbacks = if mask & ALLOCATORS != 0 {
            let (alloc, free): (Op, Op) = (get!(init, alloc), get!(init, free));
            entry::not_null(alloc)?;
            entry::not_null(free)?;
            let given = if mask & PD_CONTEXT != 0 { get!(init, pd_context) } else { std::ptr::null_mut() };
            Some(Arc::new(Callbacks {
                // SAFETY: not NULL, and of this signature by the declaration in `verbs.h`.
                alloc: unsafe { std::mem::transmute::<Op, Alloc>(alloc) },
                // SAFETY: as above.
                free: unsafe { std::mem::transmute::<Op, Free>(free) },
                pd: AtomicPtr::default(),
                context: AtomicPtr::new(given),
            }))
        } else {
            None
        };
        let allocator = callbacks.clone().map(|callbacks| Box::new(Asked(callbacks)) as Box<dyn Allocator>);
        let parent = of.inner.parent(thread, allocator)?;
        let made: *mut Pd = PdObject::create(Pd { context, handle: get!(pd, handle) }, parent).cast();
        if let Some(callbacks) = callbacks {
            callbacks.pd.store(made, Ordering::Relaxed);
        }
        Ok(made)
    })
}
