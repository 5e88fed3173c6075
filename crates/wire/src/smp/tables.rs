//! The tables of a port and of a switch, each in blocks of at most 64 bytes. The modifier says
//! which block. IBA 14.2.5.5 and 14.2.5.7 to 14.2.5.12. Principal types: [`PKeyTable`],
//! [`SlToVl`], [`VlArbitration`], [`LinearTable`], [`MulticastTable`], [`GuidInfo`].

use crate::layout::layout;

layout! {
    /// GUIDInfo: eight GUIDs of a port. The modifier is the block. Entry 0 of block 0 is the port's
    /// own GUID and is read only.
    pub struct GuidInfo[64] = 0x0014 {
        /// The GUIDs; 0 is an empty entry.
        0, 512 => guids: [u64; 8], Components 0;
    }
}

layout! {
    /// P_KeyTable: 32 entries of a port's table. The low 16 bits of the modifier are the block; the
    /// high 16 bits are the port of a switch.
    pub struct PKeyTable[64] = 0x0016 {
        /// The P_Keys; 0 is an empty entry.
        0, 512 => pkeys: [u16; 32];
    }
}

layout! {
    /// SLtoVLMappingTable: the virtual lane of each service level. Of a switch, the modifier has
    /// the ingress port in bits 15 to 8, and the egress port in bits 7 to 0.
    pub struct SlToVl[8] = 0x0017 {
        /// The virtual lanes; packets of lane 15 are dropped.
        0, 64 => vls: [u8; 16];
    }
}

layout! {
    /// VLArbitrationTable: 32 entries. The high 16 bits of the modifier are the block: 1 and 2 are
    /// the table of low priority, 3 and 4 that of high priority. The low 16 bits are the port.
    pub struct VlArbitration[64] = 0x0018 {
        /// The entries.
        0, 512 => entries: [VlWeight; 32];
    }
}

layout! {
    /// An entry of an arbitration table.
    pub struct VlWeight[2] {
        /// The virtual lane.
        4, 4 => vl: u8;
        /// How many units of 64 bytes it may send in its turn; 0 skips the entry.
        8, 8 => weight: u8;
    }
}

layout! {
    /// LinearForwardingTable: the egress ports of 64 LIDs. The modifier is the block.
    pub struct LinearTable[64] = 0x0019 {
        /// The egress ports; packets for port 255 are dropped.
        0, 512 => ports: [u8; 64];
    }
}

layout! {
    /// MulticastForwardingTable: 16 ports of each of 32 multicast LIDs. Bits 8 to 0 of the modifier
    /// are the block; bits 31 to 28 say which 16 ports.
    pub struct MulticastTable[64] = 0x001b {
        /// The ports, as a mask; bit 0 is the first of the sixteen.
        0, 512 => masks: [u16; 32];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::round_trip;

    #[test]
    fn tables_are_parsed_from_literal_bytes() {
        let bytes: [u8; 64] = std::array::from_fn(|nth| u8::try_from(nth).expect("64 fit"));
        assert_eq!(GuidInfo::parse(&bytes).guids[1], 0x0809_0a0b_0c0d_0e0f);
        assert_eq!(PKeyTable::parse(&bytes).pkeys[31], 0x3e3f);
        assert_eq!(SlToVl::parse(&bytes).vls[2..6], [0, 1, 0, 2]);
        assert_eq!(VlArbitration::parse(&bytes).entries[9], VlWeight { vl: 2, weight: 19 });
        assert_eq!(LinearTable::parse(&bytes).ports[63], 63);
        assert_eq!(MulticastTable::parse(&bytes).masks[1], 0x0203);
    }

    #[test]
    fn nothing_is_lost() {
        round_trip::<GuidInfo>();
        round_trip::<PKeyTable>();
        round_trip::<SlToVl>();
        round_trip::<VlWeight>();
        round_trip::<LinearTable>();
        round_trip::<MulticastTable>();
    }
}
