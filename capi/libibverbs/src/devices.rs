//! The device list: one device for each node in the run directory, named and numbered by the
//! agent's mirror of `/sys`. Listing does not connect to the agent; opening does.
//!
//! A device that a program has seen stays in memory until the process ends, so that a pointer kept
//! after `ibv_free_device_list` still refers to a device. The principal type is [`KnownDevice`].

use crate::entry::{self, Outcome, Refusal};
use crate::layout::Device;
use crate::sysfs;
use bytemuck::Zeroable;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`: the values of every RoCE device.
const NODE_CA: u32 = 1;
const TRANSPORT_IB: u32 = 0;
/// `IBV_NODE_RNIC` and `IBV_TRANSPORT_IWARP`: those of an iWARP device.
const NODE_RNIC: u32 = 4;
pub(crate) const TRANSPORT_IWARP: u32 = 1;

/// A device as programs see it, and this library's data about it.
#[repr(C)]
pub(crate) struct KnownDevice {
    /// The public struct, to which the program's pointer points.
    device: Device,
    /// Vendors' libraries compare the word behind the public struct with their own table of
    /// operations, to find out whether a device is theirs. These zeros say that it is not.
    not_a_vendors: [u64; 16],
    number: u32,
    guid: [u8; 8],
}

// SAFETY: a known device is never written after it was made; its pointers are NULL.
unsafe impl Sync for KnownDevice {}

impl KnownDevice {
    /// The device behind a program's pointer.
    ///
    /// # Safety
    /// `device` came from `ibv_get_device_list`.
    pub(crate) unsafe fn of(device: *const Device) -> Outcome<&'static Self> {
        entry::not_null(device)?;
        // SAFETY: every device that leaves this library is the first field of a `KnownDevice` that
        // is never freed.
        Ok(unsafe { &*device.cast::<Self>() })
    }

    /// The program's pointer.
    pub(crate) fn as_c(&'static self) -> *mut Device {
        std::ptr::from_ref(&self.device).cast_mut()
    }

    /// The path of the socket to connect to.
    pub(crate) fn node(&self) -> PathBuf {
        engine::rundir::node(sysfs::run_directory(), self.number)
    }
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is NULL or valid.
pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    entry::pointer("ibv_get_device_list", || {
        crate::log::start();
        let mut list: Vec<*mut Device> = known_devices()?.into_iter().map(KnownDevice::as_c).collect();
        if !count.is_null() {
            // SAFETY: not NULL, and the caller's to write.
            unsafe { count.write(c_int::try_from(list.len()).unwrap_or(c_int::MAX)) };
        }
        list.push(std::ptr::null_mut());
        let bytes = list.len() * size_of::<*mut Device>();
        // SAFETY: a plain allocation; some programs free the list with `free`.
        let array = unsafe { libc::malloc(bytes) }.cast::<*mut Device>();
        if array.is_null() {
            return Err(Refusal(libc::ENOMEM));
        }
        // SAFETY: both sides have `list.len()` elements.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), array, list.len()) };
        Ok(array)
    })
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is NULL or came from `ibv_get_device_list`.
pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    // SAFETY: allocated with malloc in `get_device_list`; NULL is allowed.
    entry::value("ibv_free_device_list", || unsafe { libc::free(list.cast()) });
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` came from `ibv_get_device_list`.
pub(crate) unsafe extern "C" fn get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_get_device_name", || Ok(unsafe { KnownDevice::of(device) }?.device.name.as_ptr().cast_mut()))
}

/// `ibv_get_device_index`.
///
/// # Safety
/// `device` came from `ibv_get_device_list`.
pub(crate) unsafe extern "C" fn get_device_index(device: *mut Device) -> c_int {
    entry::or_minus_one("ibv_get_device_index", || {
        // SAFETY: the caller's promise.
        let known = unsafe { KnownDevice::of(device) }?;
        c_int::try_from(known.number).map_err(|_| Refusal(libc::EINVAL))
    })
}

/// `ibv_get_device_guid`: in network order.
///
/// # Safety
/// `device` came from `ibv_get_device_list`.
pub(crate) unsafe extern "C" fn get_device_guid(device: *mut Device) -> u64 {
    entry::value("ibv_get_device_guid", || {
        // SAFETY: the caller's promise.
        unsafe { KnownDevice::of(device) }.map_or(0, |known| u64::from_ne_bytes(known.guid))
    })
}

