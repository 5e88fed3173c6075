//! Enhanced connection establishment: options by which devices of one vendor agree on more than the
//! IBA defines (IBA annex A20, `ibv_query_ece(3)`, `ibv_set_ece(3)`). softhca needs no such
//! options, so it offers its vendor id and no option. It cannot know the meaning of another
//! vendor's options. Principal type: [`Ece`].

use abi::device::VENDOR_ID;
use abi::errno::Errno;

use crate::error::{Result, refusal};
use crate::qp::Qp;

/// A vendor, and options for its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor's IEEE OUI.
    pub vendor_id: u32,
    /// Its options.
    pub options: u32,
}

/// The offered options: none.
const OFFERED: u32 = 0;

impl Qp {
    /// The QP's offer.
    #[must_use]
    pub fn ece(&self) -> Ece {
        Ece { vendor_id: VENDOR_ID, options: OFFERED }
    }

    /// Sets the peer's offer. Returns the options that the QP has accepted.
    ///
    /// # Errors
    /// EINVAL for the options of another vendor.
    pub fn set_ece(&self, wanted: Ece) -> Result<Ece> {
        let Ece { vendor_id, options } = wanted;
        if vendor_id != VENDOR_ID {
            let what = format!("connection options of vendor {vendor_id:#x} are not supported");
            return Err(refusal(
                Errno::EINVAL,
                format!("QP {:#x}: {what}, {VENDOR_ID:#x} is the device's", self.qpn()),
            ));
        }
        Ok(Ece { vendor_id, options: options & OFFERED })
    }
}
