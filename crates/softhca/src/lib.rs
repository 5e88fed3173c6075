//! RDMA verbs in safe Rust, on softhca: queue pairs, completions and registered memory, without
//! RDMA hardware, kernel module or root.
//!
//! This crate runs on Linux 5.11 or newer on x86-64, in a process that can reach a softhca agent.
//! It does not run on macOS, Windows or other processors.
//!
//! A program [opens](open) a device of the agent on its host (`softhca run -- PROGRAM` starts one).
//! It creates everything else from its [`Context`]: a protection domain ([`Pd`]), registered memory
//! ([`Buffer`], [`Exposed`]), completion queues ([`Cq`]) and queue pairs ([`Qp`], [`DatagramQp`]).
//! For tests, the crate `fabric` runs agents inside the process, as in this example:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = fabric::Fabric::start()?;
//! let device = fabric.open()?; // In a real program: softhca::open()?
//!
//! let (pd, cq) = (device.pd()?, device.cq(16)?);
//! let (left, right) = (pd.reliable(&cq).build()?, pd.reliable(&cq).build()?);
//! right.receive(1, pd.buffer(64)?)?;
//!
//! // Real programs exchange the endpoints over a socket, as bytes or as text.
//! let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//!
//! let mut message = pd.buffer(64)?;
//! message[..5].copy_from_slice(b"hello");
//! left.send(2, message.part(..5))?;
//! for _ in 0..2 {
//!     let completion = cq.wait()?.ok()?;
//!     match completion.id() {
//!         1 => assert_eq!(completion.data(), b"hello"),
//!         _ => assert_eq!(completion.into_buffer().len(), 64), // The program owns it again.
//!     }
//! }
//! # drop((left, right)); Ok(()) }
//! ```
//!
//! # Memory ownership
//!
//! The adapter reads and writes memory while the program runs. In C the program itself must not
//! touch that memory. In this crate the types guarantee it:
//!
//! * A [`Buffer`] is a slice of bytes that its owner reads and writes. Posting moves the buffer
//!   into the request; the [`Completion`] gives it back. A refused request gives it back at once
//!   ([`Rejected`]). When a queue pair is dropped, the buffers of its requests are freed as soon as
//!   the adapter no longer uses them. Leaked buffers stay registered and allocated. So memory is
//!   never freed while a request uses it.
//! * Memory that peers may access is [`Exposed`]. Peers access it at any time, so the program only
//!   copies from and to it, and gets no reference. Peers name it by a [`RemoteRegion`], which is
//!   plain data.
//! * [`Qp::scope`] posts requests on borrowed memory, and returns only after they have completed.
//!
//! # One-sided operations
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let fabric = fabric::Fabric::start()?;
//! # let device = fabric.open()?;
//! # let (pd, cq) = (device.pd()?, device.cq(16)?);
//! # let (left, right) = (pd.reliable(&cq).build()?, pd.reliable(&cq).build()?);
//! # let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! # let (left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//! use softhca::{Access, RemoteRegion};
//!
//! let window = pd.expose(4096, Access::WRITE | Access::ATOMIC)?;
//! let token: RemoteRegion = window.token().to_string().parse()?; // Sent to the peer as text.
//!
//! left.write_inline(1, b"written", &token.part(100..)?)?;
//! cq.wait()?.ok()?;
//! assert_eq!(window.to_vec(100..107), b"written");
//!
//! left.fetch_add(2, pd.buffer(8)?, &token, 5)?;
//! assert_eq!((cq.wait()?.ok()?.word(), window.load(0)), (Some(0), 5));
//! # Ok(()) }
//! ```
//!
//! # Errors and failed requests
//!
//! An [`Error`] has the errno of the verbs' manual pages and a sentence that names the objects. If
//! a queue does not take a request, the error has a [`PostError`] with the cause and its numbers. A
//! failed request has a completion like any other request, because the completion gives its buffers
//! back: see [`Completion::status`], [`Completion::ok`] and [`Completion::error`]. [`reasons`]
//! lists the other failures of this process.
//!
//! # Tasks
//!
//! With the feature `tokio`, which is off by default, the module `aio` offers the same verbs to
//! tasks: `qp.send(buffer).await` gives the buffer back, and every future may be dropped at any
//! time.
#![deny(unsafe_code)]

mod about;
#[cfg(feature = "tokio")]
pub mod aio;
mod batch;
mod builder;
pub mod cm;
mod completion;
mod connected;
mod context;
mod cq;
mod datagram;
mod device;
mod endpoint;
mod error;
mod event;
mod gid;
#[allow(unsafe_code, reason = "the memory that the adapter reads and writes while its owner waits")]
mod memory;
mod message;
mod mtu;
mod operation;
mod pd;
mod pending;
mod queue_pair;
mod range;
mod rejected;
mod remote;
mod scope;
mod srq;
mod tally;
mod timing;
mod wait;

pub use abi::event::EventType as EventKind;
pub use about::About;
pub use batch::Batch;
pub use builder::QpBuilder;
pub use completion::Completion;
pub use connected::{Connected, Qp, Reliable, Unconnected, Unreliable};
pub use context::{Context, DeviceInfo, GidEntry, PortInfo};
pub use cq::Cq;
pub use datagram::{Datagram, DatagramQp, Path, Peer};
pub use device::{Device, devices, devices_in, open};
pub use endpoint::{DatagramEndpoint, Endpoint, Source};
pub use engine::{Control, PostCause, PostError, WorkQueue};
pub use error::{Error, Result, reasons};
pub use event::Event;
pub use gid::Gid;
pub use memory::{Buffer, Exposed, Kept, Mapping, Memory};
pub use message::{Message, Part};
pub use mtu::Mtu;
pub use operation::Operation;
pub use pd::Pd;
pub use protocol::{Service, State, Status};
pub use rejected::Rejected;
pub use remote::{Access, RemoteRegion};
pub use scope::Scope;
pub use srq::Srq;
pub use timing::{Retries, RnrRetries};
