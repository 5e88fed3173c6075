//! Memory that two processes share, and the few kernel objects that go with it.
//!
//! * [`Region`]: a mapping of a sealed memfd, which the other party can neither shrink under us nor (when published) write.
//! * [`ring`] and [`bulk`]: single-producer single-consumer rings, of 64-byte cells and of bytes.
//! * [`lane`]: the layout of one region that holds a cell ring and a bulk ring in each direction.
//! * [`wake word`]: the word by which a sleeper says that it wants to be woken, and the barriers that make this safe.
//! * [`eventfd`] and [`socket`]: the notifier that wakes it, and the socket that carries descriptors.
//! * [`life`]: a word that says that a thread has ended, however it did.
//! * [`share`]: a mapping of somebody else's file, which may be cut short.
//! * [`capture_ring`]: a ring of records that loses what it has no room for.
//! * [`denied`]: system calls that the kernel refuses, by name.
//! * [`file_limit`]: writing files in a process that may be limited in how long they get.
//! * [`inherit`]: keeping descriptors from programs that are started from here.
//!
//! This crate knows nothing of RDMA. Everything that it reads from shared memory is a claim of a peer that may be
//! mistaken or hostile: it is copied to private memory first and checked there, and what does not hold ends in
//! [`Broken`], never in a panic or an access outside the region. No Rust reference to bytes that a peer may write is
//! formed; words are reached as atomics, bytes through raw pointers.
//!
//! The interleavings of the rings and of the wake protocol are checked exhaustively by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p softhca-shm --release --lib loom
//! ```

pub mod bulk;
pub mod capture_ring;
pub mod denied;
pub mod file_limit;
pub mod inherit;
pub mod lane;
mod layout;
pub mod life;
#[cfg(all(test, loom))]
mod loom_models;
pub mod memory;
pub mod notifier;
pub mod region;
pub mod ring;
pub mod share;
pub mod socket;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod wake_word;

pub use bulk::{BulkRx, BulkSlot, BulkTx, PIECE_MAX};
pub use lane::{BULK, LANE_LEN, LaneRx, LaneTx, Side, ends};
pub use notifier::Notifier;
pub use region::{Region, mapped_regions};
pub use ring::{Broken, CELLS, Consumer, Glance, Producer, PushError, RECORD_CELLS, RECORD_MAX};
pub use socket::{Credentials, FDS_MAX, Listener, Received, Socket};
pub use wake_word::{WakeWord, WakeWordView, poster_fence, register_barrier, sleeper_barrier, sleeper_fence};
