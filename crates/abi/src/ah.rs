//! Address handles: CREATE_AH and DESTROY_AH, and the address vector [`AhAttr`].

use std::net::Ipv6Addr;

pub use wire::rate_mbps;

/// The highest service level: the field has 4 bits (IBA 7.6.5).
pub const SL_MAX: u8 = 15;

/// The TOS or traffic class of RoCEv2 packets, if `dscp` is that of their service level and their
/// address vector asks for the traffic class `asked`. A DSCP in the address vector decides; the
/// lowest two bits are ECN's.
#[must_use]
pub const fn traffic_class(dscp: u8, asked: u8) -> u8 {
    if asked >> 2 == 0 { dscp << 2 | asked } else { asked }
}

/// Whether packets can go from a port's GID to another GID over RoCEv2: both are IPv4 addresses, or
/// none of them is. A multicast GID fits both. Linux resolves a route before it accepts an address
/// vector, and refuses two families (`rdma_resolve_ip`).
#[must_use]
pub fn can_meet(source: &[u8; 16], dest: &[u8; 16]) -> bool {
    let [source, dest] = [source, dest].map(|gid| Ipv6Addr::from(*gid).to_canonical());
    dest.is_multicast() || source.is_ipv4() == dest.is_ipv4()
}

record! {
    /// An address vector.
    pub struct AhAttr[32] {
        /// Destination GID, network byte order.
        0 => dgid: [u8; 16],
        /// GRH flow label, 20 bits, host byte order.
        16 => flow_label: u32,
        /// Index of the source GID in the port's table.
        20 => sgid_index: u8,
        /// GRH hop limit.
        21 => hop_limit: u8,
        /// GRH traffic class.
        22 => traffic_class: u8,
        /// 0.
        23 => reserved: u8,
        /// Destination LID (0 on RoCE).
        24 => dlid: u16,
        /// Service level.
        26 => sl: u8,
        /// Source path bits (0 on RoCE).
        27 => src_path_bits: u8,
        /// Static rate, a code of [`rate_mbps`]; 0 is as fast as the port.
        28 => static_rate: u8,
        /// 1 when the GRH fields count; RoCE needs it.
        29 => is_global: u8,
        /// Port, from 1.
        30 => port_num: u8,
        /// 0.
        31 => reserved1: u8,
    }

    /// CREATE_AH (5), request.
    pub struct CreateAh[56] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The caller's name for the AH.
        8 => user_handle: u64,
        /// PD of the AH.
        16 => pd_handle: u32,
        /// 0.
        20 => reserved: u32,
        /// The address vector.
        24 => attr: AhAttr,
    }

    /// CREATE_AH (5), answer.
    pub struct CreateAhAnswer[4] {
        /// Handle of the new AH.
        0 => ah_handle: u32,
    }

    /// DESTROY_AH (8), request; no answer.
    pub struct DestroyAh[4] {
        /// Handle of the AH.
        0 => ah_handle: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_two_families_do_not_meet() {
        let gid = |text: &str| text.parse::<Ipv6Addr>().expect(text).octets();
        let (four, six) = (gid("::ffff:10.0.0.1"), gid("fe80::1"));
        assert!(can_meet(&four, &gid("::ffff:10.0.0.2")) && can_meet(&six, &gid("2001:db8::2")));
        assert!(!can_meet(&four, &six) && !can_meet(&six, &four));
        for group in ["ff0e::1", "::ffff:239.1.1.1", "ff0e::ffff:239.1.1.1"].map(gid) {
            assert!(can_meet(&four, &group) && can_meet(&six, &group));
        }
    }
}
