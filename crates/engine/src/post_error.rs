//! Why a work request was not posted. [`PostError`] has the queue and the [`PostCause`] with its
//! numbers. The errno and the sentence follow from these, so a refused post formats nothing until
//! somebody reads the sentence.

use std::fmt;

use abi::errno::Errno;
use protocol::{Service, State};

/// Why an engine refuses everything in a process that inherited it over a fork.
pub(crate) const INHERITED: &str = "the object was made before a fork, in another process: open the device again here";

/// A work request was not posted, and the call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// The queue to which the program posted.
    pub queue: WorkQueue,
    /// Why the request was refused.
    pub cause: PostCause,
}

/// A queue of work requests, with the number that names it in sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueue {
    /// The send queue of the QP with this number.
    Send(u32),
    /// The receive queue of the QP with this number.
    Receive(u32),
    /// The shared receive queue with this handle.
    Shared(u32),
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostCause {
    /// The queue belongs to another process, from which this process was forked.
    Inherited,
    /// The QP or SRQ is destroyed.
    Destroyed,
    /// The QP is in a state in which the queue takes no requests.
    State(State),
    /// The QP has no receive queue of its own.
    NoReceiveQueue,
    /// The service does not have the operation.
    Opcode {
        /// IBV numbering.
        opcode: u32,
        /// The service of the QP.
        service: Service,
    },
    /// iWARP does not have the operation.
    NotOfIwarp {
        /// IBV numbering.
        opcode: u32,
    },
    /// The peers agreed on no READs and atomics (iWARP).
    NoReads,
    /// The list of elements is too long.
    TooManySges {
        /// Elements of the request.
        given: usize,
        /// Elements that the queue takes.
        most: u32,
    },
    /// Each entry of the queue has a request whose completion was not polled.
    QueueFull {
        /// Requests that the queue takes.
        depth: u32,
    },
    /// The queue has fewer free entries than a batch has requests.
    NoRoom {
        /// Requests of the batch.
        wanted: u32,
        /// Requests that the queue takes.
        depth: u32,
    },
    /// The CQ might have no room for the completions.
    CqFull {
        /// The handle of the CQ.
        cq: u32,
        /// Completions for which it has room.
        capacity: u32,
        /// Requests that may still complete there.
        outstanding: u32,
    },
    /// More inline data than the queue takes, or inline data of an operation that has none.
    Inline {
        /// Bytes of the request.
        bytes: u64,
        /// Bytes that the queue takes.
        most: u32,
    },
    /// The inline data cannot be read.
    InlineFault {
        /// Where reading failed.
        addr: u64,
    },
    /// A datagram without an address handle.
    NoAddress,
    /// A BIND_MW without a memory window.
    NoWindow,
    /// An ATOMIC WRITE whose length is not 8 bytes.
    AtomicWrite {
        /// Bytes of the request.
        bytes: u64,
    },
    /// A FLUSH with values that do not exist.
    Flush {
        /// The placement type.
        placement: u8,
        /// The selectivity level.
        selectivity: u8,
    },
    /// A FLUSH with elements.
    FlushWithSges {
        /// Elements of the request.
        given: usize,
    },
}

impl PostError {
    /// The errno that `ibv_post_send(3)`, `ibv_post_recv(3)` and `ibv_post_srq_recv(3)` name.
    #[must_use]
    pub fn errno(self) -> Errno {
        use PostCause as C;
        match self.cause {
            C::Inherited => Errno::EIO,
            C::QueueFull { .. } | C::NoRoom { .. } | C::CqFull { .. } => Errno::ENOMEM,
            C::InlineFault { .. } => Errno::EFAULT,
            C::Destroyed
            | C::State(_)
            | C::NoReceiveQueue
            | C::Opcode { .. }
            | C::NotOfIwarp { .. }
            | C::NoReads
            | C::TooManySges { .. }
            | C::Inline { .. }
            | C::NoAddress
            | C::NoWindow
            | C::AtomicWrite { .. }
            | C::Flush { .. }
            | C::FlushWithSges { .. } => Errno::EINVAL,
        }
    }

