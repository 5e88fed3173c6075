//! The exported functions that read and change a message in the program's memory: the header
//! [`UserMad`], and the MAD behind it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use abi::Record;
use abi::umad::UserMad;

/// Where `ib_mad_addr_t` is in the header.
const ADDRESS: usize = 20;
/// How much of the MAD [`dump`] shows.
const SHOWN: usize = 256;

/// The header of the program's message.
///
/// # Safety
/// A message that nothing else uses.
unsafe fn header<'a>(umad: *mut c_void) -> &'a mut UserMad {
    // SAFETY: the caller's promise; `umad_alloc` aligns it.
    unsafe { &mut *umad.cast::<UserMad>() }
}

/// A copy of a program's `ib_mad_addr_t`, in a header.
unsafe fn copied(address: *const c_void) -> UserMad {
    let mut bytes = [0; size_of::<UserMad>()];
    let place = &mut bytes[ADDRESS..];
    // SAFETY: the program passes a whole address.
    unsafe { place.as_mut_ptr().copy_from_nonoverlapping(address.cast(), place.len()) };
    UserMad::read_zero_extended(&bytes)
}

/// `umad_get_mad`.
pub(crate) unsafe extern "C" fn mad(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(size_of::<UserMad>())
}

/// `umad_get_mad_addr`.
pub(crate) unsafe extern "C" fn address(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(ADDRESS)
}

/// `umad_size`.
pub(crate) extern "C" fn size() -> usize {
    size_of::<UserMad>()
}

/// `umad_status`.
pub(crate) unsafe extern "C" fn status(umad: *mut c_void) -> c_int {
    // SAFETY: the program's message.
    unsafe { header(umad) }.status.cast_signed()
}

/// `umad_set_grh`: the flow label of `address` is in host byte order.
pub(crate) unsafe extern "C" fn set_grh(umad: *mut c_void, address: *const c_void) -> c_int {
    // SAFETY: the program's message.
    let header = unsafe { header(umad) };
    header.grh_present = (!address.is_null()).into();
    if !address.is_null() {
        // SAFETY: the program passes a whole address.
        let from = unsafe { copied(address) };
        header.gid = from.gid;
        header.gid_index = from.gid_index;
        header.hop_limit = from.hop_limit;
        header.traffic_class = from.traffic_class;
        header.flow_label = from.flow_label.to_be();
    }
    0
}

/// `umad_set_addr_net`.
pub(crate) unsafe extern "C" fn set_address_net(umad: *mut c_void, lid: u16, qpn: u32, sl: c_int, qkey: u32) -> c_int {
    // SAFETY: the program's message.
    let header = unsafe { header(umad) };
    (header.lid, header.qpn, header.sl, header.qkey) = (lid, qpn, sl as u8, qkey);
    0
}

/// `umad_set_addr`.
pub(crate) unsafe extern "C" fn set_address(
    umad: *mut c_void,
    lid: c_int,
    qpn: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let big = |number: c_int| number.cast_unsigned().to_be();
    // SAFETY: the program's message.
    unsafe { set_address_net(umad, (lid as u16).to_be(), big(qpn), sl, big(qkey)) }
}

/// `umad_set_pkey`.
pub(crate) unsafe extern "C" fn set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    // SAFETY: the program's message.
    unsafe { header(umad) }.pkey_index = index as u16;
    0
}

/// `umad_get_pkey`.
pub(crate) unsafe extern "C" fn pkey(umad: *mut c_void) -> c_int {
    // SAFETY: the program's message.
    unsafe { header(umad) }.pkey_index.into()
}

/// `umad_debug`: keeps the level, and says nothing more at any level.
pub(crate) extern "C" fn debug(level: c_int) -> c_int {
    static LEVEL: AtomicI32 = AtomicI32::new(0);
    if level >= 0 {
        LEVEL.store(level, Ordering::Relaxed);
    }
    LEVEL.load(Ordering::Relaxed)
}

fn show_address(header: &UserMad) {
    engine::reason::say(format_args!(
        "MAD address: LID {}, QPN {:#x}, Q_Key {:#x}, SL {}, P_Key index {}, GRH {}, GID {:02x?}",
        u16::from_be(header.lid),
        u32::from_be(header.qpn),
        u32::from_be(header.qkey),
        header.sl,
        header.pkey_index,
        header.grh_present,
        header.gid,
    ));
}

/// `umad_addr_dump`.
pub(crate) unsafe extern "C" fn dump_address(address: *const c_void) {
    // SAFETY: the program passes a whole address.
    show_address(&unsafe { copied(address) });
}

/// `umad_dump`: the header and the first 256 bytes of the MAD.
pub(crate) unsafe extern "C" fn dump(umad: *mut c_void) {
    // SAFETY: the program's message.
    let header = unsafe { header(umad) };
    engine::reason::say(format_args!(
        "MAD of agent {}: status {}, timeout {} ms, retries {}",
        header.id, header.status, header.timeout_ms, header.retries
    ));
    show_address(header);
    let mad = umad.cast::<u8>().wrapping_add(size_of::<UserMad>());
    // SAFETY: a message has room for a whole MAD.
    let mad = unsafe { std::slice::from_raw_parts(mad, SHOWN) };
    engine::reason::say(format_args!("MAD: {mad:02x?}"));
}
