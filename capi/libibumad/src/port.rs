//! The exported functions that open and close ports and register agents on them.

use std::ffi::{c_char, c_int};

use abi::Record;
use abi::umad::{RegisterAgent, RegisterAgent2, ioctl};

use crate::devices::{named, negative};
use crate::entry::{self, Outcome, Refusal};
use crate::layout::Registration;
use crate::{file, sysfs};

const INVALID: Refusal = Refusal(libc::EINVAL);
/// Classes whose MADs contain the vendor's OUI.
const VENDOR: std::ops::RangeInclusive<u8> = 0x30..=0x4f;
/// The OUI of agents of these classes that name none.
const OPENIB: [u8; 3] = [0x00, 0x14, 0x05];

/// `umad_open_port`.
pub(crate) unsafe extern "C" fn open(name: *const c_char, port: c_int) -> c_int {
    // SAFETY: the program passes NULL or a C string.
    negative("umad_open_port", || opened(unsafe { named(name) }?, port, |_, _| true))
}

/// `umad_open_smi_port`: a port that the program does not choose has QP 0.
pub(crate) unsafe extern "C" fn open_smi(name: *const c_char, port: c_int) -> c_int {
    negative("umad_open_smi_port", || {
        // SAFETY: the program passes NULL or a C string.
        let name = unsafe { named(name) }?;
        let is_chosen = name.is_some() && port != 0;
        opened(name, port, |name, port| is_chosen || !sysfs::is_smi_disabled(name, port))
    })
}

fn opened(name: Option<&str>, port: c_int, may: impl Fn(&str, u32) -> bool) -> Outcome<c_int> {
    let port = u32::try_from(port).map_err(|_| INVALID)?;
    // The real library looks for the file of a port that is named without looking at the port.
    let none = if name.is_some() && port != 0 { INVALID } else { Refusal(libc::ENODEV) };
    let (name, port) = sysfs::resolve_among(name, port, may).ok_or(none)?;
    let number = sysfs::file(&name, port).ok_or(INVALID)?;
    file::open(number).map_err(|_| Refusal(libc::EIO))
}

/// `umad_close_port`.
pub(crate) extern "C" fn close(port: c_int) -> c_int {
    negative("umad_close_port", || file::close(port).map(|()| 0))
}

/// `umad_get_fd`.
pub(crate) extern "C" fn fd(port: c_int) -> c_int {
    port
}

/// The QP of a class: 0 for subnet management, otherwise 1.
fn qpn(class: u8) -> u8 {
    u8::from(!matches!(class, 0x01 | 0x81))
}

fn registered(port: c_int, request: RegisterAgent) -> Result<c_int, Refusal> {
    let mut argument = request.bytes().to_vec();
    file::control(port, ioctl::REGISTER_AGENT, &mut argument).map_err(|_| Refusal(libc::EPERM))?;
    let answer = RegisterAgent::read(&argument).ok_or(Refusal(libc::EPERM))?;
    Ok(answer.id.cast_signed())
}

/// The program's method mask; no methods for NULL.
unsafe fn methods(mask: *const u64) -> [u32; 4] {
    if mask.is_null() {
        return [0; 4];
    }
    // SAFETY: the program passes 128 bits.
    let [low, high] = unsafe { mask.cast::<[u64; 2]>().read_unaligned() };
    [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
}

/// `umad_register`.
pub(crate) unsafe extern "C" fn register(
    port: c_int,
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    mask: *const u64,
) -> c_int {
    negative("umad_register", || {
        let mgmt_class = class as u8;
        registered(
            port,
            RegisterAgent {
                // SAFETY: the program passes NULL or a mask.
                method_mask: unsafe { methods(mask) },
                qpn: qpn(mgmt_class),
                mgmt_class,
                mgmt_class_version: version as u8,
                oui: OPENIB,
                rmpp_version,
                ..RegisterAgent::default()
            },
        )
    })
}

/// `umad_register_oui`.
pub(crate) unsafe extern "C" fn register_oui(
    port: c_int,
    class: c_int,
    rmpp_version: u8,
    oui: *const [u8; 3],
    mask: *const u64,
) -> c_int {
    negative("umad_register_oui", || {
        let mgmt_class = u8::try_from(class).ok().filter(|class| VENDOR.contains(class)).ok_or(INVALID)?;
        // SAFETY: the program passes an OUI.
        let oui = *unsafe { oui.as_ref() }.ok_or(INVALID)?;
        registered(
            port,
            RegisterAgent {
                // SAFETY: the program passes NULL or a mask.
                method_mask: unsafe { methods(mask) },
                qpn: 1,
                mgmt_class,
                mgmt_class_version: 1,
                oui,
                rmpp_version,
                ..RegisterAgent::default()
            },
        )
    })
}

/// `umad_register2`: 0 or a positive errno. After EINVAL the flags are 0, as in rdma-core.
pub(crate) unsafe extern "C" fn register2(port: c_int, attr: *mut Registration, id: *mut u32) -> c_int {
    entry::code("umad_register2", || {
        // SAFETY: the program passes a struct and a place for the id, or NULL.
        let (attr, id) = unsafe { (attr.as_mut(), id.as_mut()) };
        let (attr, id) = (attr.ok_or(INVALID)?, id.ok_or(INVALID)?);
        if VENDOR.contains(&attr.mgmt_class) && (attr.oui == 0 || attr.oui > 0xff_ffff) {
            return Err(INVALID);
        }
        let request = RegisterAgent2 {
            qpn: qpn(attr.mgmt_class).into(),
            mgmt_class: attr.mgmt_class,
            mgmt_class_version: attr.mgmt_class_version,
            flags: attr.flags,
            method_mask: attr.method_mask,
            oui: attr.oui,
            rmpp_version: attr.rmpp_version,
            ..RegisterAgent2::default()
        };
        let mut argument = request.bytes().to_vec();
        let called = file::control(port, ioctl::REGISTER_AGENT2, &mut argument);
        let answer = RegisterAgent2::read(&argument).unwrap_or_default();
        match called {
            Ok(()) => *id = answer.id,
            Err(INVALID) => attr.flags = 0,
            Err(_) => {}
        }
        called
    })
}

/// `umad_unregister`.
pub(crate) extern "C" fn unregister(port: c_int, id: c_int) -> c_int {
    entry::or_minus_one("umad_unregister", || {
        let mut argument = id.to_ne_bytes();
        file::control(port, ioctl::UNREGISTER_AGENT, &mut argument).map(|()| 0)
    })
}
