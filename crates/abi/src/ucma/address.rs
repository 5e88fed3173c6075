//! Addresses and routes: bind, resolve, query.

use super::sockaddr::SockaddrIn6;

record! {
    /// BIND_IP (2), request; no answer.
    pub struct BindIp[40] {
        /// Opaque.
        0 => response: u64,
        /// The local address, a `SockaddrIn` or `SockaddrIn6`.
        8 => addr: SockaddrIn6,
        /// The id.
        36 => id: u32,
    }

    /// BIND (20), request; no answer.
    pub struct Bind[136] {
        /// The id.
        0 => id: u32,
        /// Length of `addr`: that of its family's sockaddr.
        4 => addr_size: u16,
        /// 0.
        6 => reserved: u16,
        /// The local address: a `SockaddrIn`, `SockaddrIn6` or `SockaddrIb`.
        8 => addr: [u8; 128],
    }

    /// RESOLVE_IP (3), request; no answer. ADDR_RESOLVED or ADDR_ERROR follows.
    pub struct ResolveIp[64] {
        /// The local address, or zeros.
        0 => src_addr: SockaddrIn6,
        /// The peer's address.
        28 => dst_addr: SockaddrIn6,
        /// The id.
        56 => id: u32,
        /// Time to wait, milliseconds.
        60 => timeout_ms: u32,
    }

    /// RESOLVE_ADDR (21), request; no answer. ADDR_RESOLVED or ADDR_ERROR follows.
    pub struct ResolveAddr[272] {
        /// The id.
        0 => id: u32,
        /// Time to wait, milliseconds.
        4 => timeout_ms: u32,
        /// Length of `src_addr`; 0 for none.
        8 => src_size: u16,
        /// Length of `dst_addr`.
        10 => dst_size: u16,
        /// 0.
        12 => reserved: u32,
        /// The local address.
        16 => src_addr: [u8; 128],
        /// The peer's address.
        144 => dst_addr: [u8; 128],
    }

    /// RESOLVE_ROUTE (4), request; no answer. ROUTE_RESOLVED or ROUTE_ERROR follows.
    pub struct ResolveRoute[8] {
        /// The id.
        0 => id: u32,
        /// Time to wait, milliseconds.
        4 => timeout_ms: u32,
    }

    /// QUERY_ROUTE (5) and QUERY (19), request.
    pub struct Query[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The id.
        8 => id: u32,
        /// QUERY: see `query`. QUERY_ROUTE: 0.
        12 => option: u32,
    }

    /// A path, as QUERY_ROUTE returns it.
    pub struct PathRec[64] {
        /// The peer's GID, network byte order.
        0 => dgid: [u8; 16],
        /// The local GID, network byte order.
        16 => sgid: [u8; 16],
        /// LID of the peer, network byte order; 0 on RoCE.
        32 => dlid: u16,
        /// Local LID, network byte order; 0 on RoCE.
        34 => slid: u16,
        /// 0.
        36 => raw_traffic: u32,
        /// Flow label, network byte order.
        40 => flow_label: u32,
        /// 1: the path is reversible.
        44 => reversible: u32,
        /// MTU code: see `device::mtu`.
        48 => mtu: u32,
        /// P_Key, network byte order.
        52 => pkey: u16,
        /// Hop limit.
        54 => hop_limit: u8,
        /// Traffic class.
        55 => traffic_class: u8,
        /// Number of paths; 0 here.
        56 => numb_path: u8,
        /// Service level.
        57 => sl: u8,
        /// 2: exactly this MTU.
        58 => mtu_selector: u8,
        /// 2: exactly this rate.
        59 => rate_selector: u8,
        /// Rate code of the AH.
        60 => rate: u8,
        /// 2: exactly this time.
        61 => packet_life_time_selector: u8,
        /// Packet life time code: 4.096 µs * 2^n.
        62 => packet_life_time: u8,
        /// 0: the best.
        63 => preference: u8,
    }

    /// QUERY_ROUTE (5), answer. The path fields are zero before there is a route.
    pub struct QueryRouteAnswer[208] {
        /// GUID of the device, network byte order; 0 before the id has one.
        0 => node_guid: u64,
        /// The paths.
        8 => ib_route: [PathRec; 2],
        /// The local address.
        136 => src_addr: SockaddrIn6,
        /// The peer's address.
        164 => dst_addr: SockaddrIn6,
        /// Number of paths: 0 or 1. (With an address but without a route, one path with its GIDs
        /// and P_Key is present, and the number is 0.)
        192 => num_paths: u32,
        /// Port of the device, from 1.
        196 => port_num: u8,
        /// 0.
        197 => reserved: [u8; 3],
        /// Index of the device.
        200 => ibdev_index: u32,
        /// 0.
        204 => reserved1: u32,
    }

    /// QUERY (19) with ADDR or GID, answer. With GID the addresses are `SockaddrIb`s of the GIDs.
    pub struct QueryAddrAnswer[280] {
        /// GUID of the device, network byte order; 0 before the id has one.
        0 => node_guid: u64,
        /// Port of the device, from 1.
        8 => port_num: u8,
        /// 0.
        9 => reserved: u8,
        /// P_Key, host byte order.
        10 => pkey: u16,
        /// Length of `src_addr`; 0 before the id has a local address.
        12 => src_size: u16,
        /// Length of `dst_addr`; 0 before the id has a peer.
        14 => dst_size: u16,
        /// The local address.
        16 => src_addr: [u8; 128],
        /// The peer's address.
        144 => dst_addr: [u8; 128],
        /// Index of the device.
        272 => ibdev_index: u32,
        /// 0.
        276 => reserved1: u32,
    }

    /// QUERY (19) with PATH, answer; as many `PathRecData` follow as there are paths and there is
    /// room for.
    pub struct QueryPathAnswer[8] {
        /// Number of paths.
        0 => num_paths: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// A path in the form of the IBA's PathRecord (15.2.5.16): in QUERY and in the option PATH.
    pub struct PathRecData[72] {
        /// See `path_flags`.
        0 => flags: u32,
        /// 0.
        4 => reserved: u32,
        /// The PathRecord, 64 bytes, network byte order.
        8 => path_rec: [u8; 64],
    }
}

constants! {
    /// `Query::option`.
    pub mod query: u32 {
        /// The addresses.
        ADDR = 0,
        /// The paths.
        PATH = 1,
        /// The GIDs.
        GID = 2,
        /// Services: not implemented.
        IB_SERVICE = 3,
    }

    /// `PathRecData::flags`.
    pub mod path_flags: u32 {
        /// For management datagrams.
        GMP = 1,
        /// The primary path.
        PRIMARY = 2,
        /// The alternate path.
        ALTERNATE = 4,
        /// From here to the peer.
        OUTBOUND = 8,
        /// From the peer to here.
        INBOUND = 16,
        /// The inbound path, given as its reverse.
        INBOUND_REVERSE = 32,
    }
}
