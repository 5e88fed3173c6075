//! The parameters of commands and answers in host terms: port spaces, connection parameters, paths,
//! options. The principal type is [`ConnParam`].

pub use abi::ucma::connection::QpAttr as QpAttributes;

use crate::address::Address;

/// A number from the agent that names an id. It belongs to the channel on which the id was made or
/// to which it was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u32);

/// A number from the agent that names a membership in a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multicast(pub u32);

/// `enum rdma_port_space`: which ports an id binds, and so which protocol its peers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// Datagrams for IP over InfiniBand.
    pub const IPOIB: Self = Self(0x0002);
    /// Reliable connections.
    pub const TCP: Self = Self(0x0106);
    /// Datagrams.
    pub const UDP: Self = Self(0x0111);
    /// Any service, by service ids instead of ports.
    pub const IB: Self = Self(0x013f);
}

/// `enum ibv_qp_type`, reduced to the types that the connection manager distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpKind(pub u8);

impl QpKind {
    /// Reliable connection.
    pub const RC: Self = Self(2);
    /// Unreliable connection.
    pub const UC: Self = Self(3);
    /// Unreliable datagram.
    pub const UD: Self = Self(4);
}

/// A QP state whose attributes can be asked for (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpState(pub u32);

impl QpState {
    /// Initialized: receives may be posted.
    pub const INIT: Self = Self(1);
    /// Ready to receive.
    pub const RTR: Self = Self(2);
    /// Ready to send.
    pub const RTS: Self = Self(3);
}

/// The options of enhanced connection establishment (IBA volume 1, 12.6; `rdma_set_local_ece(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor that defines the options; 0 for none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// The parameters of CONNECT and ACCEPT (`struct rdma_conn_param`, with the numbers of the QP).
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnParam<'a> {
    /// This side's QP.
    pub qp_num: u32,
    /// The Q_Key of this QP when it accepts datagrams; 0 for the default.
    pub qkey: u32,
    /// Whether the QP receives from an SRQ.
    pub srq: bool,
    /// READs and atomics that the peer may have outstanding towards this side.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Whether the hardware offers flow control.
    pub flow_control: bool,
    /// How often an unanswered message is retransmitted (0 to 7).
    pub retry_count: u8,
    /// How often a message is retried after an RNR NAK (7: for ever).
    pub rnr_retry_count: u8,
    /// The private data for the peer's program.
    pub private_data: &'a [u8],
    /// Enhanced connection establishment.
    pub ece: Ece,
}

/// The answer of QUERY with option ADDR: an id's addresses and the device that they resolved to.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The device's GUID in network order; zeros without a device.
    pub node_guid: [u8; 8],
    /// The number of the device.
    pub device: u32,
    /// The port of the device, from 1.
    pub port: u8,
    /// The partition key.
    pub pkey: u16,
    /// The local address.
    pub source: Address,
    /// The peer's address.
    pub destination: Address,
}

/// The answer of QUERY with option GID: an id's GIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gids {
    /// The local address.
    pub source: [u8; 16],
    /// The peer's address.
    pub destination: [u8; 16],
}

/// A path between two ports, as in a path record of the SA (IBA volume 1, 15.2.5.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// `IBV_PATH_FLAG_…`: the role of this path among several.
    pub flags: u32,
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// The local GID.
    pub sgid: [u8; 16],
    /// The peer's LID; 0 on Ethernet.
    pub dlid: u16,
    /// The local LID; 0 on Ethernet.
    pub slid: u16,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The GRH's hop limit.
    pub hop_limit: u8,
    /// The GRH's traffic class.
    pub traffic_class: u8,
    /// Whether the path works both ways.
    pub reversible: bool,
    /// The partition key.
    pub pkey: u16,
    /// The service level.
    pub sl: u8,
    /// The code of the MTU.
    pub mtu: u8,
    /// The code of the rate.
    pub rate: u8,
    /// The packet lifetime: 4.096 µs · 2^this.
    pub packet_life_time: u8,
}

impl Path {
    /// The size of a path record with its flags (`struct ibv_path_data`).
    pub const DATA: usize = 72;

    /// Parses one `struct ibv_path_data`; `None` if there are too few bytes.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let data: &[u8; Self::DATA] = data.get(..Self::DATA)?.try_into().ok()?;
        let be16 = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
        let gid = |at: usize| std::array::from_fn(|index| data[at + index]);
        let flow = u32::from_be_bytes([data[52], data[53], data[54], data[55]]);
        Some(Self {
            flags: u32::from_ne_bytes([data[0], data[1], data[2], data[3]]),
            dgid: gid(16),
            sgid: gid(32),
            dlid: be16(48),
            slid: be16(50),
            flow_label: flow >> 8 & 0xf_ffff,
            hop_limit: data[55],
            traffic_class: data[56],
            reversible: data[57] & 0x80 != 0,
            pkey: be16(58),
            sl: data[61] & 0xf,
            mtu: data[62] & 0x3f,
            rate: data[63] & 0x3f,
            packet_life_time: data[64] & 0x3f,
        })
    }
}

/// An option of an id (`rdma_set_option(3)`).
#[derive(Clone, Copy, Debug)]
pub enum SetOption<'a> {
    /// The quality of service: an IPv4 type of service or IPv6 traffic class.
    TypeOfService(u8),
    /// Whether the id may bind an address that another id has.
    ReuseAddress(bool),
    /// Whether an id bound to `::` leaves IPv4 to other ids.
    FamilyOnly(bool),
    /// The local ACK timeout: 4.096 µs · 2^this.
    AckTimeout(u8),
    /// The path to use: one or more `struct ibv_path_data`.
    IbPath(&'a [u8]),
    /// Any option, as numbers and bytes.
    Raw {
        /// `RDMA_OPTION_ID` (0) or `RDMA_OPTION_IB` (1).
        level: u32,
        /// Number of the option at that level.
        name: u32,
        /// Its value.
        value: &'a [u8],
    },
}

/// How to join a group.
#[derive(Clone, Copy, Debug)]
pub struct MulticastJoin {
    /// The group's address.
    pub group: Address,
    /// Only for sending: the id does not receive the group's messages.
    pub send_only: bool,
    /// The cookie that the group's events carry.
    pub cookie: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_is_read_as_the_sa_writes_it() {
        let mut data = [0u8; Path::DATA];
        data[..4].copy_from_slice(&1u32.to_ne_bytes());
        data[16..32].fill(0xd);
        data[32..48].fill(0x5);
        data[52..56].copy_from_slice(&[0x0a, 0xbc, 0xde, 64]);
        data[56] = 0x20;
        data[57] = 0x81;
        data[58..60].copy_from_slice(&[0xff, 0xff]);
        data[61] = 3;
        data[62..65].copy_from_slice(&[0x84, 0x83, 0x92]);
        let path = Path::read(&data).expect("a path");
        assert_eq!((path.flags, path.dgid, path.sgid), (1, [0xd; 16], [5; 16]));
        assert_eq!((path.flow_label, path.hop_limit, path.traffic_class, path.sl), (0xa_bcde, 64, 0x20, 3));
        assert_eq!((path.pkey, path.mtu, path.rate, path.packet_life_time), (0xffff, 4, 3, 0x12));
        assert!(path.reversible);
        assert_eq!(Path::read(&data[..71]), None);
    }
}
