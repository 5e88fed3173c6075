//! Datagrams of vendor classes: ping and the like. The upper classes carry RMPP and the OUI of the
//! vendor who defines the rest; the lower ones have only the common header. Not what vendors
//! define. IBA 16.5. Principal type: [`Header`].

use crate::layout::layout;

/// Where the data of a class with an OUI begins.
pub const DATA: usize = 40;
/// The OUI of OpenIB, of whose classes ibping and ibsysstat are servers.
pub const OUI_OPENIB: u32 = 0x1405;

layout! {
    /// What a class with an OUI has behind the RMPP header, with the positions of the datagram.
    pub struct Header[40] {
        /// The vendor, after a reserved byte.
        296, 24 => oui: u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};
    use crate::mad::MAD_LEN;

    #[test]
    fn the_oui_is_behind_the_header_of_rmpp() {
        let mut mad = [0; MAD_LEN];
        mad[crate::rmpp::END..DATA].copy_from_slice(&[0, 0, 0x14, 5]);
        assert_eq!(Header::parse(&mad).oui, OUI_OPENIB);
        round_trip::<Header>();
        agrees::<Header>(&[("OUI", 37 * 8, 24)]);
    }
}
