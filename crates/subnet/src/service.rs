//! The table from service level to virtual lane. At an end port it is indexed by the service level
//! alone; a switch has one for each pair of ports ([`crate::switch`]). Principal type: [`SlToVl`].

/// A virtual lane for each service level, in the layout of the attribute: two to a byte, SL 0 in
/// the high half of byte 0. The value 15 drops the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlToVl(pub [u8; 8]);

/// The value that drops a packet.
const DROP: u8 = 15;

impl Default for SlToVl {
    /// All service levels on VL 0.
    fn default() -> SlToVl {
        SlToVl([0; 8])
    }
}

impl SlToVl {
    /// The table that sends service level `sl` to `vl(sl)`.
    #[must_use]
    pub fn of(vl: impl Fn(u8) -> u8) -> SlToVl {
        SlToVl(std::array::from_fn(|at| vl(2 * at as u8) << 4 | vl(2 * at as u8 + 1) & 0xf))
    }

    /// The table with one lane for each of the first `lanes` service levels, and again from lane 0.
    #[must_use]
    pub fn spread(lanes: u8) -> SlToVl {
        SlToVl::of(|sl| sl % lanes.clamp(1, DROP))
    }

    /// The lane of a service level. `None` drops the packet.
    #[must_use]
    pub const fn vl(&self, sl: u8) -> Option<u8> {
        let pair = self.0[(sl as usize / 2) % 8];
        let vl = if sl.is_multiple_of(2) { pair >> 4 } else { pair & 0xf };
        if vl == DROP { None } else { Some(vl) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l32_service_levels_have_their_places_in_the_table() {
        let table = SlToVl([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        (0..15).for_each(|sl| assert_eq!(table.vl(sl), Some(sl)));
        assert_eq!(table.vl(15), None, "15 drops");
        assert_eq!(SlToVl::of(|sl| sl), table);
        assert_eq!(SlToVl::spread(4).vl(6), Some(2));
        assert_eq!(SlToVl::default().vl(9), Some(0));
    }
}
