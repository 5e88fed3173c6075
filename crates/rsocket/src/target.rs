//! A place in a peer's memory, as encoded in private data, in the list of buffers and in the I/O
//! map. The principal types are [`Target`] and [`Order`].

/// The byte order of data that one side writes into the other side's memory: the order of the
/// memory's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first; also the order of private data.
    Big,
}

impl Order {
    /// The order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    pub(crate) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(crate) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    pub(crate) fn of_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    pub(crate) fn of_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// An address, its key, and the number of bytes or entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target {
    /// The address in the owner's memory.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// The number of bytes, or of entries in a list.
    pub length: u32,
}

impl Target {
    /// How many bytes it takes.
    pub const SIZE: usize = 16;

    /// Parses a target.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::SIZE], order: Order) -> Self {
        let [a, b, c, d, e, f, g, h, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            address: order.u64([a, b, c, d, e, f, g, h]),
            key: order.u32([k0, k1, k2, k3]),
            length: order.u32([l0, l1, l2, l3]),
        }
    }

    /// Encodes a target.
    #[must_use]
    pub fn emit(&self, order: Order) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&order.of_u64(self.address));
        bytes[8..12].copy_from_slice(&order.of_u32(self.key));
        bytes[12..].copy_from_slice(&order.of_u32(self.length));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_emitted_in_both_byte_orders() {
        let target = Target { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 0x2122_2324 };
        let big = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
        let little = [8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21];
        assert_eq!(target.emit(Order::Big), big);
        assert_eq!(target.emit(Order::Little), little);
        assert_eq!(Target::parse(&big, Order::Big), target);
        assert_eq!(Target::parse(&little, Order::Little), target);
    }
}
