//! Tests of PortInfo against literal bytes and against another source.

use super::*;
use crate::layout::tests::{agrees, components, round_trip};

/// What ibsim reports of a 4X port, with all other fields filled.
const BYTES: [u8; 64] = [
    0, 0, 0, 0, 0, 0, 0, 1, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 5, 0, 3, 0x02, 0x51, 0x08, 0x6a, 0, 7, 0, 60, 1, 3, 3, 2,
    0x74, 0x52, 0x83, 0x17, 0x46, 0x3a, 4, 8, 9, 0x25, 0x74, 0x3c, 0, 1, 0, 2, 0, 3, 32, 0xb2, 0x10, 0x88, 0, 6, 0, 0,
    0, 7, 0x04, 0x31, 0x22, 0x1f,
];

fn info() -> PortInfo {
    PortInfo {
        mkey: 1,
        gid_prefix: 0xfe80_0000_0000_0000,
        lid: 5,
        master_sm_lid: 3,
        capability_mask: 0x0251_086a,
        diag_code: 7,
        mkey_lease: 60,
        local_port: 1,
        link: PortLink {
            width_enabled: 3,
            width_supported: 3,
            width_active: 2,
            speed_supported: 7,
            state: LinkState::Active as u8,
            phys_state: PhysState::LinkUp as u8,
            down_default: 2,
            speed_active: 1,
            speed_enabled: 7,
            neighbor_mtu: 4,
            mtu_cap: 5,
            local_phys_errors: 8,
            overrun_errors: 8,
            max_credit_hint: 6,
            round_trip_latency: 7,
            extended_active: 2,
            extended_supported: 2,
            extended_enabled: 0x1f,
        },
        mkey_protect: 2,
        lmc: 3,
        master_sm_sl: 6,
        vls: PortVls {
            cap: 3,
            high_limit: 4,
            arbitration_high_cap: 8,
            arbitration_low_cap: 9,
            stall_count: 3,
            head_of_queue_life: 20,
            operational: 3,
            enforce_inbound: true,
            enforce_outbound: true,
            filter_raw_inbound: false,
            filter_raw_outbound: false,
        },
        init_type: 10,
        init_type_reply: 2,
        mkey_violations: 1,
        pkey_violations: 2,
        qkey_violations: 3,
        guid_cap: 32,
        client_reregister: true,
        multicast_pkey_trap_suppression: 1,
        subnet_timeout: 18,
        response_time: 16,
        capability_mask2: 0x0431,
    }
}

#[test]
fn literal_bytes_both_ways() {
    assert_eq!(PortInfo::parse(&BYTES), info());
    let mut emitted = [0xff; PortInfo::LEN];
    info().emit(&mut emitted);
    assert_eq!(emitted, BYTES);
    round_trip::<PortInfo>();
}

#[test]
fn positions_are_those_of_libibmad() {
    agrees::<PortInfo>(&[
        ("Mkey", 0, 64),
        ("GidPrefix", 64, 64),
        ("Lid", 128, 16),
        ("SMLid", 144, 16),
        ("CapMask", 160, 32),
        ("DiagCode", 192, 16),
        ("MkeyLeasePeriod", 208, 16),
        ("LocalPort", 224, 8),
        ("LinkWidthEnabled", 232, 8),
        ("LinkWidthSupported", 240, 8),
        ("LinkWidthActive", 248, 8),
        ("LinkSpeedSupported", 256, 4),
        ("LinkState", 260, 4),
        ("PhysLinkState", 264, 4),
        ("LinkDownDefState", 268, 4),
        ("ProtectBits", 272, 2),
        ("LMC", 277, 3),
        ("LinkSpeedActive", 280, 4),
        ("LinkSpeedEnabled", 284, 4),
        ("NeighborMTU", 288, 4),
        ("SMSL", 292, 4),
        ("VLCap", 296, 4),
        ("InitType", 300, 4),
        ("VLHighLimit", 304, 8),
        ("VLArbHighCap", 312, 8),
        ("VLArbLowCap", 320, 8),
        ("InitReply", 328, 4),
        ("MtuCap", 332, 4),
        ("VLStallCount", 336, 3),
        ("HoqLife", 339, 5),
        ("OperVLs", 344, 4),
        ("PartEnforceInb", 348, 1),
        ("PartEnforceOutb", 349, 1),
        ("FilterRawInb", 350, 1),
        ("FilterRawOutb", 351, 1),
        ("MkeyViolations", 352, 16),
        ("PkeyViolations", 368, 16),
        ("QkeyViolations", 384, 16),
        ("GuidCap", 400, 8),
        ("ClientReregister", 408, 1),
        ("McastPkeyTrapSuppressionEnabled", 409, 2),
        ("SubnetTimeout", 411, 5),
        ("RespTimeVal", 419, 5),
        ("LocalPhysErr", 424, 4),
        ("OverrunErr", 428, 4),
        ("MaxCreditHint", 432, 16),
        ("RoundTrip", 456, 24),
        ("CapabilityMask2", 480, 16),
        ("LinkSpeedExtActive", 496, 4),
        ("LinkSpeedExtSupported", 500, 4),
        ("LinkSpeedExtEnabled", 507, 5),
    ]);
}

/// opensm numbers the components of a PortInfoRecord, where three come before those here.
#[test]
fn components_are_those_of_opensm() {
    let own = components::<PortInfo>();
    let number = |name: &str| own.iter().find(|(own, _)| own == name).map(|(_, number)| number + 3);
    for (name, expected) in [
        ("mkey", 3),
        ("gid_prefix", 4),
        ("lid", 5),
        ("master_sm_lid", 6),
        ("capability_mask", 7),
        ("diag_code", 8),
        ("mkey_lease", 9),
        ("local_port", 10),
        ("link.width_enabled", 11),
        ("link.width_supported", 12),
        ("link.width_active", 13),
        ("link.speed_supported", 14),
        ("link.state", 15),
        ("link.phys_state", 16),
        ("link.down_default", 17),
        ("mkey_protect", 18),
        ("lmc", 20),
        ("link.speed_active", 21),
        ("link.speed_enabled", 22),
        ("link.neighbor_mtu", 23),
        ("master_sm_sl", 24),
        ("vls.cap", 25),
        ("init_type", 26),
        ("vls.high_limit", 27),
        ("vls.arbitration_high_cap", 28),
        ("vls.arbitration_low_cap", 29),
        ("init_type_reply", 30),
        ("link.mtu_cap", 31),
        ("vls.stall_count", 32),
        ("vls.head_of_queue_life", 33),
        ("vls.operational", 34),
        ("vls.enforce_inbound", 35),
        ("vls.enforce_outbound", 36),
        ("vls.filter_raw_inbound", 37),
        ("vls.filter_raw_outbound", 38),
        ("mkey_violations", 39),
        ("pkey_violations", 40),
        ("qkey_violations", 41),
        ("guid_cap", 42),
        ("client_reregister", 43),
        ("subnet_timeout", 45),
        ("response_time", 47),
        ("link.local_phys_errors", 48),
        ("link.overrun_errors", 49),
        ("link.max_credit_hint", 50),
        ("link.round_trip_latency", 52),
        ("capability_mask2", 53),
        ("link.extended_active", 54),
        ("link.extended_supported", 55),
        ("link.extended_enabled", 57),
    ] {
        assert_eq!(number(name), Some(expected), "{name}");
    }
}
