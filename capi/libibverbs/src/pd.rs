//! Protection domains. The principal type is [`PdObject`].

use crate::context::OpenContext;
use crate::entry::{self, refuse};
use crate::layout::{Context, Pd};
use crate::object::{Object, get};
use engine::Pd as EnginePd;
use std::ffi::c_int;
use std::sync::Arc;

/// `struct ibv_pd` and the engine's PD.
pub(crate) type PdObject = Object<Pd, Arc<EnginePd>>;

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn alloc(context: *mut Context) -> *mut Pd {
    entry::pointer("ibv_alloc_pd", || {
        // SAFETY: the caller's promise.
        let open = unsafe { OpenContext::of(context) }?;
        let pd = open.engine.alloc_pd()?;
        let handle = pd.handle();
        Ok(PdObject::create(Pd { context, handle }, pd).cast())
    })
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// `pd` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn dealloc(pd: *mut Pd) -> c_int {
    let work = |object: &PdObject| {
        // SAFETY: the program's PD names an open context.
        let open = unsafe { OpenContext::of(get!(object.c(), context)) }?;
        if !open.engine.has_pd(&object.inner) {
            return Err(refuse!(ENOENT, "ibv_dealloc_pd: the PD belongs to another context than it names"));
        }
        Ok(object.inner.dealloc()?)
    };
    // SAFETY: the caller's promise.
    entry::code("ibv_dealloc_pd", || unsafe { PdObject::end(pd, work) })
}
