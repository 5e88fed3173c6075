//! The structs of `rdma_cma.h` as Rust sees them: the same bytes at the same offsets as in
//! rdma-core v44 to v65. As for the structs of `verbs.h`, tests check them against measured facts.
//! Nothing here has behaviour. The principal type is [`CmId`].

use crate::layout::{AhAttr, CompChannel, Context, Cq, Gid, Pd, Qp, SaPathRec, Srq, mirror};
use bytemuck::Zeroable;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The space of a `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct Storage(pub(crate) [u8; 128]);

mirror! {
    /// `struct rdma_ib_addr`.
    40 "rdma_ib_addr" struct IbAddr {
        0 sgid: Gid,
        16 dgid: Gid,
        32 pkey: u16,
    }
}

mirror! {
    /// `struct rdma_addr`.
    296 "rdma_addr" struct Addr {
        0 src_storage: Storage,
        128 dst_storage: Storage,
        256 addr: IbAddr,
    }
}

mirror! {
    /// `struct rdma_route`.
    312 "rdma_route" struct Route {
        0 addr: Addr,
        296 path_rec: *mut SaPathRec,
        304 num_paths: c_int,
    }
}

mirror! {
    /// `struct rdma_event_channel`.
    4 "rdma_event_channel" struct EventChannel {
        0 fd: c_int,
    }
}

mirror! {
    /// `struct rdma_cm_id`.
    416 "rdma_cm_id" struct CmId {
        0 verbs: *mut Context,
        8 channel: *mut EventChannel,
        16 context: *mut c_void,
        24 qp: *mut Qp,
        32 route: Route,
        344 ps: c_uint,
        348 port_num: u8,
        352 event: *mut CmEvent,
        360 send_cq_channel: *mut CompChannel,
        368 send_cq: *mut Cq,
        376 recv_cq_channel: *mut CompChannel,
        384 recv_cq: *mut Cq,
        392 srq: *mut Srq,
        400 pd: *mut Pd,
        408 qp_type: c_uint,
    }
}

mirror! {
    /// `struct rdma_conn_param`.
    24 "rdma_conn_param" struct ConnParam {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        9 responder_resources: u8,
        10 initiator_depth: u8,
        11 flow_control: u8,
        12 retry_count: u8,
        13 rnr_retry_count: u8,
        14 srq: u8,
        16 qp_num: u32,
    }
}

mirror! {
    /// `struct rdma_ud_param`.
    56 "rdma_ud_param" struct UdParam {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        16 ah_attr: AhAttr,
        48 qp_num: u32,
        52 qkey: u32,
    }
}

/// The union `param` of `struct rdma_cm_event`. The event and the id's type decide which member is
/// valid.
#[repr(C)]
#[derive(Clone, Copy, Zeroable)]
pub(crate) union EventParam {
    pub(crate) ud: UdParam,
    pub(crate) conn: ConnParam,
    pub(crate) arg: u64,
}

mirror! {
    /// `struct rdma_cm_event`.
    80 "rdma_cm_event" struct CmEvent {
        0 id: *mut CmId,
        8 listen_id: *mut CmId,
        16 event: c_uint,
        20 status: c_int,
        24 param: EventParam,
    }
}

mirror! {
    /// `struct rdma_addrinfo`.
    96 "rdma_addrinfo" struct AddrInfo {
        0 ai_flags: c_int,
        4 ai_family: c_int,
        8 ai_qp_type: c_int,
        12 ai_port_space: c_int,
        16 ai_src_len: u32,
        20 ai_dst_len: u32,
        24 ai_src_addr: *mut c_void,
        32 ai_dst_addr: *mut c_void,
        40 ai_src_canonname: *mut c_char,
        48 ai_dst_canonname: *mut c_char,
        56 ai_route_len: usize,
        64 ai_route: *mut c_void,
        72 ai_connect_len: usize,
        80 ai_connect: *mut c_void,
        88 ai_next: *mut AddrInfo,
    }
}

mirror! {
    /// `struct rdma_cm_join_mc_attr_ex`.
    16 "rdma_cm_join_mc_attr_ex" struct JoinMcAttrEx {
        0 comp_mask: u32,
        4 join_flags: u32,
        8 addr: *mut c_void,
    }
}

/// Port spaces.
pub(crate) mod ps {
    pub(crate) const IPOIB: u32 = 0x0002;
    pub(crate) const TCP: u32 = 0x0106;
    pub(crate) const UDP: u32 = 0x0111;
    pub(crate) const IB: u32 = 0x013f;
}

/// Types of QPs (`enum ibv_qp_type`).
pub(crate) mod qpt {
    pub(crate) const RC: u32 = 2;
    pub(crate) const UC: u32 = 3;
    pub(crate) const UD: u32 = 4;
    pub(crate) const XRC_SEND: u32 = 9;
    pub(crate) const XRC_RECV: u32 = 10;
}

/// "As many as the device has", for the depths in [`ConnParam`].
pub(crate) const DEPTH_MAX: u8 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{check, facts};

    #[test]
    fn structs_are_where_programs_expect_them() {
        let versions = [("v44", include_str!("../layout-v44.txt")), ("v64", include_str!("../layout-v64.txt"))];
        for (version, text) in versions {
            let facts = facts(text);
            check::<IbAddr>(&facts, version, &[]);
            check::<Addr>(&facts, version, &[]);
            check::<Route>(&facts, version, &[]);
            check::<EventChannel>(&facts, version, &[]);
            check::<CmId>(&facts, version, &[]);
            check::<ConnParam>(&facts, version, &[]);
            check::<UdParam>(&facts, version, &[]);
            check::<CmEvent>(&facts, version, &[]);
            check::<AddrInfo>(&facts, version, &[]);
            check::<JoinMcAttrEx>(&facts, version, &[]);
        }
    }
}
