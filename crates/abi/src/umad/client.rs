//! The client's half of the protocol of the node `umad`: what a client sends, what an answer means,
//! and how a message is received. It has no socket and allocates nothing, so that the path
//! redirector can use it in a signal handler. The principal functions are [`answer`] and [`fit`].

use super::{DATAGRAM, FileReply, FileRequest, SHORT_HEADER, UserMad, kind};
use crate::Errno;
use crate::layout::Record;

/// The key of an open file.
pub type Key = [u8; 16];

impl FileRequest {
    /// Opens a node: OPEN_MADS or OPEN_MANAGER.
    #[must_use]
    pub fn open(kind: u32, number: u32, nonblocking: bool) -> Self {
        Self { kind, number, nonblocking: nonblocking.into(), ..Self::default() }
    }

    /// A call on a file, with its argument.
    #[must_use]
    pub fn call(kind: u32, number: u32, key: Key) -> Self {
        Self { kind, number, key, ..Self::default() }
    }

    /// Writes a message of this many bytes to a file.
    #[must_use]
    pub fn write(key: Key, length: usize) -> Self {
        Self::call(kind::WRITE, u32::try_from(length).unwrap_or(u32::MAX), key)
    }
}

/// The value that an answer of the agent returns, and what follows it.
///
/// # Errors
/// The errno of the answer, or EIO if the answer is cut off.
pub fn answer(message: &[u8]) -> Result<(u32, &[u8]), Errno> {
    match FileReply::read(message) {
        Some(FileReply { status: 0, value }) => Ok((value, &message[size_of::<FileReply>()..])),
        Some(FileReply { status, .. }) => Err(Errno(status.wrapping_neg())),
        None => Err(Errno::EIO),
    }
}

/// The length of the message that begins with these bytes: it may come in several packets.
#[must_use]
pub fn whole(beginning: &[u8]) -> Option<usize> {
    let header = beginning.get(..SHORT_HEADER)?;
    Some(UserMad::read_zero_extended(header).length as usize)
}

/// Whether a message fits into the room of a reader. If it does not, the message stays the next
/// one.
///
/// # Errors
/// How much of the message the reader gets, and the errno: ENOSPC if this is the first segment,
/// whose header has the length of the whole message.
pub fn fit(message: usize, room: usize, header: usize) -> Result<(), (usize, Errno)> {
    let first = header.saturating_add(DATAGRAM);
    if message <= room {
        Ok(())
    } else if message <= first || room < first {
        Err((0, Errno::EINVAL))
    } else {
        Err((first, Errno::ENOSPC))
    }
}

/// A socket filter that accepts everything and contains a key, as classic BPF. The client attaches
/// it to the connection of an open file. So the key stays with the file when a descriptor is
/// duplicated, and after `exec`.
#[must_use]
pub fn label(key: Key) -> [u64; LABEL] {
    let (words, _) = key.as_chunks::<4>();
    let mut label = [RETURN_ALL; LABEL];
    for (instruction, word) in label.iter_mut().zip(words) {
        *instruction = u64::from(u32::from_ne_bytes(*word)) << 32;
    }
    label
}

/// The key in a socket filter, if it is a [`label`].
#[must_use]
pub fn labelled(filter: &[u64; LABEL]) -> Option<Key> {
    let mut key = Key::default();
    let (words, _) = key.as_chunks_mut::<4>();
    for (word, instruction) in words.iter_mut().zip(filter) {
        *word = ((instruction >> 32) as u32).to_ne_bytes();
    }
    (label(key) == *filter).then_some(key)
}

/// The instructions of a label: each word of the key is loaded, and the last one returns.
pub const LABEL: usize = 5;
/// `BPF_RET | BPF_K` with the largest length. The code of a load, `BPF_LD | BPF_IMM`, is 0.
const RETURN_ALL: u64 = 6 | 0xffff_ffff << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_results() {
        let reply = |status, value| [FileReply { status, value }.bytes(), b"rest"].concat();
        assert_eq!(answer(&reply(0, 3)), Ok((3, &b"rest"[..])));
        assert_eq!(answer(&reply(Errno::EINVAL.to_status(), 3)), Err(Errno::EINVAL));
        assert_eq!(answer(&[0; 7]), Err(Errno::EIO));
    }

    #[test]
    fn a_message_that_does_not_fit_stays() {
        for header in [SHORT_HEADER, size_of::<UserMad>()] {
            let first = header + DATAGRAM;
            for (message, room, expected) in [
                (first, first, Ok(())),
                (header + 24, first, Ok(())),
                (header + 24, header + 23, Err((0, Errno::EINVAL))),
                (first, first - 1, Err((0, Errno::EINVAL))),
                (first + 1, first - 1, Err((0, Errno::EINVAL))),
                (first + 1, first, Err((first, Errno::ENOSPC))),
                (5000, 4999, Err((first, Errno::ENOSPC))),
                (5000, 5000, Ok(())),
            ] {
                assert_eq!(fit(message, room, header), expected, "{message} in {room}");
            }
        }
        let header = UserMad { length: 5000, ..UserMad::default() };
        assert_eq!((whole(header.bytes()), whole(&header.bytes()[..55])), (Some(5000), None));
    }

    #[test]
    fn a_label_contains_a_key() {
        let key = *b"0123456789abcdef";
        assert_eq!(labelled(&label(key)), Some(key));
        for index in 0..LABEL {
            let mut other = label(key);
            other[index] ^= 1;
            assert_eq!(labelled(&other), None);
        }
    }
}
