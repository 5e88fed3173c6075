//! Tests packets of another host for QPNs that do not exist, while an engine reads the agent's
//! sockets itself. The packets go over the machine's loopback.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, UdpSocket};

use crate::common::wait::until;
use crate::common::{Fabric, Plan, Side};
use abi::qp::{Dest, ModifyQp, attr, state};
use abi::reason::Cause;

/// The BTH of a SEND to QP `qpn`, followed by four bytes in the place of the ICRC.
fn packet(qpn: u32) -> [u8; 16] {
    let mut packet = [0; 16];
    packet[0] = 0x04;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet
}

#[test]
fn they_are_dropped_where_they_are_found() {
    // Addresses that no other test uses, so the port is free.
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let [ours, theirs] = [1, 2].map(|last| Ipv4Addr::new(127, random[0], random[1], last));
    let fabric = Fabric::configured(&format!("addresses = ['{ours}']"));
    let side = Side::new(&fabric.engine(), &Plan::uc());
    let gid = ours.to_ipv6_mapped().octets();
    let index = (0..16).find(|&index| side.engine.query_gid(1, index).is_ok_and(|found| found == gid));
    let sgid_index = index.expect("its address has an index") as u8;
    side.init();
    // The QP has a peer on another host, so its engine reads the sockets for the wire.
    side.modify(&ModifyQp {
        dest: Dest { dgid: theirs.to_ipv6_mapped().octets(), sgid_index, ..side.rtr_request(gid, 0x55, 3).dest },
        ..side.rtr_request(gid, 0x55, 3)
    });
    side.modify(&ModifyQp { attr_mask: attr::STATE | attr::SQ_PSN, qp_state: state::RTS, ..ModifyQp::default() });
    let stranger = UdpSocket::bind((theirs, 0)).expect("a socket");
    let nobody = 0x00c0_ffee;
    let dropped = until("a packet for nobody", || {
        // A packet for the engine's QP makes the engine ask for the receive lease. Until it has the
        // lease, the agent itself drops packets for the other QPN.
        for qpn in [side.qp.qpn(), nobody] {
            stranger.send_to(&packet(qpn), (ours, 4791)).expect("it goes");
        }
        assert_eq!(side.rcq.poll(&mut []), Ok(0));
        side.engine.drops().into_iter().find(|record| record.cause == Cause::NoQp as u32)
    });
    assert_eq!((dropped.dest_qp, dropped.address), (nobody, theirs.to_ipv6_mapped().octets()));
    side.destroy();
}
