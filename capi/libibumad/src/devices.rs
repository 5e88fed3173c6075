//! The exported functions about devices and ports. What the structs contain is in
//! [`crate::describe`].

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::entry::{self, Outcome, Refusal};
use crate::layout::{Ca, NAME, Port, text};
use crate::{describe, sysfs};

const NO_DEVICE: Refusal = Refusal(libc::ENODEV);
const INVALID: Refusal = Refusal(libc::EINVAL);

/// A negative errno or the result.
pub(crate) fn negative(name: &'static str, body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    entry::or_negative(name, || body().map(|value| value as isize)) as c_int
}

/// A name that a program passed; `None` for NULL and for an empty one.
///
/// # Safety
/// NULL or a C string.
pub(crate) unsafe fn named<'a>(name: *const c_char) -> Outcome<Option<&'a str>> {
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NO_DEVICE)?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

pub(crate) extern "C" fn init() -> c_int {
    0
}

pub(crate) extern "C" fn done() -> c_int {
    0
}

/// `umad_get_cas_names`.
pub(crate) unsafe extern "C" fn names(cas: *mut [c_char; NAME], max: c_int) -> c_int {
    negative("umad_get_cas_names", || {
        let room = usize::try_from(max).map_err(|_| INVALID)?;
        let names = sysfs::devices();
        for (index, name) in names.iter().take(room).enumerate() {
            // SAFETY: the program promises room for `max` names.
            unsafe { cas.add(index).write(text(name)) };
        }
        Ok(names.len().min(room) as c_int)
    })
}

/// `umad_get_ca_portguids`: place 0 is for port 0, which only switches have.
pub(crate) unsafe extern "C" fn port_guids(name: *const c_char, guids: *mut u64, max: c_int) -> c_int {
    negative("umad_get_ca_portguids", || {
        // SAFETY: the program passes NULL or a C string.
        let (name, _) = sysfs::resolve(unsafe { named(name) }?, 0).ok_or(NO_DEVICE)?;
        let mut ca = describe::ca(&name).ok_or(NO_DEVICE)?;
        let count = ca.numports.saturating_add(1);
        let fits = count <= max;
        for (index, port) in ca.ports.iter().take(count as usize).enumerate().filter(|_| fits && !guids.is_null()) {
            // SAFETY: the program promises room for `max` GUIDs. The port is NULL or this
            // function's.
            unsafe { guids.add(index).write(port.as_ref().map_or(0, |port| port.port_guid)) };
        }
        free_ports(&mut ca);
        if fits { Ok(count) } else { Err(Refusal(libc::ENOMEM)) }
    })
}

/// `umad_get_ca`.
pub(crate) unsafe extern "C" fn get_ca(name: *const c_char, ca: *mut Ca) -> c_int {
    negative("umad_get_ca", || {
        // SAFETY: the program passes NULL or a C string.
        let (name, _) = sysfs::resolve(unsafe { named(name) }?, 0).ok_or(Refusal(libc::ENOENT))?;
        let filled = describe::ca(&name).ok_or(Refusal(libc::ENOENT))?;
        // SAFETY: the program passes memory for the struct.
        unsafe { ca.write(filled) };
        Ok(0)
    })
}

/// `umad_get_port`.
pub(crate) unsafe extern "C" fn get_port(name: *const c_char, number: c_int, port: *mut Port) -> c_int {
    negative("umad_get_port", || {
        let number = u32::try_from(number).map_err(|_| INVALID)?;
        // SAFETY: the program passes NULL or a C string.
        let (name, number) = sysfs::resolve(unsafe { named(name) }?, number).ok_or(Refusal(libc::EIO))?;
        let filled = describe::port(&name, number).ok_or(Refusal(libc::EIO))?;
        // SAFETY: the program passes memory for the struct.
        unsafe { port.write(filled) };
        Ok(0)
    })
}

/// `umad_release_ca`.
pub(crate) unsafe extern "C" fn release_ca(ca: *mut Ca) -> c_int {
    // SAFETY: the program passes NULL or a struct that `umad_get_ca` filled.
    match unsafe { ca.as_mut() } {
        Some(ca) => {
            free_ports(ca);
            0
        }
        None => -libc::ENODEV,
    }
}

/// `umad_release_port`.
pub(crate) unsafe extern "C" fn release_port(port: *mut Port) -> c_int {
    // SAFETY: the program passes NULL or a struct that `umad_get_port` filled.
    match unsafe { port.as_mut() } {
        Some(port) => {
            free_pkeys(port);
            0
        }
        None => -libc::ENODEV,
    }
}

fn free_pkeys(port: &mut Port) {
    // SAFETY: memory of `calloc`, or NULL; nobody else has it.
    unsafe { libc::free(std::mem::replace(&mut port.pkeys, null_mut()).cast()) };
    port.pkeys_size = 0;
}

fn free_ports(ca: &mut Ca) {
    for place in &mut ca.ports {
        let port = std::mem::replace(place, null_mut());
        // SAFETY: NULL, or a port that `describe` made.
        if let Some(port) = unsafe { port.as_mut() } {
            free_pkeys(port);
        }
        // SAFETY: memory of `calloc`, or NULL; nobody else has it.
        unsafe { libc::free(port.cast()) };
    }
}

/// `umad_get_issm_path`.
pub(crate) unsafe extern "C" fn manager_path(name: *const c_char, port: c_int, path: *mut c_char, max: c_int) -> c_int {
    negative("umad_get_issm_path", || {
        let port = u32::try_from(port).map_err(|_| INVALID)?;
        // SAFETY: the program passes NULL or a C string.
        let (name, port) = sysfs::resolve(unsafe { named(name) }?, port).ok_or(NO_DEVICE)?;
        let number = sysfs::file(&name, port).ok_or(INVALID)?;
        let text = format!("/dev/infiniband/issm{number}");
        let length = text.len().min(usize::try_from(max).ok().and_then(|max| max.checked_sub(1)).ok_or(INVALID)?);
        // SAFETY: the program promises room for `max` bytes.
        unsafe {
            path.copy_from_nonoverlapping(text.as_ptr().cast(), length);
            path.add(length).write(0);
        }
        Ok(0)
    })
}
