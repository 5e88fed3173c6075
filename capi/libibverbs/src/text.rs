//! The string functions of `verbs.h`. Scripts match their results, so the strings are part of the
//! interface: they are those of rdma-core. Every function accepts any number, including unknown
//! ones.

use std::ffi::{CStr, c_char, c_int, c_uint};

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn wc_status_str(status: c_uint) -> *const c_char {
    look_up(&WC_STATUS, status)
}

/// `ibv_event_type_str`.
pub(crate) extern "C" fn event_type_str(event: c_uint) -> *const c_char {
    look_up(&EVENT_TYPE, event)
}

/// `ibv_node_type_str`.
pub(crate) extern "C" fn node_type_str(node_type: c_int) -> *const c_char {
    look_up(&NODE_TYPE, node_type.cast_unsigned())
}

/// `ibv_port_state_str`.
pub(crate) extern "C" fn port_state_str(state: c_uint) -> *const c_char {
    look_up(&PORT_STATE, state)
}

/// `ibv_wr_opcode_str`. Numbers that rdma-core leaves out of its table are NULL there; here they
/// are "unknown".
pub(crate) extern "C" fn wr_opcode_str(opcode: c_uint) -> *const c_char {
    look_up(&WR_OPCODE, opcode)
}

fn look_up(table: &'static [&'static CStr], number: u32) -> *const c_char {
    table.get(number as usize).copied().unwrap_or(c"unknown").as_ptr()
}

/// Indexed by `enum ibv_wc_status`.
static WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Indexed by `enum ibv_event_type`.
static EVENT_TYPE: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

/// Indexed by `enum ibv_node_type`.
static NODE_TYPE: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// Indexed by `enum ibv_port_state`.
static PORT_STATE: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// Indexed by `enum ibv_wr_opcode`.
static WR_OPCODE: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The strings of rdma-core 44.0-2 of Debian 12, value by value, beginning with -1, and the
    /// additions of newer releases.
    const SEEN: &str = include_str!("strings.txt");

    #[test]
    fn every_string_is_the_one_that_scripts_know() {
        let mut rows = 0;
        for row in SEEN.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = row.splitn(3, ' ');
            let (name, number, expected) = (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap());
            let number: c_int = number.parse().unwrap();
            let answer = match name {
                "ibv_wc_status_str" => wc_status_str(number.cast_unsigned()),
                "ibv_event_type_str" => event_type_str(number.cast_unsigned()),
                "ibv_node_type_str" => node_type_str(number),
                "ibv_wr_opcode_str" => wr_opcode_str(number.cast_unsigned()),
                "ibv_port_state_str" => port_state_str(number.cast_unsigned()),
                other => panic!("{other}"),
            };
            // SAFETY: every function here returns a pointer into a static C string.
            assert_eq!(unsafe { CStr::from_ptr(answer) }.to_str().unwrap(), expected, "{name}({number})");
            rows += 1;
        }
        assert_eq!(rows, 92);
    }
}
