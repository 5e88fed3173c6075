//! Subnet administration: datagrams of QP 1 that ask the subnet manager for records, register with
//! it, and subscribe to its notices. Not what the manager answers. IBA 15.2. Principal type:
//! [`Header`].
//!
//! The records are in the modules of this folder. Each has the components of its mask as constants,
//! and [`crate::layout::matches()`] compares a record with a template.

mod attributes;
mod groups;
mod paths;
mod services;

pub use attributes::{
    GuidInfoRecord, InformInfoRecord, LinearTableRecord, MulticastTableRecord, NodeRecord, PKeyTableRecord,
    PortInfoRecord, SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord,
};
pub use groups::McMemberRecord;
pub use paths::{LinkRecord, MAX_GIDS, MultiPathRecord, PathRecord};
pub use services::ServiceRecord;

use crate::layout::{Layout, layout};
use crate::mad::MAD_LEN;

/// The version of this class.
pub const CLASS_VERSION: u8 = 2;
/// Where the data begins.
pub const DATA: usize = 56;
/// The data of one datagram.
pub const DATA_LEN: usize = MAD_LEN - DATA;

/// The status of a request for which the manager lacks resources.
pub const STATUS_NO_RESOURCES: u16 = 0x0100;
/// The status of a request that cannot be understood.
pub const STATUS_INVALID_REQUEST: u16 = 0x0200;
/// The status of a Get without a record.
pub const STATUS_NO_RECORDS: u16 = 0x0300;
/// The status of a Get with more than one record.
pub const STATUS_TOO_MANY_RECORDS: u16 = 0x0400;
/// The status of a request with a GID that does not exist.
pub const STATUS_INVALID_GID: u16 = 0x0500;
/// The status of a request without all necessary components.
pub const STATUS_INSUFFICIENT_COMPONENTS: u16 = 0x0600;
/// The status of a requester without the right.
pub const STATUS_DENIED: u16 = 0x0700;

layout! {
    /// What is between the header of RMPP and the data, with the positions of the datagram.
    pub struct Header[56] {
        /// The key that proves the right to change records of others.
        288, 64 => sm_key: u64;
        /// The distance of the records of a table, in units of 8 bytes.
        352, 16 => attribute_offset: u16;
        /// Which components of the template count.
        384, 64 => component_mask: u64;
    }
}

/// The bytes of one record in a table: a multiple of 8.
#[must_use]
pub const fn stride<R: Layout>() -> usize {
    R::LEN.next_multiple_of(8)
}

#[cfg(test)]
mod tests;
