//! SMInfo: what a subnet manager says of itself to other managers. Not their protocol. IBA
//! 14.2.5.13. Principal type: [`SmInfo`].

use crate::layout::layout;

layout! {
    /// SMInfo. A Set changes the manager's state by its modifier.
    pub struct SmInfo[21] = 0x0020 {
        /// The port at which the manager is.
        0, 64 => guid: u64, Component 0;
        /// The key that managers of one subnet share.
        64, 64 => sm_key: u64, Component 1;
        /// Increases while the manager lives.
        128, 32 => activity_count: u32, Component 2;
        /// The manager with the highest priority becomes the master.
        160, 4 => priority: u8, Component 3;
        /// [`SmState`].
        164, 4 => state: u8, Component 4;
    }
}

impl SmInfo {
    /// The modifier of a Set: the receiver shall be the master.
    pub const HANDOVER: u32 = 1;
    /// The modifier of a Set: the sender has understood a handover.
    pub const ACKNOWLEDGE: u32 = 2;
    /// The modifier of a Set: the receiver shall be inactive.
    pub const DISABLE: u32 = 3;
    /// The modifier of a Set: the receiver shall be on standby.
    pub const STANDBY: u32 = 4;
    /// The modifier of a Set: the receiver shall discover the subnet.
    pub const DISCOVER: u32 = 5;
}

/// The states of a subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the IBA's own names")]
#[repr(u8)]
pub enum SmState {
    NotActive = 0,
    Discovering = 1,
    Standby = 2,
    Master = 3,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};

    #[test]
    fn literal_bytes_and_the_positions_of_libibmad() {
        let bytes = [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 7, 0xe3];
        let info = SmInfo { guid: 9, sm_key: 8, activity_count: 7, priority: 14, state: SmState::Master as u8 };
        assert_eq!(SmInfo::parse(&bytes), info);
        round_trip::<SmInfo>();
        agrees::<SmInfo>(&[
            ("SmInfoGuid", 0, 64),
            ("SmInfoKey", 64, 64),
            ("SmActivity", 128, 32),
            ("SmPriority", 160, 4),
            ("SmState", 164, 4),
        ]);
    }
}
