//! Enhanced connection establishment: options by which the devices of one vendor agree on more than the IBA has (IBA annex A20,
//! `ibv_query_ece(3)`, `ibv_set_ece(3)`). softhca's ends need to agree on nothing, so that it offers its vendor's id and no option; what another
//! vendor's options mean, it cannot know. Principal type: [`Ece`].

use abi::device::VENDOR_ID;
use abi::errno::Errno;

use crate::error::{Error, Result};
use crate::qp::Qp;

/// A vendor, and options that mean something to its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor's IEEE OUI.
    pub vendor_id: u32,
    /// Its options.
    pub options: u32,
}

/// The options that there are.
const OFFERED: u32 = 0;

impl Qp {
    /// What the QP offers.
    #[must_use]
    pub fn ece(&self) -> Ece {
        Ece { vendor_id: VENDOR_ID, options: OFFERED }
    }

    /// Sets what the peer offers; says which of its options the QP has accepted.
    ///
    /// # Errors
    /// EINVAL for the options of another vendor.
    pub fn set_ece(&self, wanted: Ece) -> Result<Ece> {
        let Ece { vendor_id, options } = wanted;
        if vendor_id != VENDOR_ID {
            let what = format!("connection options of vendor {vendor_id:#x} are not supported");
            return Err(Error::refuse(
                Errno::EINVAL,
                format!("QP {:#x}: {what}, {VENDOR_ID:#x} is the device's", self.qpn()),
            ));
        }
        Ok(Ece { vendor_id, options: options & OFFERED })
    }
}
