//! RMPP: messages that are longer than one datagram, as segments that the receiver acknowledges.
//! Not the way to the peer. IBA 13.6. Principal types: [`Sender`], [`Receiver`].
//!
//! ```text
//!     sender                              receiver
//!     DATA 1 first ─────────────────────▶
//!                  ◀───────────────────── ACK 1, window to 65
//!     DATA 2 … 64 ──────────────────────▶
//!     DATA 65 last ─────────────────────▶
//!                  ◀───────────────────── ACK 65
//! ```
//! The sender sends one segment, and then as many as the window allows. Without an ACK in time it
//! sends the window again. STOP and ABORT end the transaction. A request that was itself segmented
//! is *double-sided*: its sender turns around with an ACK of segment 0 ([`turn_around`]), which
//! opens the window of the answer.
//!
//! Each segment repeats the common header and the header of the class. A message is therefore
//! these headers and then the data of all segments, as Linux's umad shows it.

mod receiver;
mod sender;

pub use receiver::{Limits, Receiver};
pub use sender::Sender;

use wire::layout::Layout;
use wire::mad::{CLASS_SA, CLASSES_VENDOR_OUI, Header, MAD_LEN, Mad, RESPONSE};
use wire::rmpp::{self, FLAG_ACTIVE, Header as Segment, NO_RESPONSE_TIME, Status};

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has the message.
    Delivered,
    /// The peer ended the transaction by STOP or ABORT, with this status.
    Ended(u8),
    /// This side ended the transaction, and told the peer why.
    Aborted(Status),
}

/// Where the data of a class begins; before it is what each segment repeats.
#[must_use]
pub fn data_offset(class: u8) -> usize {
    match class {
        CLASS_SA => wire::sa::DATA,
        class if CLASSES_VENDOR_OUI.contains(&class) => wire::vendor::DATA,
        _ => 64,
    }
}

/// The RMPP header of a datagram.
#[must_use]
pub fn segment_of(mad: &Mad) -> Segment {
    Segment::read(&mad[rmpp::OFFSET..]).unwrap_or_default()
}

fn put_segment(mad: &mut Mad, segment: Segment) {
    segment.write(&mut mad[rmpp::OFFSET..]);
}

/// The ACK of segment 0 with which the sender of a double-sided request becomes the receiver.
#[must_use]
pub fn turn_around(request: &Mad, window: u32) -> Mad {
    let kind = rmpp::TYPE_ACK;
    let header = Segment { kind, length: window.max(1), ..blank() };
    with_headers(request, header)
}

fn blank() -> Segment {
    Segment { version: rmpp::VERSION, response_time: NO_RESPONSE_TIME, flags: FLAG_ACTIVE, ..Segment::default() }
}

/// A datagram without data for the peer of the transaction.
fn answer(to: &Mad, segment: Segment) -> Mad {
    let mut mad = with_headers(to, segment);
    mad[3] = Header::of(to).method ^ RESPONSE;
    mad
}

fn with_headers(of: &Mad, segment: Segment) -> Mad {
    let mut mad = [0; MAD_LEN];
    mad[..rmpp::OFFSET].copy_from_slice(&of[..rmpp::OFFSET]);
    put_segment(&mut mad, segment);
    mad
}

fn abort(to: &Mad, status: Status) -> Mad {
    let kind = if status == Status::ResourcesExhausted { rmpp::TYPE_STOP } else { rmpp::TYPE_ABORT };
    answer(to, Segment { kind, status: status as u8, ..blank() })
}

#[cfg(test)]
mod tests;
