//! Verbs for tasks of a tokio runtime (feature `tokio`): `qp.send(buffer).await` gives the buffer back when the message has arrived.
//!
//! Queue pairs are made and connected as ever; then [`Qp::new`] or [`DatagramQp::new`] makes them a runtime's:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
//! let fabric = fabric::Fabric::start()?;
//! let device = fabric.open()?; // In a program of its own: softhca::open()?
//! let (pd, cq) = (device.pd()?, device.cq(64)?);
//! let (left, right) = (pd.reliable(&cq).build()?, pd.reliable(&cq).build()?);
//! let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! let left = softhca::aio::Qp::new(left.connect(&to_right)?)?;
//! let right = softhca::aio::Qp::new(right.connect(&to_left)?)?;
//!
//! let mut question = pd.buffer(64)?;
//! question[..5].copy_from_slice(b"hello");
//! let (sent, came) = tokio::join!(left.send(question.part(..5)), right.receive(pd.buffer(64)?));
//! assert_eq!(came?.data(), b"hello");
//! let question = sent?.into_buffer(); // It is ours again.
//! # drop(question); Ok(()) }) }
//! ```
//!
//! # Futures that are dropped
//!
//! Every future here may be dropped at any time, as `select!` and timeouts do:
//!
//! * One that has not posted yet, for it waits for room in the queue, has done nothing. Its buffers are freed.
//! * One that has posted leaves the request to the adapter, which carries it out. Its memory stays with the queue pair until the
//!   completion has come, and is freed then: never before, and also when the queue pair is dropped meanwhile.
//! * No message is lost: those that come wait in the queue pair, in their order, and [`Qp::message`] takes the next. A dropped
//!   [`Qp::receive`] has left its buffer with the queue, and the message that fills it is that of the next call.
//!
//! ```compile_fail,E0382
//! # async fn example(qp: softhca::aio::Qp<softhca::Reliable>, mut buffer: softhca::Buffer) -> softhca::Result<()> {
//! let sending = qp.send(buffer);
//! buffer[0] = 1; // It is being sent.
//! sending.await?;
//! # Ok(()) }
//! ```
//!
//! # Who wakes whom
//!
//! A task that waits looks for its completion a few times, and lets the others run in between; one of those that wait on a CQ looks for all
//! of them. Then it arms the CQ and sleeps. A small task of the runtime, one for each CQ, has the descriptor of the completion channel
//! ([`AsyncFd`](tokio::io::unix::AsyncFd)) and wakes exactly those whose completions have come. Any number of queue pairs may share a
//! CQ, and any number of tasks a queue pair. Nothing runs while all of them sleep. A future that is kept and not polled holds up no other,
//! but for one: while a send queue is full its sends wait in line, and the first in the line has to be polled or dropped.
//!
//! Queue pairs belong to the runtime in which they became its own: when it has ended, who waits gets an error. Requests that are
//! posted with an id go on to work on the same CQ, and [`Cq::next`](crate::Cq::next) awaits their completions.
//!
//! Making, connecting and dropping objects and registering memory are questions to the agent: they take some ten microseconds and do not
//! yield. The same goes for a buffer that is the last of its registration and whose future was dropped: it is freed where its
//! completion is seen.

mod connect;
mod datagram;
mod driver;
mod events;
mod inbox;
mod post;
mod queue_pair;

pub(crate) use driver::{Tasks, Told};
pub(crate) use inbox::Inbox;

pub use connect::{Connection, Connector, DatagramListener, Incoming, Listener, Outgoing, Request, Route};
pub use datagram::DatagramQp;
pub use queue_pair::Qp;
