//! What goes with the commands and comes with the answers, in host terms: port spaces, connection parameters, paths, options.

pub use abi::ucma::connection::QpAttr as QpAttributes;

use crate::address::Address;

/// The name of an id: a number that the agent gave out. It belongs to the channel on which it was made (or to which it was moved).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(pub u32);

/// The name of a membership in a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multicast(pub u32);

/// `enum rdma_port_space`: which ports an id binds, and so how its peers speak to it.
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

/// `enum ibv_qp_type`, as far as the connection manager tells types apart.
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

/// A QP state for which attributes are asked (`enum ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpState(pub u32);

impl QpState {
    /// Initialised: receives may be posted.
    pub const INIT: Self = Self(1);
    /// Ready to receive.
    pub const RTR: Self = Self(2);
    /// Ready to send.
    pub const RTS: Self = Self(3);
}

/// What an enhanced connection establishment tells of the other side (IBA volume 1, 12.6; `rdma_set_local_ece(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Who defines the options; 0 for none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// What CONNECT and ACCEPT say (`struct rdma_conn_param`, with the numbers of the QP).
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnParam<'a> {
    /// The own QP.
    pub qp_num: u32,
    /// Its Q_Key, where datagrams are accepted; 0 for the default.
    pub qkey: u32,
    /// The QP receives from an SRQ.
    pub srq: bool,
    /// READs and atomics that the peer may have under way towards us.
    pub responder_resources: u8,
    /// READs and atomics that we have under way.
    pub initiator_depth: u8,
    /// Whether the hardware offers flow control.
    pub flow_control: bool,
    /// How often an unanswered message is sent again (0 to 7).
    pub retry_count: u8,
    /// How often after a receiver-not-ready (7: for ever).
    pub rnr_retry_count: u8,
    /// For the peer's program.
    pub private_data: &'a [u8],
    /// Enhanced connection establishment.
    pub ece: Ece,
}

/// What QUERY says of an id's addresses (option ADDR), with the device that they led to.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// GUID of the device in network order; zeros while there is none.
    pub node_guid: [u8; 8],
    /// Number of the device.
    pub device: u32,
    /// Its port, from 1.
    pub port: u8,
    /// The partition key.
    pub pkey: u16,
    /// Ours.
    pub source: Address,
    /// The peer's.
    pub destination: Address,
}

/// What QUERY says of an id's GIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gids {
    /// Ours.
    pub source: [u8; 16],
    /// The peer's.
    pub destination: [u8; 16],
}

/// A path between two ports, as the SA's path record tells it (IBA volume 1, 15.2.5.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// `IBV_PATH_FLAG_…`: which of several paths it is.
    pub flags: u32,
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// Our GID.
    pub sgid: [u8; 16],
    /// The peer's LID; 0 on Ethernet.
    pub dlid: u16,
    /// Our LID; 0 on Ethernet.
    pub slid: u16,
    /// 20 bits.
    pub flow_label: u32,
    /// The GRH's hop limit.
    pub hop_limit: u8,
    /// The GRH's traffic class.
    pub traffic_class: u8,
    /// The path works both ways.
    pub reversible: bool,
    /// The partition key.
    pub pkey: u16,
    /// The service level.
    pub sl: u8,
    /// Code of the largest packet.
    pub mtu: u8,
    /// Code of the rate.
    pub rate: u8,
    /// 4.096 µs · 2^this: how long a packet lives.
    pub packet_life_time: u8,
}

impl Path {
    /// Size of a path record with its flags (`struct ibv_path_data`).
    pub const DATA: usize = 72;

    /// Reads one `struct ibv_path_data`; `None` when the bytes are too few.
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
    /// Whether an address may be bound that another id has.
    ReuseAddress(bool),
    /// Whether an id bound to `::` leaves IPv4 to others.
    FamilyOnly(bool),
    /// The local ACK timeout: 4.096 µs · 2^this.
    AckTimeout(u8),
    /// The path to use: one or more `struct ibv_path_data`.
    IbPath(&'a [u8]),
    /// Any, as numbers and bytes.
    Raw {
        /// `RDMA_OPTION_ID` (0) or `RDMA_OPTION_IB` (1).
        level: u32,
        /// Number of the option at that level.
        name: u32,
        /// Its value.
        value: &'a [u8],
    },
}

/// How a group is joined.
#[derive(Clone, Copy, Debug)]
pub struct MulticastJoin {
    /// The group's address.
    pub group: Address,
    /// Only for sending: the group's messages are not wanted.
    pub send_only: bool,
    /// Comes with the group's events.
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
