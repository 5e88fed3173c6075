//! The transport as pure state machines. They decide what a queue pair sends, how it answers, when
//! it retransmits and when it gives up.
//!
//! The machines have no clock, no socket, no thread and no access to the program's memory. Time is
//! an argument. A packet is a [`wire::Headers`] and a payload length. Where bytes must be moved,
//! the machine says which bytes, and its caller moves them. A caller uses four verbs: a packet
//! arrived ([`Requester::handle_response`], [`Responder::handle`]); time passed
//! ([`Requester::handle_timeout`]); return the next packets to
//! send ([`Requester::poll_run`], [`Responder::poll_answer`]); return the
//! time of the next call ([`Requester::poll_timeout`]).
//!
//! Read [`qp`] first: the states of the queue pair on one page. Then read [`Requester`] and
//! [`Responder`], the two halves of a queue pair. The rules of the reliable connection are in
//! `rc/`. [`cm`] is the connection manager, by which queue pairs find each other. Source: IBA
//! volume 1, chapters 9 to 12.
#![forbid(unsafe_code)]

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
mod status;
mod step;
mod tally;
mod time;
mod unreliable;

pub use operation::{Destination, Incoming, MAX_MESSAGE, Operation, Run, SendOp};
pub use qp::{Service, State};
pub use rc::answers::{Carried, Kept};
pub use rc::out_of_order::{OUT_OF_ORDER_MAX, OutOfOrder};
pub use rc::responder::{Expected, PayloadPlace};
pub use rc::standing::{KEPT, Standing};
pub use reason::{Fault, Reason};
pub use requester::{Completion, Failure, Full, Posted, Requester, RequesterConfig};
pub use responder::{Access, Open, Responder, ResponderConfig};
pub use status::Status;
pub use step::{AtomicOp, Nak, Outcome, RecvEnd, Refusal, Response, ResponseData, Step};
pub use tally::{Occurrence, Tally};
pub use time::{Time, timeout};
pub use wire::rnr;
