//! RDMA verbs in safe Rust, on softhca: queue pairs, completions and registered memory, with no RDMA hardware, kernel module or root.
//!
//! It runs on Linux 5.11 or newer on x86-64, in a process that can reach a softhca agent; it does not run on macOS, Windows or other
//! processors.
//!
//! A program [opens](open) a device of the agent on its host (`softhca run -- PROGRAM` starts one) and makes everything else from
//! its [`Context`]: a protection domain ([`Pd`]), registered memory ([`Buffer`], [`Exposed`]), completion queues ([`Cq`]) and queue
//! pairs ([`Qp`], [`DatagramQp`]). For tests, the crate `fabric` has agents inside the process, as here:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = fabric::Fabric::start()?;
//! let device = fabric.open()?; // In a program of its own: softhca::open()?
//!
//! let (pd, cq) = (device.pd()?, device.cq(16)?);
//! let (left, right) = (pd.reliable(&cq).build()?, pd.reliable(&cq).build()?);
//! right.receive(1, pd.buffer(64)?)?;
//!
//! // Elsewhere the endpoints travel over a socket, as bytes or as text.
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
//!         _ => assert_eq!(completion.into_buffer().len(), 64), // It is ours again.
//!     }
//! }
//! # drop((left, right)); Ok(()) }
//! ```
//!
//! # Who has the memory
//!
//! The adapter reads and writes memory while the program does something else; in C it is the program's duty to leave that memory alone.
//! Here it is in the types:
//!
//! * A [`Buffer`] is a slice of bytes that its owner reads and writes. Posting moves it into the request; the [`Completion`] gives
//!   it back. A request that is refused gives it back at once ([`Rejected`]). A queue pair that is dropped frees what was under way
//!   when the adapter has let go of it, and what is leaked stays registered and allocated: nothing is ever freed under a request.
//! * Memory that peers may touch is [`Exposed`]. They may do so at any time, so it is only ever copied from and to, and never a
//!   reference. Peers name it by a [`RemoteRegion`], which is plain data.
//! * [`Qp::scope`] posts requests on borrowed memory, and does not return before they are over.
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
//! let token: RemoteRegion = window.token().to_string().parse()?; // It has travelled.
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
//! # When something fails
//!
//! An [`Error`] has the errno of the verbs' manual pages and a sentence that names the objects. A request that failed is a completion
//! like others, because it gives its buffers back: see [`Completion::status`], [`Completion::ok`] and [`Completion::error`].
//! [`reasons`] has what else went wrong in this process.
//!
//! # Tasks
//!
//! With the feature `tokio`, which is off by default, the module `aio` has the same verbs for tasks: `qp.send(buffer).await` gives
//! the buffer back, and every future may be dropped at any time.
#![deny(unsafe_code)]

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
mod pd;
mod pending;
mod queue_pair;
mod remote;
mod scope;
mod srq;
mod timing;

pub use abi::event::EventType as EventKind;
pub use batch::Batch;
pub use builder::QpBuilder;
pub use completion::{Completion, Operation};
pub use connected::{Connected, Qp, Reliable, Unconnected, Unreliable};
pub use context::{Context, DeviceInfo, GidEntry, PortInfo};
pub use cq::Cq;
pub use datagram::{Datagram, DatagramQp, Peer};
pub use device::{Device, devices, devices_in, open};
pub use endpoint::{DatagramEndpoint, Endpoint, Source};
pub use engine::Control;
pub use error::{Error, Rejected, Result, reasons};
pub use event::{About, Event};
pub use gid::Gid;
pub use memory::{Buffer, Exposed, Kept, Mapping, Memory};
pub use message::{Message, Part};
pub use mtu::Mtu;
pub use pd::Pd;
pub use protocol::Status;
pub use remote::{Access, RemoteRegion};
pub use scope::Scope;
pub use srq::Srq;
pub use timing::{Retries, RnrRetries};
