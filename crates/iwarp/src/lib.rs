//! x
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
pub use negotiation::{Agreement, Answer, Initiator, Responder, Terms};
pub use quirks::Quirks;
pub use terminate::{Reason, Terminate};
