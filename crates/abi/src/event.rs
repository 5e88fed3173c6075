//! Event records: [`AsyncRecord`] and [`CompRecord`], and the kinds of async event.
//!
//! The files that announce them are eventfds; where the records wait is told in [`crate::queue`].

record! {
    /// One async event.
    pub struct AsyncRecord[16] {
        /// `user_handle` of the CQ, QP or SRQ; the port number of a port event; 0 of a device event.
        0 => element: u64,
        /// See `kind`.
        8 => event_type: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// One completion event.
    pub struct CompRecord[8] {
        /// `user_handle` of the CQ.
        0 => cq_handle: u64,
    }
}

constants! {
    /// `AsyncRecord::event_type`.
    pub mod kind: u32 {
        /// CQ overrun or protection error.
        CQ_ERR = 0,
        /// QP failed.
        QP_FATAL = 1,
        /// The peer's request was invalid.
        QP_REQ_ERR = 2,
        /// The peer violated access rights.
        QP_ACCESS_ERR = 3,
        /// First message on a QP in RTR.
        COMM_EST = 4,
        /// The send queue is drained.
        SQ_DRAINED = 5,
        /// Path migrated.
        PATH_MIG = 6,
        /// Path migration failed.
        PATH_MIG_ERR = 7,
        /// The device (or its agent) is gone.
        DEVICE_FATAL = 8,
        /// Port became active.
        PORT_ACTIVE = 9,
        /// Port went down.
        PORT_ERR = 10,
        /// The port's LID changed.
        LID_CHANGE = 11,
        /// The port's P_Key table changed.
        PKEY_CHANGE = 12,
        /// The subnet manager changed.
        SM_CHANGE = 13,
        /// SRQ failed.
        SRQ_ERR = 14,
        /// The SRQ fell below its limit.
        SRQ_LIMIT_REACHED = 15,
        /// A QP in error has taken its last WR from its SRQ.
        QP_LAST_WQE_REACHED = 16,
        /// The subnet manager asks for reregistration.
        CLIENT_REREGISTER = 17,
        /// The port's GID table changed.
        GID_CHANGE = 18,
        /// Work queue failed.
        WQ_FATAL = 19,
    }
}
