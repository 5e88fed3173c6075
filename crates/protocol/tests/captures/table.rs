//! The contents of the captures: the queue pairs, requests and attributes, and where the driver and
//! softhca differ. Principal type: [`Conversation`].

use Difference::{
    AnsweredAnew as ANEW, NoNakBehindRnr as ONE_NAK, NoWishToHear as NO_WISH, Sooner as SOON, TooLong as LONG,
};
use softhca_protocol::{Service, Status};

/// A difference between the driver and softhca, and why both are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Difference {
    /// Requester. The driver sets the AckReq bit of READs and atomics; softhca does not. Their
    /// answer is the acknowledgement, so the bit has no effect.
    NoWishToHear,
    /// Requester. An answer that passes data of a READ shows that the data is lost: an implied NAK.
    /// softhca's requester asks for the rest at once. The driver ignores the gap, and asks for the
    /// same data when its timer ends.
    Sooner,
    /// Responder. After an RNR NAK, the driver also sends a PSN sequence NAK of the same number,
    /// for the packets behind. The requester knows that it must restart there. So one NAK is
    /// enough, and softhca sends one.
    NoNakBehindRnr,
    /// Responder. A READ request for the rest of a READ is a new request: softhca's answer begins
    /// with a first or only packet. The driver continues with a middle or last one. Number, payload
    /// and end are the same, and softhca's requester accepts both.
    AnsweredAnew,
    /// Responder. A message that is longer than its receive request: softhca's executor answers
    /// invalid request, as the IBA says (9.7.5.2.6); the driver answers remote operational error.
    TooLong,
}

