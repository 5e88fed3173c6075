//! The names of classes, methods, attributes and statuses, for programs that print them. Numbers
//! and names are those of the InfiniBand specification (IBA 13.4, 14.2, 15.2, 16); statuses are in
//! words.

use std::ffi::{CStr, c_char};

const UNKNOWN: &CStr = c"<unknown>";

/// Class numbers.
const SUBN_LID: u8 = 0x01;
const SUBN_ADM: u8 = 0x03;
const COM_MGT: u8 = 0x07;
const SUBN_DIRECTED: u8 = 0x81;

/// Attributes of every class.
const COMMON: &[(u16, &CStr)] = &[(0x0001, c"ClassPortInfo"), (0x0002, c"Notice"), (0x0003, c"InformInfo")];

/// Attributes of subnet management.
const SUBNET: &[(u16, &CStr)] = &[
    (0x0010, c"NodeDescription"),
    (0x0011, c"NodeInfo"),
    (0x0012, c"SwitchInfo"),
    (0x0014, c"GUIDInfo"),
    (0x0015, c"PortInfo"),
    (0x0016, c"P_KeyTable"),
    (0x0017, c"SLtoVLMappingTable"),
    (0x0018, c"VLArbitrationTable"),
    (0x0019, c"LinearForwardingTable"),
    (0x001a, c"RandomForwardingTable"),
    (0x001b, c"MulticastForwardingTable"),
    (0x001c, c"LinkSpeedWidthPairsTable"),
    (0x001d, c"VendorSpecificMadsTable"),
    (0x001e, c"HierarchyInfo"),
    (0x0020, c"SMInfo"),
    (0x0030, c"VendorDiag"),
    (0x0031, c"LedInfo"),
    (0x0032, c"CableInfo"),
    (0x0033, c"PortInfoExtended"),
];

/// Attributes of subnet administration.
const ADMINISTRATION: &[(u16, &CStr)] = &[
    (0x0011, c"NodeRecord"),
    (0x0012, c"PortInfoRecord"),
    (0x0013, c"SLtoVLMappingTableRecord"),
    (0x0014, c"SwitchInfoRecord"),
    (0x0015, c"LinearForwardingTableRecord"),
    (0x0016, c"RandomForwardingTableRecord"),
    (0x0017, c"MulticastForwardingTableRecord"),
    (0x0018, c"SMInfoRecord"),
    (0x0019, c"LinkSpeedWidthPairsTableRecord"),
    (0x0020, c"LinkRecord"),
    (0x0030, c"GUIDInfoRecord"),
    (0x0031, c"ServiceRecord"),
    (0x0033, c"P_KeyTableRecord"),
    (0x0035, c"PathRecord"),
    (0x0036, c"VLArbitrationTableRecord"),
    (0x0038, c"MCMemberRecord"),
    (0x0039, c"TraceRecord"),
    (0x003a, c"MultiPathRecord"),
    (0x003b, c"ServiceAssociationRecord"),
    (0x003c, c"HierarchyInfoRecord"),
    (0x003d, c"CableInfoRecord"),
    (0x003e, c"PortInfoExtendedRecord"),
    (0x00f3, c"InformInfoRecord"),
];

/// Attributes of communication management.
const CONNECTIONS: &[(u16, &CStr)] = &[
    (0x0010, c"ConnectRequest"),
    (0x0011, c"MsgRcptAck"),
    (0x0012, c"ConnectReject"),
    (0x0013, c"ConnectReply"),
    (0x0014, c"ReadyToUse"),
    (0x0015, c"DisconnectRequest"),
    (0x0016, c"DisconnectReply"),
    (0x0017, c"ServiceIDResReq"),
    (0x0018, c"ServiceIDResReqResp"),
    (0x0019, c"LoadAlternatePath"),
    (0x001a, c"AlternatePathResponse"),
    (0x001b, c"SuggestAlternatePath"),
    (0x001c, c"SuggestPathResponse"),
];

/// `umad_class_str`.
pub(crate) extern "C" fn class(class: u8) -> *const c_char {
    let name = match class {
        SUBN_LID | SUBN_DIRECTED => c"Subn",
        SUBN_ADM => c"SubnAdm",
        0x04 => c"Perf",
        0x05 => c"BM",
        0x06 => c"DevMgt",
        COM_MGT => c"ComMgt",
        0x08 => c"SNMP",
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x10 => c"DevAdm",
        0x11 => c"BootMgt",
        0x12 => c"BIS",
        0x21 => c"CongestionManagement",
        0x13..=0x2f => c"Application",
        _ => UNKNOWN,
    };
    name.as_ptr()
}

/// `umad_method_str`.
pub(crate) extern "C" fn method(class: u8, method: u8) -> *const c_char {
    let name = match method {
        0x01 => c"Get",
        0x02 => c"Set",
        0x03 => c"Send",
        0x05 => c"Trap",
        0x06 => c"Report",
        0x07 => c"TrapRepress",
        0x81 => c"GetResp",
        0x86 => c"ReportResp",
        0x12 if class == SUBN_ADM => c"GetTable",
        0x13 if class == SUBN_ADM => c"GetTraceTable",
        0x14 if class == SUBN_ADM => c"GetMulti",
        0x15 if class == SUBN_ADM => c"Delete",
        0x92 if class == SUBN_ADM => c"GetTableResp",
        0x94 if class == SUBN_ADM => c"GetMultiResp",
        0x95 if class == SUBN_ADM => c"DeleteResp",
        _ => UNKNOWN,
    };
    name.as_ptr()
}

/// `umad_attribute_str`; the number is in network byte order.
pub(crate) extern "C" fn attribute(class: u8, attribute: u16) -> *const c_char {
    let own = match class {
        SUBN_LID | SUBN_DIRECTED => SUBNET,
        SUBN_ADM => ADMINISTRATION,
        COM_MGT => CONNECTIONS,
        _ => &[],
    };
    let number = u16::from_be(attribute);
    let found = COMMON.iter().chain(own).find(|(known, _)| *known == number);
    found.map_or(UNKNOWN, |(_, name)| name).as_ptr()
}

/// `umad_common_mad_status_str`; the status is in network byte order.
pub(crate) extern "C" fn status(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    let name = match status >> 2 & 7 {
        _ if status & 1 != 0 => c"the agent is busy",
        _ if status & 2 != 0 => c"another port serves this class",
        1 => c"the class version is not supported",
        2 => c"the method is not supported",
        3 => c"the attribute is not supported with this method",
        7 => c"a field has an invalid value",
        _ => c"success",
    };
    name.as_ptr()
}

/// `umad_sa_mad_status_str`; the status is in network byte order.
pub(crate) extern "C" fn sa_status(status: u16) -> *const c_char {
    let name = match u16::from_be(status) >> 8 {
        0 => c"success",
        1 => c"no resources",
        2 => c"the request is invalid",
        3 => c"no records match",
        4 => c"more than one record matches",
        5 => c"the requester's GID is invalid",
        6 => c"components are missing",
        7 => c"denied",
        8 => c"another priority is suggested",
        _ => UNKNOWN,
    };
    name.as_ptr()
}
