//! Addresses that the program passes as `struct sockaddr`. The principal function is [`read`].

use crate::entry::{Outcome, refuse};
use cm::Address;
use std::ffi::c_void;

/// The address behind a program's pointer: `None` for NULL, EINVAL for an unknown family.
///
/// # Safety
/// `address` is NULL or a valid `struct sockaddr` as long as its family says.
pub(crate) unsafe fn read(address: *const c_void) -> Outcome<Option<Address>> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: every `struct sockaddr` begins with its family.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    let unknown = || refuse!(EINVAL, "the connection manager does not support addresses of family {family}");
    let len = Address::len_of(family).ok_or_else(unknown)?;
    // SAFETY: as long as its family says, by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) };
    Ok(Address::from_bytes(bytes))
}
