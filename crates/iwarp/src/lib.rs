//! iWARP without sockets and without memory: RDMA over the byte stream of TCP, as state machines.
//! So hardware adapters and the siw driver of Linux can connect. This crate has no clock, no socket
//! and no thread; bytes, time and memory accesses are arguments.
//!
//! # The layers
//!
//! ```text
//!     verbs          work requests and completions        stream
//!     RDMAP          operations: SEND, WRITE, READ, …     rdmap, terminate     RFC 5040, 7306
//!     DDP            where the data of a segment goes     ddp                  RFC 5041
//!     MPA            segments in a byte stream, CRC32C    fpdu, startup        RFC 5044, 6581
//!     TCP            the owner's
//! ```
//!
//! One TCP connection is one stream is one queue pair. TCP delivers all bytes in order, so there
//! are no packet sequence numbers, no acknowledgements and no retries. A mistake ends the stream
//! with a Terminate message that names the layer, the type and the code ([`Reason`]). A SEND
//! without a receive request is a mistake, too: there is no RNR.
//!
//! # A connection
//!
//! ```text
//!     initiator                              responder
//!     TCP connect ─────────────────────────▶
//!     Initiator     request ───────────────▶ Responder     the program decides
//!                   ◀──────────────── reply
//!     Stream        FPDU ──────────────────▶ Stream        may send from now on
//!                   ◀───────────────── FPDU
//! ```
//!
//! 1. Both sides exchange start-up frames ([`negotiation`]). They agree on CRCs, markers, and how
//!    many READs may be outstanding. Programs pass private data.
//! 2. Both sides make a [`Stream`] of the [`Agreement`]. The responder waits for the first FPDU. If
//!    the responder's program speaks first, the peer-to-peer model is needed: then the initiator
//!    sends a ready-to-receive message that no program sees.
//! 3. The owner passes what it reads to [`Stream::receive`], and sends what
//!    [`Stream::poll_transmit`] writes to its buffer. The stream asks the owner's [`Memory`] to
//!    copy data and to check keys. Completions are [`Event`]s.
//!
//! | state of a stream | of the verbs draft | of a queue pair |
//! |-------------------|--------------------|-----------------|
//! | Waiting | Idle | RTR |
//! | Open | RTS | RTS |
//! | Closing | Closing | SQD |
//! | Terminate | Terminate | SQE |
//! | Closed | Error, or Idle after a graceful close | ERR |
//!
//! Data is copied once on each side: from the program's memory to the output buffer, and from the
//! input to the program's memory. Only an FPDU that is cut by the end of the input is copied once
//! more. The data of an FPDU is placed when its CRC has been checked.
//!
//! [`Quirks`] are work-arounds for siw. All are off towards softhca itself.
//!
//! Where to read first: [`ddp`], then [`stream`].
#![forbid(unsafe_code)]

mod bytes;
pub mod ddp;
pub mod error;
pub mod fpdu;
pub mod negotiation;
pub mod quirks;
pub mod rdmap;
pub mod startup;
pub mod stream;
pub mod terminate;

pub use ddp::Stag;
pub use error::Error;
pub use negotiation::{Agreement, Answer, Initiator, Responder, Role, Rtr, Terms};
pub use quirks::Quirks;
pub use stream::event::{Close, Event, Received, Side, Status};
pub use stream::memory::{Fault, Memory, Receive};
pub use stream::work::{Immediate, Operation, PostError, Request};
pub use stream::{Config, State, Stream, Transmit};
pub use terminate::{Reason, Terminate};
