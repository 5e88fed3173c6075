//! The transport as pure state machines: what a queue pair sends, what it answers, when it tries again and when it gives up.
//!
//! No clock, no socket, no thread, no memory of the program: time is an argument, packets are [`wire::Headers`] and a length, and
//! where bytes have to be moved the machine says which, and its caller moves them. Four verbs move everything: a packet came
//! ([`Requester::handle_response`], [`Responder::handle`]), time passed ([`Requester::handle_timeout`]), what is to be sent
//! (`poll_transmit`), when to call again ([`Requester::poll_timeout`]).
//!
//! Begin with [`qp`], the queue pair's states on one page; then [`Requester`] and [`Responder`], the two halves of a queue pair.
//! The reliable connection's rules are in `rc/`. How queue pairs find each other is [`cm`]. Source: IBA volume 1, chapters 9 to 12.
#![forbid(unsafe_code)]

mod alone;
pub mod cm;
mod local;
pub mod modify;
mod operation;
mod packets;
pub mod qp;
mod rc;
mod reason;
mod requester;
mod responder;
mod ring;
mod status;
mod step;
mod time;
mod unreliable;

pub use operation::{Destination, Incoming, Operation, SendOp, Transmit};
pub use qp::{Service, State};
pub use rc::answers::{Carried, Kept};
pub use rc::awaited_run::{AwaitedSegmentRun, Place};
pub use rc::fast_path::FastMessage;
pub use rc::out_of_order::{OUT_OF_ORDER_MAX, OutOfOrder};
pub use rc::segment_run::SegmentRun;
pub use rc::standing::{KEPT, Open, Standing};
pub use reason::{Fault, Reason};
pub use requester::{Completion, Failure, Full, Posted, Requester, RequesterConfig};
pub use responder::{Access, Responder, ResponderConfig};
pub use status::Status;
pub use step::{AtomicOp, Nak, Outcome, RecvEnd, Refusal, Response, Source, Step};
pub use time::{Time, timeout};
pub use wire::rnr;

/// The longest message: 2^31 bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;
