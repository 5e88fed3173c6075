//! Tests of the counters against literal bytes and the positions of libibmad.

use super::*;
use crate::layout::tests::{agrees, round_trip};

#[test]
fn port_counters_in_literal_bytes() {
    let bytes = [
        0, 1, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 0, 5, 0, 6, 0, 7, 8, 9, 1, 0xab, 0, 12, 0, 13, 0, 0, 0, 14, 0, 0, 0, 15, 0,
        0, 0, 16, 0, 0, 0, 17, 0, 0, 0, 18,
    ];
    let counters = PortCounters {
        port: 1,
        select: 0xffff,
        symbol_errors: 1,
        link_recoveries: 2,
        link_downed: 3,
        receive_errors: 4,
        remote_physical_errors: 5,
        switch_relay_errors: 6,
        xmit_discards: 7,
        xmit_constraint_errors: 8,
        receive_constraint_errors: 9,
        select2: 1,
        local_integrity_errors: 10,
        buffer_overruns: 11,
        qp1_dropped: 12,
        vl15_dropped: 13,
        xmit_data: 14,
        receive_data: 15,
        xmit_packets: 16,
        receive_packets: 17,
        xmit_wait: 18,
    };
    assert_eq!(PortCounters::parse(&bytes), counters);
    let mut emitted = [0xff; PortCounters::LEN];
    counters.emit(&mut emitted);
    assert_eq!(emitted, bytes);
}

#[test]
fn nothing_is_lost() {
    round_trip::<PortCounters>();
    round_trip::<PortCountersExtended>();
    round_trip::<PortReceiveErrorDetails>();
    round_trip::<PortXmitDiscardDetails>();
    round_trip::<PortOpReceiveCounters>();
    round_trip::<PortFlowControlCounters>();
    round_trip::<PortSlCounters>();
}

#[test]
fn positions_are_those_of_libibmad() {
    agrees::<PortCounters>(&[
        ("PortSelect", 8, 8),
        ("CounterSelect", 16, 16),
        ("SymbolErrorCounter", 32, 16),
        ("LinkErrorRecoveryCounter", 48, 8),
        ("LinkDownedCounter", 56, 8),
        ("PortRcvErrors", 64, 16),
        ("PortRcvRemotePhysicalErrors", 80, 16),
        ("PortRcvSwitchRelayErrors", 96, 16),
        ("PortXmitDiscards", 112, 16),
        ("PortXmitConstraintErrors", 128, 8),
        ("PortRcvConstraintErrors", 136, 8),
        ("CounterSelect2", 144, 8),
        ("LocalLinkIntegrityErrors", 152, 4),
        ("ExcessiveBufferOverrunErrors", 156, 4),
        ("VL15Dropped", 176, 16),
        ("PortXmitData", 192, 32),
        ("PortRcvData", 224, 32),
        ("PortXmitPkts", 256, 32),
        ("PortRcvPkts", 288, 32),
        ("PortXmitWait", 320, 32),
    ]);
    agrees::<PortCountersExtended>(&[
        ("PortXmitData", 64, 64),
        ("PortRcvData", 128, 64),
        ("PortXmitPkts", 192, 64),
        ("PortRcvPkts", 256, 64),
        ("PortUnicastXmitPkts", 320, 64),
        ("PortUnicastRcvPkts", 384, 64),
        ("PortMulticastXmitPkts", 448, 64),
        ("PortMulticastRcvPkts", 512, 64),
        ("CounterSelect2", 32, 32),
        ("SymbolErrorCounter", 576, 64),
        ("LinkErrorRecoveryCounter", 640, 64),
        ("LinkDownedCounter", 704, 64),
        ("PortRcvErrors", 768, 64),
        ("PortRcvRemotePhysicalErrors", 832, 64),
        ("PortRcvSwitchRelayErrors", 896, 64),
        ("PortXmitDiscards", 960, 64),
        ("PortXmitConstraintErrors", 1024, 64),
        ("PortRcvConstraintErrors", 1088, 64),
        ("LocalLinkIntegrityErrors", 1152, 64),
        ("ExcessiveBufferOverrunErrors", 1216, 64),
        ("VL15Dropped", 1280, 64),
        ("PortXmitWait", 1344, 64),
        ("QP1Dropped", 1408, 64),
    ]);
    agrees::<PortReceiveErrorDetails>(&[
        ("PortLocalPhysicalErrors", 32, 16),
        ("PortMalformedPktErrors", 48, 16),
        ("PortBufferOverrunErrors", 64, 16),
        ("PortDLIDMappingErrors", 80, 16),
        ("PortVLMappingErrors", 96, 16),
        ("PortLoopingErrors", 112, 16),
    ]);
    agrees::<PortXmitDiscardDetails>(&[
        ("PortInactiveDiscards", 32, 16),
        ("PortNeighborMTUDiscards", 48, 16),
        ("PortSwLifetimeLimitDiscards", 64, 16),
        ("PortSwHOQLifetimeLimitDiscards", 80, 16),
    ]);
    agrees::<PortOpReceiveCounters>(&[("PortOpRcvPkts", 32, 32), ("PortOpRcvData", 64, 32)]);
    agrees::<PortFlowControlCounters>(&[("PortXmitFlowPkts", 32, 32), ("PortRcvFlowPkts", 64, 32)]);
    agrees::<PortSlCounters>(&[("XmtDataSL0 to XmtDataSL15", 32, 512)]);
}
