//! Where datagrams go and come from. Principal types: [`Address`], [`Transmit`].

use wire::mad::Mad;

/// The other end of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A directed route, which the datagram has in itself. It is for QP 0.
    Directed,
    /// A LID and a queue pair.
    Lid {
        /// The LID.
        lid: u16,
        /// The service level.
        sl: u8,
        /// The queue pair.
        qp: u32,
    },
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: Address,
    /// The datagram.
    pub mad: Mad,
}
