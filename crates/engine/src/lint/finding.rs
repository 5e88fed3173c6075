//! What the strict mode can find: the checks with their names and remedies, and one finding. The
//! checks themselves are in the other files of this folder. Principal types: [`Check`] and
//! [`Finding`].

use super::site::Site;

/// A kind of mistake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Check {
    /// The bytes of a send changed between its post and its completion.
    ChangedBuffer,
    /// The response of a READ goes to bytes that another request is using.
    BusyBuffer,
    /// A request sends bytes that an earlier READ or atomic is still to bring.
    MissingFence,
    /// A request changes bytes at the peer that an earlier READ or atomic is still to fetch.
    MissingRemoteFence,
    /// A message overwrote another one whose completion the program had not polled.
    OverwrittenMessage,
    /// A region was deregistered while requests used it.
    DeregisteredInUse,
    /// A request names a region that was deregistered.
    StaleKey,
    /// Registered memory was unmapped.
    UnmappedMemory,
    /// A send queue is full of requests without completions.
    UnsignaledQueue,
    /// A receive request of a UD QP has no room for the GRH.
    ShortDatagram,
    /// More completions may come than the CQ holds.
    SmallCq,
    /// A reliable QP waits for ever.
    NoTimeout,
    /// A reliable QP fails at the first lost packet.
    NoRetry,
    /// An RNR NAK makes a peer wait for 655 ms.
    SlowRnr,
    /// A packet sequence number has more than 24 bits.
    LongPsn,
    /// A peer sent more READs at once than the QP answers.
    ReadDepth,
    /// A request was posted in a state that does not take it.
    WrongState,
    /// Requests are posted again and again after the QP has failed.
    IgnoredError,
    /// A destroy call waits for events to be acknowledged.
    UnacknowledgedEvent,
    /// A device was closed while it still had objects.
    LeftOpen,
}

/// How to correct a missing fence.
const WAIT_OR_FENCE: &str =
    "poll the completion of the READ or atomic first, or post the later request with IBV_SEND_FENCE";

impl Check {
    /// All checks.
    pub const ALL: [Self; 20] = [
        Self::ChangedBuffer,
        Self::BusyBuffer,
        Self::MissingFence,
        Self::MissingRemoteFence,
        Self::OverwrittenMessage,
        Self::DeregisteredInUse,
        Self::StaleKey,
        Self::UnmappedMemory,
        Self::UnsignaledQueue,
        Self::ShortDatagram,
        Self::SmallCq,
        Self::NoTimeout,
        Self::NoRetry,
        Self::SlowRnr,
        Self::LongPsn,
        Self::ReadDepth,
        Self::WrongState,
        Self::IgnoredError,
        Self::UnacknowledgedEvent,
        Self::LeftOpen,
    ];

    /// The name in scripts and in the documentation.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// How to correct the mistake.
    #[must_use]
    pub fn mend(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::ChangedBuffer => (
                "changed-buffer",
                "leave a buffer alone until the completion of its request is polled, or of a later one on the same QP",
            ),
            Self::BusyBuffer => {
                ("busy-buffer", "give each outstanding READ bytes of its own, or wait for the completion before")
            }
            Self::MissingFence => ("missing-fence", WAIT_OR_FENCE),
            Self::MissingRemoteFence => ("missing-remote-fence", WAIT_OR_FENCE),
            Self::OverwrittenMessage => (
                "overwritten-message",
                "give each receive request that may be outstanding at the same time a buffer of its own",
            ),
            Self::DeregisteredInUse => (
                "deregistered-in-use",
                "destroy the QP, or move it to the error state, before ibv_dereg_mr; or wait for the completions",
            ),
            Self::StaleKey => ("stale-key", "deregister memory after its last use, and take keys from a live ibv_mr"),
            Self::UnmappedMemory => ("unmapped-memory", "call ibv_dereg_mr before free or munmap"),
            Self::UnsignaledQueue => (
                "unsignaled-queue",
                "set IBV_SEND_SIGNALED at least once in max_send_wr requests, and poll its completion",
            ),
            Self::ShortDatagram => (
                "short-datagram-receive",
                "make the buffers of UD receives 40 bytes longer than the message, for the GRH",
            ),
            Self::SmallCq => {
                ("small-cq", "make the CQ as large as what can be outstanding on its queues, or post less at a time")
            }
            Self::NoTimeout => ("no-timeout", "set qp_attr.timeout to a value from 1 to 31, such as 14 (67 ms)"),
            Self::NoRetry => ("no-retry", "set qp_attr.retry_cnt to a value from 1 to 7"),
            Self::SlowRnr => {
                ("slow-rnr", "set qp_attr.min_rnr_timer to a short time, such as 12 (640 us), or post receives earlier")
            }
            Self::LongPsn => ("long-psn", "mask packet sequence numbers with 0xffffff"),
            Self::ReadDepth => {
                ("read-depth", "set max_rd_atomic of one side to no more than max_dest_rd_atomic of the other")
            }
            Self::WrongState => (
                "wrong-state",
                "post receives from INIT on and sends from RTS on, and look at what ibv_modify_qp returns",
            ),
            Self::IgnoredError => {
                ("ignored-error", "look at the status of each completion, and reset or destroy a QP that has failed")
            }
            Self::UnacknowledgedEvent => (
                "unacknowledged-event",
                "call ibv_ack_cq_events or ibv_ack_async_event for each event before destroying its object",
            ),
            Self::LeftOpen => ("left-open", "destroy what was made before closing the device"),
        }
    }
}

/// One mistake.
pub(crate) struct Finding {
    pub(crate) check: Check,
    /// The object, so that the same mistake on another object is reported separately.
    pub(crate) object: u64,
    /// The sentence.
    pub(crate) what: String,
    /// The place of the mistake.
    pub(crate) place: FindingPlace,
}

/// Where a mistake was made.
pub(crate) enum FindingPlace {
    /// In the current call.
    Here,
    /// In an earlier call.
    At(Site),
    /// No single call of the program caused it.
    Nowhere,
}

impl Finding {
    pub(crate) fn here(check: Check, object: impl Into<u64>, what: String) -> Self {
        Self { check, object: object.into(), what, place: FindingPlace::Here }
    }

    pub(crate) fn at(site: Site, check: Check, object: impl Into<u64>, what: String) -> Self {
        Self { check, object: object.into(), what, place: FindingPlace::At(site) }
    }

    pub(crate) fn nowhere(check: Check, object: impl Into<u64>, what: String) -> Self {
        Self { check, object: object.into(), what, place: FindingPlace::Nowhere }
    }
}
