//! Sharing a device, its PDs, MRs and device memory between processes: not offered, so there is never anything to give back.

use crate::entry::{self, refuse};
use crate::layout::{Context, Mr, Pd};
use std::ffi::{c_int, c_void};

/// `ibv_import_device`.
pub(crate) extern "C" fn import_device(_cmd_fd: c_int) -> *mut Context {
    entry::pointer("ibv_import_device", || {
        Err(refuse!(EOPNOTSUPP, "sharing a device between processes is not offered"))
    })
}

/// `ibv_import_pd`.
pub(crate) extern "C" fn import_pd(_context: *mut Context, _handle: u32) -> *mut Pd {
    entry::pointer("ibv_import_pd", || Err(refuse!(EOPNOTSUPP, "sharing a device between processes is not offered")))
}

/// `ibv_import_mr`.
pub(crate) extern "C" fn import_mr(_pd: *mut Pd, _handle: u32) -> *mut Mr {
    entry::pointer("ibv_import_mr", || Err(refuse!(EOPNOTSUPP, "sharing a device between processes is not offered")))
}

/// `ibv_import_dm`.
pub(crate) extern "C" fn import_dm(_context: *mut Context, _handle: u32) -> *mut c_void {
    entry::pointer("ibv_import_dm", || Err(refuse!(EOPNOTSUPP, "sharing a device between processes is not offered")))
}

/// `ibv_unimport_pd`, `ibv_unimport_mr`, `ibv_unimport_dm`.
pub(crate) extern "C" fn unimport(_imported: *mut c_void) {}
