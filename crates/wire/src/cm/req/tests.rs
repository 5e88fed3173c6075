//! Tests of a REQ's bytes: the Linux driver's own REQ, and one with every field set. The
//! negotiation is tested in `protocol`.

use super::*;
use crate::mad::MAD_LEN;

const IPV4_A: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 12];
const IPV4_B: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 11];

/// rping's REQ as the Linux driver sent it, up to the primary path's end.
const LINUX: [u8; 96] = [
    0x09, 0x16, 0x40, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x06, 0x1c, 0x06, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 0x02,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x4b, 1, 0, 0, 0, 1, 0, 0, 0, 0xa0, 0xb4, 0xd9, 0x33, 0xa7, 0xff, 0xff, 0x37, 0xf0,
    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0xff, 0xff, 10, 77, 0, 11, 0x6c, 0x48, 0x90, 0, 0, 0x40, 0, 0x98,
];

#[test]
fn the_linux_drivers_bytes_both_ways() {
    let mut mad = [0; MAD_LEN];
    mad[DATA..DATA + 96].copy_from_slice(&LINUX);
    let req = Req {
        local_comm_id: 0x0916_4002,
        service_id: 0x0106_1c06,
        local_ca_guid: 0x5054_00ff_fe77_0002,
        local_qpn: Qpn::new(0x4b),
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: 20,
        transport: TransportType::Rc,
        starting_psn: Psn::new(0xb4_d933),
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        primary: PathInfo {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: IPV4_A,
            remote_gid: IPV4_B,
            flow_label: 0x6_c489,
            hop_limit: 64,
            ack_timeout: 19,
            ..PathInfo::default()
        },
        ..Req::default()
    };
    assert_eq!(Req::parse(&mad), req);
    let mut out = [0; MAD_LEN];
    req.emit(&mut out);
    assert_eq!(out, mad);
    assert_eq!(req.to_string(), "REQ 0x09164002 service 0x0000000001061c06 Rc from QP 0x4b psn 11852083 mtu 1024");
}

#[test]
fn every_field_has_its_bits() {
    let path = PathInfo {
        local_lid: 0x0102,
        remote_lid: 0x0304,
        local_gid: [0xa1; 16],
        remote_gid: [0xb2; 16],
        flow_label: 0xf_edcb,
        rate: 0x3f,
        traffic_class: 0x55,
        hop_limit: 0x66,
        sl: 0xf,
        subnet_local: true,
        ack_timeout: 31,
    };
    let req = Req {
        local_comm_id: u32::MAX,
        vendor_id: 0x12_3456,
        service_id: u64::MAX,
        local_ca_guid: 0x0102_0304_0506_0708,
        local_qkey: 0x1111_2222,
        local_qpn: Qpn::new(0xab_cdef),
        responder_resources: 16,
        local_eecn: 0x77_8899,
        initiator_depth: 17,
        remote_eecn: 0x66_5544,
        remote_response_timeout: 31,
        transport: TransportType::Xrc,
        flow_control: true,
        starting_psn: Psn::new(0xff_fffe),
        local_response_timeout: 1,
        retry_count: 5,
        pkey: 0x8001,
        mtu: 5,
        rdc_exists: true,
        rnr_retry_count: 3,
        max_cm_retries: 9,
        srq: true,
        primary: path,
        alternate: Some(PathInfo { sl: 1, subnet_local: false, ack_timeout: 2, ..path }),
        sap_supported: true,
        private_data: Data::new(&[0x99; 92]).unwrap(),
    };
    let mut mad = [0; MAD_LEN];
    req.emit(&mut mad);
    let at = |from: usize, len: usize| &mad[DATA + from..DATA + from + len];
    assert_eq!(at(4, 4), [0, 0x12, 0x34, 0x56]);
    assert_eq!(
        at(32, 20),
        [
            0xab, 0xcd, 0xef, 16, 0x77, 0x88, 0x99, 17, 0x66, 0x55, 0x44, 0xff, 0xff, 0xff, 0xfe, 0x0d, 0x80, 1, 0x5b,
            0x99
        ]
    );
    assert_eq!(at(88, 12), [0xfe, 0xdc, 0xb0, 0x3f, 0x55, 0x66, 0xf8, 0xf8, 1, 2, 3, 4]);
    assert_eq!(at(132, 10), [0xfe, 0xdc, 0xb0, 0x3f, 0x55, 0x66, 0x10, 0x14, 0x99, 0x99]);
    assert_eq!(Req::parse(&mad), req);
}

#[test]
fn each_transport_type_has_its_two_fields() {
    for (kind, extended, transport) in [
        (0, 0, TransportType::Rc),
        (1, 0, TransportType::Uc),
        (2, 0, TransportType::Rd),
        (3, 1, TransportType::Xrc),
        (3, 5, TransportType::Unknown(5)),
    ] {
        assert_eq!(TransportType::parse(kind, extended), transport);
        assert_eq!(transport.codes(), (kind, extended));
    }
}

#[test]
fn each_path_says_whether_it_stays_in_the_subnet() {
    for (near, far) in [(true, false), (false, true)] {
        let path = |subnet_local| PathInfo { local_lid: 1, local_gid: IPV4_A, subnet_local, ..PathInfo::default() };
        let req = Req { primary: path(near), alternate: Some(path(far)), ..Req::default() };
        let mut mad = [0; MAD_LEN];
        req.emit(&mut mad);
        assert_eq!(Req::parse(&mad), req);
    }
}

/// With RoCE all LIDs may be 0, and with InfiniBand a GID may be absent.
#[test]
fn an_alternate_path_is_there_with_a_lid_or_a_gid() {
    for (local_lid, local_gid, is_there) in [(0, [0; 16], false), (0, IPV4_A, true), (7, [0; 16], true)] {
        let alternate = Some(PathInfo { local_lid, local_gid, ..PathInfo::default() });
        let mut mad = [0; MAD_LEN];
        Req { alternate, ..Req::default() }.emit(&mut mad);
        assert_eq!(Req::parse(&mad).alternate, alternate.filter(|_| is_there));
    }
}
