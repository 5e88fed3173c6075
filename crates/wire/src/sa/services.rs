//! ServiceRecord: a service that a port offers, with a lease. Not the registry. IBA 15.2.5.14.
//! Principal type: [`ServiceRecord`].

use crate::cm::Gid;
use crate::layout::layout;

layout! {
    /// ServiceRecord. The data is the service's own.
    pub struct ServiceRecord[176] = 0x0031 {
        /// The service.
        0, 64 => id: u64, Component ID 0;
        /// The port that offers it.
        64, 128 => gid: Gid, Component GID 1;
        /// The partition.
        192, 16 => pkey: u16, Component PKEY 2;
        /// The lease in seconds; all ones is forever.
        224, 32 => lease: u32, Component LEASE 4;
        /// The key that is needed to delete the record.
        256, 128 => key: [u8; 16], Component KEY 5;
        /// The name, ended by a zero.
        384, 512 => name: [u8; 64], Component NAME 6;
        /// Data in units of 8 bits.
        896, 128 => data8: [u8; 16], Components DATA8 7;
        /// Data in units of 16 bits.
        1024, 128 => data16: [u16; 8], Components DATA16 23;
        /// Data in units of 32 bits.
        1152, 128 => data32: [u32; 4], Components DATA32 31;
        /// Data in units of 64 bits.
        1280, 128 => data64: [u64; 2], Components DATA64 35;
    }
}

impl ServiceRecord {
    /// The lease that does not end.
    pub const FOREVER: u32 = u32::MAX;
}