/// Requests in one direction between two queue pairs.
pub(crate) struct Conversation {
    /// The capture. A capture named `drop_*` was taken on both sides of a loss: the requester's is
    /// `.tap2`, the responder's `.tap1`.
    pub file: &'static str,
    pub service: Service,
    /// The last byte of the requester's address.
    pub from: u8,
    /// The queue pairs of requester and responder.
    pub qps: (u32, u32),
    pub mtu: u32,
    pub psn: u32,
    /// The requests of the requester's program.
    pub asks: &'static str,
    /// The status of the last request; the others were successful.
    pub ends: Status,
    /// The responder's memory: its address and its keys. Captures that do not show it have 0.
    pub memory: (u64, &'static [u32]),
    /// Receive requests: their number, their length, and when they are posted, in nanoseconds after
    /// the first packet.
    pub receives: (usize, usize, u64),
    pub min_rnr_timer: u8,
    pub rnr_retry: u8,
    /// The differences of requester and responder, and how often each occurs.
    pub differ: &'static [(Difference, usize)],
}

/// The values that most conversations share.
const RC: Conversation = Conversation {
    file: "",
    service: Service::Rc,
    from: 12,
    qps: (0, 0),
    mtu: 1024,
    psn: 0x200,
    asks: "",
    ends: Status::Success,
    memory: (0, &[]),
    receives: (64, 8192, 0),
    min_rnr_timer: 12,
    rnr_retry: 7,
    differ: &[],
};
const UC: Conversation = Conversation { service: Service::Uc, ..RC };
const UD: Conversation = Conversation { service: Service::Ud, psn: 0, ..RC };

/// Queue pairs that have the same number on both hosts.
const fn both(qp: u32) -> (u32, u32) {
    (qp, qp)
}

const SENDS: &str = "SEND 2500, SEND 1024, SEND 1025, SEND 100, SEND 0, SEND 1, SEND 2, SEND 3";
const SENDS_4096: &str = "SEND 8000, SEND 4096, SEND 4097, SEND 100, SEND 0, SEND 1, SEND 2, SEND 3";
const IMMEDIATES: &str = "SEND 64 imm 0x11223344, SEND 2500 imm 0xdeadbeef, SEND 0 imm 0x1, SEND 5 imm 0x80000001 solicited, \
    SEND 2500 solicited";
const READS: &str = "READ 3000 at 64, READ 1024 at 64, READ 64 at 64, READ 5 at 64, READ 2048 at 0, READ 2048 at 2048";
const READS_4096: &str =
    "READ 8000 at 64, READ 4096 at 64, READ 64 at 64, READ 5 at 64, READ 2048 at 0, READ 2048 at 2048";

/// All conversations.
pub(crate) const CONVERSATIONS: &[Conversation] = &[
    Conversation { file: "rc_send", qps: both(0x2f), asks: SENDS, ..RC },
    Conversation { file: "rc_send_tos", qps: both(0x3f), asks: SENDS, ..RC },
    Conversation { file: "rc_send_ipv6", from: 0x12, qps: both(0x3d), asks: SENDS, ..RC },
    Conversation { file: "rc_send_mtu4096", qps: both(0x60), mtu: 4096, asks: SENDS_4096, ..RC },
    Conversation { file: "rc_wrap", qps: both(0x37), psn: 0xff_fffe, asks: SENDS, ..RC },
    Conversation { file: "rc_sendi", qps: both(0x30), asks: IMMEDIATES, ..RC },
    Conversation { file: "rc_sendi_mtu256", qps: both(0x40), mtu: 256, asks: IMMEDIATES, ..RC },
    Conversation {
        file: "rc_write",
        qps: both(0x31),
        asks: "WRITE 3000 at 1000, WRITE 1024 at 1000, WRITE 64 at 1000, WRITE 5 at 1000, WRITE 0 at 0",
        memory: (0x2ac7_2000, &[0x226a]),
        receives: (0, 0, 0),
        ..RC
    },
    Conversation {
        file: "rc_writei",
        qps: both(0x32),
        asks: "WRITE 64 at 16 imm 0x55667788, WRITE 3000 at 100 imm 0x1020304, WRITE 0 at 0 imm 0x7",
        memory: (0xc18_8000, &[0x23fb]),
        receives: (3, 8192, 0),
        ..RC
    },
    Conversation {
        file: "rc_read",
        qps: both(0x33),
        asks: READS,
        memory: (0x75a_1000, &[0x2406]),
        differ: &[(NO_WISH, 6)],
        ..RC
    },
    Conversation {
        file: "rc_read_mtu4096",
        qps: both(0x61),
        mtu: 4096,
        asks: READS_4096,
        memory: (0x1fd3_e000, &[0x561d]),
        differ: &[(NO_WISH, 6)],
        ..RC
    },
    Conversation {
        file: "rc_atomic",
        qps: both(0x34),
        asks: "CAS at 64 swap 0x1122334455667788 compare 0xf4ede6dfd8d1cac3, CAS at 64 swap 0x99 compare 0xf4ede6dfd8d1cac3, \
            ADD at 64 of 0x10, ADD at 64 of 0xffffffffffffffff",
        memory: (0x3afc_5000, &[0x2586]),
        differ: &[(NO_WISH, 4)],
        ..RC
    },
    Conversation {
        file: "rc_inv",
        qps: both(0x3c),
        asks: "WRITE 64 at 0, SEND 64 invalidates 0x80001bd, SEND 16",
        memory: (0x101a_3000, &[0x2dbf, 0x800_01bd]),
        ..RC
    },
    Conversation {
        file: "rc_nak_access",
        qps: both(0x38),
        asks: "WRITE 64 at 0, WRITE 64 at 0",
        ends: Status::RemAccessErr,
        memory: (0x2d7a_9000, &[0x29c5]),
        ..RC
    },
    Conversation {
        file: "rc_nak_read_access",
        qps: both(0x39),
        asks: "READ 64 at 16352",
        ends: Status::RemAccessErr,
        memory: (0x1126_8000, &[0x2a25]),
        differ: &[(NO_WISH, 1)],
        ..RC
    },
    Conversation {
        file: "rc_nak_inv",
        qps: both(0x3a),
        asks: "SEND 64",
        ends: Status::RemOpErr,
        receives: (1, 16, 0),
        differ: &[(LONG, 1)],
        ..RC
    },
    Conversation {
        file: "rc_rnr",
        qps: both(0x41),
        asks: "SEND 2500",
        receives: (1, 8192, 300_000_000),
        min_rnr_timer: 26,
        differ: &[(ONE_NAK, 4)],
        ..RC
    },
    Conversation {
        file: "rc_rnr_exceeded",
        qps: both(0x42),
        asks: "SEND 64",
        ends: Status::RnrRetryExcErr,
        receives: (0, 0, 0),
        min_rnr_timer: 24,
        rnr_retry: 1,
        ..RC
    },
    Conversation { file: "drop_send_middle", qps: both(0x43), asks: "SEND 4096, SEND 64", ..RC },
    Conversation { file: "drop_send_last", qps: both(0x44), asks: "SEND 4096, SEND 64", ..RC },
    Conversation { file: "drop_ack", qps: both(0x45), asks: "SEND 4096, SEND 64", ..RC },
    Conversation {
        file: "drop_write_middle",
        qps: both(0x46),
        asks: "WRITE 4096 at 0, WRITE 64 at 0",
        memory: (0x2444_2000, &[0x3757]),
        ..RC
    },
    Conversation {
        file: "drop_read_resp_middle",
        qps: both(0x47),
        asks: "READ 4096 at 0, READ 64 at 0",
        memory: (0x1fd1_c000, &[0x38cb]),
        differ: &[(NO_WISH, 3), (SOON, 1), (ANEW, 1)],
        ..RC
    },
    Conversation {
        file: "drop_read_resp_last",
        qps: both(0x48),
        asks: "READ 4096 at 0, READ 64 at 0",
        memory: (0x9b7_d000, &[0x39b8]),
        differ: &[(NO_WISH, 3), (ANEW, 1)],
        ..RC
    },
    Conversation {
        file: "drop_read_req",
        qps: both(0x49),
        asks: "READ 4096 at 0, READ 64 at 0",
        memory: (0x31ed_e000, &[0x3ad1]),
        differ: &[(NO_WISH, 3)],
        ..RC
    },
    Conversation {
        file: "drop_atomic_ack",
        qps: both(0x4a),
        asks: "ADD at 64 of 0x1, ADD at 64 of 0x1",
        memory: (0x320f_e000, &[0x3bb1]),
        differ: &[(NO_WISH, 3)],
        ..RC
    },
    // A program of 60 lines that speaks to the driver through a plain socket, in both directions.
    Conversation {
        file: "host_userspace_rc",
        from: 1,
        qps: (0x777, 0x62),
        psn: 0x500,
        asks: "SEND 21, WRITE 17, READ 17, SEND 3",
        differ: &[(NO_WISH, 1)],
        ..RC
    },
    Conversation { file: "host_userspace_rc", from: 11, qps: (0x62, 0x777), psn: 0x300, asks: "SEND 2000", ..RC },
    // rping: the server reads the client's buffer and writes into it. The numbers are those of REQ
    // and REP.
    Conversation {
        file: "cm_rping",
        qps: both(0x4b),
        psn: 0x36_3c89,
        asks: "SEND 16, SEND 16, SEND 16, SEND 16",
        ..RC
    },
    Conversation {
        file: "cm_rping",
        from: 11,
        qps: both(0x4b),
        psn: 0xb4_d933,
        asks: "READ 100, SEND 16, WRITE 100, SEND 16, READ 100, SEND 16, WRITE 100, SEND 16",
        differ: &[(NO_WISH, 2)],
        ..RC
    },
    Conversation {
        file: "cm_rping_ipv6",
        from: 0x12,
        qps: both(0x4c),
        psn: 0x15_78e5,
        asks: "SEND 16, SEND 16, SEND 16, SEND 16",
        ..RC
    },
    Conversation {
        file: "cm_rping_ipv6",
        from: 0x11,
        qps: both(0x4c),
        psn: 0x47_58fa,
        asks: "READ 100, SEND 16, WRITE 100, SEND 16, READ 100, SEND 16, WRITE 100, SEND 16",
        differ: &[(NO_WISH, 2)],
        ..RC
    },
    Conversation { file: "cm_ucmatose", from: 11, qps: both(0x4d), psn: 0x01_b5f8, asks: "SEND 64, SEND 64", ..RC },
    Conversation { file: "cm_ucmatose", from: 11, qps: both(0x4e), psn: 0x82_370f, asks: "SEND 64, SEND 64", ..RC },
    Conversation { file: "cm_ucmatose", qps: both(0x4d), psn: 0xb3_9fe4, asks: "SEND 64, SEND 64", ..RC },
    Conversation { file: "cm_ucmatose", qps: both(0x4e), psn: 0xb5_9eb7, asks: "SEND 64, SEND 64", ..RC },
    Conversation {
        file: "uc",
        qps: both(0x36),
        asks: "SEND 2500, SEND 2500 imm 0xaabbccdd, SEND 10, WRITE 3000 at 0, WRITE 30 at 0 imm 0x9, WRITE 6 at 8, \
            WRITE 2500 at 0 imm 0xa",
        memory: (0x190b_8000, &[0x27e9]),
        ..UC
    },
    Conversation { file: "ud", qps: both(0x35), asks: "SEND 256, SEND 33 imm 0xcafef00d, SEND 0, SEND 1024", ..UD },
    Conversation {
        file: "ud_ipv6",
        from: 0x12,
        qps: both(0x3e),
        asks: "SEND 256, SEND 33 imm 0xcafef00d, SEND 0, SEND 1024",
        ..UD
    },
    Conversation { file: "cm_udaddy_sidr", qps: both(0x4f), asks: "SEND 64 imm 0x4f, SEND 64 imm 0x4f", ..UD },
    Conversation {
        file: "cm_udaddy_sidr",
        from: 11,
        qps: both(0x4f),
        asks: "SEND 64 imm 0x4f, SEND 64 imm 0x4f",
        ..UD
    },
    Conversation {
        file: "mcast_mckey",
        qps: (0x51, 0xff_ffff),
        asks: "SEND 64 imm 0x51, SEND 64 imm 0x51, SEND 64 imm 0x51, SEND 64 imm 0x51",
        ..UD
    },
];
