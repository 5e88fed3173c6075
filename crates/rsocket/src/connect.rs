//! The private data of a connection request and its reply, in which two rsockets exchange their
//! buffers and credits. The principal type is [`Hello`]. (`docs/rsocket`, "Connection
//! Establishment".)

use crate::target::{Order, Target};
use crate::violation::Violation;

/// The protocol version.
pub const VERSION: u8 = 1;

const BIG_ENDIAN: u8 = 1 << 0;
const HAS_IOMAP: u8 = 1 << 1;

/// The data that one side sends when it connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The byte order of this side's memory.
    pub order: Order,
    /// The number of messages that this side can receive at first.
    pub credits: u16,
    /// The number of entries of this side's I/O map, which follows the list of buffers in memory.
    pub iomap: u16,
    /// This side's list of buffers: its place, and the number of entries.
    pub list: Target,
    /// The first buffer to write to.
    pub buffer: Target,
}

impl Hello {
    /// The encoded size in bytes.
    pub const SIZE: usize = 40;

    /// Parses private data. Bytes after it are padding.
    ///
    /// # Errors
    /// [`Violation::Short`], [`Violation::Version`], [`Violation::NoEntries`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Violation> {
        let (head, _) = bytes.split_first_chunk::<{ Self::SIZE }>().ok_or(Violation::Short(bytes.len()))?;
        let [version, flags, c0, c1, _, _, _, iomap, places @ ..] = head;
        if *version != VERSION {
            return Err(Violation::Version(*version));
        }
        let (list, buffer) = places.split_at(Target::SIZE);
        let target =
            |bytes: &[u8]| bytes.first_chunk().map_or_else(Target::default, |bytes| Target::parse(bytes, Order::Big));
        let hello = Self {
            order: if flags & BIG_ENDIAN == 0 { Order::Little } else { Order::Big },
            credits: u16::from_be_bytes([*c0, *c1]),
            iomap: if flags & HAS_IOMAP == 0 { 0 } else { entries(*iomap) },
            list: target(list),
            buffer: target(buffer),
        };
        if hello.list.length == 0 {
            return Err(Violation::NoEntries);
        }
        Ok(hello)
    }

    /// Encodes private data.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = VERSION;
        bytes[1] = HAS_IOMAP | if self.order == Order::Big { BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scale(self.iomap);
        bytes[8..24].copy_from_slice(&self.list.emit(Order::Big));
        bytes[24..].copy_from_slice(&self.buffer.emit(Order::Big));
        bytes
    }
}

/// Encodes a number of entries in one byte: up to 128 directly, larger ones as a multiple of 256
/// with the upper bit set.
fn scale(entries: u16) -> u8 {
    u8::try_from(if entries <= 128 { entries } else { 128 | (entries >> 8).min(127) }).unwrap_or(u8::MAX)
}

/// Decodes a number of entries.
fn entries(scaled: u8) -> u16 {
    let scaled = u16::from(scaled);
    if scaled <= 128 { scaled } else { (scaled & 127) << 8 }
}

/// The real number of entries of an I/O map for which `asked` entries are asked: the number that
/// the byte can encode.
#[must_use]
pub fn iomap_size(asked: u32) -> u16 {
    entries(scale(u16::try_from(asked).unwrap_or(u16::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Hello::SIZE] = [
        1, 2, 0x01, 0x80, 0, 0, 0, 5, // version, flags, 384 credits, 5 entries
        0, 0, 0x7F, 0x11, 0x22, 0x33, 0x40, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 2, // the list
        0, 0, 0x7F, 0x11, 0x22, 0x34, 0x50, 0, 0, 0, 0x56, 0x78, 0, 1, 0, 0, // the first buffer
    ];

    #[test]
    fn a_hello_is_parsed_from_literal_bytes() {
        let hello = Hello {
            order: Order::Little,
            credits: 384,
            iomap: 5,
            list: Target { address: 0x7F11_2233_4000, key: 0x1234, length: 2 },
            buffer: Target { address: 0x7F11_2234_5000, key: 0x5678, length: 65536 },
        };
        assert_eq!(Hello::parse(&BYTES), Ok(hello));
        assert_eq!(hello.emit(), BYTES);
        let padded: Vec<u8> = BYTES.iter().copied().chain([0; 100]).collect();
        assert_eq!(Hello::parse(&padded), Ok(hello));
    }

    #[test]
    fn malformed_hellos_are_refused() {
        assert_eq!(Hello::parse(&BYTES[..39]), Err(Violation::Short(39)));
        assert_eq!(Hello::parse(&[2; 56]), Err(Violation::Version(2)));
        let mut none = BYTES;
        none[23] = 0;
        assert_eq!(Hello::parse(&none), Err(Violation::NoEntries));
    }

    #[test]
    fn sizes_of_io_maps() {
        for (asked, size) in [(0, 0), (1, 1), (128, 128), (129, 128), (256, 256), (300, 256), (1 << 20, 0x7F00)] {
            assert_eq!(iomap_size(asked), size, "{asked}");
        }
    }
}
