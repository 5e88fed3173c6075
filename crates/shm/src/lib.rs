//! Memory that two processes share, and the kernel objects that go with it.
//!
//! * [`Region`]: a mapping of a sealed memfd, which the other party cannot shrink and (when
//!   published) cannot write.
//! * [`Source`] and [`Sink`]: bytes that others may change, with their bounds.
//! * [`ring`] and [`bulk`]: single-producer single-consumer rings, of 64-byte cells and of bytes.
//! * [`lane`]: one region that holds a cell ring and a bulk ring in each direction.
//! * [`wake_word`]: the word with which a sleeper asks to be woken. [`poster_fence`] and
//!   [`sleeper_barrier`] make this safe.
//! * [`notifier`] and [`socket`]: the eventfd that wakes the sleeper, and the socket that carries
//!   descriptors.
//! * [`life`]: a word that shows that a thread has ended, however it ended.
//! * [`share`]: a mapping of another owner's file, which may be truncated.
//! * [`capture_ring`]: a ring of records that drops records when it is full.
//! * [`denied`]: system calls that the kernel refuses, by name.
//! * [`file_limit`]: writing files in a process that may have a limit on file size.
//! * [`spin`](spin::spin): polling for a short time before a thread sleeps.
//! * [`inherit`]: keeps descriptors from programs that this process starts.
//!
//! This crate knows nothing of RDMA. All values read from shared memory are untrusted: the peer may
//! be faulty or hostile. The crate copies them to private memory first and checks them there. An
//! invalid value ends in [`Broken`], never in a panic or an access outside the region. The crate
//! forms no Rust reference to bytes that a peer may write: it accesses words as atomics, and bytes
//! through raw pointers.
//!
//! Loom checks the interleavings of the rings and of the wake protocol exhaustively:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p softhca-shm --release --lib loom
//! ```

pub mod bulk;
pub mod cancellation;
pub mod capture_ring;
pub mod denied;
pub mod file_limit;
pub mod inherit;
pub mod lane;
pub mod life;
#[cfg(all(test, loom))]
mod loom_models;
pub mod memory;
pub mod notifier;
pub mod region;
pub mod ring;
pub mod share;
pub mod socket;
pub mod spin;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod wake_word;

pub use bulk::{BulkRx, BulkSlot, BulkTx, PIECE_MAX, REACH};
pub use lane::{BULK, LANE_LEN, LaneRx, LaneTx, Side, ends};
pub use memory::{poster_fence, register_barrier, sleeper_barrier, sleeper_fence};
pub use notifier::Notifier;
pub use region::{Region, Sink, Source, mapped_regions};
pub use ring::{Broken, CELLS, Consumer, Glance, Producer, PushError, RECORD_CELLS, RECORD_MAX};
pub use socket::{Credentials, FDS_MAX, Listener, Received, Socket};
pub use wake_word::{WakeWord, WakeWordView};
