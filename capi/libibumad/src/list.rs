//! `umad_get_ca_device_list` and its relatives: a linked list of device names. A node and its name
//! are one piece of memory.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use crate::entry::{self, Refusal};
use crate::layout::{DeviceNode, NAME, text};
use crate::sysfs;

/// A node with its name.
#[repr(C)]
struct Entry {
    node: DeviceNode,
    name: [c_char; NAME],
}

/// `umad_get_ca_device_list`: NULL and `errno` 0 without devices.
pub(crate) extern "C" fn get() -> *mut DeviceNode {
    entry::pointer("umad_get_ca_device_list", || {
        entry::set_errno(Refusal(0));
        let mut head: *mut DeviceNode = null_mut();
        for name in sysfs::devices().iter().rev() {
            let mut entry = Box::new(Entry { node: DeviceNode { next: head, ca_name: null_mut() }, name: text(name) });
            entry.node.ca_name = (&raw const entry.name).cast();
            head = Box::into_raw(entry).cast();
        }
        Ok(head)
    })
}

/// `umad_free_ca_device_list`.
pub(crate) unsafe extern "C" fn free(mut head: *mut DeviceNode) {
    while !head.is_null() {
        // SAFETY: `get` made the node as the beginning of an `Entry`, and the list ends here.
        let entry = unsafe { Box::from_raw(head.cast::<Entry>()) };
        head = entry.node.next;
    }
}

/// `umad_sort_ca_device_list`: by name. A `size` of 0 means the whole list.
pub(crate) unsafe extern "C" fn sort(head: *mut *mut DeviceNode, size: usize) -> c_int {
    entry::code("umad_sort_ca_device_list", || {
        // SAFETY: the program passes a pointer to the head of its list, or NULL.
        let head = unsafe { head.as_mut() }.ok_or(Refusal(libc::EINVAL))?;
        let (mut nodes, mut at) = (Vec::new(), *head);
        // SAFETY: a node of the list, or its end.
        while let Some(node) = unsafe { at.as_ref() } {
            nodes.push(at);
            at = node.next;
        }
        if size != 0 && size != nodes.len() {
            return Err(Refusal(libc::EINVAL));
        }
        // SAFETY: the nodes' names are C strings.
        nodes.sort_by_key(|node| unsafe { CStr::from_ptr((**node).ca_name) });
        for (index, node) in nodes.iter().enumerate() {
            // SAFETY: a node of the list.
            unsafe { (**node).next = nodes.get(index + 1).copied().unwrap_or(null_mut()) };
        }
        *head = nodes.first().copied().unwrap_or(null_mut());
        Ok(())
    })
}
