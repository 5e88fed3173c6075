//! Verbs for tasks of a tokio runtime (feature `tokio`): `qp.send(buffer).await` gives the buffer
//! back when the message has arrived.
//!
//! Queue pairs are created and connected as usual; then [`Qp::new`] or [`DatagramQp::new`] attaches
//! them to a runtime:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
//! let fabric = fabric::Fabric::start()?;
//! let device = fabric.open()?; // In a real program: softhca::open()?
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
//! let question = sent?.into_buffer(); // The program owns the buffer again.
//! # drop(question); Ok(()) }) }
//! ```
//!
//! # Dropped futures
//!
//! Every future of this module may be dropped at any time, as `select!` and timeouts do:
//!
//! * A future that has not posted yet, because it waits for room in the queue, has had no effect.
//!   Its buffers are freed.
//! * A future that has posted leaves the request to the adapter, which executes it. The memory
//!   stays with the queue pair and is freed when the completion has come, never earlier. This also
//!   holds when the queue pair is dropped meanwhile.
//! * No message is lost. Messages wait in the queue pair in order of arrival, and [`Qp::message`]
//!   takes the next. A dropped [`Qp::receive`] leaves its buffer in the queue, and the next call
//!   gets the message that fills it.
//!
//! ```compile_fail,E0382
//! # async fn example(qp: softhca::aio::Qp<softhca::Reliable>, mut buffer: softhca::Buffer)
//! #     -> softhca::Result<()> {
//! let sending = qp.send(buffer);
//! buffer[0] = 1; // The adapter sends it.
//! sending.await?;
//! # Ok(()) }
//! ```
//!
//! # Wake-ups
//!
//! A waiting task polls the CQ a few times and lets other tasks run in between. At any time only
//! one task of a CQ polls; it polls for all of them. Then the task arms the CQ and sleeps. A small
//! task of the runtime, one for each CQ, owns the descriptor of the completion channel
//! ([`AsyncFd`](tokio::io::unix::AsyncFd)). It wakes exactly the tasks whose completions have come.
//! Any number of queue pairs may share a CQ, and any number of tasks may share a queue pair.
//! Nothing runs while all of them sleep.
//!
//! A future that is kept and not polled delays no other future, with one exception. While a send
//! queue is full, its sends wait in order, and the first of them must be polled or dropped.
//!
//! A queue pair belongs to the runtime that it was attached to. When that runtime has ended,
//! waiting tasks get an error. Requests that are posted with an id still work on the same CQ, and
//! [`Cq::next`](crate::Cq::next) awaits their completions.
//!
//! Creating, connecting and dropping objects and registering memory are commands to the agent: they
//! take some ten microseconds and do not yield. If a dropped future leaves the last buffer of a
//! registration, the buffer is freed where its completion is polled, which takes the same time.

mod connect;
mod datagram;
mod driver;
mod events;
pub(crate) mod inbox;
mod post;
mod queue_pair;
mod receiving;
pub(crate) mod tasks;

pub use connect::{Connection, Connector, DatagramListener, Incoming, Listener, Outgoing, Request, Route};
pub use datagram::DatagramQp;
pub use queue_pair::Qp;
