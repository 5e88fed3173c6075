//! Words for numbers: the string functions of `verbs.h`. Every function answers any number, the unknown ones too.

use std::ffi::{CStr, c_char, c_int, c_uint};

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn wc_status_str(status: c_uint) -> *const c_char {
    look_up(&WC_STATUS, status, c"unknown completion status")
}

/// `ibv_event_type_str`.
pub(crate) extern "C" fn event_type_str(event: c_uint) -> *const c_char {
    look_up(&EVENT_TYPE, event, c"unknown event")
}

/// `ibv_node_type_str`.
pub(crate) extern "C" fn node_type_str(node_type: c_int) -> *const c_char {
    look_up(&NODE_TYPE, u32::try_from(node_type).unwrap_or(0), c"unknown")
}

/// `ibv_port_state_str`.
pub(crate) extern "C" fn port_state_str(state: c_uint) -> *const c_char {
    look_up(&PORT_STATE, state, c"unknown")
}

fn look_up(table: &'static [&'static CStr], number: u32, unknown: &'static CStr) -> *const c_char {
    table.get(number as usize).copied().unwrap_or(unknown).as_ptr()
}

/// Indexed by `enum ibv_wc_status`.
static WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error: the message and the buffer do not fit",
    c"local QP error: the work request is not one this QP can do",
    c"local EE context error",
    c"local protection error: key, range or right of a local buffer",
    c"flushed: the QP was in an error state before this work request ran",
    c"memory window bind refused",
    c"bad response: the peer answered with an unexpected opcode",
    c"local access error: a peer's message could not be placed in local memory",
    c"remote invalid request: the peer's QP does not accept this operation",
    c"remote access error: key, range or right of the remote buffer",
    c"remote operation error: the peer could not complete the operation",
    c"transport retries exhausted: the peer does not answer",
    c"RNR retries exhausted: the peer posts no receive buffers",
    c"local RDD violation",
    c"remote invalid RD request",
    c"aborted by the peer",
    c"EE context number not valid",
    c"EE context state not valid",
    c"fatal device error",
    c"no response in time",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous left to software",
];

/// Indexed by `enum ibv_event_type`.
static EVENT_TYPE: [&CStr; 20] = [
    c"CQ error",
    c"QP fatal error",
    c"QP error: invalid request received",
    c"QP error: access violation by the peer",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration failed",
    c"device fatal error",
    c"port active",
    c"port error",
    c"LID changed",
    c"P_Key table changed",
    c"subnet manager changed",
    c"SRQ error",
    c"SRQ limit reached",
    c"last work request of the QP reached",
    c"client must register again",
    c"GID table changed",
    c"WQ fatal error",
];

/// Indexed by `enum ibv_node_type`.
static NODE_TYPE: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand HCA",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC over UDP",
    c"unspecified",
];

/// Indexed by `enum ibv_port_state`.
static PORT_STATE: [&CStr; 6] =
    [c"no state change", c"down", c"initialising", c"armed", c"active", c"active (deferred)"];

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pointer: *const c_char) -> &'static str {
        // SAFETY: every function here returns a pointer into a static C string.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn known_numbers_have_words_and_unknown_ones_are_answered() {
        assert_eq!(words(wc_status_str(0)), "success");
        assert!(words(wc_status_str(12)).starts_with("transport retries"));
        assert_eq!(words(wc_status_str(u32::MAX)), "unknown completion status");
        assert_eq!(words(event_type_str(8)), "device fatal error");
        assert_eq!(words(event_type_str(20)), "unknown event");
        assert_eq!(words(node_type_str(-1)), "unknown");
        assert_eq!(words(node_type_str(1)), "InfiniBand HCA");
        assert_eq!(words(port_state_str(4)), "active");
        assert_eq!(words(port_state_str(6)), "unknown");
    }
}
