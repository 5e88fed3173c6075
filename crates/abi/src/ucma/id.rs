//! Ids: create, destroy, migrate, options; and softhca's own commands of the node, except
//! NEXT_EVENT.

record! {
    /// CREATE_ID (0), request.
    pub struct CreateId[24] {
        /// The caller's name for the id; events carry it.
        0 => uid: u64,
        /// Opaque: where a kernel would put the answer.
        8 => response: u64,
        /// See `port_space`.
        16 => ps: u16,
        /// Type of the QP: see `qp::kind`.
        18 => qp_type: u8,
        /// 0.
        19 => reserved: [u8; 5],
    }

    /// CREATE_ID (0), answer; also of JOIN_IP_MCAST and JOIN_MCAST, where it names the membership.
    pub struct CreateIdAnswer[4] {
        /// The new id. Ids are unique in the whole agent, but only the channel that owns one may
        /// name it.
        0 => id: u32,
    }

    /// DESTROY_ID (1) and LEAVE_MCAST (17), request.
    pub struct DestroyId[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The id; for LEAVE_MCAST the membership.
        8 => id: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// DESTROY_ID (1), LEAVE_MCAST (17) and MIGRATE_ID (18), answer. `event_bytes` is softhca's
    /// own: events that waited in the channel for this id have been removed, and the caller takes
    /// their bytes from the event socket (for MIGRATE_ID: from the event socket of the id's old
    /// channel).
    pub struct DestroyIdAnswer[8] {
        /// Number of the id's events that GET_EVENT has returned.
        0 => events_reported: u32,
        /// Number of bytes that the caller takes from the event socket.
        4 => event_bytes: u32,
    }

    /// SET_OPTION (14), request; no answer. The value follows the record; `in_len` includes it.
    pub struct SetOption[24] {
        /// Opaque: where a kernel would find the value.
        0 => optval: u64,
        /// The id.
        8 => id: u32,
        /// See `level`.
        12 => level: u32,
        /// See `option` and `ib_option`.
        16 => optname: u32,
        /// Length of the value, bytes.
        20 => optlen: u32,
    }

    /// MIGRATE_ID (18), request, sent on the channel to which the id moves. The answer is
    /// `DestroyIdAnswer`.
    pub struct MigrateId[16] {
        /// Opaque: where a kernel would put the answer.
        0 => response: u64,
        /// The id.
        8 => id: u32,
        /// Number of the id's current channel, as CHANNEL returned it there (a kernel takes the
        /// file descriptor here).
        12 => fd: u32,
    }

    /// CHANNEL (192), request.
    pub struct Channel[8] {
        /// 0.
        0 => reserved: u64,
    }

    /// CHANNEL (192), answer.
    pub struct ChannelAnswer[4] {
        /// A number, hard to guess, by which MIGRATE_ID on another channel of the same user names
        /// this one.
        0 => channel: u32,
    }

    /// FREEZE_QP (193), request; no answer.
    pub struct FreezeQp[8] {
        /// Number of one of the caller's own QPs.
        0 => qp_num: u32,
        /// 1: MODIFY_QP of it succeeds and changes nothing. 0: MODIFY_QP takes effect again.
        4 => frozen: u32,
    }

    /// RENEW_ID (197), request: DESTROY_ID and then CREATE_ID. If CREATE_ID is refused, this
    /// command still succeeds.
    pub struct RenewId[16] {
        /// The caller's name for the new id; events carry it.
        0 => uid: u64,
        /// The id that ends.
        8 => id: u32,
        /// See `port_space`.
        12 => ps: u16,
        /// Type of the QP: see `qp::kind`.
        14 => qp_type: u8,
        /// 0.
        15 => reserved: u8,
    }

    /// RENEW_ID (197), answer.
    pub struct RenewIdAnswer[12] {
        /// As DESTROY_ID.
        0 => events_reported: u32,
        /// As DESTROY_ID.
        4 => event_bytes: u32,
        /// The new id; 0 if there is no new id.
        8 => id: u32,
    }

    /// TAKEN (195), request; no answer.
    pub struct Taken[8] {
        /// A listening id.
        0 => id: u32,
        /// Number of its CONNECT_REQUESTs from the event socket that the program has received. Its
        /// backlog then has room for as many new requests.
        4 => count: u32,
    }

    /// WAKE (196), request; no answer.
    pub struct Wake[8] {
        /// Number of WOKEN messages that the event socket sends, at most 65536 at a time.
        0 => count: u32,
        /// 0.
        4 => reserved: u32,
    }
}

constants! {
    /// `SetOption::level`.
    pub mod level: u32 {
        /// Options of the id.
        ID = 0,
        /// Options of its path.
        IB = 1,
    }

    /// `SetOption::optname` of level ID.
    pub mod option: u32 {
        /// Type of service, one byte: the traffic class of the path.
        TOS = 0,
        /// An int: several ids may share an address, as long as none of them listens.
        REUSEADDR = 1,
        /// An int: whether the id accepts only its own address family. An id of IPv4 does so unless
        /// the value is 0.
        AFONLY = 2,
        /// One byte: acknowledge timeout code of the QP.
        ACK_TIMEOUT = 3,
    }

    /// `SetOption::optname` of level IB.
    pub mod ib_option: u32 {
        /// `PathRecData`s: the route, instead of RESOLVE_ROUTE.
        PATH = 1,
    }
}
