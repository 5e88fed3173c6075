//! I/O maps: buffers of one side that the other side may write to directly, at offsets that both
//! know. An entry of the map says which offsets belong to a buffer. The principal types are
//! [`Entry`] and [`Slots`]. (`docs/rsocket`, "Iomapped Buffers".)

use crate::target::{Order, Target};

/// One mapped buffer of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The offset of its first byte.
    pub offset: u64,
    /// The place of the buffer in the peer's memory.
    pub target: Target,
}

impl Entry {
    /// The encoded size in bytes.
    pub const SIZE: usize = 8 + Target::SIZE;

    /// Parses an entry.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::SIZE], order: Order) -> Self {
        let (offset, target) = bytes.split_at(8);
        Self {
            offset: order.u64(offset.try_into().unwrap_or_default()),
            target: Target::parse(target.try_into().unwrap_or(&[0; Target::SIZE]), order),
        }
    }

    /// Encodes an entry.
    #[must_use]
    pub fn emit(&self, order: Order) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&order.of_u64(self.offset));
        bytes[8..].copy_from_slice(&self.target.emit(order));
        bytes
    }

    /// The place of `offset` in the buffer: the address, its key, and the number of bytes that
    /// follow. `None` if `offset` is outside.
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<Target> {
        let inside = offset.checked_sub(self.offset)?;
        let length = u64::from(self.target.length).checked_sub(inside).filter(|length| *length > 0)?;
        Some(Target {
            address: self.target.address.wrapping_add(inside),
            key: self.target.key,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        })
    }
}

/// The entries of a peer's map that this side may write, and which of them are in use.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    used: Vec<bool>,
}

impl Slots {
    /// A map with this many entries.
    #[must_use]
    pub fn new(entries: u16) -> Self {
        Self { used: vec![false; entries.into()] }
    }

    /// Takes a free entry; `None` if all are in use.
    pub fn take(&mut self) -> Option<u16> {
        let index = self.used.iter().position(|used| !used)?;
        if let Some(used) = self.used.get_mut(index) {
            *used = true;
        }
        u16::try_from(index).ok()
    }

    /// Frees an entry.
    pub fn give_back(&mut self, index: u16) {
        if let Some(used) = self.used.get_mut(usize::from(index)) {
            *used = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_in_both_orders() {
        let entry =
            Entry { offset: 0x0102_0304_0506_0708, target: Target { address: 0x1112, key: 0x21, length: 0x3132 } };
        for order in [Order::Little, Order::Big] {
            assert_eq!(Entry::parse(&entry.emit(order), order), entry);
        }
        assert_eq!(entry.emit(Order::Big)[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(entry.emit(Order::Little)[20..], [0x32, 0x31, 0, 0]);
    }

    #[test]
    fn offsets_inside_and_outside() {
        let entry = Entry { offset: 1000, target: Target { address: 0x5000, key: 7, length: 100 } };
        assert_eq!(entry.at(1000), Some(Target { address: 0x5000, key: 7, length: 100 }));
        assert_eq!(entry.at(1099), Some(Target { address: 0x5063, key: 7, length: 1 }));
        assert_eq!(entry.at(1100), None);
        assert_eq!(entry.at(999), None);
        assert_eq!(Entry::default().at(0), None);
    }

    #[test]
    fn slots_are_used_once() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.take(), slots.take(), slots.take()), (Some(0), Some(1), None));
        slots.give_back(0);
        slots.give_back(9);
        assert_eq!(slots.take(), Some(0));
    }
}