/// The devices that an agent serves now, in the order of their numbers.
pub(crate) fn known_devices() -> Outcome<Vec<&'static KnownDevice>> {
    let mut numbers: Vec<u32> = std::fs::read_dir(sysfs::run_directory())
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("uverbs")?.parse().ok())
                .collect()
        })
        .unwrap_or_default();
    numbers.sort_unstable();
    match numbers.first() {
        Some(_) if !trusted(sysfs::run_directory()) => {
            tell_once("belongs to another user: set SOFTHCA_DIR to choose it on purpose, or remove it");
            return Ok(Vec::new());
        }
        Some(first) if engine::rundir::is_served(&engine::rundir::node(sysfs::run_directory(), *first)) => {}
        // All its devices were removed.
        None if engine::rundir::is_served(&engine::rundir::admin(sysfs::run_directory())) => return Ok(Vec::new()),
        _ => {
            tell_once("has no agent: start one with `softhca agent`, or run the program with `softhca run -- PROGRAM`");
            return Ok(Vec::new());
        }
    }
    let mut registry = REGISTRY.lock();
    Ok(numbers.into_iter().map(|number| intern(&mut registry, number)).collect())
}

/// Every device that this process has seen.
static REGISTRY: Mutex<Vec<&'static KnownDevice>> = Mutex::new(Vec::new());

/// The known device with this number, name and GUID. Makes a new one if the agent now serves
/// another device under the number.
fn intern(registry: &mut Vec<&'static KnownDevice>, number: u32) -> &'static KnownDevice {
    let fresh = describe(number);
    let same = |known: &&&KnownDevice| {
        known.number == number
            && known.guid == fresh.guid
            && known.device.name == fresh.device.name
            && known.device.node_type == fresh.device.node_type
    };
    if let Some(known) = registry.iter().find(same) {
        return known;
    }
    let known: &'static KnownDevice = Box::leak(Box::new(fresh));
    registry.push(known);
    known
}

fn describe(number: u32) -> KnownDevice {
    let dev_name = format!("uverbs{number}");
    let dev_directory = Path::new("class/infiniband_verbs").join(&dev_name);
    let name = sysfs::read_line(dev_directory.join("ibdev")).unwrap_or_else(|| format!("softhca{number}"));
    let ibdev_directory = Path::new("class/infiniband").join(&name);
    let guid = sysfs::read_line(ibdev_directory.join("node_guid")).as_deref().and_then(parse_guid).unwrap_or_default();
    let sysfs_root = engine::rundir::sysfs(sysfs::run_directory());
    let is_rnic = sysfs::read_line(ibdev_directory.join("node_type")).is_some_and(|text| text.starts_with("4:"));
    let (node_type, transport_type) = if is_rnic { (NODE_RNIC, TRANSPORT_IWARP) } else { (NODE_CA, TRANSPORT_IB) };
    let mut device = Device { node_type, transport_type, ..Device::zeroed() };
    fill(&mut device.name, name.as_bytes());
    fill(&mut device.dev_name, dev_name.as_bytes());
    fill(&mut device.dev_path, sysfs_root.join(dev_directory).as_os_str().as_bytes());
    fill(&mut device.ibdev_path, sysfs_root.join(ibdev_directory).as_os_str().as_bytes());
    KnownDevice { device, not_a_vendors: [0; 16], number, guid }
}

/// Copies a string with its final zero into a fixed array. A string that does not fit is not copied
/// at all: half a path is a wrong path.
fn fill(array: &mut [c_char], text: &[u8]) {
    if text.len() < array.len() {
        for (to, from) in array.iter_mut().zip(text) {
            *to = from.cast_signed();
        }
    }
}

/// Four groups of four hex digits, as sysfs writes a GUID.
fn parse_guid(text: &str) -> Option<[u8; 8]> {
    let digits: String = text.trim().chars().filter(|c| *c != ':').collect();
    (digits.len() == 16).then(|| u64::from_str_radix(&digits, 16).ok()).flatten().map(u64::to_be_bytes)
}

/// Whether the run directory can be trusted: the user named it, or only this user and root could
/// have made it.
fn trusted(directory: &Path) -> bool {
    engine::rundir::chosen().is_some() || engine::rundir::is_trusted(directory)
}

/// Prints one sentence on standard error, the first time only, because an empty list alone does not
/// explain itself.
fn tell_once(why: &str) {
    static TOLD: Once = Once::new();
    let directory = sysfs::run_directory().display();
    TOLD.call_once(|| engine::reason::say(format_args!("the run directory {directory} {why}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_read_as_sysfs_writes_them() {
        assert_eq!(parse_guid("0200:00ff:fe12:3456"), Some([2, 0, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]));
        assert_eq!(parse_guid("0200:00ff"), None);
        assert_eq!(parse_guid("zz00:00ff:fe12:3456"), None);
    }

    #[test]
    fn a_string_that_does_not_fit_is_left_out() {
        let mut array = [0 as c_char; 4];
        fill(&mut array, b"abcd");
        assert_eq!(array, [0; 4]);
        fill(&mut array, b"abc");
        assert_eq!(array[3], 0);
        assert_eq!(array[0], 97);
    }

    #[test]
    fn vendors_read_zeros_behind_a_device() {
        assert!(std::mem::offset_of!(KnownDevice, not_a_vendors) == 664);
        assert!(size_of::<[u64; 16]>() >= 64);
    }
}