    /// Whether the request may be posted once others have completed.
    #[must_use]
    pub fn is_full(self) -> bool {
        self.errno() == Errno::ENOMEM
    }

    fn why(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PostCause as C;
        use WorkQueue::{Receive, Send, Shared};
        match (self.cause, self.queue) {
            (C::Inherited, _) => f.write_str(INHERITED),
            (C::Destroyed, Send(_) | Receive(_)) => f.write_str("the QP is destroyed"),
            (C::Destroyed, Shared(srq)) => write!(f, "SRQ {srq} is destroyed"),
            (C::State(state), Send(_)) => write!(f, "the QP is in state {state:?}, sends need RTS"),
            (C::State(state), _) => write!(f, "the QP is in state {state:?}, receives need INIT"),
            (C::NoReceiveQueue, _) => f.write_str("the QP has no receive queue of its own"),
            (C::NotOfIwarp { opcode }, _) => write!(f, "opcode {opcode} does not exist on iWARP"),
            (C::NoReads, _) => f.write_str(
                "the peers agreed on no READs and atomics; ask for them by initiator_depth and responder_resources",
            ),
            (C::Opcode { opcode, service }, _) => write!(f, "opcode {opcode} does not exist on {service}"),
            (C::TooManySges { given, most }, Send(_)) => write!(f, "{given} gather elements, the QP takes {most}"),
            (C::TooManySges { given, most }, Receive(_)) => write!(f, "{given} scatter elements, the QP takes {most}"),
            (C::TooManySges { given, most }, Shared(srq)) => {
                write!(f, "{given} scatter elements on SRQ {srq}, which takes {most}")
            }
            (C::QueueFull { depth }, Send(_)) => {
                write!(f, "the send queue is full: {depth} requests without a polled completion")
            }
            (C::QueueFull { depth }, Receive(_)) => write!(f, "the receive queue is full: {depth} requests"),
            (C::QueueFull { depth }, Shared(srq)) => write!(f, "SRQ {srq} is full: {depth} requests wait"),
            (C::NoRoom { wanted, depth }, _) => write!(f, "its send queue of {depth} has no room for {wanted} more"),
            (C::CqFull { cq, capacity, outstanding }, _) => {
                write!(f, "CQ {cq} has room for {capacity} completions, and {outstanding} requests are under way")
            }
            (C::Inline { bytes, most }, _) => {
                write!(f, "{bytes} bytes inline, the QP takes {most} and READs and atomics none")
            }
            (C::InlineFault { addr }, _) => write!(f, "the inline data at {addr:#x} cannot be read"),
            (C::NoAddress, _) => f.write_str("a datagram needs an address handle"),
            (C::NoWindow, _) => f.write_str("BIND_MW without a window"),
            (C::AtomicWrite { bytes }, _) => write!(f, "an ATOMIC WRITE of {bytes} bytes; its length must be 8"),
            (C::Flush { placement, selectivity }, _) => write!(
                f,
                "a FLUSH with placement {placement:#x}, selectivity {selectivity}: these values are not valid"
            ),
            (C::FlushWithSges { given }, _) => write!(f, "a FLUSH with {given} gather elements: it has no data"),
        }
    }
}

/// The sentence for a reader who knows the queue.
pub(crate) struct Brief(pub(crate) PostError);

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0.queue.call())?;
        self.0.why(f)
    }
}

/// The whole sentence, which names the queue.
impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause, self.queue) {
            // These sentences name their objects.
            (PostCause::Inherited | PostCause::CqFull { .. }, _) | (_, WorkQueue::Shared(_)) => {}
            (_, queue @ (WorkQueue::Send(qp) | WorkQueue::Receive(qp))) => {
                write!(f, "{} on QP {qp:#x}: ", queue.call())?;
            }
        }
        self.why(f)
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        error.errno()
    }
}

