//! Control messages: the options of one datagram, in the kernel's layout, encoded and parsed as
//! plain bytes. Messages that carry descriptors are not here. Principal type: [`Control`].

/// The header of a message: its length with the header, its level, its type. The data after it is
/// padded to eight bytes.
const HEAD: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEAD == 16 && size_of::<usize>() == 8);

const ROOM: usize = 128;

/// A list of control messages.
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; ROOM],
    len: usize,
}

impl Control {
    /// An empty list, which the kernel can fill.
    pub(crate) const fn new() -> Control {
        Control { bytes: [0; ROOM], len: 0 }
    }

    /// Adds a message.
    pub(crate) fn push<const N: usize>(&mut self, level: i32, kind: i32, data: [u8; N]) {
        let end = self.len + HEAD + N;
        let head = &mut self.bytes[self.len..end];
        head[..8].copy_from_slice(&(HEAD + N).to_ne_bytes());
        head[8..12].copy_from_slice(&level.to_ne_bytes());
        head[12..16].copy_from_slice(&kind.to_ne_bytes());
        head[HEAD..].copy_from_slice(&data);
        self.len = end.next_multiple_of(8);
    }

    /// The messages in the first `len` bytes: level, type and data of each. Ends at the first
    /// message that does not fit.
    pub(crate) fn messages(&self, len: usize) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = &self.bytes[..len.min(ROOM)];
        std::iter::from_fn(move || {
            let (head, _) = rest.split_first_chunk::<HEAD>()?;
            let len = usize::from_ne_bytes(std::array::from_fn(|index| head[index]));
            let level = i32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
            let kind = i32::from_ne_bytes([head[12], head[13], head[14], head[15]]);
            let data = rest.get(HEAD..len)?;
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
            Some((level, kind, data))
        })
    }

    pub(crate) const fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    pub(crate) const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// Length in bytes of the added messages.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn capacity(&self) -> usize {
        ROOM
    }
}

/// The number in a message's data, which the kernel writes as one, two or four bytes.
pub(crate) fn number(data: &[u8]) -> usize {
    match *data {
        [a] => usize::from(a),
        [a, b] => usize::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]) as usize,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_have_the_layout_of_the_kernel() {
        let mut control = Control::new();
        control.push(17, 103, 1024_u16.to_ne_bytes());
        control.push(0, 2, 7_i32.to_ne_bytes());
        assert_eq!(control.len(), 48);
        let mut bytes = [0; 48];
        bytes[0] = 18;
        bytes[8] = 17;
        bytes[12] = 103;
        bytes[17] = 4;
        bytes[24] = 20;
        bytes[36] = 2;
        bytes[40] = 7;
        assert_eq!(control.bytes[..48], bytes);
        let read: Vec<_> = control.messages(48).map(|(level, kind, data)| (level, kind, number(data))).collect();
        assert_eq!(read, [(17, 103, 1024), (0, 2, 7)]);
    }

    #[test]
    fn a_control_message_with_a_wrong_length_ends_the_list() {
        let mut control = Control::new();
        control.push(17, 103, 1024_u16.to_ne_bytes());
        assert_eq!(control.messages(17).count(), 0);
        assert_eq!(control.messages(18).count(), 1);
        control.bytes[..8].copy_from_slice(&[0xff; 8]);
        assert_eq!(control.messages(24).count(), 0);
        control.bytes[..8].copy_from_slice(&[0; 8]);
        assert_eq!(control.messages(24).count(), 0);
    }

    #[test]
    fn numbers_of_each_width() {
        assert_eq!(number(&[7]), 7);
        assert_eq!(number(&[0, 4]), 1024);
        assert_eq!(number(&[0, 4, 0, 0]), 1024);
        assert_eq!(number(&[]), 0);
    }
}
