//! Queue pairs of iWARP: softhca's own commands STREAM_TAKE and STREAM_END, with which an engine
//! gets the TCP connection of a queue pair, and says that it has ended.

record! {
    /// STREAM_TAKE (232), request: the connection that the connection manager has made for a QP.
    pub struct StreamTake[8] {
        /// Handle of the QP.
        0 => qp_handle: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// STREAM_TAKE (232), answer: what both sides agreed on at start-up. One fd is attached: the
    /// connected TCP socket, which does not block.
    pub struct StreamOut[16] {
        /// See `stream_flags`.
        0 => flags: u32,
        /// READs and atomics that this side serves at a time.
        4 => ird: u16,
        /// READs and atomics that this side has outstanding at most.
        6 => ord: u16,
        /// The ready-to-receive message (0: none, 1: SEND, 2: WRITE, 3: READ).
        8 => rtr: u8,
        /// The revision of MPA.
        9 => revision: u8,
        /// Work-arounds for the peer (`iwarp::Quirks::of`).
        10 => quirks: u8,
        /// 0.
        11 => reserved: [u8; 5],
    }

    /// STREAM_END (233), request, no answer: the stream of a QP has ended.
    pub struct StreamEnd[8] {
        /// QP number.
        0 => qpn: u32,
        /// See `end_flags`.
        4 => flags: u32,
    }
}

constants! {
    /// Bits of `StreamEnd::flags`.
    pub mod end_flags: u32 {
        /// The engine could not take the connection, so the agent resets it.
        NOT_TAKEN = 1,
    }

    /// Bits of `StreamOut::flags`.
    pub mod stream_flags: u32 {
        /// This side has opened the connection.
        INITIATOR = 1,
        /// FPDUs have CRCs.
        CRC = 2,
        /// This side sends markers.
        SENDS_MARKERS = 4,
        /// The peer sends markers.
        RECEIVES_MARKERS = 8,
    }

    /// The state of a stream, in the control line of its QP.
    pub mod state: u32 {
        /// There is no stream yet.
        NONE = 0,
        /// The responder waits for the initiator's first FPDU.
        WAITING = 1,
        /// Both sides send and receive.
        OPEN = 2,
        /// This side waits for the peer's end.
        CLOSING = 3,
        /// A Terminate message ends the stream.
        TERMINATE = 4,
        /// The stream is over.
        CLOSED = 5,
    }

    /// `QpOut::kind`.
    pub mod qp_kind: u32 {
        /// Its packets go over lanes and UDP.
        PACKETS = 0,
        /// Its link is a TCP connection (iWARP).
        STREAM = 1,
    }
}
