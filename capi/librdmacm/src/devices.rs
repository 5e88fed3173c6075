//! The devices that ids use. A process opens each device once, with one default PD for all ids on
//! it.
//!
//! An open device stays open while the process lives, because ids, QPs and programs point to it. A
//! forked child opens its own devices: the parent's belong to the parent. The principal type is
//! [`Opened`].

use crate::channel;
use crate::entry::{self, Outcome, refuse};
use crate::layout::{Context, Device, DeviceAttr, Pd, Xrcd};
use crate::object::get;
use crate::verbs::{self, made};
use bytemuck::Zeroable;
use parking_lot::Mutex;
use std::ffi::c_int;

/// `IBV_TRANSPORT_IWARP`.
const TRANSPORT_IWARP: u32 = 1;

/// A device that this process has opened.
pub(crate) struct Opened {
    /// The agent of the device. After the agent ends, the device cannot be used.
    agent: u32,
    index: c_int,
    guid: u64,
    /// The context that ids show as `verbs`.
    pub(crate) verbs: *mut Context,
    /// The default PD.
    pub(crate) pd: *mut Pd,
    /// The default XRC domain. NULL until an id needs it.
    xrcd: Mutex<*mut Xrcd>,
    /// The number of READs and atomics that a QP may have outstanding.
    pub(crate) max_initiator_depth: u8,
    /// The number of READs and atomics that a QP answers at a time.
    pub(crate) max_responder_resources: u8,
    /// Its transport is iWARP: a QP gets its connection when the agent has accepted it.
    pub(crate) is_iwarp: bool,
}

// SAFETY: only `xrcd` is written after it was made, under its lock, and every thread may use
// libibverbs' contexts, PDs and XRC domains.
unsafe impl Sync for Opened {}

impl Opened {
    /// The default XRC domain, private to this process.
    pub(crate) fn xrcd(&self) -> Outcome<*mut Xrcd> {
        let mut xrcd = self.xrcd.lock();
        if xrcd.is_null() {
            // SAFETY: an opened device is never closed.
            *xrcd = unsafe { verbs::open_private_xrcd(self.verbs) }?;
        }
        Ok(*xrcd)
    }
}

struct Table {
    /// The process that opened the devices.
    process: u32,
    opened: Vec<&'static Opened>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { process: 0, opened: Vec::new() });

/// The agent's device with this number and GUID (in network order).
pub(crate) fn find(agent: u32, index: u32, guid: [u8; 8]) -> Outcome<&'static Opened> {
    let (index, guid) = (index.cast_signed(), u64::from_ne_bytes(guid));
    let mut table = own();
    let same = |opened: &&&Opened| (opened.agent, opened.index, opened.guid) == (agent, index, guid);
    if let Some(opened) = table.opened.iter().find(same) {
        return Ok(opened);
    }
    let list = List::get()?;
    for device in list.devices() {
        // SAFETY: in our libibverbs, devices of the list live for ever.
        if unsafe { (verbs::ibv_get_device_index(device), verbs::ibv_get_device_guid(device)) } == (index, guid) {
            return open(&mut table, agent, device);
        }
    }
    Err(refuse!(
        ENODEV,
        "device {index} of the connection manager is not among those of the verbs library: another agent has them"
    ))
}

/// `rdma_get_devices`.
///
/// # Safety
/// `count` is NULL or valid.
pub(crate) unsafe extern "C" fn get(count: *mut c_int) -> *mut *mut Context {
    let mut found = 0;
    let list = entry::pointer("rdma_get_devices", || {
        let agent = channel::agent()?;
        let mut table = own();
        let devices = List::get()?;
        let mut contexts = Vec::new();
        for device in devices.devices() {
            // SAFETY: in our libibverbs, devices of the list live for ever.
            let (index, guid) = unsafe { (verbs::ibv_get_device_index(device), verbs::ibv_get_device_guid(device)) };
            let same = |opened: &&&Opened| (opened.agent, opened.index, opened.guid) == (agent, index, guid);
            let known = table.opened.iter().find(same).copied();
            let opened = known.map_or_else(|| open(&mut table, agent, device), Ok);
            // A device that cannot be opened is left out.
            contexts.extend(opened.ok().map(|opened| opened.verbs));
        }
        found = contexts.len();
        contexts.push(std::ptr::null_mut());
        // SAFETY: a plain allocation.
        let array = made(unsafe { libc::calloc(contexts.len(), size_of::<*mut Context>()) })?.cast::<*mut Context>();
        // SAFETY: both sides have that many elements.
        unsafe { std::ptr::copy_nonoverlapping(contexts.as_ptr(), array, contexts.len()) };
        Ok(array)
    });
    if !count.is_null() {
        let found = if list.is_null() { 0 } else { c_int::try_from(found).unwrap_or(c_int::MAX) };
        // SAFETY: not NULL, and the caller's to write.
        unsafe { count.write(found) };
    }
    list
}

/// `rdma_free_devices`: the devices stay open.
///
/// # Safety
/// `list` is NULL or came from `rdma_get_devices`.
pub(crate) unsafe extern "C" fn free(list: *mut *mut Context) {
    // SAFETY: allocated with calloc in `get`; NULL is allowed.
    entry::value("rdma_free_devices", || unsafe { libc::free(list.cast()) });
}

/// This process's table.
fn own() -> parking_lot::MutexGuard<'static, Table> {
    let mut table = TABLE.lock();
    let process = std::process::id();
    if table.process != process {
        table.process = process;
        table.opened.clear();
    }
    table
}

/// Whether a device is one of iWARP; `device` is from libibverbs.
pub(crate) fn is_iwarp(device: *mut Device) -> bool {
    get!(device, transport_type) == TRANSPORT_IWARP
}

fn open(table: &mut Table, agent: u32, device: *mut Device) -> Outcome<&'static Opened> {
    // SAFETY: `device` is from libibverbs' list; an opened device is never closed.
    let opened = unsafe {
        let verbs = made(verbs::ibv_open_device(device))?;
        let mut attr = DeviceAttr::zeroed();
        verbs::done(verbs::ibv_query_device(verbs, &raw mut attr))?;
        let depth = |depth: c_int| u8::try_from(depth).unwrap_or(u8::MAX);
        Opened {
            agent,
            index: verbs::ibv_get_device_index(device),
            guid: verbs::ibv_get_device_guid(device),
            verbs,
            pd: made(verbs::ibv_alloc_pd(verbs))?,
            xrcd: Mutex::new(std::ptr::null_mut()),
            max_initiator_depth: depth(attr.max_qp_init_rd_atom),
            max_responder_resources: depth(attr.max_qp_rd_atom),
            is_iwarp: is_iwarp(device),
        }
    };
    let opened: &'static Opened = Box::leak(Box::new(opened));
    table.opened.push(opened);
    Ok(opened)
}

/// The devices that exist now.
struct List {
    array: *mut *mut Device,
    len: usize,
}

impl List {
    fn get() -> Outcome<Self> {
        let mut count = 0;
        // SAFETY: `count` is ours.
        let array = made(unsafe { verbs::ibv_get_device_list(&raw mut count) })?;
        let list = Self { array, len: usize::try_from(count).unwrap_or(0) };
        if list.len == 0 { Err(entry::Refusal(libc::ENODEV)) } else { Ok(list) }
    }

    fn devices(&self) -> impl Iterator<Item = *mut Device> {
        // SAFETY: the array has `len` devices.
        (0..self.len).map(|index| unsafe { self.array.add(index).read() })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from libibverbs, and freed once.
        unsafe { verbs::ibv_free_device_list(self.array) };
    }
}
