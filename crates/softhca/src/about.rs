//! The objects of async events. Principal type: [`About`].

/// The object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum About {
    /// The device.
    Device,
    /// A port, by number.
    Port(u8),
    /// A queue pair, by number.
    Qp(u32),
    /// A completion queue, by [`Cq::number`](crate::Cq::number).
    Cq(u32),
    /// A shared receive queue, by [`Srq::number`](crate::Srq::number).
    Srq(u32),
}
