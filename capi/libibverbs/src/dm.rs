//! Device memory: allocating, copying, registering, importing. The memory itself belongs to the
//! agent. The principal type is [`DmObject`].

use crate::context::{self, OpenContext};
use crate::entry::{self, Outcome, refuse};
use crate::layout::{AllocDmAttr, Context, Dm, Mr, Op, Pd};
use crate::memory;
use crate::object::{Object, get};
use crate::pd::PdObject;
use engine::{Dm as EngineDm, Engine, Sink, Source};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `struct ibv_dm` and the engine's DM.
type DmObject = Object<Dm, Held>;

/// Device memory, and the engine that was opened only for it.
pub(crate) struct Held {
    dm: Arc<EngineDm>,
    /// Set in a child process, where the parent's engine cannot be used.
    engine: Option<Arc<Engine>>,
}

/// `alloc_dm` of the extended context.
///
/// # Safety
/// `context` is open, `attr` valid.
pub(crate) unsafe extern "C" fn alloc(context: *mut Context, attr: *mut AllocDmAttr) -> *mut Dm {
    entry::pointer("ibv_alloc_dm", || {
        entry::not_null(attr)?;
        let mask = get!(attr, comp_mask);
        if mask != 0 {
            return Err(refuse!(EINVAL, "ibv_alloc_dm: comp_mask {mask:#x} is not known"));
        }
        // SAFETY: the caller's promise.
        let open = unsafe { OpenContext::of(context) }?;
        // A child process may still allocate from the device that its parent has open, as with a
        // kernel.
        let own = if open.engine.check_process().is_err() { Some(context::open_again(context)?) } else { None };
        let engine = own.as_ref().unwrap_or(&open.engine);
        let dm = engine.alloc_dm(get!(attr, length) as u64, get!(attr, log_align_req));
        let dm = dm.inspect_err(|_| own.iter().for_each(Engine::close))?;
        let handle = dm.handle();
        Ok(create(context, Held { dm, engine: own }, handle))
    })
}

/// `ibv_import_dm`: names the memory by its handle in the other process.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn import(context: *mut Context, handle: u32) -> *mut Dm {
    entry::pointer("ibv_import_dm", || {
        // SAFETY: the caller's promise.
        let open = unsafe { OpenContext::of(context) }?;
        Ok(create(context, Held { dm: open.engine.import_dm(handle)?, engine: None }, handle))
    })
}

/// `ibv_unimport_dm`.
///
/// # Safety
/// `dm` was imported, and is not used afterwards.
pub(crate) unsafe extern "C" fn unimport(dm: *mut Dm) {
    // SAFETY: the caller's promise.
    unsafe { free(dm) };
}

/// `free_dm` of the extended context.
///
/// # Safety
/// `dm` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn free(dm: *mut Dm) -> c_int {
    entry::code("ibv_free_dm", || {
        let work = |Held { dm, engine }: &Held| {
            dm.free()?;
            engine.iter().for_each(Engine::close);
            Ok(())
        };
        // SAFETY: the caller's promise.
        unsafe { DmObject::end(dm, |object| work(&object.inner)) }
    })
}

/// `reg_dm_mr` of the extended context.
///
/// # Safety
/// `pd` and `dm` are live.
pub(crate) unsafe extern "C" fn register(
    pd: *mut Pd,
    dm: *mut Dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut Mr {
    entry::pointer("ibv_reg_dm_mr", || {
        // SAFETY: the caller's promise.
        let (domain, memory) = unsafe { (PdObject::live(pd)?, DmObject::live(dm)?) };
        let mr = domain.inner.reg_dm_mr(&memory.inner.dm, offset, length as u64, access)?;
        let handle = mr.handle();
        Ok(memory::create(pd, std::ptr::null_mut(), length, handle, mr))
    })
}

/// `ibv_dm_export_dmabuf_fd`: refused, because device memory is the agent's and not a dma-buf.
///
/// # Safety
/// `dm` is live.
pub(crate) unsafe extern "C" fn export(dm: *mut Dm) -> c_int {
    entry::or_minus_one("ibv_dm_export_dmabuf_fd", || {
        // SAFETY: the caller's promise.
        let _live: &DmObject = unsafe { DmObject::live(dm) }?;
        Err(refuse!(EOPNOTSUPP, "ibv_dm_export_dmabuf_fd: dma-buf memory is not offered"))
    })
}

/// `memcpy_to_dm` of the object.
pub(crate) unsafe extern "C" fn copy_to(dm: *mut Dm, offset: u64, host: *const c_void, length: usize) -> c_int {
    entry::code("ibv_memcpy_to_dm", || {
        // SAFETY: the program calls it on a live object.
        let object: Outcome<&DmObject> = unsafe { DmObject::of(dm) };
        // SAFETY: the program hands over the memory; the copy survives a fault.
        let from = unsafe { Source::new(host.cast(), length) };
        Ok(object?.inner.dm.write(offset, from)?)
    })
}

/// `memcpy_from_dm` of the object.
pub(crate) unsafe extern "C" fn copy_from(host: *mut c_void, dm: *mut Dm, offset: u64, length: usize) -> c_int {
    entry::code("ibv_memcpy_from_dm", || {
        // SAFETY: the program calls it on a live object.
        let object: Outcome<&DmObject> = unsafe { DmObject::of(dm) };
        // SAFETY: the program hands over the memory; the copy survives a fault.
        let to = unsafe { Sink::new(host.cast(), length) };
        Ok(object?.inner.dm.read(offset, &to)?)
    })
}

fn create(context: *mut Context, dm: Held, handle: u32) -> *mut Dm {
    let c = Dm { context, memcpy_to_dm: copy_to as Op, memcpy_from_dm: copy_from as Op, comp_mask: 0, handle };
    DmObject::create(c, dm).cast()
}
