//! How every switch reaches one destination switch. A routing engine computes it, and the
//! forwarding tables are filled from it. Principal type: [`Approach`].

/// The entry of a table for a LID that nothing leads to.
pub const NO_ROUTE: u8 = 255;

/// How all switches reach one of them.
pub(crate) struct Approach {
    /// The cost of each switch: a link that may be used leads to a switch with one less.
    pub(super) cost: Vec<u16>,
    /// Which links may be used.
    pub(super) way: Vec<Direction>,
}

/// The links that a switch may use towards a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// All.
    Any,
    /// Those that go up.
    Up,
    /// Those that go down.
    Down,
}

/// The cost of a switch without a way.
pub(super) const FAR: u16 = u16::MAX;