impl WorkQueue {
    /// The verb that posts to it.
    fn call(self) -> &'static str {
        match self {
            Self::Send(_) => "post_send",
            Self::Receive(_) => "post_recv",
            Self::Shared(_) => "post_srq_recv",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence and the errno of each cause on each kind of queue on which it occurs.
    #[test]
    fn each_cause_has_its_sentence_and_errno() {
        use PostCause as C;
        let (send, receive, shared) = (WorkQueue::Send(0x11), WorkQueue::Receive(0x11), WorkQueue::Shared(3));
        let cq_full = C::CqFull { cq: 2, capacity: 16, outstanding: 15 };
        let flush = C::Flush { placement: 0x8, selectivity: 2 };
        let uc = C::Opcode { opcode: 4, service: Service::Uc };
        let (einval, enomem) = (Errno::EINVAL, Errno::ENOMEM);
        for (queue, cause, errno, sentence) in [
            (send, C::Inherited, Errno::EIO, INHERITED),
            (shared, C::Inherited, Errno::EIO, INHERITED),
            (send, C::Destroyed, einval, "post_send on QP 0x11: the QP is destroyed"),
            (receive, C::Destroyed, einval, "post_recv on QP 0x11: the QP is destroyed"),
            (shared, C::Destroyed, einval, "SRQ 3 is destroyed"),
            (send, C::State(State::Init), einval, "post_send on QP 0x11: the QP is in state Init, sends need RTS"),
            (
                receive,
                C::State(State::Reset),
                einval,
                "post_recv on QP 0x11: the QP is in state Reset, receives need INIT",
            ),
            (receive, C::NoReceiveQueue, einval, "post_recv on QP 0x11: the QP has no receive queue of its own"),
            (send, uc, einval, "post_send on QP 0x11: opcode 4 does not exist on UC"),
            (
                send,
                C::TooManySges { given: 5, most: 4 },
                einval,
                "post_send on QP 0x11: 5 gather elements, the QP takes 4",
            ),
            (
                receive,
                C::TooManySges { given: 5, most: 4 },
                einval,
                "post_recv on QP 0x11: 5 scatter elements, the QP takes 4",
            ),
            (shared, C::TooManySges { given: 5, most: 4 }, einval, "5 scatter elements on SRQ 3, which takes 4"),
            (
                send,
                C::QueueFull { depth: 16 },
                enomem,
                "post_send on QP 0x11: the send queue is full: 16 requests without a polled completion",
            ),
            (
                receive,
                C::QueueFull { depth: 16 },
                enomem,
                "post_recv on QP 0x11: the receive queue is full: 16 requests",
            ),
            (shared, C::QueueFull { depth: 16 }, enomem, "SRQ 3 is full: 16 requests wait"),
            (
                send,
                C::NoRoom { wanted: 9, depth: 8 },
                enomem,
                "post_send on QP 0x11: its send queue of 8 has no room for 9 more",
            ),
            (receive, cq_full, enomem, "CQ 2 has room for 16 completions, and 15 requests are under way"),
            (
                send,
                C::Inline { bytes: 65, most: 64 },
                einval,
                "post_send on QP 0x11: 65 bytes inline, the QP takes 64 and READs and atomics none",
            ),
            (
                send,
                C::InlineFault { addr: 0x1000 },
                Errno::EFAULT,
                "post_send on QP 0x11: the inline data at 0x1000 cannot be read",
            ),
            (send, C::NoAddress, einval, "post_send on QP 0x11: a datagram needs an address handle"),
            (send, C::NoWindow, einval, "post_send on QP 0x11: BIND_MW without a window"),
            (
                send,
                C::AtomicWrite { bytes: 4 },
                einval,
                "post_send on QP 0x11: an ATOMIC WRITE of 4 bytes; its length must be 8",
            ),
            (
                send,
                flush,
                einval,
                "post_send on QP 0x11: a FLUSH with placement 0x8, selectivity 2: these values are not valid",
            ),
            (
                send,
                C::FlushWithSges { given: 1 },
                einval,
                "post_send on QP 0x11: a FLUSH with 1 gather elements: it has no data",
            ),
        ] {
            let error = PostError { queue, cause };
            assert_eq!((error.errno(), error.to_string().as_str()), (errno, sentence));
            assert_eq!(error.is_full(), errno == enomem, "{error}");
        }
        let brief = Brief(PostError { queue: send, cause: C::NoWindow }).to_string();
        assert_eq!(brief, "post_send: BIND_MW without a window");
    }
}
