//! The buffers of a call: one buffer, or a list (`struct iovec`), read or filled in order. The
//! principal types are [`Buffers`] and [`Cursor`].

use crate::entry::{Outcome, Refusal};

/// The maximum number of list entries, as for sockets.
const MOST: usize = 1024;

/// The program's buffers.
#[derive(Clone, Copy)]
pub(crate) enum Buffers<'a> {
    /// One buffer.
    One(libc::iovec),
    /// A list of buffers.
    Many(&'a [libc::iovec]),
}

impl<'a> Buffers<'a> {
    /// Wraps one buffer.
    pub(crate) fn one<T>(start: *const T, length: usize) -> Self {
        Self::One(libc::iovec { iov_base: start.cast_mut().cast(), iov_len: length })
    }

    /// Wraps a list of buffers.
    ///
    /// # Safety
    /// `list` has `count` entries, which do not change while the result is used.
    pub(crate) unsafe fn list(list: *const libc::iovec, count: usize) -> Outcome<Self> {
        if count > MOST {
            return Err(Refusal(libc::EMSGSIZE));
        }
        if count == 0 {
            return Ok(Self::Many(&[]));
        }
        if list.is_null() {
            return Err(Refusal(libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        let list = Self::Many(unsafe { std::slice::from_raw_parts(list, count) });
        // More bytes than a call can return are not valid memory.
        if isize::try_from(list.length()).is_err() {
            return Err(Refusal(libc::EINVAL));
        }
        Ok(list)
    }

    fn entry(&self, index: usize) -> Option<libc::iovec> {
        match self {
            Self::One(one) => (index == 0).then_some(*one),
            Self::Many(many) => many.get(index).copied(),
        }
    }

    /// The total number of bytes.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::One(one) => one.iov_len,
            Self::Many(many) => many.iter().fold(0, |sum, one| sum.saturating_add(one.iov_len)),
        }
    }

    /// A cursor at the first byte.
    pub(crate) fn cursor(self) -> Cursor<'a> {
        Cursor { buffers: self, index: 0, offset: 0 }
    }
}

/// A position in the buffers.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    buffers: Buffers<'a>,
    index: usize,
    offset: usize,
}

impl Cursor<'_> {
    /// Steps over the next contiguous bytes, at most `most`.
    fn run(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        loop {
            let entry = self.buffers.entry(self.index)?;
            let left = entry.iov_len.saturating_sub(self.offset);
            if left > 0 {
                let length = left.min(most);
                let start = entry.iov_base.cast::<u8>().wrapping_add(self.offset);
                self.offset += length;
                return Some((start, length));
            }
            (self.index, self.offset) = (self.index + 1, 0);
        }
    }

    /// Copies the next `length` bytes of the program to `to`.
    ///
    /// # Safety
    /// The buffers can be read; `to` has room.
    pub(crate) unsafe fn copy_out(&mut self, to: *mut u8, length: usize) {
        let mut done = 0;
        while done < length {
            let Some((from, run)) = self.run(length - done) else { return };
            // SAFETY: the caller's promise; the two do not overlap, because `to` is this library's
            // memory.
            unsafe { std::ptr::copy_nonoverlapping(from, to.wrapping_add(done), run) };
            done += run;
        }
    }

    /// Copies `length` bytes from `from` to the next bytes of the program.
    ///
    /// # Safety
    /// The buffers can be written; `from` has as many bytes.
    pub(crate) unsafe fn copy_in(&mut self, from: *const u8, length: usize) {
        let mut done = 0;
        while done < length {
            let Some((to, run)) = self.run(length - done) else { return };
            // SAFETY: the caller's promise; the two do not overlap, because `from` is this
            // library's memory.
            unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(done), to, run) };
            done += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_one_row_of_bytes() {
        let (a, b, empty, c) = (*b"abc", *b"de", [], *b"fghi");
        let list = [&a[..], &b[..], &empty[..], &c[..]]
            .map(|part: &[u8]| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        // SAFETY: the list has four entries.
        let Ok(buffers) = (unsafe { Buffers::list(list.as_ptr(), 4) }) else { panic!() };
        assert_eq!(buffers.length(), 9);
        let mut cursor = buffers.cursor();
        let mut room = [0; 9];
        for (at, length) in [(0, 1), (1, 5), (6, 3)] {
            // SAFETY: inside `room`.
            unsafe { cursor.copy_out(room.as_mut_ptr().wrapping_add(at), length) };
        }
        assert_eq!(&room, b"abcdefghi");
    }
}
