//! Sharing a device, its PDs and MRs between processes. (Device memory is in `dm`.) An imported
//! object keeps its handle from the process that made it.

use crate::context::OpenContext;
use crate::device;
use crate::devices;
use crate::entry::{self, refuse};
use crate::layout::{Context, Mr, Pd};
use crate::memory;
use crate::pd::PdObject;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// `ibv_import_device`: this library owns `cmd_fd` from then on. The agent knows which device the
/// descriptor belongs to, so each device is asked.
///
/// # Safety
/// `cmd_fd` is a descriptor that the program gives away.
pub(crate) unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut Context {
    entry::pointer("ibv_import_device", || {
        if cmd_fd < 0 {
            return Err(refuse!(EBADF, "ibv_import_device: {cmd_fd} is no descriptor"));
        }
        let opened = device::import(devices::known_devices()?, cmd_fd)?;
        // SAFETY: the program has given the descriptor away; the context has its own copy.
        drop(unsafe { OwnedFd::from_raw_fd(cmd_fd) });
        Ok(opened)
    })
}

/// `ibv_import_pd`.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe extern "C" fn import_pd(context: *mut Context, handle: u32) -> *mut Pd {
    entry::pointer("ibv_import_pd", || {
        // SAFETY: the caller's promise.
        let open = unsafe { OpenContext::of(context) }?;
        let pd = open.engine.import_pd(handle)?;
        Ok(PdObject::create(Pd { context, handle }, pd).cast())
    })
}

/// `ibv_unimport_pd`.
///
/// # Safety
/// `pd` was imported, and is not used afterwards.
pub(crate) unsafe extern "C" fn unimport_pd(pd: *mut Pd) {
    // SAFETY: the caller's promise.
    unsafe { crate::pd::dealloc(pd) };
}

/// `ibv_import_mr`: without an address, because the address need not mean anything in this process.
///
/// # Safety
/// `pd` is live.
pub(crate) unsafe extern "C" fn import_mr(pd: *mut Pd, handle: u32) -> *mut Mr {
    entry::pointer("ibv_import_mr", || {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdObject::live(pd) }?;
        let mr = domain.inner.import_mr(handle)?;
        let length = usize::try_from(mr.length()).unwrap_or(usize::MAX);
        Ok(memory::create(pd, std::ptr::null_mut(), length, handle, mr))
    })
}

/// `ibv_unimport_mr`.
///
/// # Safety
/// `mr` was imported, and is not used afterwards.
pub(crate) unsafe extern "C" fn unimport_mr(mr: *mut Mr) {
    // SAFETY: the caller's promise.
    unsafe { memory::dereg(mr) };
}
