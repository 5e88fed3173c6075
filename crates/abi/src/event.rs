//! Event records: [`AsyncRecord`] and [`CompRecord`], and the kinds of async event ([`EventType`]).
//!
//! Eventfds announce the records; [`crate::queue`] says where the records wait.

record! {
    /// One async event.
    pub struct AsyncRecord[16] {
        /// `user_handle` of the CQ, QP or SRQ; the port number of a port event; 0 of a device
        /// event.
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

/// Kind of an async event: the numbers of [`kind`] as a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventType {
    /// CQ overrun or protection error.
    CqErr = kind::CQ_ERR,
    /// QP failed.
    QpFatal = kind::QP_FATAL,
    /// The peer's request was invalid.
    QpReqErr = kind::QP_REQ_ERR,
    /// The peer violated access rights.
    QpAccessErr = kind::QP_ACCESS_ERR,
    /// First message on a QP in RTR.
    CommEst = kind::COMM_EST,
    /// The send queue is drained.
    SqDrained = kind::SQ_DRAINED,
    /// Path migrated.
    PathMig = kind::PATH_MIG,
    /// Path migration failed.
    PathMigErr = kind::PATH_MIG_ERR,
    /// The device (or its agent) is gone.
    DeviceFatal = kind::DEVICE_FATAL,
    /// Port became active.
    PortActive = kind::PORT_ACTIVE,
    /// Port went down.
    PortErr = kind::PORT_ERR,
    /// The port's LID changed.
    LidChange = kind::LID_CHANGE,
    /// The port's P_Key table changed.
    PkeyChange = kind::PKEY_CHANGE,
    /// The subnet manager changed.
    SmChange = kind::SM_CHANGE,
    /// SRQ failed.
    SrqErr = kind::SRQ_ERR,
    /// The SRQ fell below its limit.
    SrqLimitReached = kind::SRQ_LIMIT_REACHED,
    /// A QP in error has taken its last WR from its SRQ.
    QpLastWqeReached = kind::QP_LAST_WQE_REACHED,
    /// The subnet manager asks for reregistration.
    ClientReregister = kind::CLIENT_REREGISTER,
    /// The port's GID table changed.
    GidChange = kind::GID_CHANGE,
    /// Work queue failed.
    WqFatal = kind::WQ_FATAL,
}

impl EventType {
    /// Every kind, by number.
    pub const ALL: [Self; 20] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::PathMig,
        Self::PathMigErr,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::LidChange,
        Self::PkeyChange,
        Self::SmChange,
        Self::SrqErr,
        Self::SrqLimitReached,
        Self::QpLastWqeReached,
        Self::ClientReregister,
        Self::GidChange,
        Self::WqFatal,
    ];

    /// The kind with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.number() == number)
    }

    /// The number in a record.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Whether the element is a CQ.
    #[must_use]
    pub fn is_cq(self) -> bool {
        self == Self::CqErr
    }

    /// Whether the element is an SRQ.
    #[must_use]
    pub fn is_srq(self) -> bool {
        matches!(self, Self::SrqErr | Self::SrqLimitReached)
    }

    /// Whether the element is a QP.
    #[must_use]
    pub fn is_qp(self) -> bool {
        matches!(
            self,
            Self::QpFatal
                | Self::QpReqErr
                | Self::QpAccessErr
                | Self::CommEst
                | Self::SqDrained
                | Self::PathMig
                | Self::PathMigErr
                | Self::QpLastWqeReached
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_both_ways() {
        for (number, kind) in (0..).zip(EventType::ALL) {
            assert_eq!(EventType::from_number(number), Some(kind));
        }
        assert_eq!(EventType::from_number(20), None);
    }

    #[test]
    fn an_event_concerns_one_kind_of_element() {
        let of = |is: fn(EventType) -> bool| EventType::ALL.into_iter().filter(|kind| is(*kind)).collect::<Vec<_>>();
        assert_eq!(of(EventType::is_cq), [EventType::CqErr]);
        assert_eq!(of(EventType::is_srq), [EventType::SrqErr, EventType::SrqLimitReached]);
        assert_eq!(of(EventType::is_qp).len(), 8);
        let both = |kind: EventType| kind.is_qp() && (kind.is_cq() || kind.is_srq());
        assert!(EventType::QpFatal.is_qp() && of(both).is_empty());
        for kind in [EventType::DeviceFatal, EventType::PortErr, EventType::GidChange, EventType::WqFatal] {
            assert!(!kind.is_cq() && !kind.is_srq() && !kind.is_qp(), "{kind:?}");
        }
    }
}
