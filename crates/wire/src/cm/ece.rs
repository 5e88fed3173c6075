//! The options of enhanced connection establishment: a field of REQ, REP and SIDR_REP messages. Not
//! here: what the options mean, which their vendor defines. Principal type: [`Ece`].

/// Options beyond the specification that the two sides of a connection agree on: a vendor, and
/// options that this vendor defines. Enhanced connection establishment, IBA A20 (vendor ID in REQ,
/// REP and SIDR_REP, the options in the datagram's attribute modifier).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor, 24 bits.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}
